"""One host's part in a run: made ready, warmed up, asked, counted. It owns the waiting, its client the network.

Host runners share nothing: a host that hangs holds its own requests only, and what it could not be sent is charged to it.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import count, islice, repeat

from toolkit.bench.client import HostClient, PageError
from toolkit.bench.counters import with_counters
from toolkit.bench.plan import BenchPlan, requests_of, send_times
from toolkit.bench.random_prompts import (
    CALIBRATION_S,
    Lengths,
    NotCountedError,
    Words,
    calibration,
    read_lengths,
)
from toolkit.bench.request_record import Failure, RequestContext, Response, request_record
from toolkit.bench.requests import HostRequests, PlannedRequest, choose_model
from toolkit.metrics.dialects import EngineNumbers
from toolkit.profiles import Profile
from toolkit.records import Ledger, RequestRecord, ServedModel
from toolkit.stats import Sketch

SAMPLE_EVERY_S = 1.0
"""How often a host's queue is read during the load: 0.7 ms of CPU for a vLLM page of 56 KB."""
MOST_SAMPLE_BYTES = 2**20
"""A longer page is not read meanwhile: that would delay the requests to all hosts."""
SETTLE_S = 3.0
SETTLE_SAMPLE_S = 0.1
"""After the last answer the counters may lag a step; somebody else's requests may never end."""
COUNT_PAUSES_S = (0.25, 1.0)
"""Before a prompt whose tokens were not counted is asked for again."""
CONNECT_S = 1.0
"""For all ready connections of a host; while the others wait, theirs grow old."""
MOST_READY_CONNECTIONS = 512
CHARGES_AT_ONCE, CHARGE_PAUSE_S = 10, 0.005
LEVEL_SLOTS = 1_000_000
"""Slots of a sweep's levels do not overlap, so a slot is one request."""
PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
"""After the second failure in a row, doubled with each: a host that refuses at once must not be hammered, and the
work of it must not delay the other hosts' streams."""


