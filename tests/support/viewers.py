"""Viewers of a Streamlit page without a browser: they speak its private protocol, which pins Streamlit's version.

A viewer asks for the page, and then for each fragment again as often as the page told it to, as the browser's own
timers do. It notes how long each answer took, and shows everything it received to whoever listens.
"""

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.asyncio.client import ClientConnection, connect

LARGEST_MESSAGE = 64 * 1024 * 1024


@dataclass
class Viewer:
    """One tab; its figures grow while `watch` runs."""

    url: str
    query: str = ""
    listen: Callable[[bytes], None] = lambda _: None
    """Gets every message of the page, as it was received."""
    first_page_s: float | None = None
    asked: int = 0
    """Refreshes asked for by a timer."""
    refresh_s: list[tuple[float, float]] = field(default_factory=list)
    """For each one that came: when it was there (monotonic clock), and how long after it was asked for."""
    faults: list[str] = field(default_factory=list)
    waiting: dict[str, float] = field(default_factory=dict)
    """Refreshes that have not come yet: fragment -> when it was asked for."""
    _timers: dict[str, tuple[float, asyncio.Task[None]]] = field(default_factory=dict)

    async def watch(self) -> None:
        """Watch until cancelled."""
        address = self.url.replace("http", "ws", 1) + "/_stcore/stream"
        began = time.monotonic()
        async with connect(
            address, subprotocols=["streamlit"], max_size=LARGEST_MESSAGE, proxy=None
        ) as socket:
            try:
                await self._ask(socket)
                async for data in socket:
                    assert isinstance(data, bytes)
                    self._take(socket, data, began)
                    self.listen(data)
            finally:
                for _, timer in self._timers.values():
                    timer.cancel()

    async def _ask(self, socket: ClientConnection, fragment: str = "") -> None:
        message = BackMsg()
        message.rerun_script.query_string = self.query
        message.rerun_script.fragment_id = fragment
        message.rerun_script.is_auto_rerun = bool(fragment)
        await socket.send(message.SerializeToString())

    def _take(self, socket: ClientConnection, data: bytes, began: float) -> None:
        message = ForwardMsg()
        message.ParseFromString(data)
        kind = message.WhichOneof("type")
        if kind == "auto_rerun":
            self._set_timer(socket, message.auto_rerun.fragment_id, message.auto_rerun.interval)
        elif kind == "stop_auto_rerun":
            for fragment in message.stop_auto_rerun.fragment_ids:
                self._timers.pop(fragment, (0.0, None))[1].cancel()
        elif kind == "delta" and message.delta.new_element.HasField("exception"):
            self.faults.append(message.delta.new_element.exception.message)
        elif kind == "script_finished":
            self._note(message, began)

    def _note(self, message: ForwardMsg, began: float) -> None:
        now = time.monotonic()
        if self.first_page_s is None:
            self.first_page_s = now - began
        for fragment in message.metadata.run.fragment_ids:
            if (asked := self.waiting.pop(fragment, None)) is not None:
                self.refresh_s.append((now, now - asked))

    def _set_timer(self, socket: ClientConnection, fragment: str, interval_s: float) -> None:
        known = self._timers.get(fragment)
        if known is not None and known[0] == interval_s:
            return
        if known is not None:
            known[1].cancel()
        timer = asyncio.create_task(self._tick(socket, fragment, interval_s))
        self._timers[fragment] = (interval_s, timer)

    async def _tick(self, socket: ClientConnection, fragment: str, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            self.asked += 1
            self.waiting.setdefault(fragment, time.monotonic())
            await self._ask(socket, fragment)


async def arrive(viewers: list[Viewer]) -> list[asyncio.Task[None]]:
    """Start them one after the other, and return when each has seen its first page."""
    tasks = []
    for viewer in viewers:
        tasks.append(asyncio.create_task(viewer.watch()))
        await asyncio.sleep(random.uniform(0.05, 0.15))
    while any(viewer.first_page_s is None for viewer in viewers):
        for task in tasks:
            if task.done():
                task.result()
        await asyncio.sleep(0.02)
    return tasks


async def leave(tasks: list[asyncio.Task[None]]) -> None:
    """Close their tabs."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task
