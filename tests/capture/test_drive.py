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
from toolkit.capture.drive import FrameReader, Intake, Queue, follow_live, read_files
from toolkit.capture.files import Replayed
from toolkit.capture.lines import NumberedRequest
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


def intake(*sinks: Kept, **more: object) -> Intake:
    return Intake(Bodies(client=bytes.hex), RequestCounter(), sinks, **more)


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
    one, other = Kept(), Kept()
    desk = intake(one, other)
    read_files([str(tmp_path / "a.pcap")], desk, Losses(), WATCH, Replayed())
    assert [(each.new, each.unique_so_far) for each in one.arrived] == [
        (True, 1),
        (True, 2),
        (False, 2),
    ]
    assert one.paths() == other.paths() == ["/0", "/1", "/2"]
    assert [each.body for each in one.arrived] == [None] * 3  # nobody asked for them
    assert desk.tally.requests == 3


def test_a_request_waits_for_no_more_than_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(drive.time, "monotonic", lambda: now[0])
    sink = Kept()
    desk = intake(sink)
    desk.add(request(1))
    desk.beat()
    assert sink.batches == []
    now[0] += drive.BATCH_S
    desk.beat()
    assert sink.batches == [1]
    now[0] += drive.BATCH_S
    desk.beat()  # nothing came, and the sinks are called all the same: one may have to commit
    assert sink.batches == [1, 0]


def test_many_requests_and_big_bodies_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "BATCH_REQUESTS", 3)
    monkeypatch.setattr(drive, "BATCH_BYTES", 100)
    sink = Kept()
    desk = intake(sink, keep_bodies=True)
    for number in range(4):
        desk.add(request(number))
    assert sink.batches == [3]
    desk.add(request(5, size=100))
    assert sink.batches == [3, 2]


def test_what_is_not_wanted_is_counted_and_in_no_other_figure() -> None:
    sink = Kept()
    desk = intake(sink, wanted=lambda one: one.path == "/2")
    for number in range(4):
        desk.add(request(number))
    desk.close()
    assert (desk.left_out, desk.tally.requests, sink.paths()) == (3, 1, ["/2"])


def test_a_sink_that_fails_at_the_end_leaves_no_other_one_open() -> None:
    class Failing(Kept):
        def close(self) -> None:
            super().close()
            raise OSError("no")

    first, second = Failing(), Failing()
    with pytest.raises(OSError, match="no"):
        intake(first, second).close()
    assert (first.closed, second.closed) == (1, 1)


# --- files ----------------------------------------------------------------------------------------


def test_a_connection_goes_on_in_the_next_file(tmp_path: Path) -> None:
    frames = talk(["a" * 3_000, "b"]).frames
    # the first request's 3,000 bytes take three frames: cut between them
    cut = 3 + 1
    (tmp_path / "1.pcap").write_bytes(pcap(frames[:cut]))
    (tmp_path / "2.pcap").write_bytes(pcap(frames[cut:]))
    sink, losses = Kept(), Losses()
    read_files(
        [str(tmp_path / "1.pcap"), str(tmp_path / "2.pcap")],
        intake(sink),
        losses,
        WATCH,
        Replayed(),
    )
    assert sink.paths() == ["/0", "/1"]
    assert not any(one.seen.damaged for one in sink.arrived)
    assert losses.gaps == 0


def test_stop_is_obeyed_between_two_files(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"{number}.pcap").write_bytes(pcap(talk(["a"], sport=number).frames))
    sink = Kept()
    paths = [str(tmp_path / "1.pcap"), str(tmp_path / "2.pcap")]
    read_files(paths, intake(sink), Losses(), WATCH, Replayed(), stop=lambda: True)
    assert sink.paths() == []


def test_where_http_went_instead_is_told_of_all_files(tmp_path: Path) -> None:
    for port in (9000, 9001):
        (tmp_path / f"{port}.pcap").write_bytes(pcap(talk(["a"], dport=port).frames))
    paths = [str(tmp_path / "9000.pcap"), str(tmp_path / "9001.pcap")]
    told = Replayed()
    read_files(paths, intake(), Losses(), WATCH, told)
    assert told.http_ports == [9000, 9001]


def test_what_is_to_be_known_of_a_file_is_told_although_the_next_one_is_bad(tmp_path: Path) -> None:
    (tmp_path / "cut.pcap").write_bytes(pcap(talk(["a", "b"]).frames)[:-10])
    (tmp_path / "bad.pcap").write_bytes(b"no capture")
    told, sink = Replayed(), Kept()
    paths = [str(tmp_path / "cut.pcap"), str(tmp_path / "bad.pcap")]
    with pytest.raises(ToolkitError, match=r"bad\.pcap"):
        read_files(paths, intake(sink), Losses(), WATCH, told)
    assert sink.paths() == ["/0", "/1"]
    assert [note.endswith("is cut off") for note in told.notes] == [True]


# --- live -----------------------------------------------------------------------------------------


