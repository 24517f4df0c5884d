"""One life of a simulated server process, from its start to its end: engines, counters, cache, mishaps.

It knows nothing of HTTP; `app` speaks for it. A restarted server gets a new Life, and all counters with it.
"""

import asyncio
import math
import random
import time
import zlib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, fields, replace
from types import NoneType
from typing import Any, Literal, get_args

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    Metric,
    PlatformCollector,
    ProcessCollector,
)

from toolkit.sim.answers import ENGINE_DEAD, Reply, Token
from toolkit.sim.checks import Ask, Limits
from toolkit.sim.drive import Clients, Core
from toolkit.sim.engine import EngineConfig, Progress
from toolkit.sim.exposition import Served, page
from toolkit.sim.families import VERSIONS, Dialect, edges
from toolkit.sim.front_cpu import FrontCpu
from toolkit.sim.meter import HttpMeter
from toolkit.sim.personalities import Front, Personality, personality
from toolkit.sim.speech import Speech, speech

Mishap = Literal["error", "cut", "stream_error"]

Tokens = AsyncGenerator[list[Token], None]
"""In batches: whatever is ready is handed on together. Closing it early aborts the request."""

CACHE_ENTRIES = 10_000
"""The oldest answers leave a full response cache."""

LATEST_MISHAP = 8
"""A mishap happens within so many tokens."""

