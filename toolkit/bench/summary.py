"""What one host's records say, in numbers: the record behind a line of `toolkit bench`, and behind each level of a sweep.

A fold over records and nothing else: it times nothing, judges nothing and knows no other host.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from toolkit.bench.evidence import over_at
from toolkit.errors import ToolkitError
from toolkit.records import Ledger, RequestRecord, Verdict
from toolkit.stats import Sketch

LEAST_FOR_P99 = 100
"""With fewer samples the nearest rank of p99 is the largest value: one stall would be the figure."""
LEAST_GOOD_SHARE = 0.95
"""At a level that meets the limits, at most one planned request in twenty is late or fails."""
LEAST_GAIN = 1.10
"""A level whose throughput is less than this times another's is no faster."""
LEAST_WAIT = 1.5
"""Answers that take this many times as long show that requests wait for each other. In a closed loop e2e =
concurrency / throughput, so levels that lie too close together can't show it, and no knee is told."""
MILLISECONDS = {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}
NAMES = ("ttft", "tpot", "e2e")

EXAMPLE = "Write limits like `ttft:500ms,tpot:50ms,e2e:10s`"
_LIMIT = re.compile(r"([^:]*):\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*")


# --- what a good request may take ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputLimits:
    """What a good request may take at most; None: as long as it likes."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None


def read_limits(text: str) -> GoodputLimits:
    """Read `ttft:500ms,tpot:50ms,e2e:10s`; each name at most once, units us, ms, s and m.

    Raises ToolkitError on the first part that is no limit.
    """
    limits: dict[str, float] = {}
    for part in text.split(","):
        match = _LIMIT.fullmatch(part)
        if match is None:
            raise ToolkitError(f"`{part.strip()}` is no limit", EXAMPLE)
        name, unit = match[1].strip(), match[3]
        if name not in NAMES:
            raise ToolkitError(f"unknown limit `{name}`", f"Known limits: {', '.join(NAMES)}")
        if unit not in MILLISECONDS:
            known = f"Known units: {', '.join(MILLISECONDS)}"
            raise ToolkitError(f"unknown unit `{unit}` in `{part.strip()}`", known)
        limit_ms = float(match[2]) * MILLISECONDS[unit]
        if not 0 < limit_ms < math.inf:
            raise ToolkitError(f"limit `{part.strip()}` lets nothing or everything pass", EXAMPLE)
        if name in limits:
            raise ToolkitError(f"limit `{name}` stands twice in `{text}`", "Keep one of them")
        limits[name] = limit_ms
    return GoodputLimits(**{f"{name}_ms": limit_ms for name, limit_ms in limits.items()})


def is_good(record: RequestRecord, limits: GoodputLimits) -> bool:
    """Whether a request was answered, and within every limit; a limit itself is still good.

    A limit on a number that the record has no way to have does not apply: TTFT and TPOT of an answer that
    was not asked to stream, TPOT of a stream whose tokens all came in its first chunk.
    """
    # when a stream was asked for and a whole body came, the first token came with the last
    first_token_ms = record.e2e_ms if record.ttft_ms is None else record.ttft_ms
    return (
        record.ok
        and _within(record.e2e_ms, limits.e2e_ms)
        and (not record.stream or _within(first_token_ms, limits.ttft_ms))
        and (record.tpot_ms is None or _within(record.tpot_ms, limits.tpot_ms))
    )


def _within(took_ms: float | None, limit_ms: float | None) -> bool:
    """Under a limit, what was never seen is late: e.g., a stream that ended without a token."""
    return limit_ms is None or (took_ms is not None and took_ms <= limit_ms)


# --- one concurrency, or one rate ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSummary:
    """One host's figures at one concurrency. Field names are the keys of `toolkit bench --json`.

    Warm-up is never counted, and no latency holds a failure.
    """

    name: str
    url: str
    requests: int
    """Measured sends that were planned, those that never left included."""
    ok: int
    errors: int
    """`requests` - `ok`."""
    error_kinds: dict[str, int]
    """How many errors of each kind, the most frequent first."""
    rps: float | None
    """ok / `window_s`."""
    output_tokens_per_s: float | None
    """`output_tokens` / `window_s`."""
    ttft_p50_ms: float | None
    """Of streams, like `ttft_p95_ms`, `tpot_p50_ms` and `itl_p95_ms`."""
    ttft_p95_ms: float | None
    tpot_p50_ms: float | None
    itl_p95_ms: float | None
    """Over all gaps of all streams, each divided by the tokens of the chunk that ended it."""
    e2e_p50_ms: float | None
    e2e_p95_ms: float | None
    e2e_p99_ms: float | None
    """None with fewer than 100 answers."""
    rtt_ms: float | None
    client_ok: bool | None
    goodput: float | None
    """Good requests a second of the window; None without limits."""
    verdicts: tuple[Verdict, ...]
    run: str
    concurrency: int | None
    rate: float | None
    planned: int
    """What `good_share` is a share of: as `requests`."""
    missed: int
    """Planned sends that never left; errors too."""
    good_share: float | None
    """Good requests / planned ones, so that a failure is no way to be fast; None without limits."""
    window_s: float | None
    """From the first planned send to the end of the last request."""
    output_tokens: int | None
    """Of the answers; None when none of them says."""
    prompt_tokens: int | None
    output_tokens_estimated: bool
    """At least one answer's tokens were counted in chunks, or are missing from the sum."""
    ttft_visible_p50_ms: float | None
    unique_e2e_p50_ms: float | None
    twin_e2e_p50_ms: float | None
    send_lag_p99_ms: float | None
    """Of all that left, ok or not; None with fewer than 100."""
    tied_with: tuple[str, ...] = ()
    """Hosts that the run can't tell from this one; only who has all hosts' records can fill it in."""
    error: str | None = None
    """Why nothing was answered, in one sentence; None when anything was."""