class Fed:
    """An engine that hands out given frames, some at a time, and then waits like a quiet interface."""

    link_type = ETHERNET
    buffer_bytes = None
    lag_note = None
    lag_s = 0.0

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

    def drops(self) -> int:
        return self.dropped

    def close(self) -> None:
        self.closed += 1


def run_live(engine: Fed, desk: Intake, losses: Losses, queue: Queue | None = None) -> None:
    queue = Queue() if queue is None else queue
    follow_live(FrameReader(engine, queue, losses, WATCH), queue, desk, stop=engine.is_empty.is_set)


def test_everything_that_was_read_is_in_the_sinks_when_a_live_capture_ends() -> None:
    engine, sink, losses = Fed(talk(["a"] * 500).frames), Kept(), Losses()
    engine.dropped = 7
    run_live(engine, intake(sink), losses)
    assert sink.paths() == [f"/{n}" for n in range(500)]
    assert (losses.kernel_drops, losses.app_drops, engine.closed) == (7, 0, 1)


def test_a_request_that_the_end_cuts_is_told_as_damaged() -> None:
    conversation = talk([])
    first, *_ = conversation.client(post(body("a" * 5_000), "/cut"))
    frames = [*conversation.frames[:3], first]  # the handshake, and one of four segments
    sink = Kept()
    run_live(Fed(frames), intake(sink), Losses())
    assert [(one.seen.path, one.seen.damaged) for one in sink.arrived] == [("/cut", True)]


def test_frames_that_the_kernel_still_holds_at_the_end_are_read() -> None:
    engine, sink = Fed(talk(["a"] * 200).frames), Kept()
    queue = Queue()
    reader = FrameReader(engine, queue, Losses(), WATCH)
    follow_live(reader, queue, intake(sink), stop=lambda: True)
    assert len(sink.arrived) == 200


def test_the_end_waits_for_frames_that_an_engine_hands_out_late() -> None:
    class Late(Fed):
        """Like a ring: the kernel keeps what it has until a block is handed over, here for three looks."""

        lag_s = 30.0
        looks = 0

        def pump(self, frame: Callable[[float, bytes, int], None], timeout_s: float) -> int:
            self.looks += 1
            if self.looks <= 3:
                return 0
            count = super().pump(frame, timeout_s)
            if not count:
                raise ToolkitError("all was handed out")
            return count

    engine, sink = Late(talk(["a"] * 20).frames), Kept()
    queue = Queue()
    with pytest.raises(ToolkitError, match="all was handed out"):
        follow_live(
            FrameReader(engine, queue, Losses(), WATCH), queue, intake(sink), stop=lambda: True
        )
    assert len(sink.arrived) == 20


def test_drops_that_an_engine_tells_only_when_it_is_closed_are_told() -> None:
    class Closing(Fed):
        def close(self) -> None:
            super().close()
            self.dropped = 9

    engine, losses = Closing([]), Losses()
    run_live(engine, intake(), losses)
    assert losses.kernel_drops == 9


def test_an_engine_that_fails_ends_the_capture_with_what_was_read_and_its_reason() -> None:
    engine = Fed(talk(["a", "b"]).frames, fault=ToolkitError("the interface `eth9` is gone"))
    sink = Kept()
    queue = Queue()
    with pytest.raises(ToolkitError, match="eth9"):
        follow_live(
            FrameReader(engine, queue, Losses(), WATCH), queue, intake(sink), stop=lambda: False
        )
    assert (sink.paths(), engine.closed) == (["/0", "/1"], 1)


def test_while_the_sinks_hang_requests_wait_up_to_a_bound_and_the_rest_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drive, "BATCH_REQUESTS", 1)  # the first request hangs already
    engine, losses = Fed(talk([f"prompt {n}" for n in range(300)]).frames), Losses()
    hung = Kept(fault=lambda: engine.is_empty.wait(10) and None)
    desk = intake(hung)
    # room for 100 requests of this size
    size = drive.REQUEST_BYTES + len("/100") + len(body("prompt 100"))
    run_live(engine, desk, losses, Queue(100 * size))
    assert losses.app_drops + len(hung.arrived) == 300
    assert losses.app_drops > 0
    assert len(hung.arrived) >= 100


def test_the_screen_is_looked_after_while_nothing_arrives() -> None:
    engine, looks = Fed([]), []
    queue = Queue()
    follow_live(
        FrameReader(engine, queue, Losses(), WATCH),
        queue,
        intake(),
        stop=lambda: len(looks) >= 3,
        show=lambda: looks.append(1),
    )
    assert len(looks) == 3


def test_a_queue_is_bounded_by_bytes_and_takes_one_request_however_large() -> None:
    queue = Queue(3 * (drive.REQUEST_BYTES + len("/1")))
    assert queue.put(request(1, size=10 * drive.REQUEST_BYTES))
    assert not queue.put(request(2))
    assert queue.take().path == "/1"
    assert queue.take() is None
    assert [queue.put(request(n)) for n in range(4)] == [True, True, True, False]
    assert [queue.take().path for _ in range(3)] == ["/0", "/1", "/2"]
    assert queue.put(request(5))
