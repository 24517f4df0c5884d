"""What a simulated server is between its start and its end: engines that run in real time, counters, response cache, faults.

It knows nothing of HTTP; `app` speaks for it. A restarted server gets a new ServerState, and all counters with it.
"""

import asyncio
import random
import time
import zlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal

from toolkit.sim import text
from toolkit.sim.answers import ENGINE_DEAD, AnswerFrame, Token
from toolkit.sim.engine import EngineCore, EngineRequest, StepResult
from toolkit.sim.metrics_page import EngineMetrics, HttpMetrics, page, process_page
from toolkit.sim.presets import VERSIONS, Setup
from toolkit.sim.validation import TextRequest

Fault = Literal["error", "cut", "stream_error"]

CACHE_ENTRIES = 10_000
"""The oldest answers leave a full response cache."""

LATEST_FAULT = 8
"""An injected fault comes within so many tokens."""

MOST_BEHIND_S = 0.05
"""A sleep ends up to a millisecond late; steps catch up on that, but a stalled process does not race."""

LOAD_PROMPT_TOKENS = 17
"""With the eight of the chat template 25, as the contest's clients sent."""
LOAD_OUTPUT_TOKENS = 256
"""As the contest's clients asked for."""


NOT_THE_MODEL = set(
    "later host port dialect api_key engines stats load startup_s cache_header".split()
)
"""Settings that do not show in the fingerprint: two servers of one model have the same."""


class EngineFailedError(Exception):
    """The engine gave up on a request; the text is what the client gets to see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer on its way."""

    frame: AnswerFrame
    tokens: AsyncGenerator[list[Token], None]
    """In batches: whatever is ready is handed on together. Closing it early aborts the request."""
    from_cache: bool = False


class FrontCpu:
    """The one core of the API process, which requests get in the order of their arrival; the caller owns the clock."""

    def __init__(self) -> None:
        self.used_s = 0.0
        """CPU time that requests have cost so far, those in the queue included."""
        self._free_at = 0.0

    def through_at(self, now: float, cost_s: float) -> float:
        """Take a turn that costs so much; the moment at which it is over."""
        self._free_at = max(now, self._free_at) + cost_s
        self.used_s += cost_s
        return self._free_at

    def spent_s(self, now: float) -> float:
        """CPU time until now: a turn that is still to come has cost nothing yet."""
        return self.used_s - max(0.0, self._free_at - now)


class Core:
    """One engine core that runs in real time, and its counters."""

    def __init__(self, setup: Setup, index: int, created_s: float) -> None:
        # each engine rolls dice of its own
        self.engine = EngineCore(setup.model_copy(update={"seed": setup.seed + index}))
        self.metrics = EngineMetrics(setup.dialect, setup.max_model_len, created_s)
        self._wake = asyncio.Event()

    @property
    def load(self) -> int:
        """How busy it is, by vLLM's rule for choosing among data-parallel engines."""
        return 4 * self.engine.waiting + self.engine.running

    def submit(self, request: EngineRequest) -> None:
        """Queue a request; its `on_progress` is called with each token, and with None when the engine dies."""
        self.engine.submit(request)
        self._wake.set()

    async def run(self) -> None:
        """Step until cancelled; sleep without a tick while there is nothing to do."""
        due = time.monotonic()
        while True:
            now = time.monotonic()
            step = self.engine.plan(now)
            if step is None:
                self._wake.clear()
                await self._wake.wait()
                due = time.monotonic()
                continue
            # from when the last step should have ended, not from when it did: lateness does not add up
            due = max(due, now - MOST_BEHIND_S) + step.duration_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            results = self.engine.finish(step, time.monotonic())
            self.metrics.count(self.engine, results)
            for each in results:
                if each.request.on_progress:
                    each.request.on_progress(each)


