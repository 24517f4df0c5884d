"""One worker that is not the owner: the clients' port, its own memory, the shared file, and the way to the owner.

It opens listeners and runs ticks, as `server` does for the owner; what a request meets is the desk's and relaying's.
"""

import asyncio
import gc
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from importlib.metadata import version
from typing import Any, Final

from toolkit.proxy.desk.desk import Desk
from toolkit.proxy.desk.kit import Kit
from toolkit.proxy.http.front import Front
from toolkit.proxy.keyring import TeamKey, keyring
from toolkit.proxy.processes.crew import OWNER, socket_of, way_to
from toolkit.proxy.processes.doors import BACKLOG, Place, private_listener
from toolkit.proxy.processes.relaying import Relaying
from toolkit.proxy.processes.ticks import ticking
from toolkit.proxy.processes.worker_desk import WorkerDesk
from toolkit.proxy.settings import FrontSetting, Settings
from toolkit.proxy.stored.layers import NOTES_SHARE, Layers
from toolkit.proxy.stored.shared_cache import SharedCache
from toolkit.proxy.told.explain import Memory
from toolkit.proxy.told.metrics import Gauges
from toolkit.proxy.told.telling import Telling
from toolkit.proxy.upstreams.epoch_keeper import EpochKeeper
from toolkit.proxy.upstreams.generations import Generations

LOOK_S: Final = 0.1
"""How often the file's epochs are read, should the owner be unable to tell of them. Reading them takes 15 us, asking whether they changed 7."""
LINGER_S: Final = 0.5
"""Longest wait for clients to close what was answered."""


