"""Real HTTP over real sockets for live captures: a server that keeps what it was sent, clients, and a capture's end.

Nothing here is timed: a capture is pumped until the last request is seen, or a generous deadline says that it never
will be.
"""

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from toolkit.capture.live import LiveCapture, open_live
from toolkit.capture.packets import Frames
from toolkit.capture.records import CaptureFilter, HttpRequest, Losses
from toolkit.capture.tcp import Streams

NEVER_S = 60.0
ANSWER = b'{"choices":[{"message":{"content":"yes"},"finish_reason":"stop"}]}'
THE_END = b'{"prompt":"that was all"}'
MIB = 1024 * 1024


def bodies(count: int, *, size: int = 0) -> list[bytes]:
    """So many different request bodies."""
    return [
        b'{"model":"m","messages":[{"role":"user","content":"%d %s"}]}' % (number, b"x" * size)
        for number in range(count)
    ]


def request(body: bytes) -> bytes:
    return b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )


def _read_body(stream: socket.SocketIO | object) -> bytes | None:
    length = 0
    while True:
        line = stream.readline()  # type: ignore[attr-defined]
        if not line:
            return None
        if line == b"\r\n":
            return stream.read(length)  # type: ignore[attr-defined]
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)


class Server:
    """Answers every request the same, and keeps what it was sent."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self.port: int = listening.getsockname()[1]
        self.bodies: list[bytes] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self._threads.append(
                threading.Thread(target=self._serve, args=(connection,), daemon=True)
            )
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(ConnectionError), connection, connection.makefile("rb") as stream:
            while (body := _read_body(stream)) is not None:
                self.bodies.append(body)
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(ANSWER), ANSWER)
                )

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(NEVER_S)
        self._listening.close()


@contextmanager
def serving(address: str = "127.0.0.1", port: int = 0) -> Iterator[Server]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = Server(socket.create_server((address, port), family=family))
    try:
        yield server
    finally:
        server.close()


def send(
    address: str, port: int, wanted: list[bytes], *, connections: int = 4, ends: bool = True
) -> None:
    """Send bodies over keep-alive connections in turn, one segment each if they fit, each after the last one's answer.

    At the end comes one body more, THE_END, on a connection of its own: what a capture has not seen before it, it won't.
    """
    _send(address, port, wanted, connections)
    if ends:
        _send(address, port, [THE_END], 1)


def _send(address: str, port: int, wanted: list[bytes], connections: int) -> None:
    opened = [socket.create_connection((address, port), NEVER_S) for _ in range(connections)]
    answer = len(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(ANSWER), ANSWER))
    for body, connection in zip(wanted, itertools.cycle(opened), strict=False):
        connection.sendall(request(body))
        left = answer
        while left:
            left -= len(connection.recv(left))
    for connection in opened:
        connection.close()


class Capture:
    """An engine with all that makes requests of its frames."""

    def __init__(self, engine: LiveCapture, port: int, *, follow_answers: bool = False) -> None:
        self.engine = engine
        self.losses = Losses()
        self.requests: list[HttpRequest] = []
        self.frames: list[bytes] = []
        """Those that hold a segment of TCP on the port: IPv6's housekeeping comes along, too."""
        watch = CaptureFilter(ports=[port], follow_answers=follow_answers)
        self._streams = Streams(self.requests.append, watch, self.losses)
        self._frames = Frames(engine.link_type, self._streams.segment, watch, self.losses)

    def _frame(self, ts: float, data: bytes, wire_bytes: int) -> None:
        before = self.losses.segments
        self._frames.frame(ts, data, wire_bytes)
        if self.losses.segments > before:
            self.frames.append(data)

    def pump(self, stop: Callable[[], bool] = lambda: False) -> list[bytes]:
        """Pump until THE_END is seen, or it is to stop; the bodies before it."""
        self._pump_until(lambda: THE_END in self.bodies[-1:] or stop())
        return self.bodies[:-1]

    def pump_for(self, count: int) -> list[bytes]:
        """Pump until so many requests are seen; their bodies."""
        self._pump_until(lambda: len(self.requests) >= count)
        return self.bodies

    def _pump_until(self, is_enough: Callable[[], bool]) -> None:
        never = time.monotonic() + NEVER_S
        while not is_enough() and time.monotonic() < never:
            self.engine.pump(self._frame, 0.2)

    def pump_rest(self) -> None:
        """Pump until nothing comes for a moment, then what the engine still has."""
        while self.engine.pump(self._frame, 0.05):
            pass
        self.engine.drain(self._frame)

    def close(self) -> None:
        self.engine.close()
        self._frames.close()
        self._streams.close()

    @property
    def bodies(self) -> list[bytes]:
        return [one.body or b"" for one in self.requests]


@contextmanager
def capturing(
    iface: str,
    port: int,
    *,
    follow_answers: bool = False,
    buffer_bytes: int = 8 * MIB,
) -> Iterator[Capture]:
    opened = open_live(
        iface, ports=[port], follow_answers=follow_answers, buffer_bytes=buffer_bytes
    )
    capture = Capture(opened, port, follow_answers=follow_answers)
    try:
        yield capture
    finally:
        capture.close()
