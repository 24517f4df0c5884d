"""One server that answers misses: connections to it, requests out, answers' bytes in. It touches the network and the clock.

Only the configured address is contacted: no redirect is followed, no proxy of the environment asked, no cookie kept, and
the key that is sent is the upstream's own. What comes is handed on as it comes; nothing is held but what a read brought.

Not aiohttp, which bench uses: a request and the first bytes of its answer take it 71 to 95 us where this takes 27 to 34 (uvloop,
loopback, three interleaved rounds of 4,000), and the whole of a miss may cost 500.
"""

import asyncio
import errno
import os
import socket
import ssl
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

from toolkit.proxy.exchange import Headers, Job
from toolkit.proxy.faults import Fault, FaultKind
from toolkit.proxy.headers import forbids_storing
from toolkit.proxy.http.wire import Wire, WireError
from toolkit.proxy.settings import UpstreamSetting

CONNECT_S: Final = 5.0
IDLE_S: Final = 4.0
"""After so long a connection is closed: uvicorn (vLLM, SGLang) and llama.cpp close an idle one after 5 s."""
CROSSING_S: Final = 1.0
"""A server may close an idle connection while a request is on its way to it; then the end comes within a round trip.
Later than this the server had the request, and may have worked on it."""
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
"""Asking them twice is the same as asking once."""
UNIX = "unix:"
OWN = frozenset(
    b"accept-encoding authorization connection content-length expect host transfer-encoding".split()
)
"""Headers that are the connection's and the upstream's, whatever a job holds."""
USUAL = {b"accept": b"*/*", b"user-agent": b"llm-serving-toolkit"}
PLAIN = frozenset({(b"content-encoding", b"identity"), (b"transfer-encoding", b"chunked")})
"""All that a body may be wrapped in. What is packed otherwise though `identity` was asked for is no text that anybody here could
read, and its label stops here: a client would take it for the answer itself."""
UNSENDABLE = frozenset(b"\r\n\0")
PORTS = {"http": 80, "https": 443}

OURS = {
    errno.EMFILE: "the proxy is out of open files",
    errno.ENFILE: "the proxy's machine is out of open files",
    errno.EADDRNOTAVAIL: "the proxy's machine is out of ports",
}
"""Not the upstream's faults, though the request failed."""

PACKED = "the upstream's answer is packed, which was not asked for"


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
        self._is_open = False
        self._idle: dict[Wire, asyncio.TimerHandle] = {}
        """The one used last comes last."""
        self._wires: set[Wire] = set()
        self._all_lost: asyncio.Future[None] | None = None
        self._path = setting.url.removeprefix(UNIX) if setting.url.startswith(UNIX) else None
        url = urlsplit("http://localhost" if self._path is not None else setting.url)
        self._host, self._port = url.hostname or "", url.port or PORTS[url.scheme]
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._base = url.path.rstrip("/")
        own = f"host: {url.netloc.rpartition('@')[2]}\r\naccept-encoding: identity\r\n"
        own += f"authorization: Bearer {key}\r\n" if key else ""
        self._own = own.encode("latin-1")

    async def open(self) -> None:
        """Let requests in; connections are made when they are needed."""
        self._is_open = True

    async def close(self) -> None:
        """Close every connection, and wait until that is done."""
        self._is_open = False
        for wire in tuple(self._wires):
            wire.abort()
        if self._wires:
            self._all_lost = asyncio.get_running_loop().create_future()
            await self._all_lost

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

    # --- a request -----------------------------------------------------------------------------------

    async def ask(self, job: Job, body: bytes | None = None) -> "Answer":
        """Send a request, with another body than its own if given, and wait for the answer's head.

        Raises UpstreamError. Who gets the answer closes it. Cancelled, it closes the connection.
        """
        body = job.body if body is None else body
        if job.method in SAFE:
            # it has no meaning there; a server that passes it over would take it for the next request, and answer that
            # to whoever asks next on this connection
            body = b""
        head = self._head(job, len(body))
        wire = self._kept() or await self._connected()
        is_second = False
        while True:
            sent_s = time.monotonic()
            try:
                await wire.ask(head, body, is_bodiless=job.method == "HEAD")
            except WireError as error:
                wire.abort()
                # once more, on a connection that the server can't have been about to close
                crossed = wire.served > 0 and time.monotonic() - sent_s <= CROSSING_S
                may_again = not (is_second or wire.received or error.is_garbage)
                if may_again and (crossed or job.method in SAFE):
                    is_second = True
                    wire = await self._connected()
                    continue
                raise UpstreamError(_broken(error)) from error
            except BaseException:
                wire.abort()
                raise
            if _is_packed(wire.headers):
                wire.abort()
                raise UpstreamError(Fault(kind="garbage", message=PACKED))
            return Answer(wire, self._back, self._give_back)

    def _head(self, job: Job, length: int) -> bytes:
        target = f"{self._base}{job.path}?{job.query}" if job.query else self._base + job.path
        lines = [f"{job.method} {target} HTTP/1.1\r\n".encode("latin-1", "replace"), self._own]
        told = {name: value for name, value in job.headers if name not in OWN}
        for name, value in {**USUAL, **told}.items():
            if UNSENDABLE.isdisjoint(value):
                lines.append(b"%b: %b\r\n" % (name, value))
        if length or job.method not in SAFE:
            lines.append(b"content-length: %d\r\n" % length)
        return b"".join(lines) + b"\r\n"

    # --- connections ---------------------------------------------------------------------------------

    def _kept(self) -> Wire | None:
        """The connection that was used last: the others may time out."""
        while self._idle:
            wire, expiry = self._idle.popitem()
            expiry.cancel()
            if wire.can_serve:
                return wire
        return None

    async def _connected(self) -> Wire:
        """A new connection. Raises UpstreamError."""
        if not self._is_open:
            raise UpstreamError(Fault(kind="ours", message="the proxy is not open"))
        try:
            async with asyncio.timeout(self._connect_s):
                wire = await self._connect()
        except OSError as error:  # TimeoutError and ssl.SSLError are such
            raise UpstreamError(_unconnected(error)) from error
        self._add(wire)
        return wire

    def _add(self, wire: Wire) -> None:
        if not wire.is_closed:
            self._wires.add(wire)
        if not self._is_open:
            # it was closed meanwhile
            wire.abort()

    async def _connect(self) -> Wire:
        loop, made = asyncio.get_running_loop(), partial(Wire, self._lost)
        if self._path is not None:
            _, wire = await loop.create_unix_connection(made, self._path)
        else:
            _, wire = await loop.create_connection(made, self._host, self._port, ssl=self._tls)
        return wire

    def _lost(self, wire: Wire) -> None:
        self._wires.discard(wire)
        if not self._wires and self._all_lost is not None and not self._all_lost.done():
            self._all_lost.set_result(None)
        expiry = self._idle.pop(wire, None)
        if expiry is not None:
            expiry.cancel()

    def _give_back(self, wire: Wire) -> None:
        if self._is_open and wire.can_serve:
            loop = asyncio.get_running_loop()
            self._idle[wire] = loop.call_later(IDLE_S, wire.abort)
        else:
            wire.abort()