class HostRunner:
    """One host in one run; `records` and `ledger` are what came of it."""

    def __init__(
        self,
        client: HostClient,
        plan: BenchPlan,
        profile: Profile,
        context: RequestContext,
        *,
        nonce: str,
        model: str | None,
        on_record: Callable[[RequestRecord], None],
        words: Words | None = None,
    ) -> None:
        """`nonce` is unlike any other host's and run's; `model` is what the command line asks for, None: what the host lists.

        `on_record` gets each request's record once it is over. `words`: what prompts of a wanted length are made of; None:
        the host is asked.
        """
        self.client = client
        self.host = client.host
        self.records: list[RequestRecord] = []
        self.lag = Sketch()
        """How late this machine was with what an open loop planned, in milliseconds."""
        self.in_flight = 0
        self.error: str | None = None
        """Why this host cannot be asked at all."""
        self.not_served = False
        """The one reason is that the model of the command line is not served here."""
        self.before: EngineNumbers | None = None
        """What its `/metrics` said before the load."""
        self._plan, self._profile, self._context = plan, profile, context
        self._nonce, self._wanted, self._on_record = nonce, model, on_record
        self.words = words
        """What prompts of a wanted length are made of here."""
        self._model = "unknown"
        self._after: EngineNumbers | None = None
        self._no_counters: str | None = "the run was stopped before they were read"
        self._samples: list[EngineNumbers] = []
        self._models: tuple[ServedModel, ...] = ()
        self._models_after: tuple[ServedModel, ...] = ()
        self._rtt_ms: float | None = None

    @property
    def ledger(self) -> Ledger:
        """What the host's counters moved by, as far as they were read."""
        known = Ledger(
            run=self._context.run,
            name=self.host.name,
            url=self.host.url,
            error=self._no_counters,
            rtt_ms=self._rtt_ms,
            models_before=self._models,
            models_after=self._models_after,
        )
        return with_counters(known, self.before, self._after, self._samples)

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
        chosen = choose_model(self._models, listed=self.host.model, wanted=self._wanted)
        if chosen.model is None:
            self.error = missing or chosen.error
            self.not_served = self._wanted is not None and bool(self._models)
        else:
            self._model = chosen.model

    async def prepare(self) -> None:
        """Learn how to make prompts of a wanted length, the round trip, and the counters as they stand before the load."""
        lengths = read_lengths(self._plan.input_len or "")
        if self.error is None and lengths and self.words is None:
            await self._learn_words(lengths)
        if self.error is None:
            self._rtt_ms = await self.client.rtt_ms()
            try:
                self.before = await self.client.numbers()
            except PageError as error:
                self._no_counters = str(error)

    async def _learn_words(self, lengths: Lengths) -> None:
        steps, end_s = calibration(lengths), time.monotonic() + CALIBRATION_S

        async def counted(text: str) -> int | None:
            # one failed call among many shall not make all prompts estimates
            for pause_s in COUNT_PAUSES_S:
                with suppress(NotCountedError):
                    return await self.client.prompt_tokens(self._model, text)
                await asyncio.sleep(pause_s)
            return await self.client.prompt_tokens(self._model, text)

        try:
            text = next(steps)
            while True:
                try:
                    count = await counted(text) if time.monotonic() < end_s else None
                except NotCountedError as error:
                    text = steps.throw(error)
                else:
                    text = steps.send(count)
        except StopIteration as end:
            self.words = end.value
        except NotCountedError:
            self.words = Words()
        assert self.words is not None, "a calibration ends with words"
        self.error = self.words.refusal(lengths)

    async def warm_up(self) -> None:
        """Send the uncounted requests, as many at once as the measured ones; after a failure no more of them.

        All hosts wait for the slowest here: one that hangs shall cost a single timeout.
        """
        if self.error is not None or not self._plan.warmup:
            return
        width = max(self._plan.concurrencies)
        planned = map(self._requests(0).warmup, range(self._plan.warmup))
        context = replace(self._context, concurrency=width)
        await self._at_once(context, planned, min(width, self._plan.warmup), gives_up=True)

    async def connect(self, level: int) -> None:
        """Have connections ready, so that no first request pays for its handshake."""
        if self.error is None:
            width = min(self._plan.concurrencies[level], MOST_READY_CONNECTIONS)
            with suppress(TimeoutError):
                async with asyncio.timeout(CONNECT_S):
                    await self.client.open_connections(width)

    async def measure(self, level: int, began_s: float) -> None:
        """Run one level of the plan, from the moment `began_s` on; `level` counts from 0."""
        plan, requests = self._plan, self._requests(level)
        concurrency = plan.concurrencies[level]
        context = replace(self._context, concurrency=None if plan.rate else concurrency)
        slots = count(level * LEVEL_SLOTS)
        if self.error is not None:
            charged = (requests.next(slot, is_sent=False) for slot in slots)
            await self._charge(self.error, context, charged, began_s)
            return

        def due() -> Iterator[PlannedRequest]:
            """Of a closed loop, in which each leaves when another's answer is over."""
            for slot in islice(slots, requests_of(plan, concurrency)):
                if plan.duration_s is not None and time.monotonic() >= began_s + plan.duration_s:
                    return
                yield requests.next(slot)

        first = len(self.records)
        async with task_group() as tasks:
            sampling = tasks.create_task(self._sample_queue())
            await asyncio.sleep(max(0.0, began_s - time.monotonic()))
            if plan.rate:
                await self._open_loop(context, requests, slots, began_s)
            else:
                await self._at_once(context, due(), concurrency, requests)
            sampling.cancel()
        kinds = {record.error_kind for record in self.records[first:]}
        if level + 1 < len(self._plan.levels) and kinds == {"timeout"}:
            # further levels would take as long again, and all hosts wait for the slowest
            self.error = f"it answered nothing within {self._plan.timeout_s:g} s a request"

    async def finish(self) -> None:
        """Read the models again, and the counters once nothing is under way and nothing more is counted."""
        if not self._models and self.before is None:
            return
        with suppress(PageError):
            self._models_after = await self.client.models()
        if self.before is None:
            return
        end_s = time.monotonic() + SETTLE_S
        try:
            after, is_still = await self.client.numbers(), False
            while not is_still and time.monotonic() < end_s:
                await asyncio.sleep(SETTLE_SAMPLE_S)
                earlier, after = after, await self.client.numbers()
                is_still = (
                    not after.running
                    and not after.waiting
                    and earlier.requests_total == after.requests_total
                    and earlier.generation_tokens_total == after.generation_tokens_total
                )
            self._after, self._no_counters = after, None
        except PageError as error:
            self._no_counters = str(error)

    # --- inside a level ----------------------------------------------------------------------------

    async def _at_once(
        self,
        context: RequestContext,
        planned: Iterator[PlannedRequest],
        width: int,
        requests: HostRequests | None = None,
        *,
        gives_up: bool = False,
    ) -> None:
        """Keep so many under way until all were sent, or, where it gives up, until one failed; `requests` made them."""

        async def send_one_after_another() -> None:
            failures = 0
            for request in planned:
                record = await self._send(context, request, time.monotonic(), requests)
                failures = 0 if record.ok else failures + 1
                if failures and gives_up:
                    return
                if failures > 1:
                    await asyncio.sleep(min(LONGEST_PAUSE_S, PAUSE_S * 2 ** min(failures - 2, 10)))

        async with task_group() as workers:
            for _ in range(width):
                workers.create_task(send_one_after_another())
                # each request is on its way before the next one's clock starts
                await asyncio.sleep(0)

    async def _open_loop(
        self, context: RequestContext, requests: HostRequests, slots: Iterator[int], began_s: float
    ) -> None:
        """Send on time whatever the answers take; at most `concurrency` are under way."""
        plan, room = self._plan, asyncio.Semaphore(self._plan.concurrency)

        async def send_when_there_is_room(request: PlannedRequest, planned_s: float) -> None:
            # what follows is the host's doing: it holds all places
            self.lag.add(max(0.0, time.monotonic() - planned_s) * 1000)
            try:
                async with asyncio.timeout(planned_s + plan.timeout_s - time.monotonic()):
                    await room.acquire()
            except TimeoutError:
                full = f"{plan.concurrency} requests were under way for {plan.timeout_s:g} s"
                self._add_not_sent(context, request, planned_s, full)
                return
            try:
                await self._send(context, request, planned_s, requests)
            finally:
                room.release()

        async with task_group() as sending:
            for offset_s, slot in zip(send_times(plan), slots, strict=False):
                planned_s = began_s + offset_s
                # also when late: what was planned before must get its turn
                await asyncio.sleep(max(0.0, planned_s - time.monotonic()))
                sending.create_task(send_when_there_is_room(requests.next(slot), planned_s))

    async def _charge(
        self,
        error: str,
        context: RequestContext,
        requests: Iterator[PlannedRequest],
        began_s: float,
    ) -> None:
        """Charge a host that cannot be asked with every request that was planned for it, when it was due.

        A few at a time: a hundred thousand at once would hold up the other hosts' streams for seconds.
        """
        if context.concurrency is None:
            offsets = send_times(self._plan)
        else:
            # a duration plans no number of requests, but a first wave for sure
            planned = requests_of(self._plan, context.concurrency) or context.concurrency
            offsets = repeat(0.0, planned)
        for number, offset_s in enumerate(offsets, start=1):
            planned_s = began_s + offset_s
            await asyncio.sleep(max(0.0, planned_s - time.monotonic()))
            self._add_not_sent(context, next(requests), planned_s, error)
            if not self._plan.rate and number % CHARGES_AT_ONCE == 0:
                await asyncio.sleep(CHARGE_PAUSE_S)

    async def _sample_queue(self) -> None:
        """See how many wait inside the server, now and then; the hosts' samples do not fall together."""
        await asyncio.sleep(random.random() * SAMPLE_EVERY_S)  # noqa: S311 (no secret)
        while self.before is not None:
            with suppress(PageError):
                numbers = await self.client.numbers(most_bytes=MOST_SAMPLE_BYTES)
                # two hours of a sample a second must not keep two hours of histograms
                queue = EngineNumbers(
                    engine=numbers.engine,
                    dialect=numbers.dialect,
                    running=numbers.running,
                    waiting=numbers.waiting,
                    preemptions_total=numbers.preemptions_total,
                )
                self._samples.append(queue)
            await asyncio.sleep(SAMPLE_EVERY_S)

    async def _send(
        self,
        context: RequestContext,
        request: PlannedRequest,
        planned_s: float,
        requests: HostRequests | None = None,
    ) -> RequestRecord:
        """Send a request and take its record; `requests` learn what was answered, so that it may have a twin."""
        self.in_flight += 1
        try:
            record = await self.client.send(context, request, planned_s)
        finally:
            self.in_flight -= 1
        if requests and record.ok and record.kind == "unique":
            requests.answered(record.slot)
        self._add(record)
        return record

    def _add_not_sent(
        self, context: RequestContext, request: PlannedRequest, planned_s: float, reason: str
    ) -> None:
        response = Response(failure=Failure(kind="not_sent", error=reason))
        self._add(
            request_record(
                context, request, response, planned_s=planned_s, sent_s=None, ended_s=None
            )
        )

    def _add(self, record: RequestRecord) -> None:
        self.records.append(record)
        self._on_record(record)

    def _requests(self, level: int) -> HostRequests:
        nonce = f"{self._nonce}{level}"
        return HostRequests(
            self._plan, self._profile, model=self._model, nonce=nonce, words=self.words
        )


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Tasks that end together; the first one's failure stops the others and is raised itself, not in a group."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
