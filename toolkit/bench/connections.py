"""The connections to one host: when their bytes came, and whether they still stand. It touches sockets and the clock.

aiohttp makes them, speaks HTTP over them and keeps them for the next request. What it does not tell is added here:
a `TimedConnection` stands between each transport and aiohttp's protocol. Nothing is sent from here.
"""

import asyncio
import errno
import select
import socket
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import cast

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from toolkit.scout.lookups import LookupThreads

IDLE_S = 1.5
"""After so long a connection is not used again. gunicorn closes an idle one after 2 s, uvicorn (vLLM, SGLang) and
llama.cpp after 5 s; a request that leaves in that moment would fail for no fault of the host's."""
LOOKUPS = LookupThreads()

taken: ContextVar["TimedConnection | None"] = ContextVar("taken", default=None)
"""The connection over which the running task's last request went; None: it got none."""


Feed = Callable[[bytes, float], bool]
"""Takes bytes and the moment in which they were read; False: it wants no more."""


class TimedConnection(asyncio.Protocol):
    """One connection. It hands everything on to aiohttp's protocol and notes when."""

    def __init__(self, inner: asyncio.Protocol) -> None:
        self.read_s = time.monotonic()
        """When the last bytes were read from the socket, before anything was done with them: in a burst of tokens
        the task that waits for them gets its turn after those of all other streams."""
        self.idle_s: float | None = None
        """How long it was idle when the last request took it; None: it was new."""
        self._inner = inner
        self._hand_on = inner.data_received
        self._content: aiohttp.StreamReader | None = None
        """The body that is being read."""
        self._feed: Feed | None = None
        self._done: asyncio.Future[None] | None = None
        self._is_lost = False

    def data_received(self, data: bytes) -> None:
        """Note the moment first, then feed what aiohttp makes of the bytes."""
        self.read_s = time.monotonic()
        self._hand_on(data)
        if self._feed is not None:
            self._drain()

    async def pour(self, content: aiohttp.StreamReader, feed: Feed) -> None:
        """Feed a body as it comes, each piece with the moment of its read, until it ends or `feed` has enough.

        Raises what broke it. The task sleeps all the while: woken for each token of 100 streams it would cost 7 us
        more each time, and pieces that pile up before its turn would all bear the last one's moment.
        """
        self._content, self._feed = content, feed
        self._done = asyncio.get_running_loop().create_future()
        try:
            content.on_eof(self._wake)
            self._drain()
            if self._is_lost:
                self._give_up()
            await self._done
            fault = content.exception()
            if fault is not None:
                raise fault
        finally:
            self._content = self._feed = self._done = None

    def _drain(self) -> None:
        content, feed = self._content, self._feed
        if content is None or feed is None:
            return
        # again, as reading makes room, and aiohttp then unpacks what it had held back
        while content.exception() is None:
            data = content.read_nowait()
            if not data:
                return
            try:
                wants_more = feed(data, self.read_s)
            except Exception as error:  # noqa: BLE001 (the waiting task's to raise: the event loop would only log it)
                wants_more = False
                if self._done is not None and not self._done.done():
                    self._done.set_exception(error)
            if not wants_more:
                self._feed = None  # what else comes is aiohttp's to hold back
                break
        self._wake()

    def _wake(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def eof_received(self) -> bool | None:
        """Hand it on."""
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        """Hand it on."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Hand it on."""
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Hand it on, and let nobody wait for more."""
        self._is_lost = True
        self._inner.connection_lost(exc)
        self._give_up()

    def _give_up(self) -> None:
        """Wake the reader; aiohttp 3.14 leaves it waiting when it closes a connection whose chunks are malformed."""
        content = self._content
        if content is not None and not content.is_eof() and content.exception() is None:
            content.set_exception(ValueError("the body is not framed as HTTP says"))
        self._wake()


class Connections(aiohttp.TCPConnector):
    """Gives no connection away that the host has ended, and tells each task its `taken` one."""

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 (aiohttp's signature)
    ) -> Connection:
        """Take an idle connection or make one."""
        taken.set(None)
        while True:
            connection = await super().connect(req, traces, timeout)
            transport = connection.transport
            if transport is None or connection.protocol is None:
                return connection
            timed = transport.get_protocol()
            if not isinstance(timed, TimedConnection):
                timed = TimedConnection(connection.protocol)
                transport.set_protocol(timed)
            elif _has_ended(transport):
                connection.close()
                continue
            else:
                timed.idle_s = time.monotonic() - timed.read_s
            taken.set(timed)
            return connection


def _has_ended(transport: asyncio.Transport) -> bool:
    """Whether an idle connection has something to read: its end, which the event loop comes to only later.

    A server that keeps connections for no time at all (uvicorn with `--timeout-keep-alive 0`) ends each with its answer.
    """
    found = select.poll()
    found.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(found.poll(0))


class CachedResolver(AbstractResolver):
    """Looks each name up so that a dead name server makes no other host wait."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """All addresses of a name, in aiohttp's words. Raises OSError."""
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=found,
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for found, address in await addresses(host, port, family)
        ]

    async def close(self) -> None:
        """There is nothing to close."""


async def addresses(
    host: str, port: int, family: int = socket.AF_UNSPEC
) -> Sequence[tuple[int, str]]:
    """Family and address of each address of a name or address. Raises OSError."""
    look_up = partial(socket.getaddrinfo, host, port, family=family, type=socket.SOCK_STREAM)
    try:
        infos = await asyncio.get_running_loop().run_in_executor(LOOKUPS, look_up)
    except UnicodeError as error:  # a label of 64 characters is no IDNA
        raise OSError(errno.EINVAL, str(error)) from error
    return [(info[0], cast("str", info[4][0])) for info in infos]
