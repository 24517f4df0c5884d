"""Drives a capture: requests come in from packets and go out to the sinks in batches. The threads live here.

Files are read in one loop, without a thread or a queue. Live, a second thread only reads: it takes frames from the
kernel, puts streams together and cuts requests out of them. JSON, hashes, SQLite and files are the first thread's. What
lies between the two is bounded by bytes; what finds no room there is counted as an application drop.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Protocol

from toolkit.capture.bodies import Bodies
from toolkit.capture.files import Replayed, replay
from toolkit.capture.lines import NumberedRequest
from toolkit.capture.live import LiveCapture
from toolkit.capture.packets import Frames
from toolkit.capture.records import CaptureFilter, HttpRequest, Losses
from toolkit.capture.summary import RequestCounter
from toolkit.capture.tcp import Streams

BATCH_S = 0.2
"""How long a request waits for others before it is read and handed on: who reads our output is never a second behind."""
BATCH_REQUESTS = 1_000
BATCH_BYTES = 4 * 1024 * 1024
"""Of the bodies that wait."""
QUEUE_BYTES = 64 * 1024 * 1024
"""Between the two threads: at 0.6 KB a request and 10,000 a second, 4 s in which the database may hang."""
REQUEST_BYTES = 800
"""What a request takes beside its body."""
IDLE_S = 0.05
"""The first thread looks into the queue so often; a wake-up for each request would cost the reader its time slices."""
PUMP_S = 0.1
POLL_S = 0.5
"""Between two readings of the kernel's drop counter."""
DRAIN_S = 1.0
"""How long the frames that the kernel holds at the end are still read, beyond its own lag."""


class Sink(Protocol):
    """Where requests go."""

    def take(self, batch: Sequence[NumberedRequest]) -> None:
        """Take some, or none: it is called several times a second, whatever arrives."""

    def close(self) -> None:
        """Finish: nothing comes any more."""


class Intake:
    """One request after the other: told what it asks, counted, and handed to the sinks in batches."""

    def __init__(
        self,
        bodies: Bodies,
        tally: RequestCounter,
        sinks: Sequence[Sink],
        *,
        wanted: Callable[[HttpRequest], bool] | None = None,
        keep_bodies: bool = False,
    ) -> None:
        self.tally = tally
        self.left_out = 0
        """Requests that were not wanted."""
        self._read, self._sinks, self._wanted = bodies.seen, sinks, wanted
        self._keep_bodies = keep_bodies
        self._waiting: list[HttpRequest] = []
        self._waiting_bytes = 0
        self._handed_on_s = time.monotonic()

    def add(self, request: HttpRequest) -> None:
        """Take in a request."""
        if self._wanted is not None and not self._wanted(request):
            self.left_out += 1
            return
        self._waiting.append(request)
        self._waiting_bytes += len(request.body or b"")
        if len(self._waiting) >= BATCH_REQUESTS or self._waiting_bytes >= BATCH_BYTES:
            self.hand_on()

    def beat(self) -> None:
        """To be called several times a second, whatever arrives."""
        if time.monotonic() - self._handed_on_s >= BATCH_S:
            self.hand_on()

    def hand_on(self) -> None:
        """Count what waits and give it to the sinks, now."""
        requests, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self._handed_on_s = time.monotonic()
        # one kind of work after the other, not in turns: 1.22 s of CPU for 20,000 requests of a file instead of 1.65
        told = [self._read(request) for request in requests]
        count, prompts, keep = self.tally.add, self.tally.prompts, self._keep_bodies
        batch = [
            NumberedRequest(seen, count(seen), prompts.unique, request.body if keep else None)
            for seen, request in zip(told, requests, strict=True)
        ]
        for sink in self._sinks:
            sink.take(batch)

    def close(self) -> None:
        """Give the sinks what waits, and close them all even if one of them fails."""
        with ExitStack() as closing:
            for sink in reversed(self._sinks):
                closing.callback(sink.close)
            self.hand_on()


