"""What a capture's first half hands to its second, caught for tests: the arguments of Streams.segment."""

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from support.packets import ETHERNET, Frame

from toolkit.capture.exchange import Losses, MemoryBounds
from toolkit.capture.files import Replayed, replay
from toolkit.capture.frames import Frames


class Segment(NamedTuple):
    ts: float
    key: bytes
    seq: int
    ack: int
    flags: int
    payload: bytes
    missing: int


class Caught(NamedTuple):
    segments: list[Segment]
    losses: Losses
    told: Replayed = Replayed()

    @property
    def payloads(self) -> list[bytes]:
        return [segment.payload for segment in self.segments]


def catch(into: list[Segment]) -> Callable[..., None]:
    def segment(*args: Any) -> None:
        into.append(Segment(*args))

    return segment


def frames_to(
    found: list[Segment],
    losses: Losses,
    link: int = ETHERNET,
    *,
    ports: Collection[int] = (8000,),
    follow_answers: bool = False,
    limits: MemoryBounds | None = None,
) -> Frames:
    """Frames of one link that hand their segments to a list."""
    return Frames(
        link,
        catch(found),
        ports=ports,
        follow_answers=follow_answers,
        losses=losses,
        limits=limits or MemoryBounds(),
    )


def segments_of(
    frames: Iterable[Frame],
    link: int = ETHERNET,
    *,
    ports: Collection[int] = (8000,),
    follow_answers: bool = False,
    limits: MemoryBounds | None = None,
) -> Caught:
    """Through Frames, frame by frame, as a live capture does."""
    found: list[Segment] = []
    losses = Losses()
    reader = frames_to(
        found, losses, link, ports=ports, follow_answers=follow_answers, limits=limits
    )
    for frame in frames:
        reader.frame(frame.ts, frame.data, frame.on_wire)
    reader.close()
    return Caught(found, losses)


def replayed(
    path: Path | str,
    *,
    ports: Collection[int] = (8000,),
    follow_answers: bool = False,
    follow: bool = False,
    stop: Callable[[], bool] = lambda: False,
    into: list[Segment] | None = None,
) -> Caught:
    """Through a file. `into`: where segments go, for a test that looks while the file is read."""
    found: list[Segment] = [] if into is None else into
    losses = Losses()
    told = replay(
        str(path),
        catch(found),
        ports=ports,
        follow_answers=follow_answers,
        losses=losses,
        limits=MemoryBounds(),
        follow=follow,
        stop=stop,
    )
    return Caught(found, losses, told)