class Answer:
    """An answer whose head has come. `read` what follows, then `close` it; or have the `whole`."""

    def __init__(
        self,
        wire: Wire,
        back: Callable[[Headers], Headers],
        give_back: Callable[[Wire], None],
    ) -> None:
        self.status = wire.status
        told = next((value for name, value in wire.headers if name == b"content-type"), b"")
        self.content_type = told.decode("latin-1")
        self.headers = tuple(back(wire.headers))
        """Those that clients may see."""
        self.forbids_storing = forbids_storing(wire.headers)
        self.ends_by_closing = wire.ends_with_connection
        """Nothing but the connection's end tells that it is whole, and that may be the end of a server, too."""
        self._wire: Wire | None = wire
        self._give_back = give_back

    async def read(self) -> bytes:
        """What came since the last read, as soon as there is something; empty at the end. Raises UpstreamError.

        Unless it is called, the server is soon held back.
        """
        if self._wire is None:
            return b""
        try:
            return await self._wire.read()
        except WireError as error:
            raise UpstreamError(_broken(error)) from error

    async def whole(self, most_bytes: int) -> bytes | None:
        """All of it; None: it is longer than may be. Closed in any case. Raises UpstreamError."""
        body = bytearray()
        try:
            while data := await self.read():
                body += data
                if len(body) > most_bytes:
                    return None
            return bytes(body)
        finally:
            self.close()

    def close(self) -> None:
        """After the end the connection is kept for the next request; before it, it is closed at once."""
        wire, self._wire = self._wire, None
        if wire is not None:
            self._give_back(wire)


# --- what was wrong, in sentences without the address: they go to clients ------------------------------


def _is_packed(headers: Headers) -> bool:
    return any(
        name in (b"content-encoding", b"transfer-encoding")
        and (name, value.strip().lower()) not in PLAIN
        for name, value in headers
    )


def _broken(error: WireError) -> Fault:
    kind: FaultKind = "garbage" if error.is_garbage else "cut"
    return Fault(kind=kind, message=str(error))


def _unconnected(error: OSError) -> Fault:
    number = error.errno or 0
    if number in OURS:
        return Fault(kind="ours", message=OURS[number])
    if isinstance(error, TimeoutError):
        return Fault(kind="timeout_connect", message="no connection to the upstream in time")
    if isinstance(error, ssl.SSLCertVerificationError):
        return Fault(kind="tls", message="the upstream's certificate is not trusted")
    if isinstance(error, ssl.SSLError):
        return Fault(kind="tls", message="TLS with the upstream failed")
    if isinstance(error, socket.gaierror):
        return Fault(kind="connect", message="the upstream's name has no address")
    # in the system's words; the event loop puts addresses into its own, and has no number where it tried several
    why = os.strerror(number).lower() if number > 0 else "at none of its addresses"
    return Fault(kind="connect", message=f"no connection to the upstream: {why}")
