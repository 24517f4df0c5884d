"""One proxy process: puts its parts together, listens, keeps time, and ends in good order.

It opens the listeners and runs the ticks; what a request meets is the desk's. What the user should hear goes to `say`.
"""

import asyncio
import gc
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from hashlib import blake2b

from toolkit.proxy import headers as header_rules
from toolkit.proxy.calls.admission import Admission
from toolkit.proxy.calls.attempt import Means
from toolkit.proxy.calls.calls import Calls
from toolkit.proxy.calls.flights import Flights
from toolkit.proxy.desk.answering import Answering
from toolkit.proxy.desk.desk import Desk
from toolkit.proxy.desk.kit import Kit
from toolkit.proxy.exchange import Job, Kept
from toolkit.proxy.http.front import Front
from toolkit.proxy.keyring import TeamKey, keyring
from toolkit.proxy.processes.admin import AdminDesk
from toolkit.proxy.processes.control import Control, Inside
from toolkit.proxy.processes.crew import OWNER, Crew
from toolkit.proxy.processes.doors import BACKLOG, Place, cannot_listen, private_listener
from toolkit.proxy.processes.relayed import RelayedDesk
from toolkit.proxy.processes.ticks import ticking
from toolkit.proxy.settings import FrontSetting, Settings
from toolkit.proxy.settings_file import admin_port
from toolkit.proxy.stored.layers import NOTES_SHARE, Layers
from toolkit.proxy.stored.redis_cache import RedisCache
from toolkit.proxy.stored.shared_cache import SharedCache
from toolkit.proxy.told.explain import Memory
from toolkit.proxy.told.request_log import RequestLog
from toolkit.proxy.told.store_feed import StoreFeed
from toolkit.proxy.told.telling import Telling
from toolkit.proxy.upstreams.epoch_keeper import EpochKeeper
from toolkit.proxy.upstreams.generations import Generations
from toolkit.proxy.upstreams.routing import Routing
from toolkit.proxy.upstreams.scrape import Scrape
from toolkit.proxy.upstreams.upstream import Upstream
from toolkit.proxy.upstreams.watch import Watch
from toolkit.request_key import KEY_BYTES

TICK_S = 0.1
FIRST_LOOK_S = 2.0
"""So long the doors stay shut for a first look at the upstreams: what was stored before one restarted must not be served."""

Say = Callable[[str], None]


