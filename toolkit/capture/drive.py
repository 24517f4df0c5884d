"""Drives a capture: requests come in from packets and go out to the sinks in batches. The threads live here.

Files are read in one loop, without a thread. Live, a second thread only reads: it takes frames from the kernel, puts streams
together and cuts requests out of them. JSON, hashes, SQLite and files are the first thread's. What waits between the two is
bounded by bytes; what finds no room there is counted as an application drop.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Protocol

from toolkit.capture.bodies import Bodies
from toolkit.capture.files import replay
from toolkit.capture.jsonl import NumberedRequest
from toolkit.capture.live import LiveCapture
from toolkit.capture.packets import Frames
from toolkit.capture.records import CaptureFilter, HttpRequest, Losses
from toolkit.capture.summary import RequestCounter
from toolkit.capture.tcp import Streams

BATCH_S = 0.2
"""How long a request waits for others before it is read and handed on: who reads our output is never a second behind."""
BATCH_REQUESTS = 1_000
BATCH_BYTES = 4 * 1024 * 1024
"""Of the requests in a batch."""
WAITING_BYTES = 64 * 1024 * 1024
"""Of the requests that wait: at 0.6 KB a request and 10,000 a second, 4 s in which the database may hang."""
REQUEST_BYTES = 800
"""What a request takes beside its body."""
IDLE_S = 0.05
"""The first thread looks for requests so often; a wake-up for each would cost the reader its time slices."""
PUMP_S = 0.1
POLL_S = 0.5
"""Between two readings of the kernel's drop counter."""


class Sink(Protocol):
    """Where requests go."""

    def take(self, batch: Sequence[NumberedRequest]) -> None:
        """Take some, or none: it is called several times a second, whatever arrives."""

    def close(self) -> None:
        """Finish: nothing comes any more."""


class Intake:
    """Requests wait here until they are read, counted and handed to the sinks, in batches.

    One thread may put requests in while another one hands them on; neither waits for the other.
    """

    def __init__(
        self,
        bodies: Bodies,
        counter: RequestCounter,
        sinks: Sequence[Sink],
        *,
        wanted: Callable[[HttpRequest], bool] = lambda _: True,
        keep_bodies: bool = False,
    ) -> None:
        self.left_out = 0
        """Requests that were not wanted."""
        self._read, self._counter, self._sinks = bodies.seen, counter, sinks
        self._wanted, self._keep_bodies = wanted, keep_bodies
        self._waiting: deque[HttpRequest] = deque()
        # each is written by one thread only: their difference is what waits
        self._put_bytes = self._taken_bytes = 0
        self._handed_on_s = time.monotonic()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, request: HttpRequest) -> bool:
        """Have a request wait; False: there is no room."""
        size = _size(request)
        if self._put_bytes - self._taken_bytes + size > WAITING_BYTES and self._waiting:
            return False
        self._put_bytes += size
        self._waiting.append(request)
        return True

    def add(self, request: HttpRequest) -> None:
        """Have a request wait, in the thread that hands on: there is room."""
        self.put(request)
        if self._is_batch():
            self.hand_on()

    def beat(self) -> bool:
        """To be called several times a second, whatever arrives; whether more than a batch waited."""
        is_batch = self._is_batch()
        if is_batch or time.monotonic() - self._handed_on_s >= BATCH_S:
            self.hand_on()
        return is_batch

    def _is_batch(self) -> bool:
        is_heavy = self._put_bytes - self._taken_bytes >= BATCH_BYTES
        return is_heavy or len(self._waiting) >= BATCH_REQUESTS

    def hand_on(self) -> None:
        """Read and count a batch of what waits, and give it to the sinks."""
        self._handed_on_s = time.monotonic()
        requests: list[HttpRequest] = []
        enough = self._taken_bytes + BATCH_BYTES
        while self._waiting and len(requests) < BATCH_REQUESTS and self._taken_bytes < enough:
            request = self._waiting.popleft()
            self._taken_bytes += _size(request)
            if self._wanted(request):
                requests.append(request)
            else:
                self.left_out += 1
        # one kind of work after the other, not in turns: 1.22 s of CPU for 20,000 requests of a file instead of 1.65
        seen = [self._read(request) for request in requests]
        count, prompts, keep = self._counter.add, self._counter.prompts, self._keep_bodies
        batch = [
            NumberedRequest(one, count(one), prompts.unique, request.body if keep else None)
            for one, request in zip(seen, requests, strict=True)
        ]
        for sink in self._sinks:
            sink.take(batch)

    def hand_on_all(self) -> None:
        """Give the sinks all that waits."""
        while self._waiting:
            self.hand_on()

    def close(self) -> None:
        """Give the sinks what waits, and close them all even if one of them fails."""
        with ExitStack() as closing:
            for sink in reversed(self._sinks):
                closing.callback(sink.close)
            self.hand_on_all()


def _size(request: HttpRequest) -> int:
    return REQUEST_BYTES + len(request.path or "") + len(request.body or b"")


def read_files(
    paths: Sequence[str],
    intake: Intake,
    losses: Losses,
    watch: CaptureFilter,
    *,
    follow: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Read capture files one after the other as if they were one: connections go on in the next file.

    `-` is standard input. `stop` is asked several times a second. Raises ToolkitError; what was read before is in the sinks.
    """
    streams = Streams(intake.add, watch, losses)

    def tick() -> bool:
        intake.beat()
        return stop()

    try:
        for path in paths:
            if stop():
                break
            replay(path, streams.segment, watch, losses, follow=follow, stop=tick)
    finally:
        streams.close()
        intake.hand_on_all()


class FrameReader(threading.Thread):
    """Frames -> streams -> requests that wait, until it is told to stop or fails."""

    def __init__(
        self, engine: LiveCapture, intake: Intake, losses: Losses, watch: CaptureFilter
    ) -> None:
        super().__init__(name="capture-reader", daemon=True)
        self.error: BaseException | None = None
        self.should_stop = False
        self._engine, self._intake, self._losses = engine, intake, losses
        self._streams = Streams(self._put, watch, losses)
        self._frames = Frames(engine.link_type, self._streams.segment, watch, losses)

    def _put(self, request: HttpRequest) -> None:
        self._losses.app_drops += not self._intake.put(request)

    def run(self) -> None:
        """Read until told to stop; an error ends it and waits in `error`."""
        engine, frame, polled_s = self._engine, self._frames.frame, 0.0
        try:
            while not self.should_stop:
                engine.pump(frame, PUMP_S)
                now_s = time.monotonic()
                if now_s - polled_s >= POLL_S:
                    polled_s = now_s
                    self._losses.kernel_drops = engine.drops()
                    self._streams.expire(time.time())
            engine.drain(frame)
        except BaseException as error:  # noqa: BLE001 (raised again in the first thread)
            self.error = error
        finally:
            self._frames.close()
            self._streams.close()
            engine.close()
            self._losses.kernel_drops = engine.drops()  # exact only now


def follow_live(
    reader: FrameReader,
    intake: Intake,
    *,
    stop: Callable[[], bool],
    show: Callable[[], None] = lambda: None,
) -> None:
    """Run a capture until `stop` says so or the reader fails; `show` is called several times a second.

    Raises what the reader failed of, once everything that it had read is in the sinks.
    """
    reader.start()
    try:
        while reader.is_alive() and not stop():
            if not intake.beat():
                time.sleep(IDLE_S)
            show()
    finally:
        reader.should_stop = True
    while reader.is_alive():
        intake.beat()
        reader.join(IDLE_S)
    intake.hand_on_all()
    if reader.error is not None:
        raise reader.error
