"""One worker process of `toolkit proxy --workers N`: started by the parent, told by it what to be, and ended by it or with it."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.cli.proxy.run import run_loop, storing
from toolkit.cli.proxy.said import say
from toolkit.errors import ToolkitError
from toolkit.proxy.processes.doors import Place
from toolkit.proxy.processes.hit_server import HitServer
from toolkit.proxy.processes.server import Proxy
from toolkit.proxy.processes.workers import Packet, receive
from toolkit.proxy.told.request_log import RequestLog
from toolkit.proxy.told.store_feed import StoreFeed
from toolkit.proxy.told.telling import Telling

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

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
        self._words: asyncio.Queue[list[str]] = asyncio.Queue()
        self._close: Callable[[], Awaitable[None]] = partial(asyncio.sleep, 0.0)
        """What is to be done before the end, whenever that is."""
        self._place = Place(
            number=packet.number,
            folder=packet.folder,
            clients=[socket.socket(fileno=each) for each in packet.clients],
            admin=[socket.socket(fileno=each) for each in packet.admin],
        )

    async def serve(self, channel: socket.socket) -> int:
        """Be the owner, or one of the others, until the parent says or is no more."""
        reader, self._writer = await asyncio.open_connection(sock=channel)
        listening = asyncio.create_task(self._listen(reader))
        try:
            await (self._own() if self._packet.number == 0 else self._hit())
        except ToolkitError as error:
            await self._say("error", [error.message, error.hint])
            return FAILED
        finally:
            listening.cancel()
        return 0

    async def _own(self) -> None:
        """The owner."""
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
        self._close = partial(proxy.stop, 0.0)
        try:
            await proxy.start()
        except ToolkitError:
            await proxy.stop(0.0)
            raise
        await self._say("open", True)
        while (word := await self._words.get())[0] != "end":
            if word[0] == "shut":
                proxy.shut()
        await proxy.stop(float(word[1]))
        await self._say("counters", proxy.kit.counters.as_dict())

    async def _hit(self) -> None:
        """One of the others."""
        packet = self._packet
        server = HitServer(
            packet.settings, self._place, keys=packet.keys, telling=self._telling, say=say
        )
        self._close = server.end
        await server.start()
        await self._say("started", True)
        while (await self._words.get())[0] != "shut":
            # there is one other word: go
            await server.open()
            await self._say("open", True)
        server.shut()
        await server.until_idle()
        await server.end()
        await self._say("counters", server.counted())

    # --- the parent --------------------------------------------------------------------------------

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Hear what the parent says, word by word; once it is dead, this process ends."""
        while line := await reader.readline():
            words = line.decode().split()
            if words != ["reopen"]:
                self._words.put_nowait(words)
            elif self._telling.log is not None:
                self._telling.log.reopen()
        await self._die()

    async def _die(self) -> None:
        """The parent is dead: nobody is left to end this process, and another proxy may want the port."""
        for each in (*self._place.clients, *self._place.admin):
            each.close()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(ORPHAN_S):
                await self._close()
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
