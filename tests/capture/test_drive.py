"""The loop over files and the two threads of a live capture, with real frames and sinks that fail."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from contract.harness.packets import ETHERNET, Conversation, Frame, ok, pcap, post

from toolkit.capture import drive
from toolkit.capture.bodies import Bodies
from toolkit.capture.drive import FrameReader, Intake, follow_live, read_files
from toolkit.capture.jsonl import NumberedRequest
from toolkit.capture.records import CaptureFilter, HttpRequest, Losses
from toolkit.capture.summary import RequestCounter
from toolkit.errors import ToolkitError

WATCH = CaptureFilter(ports={8000})


class Kept:
    """A sink that keeps everything; `fault` may be an error to raise or a function to call first."""

    def __init__(self, fault: Exception | Callable[[], None] | None = None) -> None:
        self.arrived: list[NumberedRequest] = []
        self.batches: list[int] = []
        self.closed = 0
        self.fault = fault

    def take(self, batch: Sequence[NumberedRequest]) -> None:
        if isinstance(self.fault, Exception):
            raise self.fault
        if self.fault:
            self.fault()
        self.batches.append(len(batch))
        self.arrived += batch

    def close(self) -> None:
        self.closed += 1

    def paths(self) -> list[str | None]:
        return [one.seen.path for one in self.arrived]


def intake(*sinks: Kept, counter: RequestCounter | None = None, **more: object) -> Intake:
    return Intake(Bodies(client=bytes.hex), counter or RequestCounter(), sinks, **more)


def body(prompt: str) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": prompt}]}).encode()


def talk(prompts: Sequence[str], **more: object) -> Conversation:
    conversation = Conversation(**more)
    conversation.open()
    for number, prompt in enumerate(prompts):
        conversation.client(post(body(prompt), f"/{number}"))
        conversation.server(ok())
    return conversation


def request(number: int, size: int = 0) -> HttpRequest:
    return HttpRequest(
        ts=float(number),
        ts_last=float(number),
        client=b"\x0a\0\0\1",
        client_port=1,
        server=b"\x0a\0\0\2",
        server_port=8000,
        method="POST",
        path=f"/{number}",
        body=b"x" * size,
        body_bytes=size,
    )


# --- the intake -----------------------------------------------------------------------------------


def test_each_request_is_told_counted_and_handed_to_every_sink_in_order(tmp_path: Path) -> None:
    (tmp_path / "a.pcap").write_bytes(pcap(talk(["a", "b", "a"]).frames))
    one, other, counter = Kept(), Kept(), RequestCounter()
    wanted = intake(one, other, counter=counter, wanted=lambda request: request.path != "/3")
    read_files([str(tmp_path / "a.pcap")], wanted, Losses(), WATCH)
    assert [(each.new, each.unique_so_far) for each in one.arrived] == [
        (True, 1),
        (True, 2),
        (False, 2),
    ]
    assert one.paths() == other.paths() == ["/0", "/1", "/2"]
    assert [each.body for each in one.arrived] == [None] * 3  # nobody asked for them
    # what is not wanted is in no figure
    wanted.add(request(3))
    wanted.close()
    assert (wanted.left_out, counter.requests, len(one.arrived)) == (1, 3, 3)


def test_requests_wait_for_no_more_than_a_moment_or_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(drive.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(drive, "BATCH_REQUESTS", 3)
    monkeypatch.setattr(drive, "BATCH_BYTES", 10_000)
    sink = Kept()
    waiting = intake(sink, keep_bodies=True)
    waiting.add(request(1))
    assert not waiting.beat()
    assert sink.batches == []
    for _ in range(2):
        now[0] += drive.BATCH_S
        waiting.beat()
    # nothing came, and the sinks are called all the same: one may have to commit
    assert sink.batches == [1, 0]
    for number in range(4):
        waiting.add(request(number))
    assert sink.batches == [1, 0, 3]
    waiting.add(request(5, size=10_000))
    assert sink.batches == [1, 0, 3, 2]


def test_a_sink_that_fails_at_the_end_leaves_no_other_one_open() -> None:
    class Failing(Kept):
        def close(self) -> None:
            super().close()
            raise OSError("no")

    first, second = Failing(), Failing()
    with pytest.raises(OSError, match="no"):
        intake(first, second).close()
    assert (first.closed, second.closed) == (1, 1)


def test_what_waits_is_bounded_by_bytes_and_one_request_may_be_however_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drive, "WAITING_BYTES", 3 * (drive.REQUEST_BYTES + len("/1")))
    waiting = intake(Kept())
    assert waiting.put(request(1, size=10 * drive.REQUEST_BYTES))
    assert not waiting.put(request(2))
    waiting.hand_on_all()
    assert [waiting.put(request(n)) for n in range(4)] == [True, True, True, False]
    assert len(waiting) == 3


# --- files ----------------------------------------------------------------------------------------


def test_a_connection_goes_on_in_the_next_file_and_what_is_to_be_known_is_told(
    tmp_path: Path,
) -> None:
    frames = talk(["a" * 3_000, "b"]).frames
    # the first request's 3,000 bytes take three frames: cut between them
    cut = 3 + 1
    files = {"1": pcap(frames[:cut]), "2": pcap(frames[cut:])[:-10], "3": b"no capture"}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    paths = [str(tmp_path / name) for name in files]
    sink, losses = Kept(), Losses()
    read_files(paths, intake(sink), losses, WATCH, stop=lambda: True)
    assert sink.arrived == []
    with pytest.raises(ToolkitError, match="3` is no capture"):
        read_files(paths, intake(sink), losses, WATCH)
    assert sink.paths() == ["/0", "/1"]
    assert not any(one.seen.damaged for one in sink.arrived)
    assert losses.gaps == 0
    assert [note.endswith("is cut off") for note in losses.notes] == [True]


# --- live -----------------------------------------------------------------------------------------


class Fed:
    """An engine that hands out given frames, some at a time, and then waits like a quiet interface."""

    link_type = ETHERNET
    buffer_bytes = None
    note = None

    def __init__(self, frames: Sequence[Frame], fault: Exception | None = None) -> None:
        self.frames, self.fault = list(frames), fault
        self.closed = 0
        self.dropped = 0
        self.is_empty = threading.Event()

    def pump(self, frame: Callable[[float, bytes, int], None], timeout_s: float) -> int:
        some, self.frames = self.frames[:10], self.frames[10:]
        for one in some:
            frame(one.ts, one.data, one.on_wire)
        if not some:
            self.is_empty.set()
            if self.fault:
                raise self.fault
            time.sleep(min(timeout_s, 0.01))
        return len(some)

    def drain(self, frame: Callable[[float, bytes, int], None]) -> None:
        while self.pump(frame, 0.0):
            pass

    def drops(self) -> int:
        return self.dropped + 2 * self.closed  # it tells the last ones only when it is closed

    def close(self) -> None:
        self.closed += 1


def run_live(
    engine: Fed, waiting: Intake, losses: Losses, stop: Callable[[], bool] | None = None
) -> None:
    reader = FrameReader(engine, waiting, losses, WATCH)
    follow_live(reader, waiting, stop=stop or engine.is_empty.is_set)


@pytest.mark.parametrize("is_stopped_at_once", [False, True])
def test_everything_that_was_read_is_in_the_sinks_when_a_live_capture_ends(
    is_stopped_at_once: bool,
) -> None:
    conversation = talk(["a"] * 500)
    first, *_ = conversation.client(post(body("a" * 5_000), "/cut"))
    frames = [
        *conversation.frames[: conversation.frames.index(first)],
        first,
    ]  # one of four segments
    engine, sink, losses = Fed(frames), Kept(), Losses()
    engine.dropped = 7
    run_live(engine, intake(sink), losses, (lambda: True) if is_stopped_at_once else None)
    assert sink.paths() == [*(f"/{n}" for n in range(500)), "/cut"]
    assert [one.seen.damaged for one in sink.arrived] == [False] * 500 + [True]
    assert (losses.kernel_drops, losses.app_drops, engine.closed) == (9, 0, 1)


def test_an_engine_that_fails_ends_the_capture_with_what_was_read_and_its_reason() -> None:
    engine = Fed(talk(["a", "b"]).frames, fault=ToolkitError("the interface `eth9` is gone"))
    sink = Kept()
    with pytest.raises(ToolkitError, match="eth9"):
        run_live(engine, intake(sink), Losses(), lambda: False)
    assert (sink.paths(), engine.closed) == (["/0", "/1"], 1)


def test_while_the_sinks_hang_requests_wait_up_to_a_bound_and_the_rest_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drive, "BATCH_REQUESTS", 1)  # the first request hangs already
    # room for 100 requests of this size
    size = drive.REQUEST_BYTES + len("/100") + len(body("prompt 100"))
    monkeypatch.setattr(drive, "WAITING_BYTES", 100 * size)
    engine, losses = Fed(talk([f"prompt {n}" for n in range(300)]).frames), Losses()
    hung = Kept(fault=lambda: engine.is_empty.wait(10) and None)
    run_live(engine, intake(hung), losses)
    assert losses.app_drops + len(hung.arrived) == 300
    assert losses.app_drops > 0
    assert len(hung.arrived) >= 100


def test_the_screen_is_looked_after_while_nothing_arrives() -> None:
    engine, looks, waiting = Fed([]), [], intake()
    reader = FrameReader(engine, waiting, Losses(), WATCH)
    follow_live(reader, waiting, stop=lambda: len(looks) >= 3, show=lambda: looks.append(1))
    assert len(looks) == 3
