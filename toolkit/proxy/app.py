"""One proxy process: puts its parts together, listens, keeps time, and ends in good order.

It is alone, the primary of several workers, or one of the others: a front worker's upstream is the primary, and what it does not find
where answers are stored it passes on. What a request meets is the handler's. What the user should hear goes to `say`.
"""

import asyncio
import gc
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from toolkit.errors import ToolkitError
from toolkit.proxy.admin import Admin
from toolkit.proxy.admission import Admission
from toolkit.proxy.auth import Keyring, TeamKey
from toolkit.proxy.cache.redis import RedisCache
from toolkit.proxy.cache.sqlite import SqliteCache
from toolkit.proxy.cache.tiers import Tiers
from toolkit.proxy.call import Calls
from toolkit.proxy.client import Front
from toolkit.proxy.config import FrontSetting, Settings, UpstreamSetting, admin_port
from toolkit.proxy.handler import Handler
from toolkit.proxy.shared_limits import SharedLimits
from toolkit.proxy.telemetry import Telemetry
from toolkit.proxy.telemetry.metrics import Counters, LastMinute
from toolkit.proxy.upstream.connection import Upstream
from toolkit.proxy.upstream.fingerprint import Fingerprints
from toolkit.proxy.upstream.health import Prober
from toolkit.proxy.upstream.routing import Routing
from toolkit.proxy.workers import (
    BACKLOG,
    PRIMARY_SOCKET,
    WORKER_SOCKET,
    FromWorkers,
    FrontWorker,
    FrontWorkers,
    listeners,
)

TICK_S: Final = 0.1
REFRESH_S: Final = 0.5
"""How often it is read what other processes and machines know of the upstreams."""
FILE_S: Final = 0.1
"""The same in a front worker, should the primary be unable to tell of it. It takes 15 us, and 7 if nothing changed."""
FIRST_SCRAPE_S: Final = 2.0
"""So long nobody is let in before a first look at the upstreams: what was stored before one restarted must not be served."""
LINGER_S: Final = 0.5
"""Longest wait at the end for what was written to reach its clients."""
PRIVATE_BACKLOG: Final = 4096
"""Linux cuts it to net.core.somaxconn; a worker's connection beyond it would be refused."""


FIXED: Final = ("host", "port", "admin_host", "admin_port", "workers", "front", "tell")
FIXED_CACHE: Final = (
    "memory_bytes", "file", "file_bytes", "redis_env", "redis_timeout_s", "redis_wait_s", "max_answer_bytes", "epoch"
)  # fmt: skip
"""Settings that are taken at the start."""