class HitServer:
    """One process. `start` it in its loop, `open` its doors, `end` it there."""

    def __init__(
        self,
        settings: Settings,
        place: Place,
        *,
        keys: Sequence[TeamKey],
        telling: Telling,
        say: Callable[[str], None],
    ) -> None:
        assert settings.cache.file is not None, "workers share a file"
        self.name = secrets.token_hex(4)
        self._settings, self._say = settings, say
        self._place, self._telling = place, telling
        self._keyring = keyring(settings.teams, keys, secret=b"") if settings.teams else None
        self._shared = SharedCache(settings.cache.file, settings.cache.file_bytes)
        self._layers = Layers(
            settings.cache,
            shared=self._shared,
            redis=None,
            clock=time.monotonic,
            wall=time.time,
            writes=False,
        )
        self._generations = Generations()
        self._keeper = self._new_keeper()
        self._identities = self._read_identities()
        self._opened = AsyncExitStack()
        self._opened.callback(self._shared.close)
        self._listeners: list[asyncio.Server] = []
        self._ticking: list[asyncio.Task[None]] = []

    # --- its beginning -----------------------------------------------------------------------------

    async def start(self) -> None:
        """All but the clients' door: they may be let in once the owner has looked at the upstreams."""
        settings = self._settings
        owner = await self._opened.enter_async_context(way_to("owner", self._place.folder / OWNER))
        kit = Kit(
            settings=settings,
            layers=self._layers,
            counters=self._telling.counters,
            generations=self._generations,
            generation=self._generation,
            memory=Memory(settings.cache.memory_bytes // NOTES_SHARE),
            tell=self._telling.tell,
            event=self._telling.event,
            clock=time.monotonic,
            wall=time.time,
            secret=b"",
            name=self.name.encode() + b"-",
        )
        relaying = Relaying(kit, owner)
        log, feed = self._telling.log, self._telling.feed
        desk = Desk(
            kit,
            relaying,
            relaying,
            keyring=self._keyring,
            log=None if log is None else log.write,
            rows=None if feed is None else feed.put,
        )
        self._front = Front(desk, settings.front)
        self._orders = Front(WorkerDesk(self), FrontSetting())
        path = socket_of(self._place.folder, self._place.number)
        listener = await private_listener(self._orders, path)
        self._opened.callback(listener.close)
        self._ticking += [
            asyncio.create_task(ticking(LOOK_S, self._look_at_file, kit.event)),
            asyncio.create_task(ticking(1.0, self._look_round, kit.event)),
        ]

    async def open(self) -> None:
        """Let clients in."""
        self._look_at_file()
        loop = asyncio.get_running_loop()
        for door in self._place.clients:
            listener = await loop.create_server(self._front, sock=door, backlog=BACKLOG)
            self._listeners.append(listener)
        gc.freeze()

    def _look_at_file(self) -> None:
        self._keeper.refresh()
        self._look_at_identities()

    def _look_round(self) -> None:
        self._front.sweep()
        self._orders.sweep()
        for warning in self._shared.take_warnings():
            self._say(warning)

    # --- which answers still hold ------------------------------------------------------------------

    def _generation(self, model: str | None) -> str:
        """The owner's word for it, made of the same facts."""
        if self._settings.cache.redis_env is None:
            return self._generations.of(model)
        return self._keeper.fingerprint(model)

    def _new_keeper(self) -> EpochKeeper:
        return EpochKeeper(
            self._settings,
            self._shared,
            self._generations,
            changed=lambda _: self._layers.memo.purge(),
            event=self._telling.event,
        )

    def _read_identities(self) -> list[str | None]:
        """With Redis, keys are made of who the upstreams are."""
        if self._settings.cache.redis_env is None:
            return []
        return [self._shared.identity(each.url) for each in self._settings.upstreams]

    def _look_at_identities(self) -> None:
        found = self._read_identities()
        if found != self._identities:
            self._identities, self._keeper = found, self._new_keeper()
            self._layers.memo.purge()

    # --- what the owner wants (worker_desk.Ordered) ------------------------------------------------

    def counted(self) -> Mapping[str, Any]:
        """Counters.as_dict."""
        return self._telling.counters.as_dict()

    def gauges(self) -> Gauges:
        """What it holds."""
        log, feed = self._telling.log, self._telling.feed
        return Gauges(
            version=version("llm-serving-toolkit"),
            connections=self._front.connections,
            busy=self._front.busy,
            layers=(self._layers.memory_gauge(),),
            log_lines_dropped=log.dropped if log else 0,
            rows_dropped=feed.dropped if feed else 0,
        )

    def raise_epochs(self, numbers: Mapping[str, int]) -> None:
        """Take higher numbers over."""
        if self._generations.raise_to(numbers):
            self._keeper = self._new_keeper()
            self._layers.memo.purge()

    def forget(self, key: bytes | None) -> None:
        """Let go what is in memory, of one key or of all."""
        self._layers.forget(key)

    def drain(self) -> None:
        """Answers close their connection from now on."""
        self._front.drain()

    def undrain(self) -> None:
        """They do not any more."""
        self._front.reopen()

    # --- its end -----------------------------------------------------------------------------------

    def shut(self) -> None:
        """Take no new connection."""
        for listener in self._listeners:
            listener.close()
        self._front.drain()

    async def until_idle(self) -> None:
        """Return when every request was answered."""
        while self._front.busy:  # noqa: ASYNC110 (the front counts, and tells nobody)
            await asyncio.sleep(0.02)
        ends_s = time.monotonic() + LINGER_S
        while self._front.connections and time.monotonic() < ends_s:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def end(self) -> None:
        """Close everything."""
        self._orders.drain()
        for task in self._ticking:
            task.cancel()
        await asyncio.gather(*self._ticking, return_exceptions=True)
        await self._opened.aclose()


def shared_out(settings: Settings, workers: int) -> Settings:
    """The settings of each of several workers: what is meant for all of them together is parted."""
    cache = replace(settings.cache, memory_bytes=settings.cache.memory_bytes // workers)
    limits = settings.front
    held = max(limits.body_bytes, limits.held_bytes // workers)
    return replace(settings, cache=cache, front=replace(limits, held_bytes=held))
