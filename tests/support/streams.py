"""Segments for `Streams` by hand, without frames around them: one client, one server, sequence numbers counted."""

from collections.abc import Collection

from toolkit.capture.records import (
    ACK,
    FIN,
    RST,
    SYN,
    CaptureFilter,
    HttpRequest,
    Losses,
    MemoryBounds,
)
from toolkit.capture.tcp import Streams

__all__ = ["ACK", "FIN", "RST", "SYN", "Capture", "key", "opened", "post"]


def key(sport: int = 40000, dport: int = 8000, *, client: int = 1) -> bytes:
    """10.0.0.`client`:`sport` to 10.0.9.9:`dport`, as a packet has it."""
    addresses = bytes([10, 0, 0, client, 10, 0, 9, 9])
    return addresses + sport.to_bytes(2, "big") + dport.to_bytes(2, "big")


def post(body: bytes, *headers: bytes, path: bytes = b"/v1/x") -> bytes:
    lines = [b"POST %s HTTP/1.1" % path, b"Host: h", *headers, b"Content-Length: %d" % len(body)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


class Capture:
    """A `Streams` with what came out of it, and one connection to feed it from."""

    def __init__(
        self,
        *,
        limits: MemoryBounds | None = None,
        follow: bool = False,
        ports: Collection[int] = (8000,),
    ) -> None:
        self.requests: list[HttpRequest] = []
        self.losses = Losses()
        self.streams = Streams(
            self.requests.append,
            CaptureFilter(ports=ports, follow_answers=follow, limits=limits or MemoryBounds()),
            self.losses,
        )
        self.now = 100.0
        self.key, self.isn = key(), 1000
        self.next = self.isn + 1
        """Of the client."""
        self.server_next = 9001

    @property
    def bodies(self) -> list[bytes | None]:
        """Of the requests that are whole."""
        return [request.body for request in self.requests if not request.damaged]

    @property
    def problems(self) -> list[str | None]:
        """Of the damaged ones."""
        return [request.problem for request in self.requests if request.damaged]

    def send(
        self, seq: int, payload: bytes = b"", flags: int = ACK, *, missing: int = 0, ack: int = 0
    ) -> None:
        """Any segment of the client, a millisecond later."""
        self.now = round(self.now + 0.001, 6)
        self.streams.segment(self.now, self.key, seq % 2**32, ack, flags, payload, missing)

    def open(self) -> None:
        self.send(self.isn, flags=SYN)

    def client(self, data: bytes, *, size: int | None = None, flags: int = ACK) -> None:
        """The client's next bytes, in segments of `size`."""
        for start in range(0, len(data), size or len(data)):
            piece = data[start : start + (size or len(data))]
            self.send(self.next, piece, flags)
            self.next += len(piece)

    def lose(self, count: int) -> None:
        """The client's next bytes never reach us."""
        self.next += count

    def fin(self) -> None:
        self.send(self.next, flags=FIN | ACK)
        self.next += 1

    def wait(self, seconds: float) -> None:
        """Let the packets' clock run."""
        self.now += seconds
        self.streams.expire(self.now)

    def answer(
        self, data: bytes = b"", flags: int = ACK, *, ack: int | None = None, seq: int | None = None
    ) -> None:
        """The server's next bytes in one segment; it acknowledges all that the client sent, unless told otherwise."""
        self.now = round(self.now + 0.001, 6)
        back = self.key[4:8] + self.key[:4] + self.key[-2:] + self.key[-4:-2]
        acknowledged = self.next if ack is None else ack
        at = self.server_next if seq is None else seq
        self.streams.segment(self.now, back, at % 2**32, acknowledged % 2**32, flags, data)
        if seq is None:
            self.server_next += len(data) + bool(flags & (SYN | FIN))


def opened(*, limits: MemoryBounds | None = None) -> Capture:
    """With the client's SYN seen."""
    capture = Capture(limits=limits)
    capture.open()
    return capture
