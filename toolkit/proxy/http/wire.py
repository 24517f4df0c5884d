"""One connection to an upstream: an HTTP/1.1 request goes out, its answer's bytes come in. It touches a socket.

It knows one request at a time and nothing of addresses, retries or what an answer means. httptools (llhttp) reads the framing;
what it lets pass and no answer of ours needs is refused here: an upgrade, bytes that nobody asked for, a head without end.
"""

import asyncio
from collections.abc import Callable
from typing import Final, cast

import httptools

HELD_BYTES: Final = 2**18
"""Of an answer that nobody reads as much is held; then the server is held back."""
PIECE_BYTES: Final = 2**18
"""Of a long request as much is handed to the socket at a time, so that it holds up no stream."""
HEAD_BYTES: Final = 2**16
HEADERS: Final = 128
VERSIONS: Final = frozenset({"1.0", "1.1"})
STATUSES: Final = range(100, 600)

NONE_YET = "the upstream closed the connection without an answer"
CUT = "the upstream closed the connection within the answer"
NO_HTTP = "the upstream's answer is no HTTP"


class WireError(Exception):
    """The exchange can't go on; the text says why, and `__cause__` what the system said."""

    def __init__(self, message: str, *, is_garbage: bool = False) -> None:
        super().__init__(message)
        self.is_garbage = is_garbage


class Wire(asyncio.Protocol):
    """Made by the loop with the connection; then `ask`, `read` until nothing comes, and ask again if it `can_serve`."""

    def __init__(self, lost: Callable[["Wire"], None]) -> None:
        """`lost` is called once, when the connection is."""
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.is_closed = False
        self.served = 0
        """Whole answers so far."""
        self.received = 0
        """Bytes since the last request was sent."""
        self.is_whole = True
        """Nothing of an answer is missing."""
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        """Names in lower case."""
        self._keeps = True
        self._is_interim = False
        self.ends_with_connection = False
        """Of the answer whose head came: no length was told, and no chunks."""
        self._is_bodiless = False
        self._is_sent = True
        """All of the request was handed over; else what came next would be taken for its rest."""
        self._head_bytes = self._header_bytes = 0
        self._parser: httptools.HttpResponseParser | None = None
        self._body: list[bytes] = []
        self._held = 0
        self._is_paused = False
        self._error: WireError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._has_head = False
        self._room: asyncio.Future[None] | None = None
        """Set while the socket takes no more."""

    # --- one exchange --------------------------------------------------------------------------------

    @property
    def can_serve(self) -> bool:
        """Another request may be sent."""
        is_over = self.is_whole and self._is_sent and not self._body
        return is_over and self._keeps and not self.is_closed

    async def ask(self, head: bytes, body: bytes, *, is_bodiless: bool = False) -> None:
        """Send a request and wait for its answer's head: `status` and `headers`. Raises WireError.

        `is_bodiless`: no body follows whatever the head says, as after HEAD.
        """
        self._begin(is_bodiless)
        transport = self.transport
        if transport is None or transport.is_closing():
            raise WireError(NONE_YET)
        if len(body) <= PIECE_BYTES:
            transport.write(head + body)
            self._is_sent = True
        else:
            await self._write_pieces(transport, head, body)
        while not self._has_head:
            if self._error is not None:
                raise self._error
            await self._wait()

    def _begin(self, is_bodiless: bool) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.is_whole = self._has_head = self._is_interim = False
        self._keeps = self.ends_with_connection = False
        self._is_sent, self._is_bodiless = False, is_bodiless
        self.received = self._head_bytes = self._header_bytes = 0
        self.headers = []

    async def _write_pieces(self, transport: asyncio.Transport, head: bytes, body: bytes) -> None:
        """Until all is written, or an answer comes before that: then nobody wants the rest."""
        transport.write(head)
        view = memoryview(body)
        for first in range(0, len(body), PIECE_BYTES):
            transport.write(bytes(view[first : first + PIECE_BYTES]))
            if self._room is not None:
                await self._room
            if self._has_head or self._error is not None or transport.is_closing():
                return
        self._is_sent = True

    async def read(self) -> bytes:
        """What came since the last read, as soon as there is something; empty at the end. Raises WireError."""
        while not self._body:
            if self.is_whole:
                return b""
            if self._error is not None:
                raise self._error
            await self._wait()
        data = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        self._held = 0
        self._read_on()
        return data

    def abort(self) -> None:
        """Close at once, whatever was not written."""
        self._keeps = False
        if self.transport is not None and not self.is_closed:
            self.transport.abort()

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        for each in (self._waiter, self._room):
            if each is not None and not each.done():
                each.set_result(None)

    def _fail(self, error: WireError) -> None:
        if self._error is None and not self.is_whole:
            self._error = error
        self._keeps = False
        self._wake()

    # --- what the loop tells -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # (uvloop's is no subclass of asyncio's)
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Read on; what nobody asked for ends the connection."""
        self.received += len(data)
        if self._parser is None:
            self.abort()
            return
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse()
            return
        if not self._has_head and self._head_bytes > HEAD_BYTES:
            self._refuse()
            return
        if self._body or self._has_head:
            self._wake()
        if self._held > HELD_BYTES and not self._is_paused and self.transport is not None:
            self._is_paused = True
            self.transport.pause_reading()

    def _refuse(self) -> None:
        self._fail(WireError(NO_HTTP, is_garbage=True))
        self.abort()

    def _read_on(self) -> None:
        if self._is_paused and self.transport is not None:
            self._is_paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def pause_writing(self) -> None:
        """The socket takes no more."""
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        """It does again."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of an answer that has no other end; else of all hope."""
        self.is_closed, self._keeps = True, False
        self.resume_writing()
        if self.ends_with_connection and self._has_head and exc is None:
            self.is_whole = True
        if not self.is_whole:
            lost = WireError(CUT if self._has_head else NONE_YET)
            lost.__cause__ = exc
            self._fail(lost)
        self._wake()
        self._lost(self)

    # --- what the parser tells -----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A second answer to one request is nobody's."""
        if self.is_whole:
            raise _TooMuch

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep it, within bounds."""
        # one read may bring more than a whole head may have
        self._header_bytes += len(name) + len(value)
        if len(self.headers) >= HEADERS or self._header_bytes > HEAD_BYTES:
            raise _TooMuch
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is there, if it is not one that another follows."""
        assert self._parser is not None
        self.status = self._parser.get_status_code()
        version = self._parser.get_http_version()
        names = {name for name, _ in self.headers}
        # chunks are younger than 1.0: one reader would count them, and another take them for the answer
        is_odd = version == "1.0" and b"transfer-encoding" in names
        if is_odd or version not in VERSIONS or self.status not in STATUSES:
            raise _TooMuch
        self._is_interim = self.status < 200
        if self._is_interim:
            return
        self.ends_with_connection = not names & {b"content-length", b"transfer-encoding"}
        self._has_head = True
        if self._is_bodiless:
            self.is_whole = True

    def on_body(self, data: bytes) -> None:
        """Hold it for who reads."""
        if not self._is_bodiless:
            self._body.append(data)
            self._held += len(data)

    def on_message_complete(self) -> None:
        """All of it is there, if it was no interim answer."""
        assert self._parser is not None
        if self._is_interim:
            self.headers = []
            self._head_bytes = self._header_bytes = 0
            return
        self.is_whole = True
        self.served += 1
        self._keeps = not self._is_bodiless and self._parser.should_keep_alive()


class _TooMuch(Exception):  # noqa: N818 (a sign for the parser, no error that anybody sees)
    """What came goes beyond what an answer may be, or is none that two readers must read alike."""
