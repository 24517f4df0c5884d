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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from toolkit.bench.asks import PlannedRequest
from toolkit.bench.client import HostClient, PageError
from toolkit.bench.models import choice
from toolkit.bench.shots import ShotContext
from toolkit.profiles import Profile
from toolkit.records import ErrorCount, Host, Shot
from toolkit.serving.stack import WarmSetting
from toolkit.serving.warm_requests import WarmRequests
from toolkit.units import milliseconds

Kind = Literal["plain", "structured", "long", "seed"]
Phase = Literal["cold", "settle", "probe", "seed"]
"""`cold`: the first at its level. `settle`: the highest level again, until two agree. `probe`: each level once more, measured.
`seed`: the clients' own requests."""
Measure = Literal["ttft", "e2e"]

PROBED = 4
"""Requests of a probe at least: a level of one request is asked so often, one after the other."""
STRUCTURED = 8
"""Requests: both grammars, streamed and whole, twice."""
MOST_READY_CONNECTIONS = 512
SAME_MS = 5.0
"""Less apart than this they agree, whatever the share: a busy client is as late as that by itself."""
MOST_LOG_BYTES = 2**24
"""Of one reading: of a log that grew by more only the end is read."""
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
    error_kinds: tuple[ErrorCount, ...] = ()
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmed:
    """What one server's warm-up came to; the keys of `toolkit warmup --json`."""

    name: str
    url: str
    model: str | None = None
    error: str | None = None
    """Why it is not known to be warm: it is down, or it was not done in time."""
    measure: Measure | None = None
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
    levels: tuple[WarmLevel, ...] = ()
    agreed: bool = False
    """Two rounds in a row differed by less than the tolerance."""
    requests: int = 0
    errors: int = 0
    rounds: tuple[Round, ...] = ()
    compiled: int | None = None
    """Kernels that the server's log says were compiled while it was warmed; None: no log was read, as with the next."""
    late_compilations: tuple[str, ...] | None = None
    """What it says was compiled in the probe, so after all that was to be compiled: what warm-up does not cover."""
    seeded: int = 0
    """Requests of the clients' own that were answered."""
    took_s: float = 0.0


async def warm(url: str, *, setting: WarmSetting, name: str | None = None, **more: Any) -> Warmed:
    """Warm the server at `url` up; `more` as for Warming."""
    warming = Warming(Host(name=name or url, url=url), setting, **more)
    await warming.run()
    return warming.result()