class Proxy:
    """One process. `start` it in its loop, `stop` it there; in between it serves."""

    def __init__(
        self,
        settings: Settings,
        *,
        variables: Mapping[str, str],
        keys: list[TeamKey],
        telemetry: Telemetry,
        say: Callable[[str], None],
        number: int = 0,
        folder: Path | None = None,
        clients: Sequence[socket.socket] = (),
        admin: Sequence[socket.socket] = (),
    ) -> None:
        """`variables`: the values that config.checked found; `keys`: the teams' own.

        Of one of several workers `number` is 0 for the primary, `folder` holds the private sockets and is this user's alone, and
        `clients` and `admin` listen already. Raises ToolkitError for a team without a key.
        """
        self.settings, self.say = settings, say
        self._number, self._folder, self._sockets = number, folder, (clients, admin)
        self.is_front = number > 0
        """It is one of the others, whose misses the primary answers."""
        self.name = secrets.token_hex(4)
        self.clock, self.wall = time.monotonic, time.time
        self.telemetry = telemetry
        self.last_minute = LastMinute()
        self.is_draining = False
        self.started_at = self.wall()
        self._variables = variables
        # the same after a restart with the same keys: salts of the engines' prefix caches go on being the same
        self._secret = secrets.token_bytes(32)
        if keys:
            every = "\n".join(sorted(f"{team} {key}" for team, key in keys))
            data = every.encode()
            self._secret = blake2b(data, digest_size=32, person=b"proxy secret").digest()
        self._keyring = Keyring(settings.teams, keys) if settings.teams else None
        self._opened = AsyncExitStack()
        self.ports = (0, 0)
        """Where clients and the admin are listened to."""
        self._problems: dict[str, str | None] = {}
        """Of the file and of Redis, as they were last said."""
        self._leaving: list[str] = []
        """Upstreams that other settings do not name, while anything is under way there."""
        self._ticking: list[asyncio.Task[None]] = []
        self._listeners: list[asyncio.Server] = []
        self._fronts: list[Front] = []

    # --- its beginning -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open everything, look at the upstreams once, and let clients in. Raises ToolkitError."""
        settings, event, opened = self.settings, self.telemetry.event, self._opened
        setting = settings.cache
        sqlite = redis = None
        if setting.file is not None:
            sqlite = SqliteCache(setting.file, setting.file_bytes)
            opened.callback(sqlite.close)
        if setting.redis_env is not None and not self.is_front:
            url = self._variables[setting.redis_env]
            redis = RedisCache(url, setting.redis_timeout_s, wait_s=setting.redis_wait_s)
            opened.push_async_callback(redis.close)
        self.cache = Tiers(setting, sqlite=sqlite, redis=redis, clock=self.clock, wall=self.wall)
        opened.callback(self.cache.pack)
        self.front_workers = FrontWorkers(
            self._folder,
            1 if self.is_front else settings.workers,
            incarnations=lambda: self.fingerprints.incarnations,
        )
        opened.push_async_callback(self.front_workers.close)
        self.fingerprints = Fingerprints(
            settings, file=sqlite, redis=redis, changed=self._forget_hot, event=event
        )
        await self.fingerprints.refresh()
        self.upstreams: dict[str, Upstream] = {}
        answering: Sequence[UpstreamSetting] = settings.upstreams
        if self._folder is not None and self.is_front:
            url = f"unix:{self._folder / PRIMARY_SOCKET}"
            answering = [UpstreamSetting(name="primary", url=url)]
        for each in answering:
            key = None if each.key_env is None else self._variables[each.key_env]
            upstream = self.upstreams[each.name] = Upstream(each, key=key)
            opened.push_async_callback(upstream.close)
        self.handler = Handler(
            settings,
            cache=self.cache,
            telemetry=self.telemetry,
            keyring=self._keyring,
            fingerprint=self.fingerprints.of,
            clock=self.clock,
            wall=self.wall,
            secret=self._secret,
            name=self.name.encode() + b"-",
        )
        if not self.is_front:
            await self._ask_upstreams()
        await self._listen()
        self._each(1.0, self._each_second)
        self._each(FILE_S if self.is_front else REFRESH_S, self.fingerprints.refresh)
        if not self.is_front:
            self._each(TICK_S, self.calls.tick)
        # what was made so far lives to the end, and need not be looked through again and again
        gc.freeze()

    async def _ask_upstreams(self) -> None:
        """What only the process has that asks them; they are looked at once."""
        settings, event, sqlite = self.settings, self.telemetry.event, self.cache.sqlite
        self.routing = Routing(settings.upstreams, settings.routing)
        self.admission = Admission(settings.admission, settings.teams)
        self.shared_limits: SharedLimits | None = None
        if self.cache.redis is not None:
            self.shared_limits = SharedLimits(self.cache.redis, self.admission)
            self._opened.push_async_callback(self.shared_limits.close)
            self.shared_limits.take_settings(settings.teams)
            await self.shared_limits.sync()
            self._each(TICK_S, self.shared_limits.sync)
        self.calls = self.handler.calls = Calls(
            self.handler,
            upstreams=self.upstreams,
            routing=self.routing,
            admission=self.admission,
            settings=settings,
            event=event,
            clock=self.clock,
            asked=self.telemetry.counters.upstream_asked,
        )
        if self.front_workers and sqlite is not None:
            others = self.front_workers
            self.handler.replaced = lambda key: others.soon(others.forget_written(key, sqlite))
        self.prober = Prober(
            self.upstreams, self.routing, self.fingerprints, event=event, clock=self.clock
        )
        self._probing = asyncio.create_task(self.prober.run())
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_SCRAPE_S):
                await self.prober.first_scrape()

    async def _listen(self) -> None:
        settings, folder, loop = self.settings, self._folder, asyncio.get_running_loop()
        pages = FrontWorker(self) if self.is_front else Admin(self, settings.admin_host)
        self.handler.pages = pages
        if isinstance(pages, FrontWorker):
            self.handler.pass_on = pages.pass_on
        self.front = Front(self.handler, settings.front)
        # the admin's orders, or the primary's
        control = Front(pages, FrontSetting())
        self._fronts = [self.front, control]
        if folder is not None:
            private, path = control, folder / WORKER_SOCKET.format(self._number)
            if not self.is_front:
                limits, workers = settings.front, settings.workers
                # what other workers send was within limits when it came to them; their own headers come on top of it
                relayed = replace(
                    limits,
                    header_bytes=2 * limits.header_bytes + 4096,
                    headers=limits.headers + 10,
                    held_bytes=limits.held_bytes * workers,
                    connections=limits.connections * workers,
                    stall_s=2 * limits.stall_s,
                )
                private, path = Front(FromWorkers(self.handler), relayed), folder / PRIMARY_SOCKET
                self._fronts.append(private)
            # one that a dead process left
            path.unlink(missing_ok=True)
            listener = await loop.create_unix_server(private, str(path), backlog=PRIVATE_BACKLOG)
            path.chmod(0o600)
            self._opened.callback(listener.close)
        wanted = [(self.front, settings.host, settings.port)]
        if not self.is_front:
            wanted.append((control, settings.admin_host, admin_port(settings)))
        for (front, host, port), own in zip(wanted, self._sockets, strict=False):
            sockets = own or listeners(host, port, 1)[0]
            self.ports = self.ports[1], sockets[0].getsockname()[1]
            for sock in sockets:
                self._listeners.append(await loop.create_server(front, sock=sock, backlog=BACKLOG))

    # --- what the admin asks -------------------------------------------------------------------------

    def held(self) -> dict[str, int]:
        """What this process holds right now and lost; of all workers it adds up."""
        log, feed = self.telemetry.log, self.telemetry.feed
        return {
            "connections": self.front.connections,
            "busy": self.front.busy,
            "log_lines_dropped": log.dropped if log else 0,
            "rows_dropped": feed.dropped if feed else 0,
            **self.cache.memory_gauge(),
        }

    def counted(self) -> Counters:
        """What all workers counted; a copy, which may be read in a thread while these count on."""
        return self.front_workers.counted(self.telemetry.counters)

    def reopen_logs(self) -> None:
        """Go on in a new file, where the old one was moved."""
        if self.telemetry.log is not None:
            self.telemetry.log.reopen()

    # --- other settings ------------------------------------------------------------------------------

    async def reload(
        self, settings: Settings, variables: Mapping[str, str], keys: list[TeamKey]
    ) -> None:
        """Take over other times, limits, teams and upstreams. Nothing that is under way ends for that, and no connection is closed.

        Raises ToolkitError for a setting that only a restart can change, and for a team without a key; then nothing has changed.
        """
        refuse_fixed(self.settings, settings)
        keyring = Keyring(settings.teams, keys) if settings.teams else None
        self.settings, self._variables = settings, variables
        self.handler.take_settings(settings, keyring)
        # what is known by a request's bytes or by its head is known by the key in it, too
        self.cache.hot.purge()
        for front in self._fronts:
            front.heads.forget()
        if self.is_front:
            return
        self.admission.take_settings(settings.admission, settings.teams)
        if self.shared_limits is not None:
            self.shared_limits.take_settings(settings.teams)
        self.calls.settings = settings
        self.handler.pages = self._fronts[1].responder = Admin(self, settings.admin_host)
        wanted = {each.name: each for each in settings.upstreams}
        gone = [name for name in self.upstreams if name not in wanted]
        for each in settings.upstreams:
            if each.name in self.upstreams:
                self.upstreams[each.name].setting = each
                continue
            key = None if each.key_env is None else variables[each.key_env]
            self.upstreams[each.name] = Upstream(each, key=key)
            self._opened.push_async_callback(self.upstreams[each.name].close)
        # nobody is sent to one that goes, but what is under way there is finished
        leaving = [self.upstreams[name].setting for name in gone]
        self.routing.take_settings((*settings.upstreams, *leaving), settings.routing)
        for name in gone:
            self.routing.drain(name, "spare")
        self.fingerprints.take_upstreams(settings.upstreams)
        self._probing.cancel()
        stay = {name: each for name, each in self.upstreams.items() if name in wanted}
        self.prober = Prober(
            stay, self.routing, self.fingerprints, event=self.telemetry.event, clock=self.clock
        )
        self._probing = asyncio.create_task(self.prober.run())
        self._leaving += gone

    # --- time ----------------------------------------------------------------------------------------

    def _each(self, every_s: float, work: Callable[[], Any]) -> None:
        """Work each `every_s` until the end; a fault in it becomes an event, and the next time comes all the same.

        Without its ticks a process would keep no deadline and let no slow client go.
        """

        async def tick() -> None:
            while True:
                await asyncio.sleep(every_s)
                try:
                    rest = work()
                    if rest is not None:
                        await rest
                except Exception as error:  # noqa: BLE001 (reported, not hidden)
                    self.telemetry.event("fault", {"error": f"{type(error).__name__}: {error}"})

        self._ticking.append(asyncio.create_task(tick()))

    async def _each_second(self) -> None:
        for front in self._fronts:
            front.sweep()
        for upstream in self.upstreams.values():
            upstream.sweep()
        for name in self._leaving.copy():
            states = {each.name: each for each in self.routing.states(self.clock())}
            if not states[name].in_flight:
                self._leaving.remove(name)
                stay = [self.upstreams[each].setting for each in states if each != name]
                self.routing.take_settings(stay, self.settings.routing)
                await self.upstreams.pop(name).close()
        sqlite, redis = self.cache.sqlite, self.cache.redis
        while sqlite is not None and sqlite.warnings:
            self.say(sqlite.warnings.popleft())
        if self.is_front:
            return
        await self.front_workers.sync()
        counters = self.counted() if self.front_workers else self.telemetry.counters
        self.last_minute.sample(self.clock(), counters)
        # no answer fails for a file or Redis that is away, so nobody would see: said once, and once when it is back
        file = f"The shared cache `{self.settings.cache.file}`"
        lost = None if sqlite is None else sqlite.problem
        away = redis.problem if redis is not None and redis.is_left_alone else None
        for kind, problem, sentence, name in (
            ("cache_file", lost, f"The shared cache {lost}", file),
            ("redis", away, f"Redis is not used now: {away}", "Redis"),
        ):
            if (problem is None) != (self._problems.get(kind) is None):
                self._problems[kind] = problem
                is_back = f"{name} is used again"
                self.say(is_back if problem is None else f"{sentence}; it is tried again")
                self.telemetry.event(kind, {"problem": problem})

    def _forget_hot(self) -> None:
        """Another model answers: what is known by other means than keys goes, and the other workers must know at once."""
        self.cache.hot.purge()
        if self.front_workers:
            self.front_workers.soon(self.front_workers.sync())

    # --- its end -------------------------------------------------------------------------------------

    def shut(self) -> None:
        """Take no new connection of a client's; other workers may pass on still."""
        self.is_draining = True
        for listener in self._listeners:
            listener.close()
        for front in self._fronts[:2]:
            front.drain()

    async def stop(self, wait_s: float | None = None) -> None:
        """Take no new connection, let what is under way end, for as long as the settings say if not told, and close everything."""
        wait_s = self.settings.drain_s if wait_s is None else wait_s
        if self._fronts:
            self.shut()
            for front in self._fronts:
                front.drain()
            if not self.is_front:
                await self.handler.hurry()
                await self.calls.drain(wait_s)
                wait_s = LINGER_S
            ends_s = self.clock() + wait_s
            while any(each.busy for each in self._fronts) and self.clock() < ends_s:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        tasks = [*self._ticking, *([] if self.is_front or not self._fronts else [self._probing])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._opened.aclose()


def refuse_fixed(old: Settings, new: Settings) -> None:
    """Raise for a setting that only a restart can change."""
    those = {name: (getattr(old, name), getattr(new, name)) for name in FIXED}
    those |= {
        f"cache.{name}": (getattr(old.cache, name), getattr(new.cache, name))
        for name in FIXED_CACHE
    }
    urls = [{each.name: (each.url, each.key_env) for each in one.upstreams} for one in (old, new)]
    both = urls[0].keys() & urls[1].keys()
    those |= {f"url of upstream {name}": (urls[0][name], urls[1][name]) for name in both}
    changed = [name for name, (before, now) in those.items() if before != now]
    if changed:
        raise ToolkitError(
            f"`{changed[0].removesuffix('_s')}` can't be changed while the proxy serves",
            "Restart it; another upstream takes another `name`"
            if " " in changed[0]
            else "Restart it, or leave that as it is",
        )