def summary(
    records: Sequence[RequestRecord],
    *,
    name: str,
    url: str,
    run: str,
    ledger: Ledger | None = None,
    client_ok: bool | None = None,
    limits: GoodputLimits | None = None,
    verdicts: tuple[Verdict, ...] = (),
    concurrency: int | None = None,
    rate: float | None = None,
) -> HostSummary:
    """Count one host's records at one concurrency, or at one rate."""
    measured = [record for record in records if record.kind != "warmup"]
    answers = [record for record in measured if record.ok]
    length_s = window_s(measured)
    output_tokens = _sum(record.output_tokens for record in answers)
    good = None if limits is None else sum(is_good(record, limits) for record in answers)
    kinds = Counter(_kind(record) for record in measured if not record.ok)
    ttft = _sketch(record.ttft_ms for record in answers)
    e2e = _sketch(record.e2e_ms for record in answers)
    send_lag = _sketch(record.send_lag_ms for record in measured if record.sent_at is not None)
    itl = Sketch()
    for record in answers:
        if record.itl is not None:
            itl.merge(Sketch.from_bytes(record.itl))

    def e2e_p50_of(kind: str) -> float | None:
        return _sketch(record.e2e_ms for record in answers if record.kind == kind).quantile(0.5)

    return HostSummary(
        name=name,
        url=url,
        requests=len(measured),
        ok=len(answers),
        errors=len(measured) - len(answers),
        error_kinds=dict(sorted(kinds.items(), key=lambda pair: (-pair[1], pair[0]))),
        rps=_per(len(answers), length_s),
        output_tokens_per_s=_per(output_tokens, length_s),
        ttft_p50_ms=ttft.quantile(0.5),
        ttft_p95_ms=ttft.quantile(0.95),
        tpot_p50_ms=_sketch(record.tpot_ms for record in answers).quantile(0.5),
        itl_p95_ms=itl.quantile(0.95),
        e2e_p50_ms=e2e.quantile(0.5),
        e2e_p95_ms=e2e.quantile(0.95),
        e2e_p99_ms=_p99(e2e),
        rtt_ms=None if ledger is None else ledger.rtt_ms,
        client_ok=client_ok,
        goodput=_per(good, length_s),
        verdicts=verdicts,
        run=run,
        concurrency=concurrency,
        rate=rate,
        planned=len(measured),
        missed=sum(record.sent_at is None for record in measured),
        good_share=_per(good, len(measured)),
        window_s=length_s,
        output_tokens=output_tokens,
        prompt_tokens=_sum(record.prompt_tokens for record in answers),
        output_tokens_estimated=any(
            record.output_tokens_estimated or record.output_tokens is None for record in answers
        ),
        ttft_visible_p50_ms=_sketch(record.ttft_visible_ms for record in answers).quantile(0.5),
        unique_e2e_p50_ms=e2e_p50_of("unique"),
        twin_e2e_p50_ms=e2e_p50_of("twin"),
        send_lag_p99_ms=_p99(send_lag),
        error=_error(measured),
    )


