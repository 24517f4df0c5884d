"""One worker process of `toolkit proxy --workers N`: started by the parent, told by it what to be, and ended by it or with it."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

from toolkit.cli.proxy_run import run_loop, say, storing
from toolkit.errors import ToolkitError
from toolkit.proxy.doors import Place
from toolkit.proxy.hit_server import HitServer
from toolkit.proxy.request_log import RequestLog
from toolkit.proxy.server import Proxy
from toolkit.proxy.store_feed import StoreFeed
from toolkit.proxy.telling import Telling
from toolkit.proxy.workers import Packet, receive

FAILED = 1
ORPHAN_S = 2.0
"""As long may closing the files take once the parent is dead; then the port must be free for another one."""


def main() -> None:
    """Read what to be, and be it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # the parent hears these, and says what is to be done
        signal.signal(number, signal.SIG_IGN)
    channel = socket.socket(fileno=int(sys.argv[1]))
    try:
        packet = receive(channel)
    except EOFError:
        return
    with contextlib.ExitStack() as opened:
        tell, settings = packet.settings.tell, packet.settings
        log = feed = None
        if tell.log is not None:
            log = RequestLog(tell.log)
            opened.callback(log.close)
        if tell.database is not None:
            server = f"{settings.host}:{settings.port}"
            feed = StoreFeed(
                storing(Path(tell.database), packet.run_id, shares=True), server=server
            )
            opened.callback(feed.close)
        code = run_loop(_Process(packet, Telling(log, feed)).serve(channel))
    sys.exit(code)


class _Process:
    """What the parent's words do here."""

    def __init__(self, packet: Packet, telling: Telling) -> None:
        self._packet, self._telling = packet, telling
        self._place = Place(
            number=packet.number,
            folder=packet.folder,
            clients=[socket.socket(fileno=each) for each in packet.clients],
            admin=[socket.socket(fileno=each) for each in packet.admin],
        )

    async def serve(self, channel: socket.socket) -> int:
        """Be the owner, or one of the others, until the parent says or is no more."""
        reader, self._writer = await asyncio.open_connection(sock=channel)
        is_owner = self._packet.number == 0
        try:
            await (self._own(reader) if is_owner else self._hit(reader))
        except ToolkitError as error:
            await self._say("error", [error.message, error.hint])
            return FAILED
        return 0

    # --- the owner ---------------------------------------------------------------------------------

    async def _own(self, reader: asyncio.StreamReader) -> None:
        packet, telling = self._packet, self._telling
        proxy = Proxy(
            packet.settings,
            variables=packet.variables,
            keys=list(packet.keys),
            log=telling.log,
            feed=telling.feed,
            say=say,
            place=self._place,
        )
        try:
            await proxy.start()
        except ToolkitError:
            await proxy.stop(0.0)
            raise
        await self._say("open", True)
        wait_s = 0.0
        async for word, told in self._words(reader, partial(proxy.stop, 0.0)):
            if word == "shut":
                proxy.shut()
            elif word == "end":
                wait_s = float(told)
                break
        await proxy.stop(wait_s)
        await self._say("counters", proxy.kit.counters.as_dict())

    # --- the others --------------------------------------------------------------------------------

    async def _hit(self, reader: asyncio.StreamReader) -> None:
        packet = self._packet
        server = HitServer(
            packet.settings, self._place, keys=packet.keys, telling=self._telling, say=say
        )
        await server.start()
        await self._say("started", True)
        async for word, _ in self._words(reader, server.end):
            if word == "go":
                await server.open()
                await self._say("open", True)
            elif word == "shut":
                server.shut()
                break
        # the parent may die meanwhile
        orphaned = asyncio.create_task(self._end_with_parent(reader, server.end))
        await server.until_idle()
        orphaned.cancel()
        await server.end()
        await self._say("counters", server.counted())

    # --- the parent --------------------------------------------------------------------------------

    async def _words(
        self, reader: asyncio.StreamReader, close: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[tuple[str, str]]:
        """What the parent says, word by word; once it is dead, this process ends."""
        while line := await reader.readline():
            word, _, told = line.decode().strip().partition(" ")
            if word == "reopen":
                if self._telling.log is not None:
                    self._telling.log.reopen()
            else:
                yield word, told
        await self._die(close)

    async def _end_with_parent(
        self, reader: asyncio.StreamReader, close: Callable[[], Awaitable[None]]
    ) -> None:
        await reader.read()
        await self._die(close)

    async def _die(self, close: Callable[[], Awaitable[None]]) -> None:
        """The parent is dead: nobody is left to end this process, and another proxy may want the port."""
        for each in (*self._place.clients, *self._place.admin):
            each.close()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(ORPHAN_S):
                await close()
        if self._telling.log is not None:
            self._telling.log.close()
        shutil.rmtree(self._packet.folder, ignore_errors=True)
        os._exit(FAILED)

    async def _say(self, word: str, told: object) -> None:
        with contextlib.suppress(OSError):
            self._writer.write(json.dumps({word: told}).encode() + b"\n")
            await self._writer.drain()


if __name__ == "__main__":
    main()
