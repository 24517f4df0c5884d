"""HTTP/1.1 connections to one upstream, kept for the next request. It touches the network.

Only the configured address is contacted: no redirect is followed, no proxy of the environment asked, no cookie kept, and
the key that is sent is the upstream's own. httptools (llhttp) reads the framing; what it accepts but no engine needs to send is
refused here: an upgrade, bytes that no request asked for, an endless head, a compressed body though `identity` was asked for.

Not aiohttp, which bench uses: a request and the first bytes of its answer take it 71 to 95 us where this takes 27 to 34 (uvloop,
loopback, three interleaved rounds of 4,000), and the whole of a miss may cost 500.
"""

import asyncio
import errno
import os
import socket
import ssl
import time
from functools import partial
from typing import Final, NamedTuple, cast
from urllib.parse import urlsplit

import httptools

from toolkit.proxy.config import UpstreamSetting
from toolkit.proxy.errors import Fault, FaultKind
from toolkit.proxy.headers import Headers

CONNECT_S: Final = 5.0
IDLE_S: Final = 4.0
"""After so long a connection is closed: uvicorn (vLLM, SGLang) and llama.cpp close an idle one after 5 s."""
CROSSING_S: Final = 1.0
"""A server may close an idle connection while a request is on its way to it; then the end comes within a round trip.
Later than this the server had the request, and may have worked on it."""
AFTER_END_S: Final = 0.05
"""How long the end of the HTTP body may come after the answer's own end, before the connection is given up."""
HEAD_BYTES: Final = 2**16
HEADERS: Final = 128
POST: Final = b"POST "
"""How a request begins that has a body, and that must not be sent twice."""
UNIX: Final = "unix:"
OWN: Final = frozenset(
    b"accept-encoding authorization connection content-length expect host transfer-encoding".split()
)
"""Headers that are the connection's and the upstream's, whatever a request holds."""
USUAL: Final = ((b"accept", b"*/*"), (b"user-agent", b"llm-serving-toolkit"))
UNSENDABLE: Final = frozenset(b"\r\n\0")
PORTS: Final = {"http": 80, "https": 443}
PLAIN: Final = frozenset({(b"content-encoding", b"identity"), (b"transfer-encoding", b"chunked")})
"""The encodings that a body may have. A compressed one could not be read here, and its content-encoding is not passed on: a client
would take the packed bytes for the answer itself."""

NONE_YET = "the upstream closed the connection without an answer"
CUT = "the upstream closed the connection within the answer"
NO_HTTP = "the upstream's answer is no HTTP"
PACKED = "the upstream's answer is packed, which was not asked for"
OURS: Final = {
    # not the upstream's faults, though the request failed
    errno.EMFILE: "the proxy is out of open files",
    errno.ENFILE: "the proxy's machine is out of open files",
    errno.EADDRNOTAVAIL: "the proxy's machine is out of ports",
}


class Exchange:
    """One request and the callbacks for its answer (`Call` is one). Both are called in the loop; after `broke` nothing follows.

    Who derives from it begins with both of its attributes None.
    """

    __slots__ = ("connecting", "connection")
    connection: "UpstreamConnection | None"
    """Where it is asked; None while there is none yet, and after its end."""
    connecting: "asyncio.Task[None] | None"

    def received(self, connection: "UpstreamConnection", data: bytes, is_whole: bool) -> None:
        """`data`: the part of the body that one read brought, perhaps empty when only the head came. `is_whole`: it is the end."""
        raise NotImplementedError

    def broke(self, fault: Fault) -> None:
        """The answer failed, or broke off."""
        raise NotImplementedError


class Page(NamedTuple):
    """A whole answer of a known length at most."""

    status: int
    """0: it was longer than it may be."""
    content_type: str
    body: bytes


