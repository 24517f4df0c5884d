"""Warms a server up with bench's client, and measures what being cold would have cost. It touches the network and the clock.

In this order: each concurrency once, cold; structured and long prompts, if wanted; the highest concurrency until two rounds
agree; all of it once more, which is the probe; the clients' own requests last, so that caches hold these and not ours.
Cold is a load's first round, warm the same load's last one: both under the same load, or the ratio would compare two loads.
It raises nothing that is the server's fault: that stands in `Warmed.error`.
"""

import asyncio
import secrets
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from toolkit.bench.client import HostClient, PageError
from toolkit.bench.request_record import RequestContext
from toolkit.bench.requests import choose_model
from toolkit.profiles import Profile
from toolkit.records import Host, RequestRecord
from toolkit.serving.launch import GrowingLog
from toolkit.serving.stack import WarmSetting
from toolkit.serving.warm_requests import WarmRequests
from toolkit.units import milliseconds

Kind = Literal["plain", "structured", "long", "seed"]
Phase = Literal["cold", "settle", "probe", "seed"]
"""`cold`: the first at its level. `settle`: the highest level again, until two agree. `probe`: each level once more, measured.
`seed`: the clients' own requests."""

PROBED = 4
"""Requests of a probe at least: a level of one request is asked so often, one after the other."""
STRUCTURED = 8
"""Requests: both grammars, streamed and whole, twice."""
MOST_READY_CONNECTIONS = 512
SAME_MS = 5.0
"""Less apart than this they agree, whatever the share: a busy client is as late as that by itself."""
COMPILED = ("during inference: ", "This causes a latency spike")
"""Both stand in what vLLM's JIT monitor logs (0.25.1 to 0.33, vllm/utils/jit_monitor.py)."""
MOST_LINE_CHARACTERS = 300
WORDS: Mapping[Kind, str] = {
    "plain": "",
    "structured": ", structured output",
    "long": ", long prompts",
    "seed": ", the clients' own requests",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What came of one round: so many requests at once, or a few such waves."""

    phase: Phase
    kind: Kind
    concurrency: int
    requests: int
    ok: int
    ttft_ms: float | None = None
    """Median over the ok streams; of an even number the higher of the two in the middle."""
    e2e_ms: float | None = None
    """Median over the ok answers that were not streamed; over all of them where all were."""
    error_kinds: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None
    """What the first failed request met."""
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmLevel:
    """One load, cold and warm."""

    kind: Kind
    concurrency: int
    cold_ms: float | None
    warm_ms: float | None
    ratio: float | None
    """Cold / warm."""


@dataclass(slots=True, kw_only=True)
class Warmed:
    """What one server's warm-up came to, so far or in the end; the keys of `toolkit warmup --json`."""

    name: str
    url: str
    model: str | None = None
    error: str | None = None
    """Why it is not known to be warm: it is down, or it was not done in time."""
    measure: Literal["ttft", "e2e"] | None = None
    """`e2e` where nothing was streamed; None: nothing was answered."""
    cold_ttft_ms: float | None = None
    """Of the level named by `concurrency`, as all that follows up to `ratio`; None where nothing was streamed."""
    warm_ttft_ms: float | None = None
    cold_e2e_ms: float | None = None
    """Only where nothing was streamed."""
    warm_e2e_ms: float | None = None
    ratio: float | None = None
    concurrency: int | None = None
    """The lowest of all levels, which comes first: the same load at every start, so that starts can be compared."""
    levels: Sequence[WarmLevel] = ()
    agreed: bool = False
    """Two rounds in a row differed by less than the tolerance."""
    requests: int = 0
    errors: int = 0
    rounds: list[Round] = field(default_factory=list)
    compiled: int | None = None
    """Kernels that the server's log says were compiled while it was warmed; None: no log was read, as with the next."""
    late_compilations: list[str] | None = None
    """What it says was compiled in the probe, so after all that was to be compiled: what warm-up does not cover."""
    seeded: int = 0
    """Requests of the clients' own that were answered."""
    took_s: float = 0.0

    def sum_up(self) -> None:
        """Fill in what follows from the rounds: cold is a load's first round, warm its last one."""
        rounds = self.rounds
        is_streamed = any(each.ttft_ms is not None for each in rounds)
        if is_streamed or any(each.e2e_ms is not None for each in rounds):
            self.measure = "ttft" if is_streamed else "e2e"
        levels = []
        for load in dict.fromkeys(
            (one.kind, one.concurrency) for one in rounds if one.phase == "cold"
        ):
            figures = [
                (one.phase == "cold", figure)
                for one in rounds
                if (one.kind, one.concurrency) == load
                and (figure := one.ttft_ms if is_streamed else one.e2e_ms) is not None
            ]
            cold = next((figure for is_cold, figure in figures if is_cold), None)
            warm = next((figure for is_cold, figure in reversed(figures) if not is_cold), None)
            ratio = cold / warm if cold is not None and warm else None
            kind, concurrency = load
            levels.append(
                WarmLevel(
                    kind=kind, concurrency=concurrency, cold_ms=cold, warm_ms=warm, ratio=ratio
                )
            )
        if self.measure is not None and levels:
            # the first one asked, of plain prompts
            shown, self.levels = levels[0], levels
            self.concurrency, self.ratio = shown.concurrency, shown.ratio
            if is_streamed:
                self.cold_ttft_ms, self.warm_ttft_ms = shown.cold_ms, shown.warm_ms
            else:
                self.cold_e2e_ms, self.warm_e2e_ms = shown.cold_ms, shown.warm_ms
        self.requests = sum(each.requests for each in rounds)
        self.errors = sum(each.requests - each.ok for each in rounds)
        self.seeded = sum(each.ok for each in rounds if each.phase == "seed")

    def sentence(self) -> str:
        """The figures in the words that `toolkit report` reads in an event's text."""
        if self.cold_ttft_ms is not None and self.warm_ttft_ms is not None:
            return f"cold TTFT {self.cold_ttft_ms:.0f} ms, warm TTFT {self.warm_ttft_ms:.0f} ms"
        if self.cold_e2e_ms is not None and self.warm_e2e_ms is not None:
            return f"cold E2E {self.cold_e2e_ms:.0f} ms, warm E2E {self.warm_e2e_ms:.0f} ms"
        return f"not warm: {self.error or 'no figure'}"


@dataclass(kw_only=True)
class Warming:
    """One warm-up; `found` holds what came of it, also where somebody stopped it."""

    host: Host
    setting: WarmSetting
    key: str | None = None
    tls: ssl.SSLContext | bool = True
    model: str | None = None
    """Which is asked for; None: what it serves."""
    max_num_seqs: int | None = None
    profile: Profile | None = None
    """None: plain prompts."""
    exact: Sequence[Mapping[str, Any]] = ()
    """Bodies of clients' own requests for the caches, in place of the profile's."""
    log: Path | None = None
    """Where vLLM writes it."""
    say: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        unknown = "it was stopped before anything was known"
        self.found = Warmed(name=self.host.name, url=self.host.url, error=unknown)
        self._log = None
        if self.log is not None and self.log.exists():
            self._log, self.found.compiled = GrowingLog(self.log), 0
            self._log.skip(0)

    async def run(self) -> Warmed:
        """Do it all."""
        self._began_s = time.monotonic()
        client = HostClient(self.host, tls=self.tls, key=self.key, timeout_s=self.setting.limit_s)
        try:
            async with client as self._client:
                self.found.error = await self._warm()
        except asyncio.CancelledError:
            self.found.error = "it was stopped"
            raise
        finally:
            self.found.took_s = time.monotonic() - self._began_s
            self.found.sum_up()
        return self.found

    async def _warm(self) -> str | None:
        """All rounds; why it is not known to be warm in the end."""
        setting, found, rounds = self.setting, self.found, self.found.rounds

        # what is served, and whether anybody answers
        missing = None
        try:
            served = await self._client.models()
        except PageError as error:
            if not error.answered:
                return str(error)
            served, missing = (), str(error)
        chosen = choose_model(served, listed=self.host.model, wanted=self.model)
        if chosen.model is None:
            return missing or chosen.error
        found.model = chosen.model
        lengths = (each.max_model_len for each in served if each.id == chosen.model)
        self._max_model_len = next(lengths, None)
        self._requests = WarmRequests(
            self.profile,
            model=chosen.model,
            nonce=secrets.token_hex(8),
            max_tokens=setting.max_tokens,
            stream=setting.stream,
        )

        levels = wanted = levels_of(setting.concurrency, self.max_num_seqs)
        before: Round | None = None
        for number, level in enumerate(wanted):
            done = await self._round("cold", "plain", level)
            if done is None or not done.ok:
                if before is None:
                    return done.error if done else self._why_not()
                levels = wanted[:number]
                break
            before = done
        assert before is not None, "the first level was answered"
        extras: list[Kind] = ["structured"] if setting.structured else []
        extras += ["long"] if setting.long_prompts else []
        for kind in extras:
            await self._round("cold", kind, levels[-1])

        # the highest level until two rounds in a row agree
        for _ in range(setting.rounds):
            after = await self._round("settle", "plain", levels[-1])
            if after is None or not after.ok:
                break
            found.agreed = agree(before, after, setting.tolerance)
            if found.agreed:
                break
            before = after

        if rounds[-1].ok:
            # each load once more: what is compiled from now on, warm-up did not reach
            found.late_compilations = [] if self._log else None
            for level in levels:
                await self._round("probe", "plain", level)
            for kind in extras:
                await self._round("probe", kind, levels[-1])
            await self._round("seed", "seed", wanted[-1])
        return self._why_not()

    def _why_not(self) -> str | None:
        if self._is_late():
            return f"not done within {self.setting.limit_s:g} s"
        last = self.found.rounds[-1]
        if not self.found.agreed and not last.ok:
            return f"it stopped answering: {last.error}"
        if not self.found.agreed:
            return f"{self.setting.rounds} rounds, and no two in a row agree"
        return None

    def _is_late(self) -> bool:
        return time.monotonic() - self._began_s >= self.setting.limit_s

    async def _round(self, phase: Phase, kind: Kind, level: int) -> Round | None:
        """One round of a kind, `level` at once in waves; None when the time is over, or there is nothing to ask."""
        if self._is_late():
            return None
        if kind == "structured":
            requests = self._requests.structured(STRUCTURED)
        elif kind == "long":
            requests = self._requests.long(self._max_model_len)
        elif kind == "seed":
            requests = self._requests.seeds(self.exact)
        elif phase == "probe" and level < PROBED:
            # several waves, all of streams: a median of two would be chance
            requests = self._requests.plain(-(-PROBED // level) * level, streams=True)
        else:
            requests = self._requests.plain(level)
        if not requests:
            return None
        level = min(level, len(requests))
        await self._client.open_connections(min(level, MOST_READY_CONNECTIONS))
        context = RequestContext(
            run="", name=self.host.name, url=self.host.url, concurrency=level, wall_offset_s=0.0
        )
        began_s, shots = time.monotonic(), list[RequestRecord]()
        for start in range(0, len(requests), level):
            wave = requests[start : start + level]
            # planned at the beginning of all: so the time limit of a request is the limit of the whole
            sent = [self._client.send(context, each, self._began_s) for each in wave]
            shots += await asyncio.gather(*sent)
        for request, shot in zip(requests, shots, strict=True):
            if shot.ok and shot.prompt_tokens:
                self._requests.learn(request, shot.prompt_tokens)
        done = round_of(shots, phase, kind, level, time.monotonic() - began_s)
        self.found.rounds.append(done)
        if self._log is not None:
            found = compilations(chain.from_iterable(iter(self._log.read, [])))
            if self.found.late_compilations is not None:
                self.found.late_compilations += found
            else:
                self.found.compiled = (self.found.compiled or 0) + len(found)

        # a line for whoever waits
        what, figure = ("E2E", done.e2e_ms) if done.ttft_ms is None else ("TTFT", done.ttft_ms)
        said = f"{what} {milliseconds(figure)}" if figure is not None else "no answer"
        if done.ok < done.requests:
            said += f"; {done.requests - done.ok} of {done.requests} failed: {done.error}"
        self.say(f"{level} at once{WORDS[kind]} ({phase}): {said}")
        return done


# --- figures ----------------------------------------------------------------------------------------------------


def round_of(
    shots: Sequence[RequestRecord], phase: Phase, kind: Kind, concurrency: int, took_s: float
) -> Round:
    """Sum a round up."""
    good, failed = [shot for shot in shots if shot.ok], [shot for shot in shots if not shot.ok]
    whole = [shot for shot in good if not shot.stream] or good
    counts = Counter(shot.error_kind or "garbage" for shot in failed)
    error = None
    if failed:
        error = failed[0].error or failed[0].error_kind or "no reason given"
    return Round(
        phase=phase,
        kind=kind,
        concurrency=concurrency,
        requests=len(shots),
        ok=len(good),
        ttft_ms=median(shot.ttft_ms for shot in good if shot.stream),
        e2e_ms=median(shot.e2e_ms for shot in whole),
        error_kinds=dict(sorted(counts.items())),
        error=error,
        took_s=took_s,
    )


def median(values: Iterable[float | None]) -> float | None:
    """The middle one, of an even number the higher: of two requests the cold one counts."""
    known = sorted(value for value in values if value is not None)
    return known[len(known) // 2] if known else None


def levels_of(wanted: Sequence[int], max_num_seqs: int | None) -> tuple[int, ...]:
    """The concurrencies to go through: none above what the engine runs at once, and that one, too."""
    rising = sorted({level for level in wanted if level >= 1}) or [1]
    if max_num_seqs is None or rising[-1] <= max_num_seqs:
        return tuple(rising)
    return (*(level for level in rising if level < max_num_seqs), max_num_seqs)


def doubling(most: int) -> tuple[int, ...]:
    """1, 2, 4 ... up to `most`, which is the last one."""
    return (*(2**power for power in range((most - 1).bit_length())), most)


def agree(before: Round, after: Round, tolerance: float) -> bool:
    """Whether two rounds of the same load took the same, and neither failed as a whole."""
    for one, other in ((before.ttft_ms, after.ttft_ms), (before.e2e_ms, after.e2e_ms)):
        if one is not None and other is not None:
            return abs(one - other) <= max(SAME_MS, tolerance * min(one, other))
    return False


def compilations(lines: Iterable[str]) -> list[str]:
    """The lines in which vLLM's JIT monitor says that a request had to wait for a compiler, cut to what they name."""
    found = []
    for line in lines:
        start, _, end = line.partition(COMPILED[0])
        if end and COMPILED[1] in end:
            # before it stand a process, a level, a time and `[jit_monitor.py:137] `
            event = start.rpartition("] ")[2]
            named = f"{event}{COMPILED[0]}{end.partition(COMPILED[1])[0].rstrip(' .')}"
            found.append(named[:MOST_LINE_CHARACTERS])
    return found
