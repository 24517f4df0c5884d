"""A watch over some addresses, and what it told: events that a test can wait for."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from toolkit.proxy.settings import CacheSetting, RoutingSetting, Settings, UpstreamSetting
from toolkit.proxy.upstreams.epoch_keeper import Book, EpochKeeper
from toolkit.proxy.upstreams.generations import Generations
from toolkit.proxy.upstreams.routing import Routing, UpstreamState
from toolkit.proxy.upstreams.upstream import Upstream
from toolkit.proxy.upstreams.watch import Pace, Watch

FAST = RoutingSetting(look_s=0.01, stuck_s=0.2, probe_s=0.2, back_s=0.2)


class Watching:
    """What stands around a watch."""

    def __init__(self, watch: Watch, routing: Routing, generations: Generations) -> None:
        self.watch, self.routing, self.generations = watch, routing, generations
        self.events: list[tuple[str, dict[str, object]]] = []
        self.changed: list[str] = []

    def named(self, kind: str) -> list[dict[str, object]]:
        return [told for name, told in self.events if name == kind]

    def state(self, name: str) -> UpstreamState:
        states = self.routing.states(self.watch._clock())
        return next(each for each in states if each.name == name)


@asynccontextmanager
async def watching(
    urls: Mapping[str, str],
    *,
    routing: RoutingSetting = FAST,
    book: Book | None = None,
    keys: Mapping[str, str] | None = None,
    epoch: str = "restart",
    limit_s: float = 5.0,
    identity_s: float = 3600.0,
    **changes: Any,
) -> AsyncIterator[Watching]:
    """Watch these upstreams until the block ends."""
    upstreams = tuple(
        replace(UpstreamSetting(name=name, url=url), **changes) for name, url in urls.items()
    )
    settings = Settings(upstreams=upstreams, routing=routing, cache=CacheSetting(epoch=epoch))
    generations = Generations()
    events: list[tuple[str, dict[str, object]]] = []
    changed: list[str] = []

    def event(kind: str, told: dict[str, object]) -> None:
        events.append((kind, told))

    keeper = EpochKeeper(settings, book, generations, changed=changed.extend, event=event)
    rules = Routing(upstreams, routing)
    async with AsyncExitStack() as stack:
        opened = {
            each.name: await stack.enter_async_context(
                Upstream(each, key=(keys or {}).get(each.name))
            )
            for each in upstreams
        }
        pace = Pace(limit_s=limit_s, identity_s=identity_s, tick_s=0.02)
        watch = Watch(opened, rules, keeper=keeper, event=event, pace=pace)
        around = Watching(watch, rules, generations)
        around.events, around.changed = events, changed
        task = asyncio.create_task(around.watch.run())
        try:
            yield around
        finally:
            if task.done():
                task.result()  # it must not end by itself
            task.cancel()
            with suppress(asyncio.CancelledError):
                async with asyncio.timeout(60):
                    await task
            assert not around.watch._probes
