"""One proxy process: puts its parts together, listens, keeps time, and ends in good order.

It opens the listeners and runs the ticks; what a request meets is the desk's. What the user should hear goes to `say`.
"""

import asyncio
import gc
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from hashlib import blake2b

from toolkit.errors import ToolkitError
from toolkit.proxy import headers as header_rules
from toolkit.proxy.admin import AdminDesk
from toolkit.proxy.admission import Admission
from toolkit.proxy.answering import Answering
from toolkit.proxy.attempt import Means
from toolkit.proxy.calls import Calls
from toolkit.proxy.control import Control, Inside
from toolkit.proxy.counters import Counters
from toolkit.proxy.desk import Desk
from toolkit.proxy.epoch_keeper import EpochKeeper
from toolkit.proxy.exchange import Job, Kept, Served
from toolkit.proxy.explain import Memory
from toolkit.proxy.flights import Flights
from toolkit.proxy.front import Front
from toolkit.proxy.generations import Generations
from toolkit.proxy.keyring import TeamKey, keyring
from toolkit.proxy.kit import Kit
from toolkit.proxy.layers import Layers
from toolkit.proxy.log_lines import event_line, line
from toolkit.proxy.redis_cache import RedisCache
from toolkit.proxy.request_log import RequestLog
from toolkit.proxy.routing import Routing
from toolkit.proxy.scrape import Scrape
from toolkit.proxy.settings import FrontSetting, Settings
from toolkit.proxy.settings_file import admin_port
from toolkit.proxy.shared_cache import SharedCache
from toolkit.proxy.store_feed import StoreFeed
from toolkit.proxy.upstream import Upstream
from toolkit.proxy.watch import Watch
from toolkit.records import Asked

BACKLOG = 1024
TICK_S = 0.1
FIRST_LOOK_S = 2.0
"""So long the doors stay shut for a first look at the upstreams: what was stored before one restarted must not be served."""

Say = Callable[[str], None]