_PROCESS = CollectorRegistry()
GCCollector(_PROCESS)
PlatformCollector(_PROCESS)
ProcessCollector(registry=_PROCESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How one simulated server is started. Raises ValueError on what cannot be."""

    personality: Personality
    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""
    dialect: Dialect = "v1"
    api_key: str | None = field(default=None, repr=False)
    engines: int = 1
    """Data-parallel engine cores behind the one address."""
    stats: bool = True
    """False: as with `--disable-log-stats`."""
    load: int = 0
    """Synthetic clients that ask the engines straight."""
    startup_s: float = 0.0
    """Refuse connections so long after the start; real seconds, whatever the time scale."""
    cache_header: bool = False
    """Tell `x-cache: HIT` or `MISS`, as an honest response cache would."""

    def __post_init__(self) -> None:
        if self.engines < 1 or (self.dialect == "v0" and self.engines > 1):
            raise ValueError(
                "`engines` must be at least 1"
                + (", and exactly 1 in dialect `v0`" if self.dialect == "v0" else "")
            )
        if self.load < 0 or self.startup_s < 0:
            raise ValueError("`load` and `startup_s` must not be negative")
        if not self.host.strip() or not 0 <= self.port <= 65535:
            raise ValueError(f"`{self.host}:{self.port}` is no address to listen on")


def setup_for(name: str = "gptq-int4", /, **changes: Any) -> Setup:
    """Take one of the cast; changes are fields of Setup, or else of the personality and its parts."""
    own = {each.name for each in fields(Setup)} - {"personality"}
    return Setup(
        personality=personality(name, **{k: v for k, v in changes.items() if k not in own}),
        **{key: value for key, value in changes.items() if key in own},
    )


_NOT_SETTINGS = "personality name summary engine front later host port api_key dialect load".split()
"""What makes a personality one, and what the command line has options for."""

SETTINGS: dict[str, Any] = {
    field.name: field.type
    for record in (EngineConfig, Front, Personality, Setup)
    for field in fields(record)
    if field.name not in _NOT_SETTINGS
}
"""Name and type of each."""


def read_setting(name: str, text: str) -> Any:
    """Read the value of one of SETTINGS. Raises ValueError on text of the wrong kind."""
    kinds = get_args(SETTINGS[name]) or (SETTINGS[name],)
    if NoneType in kinds and text.lower() in ("none", "null"):
        return None
    read, words = _READERS[kinds[0]]
    try:
        return read(text)
    except (ValueError, KeyError) as error:
        raise ValueError(f"`{name}` must be {words}, not `{text}`") from error


def _truth(text: str) -> bool:
    return {"true": True, "yes": True, "false": False, "no": False}[text.lower()]


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


_READERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    bool: (_truth, "true or false"),
    int: (int, "a whole number"),
    float: (_number, "a number"),
    str: (str, "a word"),
}


class EngineFailedError(Exception):
    """The engine gave up on a request; the text is what the client is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """One answer on its way."""

    reply: Reply
    tokens: Tokens
    from_cache: bool


@dataclass(frozen=True, slots=True)
class _Memory:
    """A complete answer that the response cache keeps."""

    reply: Reply
    tokens: list[Token]


class _Ear:
    """What one request heard from the engine and nobody has read yet."""

    def __init__(self, *, patient: bool) -> None:
        self._patient = patient
        """Wake the reader at the end only: nobody sees the tokens of a whole answer one by one."""
        self._heard: list[Progress | None] = []
        self._wake = asyncio.Event()

    def hear(self, progress: Progress | None) -> None:
        """Take what the engine says."""
        self._heard.append(progress)
        if not self._patient or progress is None or progress.finished:
            self._wake.set()

    async def news(self) -> list[Progress | None]:
        """Wait for news and take all there is."""
        await self._wake.wait()
        self._wake.clear()
        heard, self._heard = self._heard, []
        return heard


class Life:
    """One life of a server process."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.dead = False
        """True once the engine is lost."""
        self.started_s = time.time()
        config = setup.personality.engine
        self.limits = Limits(model=setup.personality.model, max_model_len=config.max_model_len)
        buckets = edges(setup.dialect, config.max_model_len)
        # each engine rolls dice of its own
        configs = [replace(config, seed=config.seed + index) for index in range(setup.engines)]
        self._cores = [Core(each, buckets, self.started_s) for each in configs]
        checksum = zlib.crc32(repr(setup.personality).encode())
        self.fingerprint = f"vllm-{VERSIONS[setup.dialect]}-{checksum:08x}"
        """What vLLM calls itself in answers: version and a hash of its configuration."""
        self.http = HttpMeter(created_s=self.started_s)
        self._cpu = FrontCpu()
        self._dice = random.Random(setup.personality.front.seed)
        self._memory: dict[str, _Memory] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def wall_s(self) -> float:
        """Seconds of the real world that a simulated second takes."""
        return self.setup.personality.engine.time_scale

    def start(self) -> None:
        """Start the engines and the synthetic clients."""
        self._tasks = [asyncio.create_task(core.run()) for core in self._cores]
        Clients(self._cores, self.setup.personality.engine.seed).start(self.setup.load)

    async def stop(self) -> None:
        """End the engines; whatever broke in them is raised here."""
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    def kill_engine(self) -> None:
        """Lose the engine: those who wait are told so, `/health` turns 503."""
        self.dead = True
        for task in self._tasks:
            task.cancel()
        for core in self._cores:
            core.die()

    def page(self) -> bytes:
        """Write `/metrics` as of now."""
        person = self.setup.personality
        served = Served(
            dialect=self.setup.dialect,
            model=person.model,
            gpu_memory_utilization=person.gpu_memory_utilization,
            cache_dtype=person.cache_dtype,
            stats=self.setup.stats,
        )
        cores = [(core.engine, core.meter) for core in self._cores]
        spent_s = self._cpu.spent_s(time.monotonic())
        return page(served, cores, self.http, _process(self.started_s, spent_s))

    def mishap(self) -> Mishap | None:
        """Roll the dice over one request."""
        front = self.setup.personality.front
        rolled = self._dice.random()
        for name, share in (
            ("error", front.error_share),
            ("cut", front.cut_share),
            ("stream_error", front.stream_error_share),
        ):
            if rolled < share:
                return name  # type: ignore[return-value] # mypy forgets the literals
            rolled -= share
        return None

    def mishap_token(self) -> int:
        """Choose the token at which a mishap happens."""
        return self._dice.randint(1, LATEST_MISHAP)

    def new_id(self) -> str:
        """Draw sixteen hexadecimal digits."""
        return f"{self._dice.getrandbits(64):016x}"

    def talk(self, ask: Ask) -> Talk:
        """Begin an answer: from memory where the front may, else from the engine."""
        front = self.setup.personality.front
        known = self._memory.get(ask.cache_key) if front.response_cache else None
        if known:
            tokens = self._remembered(known.tokens, front.cache_hit_s * self.wall_s)
            return Talk(reply=known.reply, tokens=tokens, from_cache=True)
        reply = Reply(
            kind=ask.kind,
            id=("chatcmpl-" if ask.kind == "chat" else "cmpl-") + self.new_id(),
            created_s=int(time.time()),
            model=self.setup.personality.model,
            fingerprint=self.fingerprint,
            prompt_tokens=len(ask.prompt_ids),
        )
        if front.first_token_only:
            tokens = _claimed(self._spoken(reply.id, replace(ask, max_tokens=1, min_tokens=0)))
        else:
            tokens = self._spoken(reply.id, ask)
        if front.response_cache:
            tokens = self._kept(ask.cache_key, reply, tokens)
        return Talk(reply=reply, tokens=tokens, from_cache=False)

    async def _spoken(self, request_id: str, ask: Ask) -> Tokens:
        """Have the least busy engine say it; whoever leaves early aborts the request there."""
        await self._turn()
        said = speech(ask, seed=self.setup.personality.engine.seed, salt=self._salt(ask))
        ear = _Ear(patient=not ask.stream)
        core = min(self._cores, key=lambda each: each.load)
        core.submit(request_id, ask, said, ear.hear)
        try:
            while True:
                tokens, end = _tokens(await ear.news(), said)
                if tokens:
                    yield tokens
                if isinstance(end, str):
                    raise EngineFailedError(end)
                if end:
                    return
        finally:
            core.abort(request_id)

    async def _turn(self) -> None:
        """Wait for the API process to get to a request."""
        cost_s = self.setup.personality.front.cpu_s_per_request * self.wall_s
        if cost_s:
            now = time.monotonic()
            await asyncio.sleep(self._cpu.through_at(now, cost_s) - now)

    def _salt(self, ask: Ask) -> int:
        """0 at temperature 0, so that equal prompts get equal answers; else the seed, or chance."""
        if ask.temperature == 0:
            return 0
        return 1 + (ask.seed if ask.seed is not None else self._dice.getrandbits(60))

    async def _remembered(self, tokens: list[Token], wait_s: float) -> Tokens:
        await asyncio.sleep(wait_s)
        yield tokens

    async def _kept(self, key: str, reply: Reply, tokens: Tokens) -> Tokens:
        """Pass the tokens on and remember the answer if it was complete."""
        kept: list[Token] = []
        async with aclosing(tokens):
            async for batch in tokens:
                kept += batch
                yield batch
        self._memory[key] = _Memory(reply, kept)
        if len(self._memory) > CACHE_ENTRIES:
            del self._memory[next(iter(self._memory))]


async def _claimed(tokens: Tokens) -> Tokens:
    """Call the answer complete, however short it was cut."""
    async with aclosing(tokens):
        async for batch in tokens:
            yield [
                replace(token, finish_reason="stop") if token.finish_reason else token
                for token in batch
            ]


def _tokens(
    news: Sequence[Progress | None], said: Speech
) -> tuple[list[Token], Literal[True] | str | None]:
    """Turn news into tokens; True after the last one, or why there will be no more."""
    tokens: list[Token] = []
    for each in news:
        if each is None:
            return tokens, ENGINE_DEAD
        if each.finished and each.finished.reason == "error":
            return tokens, each.finished.error or ENGINE_DEAD
        reason = each.finished.reason if each.finished else None
        piece = said.pieces[each.output_tokens - 1]
        tokens.append(Token(piece=piece, count=each.output_tokens, finish_reason=reason))
        if reason:
            return tokens, True
    return tokens, None


def _process(started_s: float, spent_s: float) -> list[Metric]:
    """This process's own figures, but the start of this life (a restart must show), and the CPU that it plays to use."""
    metrics = list(_PROCESS.collect())
    for metric in metrics:
        if metric.name == "process_start_time_seconds":
            metric.samples = [sample._replace(value=started_s) for sample in metric.samples]
        if metric.name == "process_cpu_seconds":
            metric.samples = [
                sample._replace(value=sample.value + spent_s)
                if sample.name.endswith("_total")
                else sample
                for sample in metric.samples
            ]
    return metrics
