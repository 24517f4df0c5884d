"""One server that answers misses: a request goes out, its answer's bytes come in. It touches sockets.

Only the configured address is contacted: no redirect is followed, no proxy of the environment asked, no cookie kept, and
the key that is sent is the upstream's own. What comes is handed on as it comes; nothing is held but what a read brought.
"""

import asyncio
import errno
import io
import os
import ssl
import time
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, Self
from weakref import WeakSet

import aiohttp
from aiohttp.connector import Connection
from aiohttp.tracing import Trace
from yarl import URL

from toolkit.proxy.exchange import Headers, Job
from toolkit.proxy.faults import Fault, FaultKind
from toolkit.proxy.settings import UpstreamSetting

CONNECT_S: Final = 5.0
IDLE_S: Final = 4.0
"""After so long a connection is not used again: uvicorn (vLLM, SGLang) and llama.cpp close an idle one after 5 s."""
CROSSING_S: Final = 1.0
"""A server may close an idle connection while a request is on its way to it; then the end comes within a round trip.
Later than this the server had the request, and may have worked on it."""
LONG_BODY_BYTES: Final = 2**18
"""Longer ones are written piece by piece, so that they hold up no stream."""
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
"""Asking them twice is the same as asking once."""
UNIX = "unix:"

BROKEN = (aiohttp.ClientError, OSError, ValueError, RuntimeError)
"""What aiohttp and the event loops raise when the other side is at fault; a RuntimeError comes of a connection that ends
in the wrong moment."""
LOST = (
    aiohttp.ServerDisconnectedError,
    aiohttp.ClientOSError,
    aiohttp.ClientConnectionResetError,
)

OURS = {
    errno.EMFILE: "the proxy is out of open files",
    errno.ENFILE: "the proxy's machine is out of open files",
    errno.EADDRNOTAVAIL: "the proxy's machine is out of ports",
}

_reused: ContextVar[bool] = ContextVar("reused", default=False)
"""Whether the running task's last request went over a connection that had been used before."""
_taken: ContextVar[asyncio.Transport | None] = ContextVar("taken", default=None)
"""The connection over which it went."""


