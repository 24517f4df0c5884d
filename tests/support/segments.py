"""What a capture's first half hands to its second, caught for tests: the arguments of Streams.segment."""

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

from contract.harness.packets import ETHERNET, Frame

from toolkit.capture.files import replay
from toolkit.capture.packets import Frames
from toolkit.capture.records import CaptureFilter, Losses, MemoryBounds
from toolkit.errors import ToolkitError


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
    follow_answers: bool = False,
    limits: MemoryBounds | None = None,
) -> Frames:
    """Frames of one link that hand their segments to a list."""
    return Frames(
        link,
        catch(found),
        CaptureFilter(
            ports=(8000,), follow_answers=follow_answers, limits=limits or MemoryBounds()
        ),
        losses,
    )


def segments_of(
    frames: Iterable[Frame],
    link: int = ETHERNET,
    *,
    follow_answers: bool = False,
    limits: MemoryBounds | None = None,
) -> Caught:
    """Through Frames, frame by frame, as a live capture does."""
    found: list[Segment] = []
    losses = Losses()
    reader = frames_to(found, losses, link, follow_answers=follow_answers, limits=limits)
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
    watch = CaptureFilter(ports=ports, follow_answers=follow_answers)
    replay(str(path), catch(found), watch, losses, follow=follow, stop=stop)
    return Caught(found, losses)


class Reading:
    """What a capture file of these bytes gives, read in blocks of a size; an error of its own waits in `error`."""

    def __init__(self, file: bytes, size: int = 1 << 20, name: str = "x.pcap") -> None:
        self.found: list[Segment] = []
        self.losses = Losses()
        self.error: str | None = None
        self.notes: list[str] = []
        with TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_bytes(file)
            try:
                with patch("toolkit.capture.files.BLOCK_BYTES", size):
                    watch = CaptureFilter(ports=(8000,))
                    replay(str(path), catch(self.found), watch, self.losses)
                self.notes = [note.replace(f"{folder}/", "") for note in self.losses.notes]
            except ToolkitError as error:
                self.error = error.message.replace(f"{folder}/", "")

    @property
    def payloads(self) -> list[bytes]:
        return [segment.payload for segment in self.found]
