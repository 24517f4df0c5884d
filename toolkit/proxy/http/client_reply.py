"""One answer's way back to its client: framed by length, by chunks or by closing, and never told to two clients.

It writes through the connection it is given; no socket, no clock.
"""

from collections.abc import Callable
from typing import Literal, Protocol

from toolkit.proxy.exchange import Headers
from toolkit.proxy.http import answer_heads as heads
from toolkit.proxy.http.framing import Framed

JOINED_BYTES = 64 * 1024
"""A larger body is not copied behind its head."""


class Way(Protocol):
    """The connection, as far as an answer needs it."""

    def put(self, data: bytes) -> None:
        """Send bytes."""

    def date(self) -> bytes:
        """The Date line."""

    def kept_alive(self, keeps: bool, http_minor: int) -> bytes:
        """The Connection line of an answer, and the decision it tells."""

    def answered(self) -> None:
        """The answer is complete."""

    def cut(self, *, is_hard: bool) -> None:
        """End the connection in an answer's midst."""


class ClientReply:
    """The way back to one client, for one request (exchange.Reply)."""

    __slots__ = (
        "_connection",
        "_ends_by",
        "_http_minor",
        "_left",
        "is_gone",
        "is_paused",
        "on_gone",
        "on_writable",
        "request",
    )

    def __init__(self, connection: Way, framed: Framed) -> None:
        self.request = framed.request
        self.is_gone = self.is_paused = False
        self.on_writable: Callable[[], None] | None = None
        self.on_gone: Callable[[], None] | None = None
        self._connection: Way | None = connection
        self._http_minor = framed.http_minor
        self._ends_by: Literal["length", "chunk", "close", "head"] | None = None
        self._left = 0

    @property
    def is_begun(self) -> bool:
        """Something of the answer was sent."""
        return self._ends_by is not None

    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """Answer in one go; content-length, date and connection are added."""
        if self._connection is None or self.is_begun:
            return
        head = self._head(status, headers, len(body))
        if self._ends_by == "head":
            self._connection.put(head)
        elif len(body) <= JOINED_BYTES:
            self._connection.put(head + body)
        else:
            self._connection.put(head)
            self._connection.put(body)
        self._finish(is_whole=True)

    def begin(self, status: int, headers: Headers, *, length: int | None = None) -> None:
        """Begin an answer; without a length it is chunked (for HTTP/1.0: ended by closing)."""
        if self._connection is not None and not self.is_begun:
            self._connection.put(self._head(status, headers, length))

    def write(self, data: bytes) -> None:
        """Send a part of the body."""
        if self._connection is None or not data or self._ends_by in (None, "head"):
            return
        if self._ends_by == "chunk":
            data = b"%x\r\n%b\r\n" % (len(data), data)
        elif self._ends_by == "length":
            data = data[: self._left]
            self._left -= len(data)
        self._connection.put(data)

    def end(self) -> None:
        """The body is complete; where it isn't as long as was said, the client sees that it was cut."""
        if self._connection is None or not self._ends_by:
            return
        if self._ends_by == "chunk":
            self._connection.put(heads.LAST_CHUNK)
        self._finish(is_whole=self._ends_by != "length" or not self._left)

    def abort(self) -> None:
        """The answer can't be completed: what was written is sent, and the connection closed without its end."""
        if self._connection is not None:
            self._finish(is_whole=False)

    def leave(self) -> Callable[[], None] | None:
        """Nobody reads it any more; what was to be called, if the client left before its end."""
        self.is_gone = self._connection is not None
        self._connection = None
        told, self.on_gone, self.on_writable = self.on_gone, None, None
        return told

    def _head(self, status: int, headers: Headers, length: int | None) -> bytes:
        assert self._connection is not None
        body = b""
        if not heads.has_body(status):
            self._ends_by = "head"
        elif length is not None:
            self._ends_by, self._left = "length", length
            body = b"content-length: %d\r\n" % length
        elif self._http_minor == 1:
            self._ends_by, body = "chunk", heads.CHUNKED
        else:
            self._ends_by = "close"
        keeps = self.request.keeps_alive and self._ends_by != "close"
        line = self._connection.kept_alive(keeps, self._http_minor)
        if self.request.method == "HEAD":
            self._ends_by = "head"
            # an upstream's answer to HEAD has no body: how long it would be, is not known here
            body = body if length != 0 else b""
        date = self._connection.date()
        return heads.answer_head(status, headers, date=date, body=body, connection=line)

    def _finish(self, *, is_whole: bool) -> None:
        connection, self._connection = self._connection, None
        self.on_gone = self.on_writable = None
        assert connection is not None
        if is_whole:
            connection.answered()
        else:
            # a body that ends by closing can be cut visibly only by a reset
            connection.cut(is_hard=self._ends_by in (None, "close", "head"))