class Warming:
    """One warm-up. `result` may be asked at any moment, e.g., after somebody stopped it."""

    def __init__(
        self,
        host: Host,
        setting: WarmSetting,
        *,
        key: str | None = None,
        tls: ssl.SSLContext | bool = True,
        model: str | None = None,
        max_num_seqs: int | None = None,
        profile: Profile | None = None,
        exact: Sequence[Mapping[str, Any]] = (),
        log: Path | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """What is asked of whom.

        `model` None: what it serves; `profile` None: plain prompts; `exact`: bodies of clients' own requests for the
        caches, in place of the profile's; `log`: where vLLM writes it.
        """
        self.host, self.rounds = host, list[Round]()
        self._setting, self._say = setting, say
        self._key, self._tls, self._wanted = key, tls, model
        self._profile, self._exact = profile, exact
        self._levels = levels_of(setting.concurrency, max_num_seqs)
        self._model: str | None = None
        self._max_model_len: int | None = None
        self._error: str | None = "it was stopped before anything was known"
        self._agreed = False
        self._began_s = time.monotonic()
        self._ended_s: float | None = None
        try:
            self._log = LogTail(log) if log else None
        except OSError:
            self._log = None
        self._compiled: list[str] = []
        self._late: list[str] | None = None

    def result(self) -> Warmed:
        """What came of it so far."""
        rounds = self.rounds
        measure: Measure | None = None
        if any(each.ttft_ms is not None for each in rounds):
            measure = "ttft"
        elif any(each.e2e_ms is not None for each in rounds):
            measure = "e2e"
        levels = levels_in(rounds, measure) if measure else ()
        first = next((each for each in levels if each.kind == "plain"), None)
        cold, warm = (first.cold_ms, first.warm_ms) if first else (None, None)
        is_streamed = measure == "ttft"
        return Warmed(
            name=self.host.name,
            url=self.host.url,
            model=self._model,
            error=self._error,
            measure=measure,
            cold_ttft_ms=cold if is_streamed else None,
            warm_ttft_ms=warm if is_streamed else None,
            cold_e2e_ms=None if is_streamed else cold,
            warm_e2e_ms=None if is_streamed else warm,
            ratio=first.ratio if first else None,
            concurrency=first.concurrency if first else None,
            levels=levels,
            agreed=self._agreed,
            requests=sum(each.requests for each in rounds),
            errors=sum(each.requests - each.ok for each in rounds),
            rounds=tuple(rounds),
            compiled=len(self._compiled) if self._log else None,
            late_compilations=None if self._late is None else tuple(self._late),
            seeded=sum(each.ok for each in rounds if each.phase == "seed"),
            took_s=(self._ended_s or time.monotonic()) - self._began_s,
        )

    async def run(self) -> None:
        """Do it all."""
        self._began_s = time.monotonic()
        try:
            async with HostClient(
                self.host, tls=self._tls, key=self._key, timeout_s=self._setting.limit_s
            ) as self._client:
                self._error = await self._choose_model()
                if self._error is None:
                    self._requests = WarmRequests(
                        self._profile,
                        model=self._model or "",
                        nonce=secrets.token_hex(8),
                        max_tokens=self._setting.max_tokens,
                        stream=self._setting.stream,
                    )
                    self._error = await self._warm()
        except asyncio.CancelledError:
            self._error = "it was stopped"
            raise
        finally:
            self._ended_s = time.monotonic()

    async def _choose_model(self) -> str | None:
        """Learn what is served, and whether anybody answers; what stands against it."""
        missing = None
        try:
            served = await self._client.models()
        except PageError as error:
            if not error.answered:
                return str(error)
            served, missing = (), str(error)
        chosen = choice(served, listed=self.host.model, wanted=self._wanted)
        if chosen.model is None:
            return missing or chosen.error
        self._model = chosen.model
        lengths = (each.max_model_len for each in served if each.id == chosen.model)
        self._max_model_len = next(lengths, None)
        return None

    async def _warm(self) -> str | None:
        """All rounds; why it is not known to be warm in the end."""
        setting, levels = self._setting, self._levels
        before: Round | None = None
        for number, level in enumerate(levels):
            done = await self._round("cold", "plain", level)
            if done is None or not done.ok:
                if before is None:
                    return done.error if done else self._why_not()
                levels = levels[:number]
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
            self._agreed = agree(before, after, setting.tolerance)
            if self._agreed:
                break
            before = after

        if self.rounds[-1].ok:
            # each load once more: what is compiled from now on, warm-up did not reach
            self._late = [] if self._log else None
            for level in levels:
                await self._round("probe", "plain", level)
            for kind in extras:
                await self._round("probe", kind, levels[-1])
            own = self._requests.seeds(self._exact)
            if own and not self._is_late():
                await self._send("seed", "seed", self._levels[-1], own)
        return self._why_not()

    def _why_not(self) -> str | None:
        if self._is_late():
            return f"not done within {self._setting.limit_s:g} s"
        last = self.rounds[-1]
        if not self._agreed and not last.ok:
            return f"it stopped answering: {last.error}"
        if not self._agreed:
            return f"{self._setting.rounds} rounds, and no two in a row agree"
        return None

    def _is_late(self) -> bool:
        return time.monotonic() - self._began_s >= self._setting.limit_s

    async def _round(self, phase: Phase, kind: Kind, level: int) -> Round | None:
        """One round of a kind, `level` at once where the kind has as many; None when the time is over."""
        if self._is_late():
            return None
        if kind == "structured":
            requests = self._requests.structured(STRUCTURED)
        elif kind == "long":
            requests = self._requests.long(self._max_model_len)
        elif phase == "probe" and level < PROBED:
            # several waves, all of streams: a median of two would be chance
            requests = self._requests.plain(-(-PROBED // level) * level, streams=True)
        else:
            requests = self._requests.plain(level)
        return await self._send(phase, kind, level, requests)

    async def _send(
        self, phase: Phase, kind: Kind, level: int, requests: Sequence[PlannedRequest]
    ) -> Round:
        """Send some requests, `level` at once in waves."""
        level = min(level, len(requests))
        await self._client.open_connections(min(level, MOST_READY_CONNECTIONS))
        context = ShotContext(
            run="", name=self.host.name, url=self.host.url, concurrency=level, wall_offset_s=0.0
        )
        began_s, shots = time.monotonic(), list[Shot]()
        for start in range(0, len(requests), level):
            wave = requests[start : start + level]
            # planned at the beginning of all: so the time limit of a request is the limit of the whole
            sent = [self._client.send(context, each, self._began_s) for each in wave]
            shots += await asyncio.gather(*sent)
        for request, shot in zip(requests, shots, strict=True):
            if shot.ok and shot.prompt_tokens:
                self._requests.learn(request, shot.prompt_tokens)
        took_s = time.monotonic() - began_s
        done = round_of(shots, phase=phase, kind=kind, concurrency=level, took_s=took_s)
        self.rounds.append(done)
        if self._log is not None:
            found = compilations(self._log.new_lines())
            (self._compiled if self._late is None else self._late).extend(found)

        # a line for whoever waits
        what, figure = ("E2E", done.e2e_ms) if done.ttft_ms is None else ("TTFT", done.ttft_ms)
        said = f"{what} {milliseconds(figure)}" if figure is not None else "no answer"
        if done.ok < done.requests:
            said += f"; {done.requests - done.ok} of {done.requests} failed: {done.error}"
        self._say(f"{level} at once{WORDS[kind]} ({phase}): {said}")
        return done


# --- figures ----------------------------------------------------------------------------------------------------


def round_of(
    shots: Sequence[Shot], *, phase: Phase, kind: Kind, concurrency: int, took_s: float
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
        error_kinds=tuple(ErrorCount(kind=word, count=n) for word, n in sorted(counts.items())),
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


def levels_in(rounds: Sequence[Round], measure: Measure) -> tuple[WarmLevel, ...]:
    """Cold and warm of each load, in the order in which they were met."""
    loads = dict.fromkeys((each.kind, each.concurrency) for each in rounds if each.phase == "cold")
    found = []
    for kind, concurrency in loads:
        figures = [
            (each.phase == "cold", figure)
            for each in rounds
            if (each.kind, each.concurrency) == (kind, concurrency)
            and (figure := each.ttft_ms if measure == "ttft" else each.e2e_ms) is not None
        ]
        cold = next((figure for is_cold, figure in figures if is_cold), None)
        warm = next((figure for is_cold, figure in reversed(figures) if not is_cold), None)
        ratio = cold / warm if cold is not None and warm else None
        found.append(
            WarmLevel(kind=kind, concurrency=concurrency, cold_ms=cold, warm_ms=warm, ratio=ratio)
        )
    return tuple(found)


def sentence(found: Warmed) -> str:
    """The figures in the words that `toolkit report` reads in an event's text."""
    if found.cold_ttft_ms is not None and found.warm_ttft_ms is not None:
        return f"cold TTFT {found.cold_ttft_ms:.0f} ms, warm TTFT {found.warm_ttft_ms:.0f} ms"
    if found.cold_e2e_ms is not None and found.warm_e2e_ms is not None:
        return f"cold E2E {found.cold_e2e_ms:.0f} ms, warm E2E {found.warm_e2e_ms:.0f} ms"
    return f"not warm: {found.error or 'no figure'}"


# --- the server's log -------------------------------------------------------------------------------------------


class LogTail:
    """Reads on from where a log ended when this was made. Raises OSError where there is no such file."""

    def __init__(self, path: Path) -> None:
        self._path, state = path, path.stat()
        self._inode, self._at = state.st_ino, state.st_size

    def new_lines(self) -> list[str]:
        """The whole lines that came since the last call; what a file that was replaced holds is all new."""
        try:
            state = self._path.stat()
            if state.st_ino != self._inode or state.st_size < self._at:
                self._inode, self._at = state.st_ino, 0
            self._at = max(self._at, state.st_size - MOST_LOG_BYTES)
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read(MOST_LOG_BYTES)
        except OSError:
            return []  # it is gone: nothing new is known
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        return whole.decode("utf-8", "replace").splitlines()


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
