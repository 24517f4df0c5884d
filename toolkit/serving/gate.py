"""A stack's proxy, which runs in this process: opened, stopped, and told to which engines clients are let.

The proxy probes its upstreams itself and would take a server that answers; but one that has just come back is cold, and one
that is to be stopped has answers under way. Both are kept out by name, which the proxy calls draining.
"""

import asyncio
import time
from typing import TYPE_CHECKING, Any

from toolkit.proxy.config import Settings
from toolkit.proxy.upstream.routing import Drained, UpstreamState

if TYPE_CHECKING:
    from toolkit.proxy.app import Proxy

LOOK_S = 0.05
SLOWEST_PROBE_S = 5.0
"""Of the proxy's at an engine that has just come up: its pages have 2 s each, and the machine may be busy."""


class TrafficGate:
    """Of one stack; without a proxy clients ask the engines themselves, and there is nothing to tell.

    How a proxy is opened only the command line knows, which has its log and its database (ServedProxy).
    """

    def __init__(self) -> None:
        self.proxy: Proxy | None = None
        """The one that asks the engines; None: none is open."""
        self.url = self.admin_url = ""

    async def open(self, settings: Settings, *, is_others: bool) -> None:
        """Let clients in. `is_others`: what is stored in the proxy's file was answered by others, and must not be given."""
        raise NotImplementedError

    async def reload(self, settings: Settings) -> None:
        """Take over other settings. Raises ToolkitError, and then nothing has changed."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Take no more, end what is under way, and close."""

    def keep_out(self, upstream: str, why: Drained, back_in_s: float | None = None) -> None:
        """No new requests to this one; what is under way there goes on.

        `why`: restart, it comes back in `back_in_s`, as far as that is known, and clients may wait for it; spare, nobody is there;
        order, it is down.
        """
        if self.proxy is not None:
            back_s = None if back_in_s is None else self.proxy.clock() + back_in_s
            self.proxy.routing.drain(upstream, why, back_s)

    def let_in(self, upstream: str, start_s: float | None) -> None:
        """Requests to this one; `start_s`: so long its start took."""
        if self.proxy is not None:
            self.proxy.routing.undrain(upstream, start_s)

    async def until_up(self, upstream: str) -> bool:
        """Wait until the proxy has seen for itself that it answers; False: it has not in time."""
        if self.proxy is None:
            return True
        give_up_at = time.monotonic() + 2 * self.proxy.settings.routing.look_s + SLOWEST_PROBE_S
        while self._state(upstream).state != "up":
            if time.monotonic() >= give_up_at:
                return False
            await asyncio.sleep(LOOK_S)
        return True

    async def until_idle(self, upstream: str, limit_s: float) -> bool:
        """Wait until nothing is under way there; False: it still was when the time was over."""
        give_up_at = time.monotonic() + limit_s
        while self.proxy is not None and self._state(upstream).in_flight:
            if time.monotonic() >= give_up_at:
                return False
            await asyncio.sleep(LOOK_S)
        return True

    async def forget(self, model: str | None) -> None:
        """Let a model's stored answers go; None: all. Raises ToolkitError where some may be given still."""
        if self.proxy is None:
            return
        try:
            await self.proxy.cache.purge(model=model)
        finally:
            # behind the file, or they would have it back from there
            await self.proxy.front_workers.forget(None)

    def last_minute(self) -> dict[str, Any]:
        """The proxy's hit ratio and requests a second; nothing without a proxy."""
        return {} if self.proxy is None else dict(self.proxy.last_minute.indicators())

    def _state(self, upstream: str) -> UpstreamState:
        assert self.proxy is not None
        states = self.proxy.routing.states(self.proxy.clock())
        return next(each for each in states if each.name == upstream)