class Proxy:
    """One process. `start` it in its loop, `stop` it there; in between it serves."""

    def __init__(
        self,
        settings: Settings,
        *,
        variables: Mapping[str, str],
        keys: list[TeamKey],
        log: RequestLog | None = None,
        feed: StoreFeed | None = None,
        say: Say,
    ) -> None:
        """`variables`: the values that settings_file.checked found; `keys`: the teams' own."""
        self.settings, self._say, self._log, self._feed = settings, say, log, feed
        self._secret = _secret(keys)
        self._keyring = (
            keyring(settings.teams, keys, secret=self._secret) if settings.teams else None
        )
        self._variables = variables
        self._opened = AsyncExitStack()
        self._ticking: list[asyncio.Task[None]] = []
        self._listeners: list[asyncio.Server] = []
        self._fronts: list[Front] = []

    # --- putting it together -----------------------------------------------------------------------

    async def start(self) -> None:
        """Open everything, look at the upstreams once, and let clients in. Raises ToolkitError."""
        settings = self.settings
        layers = self._layers()
        generations = Generations()
        keeper = EpochKeeper(
            settings,
            layers.shared,
            generations,
            changed=lambda _: layers.memo.purge(),
            event=self._event,
        )
        self.kit = kit = Kit(
            settings=settings,
            layers=layers,
            counters=Counters(),
            generations=generations,
            generation=generations.of if layers.redis is None else keeper.fingerprint,
            memory=Memory(),
            tell=self._tell,
            event=self._event,
            clock=time.monotonic,
            wall=time.time,
            secret=self._secret,
            name=secrets.token_hex(4).encode() + b"-",
        )
        upstreams = await self._upstreams()
        routing = Routing(settings.upstreams, settings.routing)
        admission = Admission(settings.admission, settings.teams)
        means = Means(
            upstreams=upstreams,
            routing=routing,
            settings=settings,
            event=self._event,
            clock=kit.clock,
        )
        self._calls = Calls(
            means,
            flights=Flights(longest_s=settings.cache.longest_flight_s),
            admission=admission,
            keep=self._keep,
        )
        self._answering = Answering(kit, self._calls)
        watch = Watch(upstreams, routing, keeper=keeper, event=self._event, clock=kit.clock)
        self.inside = Inside(
            kit,
            self._answering,
            calls=self._calls,
            admission=admission,
            routing=routing,
            watch=watch,
            scrape=Scrape(upstreams.values(), lambda name: _body(watch, name)),
        )
        self.inside.log, self.inside.feed = self._log, self._feed
        await self._first_look(watch)
        await self._open_doors()
        self._ticking += [
            asyncio.create_task(self._tick()),
            asyncio.create_task(self._tick_slowly()),
        ]
        # what was made so far lives to the end, and need not be looked through again and again
        gc.freeze()

    def _layers(self) -> Layers:
        cache = self.settings.cache
        shared = SharedCache(cache.file, cache.file_bytes) if cache.file else None
        redis = None
        if cache.redis_env is not None:
            redis = RedisCache(self._variables[cache.redis_env], cache.redis_timeout_s)
        if shared is not None:
            self._opened.callback(shared.close)
        return Layers(cache, shared=shared, redis=redis, clock=time.monotonic, wall=time.time)

    async def _upstreams(self) -> dict[str, Upstream]:
        found = {}
        for each in self.settings.upstreams:
            key = None if each.key_env is None else self._variables[each.key_env]
            upstream = Upstream(each, key=key, back=header_rules.back)
            found[each.name] = await self._opened.enter_async_context(upstream)
        return found

    async def _first_look(self, watch: Watch) -> None:
        self._ticking.append(asyncio.create_task(watch.run()))
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK_S):
                await watch.first_look()

    async def _open_doors(self) -> None:
        settings, loop = self.settings, asyncio.get_running_loop()
        control = Control(self.inside, drain=self._shut, undrain=self._reopen)
        desk = Desk(
            self.kit,
            self._answering,
            control,
            keyring=self._keyring,
            log=None if self._log is None else self._log.write,
            rows=None if self._feed is None else self._feed.put,
        )
        self.inside.front = front = Front(desk, settings.front)
        admin = Front(AdminDesk(control), FrontSetting())
        self._fronts = [front, admin]
        doors = (
            (front, settings.host, settings.port),
            (admin, settings.admin_host, admin_port(settings)),
        )
        for each, host, port in doors:
            try:
                listener = await loop.create_server(each, host, port, backlog=BACKLOG)
            except OSError as error:
                raise ToolkitError(
                    f"cannot listen on {host}:{port}: {error.strerror or error}",
                    "Choose another with --port or --admin-port",
                ) from error
            self._listeners.append(listener)

    @property
    def ports(self) -> tuple[int, int]:
        """Where clients and the admin are listened to."""
        first, second = (each.sockets[0].getsockname()[1] for each in self._listeners)
        return first, second

    # --- time --------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._calls.tick()

    async def _tick_slowly(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            for front in self._fronts:
                front.sweep()
            self.inside.recent.look(time.monotonic(), self.kit.counters)
            shared = self.kit.layers.shared
            if shared is not None:
                for warning in shared.take_warnings():
                    self._say(warning)

    # --- what happens ------------------------------------------------------------------------------

    def _tell(self, served: Served, asked: Asked | None) -> None:
        self.kit.counters.take(served)
        if self._log is not None:
            self._log.write(line(served, prompt=None if asked is None else asked.prompt_text))
        if self._feed is not None:
            self._feed.put(served, asked)

    def _event(self, kind: str, told: dict[str, object]) -> None:
        self.kit.counters.note(kind)
        if kind == "failed" and told.get("upstream"):
            self.kit.counters.fail_upstream(str(told["upstream"]), str(told["kind"]))
        if self._log is not None:
            self._log.write(event_line(time.time(), kind, told))

    def _keep(self, key: bytes, job: Job, kept: Kept) -> None:
        self._answering.keep(key, job, kept)

    # --- the end -----------------------------------------------------------------------------------

    def _shut(self) -> None:
        for front in self._fronts[:1]:
            front.drain()

    def _reopen(self) -> None:
        self._say("The proxy takes requests again")

    async def stop(self) -> None:
        """Take no new connection, let what is under way end, and close everything."""
        self.inside.is_draining = True
        for listener in self._listeners:
            listener.close()
        for front in self._fronts:
            front.drain()
        await self._calls.drain(self.settings.drain_s)
        for task in self._ticking:
            task.cancel()
        await asyncio.gather(*self._ticking, return_exceptions=True)
        await self._opened.aclose()


def _body(watch: Watch, name: str) -> bytes | None:
    seen = watch.metrics(name)
    return None if seen is None else seen.body


def _secret(keys: list[TeamKey]) -> bytes:
    """The same after a restart with the same keys: salts of the engines' prefix caches go on being the same."""
    if not keys:
        return secrets.token_bytes(32)
    every = "\n".join(sorted(f"{team} {key}" for team, key in keys))
    return blake2b(every.encode(), digest_size=32, person=b"proxy secret").digest()
