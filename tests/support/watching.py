"""A prober over upstreams that a test names, with all that it tells others."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from toolkit.proxy.config import CacheSetting, RoutingSetting, Settings, UpstreamSetting
from toolkit.proxy.upstream.connection import Upstream
from toolkit.proxy.upstream.fingerprint import Fingerprints
from toolkit.proxy.upstream.health import Prober
from toolkit.proxy.upstream.routing import Routing, UpstreamState

FAST = RoutingSetting(look_s=0.01, stuck_s=0.2, probe_s=0.2, back_s=0.2)


class Watching:
    """What stands around a prober."""

    def __init__(self, upstreams: Mapping[str, Upstream], settings: Settings, **pace: Any) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []
        self.routing = Routing(settings.upstreams, settings.routing)
        self.prints = Fingerprints(settings, changed=lambda: None, event=self._event)
        self.prober = Prober(upstreams, self.routing, self.prints, event=self._event, **pace)

    def _event(self, kind: str, told: dict[str, object]) -> None:
        self.events.append((kind, told))

    def named(self, kind: str) -> list[dict[str, object]]:
        return [told for name, told in self.events if name == kind]

    def state(self, name: str) -> UpstreamState:
        states = self.routing.states(self.prober._clock())
        return next(each for each in states if each.name == name)


@asynccontextmanager
async def watching(
    urls: Mapping[str, str],
    *,
    routing: RoutingSetting = FAST,
    keys: Mapping[str, str] | None = None,
    limit_s: float = 5.0,
    identity_s: float = 3600.0,
    runs: bool = True,
    **changes: Any,
) -> AsyncIterator[Watching]:
    """Probe these upstreams until the block ends."""
    upstreams = tuple(
        replace(UpstreamSetting(name=name, url=url), **changes) for name, url in urls.items()
    )
    settings = Settings(upstreams=upstreams, routing=routing, cache=CacheSetting())
    async with AsyncExitStack() as stack:
        opened = {each.name: Upstream(each, key=(keys or {}).get(each.name)) for each in upstreams}
        for each in opened.values():
            stack.push_async_callback(each.close)
        around = Watching(opened, settings, limit_s=limit_s, identity_s=identity_s, tick_s=0.02)
        task = asyncio.create_task(around.prober.run() if runs else asyncio.sleep(3600))
        try:
            yield around
        finally:
            if task.done():
                task.result()  # it must not end by itself
            task.cancel()
            with suppress(asyncio.CancelledError):
                async with asyncio.timeout(60):
                    await task
