"""Tells the service manager how this process is, by systemd's protocol (sd_notify(3)): a datagram of `WORD=value` lines to a socket.

It decides nothing: what is told, and whether all is well, comes from outside. Without a manager it tells nobody.
"""

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Final

OPENING_S: Final = 15.0
"""Between two words that it still begins."""
LONGER_S: Final = 60.0
"""So much more time is asked for by each of them; systemd ends a start that falls silent for longer."""
IDLE_S: Final = 30.0
"""Between two words of the status where the manager wants no sign of life."""
LONGEST_STATUS: Final = 400
KEPT: Final = 8
"""Datagrams that wait while the manager reads none; later ones push out older ones."""


class Notify:
    """One process's."""

    def __init__(self, address: str | None, watchdog_s: float | None) -> None:
        """`address` is the socket's, with `@` where it is abstract; `watchdog_s`: a sign of life is wanted so often."""
        self.watchdog_s = watchdog_s if address else None
        self._address = _path(address) if address else None
        self._waiting: deque[bytes] = deque(maxlen=KEPT)
        self._is_ready = False

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str]) -> "Notify":
        """As the manager set it; the variables are taken out, as what we start is not to speak for us."""
        address = environ.pop("NOTIFY_SOCKET", None)
        told, meant = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", None)
        is_ours = meant is None or meant == str(os.getpid())
        every_s = int(told) / 1e6 if told.isdecimal() and int(told) and is_ours else None
        return cls(address or None, every_s)

    def ready(self, status: str) -> None:
        """Clients are let in."""
        self._is_ready = True
        self._tell(f"READY=1\nMAINPID={os.getpid()}\n{_status(status)}")

    def stopping(self, status: str) -> None:
        """The end has begun."""
        self._tell(f"STOPPING=1\n{_status(status)}")

    @contextlib.asynccontextmanager
    async def telling(
        self,
        status: Callable[[], str],
        is_well: Callable[[], Awaitable[bool]],
        ends: Callable[[], Awaitable[object]],
    ) -> AsyncIterator[None]:
        """Tell on meanwhile, until `ends` comes back: then the end has begun.

        A sign of life is given by the event loop alone, and only where `is_well` says so in time.
        """
        task = None
        if self._address is not None:
            task = asyncio.create_task(self._tell_on(status, is_well, ends))
        try:
            yield
        finally:
            if task is not None:
                task.cancel()
                (result,) = await asyncio.gather(task, return_exceptions=True)
                if isinstance(result, Exception):
                    raise result

    async def _tell_on(
        self,
        status: Callable[[], str],
        is_well: Callable[[], Awaitable[bool]],
        ends: Callable[[], Awaitable[object]],
    ) -> None:
        ending = asyncio.ensure_future(ends())
        try:
            while not ending.done():
                await self._tell_how(status, is_well)
                await asyncio.wait((ending,), timeout=self._pause_s())
            self.stopping(status())
        finally:
            ending.cancel()

    async def _tell_how(
        self, status: Callable[[], str], is_well: Callable[[], Awaitable[bool]]
    ) -> None:
        if not self._is_ready:
            self._tell(f"EXTEND_TIMEOUT_USEC={round(LONGER_S * 1e6)}\n{_status(status())}")
        elif await self._well(is_well):
            self._tell(f"WATCHDOG=1\n{_status(status())}")
        else:
            self._tell(_status(f"Not well: {status()}"))

    async def _well(self, is_well: Callable[[], Awaitable[bool]]) -> bool:
        """Asked in vain for a quarter of the interval is no: with the half that was slept it is still in time to be heard."""
        try:
            async with asyncio.timeout((self.watchdog_s or IDLE_S) / 4):
                return await is_well()
        except TimeoutError:
            return False

    def _pause_s(self) -> float:
        wanted_s = IDLE_S if self.watchdog_s is None else self.watchdog_s / 2
        return wanted_s if self._is_ready else min(OPENING_S, wanted_s)

    def _tell(self, words: str) -> None:
        """Never wait for the manager: what it does not take now is told before the next words."""
        if self._address is None:
            return
        self._waiting.append(words.encode())
        # a manager that is gone, or a socket that we may not write to, must not end what we do for others
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
            way.setblocking(False)
            while self._waiting:
                way.sendto(self._waiting[0], self._address)
                self._waiting.popleft()


def _path(address: str) -> str:
    """An abstract socket's name begins with a zero byte, which no variable can hold."""
    return f"\0{address[1:]}" if address.startswith("@") else address


def _status(words: str) -> str:
    return f"STATUS={' '.join(words.split())[:LONGEST_STATUS]}"
