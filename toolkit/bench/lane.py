"""One host's part in a run: made ready, warmed up, asked, counted. It owns the waiting, its client the network.

Lanes share nothing: a host that hangs holds its own requests only, and what it could not be sent is charged to it.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count

from toolkit.bench.asks import Ask, Asker
from toolkit.bench.client import HostClient, PageError
from toolkit.bench.counters import ledger
from toolkit.bench.models import choice
from toolkit.bench.plan import Plan
from toolkit.bench.schedule import requests_of, send_times
from toolkit.bench.shots import Course, Failure, Heard, Moments, shot
from toolkit.dialects import EngineNumbers
from toolkit.profiles import Profile
from toolkit.records import Ledger, ServedModel, Shot

LOOK_EVERY_S = 1.0
"""How often a host's queue is looked at during the load: 1 ms of CPU for a vLLM page of 47 KB."""
SETTLE_S = 3.0
SETTLE_LOOK_S = 0.1
"""After the last answer the counters may lag a step; somebody else's requests may never end."""
MOST_READY_CONNECTIONS = 64
LEVEL_SLOTS = 1_000_000
"""Slots of a sweep's levels do not overlap, so a slot is one request."""
PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
"""After a failure, when the plan counts time and not requests: a host that refuses at once must not be hammered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is the same for all lanes of a run."""

    run: str
    plan: Plan
    profile: Profile
    model: str | None
    """What the command line asks for; None: what each host lists."""
    wall_offset_s: float