class Upstream:
    """Sends requests to one server, for one event loop; connections are made when they are needed."""

    def __init__(self, setting: UpstreamSetting, *, key: str | None = None) -> None:
        """`key`: the upstream's own; a client's never goes there."""
        self.name, self.setting = setting.name, setting
        self._is_open = True
        self.connections: set[UpstreamConnection] = set()
        """Each joins with its first request, and leaves when it is closed."""
        self.idle: dict[UpstreamConnection, None] = {}
        """Those that can take a request; the one used last comes last."""
        self._path = setting.url.removeprefix(UNIX) if setting.url.startswith(UNIX) else None
        url = urlsplit("http://localhost" if self._path is not None else setting.url)
        self._host, self._port = url.hostname or "", url.port or PORTS[url.scheme]
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._base = url.path.rstrip("/")
        own = f"host: {url.netloc.rpartition('@')[2]}\r\naccept-encoding: identity\r\n"
        own += f"authorization: Bearer {key}\r\n" if key else ""
        self._own = own.encode("latin-1")

    async def close(self) -> None:
        """Close every connection, and wait until that is done."""
        self._is_open = False
        while self.connections:
            for connection in tuple(self.connections):
                connection.abort()
            # the loop tells each of its end in its next turn
            await asyncio.sleep(0)

    def head(self, method: str, path: str, query: str, headers: Headers) -> bytes:
        """A request's head without its Content-Length: the same each time, so that the caller can keep it."""
        target = f"{self._base}{path}?{query}" if query else self._base + path
        lines = [f"{method} {target} HTTP/1.1\r\n".encode("latin-1", "replace"), self._own]
        names = {name for name, _ in headers}
        usual = [each for each in USUAL if each[0] not in names]
        for name, value in [*usual, *(each for each in headers if each[0] not in OWN)]:
            if UNSENDABLE.isdisjoint(value):
                lines.append(b"%b: %b\r\n" % (name, value))
        return b"".join(lines)

    def ask(self, exchange: Exchange, head: bytes, body: bytes) -> None:
        """Send a request; the exchange is called back with its answer, never within this call."""
        # only POST has a body: a server that ignores another one's would take it for the next request, and its answer would go
        # to whoever uses this connection next
        request = (head + b"\r\n", b"")
        if head.startswith(POST):
            request = head + b"content-length: %d\r\n\r\n" % len(body), body
        if self.idle:
            connection, _ = self.idle.popitem()
            if time.monotonic() - connection.idle_since_s < IDLE_S:
                connection.ask(exchange, request)
                return
            connection.abort()
        self.ask_anew(exchange, request)

    def ask_anew(self, exchange: Exchange, request: tuple[bytes, bytes]) -> None:
        """Send it on a new connection."""
        connecting = self._connect(exchange, request)
        exchange.connecting = asyncio.get_running_loop().create_task(connecting)

    async def _connect(self, exchange: Exchange, request: tuple[bytes, bytes]) -> None:
        loop, made = asyncio.get_running_loop(), partial(UpstreamConnection, self)
        # without the address: it goes to clients
        why = "no connection to the upstream"
        kind: FaultKind = "connect"
        connection: UpstreamConnection | None = None
        try:
            async with asyncio.timeout(CONNECT_S):
                if not self._is_open:
                    kind, why = "ours", "the proxy is not open"
                elif self._path is not None:
                    _, connection = await loop.create_unix_connection(made, self._path)
                else:
                    _, connection = await loop.create_connection(
                        made, self._host, self._port, ssl=self._tls
                    )
        except TimeoutError:
            kind, why = "timeout_connect", f"{why} in time"
        except ssl.SSLCertVerificationError:
            kind, why = "tls", "the upstream's certificate is not trusted"
        except ssl.SSLError:
            kind, why = "tls", "TLS with the upstream failed"
        except socket.gaierror:
            why = "the upstream's name has no address"
        except OSError as error:
            number = error.errno or 0
            if number in OURS:
                kind, why = "ours", OURS[number]
            else:
                # in the system's words; the loop puts addresses into its own, and has no number where it tried several
                in_words = os.strerror(number).lower() if number > 0 else "at none of its addresses"
                why = f"{why}: {in_words}"
        exchange.connecting = None
        if connection is not None:
            connection.ask(exchange, request)
        else:
            exchange.broke(Fault(kind, why))

    def cancel(self, exchange: Exchange) -> None:
        """Give the request up: its connection is closed, so that the server stops working on it."""
        connection, exchange.connection = exchange.connection, None
        connecting, exchange.connecting = exchange.connecting, None
        if connection is not None:
            connection.abort()
        if connecting is not None:
            connecting.cancel()

    async def fetch(
        self,
        path: str,
        *,
        headers: Headers = (),
        body: bytes = b"",
        most_bytes: int,
    ) -> Page:
        """Ask for a page, by POST where there is a body, and have all of it. Raises Fault.

        Cancelled, it closes the connection.
        """
        fetching = _Fetch(most_bytes)
        self.ask(fetching, self.head("POST" if body else "GET", path, "", headers), body)
        try:
            return await fetching.done
        finally:
            self.cancel(fetching)

    def sweep(self) -> None:
        """Once a second: close those that were idle for long."""
        ended_s = time.monotonic() - IDLE_S
        for connection in [each for each in self.idle if each.idle_since_s < ended_s]:
            connection.abort()


