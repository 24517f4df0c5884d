"""Reports this process's state to the service manager by systemd's protocol (sd_notify(3)): a datagram of `WORD=value` lines to a socket.

It decides nothing: the status, and whether all is well, come from outside. Without a manager it reports nothing.
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
        # an abstract socket's name begins with a zero byte, which no variable can hold
        self._address = address.replace("@", "\0", 1) if address and address[0] == "@" else address
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
        if not self._address:
            yield
            return

        async def tell_on() -> None:
            ending = asyncio.ensure_future(ends())
            pause_s = self.watchdog_s / 2 if self.watchdog_s else IDLE_S
            try:
                while not ending.done():
                    if not self._is_ready:
                        self._tell(
                            f"EXTEND_TIMEOUT_USEC={round(LONGER_S * 1e6)}\n{_status(status())}"
                        )
                        await asyncio.wait((ending,), timeout=min(OPENING_S, pause_s))
                        continue
                    well = False
                    # asked in vain for a quarter of the interval is no: after the half that was slept it is still in time
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(pause_s / 2):
                            well = await is_well()
                    self._tell(
                        f"WATCHDOG=1\n{_status(status())}"
                        if well
                        else _status(f"Not well: {status()}")
                    )
                    await asyncio.wait((ending,), timeout=pause_s)
                self.stopping(status())
            finally:
                ending.cancel()

        task = asyncio.create_task(tell_on())
        try:
            yield
        finally:
            task.cancel()
            (result,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(result, Exception):
                raise result

    def _tell(self, words: str) -> None:
        """Never wait for the manager: what it does not take now is told before the next words."""
        if not self._address:
            return
        self._waiting.append(words.encode())
        # a manager that is gone, or a socket that we may not write to, must not end what we do for others
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
            way.setblocking(False)
            while self._waiting:
                way.sendto(self._waiting[0], self._address)
                self._waiting.popleft()


def _status(words: str) -> str:
    return f"STATUS={' '.join(words.split())[:LONGEST_STATUS]}"