class UpstreamError(Exception):
    """A request that got no answer, or not all of one."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class Upstream:
    """Sends requests to one server; `open` it in the loop that uses it."""

    def __init__(
        self,
        setting: UpstreamSetting,
        *,
        key: str | None = None,
        back: Callable[[Headers], Headers] = tuple,
        connect_s: float = CONNECT_S,
    ) -> None:
        """`back` says which of an answer's headers may go to clients."""
        self.name = setting.name
        self.setting = setting
        self._back = back
        self._connect_s = connect_s
        self._socket = setting.url.removeprefix(UNIX) if setting.url.startswith(UNIX) else None
        self._base = "http://localhost" if self._socket is not None else setting.url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Make the pool; connections are made when they are needed."""
        connector = (
            _TcpConnections(limit=0, keepalive_timeout=IDLE_S)
            if self._socket is None
            else _UnixConnections(path=self._socket, limit=0, keepalive_timeout=IDLE_S)
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity", "User-Agent": "llm-serving-toolkit"},
            timeout=aiohttp.ClientTimeout(
                total=None, connect=self._connect_s, sock_connect=self._connect_s
            ),
            trust_env=False,
            auto_decompress=False,
        )

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def ask(self, job: Job, body: bytes | None = None) -> "Answer":
        """Send a request, with another body than its own if given, and wait for the answer's head.

        Raises UpstreamError. Who gets the answer closes it. Cancelled, it closes the connection.
        """
        while True:
            sent_s = time.monotonic()
            _reused.set(False)
            _taken.set(None)
            try:
                response = await self._send(job, job.body if body is None else body)
            except asyncio.CancelledError:
                _abort_taken()
                raise
            except BROKEN as error:
                _abort_taken()
                # ends: each time uses up a connection of the pool, and a fresh one is given no second chance
                # (what is asked by GET, aiohttp asks again by itself)
                crossed = _reused.get() and time.monotonic() - sent_s <= CROSSING_S
                if isinstance(error, LOST) and crossed:
                    continue
                raise UpstreamError(fault(error)) from error
            return Answer(response, self._back)

    async def _send(self, job: Job, body: bytes) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("the upstream is not open")
        target = f"{self._base}{job.path}?{job.query}" if job.query else self._base + job.path
        return await self._session.request(
            job.method,
            # as the client wrote it
            URL(target, encoded=True),
            data=_data(body) if body or job.method not in SAFE else None,
            headers={**_text(job.headers), **self._headers},
            allow_redirects=False,
        )


class Answer:
    """An answer whose head has come. `read` what follows, then `close` it."""

    def __init__(
        self, response: aiohttp.ClientResponse, back: Callable[[Headers], Headers]
    ) -> None:
        self.status = response.status
        headers = [(name.lower(), value) for name, value in response.raw_headers]
        told = next((value for name, value in headers if name == b"content-type"), b"")
        self.content_type = told.decode("latin-1")
        self.headers = tuple(back(headers))
        """Those that clients may see."""
        self._response = response
        self._content = response.content

    async def read(self) -> bytes:
        """What came since the last read, as soon as there is something; empty at the end. Raises UpstreamError.

        Unless it is called, the server is soon held back: TCP's windows fill, and no more than two of aiohttp's buffers.
        """
        try:
            return await self._content.readany()
        except BROKEN as error:
            raise UpstreamError(fault(error)) from error

    @property
    def is_lost(self) -> bool:
        """The connection is closed before the end, and `read` may wait in vain.

        aiohttp 3.14 tells the reader nothing when it closes a connection whose chunks are malformed.
        """
        connection = self._response.connection
        transport = None if connection is None else connection.transport
        is_closed = transport is None or transport.is_closing()
        return is_closed and not self._content.is_eof() and self._content.exception() is None

    def close(self) -> None:
        """After the end the connection is kept for the next request; before it, it is closed at once."""
        if self._content.at_eof():
            self._response.release()
            return
        connection = self._response.connection
        if connection is not None and connection.transport is not None:
            # close() would first write what is left of a long request
            connection.transport.abort()
        self._response.close()


def _abort_taken() -> None:
    """Close at once: aiohttp would first write what is left of a long request, to a server that may read none of it."""
    transport = _taken.get()
    if transport is not None:
        transport.abort()


def fault(error: BaseException) -> Fault:
    """What was wrong, in a sentence without the address: it goes to clients."""
    inner = getattr(error, "os_error", error)
    number = getattr(inner, "errno", None) or 0
    if number in OURS:
        return Fault(kind="ours", message=OURS[number])
    kind, told = next((kind, told) for types, kind, told in _KINDS if isinstance(error, types))
    # in the system's words; the event loop puts an address into its own
    why = os.strerror(number).lower() if number > 0 else "no reason given"
    return Fault(kind=kind, message=told.format(why))


_KINDS: tuple[tuple[type[BaseException], FaultKind, str], ...] = (
    # type, kind and sentence
    (aiohttp.ConnectionTimeoutError, "timeout_connect", "no connection to the upstream in time"),
    (aiohttp.ClientConnectorCertificateError, "tls", "the upstream's certificate is not trusted"),
    (aiohttp.ClientSSLError, "tls", "TLS with the upstream failed"),
    (ssl.SSLError, "tls", "TLS with the upstream failed"),
    (aiohttp.ClientConnectorDNSError, "connect", "the upstream's name has no address"),
    (aiohttp.ClientConnectorError, "connect", "no connection to the upstream: {}"),
    (
        aiohttp.ServerDisconnectedError,
        "cut",
        "the upstream closed the connection without an answer",
    ),
    (aiohttp.ClientPayloadError, "cut", "the upstream closed the connection within the answer"),
    (OSError, "cut", "the connection to the upstream broke: {}"),
    (BaseException, "garbage", "the upstream's answer is no HTTP"),
)


def _data(body: bytes) -> bytes | io.BytesIO:
    return body if len(body) <= LONG_BODY_BYTES else io.BytesIO(body)


def _text(headers: Headers) -> dict[str, str]:
    """For aiohttp, which writes UTF-8: bytes that are none are left out, with their header."""
    text: dict[str, str] = {}
    for name, value in headers:
        try:
            text[name.decode("ascii")] = value.decode("utf-8")
        except UnicodeDecodeError:
            continue
    return text


class _Noting(aiohttp.BaseConnector):
    """Tells each task which connection it got, and whether that is new."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._used: WeakSet[asyncio.BaseProtocol] = WeakSet()

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 (aiohttp's signature)
    ) -> Connection:
        """Take an idle connection or make one."""
        connection = await super().connect(req, traces, timeout)
        protocol = connection.protocol
        assert protocol is not None, "a connection without its protocol"
        _taken.set(connection.transport)
        _reused.set(protocol in self._used)
        self._used.add(protocol)
        return connection


class _TcpConnections(_Noting, aiohttp.TCPConnector):
    pass


class _UnixConnections(_Noting, aiohttp.UnixConnector):
    pass