class Lane:
    """One host in one run; `shots` and `ledger` are what came of it."""

    def __init__(
        self, client: HostClient, setting: Setting, nonce: str, take: Callable[[Shot], None]
    ) -> None:
        """`nonce` is unlike any other lane's and run's; `take` gets each shot once it is over."""
        self.client = client
        self.host = client.host
        self.shots: list[Shot] = []
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

    async def prepare(self) -> None:
        """Learn the model, the round trip and the counters, and have connections ready."""
        try:
            self._models = await self.client.models()
        except PageError as error:
            if not error.answered:
                self.error = str(error)
                return
        wanted = self._setting.model
        chosen = choice(self._models, listed=self.host.model, wanted=wanted)
        if chosen.model is None:
            self.error = chosen.error
            self.not_served = wanted is not None and bool(self._models)
            return
        self._model = chosen.model
        self._rtt_ms = await self.client.rtt_ms()
        await self._read_before()
        widest = max(self._plan.levels or (self._plan.concurrency,))
        await self.client.open_connections(min(widest, MOST_READY_CONNECTIONS))

    async def warm_up(self) -> None:
        """Send the uncounted requests, as many at once as the measured ones."""
        if self.error is None and self._plan.warmup:
            asker = self._asker(0)
            numbers = iter(range(self._plan.warmup))
            course = self._course(self._plan.concurrency)
            await self._at_once(
                self._plan.concurrency,
                lambda: self._one_after_another(course, (asker.warmup(n) for n in numbers)),
            )

    async def measure(self, level: int, began_s: float) -> None:
        """Run one level of the plan, from the moment `began_s` on; `level` counts from 0."""
        asker, slots = self._asker(level), count(level * LEVEL_SLOTS)
        if self.error is not None:
            self._charge(asker, slots, level, began_s, self.error)
            return
        looking = asyncio.create_task(self._look_often())
        try:
            await asyncio.sleep(max(0.0, began_s - time.monotonic()))
            if self._plan.rate:
                await self._open_loop(asker, slots, began_s)
            else:
                await self._closed_loop(asker, slots, level, began_s)
        finally:
            looking.cancel()

    async def finish(self) -> None:
        """Read the counters once they stand still."""
        if self.error is not None or self._before is None:
            return
        with suppress(PageError):
            self._models_after = await self.client.models()
        end_s = time.monotonic() + SETTLE_S
        try:
            self._after = await self.client.numbers()
            while time.monotonic() < end_s:
                await asyncio.sleep(SETTLE_LOOK_S)
                earlier, self._after = self._after, await self.client.numbers()
                if _still(earlier, self._after):
                    break
            self._no_counters = None
        except PageError as error:
            self._after, self._no_counters = None, str(error)

    # --- inside a level ----------------------------------------------------------------------------

    async def _closed_loop(
        self, asker: Asker, slots: Iterator[int], level: int, began_s: float
    ) -> None:
        """Keep a fixed number of requests under way, each leaving when another's answer is over."""
        concurrency = self._concurrency(level)
        requests = self._requests(concurrency)
        last = None if requests is None else level * LEVEL_SLOTS + requests
        duration_s = self._plan.duration_s

        def asks() -> Iterator[Ask]:
            for slot in slots:
                late = duration_s is not None and time.monotonic() >= began_s + duration_s
                if late or (last is not None and slot >= last):
                    return
                yield asker.next(slot)

        course, shared = self._course(concurrency), asks()
        await self._at_once(concurrency, lambda: self._one_after_another(course, shared, asker))

    async def _one_after_another(
        self, course: Course, asks: Iterator[Ask], asker: Asker | None = None
    ) -> None:
        failures = 0
        for ask in asks:
            done = await self._send(course, ask, time.monotonic(), asker)
            failures = 0 if done.ok else failures + 1
            if failures and self._plan.duration_s is not None:
                await asyncio.sleep(min(LONGEST_PAUSE_S, PAUSE_S * 2 ** min(failures - 1, 10)))

    async def _open_loop(self, asker: Asker, slots: Iterator[int], began_s: float) -> None:
        """Send on time whatever the answers take; at most `concurrency` are under way."""
        course, places = self._course(None), asyncio.Semaphore(self._plan.concurrency)
        async with asyncio.TaskGroup() as sending:
            for slot, offset_s in zip(slots, send_times(self._plan), strict=False):
                planned_s = began_s + offset_s
                # also when late: what was planned before must get its turn
                await asyncio.sleep(max(0.0, planned_s - time.monotonic()))
                ask = asker.next(slot)
                sending.create_task(self._when_there_is_room(course, ask, planned_s, places, asker))

    async def _when_there_is_room(
        self, course: Course, ask: Ask, planned_s: float, places: asyncio.Semaphore, asker: Asker
    ) -> None:
        try:
            async with asyncio.timeout(planned_s + self._plan.timeout_s - time.monotonic()):
                await places.acquire()
        except TimeoutError:
            waited = (
                f"{self._plan.concurrency} requests were under way for {self._plan.timeout_s:g} s"
            )
            self._add(self._unsent(course, ask, planned_s, waited))
            return
        try:
            await self._send(course, ask, planned_s, asker)
        finally:
            places.release()

    async def _send(self, course: Course, ask: Ask, planned_s: float, asker: Asker | None) -> Shot:
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
        async with asyncio.TaskGroup() as workers:
            for _ in range(width):
                workers.create_task(work())

    async def _look_often(self) -> None:
        """See how many wait inside the server, now and then."""
        while self._before is not None:
            await asyncio.sleep(LOOK_EVERY_S)
            with suppress(PageError):
                self._seen.append(_queue_only(await self.client.numbers()))

    # --- small things ------------------------------------------------------------------------------

    async def _read_before(self) -> None:
        try:
            self._before = await self.client.numbers()
        except PageError as error:
            self._no_counters = str(error)

    def _charge(
        self, asker: Asker, slots: Iterator[int], level: int, began_s: float, reason: str
    ) -> None:
        """Charge a host that cannot be asked with every request that was planned for it."""
        if self._plan.rate:
            offsets: Sequence[float] = list(send_times(self._plan))
        else:
            concurrency = self._concurrency(level)
            offsets = [0.0] * (self._requests(concurrency) or concurrency)
        course = self._course(None if self._plan.rate else self._concurrency(level))
        for slot, offset_s in zip(slots, offsets, strict=False):
            self._add(self._unsent(course, asker.next(slot), began_s + offset_s, reason))

    def _unsent(self, course: Course, ask: Ask, planned_s: float, reason: str) -> Shot:
        moments = Moments(planned_s=planned_s, sent_s=None, ended_s=time.monotonic())
        failure = Failure(kind="not_sent", error=reason)
        return replace(shot(course, ask, moments, Heard(failure=failure)), took_ms=None)

    def _asker(self, level: int) -> Asker:
        nonce = f"{self._nonce}{level}"
        return Asker(self._plan, self._setting.profile, model=self._model, nonce=nonce)

    def _requests(self, concurrency: int) -> int | None:
        return requests_of(self._plan, concurrency) if self._plan.levels else self._plan.requests

    def _concurrency(self, level: int) -> int:
        return self._plan.levels[level] if self._plan.levels else self._plan.concurrency

    def _course(self, concurrency: int | None) -> Course:
        return Course(
            run=self._setting.run,
            name=self.host.name,
            url=self.host.url,
            concurrency=concurrency,
            wall_offset_s=self._setting.wall_offset_s,
        )


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