def window_s(measured: Sequence[RequestRecord]) -> float | None:
    """From the first planned send to the end of the last request; None where that is no time."""
    if not measured:
        return None
    first, last = min(record.planned_at for record in measured), max(map(over_at, measured))
    return last - first if last > first else None


def _per(amount: float | None, whole: float | None) -> float | None:
    return amount / whole if amount is not None and whole else None


def _sum(values: Iterable[int | None]) -> int | None:
    """Sum what is known: nothing answered is 0 tokens, answers that all keep silent are unknown."""
    listed = list(values)
    known = [value for value in listed if value is not None]
    return sum(known) if known or not listed else None


def _sketch(values: Iterable[float | None]) -> Sketch:
    sketch = Sketch()
    for value in values:
        if value is not None and math.isfinite(value):
            sketch.add(max(0.0, value))  # a send may be early by the clock's own grain
    return sketch


def _p99(sketch: Sketch) -> float | None:
    return sketch.quantile(0.99) if sketch.count >= LEAST_FOR_P99 else None


def _kind(record: RequestRecord) -> str:
    return record.error_kind or ("not_sent" if record.sent_at is None else "unknown")


def _error(measured: Sequence[RequestRecord]) -> str | None:
    """Say what mostly went wrong where nothing went right.

    By kind first: errors of one kind may differ in a port or an id, and then no two texts are equal.
    """
    if not measured:
        return "no request was sent"
    if any(record.ok for record in measured):
        return None
    kinds = Counter(map(_kind, measured))
    most = min(kinds, key=lambda kind: (-kinds[kind], kind))
    texts = Counter(record.error for record in measured if _kind(record) == most and record.error)
    text = texts.most_common(1)[0][0] if texts else most
    return f"{text} ({kinds[most]} of {len(measured)} requests)"


# --- a sweep: what more requests at once gain, and where they stop to -----------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelFigures:
    """One host at one concurrency; the words are HostSummary's."""

    concurrency: int
    requests: int
    ok: int
    rps: float | None
    output_tokens_per_s: float | None
    ttft_p50_ms: float | None
    e2e_p50_ms: float | None
    e2e_p95_ms: float | None
    tpot_p50_ms: float | None
    good_share: float | None


def level_figures(
    records: Sequence[RequestRecord], limits: GoodputLimits | None = None
) -> tuple[LevelFigures, ...]:
    """One host's levels, the lowest concurrency first; requests of an open loop are on none."""
    by_level: dict[int, list[RequestRecord]] = {}
    for record in records:
        if record.concurrency is not None and record.kind != "warmup":
            by_level.setdefault(record.concurrency, []).append(record)
    found = []
    for concurrency, at_level in sorted(by_level.items()):
        figures = summary(at_level, name="", url="", run="", limits=limits, concurrency=concurrency)
        keys = [field.name for field in fields(LevelFigures)]
        found.append(LevelFigures(**{key: getattr(figures, key) for key in keys}))
    return tuple(found)


def best_level(levels: Sequence[LevelFigures]) -> int | None:
    """The largest concurrency that meets the limits, as every lower one does; None without limits.

    A level above a failed one doesn't count: its users would have to pass through the failure.
    """
    best = None
    for level in sorted(levels, key=lambda each: each.concurrency):
        if level.good_share is None or level.good_share < LEAST_GOOD_SHARE:
            break
        best = level.concurrency
    return best


def knee(levels: Sequence[LevelFigures]) -> int | None:
    """The lowest concurrency above which no level gains 10 % of throughput, while answers take 1.5 times as long.

    Every higher level is asked, not only the next: one slow level in the middle of a sweep is no knee.
    Levels at which nothing was answered are left out: a host that has died is not saturated. None: the
    sweep ends before the knee, or its levels lie too close together to tell.
    """
    # throughput in requests: tokens are what the host claims
    answered = sorted(
        (level.concurrency, level.rps, level.e2e_p50_ms)
        for level in levels
        if level.rps and level.e2e_p50_ms
    )
    for index, (concurrency, rps, e2e_ms) in enumerate(answered):
        higher = answered[index + 1 :]
        if not any(their_rps >= LEAST_GAIN * rps for _, their_rps, _ in higher):
            waits = any(their_e2e_ms >= LEAST_WAIT * e2e_ms for _, _, their_e2e_ms in higher)
            return concurrency if waits else None
    return None