class _Fetch(Exchange):
    """Waits for a whole page."""

    def __init__(self, most_bytes: int) -> None:
        self.connection = self.connecting = None
        self.done: asyncio.Future[Page] = asyncio.get_running_loop().create_future()
        self._most_bytes = most_bytes
        self._body = bytearray()

    def received(self, connection: "UpstreamConnection", data: bytes, is_whole: bool) -> None:
        self._body += data
        if self.done.done():
            return
        if len(self._body) > self._most_bytes:
            self.done.set_result(Page(0, "", b""))
        elif is_whole:
            kind = dict(connection.headers[::-1]).get(b"content-type", b"").decode("latin-1")
            self.done.set_result(Page(connection.status, kind, bytes(self._body)))

    def broke(self, fault: Fault) -> None:
        if not self.done.done():
            self.done.set_exception(fault)


class UpstreamConnection(asyncio.Protocol):
    """One connection, one request at a time; each read is one call of its exchange. Made by the loop; then `ask`."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._transport: asyncio.Transport | None = None
        """None before the connection and after it."""
        self.exchange: Exchange | None = None
        self.status = 0
        """0: the head has not come."""
        self.headers: list[tuple[bytes, bytes]] = []
        """Names in lower case."""
        self.ends_by_closing = False
        """Nothing but the connection's end tells that the answer is whole, and that may be the end of a server, too."""
        self.idle_since_s = 0.0
        """0: it was not used before."""
        self._request = (b"", b"")
        """Head and body, until the answer's head came."""
        self._sent_s = 0.0
        self._head_bytes = 0
        """Bytes of the reads up to the one that ended the head."""
        self._is_whole = True
        """Nothing of an answer is missing."""
        self._keeps = False
        """The server keeps the connection for another request."""
        self._is_bodiless = False
        self._body: list[bytes] = []
        """What one read brought; filled without a call of ours, the parser has the list's own method."""
        self.on_body = self._body.append
        self._parser = httptools.HttpResponseParser(self)

    def ask(self, exchange: Exchange, request: tuple[bytes, bytes]) -> None:
        """Send a request."""
        self.exchange, exchange.connection = exchange, self
        self._request, self._sent_s = request, time.monotonic()
        self._is_bodiless = request[0].startswith(b"HEAD ")
        self._is_whole = self._keeps = self.ends_by_closing = False
        self.status = self._head_bytes = 0
        self.headers = []
        transport = self._transport
        if transport is None or transport.is_closing():
            self._fail("cut", NONE_YET)
        else:
            # not in `connection_made`: who is cancelled right after that, as its client leaves, has uvloop 0.23 close the
            # connection without telling it, and `Upstream.close` would wait for its end for ever
            self._upstream.connections.add(self)
            transport.writelines(request)

    def let_go(self) -> None:
        """Drop the rest of the answer; once that has come, the connection takes the next request."""
        self.exchange = None

        def end_late() -> None:
            if not self._is_whole and self.exchange is None:
                self.abort()

        if not self._is_whole:
            asyncio.get_running_loop().call_later(AFTER_END_S, end_late)
        if self._transport is not None:
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once, without writing what is left."""
        self.exchange = None
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Stop reading, so that the server has to wait."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None:
            self._transport.resume_reading()

    def _fail(self, kind: FaultKind, message: str) -> None:
        """Give the connection up; its request has no answer, or no rest of it."""
        exchange, request = self.exchange, self._request
        self._request = (b"", b"")
        self.abort()
        if exchange is None:
            return
        exchange.connection = None
        is_quick = time.monotonic() - self._sent_s <= CROSSING_S
        may_have_crossed = is_quick or not request[0].startswith(POST)
        if self.idle_since_s and not self._head_bytes and may_have_crossed:
            # the server closed an idle connection just then: once more, on a new one
            self._upstream.ask_anew(exchange, request)
        else:
            exchange.broke(Fault(kind, message))

    # --- called by the loop --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # (uvloop's is no subclass of asyncio's)
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse what came and pass it on; bytes without a request end the connection."""
        is_unasked, is_first = self._is_whole, not self.status
        if is_unasked:
            self.abort()
            return
        if is_first:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            is_packed = str(error.__context__) == PACKED
            self._fail("garbage", PACKED if is_packed else NO_HTTP)
            return
        if not self.status:
            if self._head_bytes > HEAD_BYTES:
                self._fail("garbage", NO_HTTP)
            return
        body = b"" if self._is_bodiless else b"".join(self._body)
        self._body.clear()
        exchange, is_whole = self.exchange, self._is_whole
        if is_whole:
            self.exchange = None
            if exchange is not None:
                exchange.connection = None
            # the answer came before its request was written to the end: the rest of it must not mix with another request
            is_sent = self._transport is not None and not self._transport.get_write_buffer_size()
            if self._keeps and is_sent:
                self.idle_since_s = time.monotonic()
                self._upstream.idle[self] = None
            else:
                self.abort()
        if exchange is not None and (body or is_whole or is_first):
            try:
                exchange.received(self, body, is_whole)
            except Exception as error:  # noqa: BLE001 (reported, and the call must end)
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "an answer could not be taken", "exception": error}
                )
                self.abort()
                exchange.broke(Fault("ours"))

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of an answer that ends by closing; any other answer is broken."""
        self._transport = None
        self._upstream.connections.discard(self)
        self._upstream.idle.pop(self, None)
        exchange = self.exchange
        if exchange is not None and self.ends_by_closing and exc is None:
            self.exchange = exchange.connection = None
            exchange.received(self, b"", True)
        else:
            self._fail("cut", CUT if self.status else NONE_YET)
        # it holds our methods: the cycle would keep what this connection read until the collector comes round, after thousands
        # of clients that left (a soak of ten minutes: 500 MiB)
        del self._parser

    # --- called by the parser: what they raise ends the connection -----------------------------------

    def on_message_begin(self) -> None:
        """Refuse a second answer to one request."""
        if self._is_whole:
            raise ValueError(NO_HTTP)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header, within bounds."""
        if len(self.headers) >= HEADERS:
            raise ValueError(NO_HTTP)
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Check the head, unless it is an interim one (1xx)."""
        status, version = self._parser.get_status_code(), self._parser.get_http_version()
        if version not in ("1.0", "1.1") or not 100 <= status < 600:
            raise ValueError(NO_HTTP)
        if status < 200:
            return
        size, is_framed = 0, False
        for name, value in self.headers:
            size += len(name) + len(value)
            if name == b"content-length":
                is_framed = True
            elif name in (b"transfer-encoding", b"content-encoding"):
                if (name, value.strip().lower()) not in PLAIN:
                    raise ValueError(PACKED)
                is_framed |= name == b"transfer-encoding"
                # chunks are younger than 1.0: one reader would count them, and another take them for the answer
                if name == b"transfer-encoding" and version == "1.0":
                    raise ValueError(NO_HTTP)
        # one read may bring more than a whole head may have
        if size > HEAD_BYTES:
            raise ValueError(NO_HTTP)
        self.status, self.ends_by_closing = status, not is_framed
        self._is_whole = self._is_bodiless
        self._request = (b"", b"")

    def on_message_complete(self) -> None:
        """Note that the answer is whole, unless it was an interim one."""
        if not self.status:
            self.headers = []
            return
        self._is_whole = True
        self._keeps = not self._is_bodiless and self._parser.should_keep_alive()