class Proxy:
    """One process, alone or the owner of several. `start` it in its loop, `stop` it there; in between it serves."""

    def __init__(
        self,
        settings: Settings,
        *,
        variables: Mapping[str, str],
        keys: list[TeamKey],
        log: RequestLog | None = None,
        feed: StoreFeed | None = None,
        say: Say,
        place: Place | None = None,
    ) -> None:
        """`variables`: the values that settings_file.checked found; `keys`: the teams' own.

        `place`: where it stands if it is the owner of several workers.
        """
        self.settings, self._say, self._log, self._feed = settings, say, log, feed
        self._telling = Telling(log, feed)
        self._place = place
        self._secret = _secret(keys)
        self._keyring = (
            keyring(settings.teams, keys, secret=self._secret) if settings.teams else None
        )
        self._variables = variables
        self._opened = AsyncExitStack()
        self._is_put_together = False
        self._file_problem: str | None = None
        """As it was told."""
        self._is_redis_left = False
        """As it was told."""
        self._ticking: list[asyncio.Task[None]] = []
        self._listeners: list[asyncio.Server] = []
        self._fronts: list[Front] = []

    # --- putting it together -----------------------------------------------------------------------

    async def start(self) -> None:
        """Open everything, look at the upstreams once, and let clients in. Raises ToolkitError."""
        layers, generations = self._layers(), Generations()
        self.crew = Crew(self._place, self.settings.workers, epochs=lambda: generations.numbers)
        self._opened.push_async_callback(self.crew.close)
        await self.crew.open()
        keeper = EpochKeeper(
            self.settings,
            layers.shared,
            generations,
            changed=lambda _: self._forget_ready(layers),
            event=self._telling.event,
        )
        self.kit = self._kit(layers, generations, keeper)
        self.inside = self._inside(keeper, await self._upstreams())
        self._is_put_together = True
        await self._first_look()
        await self._open_doors()
        self._begin_ticks()
        # what was made so far lives to the end, and need not be looked through again and again
        gc.freeze()

    def _kit(self, layers: Layers, generations: Generations, keeper: EpochKeeper) -> Kit:
        return Kit(
            settings=self.settings,
            layers=layers,
            counters=self._telling.counters,
            generations=generations,
            generation=generations.of if layers.redis is None else keeper.fingerprint,
            memory=Memory(self.settings.cache.memory_bytes // NOTES_SHARE),
            tell=self._telling.tell,
            event=self._telling.event,
            clock=time.monotonic,
            wall=time.time,
            secret=self._secret,
            name=secrets.token_hex(4).encode() + b"-",
        )

    def _inside(self, keeper: EpochKeeper, upstreams: Mapping[str, Upstream]) -> Inside:
        """All that makes calls upstream, and looks at what is asked there."""
        settings, kit = self.settings, self.kit
        routing = Routing(settings.upstreams, settings.routing)
        admission = Admission(settings.admission, settings.teams)
        means = Means(
            upstreams=upstreams,
            routing=routing,
            settings=settings,
            event=kit.event,
            clock=kit.clock,
            asked=kit.counters.ask_upstream,
        )
        self._calls = Calls(
            means,
            flights=Flights(longest_s=settings.cache.longest_flight_s),
            admission=admission,
            keep=self._keep,
        )
        self._answering = Answering(kit, self._calls)
        watch = Watch(upstreams, routing, keeper=keeper, event=kit.event, clock=kit.clock)
        inside = Inside(
            kit,
            self._answering,
            calls=self._calls,
            admission=admission,
            routing=routing,
            watch=watch,
            scrape=Scrape(upstreams.values(), watch.metrics, look_s=settings.routing.look_s),
            crew=self.crew,
        )
        inside.log, inside.feed = self._log, self._feed
        return inside

    def _layers(self) -> Layers:
        cache = self.settings.cache
        shared = redis = None
        if cache.file is not None:
            shared = SharedCache(cache.file, cache.file_bytes)
            self._opened.callback(shared.close)
        if cache.redis_env is not None:
            redis = RedisCache(self._variables[cache.redis_env], cache.redis_timeout_s)
            self._opened.push_async_callback(redis.close)
        return Layers(cache, shared=shared, redis=redis, clock=time.monotonic, wall=time.time)

    async def _upstreams(self) -> dict[str, Upstream]:
        found = {}
        for each in self.settings.upstreams:
            key = None if each.key_env is None else self._variables[each.key_env]
            upstream = Upstream(each, key=key, back=header_rules.back)
            found[each.name] = await self._opened.enter_async_context(upstream)
        return found

    async def _first_look(self) -> None:
        watch = self.inside.watch
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
        admin = Front(AdminDesk(control, settings.admin_host), FrontSetting())
        self._fronts = [front, admin]
        if self._place is not None:
            place = self._place
            relayed = Front(RelayedDesk(desk, self._answering), _for_relays(settings))
            self._fronts.append(relayed)
            listener = await private_listener(relayed, place.folder / OWNER)
            self._opened.callback(listener.close)
            for each, sockets in ((front, place.clients), (admin, place.admin)):
                self._listeners += [
                    await loop.create_server(each, sock=one, backlog=BACKLOG) for one in sockets
                ]
            return
        for each, host, port in (
            (front, settings.host, settings.port),
            (admin, settings.admin_host, admin_port(settings)),
        ):
            try:
                server = await loop.create_server(each, host, port, backlog=BACKLOG)
            except OSError as error:
                raise cannot_listen(host, port, error) from error
            self._listeners.append(server)

    @property
    def ports(self) -> tuple[int, int]:
        """Where clients and the admin are listened to."""
        first, second = (each.sockets[0].getsockname()[1] for each in self._listeners)
        return first, second

    # --- time --------------------------------------------------------------------------------------

    def _begin_ticks(self) -> None:
        event = self._telling.event
        self._ticking += [
            asyncio.create_task(ticking(TICK_S, self._calls.tick, event)),
            asyncio.create_task(ticking(1.0, self._look_round, event)),
        ]

    async def _look_round(self) -> None:
        for front in self._fronts:
            front.sweep()
        counters = self.kit.counters
        if self._place is not None:
            await self.crew.look()
            counters = self.inside.counted()
        self.inside.recent.look(time.monotonic(), counters)
        shared = self.kit.layers.shared
        if shared is not None:
            for warning in shared.take_warnings():
                self._say(warning)
            self._tell_of_file(shared.problem)
        redis = self.kit.layers.redis
        if redis is not None:
            self._tell_of_redis(redis)

    def _tell_of_file(self, problem: str | None) -> None:
        """Say once that the file can't be used, and once that it can again; no answer fails for it, so nobody would see."""
        if (problem is None) == (self._file_problem is None):
            return
        self._file_problem = problem
        if problem is None:
            self._say(f"The shared cache `{self.settings.cache.file}` is used again")
        else:
            self._say(f"The shared cache {problem}; it is tried again")
        self._telling.event("cache_file", {"problem": problem})

    def _tell_of_redis(self, redis: RedisCache) -> None:
        """The same of Redis: answers come without it meanwhile."""
        if redis.is_left_alone == self._is_redis_left:
            return
        self._is_redis_left = redis.is_left_alone
        if redis.is_left_alone:
            self._say(f"Redis is not used now: {redis.problem}; it is tried again")
        else:
            self._say("Redis is used again")
        self._telling.event("redis", {"problem": redis.problem if self._is_redis_left else None})

    # --- what happens ------------------------------------------------------------------------------

    def _forget_ready(self, layers: Layers) -> None:
        """Epochs were raised: what is known by other means than keys goes, and the other workers must know at once."""
        layers.memo.purge()
        self.crew.look_soon()

    def _keep(self, key: bytes, job: Job, kept: Kept) -> None:
        is_another = self.crew.is_several and self._answering.holds(key)
        self._answering.keep(key, job, kept)
        if is_another:
            self.crew.forget_soon(key[:KEY_BYTES], self.kit.layers.shared)

    # --- the end -----------------------------------------------------------------------------------

    def _shut(self) -> None:
        self._fronts[0].drain()

    def _reopen(self) -> None:
        self._fronts[0].reopen()
        self._say("The proxy takes requests again")

    def shut(self) -> None:
        """Take no new connection of a client's; other workers may hand on still."""
        self.inside.is_draining = True
        for listener in self._listeners:
            listener.close()
        for front in self._fronts[:2]:
            front.drain()

    async def stop(self, wait_s: float | None = None) -> None:
        """Take no new connection, let what is under way end, for as long as the settings say if not told, and close everything."""
        if self._is_put_together:
            self.shut()
            for front in self._fronts:
                front.drain()
            await self._answering.hurry()
            await self._calls.drain(self.settings.drain_s if wait_s is None else wait_s)
            await self._answering.close()
        for task in self._ticking:
            task.cancel()
        await asyncio.gather(*self._ticking, return_exceptions=True)
        await self._opened.aclose()


def _for_relays(settings: Settings) -> FrontSetting:
    """What other workers send was within limits when it came to them; their own header is longer than what it tells."""
    limits, workers = settings.front, settings.workers
    return replace(
        limits,
        header_bytes=2 * limits.header_bytes + 4096,
        held_bytes=limits.held_bytes * workers,
        connections=limits.connections * workers,
        stall_s=2 * limits.stall_s,
    )


def _secret(keys: list[TeamKey]) -> bytes:
    """The same after a restart with the same keys: salts of the engines' prefix caches go on being the same."""
    if not keys:
        return secrets.token_bytes(32)
    every = "\n".join(sorted(f"{team} {key}" for team, key in keys))
    return blake2b(every.encode(), digest_size=32, person=b"proxy secret").digest()
