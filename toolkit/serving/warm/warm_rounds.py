"""Is it warm? What rounds of requests measured -> whether two agree, cold against warm, what was compiled too late. Pure.

A round is so many requests at once, or a few such waves. Cold is a level's first round, warm the same level's last one: both
under the same load, or the ratio would compare two loads.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from toolkit.records import ErrorCount, Shot

Kind = Literal["plain", "structured", "long", "seed"]
Phase = Literal["cold", "settle", "probe", "seed"]
"""`cold`: the first at its level. `settle`: the highest level again, until two agree. `probe`: each level once more, measured.
`seed`: the clients' own requests."""
Measure = Literal["ttft", "e2e"]

SAME_MS = 5.0
"""Less apart than this they agree, whatever the share: a busy client is as late as that by itself."""
COMPILED = ("during inference: ", "This causes a latency spike")
"""Both stand in what vLLM's JIT monitor logs (0.25.1 to 0.33, vllm/utils/jit_monitor.py)."""
MOST_LINE_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What came of one round."""

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
    """What the first failed request was told."""
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
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
    levels: tuple[Level, ...] = ()
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


def round_of(
    shots: Sequence[Shot], *, phase: Phase, kind: Kind, concurrency: int, took_s: float
) -> Round:
    """Sum a round up."""
    good = [shot for shot in shots if shot.ok]
    whole = [shot for shot in good if not shot.stream] or good
    counts = Counter(shot.error_kind or "garbage" for shot in shots if not shot.ok)
    return Round(
        phase=phase,
        kind=kind,
        concurrency=concurrency,
        requests=len(shots),
        ok=len(good),
        ttft_ms=median(shot.ttft_ms for shot in good if shot.stream),
        e2e_ms=median(shot.e2e_ms for shot in whole),
        error_kinds=tuple(ErrorCount(kind=word, count=n) for word, n in sorted(counts.items())),
        error=next((_told(shot) for shot in shots if not shot.ok), None),
        took_s=took_s,
    )


def _told(shot: Shot) -> str:
    return shot.error or shot.error_kind or "no reason given"


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


def measure_of(rounds: Sequence[Round]) -> Measure | None:
    """By what cold and warm are told: TTFT wherever anything was streamed."""
    if any(each.ttft_ms is not None for each in rounds):
        return "ttft"
    return "e2e" if any(each.e2e_ms is not None for each in rounds) else None


def levels(rounds: Sequence[Round], measure: Measure) -> tuple[Level, ...]:
    """Cold and warm of each load, in the order in which they were met."""
    loads = dict.fromkeys((each.kind, each.concurrency) for each in rounds if each.phase == "cold")
    found = []
    for kind, concurrency in loads:
        own = [each for each in rounds if (each.kind, each.concurrency) == (kind, concurrency)]
        cold = _figure((each for each in own if each.phase == "cold"), measure)
        warm = _figure((each for each in reversed(own) if each.phase != "cold"), measure)
        ratio = cold / warm if cold is not None and warm else None
        found.append(
            Level(kind=kind, concurrency=concurrency, cold_ms=cold, warm_ms=warm, ratio=ratio)
        )
    return tuple(found)


def _figure(rounds: Iterable[Round], measure: Measure) -> float | None:
    """What the first of them with a figure measured."""
    figures = (each.ttft_ms if measure == "ttft" else each.e2e_ms for each in rounds)
    return next((figure for figure in figures if figure is not None), None)


def warmed(
    *,
    name: str,
    url: str,
    model: str | None,
    error: str | None,
    rounds: Sequence[Round],
    agreed: bool,
    compiled: Sequence[str] | None,
    late: Sequence[str] | None,
    took_s: float,
) -> Warmed:
    """Put a warm-up's facts together."""
    measure = measure_of(rounds)
    found = levels(rounds, measure) if measure else ()
    first = next((each for each in found if each.kind == "plain"), None)
    cold, warm = (first.cold_ms, first.warm_ms) if first else (None, None)
    streamed = measure == "ttft"
    return Warmed(
        name=name,
        url=url,
        model=model,
        error=error,
        measure=measure,
        cold_ttft_ms=cold if streamed else None,
        warm_ttft_ms=warm if streamed else None,
        cold_e2e_ms=None if streamed else cold,
        warm_e2e_ms=None if streamed else warm,
        ratio=first.ratio if first else None,
        concurrency=first.concurrency if first else None,
        levels=found,
        agreed=agreed,
        requests=sum(each.requests for each in rounds),
        errors=sum(each.requests - each.ok for each in rounds),
        rounds=tuple(rounds),
        compiled=None if compiled is None else len(compiled),
        late_compilations=None if late is None else tuple(late),
        seeded=sum(each.ok for each in rounds if each.phase == "seed"),
        took_s=took_s,
    )


def compilations(lines: Iterable[str]) -> tuple[str, ...]:
    """The lines in which vLLM's JIT monitor says that a request had to wait for a compiler, cut to what they name."""
    found = []
    for line in lines:
        start, _, end = line.partition(COMPILED[0])
        if end and COMPILED[1] in end:
            # before it stand a process, a level, a time and `[jit_monitor.py:137] `
            event = start.rpartition("] ")[2]
            found.append(f"{event}{COMPILED[0]}{end.partition(COMPILED[1])[0].rstrip(' .')}")
    return tuple(line[:MOST_LINE_CHARACTERS] for line in found)


def sentence(told: Warmed) -> str:
    """The figures in the words that `toolkit report` reads in an event's text."""
    if told.measure == "ttft" and told.cold_ttft_ms is not None and told.warm_ttft_ms is not None:
        return f"cold TTFT {told.cold_ttft_ms:.0f} ms, warm TTFT {told.warm_ttft_ms:.0f} ms"
    if told.cold_e2e_ms is not None and told.warm_e2e_ms is not None:
        return f"cold E2E {told.cold_e2e_ms:.0f} ms, warm E2E {told.warm_e2e_ms:.0f} ms"
    return f"not warm: {told.error or 'no figure'}"