# --- files ------------------------------------------------------------------------------------------


def read_files(
    paths: Sequence[str],
    intake: Intake,
    losses: Losses,
    watch: CaptureFilter,
    told: Replayed,
    *,
    follow: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Read capture files one after the other as if they were one: connections go on in the next file.

    `-` is standard input. `stop` is asked several times a second. Raises ToolkitError; what was read before is in the
    sinks, and `told` has what is to be known of it.
    """
    streams = Streams(intake.add, watch, losses)

    def tick() -> bool:
        intake.beat()
        return stop()

    try:
        for path in paths:
            if stop():
                break
            replay(path, streams.segment, watch, losses, told, follow=follow, stop=tick)
    finally:
        streams.close()
        intake.hand_on()


# --- live -------------------------------------------------------------------------------------------


class Queue:
    """Requests between two threads, bounded by bytes. One thread puts, one takes; neither waits for the other."""

    def __init__(self, most_bytes: int = QUEUE_BYTES) -> None:
        self._most = most_bytes
        self._requests: deque[HttpRequest] = deque()
        # each is written by one thread only: their difference is what lies between
        self._put_bytes = self._taken_bytes = 0

    def __len__(self) -> int:
        return len(self._requests)

    def put(self, request: HttpRequest) -> bool:
        """Add a request; False: there is no room."""
        size = _size(request)
        if self._put_bytes - self._taken_bytes + size > self._most and self._requests:
            return False
        self._put_bytes += size
        self._requests.append(request)
        return True

    def take(self) -> HttpRequest | None:
        """The oldest one; None: there is none."""
        try:
            request = self._requests.popleft()
        except IndexError:
            return None
        self._taken_bytes += _size(request)
        return request


def _size(request: HttpRequest) -> int:
    return REQUEST_BYTES + len(request.path or "") + len(request.body or b"")


class FrameReader(threading.Thread):
    """Frames -> streams -> requests -> queue, until it is told to stop or fails."""

    def __init__(
        self, engine: LiveCapture, queue: Queue, losses: Losses, watch: CaptureFilter
    ) -> None:
        super().__init__(name="capture-reader", daemon=True)
        self.error: BaseException | None = None
        self.should_stop = False
        self._engine, self._queue, self._losses = engine, queue, losses
        self._streams = Streams(self._put, watch, losses)
        self._frames = Frames(engine.link_type, self._streams.segment, watch, losses)

    def _put(self, request: HttpRequest) -> None:
        if not self._queue.put(request):
            self._losses.app_drops += 1

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
            # what came before the end and is not handed out yet; a port that is never quiet is cut off
            late_s = time.monotonic() + engine.lag_s
            while (now_s := time.monotonic()) < late_s + DRAIN_S:
                wait_s = max(0.0, min(late_s - now_s, PUMP_S))
                if not engine.pump(frame, wait_s) and now_s >= late_s:
                    break
        except BaseException as error:  # noqa: BLE001 (raised again in the first thread)
            self.error = error
        finally:
            self._frames.close()
            self._streams.close()
            self._engine.close()
            self._losses.kernel_drops = self._engine.drops()  # exact only now


def follow_live(
    reader: FrameReader,
    queue: Queue,
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
            if not _take_some(queue, intake):
                time.sleep(IDLE_S)
            intake.beat()
            show()
    finally:
        reader.should_stop = True
    while reader.is_alive():
        _take_some(queue, intake)
        reader.join(IDLE_S)
    while _take_some(queue, intake):
        pass
    intake.hand_on()
    if reader.error is not None:
        raise reader.error


def _take_some(queue: Queue, intake: Intake) -> int:
    """Move some requests on; how many. Not all of them: the screen and the clock want to be looked at."""
    for count in range(BATCH_REQUESTS):
        request = queue.take()
        if request is None:
            return count
        intake.add(request)
    return BATCH_REQUESTS
