"""One host's part in a run: made ready, warmed up, asked, counted. It owns the waiting, its client the network.

Lanes share nothing: a host that hangs holds its own requests only, and what it could not be sent is charged to it.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count, islice, repeat

from toolkit.bench.asks import HostRequests, PlannedRequest
from toolkit.bench.client import HostClient, PageError
from toolkit.bench.counters import ledger
from toolkit.bench.models import choice
from toolkit.bench.plan import BenchPlan
from toolkit.bench.schedule import requests_of, send_times
from toolkit.bench.shots import Failure, Heard, Moments, ShotContext, shot
from toolkit.metrics.dialects import EngineNumbers
from toolkit.profiles import Profile
from toolkit.records import Ledger, ServedModel, Shot
from toolkit.stats import Sketch

LOOK_EVERY_S = 1.0
"""How often a host's queue is looked at during the load: 0.7 ms of CPU for a vLLM page of 56 KB."""
MOST_LOOK_BYTES = 2**20
"""A longer page is not looked at meanwhile: reading it would delay the shots of all hosts."""
SETTLE_S = 3.0
SETTLE_LOOK_S = 0.1
"""After the last answer the counters may lag a step; somebody else's requests may never end."""
CONNECT_S = 1.0
"""For all ready connections of a host; while the others wait, theirs grow old."""
MOST_READY_CONNECTIONS = 512
CHARGES_AT_ONCE, CHARGE_PAUSE_S = 10, 0.005
LEVEL_SLOTS = 1_000_000
"""Slots of a sweep's levels do not overlap, so a slot is one request."""
PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
"""After the second failure in a row, doubled with each: a host that refuses at once must not be hammered, and the
work of it must not delay the other hosts' streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSetting:
    """What is the same for all lanes of a run."""

    run: str
    plan: BenchPlan
    profile: Profile
    model: str | None
    """What the command line asks for; None: what each host lists."""
    wall_offset_s: float


class Lane:
    """One host in one run; `shots` and `ledger` are what came of it."""

    def __init__(
        self, client: HostClient, setting: LaneSetting, nonce: str, take: Callable[[Shot], None]
    ) -> None:
        """`nonce` is unlike any other lane's and run's; `take` gets each shot once it is over."""
        self.client = client
        self.host = client.host
        self.shots: list[Shot] = []
        self.lag = Sketch()
        """How late this machine was with what an open loop planned, in milliseconds."""
        self.under_way = 0
        self.error: str | None = None
        """Why this host cannot be asked at all."""
        self.not_served = False
        """The one reason is that the model of the command line is not served here."""
        self._setting, self._plan, self._nonce, self._take = setting, setting.plan, nonce, take
        self._model = "unknown"
        self._before: EngineNumbers | None = None
        self._no_counters: str | None = "the run was stopped before they were read"
        self._seen: list[EngineNumbers] = []
        self._models: tuple[ServedModel, ...] = ()
        self._models_after: tuple[ServedModel, ...] = ()
        self._rtt_ms: float | None = None
        self._after: EngineNumbers | None = None

    @property
    def ledger(self) -> Ledger:
        """What the host's counters moved by, as far as they were read."""
        return ledger(
            self._before,
            self._after,
            run=self._setting.run,
            name=self.host.name,
            url=self.host.url,
            error=self._no_counters,
            seen=self._seen,
            rtt_ms=self._rtt_ms,
            models_before=self._models,
            models_after=self._models_after,
        )

    @property
    def page(self) -> EngineNumbers | None:
        """What its `/metrics` said before the load."""
        return self._before

    async def choose_model(self) -> None:
        """Learn what is served, and whether anybody answers at all."""
        missing = None
        try:
            self._models = await self.client.models()
        except PageError as error:
            missing = str(error)
            if not error.answered:
                self.error = missing
                return
        wanted = self._setting.model
        chosen = choice(self._models, listed=self.host.model, wanted=wanted)
        if chosen.model is None:
            self.error = missing or chosen.error
            self.not_served = wanted is not None and bool(self._models)
        else:
            self._model = chosen.model

    async def prepare(self) -> None:
        """Learn the round trip, and the counters as they stand before the load."""
        if self.error is None:
            self._rtt_ms = await self.client.rtt_ms()
            try:
                self._before = await self.client.numbers()
            except PageError as error:
                self._no_counters = str(error)

    async def warm_up(self) -> None:
        """Send the uncounted requests, as many at once as the measured ones; after a failure no more of them.

        All hosts wait for the slowest here: one that hangs shall cost a single timeout.
        """
        if self.error is None and self._plan.warmup:
            asker, width = self._asker(0), self._widest()
            asks = (asker.warmup(number) for number in range(self._plan.warmup))
            course = self._course(width)

            async def work() -> None:
                for ask in asks:
                    if not (await self._send(course, ask, time.monotonic(), None)).ok:
                        return

            await self._at_once(min(width, self._plan.warmup), work)

    async def connect(self, level: int) -> None:
        """Have connections ready, so that no first request pays for its handshake."""
        if self.error is None:
            width = min(self._concurrency(level), MOST_READY_CONNECTIONS)
            with suppress(TimeoutError):
                async with asyncio.timeout(CONNECT_S):
                    await self.client.open_connections(width)

    async def measure(self, level: int, began_s: float) -> None:
        """Run one level of the plan, from the moment `began_s` on; `level` counts from 0."""
        asker, slots = self._asker(level), count(level * LEVEL_SLOTS)
        if self.error is not None:
            await self._charge(asker, slots, level, began_s)
            return
        async with crew() as tasks:
            looking = tasks.create_task(self._look_often())
            await asyncio.sleep(max(0.0, began_s - time.monotonic()))
            first = len(self.shots)
            if self._plan.rate:
                await self._open_loop(asker, slots, began_s)
            else:
                await self._closed_loop(asker, slots, level, began_s)
            looking.cancel()
        if level + 1 < len(self._plan.levels) and _all_late(self.shots[first:]):
            # further levels would take as long again, and all hosts wait for the slowest
            self.error = f"it answered nothing within {self._plan.timeout_s:g} s a request"

    async def finish(self) -> None:
        """Read the models again, and the counters once they stand still."""
        if not self._models and self._before is None:
            return
        with suppress(PageError):
            self._models_after = await self.client.models()
        if self._before is None:
            return
        end_s = time.monotonic() + SETTLE_S
        try:
            after, still = await self.client.numbers(), False
            while not still and time.monotonic() < end_s:
                await asyncio.sleep(SETTLE_LOOK_S)
                earlier, after = after, await self.client.numbers()
                still = _still(earlier, after)
            self._after, self._no_counters = after, None
        except PageError as error:
            self._no_counters = str(error)

    # --- inside a level ----------------------------------------------------------------------------

    async def _closed_loop(
        self, asker: HostRequests, slots: Iterator[int], level: int, began_s: float
    ) -> None:
        """Keep a fixed number of requests under way, each leaving when another's answer is over."""
        concurrency = self._concurrency(level)
        requests, duration_s = self._requests(concurrency), self._plan.duration_s
        course = self._course(concurrency)

        def asks() -> Iterator[PlannedRequest]:
            for slot in islice(slots, requests):
                if duration_s is not None and time.monotonic() >= began_s + duration_s:
                    return
                yield asker.next(slot)

        shared = asks()

        async def work() -> None:
            failures = 0
            for ask in shared:
                done = await self._send(course, ask, time.monotonic(), asker)
                failures = 0 if done.ok else failures + 1
                if failures > 1:
                    await asyncio.sleep(min(LONGEST_PAUSE_S, PAUSE_S * 2 ** min(failures - 2, 10)))

        await self._at_once(concurrency, work)

    async def _open_loop(self, asker: HostRequests, slots: Iterator[int], began_s: float) -> None:
        """Send on time whatever the answers take; at most `concurrency` are under way."""
        course, places = self._course(None), asyncio.Semaphore(self._plan.concurrency)
        async with crew() as sending:
            for offset_s, slot in zip(send_times(self._plan), slots, strict=False):
                planned_s = began_s + offset_s
                # also when late: what was planned before must get its turn
                await asyncio.sleep(max(0.0, planned_s - time.monotonic()))
                ask = asker.next(slot)
                sending.create_task(self._when_there_is_room(course, ask, planned_s, places, asker))

    async def _when_there_is_room(
        self,
        course: ShotContext,
        ask: PlannedRequest,
        planned_s: float,
        places: asyncio.Semaphore,
        asker: HostRequests,
    ) -> None:
        # what follows is the host's doing: it holds all places
        self.lag.add(max(0.0, time.monotonic() - planned_s) * 1000)
        try:
            async with asyncio.timeout(planned_s + self._plan.timeout_s - time.monotonic()):
                await places.acquire()
        except TimeoutError:
            full = (
                f"{self._plan.concurrency} requests were under way for {self._plan.timeout_s:g} s"
            )
            self._add(self._unsent(course, ask, planned_s, full))
            return
        try:
            await self._send(course, ask, planned_s, asker)
        finally:
            places.release()

    async def _send(
        self, course: ShotContext, ask: PlannedRequest, planned_s: float, asker: HostRequests | None
    ) -> Shot:
        self.under_way += 1
        try:
            done = await self.client.send(course, ask, planned_s)
        finally:
            self.under_way -= 1
        if asker and done.ok and done.kind == "unique":
            asker.answered(done.slot)
        self._add(done)
        return done

    def _add(self, done: Shot) -> None:
        self.shots.append(done)
        self._take(done)

    async def _at_once(self, width: int, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Let so many work, begun one by one: each request is on the wire before the next one's clock starts."""
        async with crew() as workers:
            for _ in range(width):
                workers.create_task(work())
                await asyncio.sleep(0)

    async def _look_often(self) -> None:
        """See how many wait inside the server, now and then; the hosts' looks do not fall together."""
        await asyncio.sleep(random.random() * LOOK_EVERY_S)  # noqa: S311 (no secret)
        while self._before is not None:
            with suppress(PageError):
                numbers = await self.client.numbers(most_bytes=MOST_LOOK_BYTES)
                self._seen.append(_queue_only(numbers))
            await asyncio.sleep(LOOK_EVERY_S)

    async def _charge(
        self, asker: HostRequests, slots: Iterator[int], level: int, began_s: float
    ) -> None:
        """Charge a host that cannot be asked with every request that was planned for it, when it was due.

        A few at a time: a hundred thousand at once would hold up the other hosts' streams for seconds.
        """
        course = self._course(None if self._plan.rate else self._concurrency(level))
        for number, offset_s in enumerate(self._offsets(level), start=1):
            planned_s = began_s + offset_s
            await asyncio.sleep(max(0.0, planned_s - time.monotonic()))
            ask = asker.next(next(slots))
            self._add(self._unsent(course, ask, planned_s, self.error or "unknown"))
            if not self._plan.rate and number % CHARGES_AT_ONCE == 0:
                await asyncio.sleep(CHARGE_PAUSE_S)

    # --- small things ------------------------------------------------------------------------------

    def _offsets(self, level: int) -> Iterable[float]:
        """When the requests of a level are due, seconds after its begin."""
        if self._plan.rate:
            return send_times(self._plan)
        concurrency = self._concurrency(level)
        # a duration plans no number of requests, but a first wave for sure
        return repeat(0.0, self._requests(concurrency) or concurrency)

    def _unsent(
        self, course: ShotContext, ask: PlannedRequest, planned_s: float, reason: str
    ) -> Shot:
        moments = Moments(planned_s=planned_s, sent_s=None, ended_s=time.monotonic())
        failure = Failure(kind="not_sent", error=reason)
        return replace(shot(course, ask, moments, Heard(failure=failure)), took_ms=None)

    def _asker(self, level: int) -> HostRequests:
        nonce = f"{self._nonce}{level}"
        return HostRequests(self._plan, self._setting.profile, model=self._model, nonce=nonce)

    def _requests(self, concurrency: int) -> int | None:
        return requests_of(self._plan, concurrency) if self._plan.levels else self._plan.requests

    def _concurrency(self, level: int) -> int:
        return self._plan.levels[level] if self._plan.levels else self._plan.concurrency

    def _widest(self) -> int:
        return max(self._plan.levels or (self._plan.concurrency,))

    def _course(self, concurrency: int | None) -> ShotContext:
        return ShotContext(
            run=self._setting.run,
            name=self.host.name,
            url=self.host.url,
            concurrency=concurrency,
            wall_offset_s=self._setting.wall_offset_s,
        )


@asynccontextmanager
async def crew() -> AsyncIterator[asyncio.TaskGroup]:
    """Tasks that end together; the first one's failure stops the others and is raised itself, not in a group."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


def _all_late(shots: Sequence[Shot]) -> bool:
    return bool(shots) and all(shot.error_kind == "timeout" for shot in shots)


def _still(earlier: EngineNumbers, later: EngineNumbers) -> bool:
    """Nothing is under way and nothing was counted between two looks."""
    idle = not later.running and not later.waiting
    return idle and (earlier.requests_total, earlier.generation_tokens_total) == (
        later.requests_total,
        later.generation_tokens_total,
    )


def _queue_only(numbers: EngineNumbers) -> EngineNumbers:
    """Two hours of looks a second must not keep two hours of histograms."""
    return EngineNumbers(
        engine=numbers.engine,
        dialect=numbers.dialect,
        running=numbers.running,
        waiting=numbers.waiting,
        preemptions_total=numbers.preemptions_total,
    )