class ServerState:
    """One server process, from its start to its end."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.dead = False
        """True once the engine is lost."""
        self.started_s = time.time()
        self._cores = [Core(setup, index, self.started_s) for index in range(setup.engines)]
        about = setup.model_dump(exclude=NOT_THE_MODEL)
        checksum = zlib.crc32(repr(about).encode())
        self.fingerprint = f"vllm-{VERSIONS[setup.dialect]}-{checksum:08x}"
        """What vLLM calls itself in answers: version and a hash of its configuration."""
        self.http = HttpMetrics(setup.dialect, self.started_s)
        self._cpu = FrontCpu()
        self._dice = random.Random(setup.seed)
        self._cached: dict[str, tuple[AnswerFrame, list[Token]]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._load_requests = 0

    def start(self) -> None:
        """Start the engines and the synthetic clients."""
        self._tasks = [asyncio.create_task(core.run()) for core in self._cores]
        for _ in range(self.setup.load):
            self._submit_load()

    async def stop(self) -> None:
        """End the engines; whatever broke in them is raised here."""
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    def kill_engine(self) -> None:
        """Lose the engine: those who wait hear of it, `/health` turns 503."""
        self.dead = True
        for task in self._tasks:
            task.cancel()
        for core in self._cores:
            for request in core.engine.alive.values():
                if request.on_progress:
                    request.on_progress(None)

    def page(self) -> bytes:
        """Write `/metrics` as of now."""
        process = process_page(self.started_s, self._cpu.spent_s(time.monotonic()))
        engines = [(core.engine, core.metrics) for core in self._cores]
        return page(self.setup, engines, self.http, process)

    def fault(self) -> Fault | None:
        """Roll the dice over one request."""
        rolled = self._dice.random()
        shares: tuple[tuple[Fault, float], ...] = (
            ("error", self.setup.error_share),
            ("cut", self.setup.cut_share),
            ("stream_error", self.setup.stream_error_share),
        )
        for name, share in shares:
            if rolled < share:
                return name
            rolled -= share
        return None

    def fault_token(self) -> int:
        """Choose the token at which a fault comes."""
        return self._dice.randint(1, LATEST_FAULT)

    def new_id(self) -> str:
        """Draw sixteen hexadecimal digits."""
        return f"{self._dice.getrandbits(64):016x}"

    def answer(self, request: TextRequest) -> Answer:
        """Begin an answer: from the response cache where there is one, else from the engine."""
        setup = self.setup
        known = self._cached.get(request.cache_key)  # stays empty without a response cache
        if known:
            return Answer(frame=known[0], tokens=self._again(known[1]), from_cache=True)
        frame = AnswerFrame(
            kind=request.kind,
            id=("chatcmpl-" if request.kind == "chat" else "cmpl-") + self.new_id(),
            created_s=int(time.time()),
            model=setup.model,
            fingerprint=self.fingerprint,
            prompt_tokens=len(request.prompt_ids),
        )
        return Answer(frame=frame, tokens=self._generate(frame, request))

    async def _again(self, tokens: list[Token]) -> AsyncGenerator[list[Token], None]:
        await asyncio.sleep(self.setup.cache_hit_s * self.setup.time_scale)
        yield tokens

    async def _generate(
        self, frame: AnswerFrame, request: TextRequest
    ) -> AsyncGenerator[list[Token], None]:
        """Have the least busy engine say it; whoever leaves early aborts the request there."""
        setup, fields = self.setup, request.fields
        if setup.cpu_s_per_request:  # the API process must get to it first
            now = time.monotonic()
            cost_s = setup.cpu_s_per_request * setup.time_scale
            await asyncio.sleep(self._cpu.through_at(now, cost_s) - now)
        max_tokens = 1 if setup.first_token_only else request.max_tokens
        salt = 0  # at temperature 0 equal prompts get equal answers
        if fields.temperature != 0:
            salt = 1 + (self._dice.getrandbits(60) if fields.seed is None else fields.seed)
        pieces, output_ids = text.answer(
            request.prompt_ids,
            max_tokens,
            seed=setup.seed,
            salt=salt,
            min_tokens=0 if setup.first_token_only else fields.min_tokens or 0,
            ignore_eos=bool(fields.ignore_eos),
        )
        results: list[StepResult | None] = []
        news = asyncio.Event()

        def on_progress(result: StepResult | None) -> None:
            results.append(result)
            # nobody sees the tokens of a whole answer one by one: its reader wakes at the end only
            if fields.stream or result is None or result.reason:
                news.set()

        core = min(self._cores, key=lambda each: each.load)
        core.submit(
            EngineRequest(
                id=frame.id,
                prompt_ids=request.prompt_ids,
                max_tokens=max_tokens,
                output_ids=output_ids,
                arrived_at=time.monotonic(),
                on_progress=on_progress,
            )
        )
        said: list[Token] = []
        try:
            while not said or said[-1].finish_reason is None:
                await news.wait()
                news.clear()
                batch: list[Token] = []
                for each in results:
                    if each is None or each.reason == "error":
                        if batch:
                            yield batch
                        raise EngineFailedError((each and each.request.error) or ENGINE_DEAD)
                    reason = "stop" if each.reason and setup.first_token_only else each.reason
                    piece = pieces[each.output_tokens - 1]
                    batch.append(Token(piece, each.output_tokens, reason))
                results.clear()
                said += batch
                yield batch
        finally:
            core.engine.abort(frame.id, time.monotonic())
        if setup.response_cache:
            self._cached[request.cache_key] = (frame, said)
            if len(self._cached) > CACHE_ENTRIES:
                del self._cached[next(iter(self._cached))]

    def _submit_load(self) -> None:
        """Ask the next question of a synthetic client straight to an engine: foreign traffic."""
        self._load_requests += 1
        words = text.pieces((self._load_requests, self.setup.seed), LOAD_PROMPT_TOKENS)
        prompt_ids = text.chat_ids([("user", "".join(words))])
        most = max(1, min(LOAD_OUTPUT_TOKENS, self.setup.max_model_len - len(prompt_ids)))
        _, output_ids = text.answer(prompt_ids, most, seed=self.setup.seed, salt=0, ignore_eos=True)
        core = min(self._cores, key=lambda each: each.load)
        core.submit(
            EngineRequest(
                id=f"load-{self._load_requests}",
                prompt_ids=prompt_ids,
                max_tokens=most,
                output_ids=output_ids,
                arrived_at=time.monotonic(),
                on_progress=self._on_load_progress,
            )
        )

    def _on_load_progress(self, result: StepResult | None) -> None:
        # a request that can never fit ends at once: to ask again would spin
        if result and result.reason and result.reason != "error":
            self._submit_load()
