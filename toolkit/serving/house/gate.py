"""Which engines clients are let to: tells the proxy, and keeps what it was told until there is one. It waits by the clock.

The proxy looks at its upstreams itself and would take a server that answers; but one that has just come back is cold, and one
that is to be stopped has answers under way. Both are kept out by name, which the proxy calls draining.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal, Protocol

from toolkit.errors import ToolkitError

Why = Literal["order", "restart", "spare"]
"""Why nobody is let to an engine. restart: it comes back, and clients may wait for it. spare: nobody is there. order: it is down."""
LOOK_S = 0.05
PATIENCE_S, AGAIN_S = 60.0, 0.5
"""With a proxy whose admin does not answer: the worker that has it may just have died, and is started again within 10 s."""
SLOWEST_LOOK_S = 5.0
"""Of the proxy's at an engine that has just come up: its pages have 2 s each, and the machine may be busy."""


class Front(Protocol):
    """The proxy, as far as the house needs it. Whoever opened it hands it over."""

    url: str
    """For clients."""
    admin_url: str

    async def drain(self, upstream: str, why: Why, back_in_s: float | None) -> None:
        """Send it no more."""

    async def undrain(self, upstream: str, start_s: float | None) -> None:
        """Send it requests again; `start_s`: so long its start took."""

    async def state(self) -> Mapping[str, Any]:
        """As its admin tells it."""

    async def forget(self, model: str | None) -> None:
        """Let a model's stored answers go; None: all."""

    async def stop(self) -> None:
        """Take no more, end what is under way, and close."""


class Gate:
    """Before the proxy is there, it remembers who is to be kept out, and who was started."""

    def __init__(self, look_s: float) -> None:
        """`look_s`: how often the proxy looks at its upstreams."""
        self.front: Front | None = None
        self._up_s = 2 * look_s + SLOWEST_LOOK_S
        self._out: dict[str, tuple[Why, float | None]] = {}
        self._in: dict[str, float | None] = {}

    async def open(self, front: Front) -> None:
        """The proxy is there."""
        self.front = front
        for upstream, (why, back_in_s) in sorted(self._out.items()):
            await front.drain(upstream, why, back_in_s)
        for upstream, start_s in sorted(self._in.items()):
            await front.undrain(upstream, start_s)

    async def keep_out(self, upstream: str, why: Why, back_in_s: float | None = None) -> None:
        """No new requests to this one; what is under way there goes on. Raises ToolkitError where the proxy cannot be told.

        `back_in_s`: after a restart of which is known how long it takes.
        """
        self._out[upstream] = why, back_in_s
        self._in.pop(upstream, None)
        if self.front is not None:
            await _told(partial(self.front.drain, upstream, why, back_in_s))

    async def let_in(self, upstream: str, start_s: float | None) -> None:
        """Requests to this one; `start_s`: so long its start took. Raises ToolkitError where the proxy cannot be told."""
        self._out.pop(upstream, None)
        self._in[upstream] = start_s
        if self.front is not None:
            await _told(partial(self.front.undrain, upstream, start_s))

    async def until_up(self, upstream: str) -> bool:
        """Wait until the proxy has seen for itself that it answers; False: it has not in time."""
        return await self._until(upstream, "state", "up", self._up_s)

    async def until_idle(self, upstream: str, limit_s: float) -> bool:
        """Wait until nothing is under way there; False: it still was when the time was over."""
        return await self._until(upstream, "in_flight", 0, limit_s)

    async def hit_ratio(self) -> float | None:
        """Hits / cacheable requests of the last minute."""
        if self.front is None:
            return None
        ratio: float | None = (await self.front.state())["lately"]["hit_ratio"]
        return ratio

    async def requests_per_s(self) -> float | None:
        """That clients asked for in the last minute."""
        if self.front is None:
            return None
        rate: float | None = (await self.front.state())["lately"]["requests_per_s"]
        return rate

    async def _until(self, upstream: str, key: str, wanted: object, limit_s: float) -> bool:
        if self.front is None:
            return True
        give_up_at = time.monotonic() + limit_s
        while True:
            with suppress(ToolkitError):  # then nobody knows yet
                upstreams = (await self.front.state())["upstreams"]
                found = next(each for each in upstreams if each["name"] == upstream)
                if found[key] == wanted:
                    return True
            if time.monotonic() >= give_up_at:
                return False
            await asyncio.sleep(LOOK_S)


async def _told(deed: Callable[[], Awaitable[None]]) -> None:
    """Tell the proxy, again and again where it does not answer: what it does not know, it does wrong."""
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await deed()
        except ToolkitError:
            if time.monotonic() >= give_up_at:
                raise
        await asyncio.sleep(AGAIN_S)
