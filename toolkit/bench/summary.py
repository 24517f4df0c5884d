"""What one host's records say, in numbers: the record behind a line of `toolkit bench`, and behind each level of a sweep.

A fold over records and nothing else: it times nothing, judges nothing and knows no other host.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from toolkit.bench.evidence import over_at
from toolkit.errors import ToolkitError
from toolkit.records import MOST_ERRORS, Ledger, RequestRecord, Verdict
from toolkit.stats import Sketch, mean, merged

LEAST_FOR_P99 = 100
"""With fewer samples the nearest rank of p99 is the largest value: one stall would be the figure."""
LEAST_GOOD_SHARE = 0.95
"""At a level that meets the limits, at most one planned request in twenty is late or fails."""
LEAST_GAIN = 1.10
"""A level whose throughput is less than this times another's is no faster."""
LEAST_WAIT = 1.5
"""Answers that take this many times as long show that requests wait for each other. In a closed loop e2e =
concurrency / throughput, so levels that lie too close together can't show it, and there is no knee."""
MILLISECONDS = {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}
_LIMIT = re.compile(r"\s*(ttft|tpot|e2e)\s*:\s*([0-9]+(?:\.[0-9]+)?)\s*(us|ms|s|m)\s*")


# --- what a good request may take ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputLimits:
    """What a good request may take at most; None: as long as it likes."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None


def read_limits(text: str) -> GoodputLimits:
    """Read `ttft:500ms,tpot:50ms,e2e:10s`, each name at most once. Raises ToolkitError on the first part that is no limit."""
    hint = (
        "Write limits of ttft, tpot or e2e in us, ms, s or m, e.g., `ttft:500ms,tpot:50ms,e2e:10s`"
    )
    limits: dict[str, float] = {}
    for part in text.split(","):
        match = _LIMIT.fullmatch(part)
        if match is None:
            raise ToolkitError(f"`{part.strip()}` is no limit", hint)
        key, limit_ms = f"{match[1]}_ms", float(match[2]) * MILLISECONDS[match[3]]
        if not 0 < limit_ms < math.inf:
            raise ToolkitError(f"limit `{part.strip()}` lets nothing or everything pass", hint)
        if key in limits:
            raise ToolkitError(f"limit `{match[1]}` stands twice in `{text}`", "Keep one of them")
        limits[key] = limit_ms
    return GoodputLimits(**limits)


def is_good(record: RequestRecord, limits: GoodputLimits) -> bool:
    """Whether a request was answered, and within every limit; a limit itself is still good.

    A limit on a number that the record has no way to have does not apply: TTFT and TPOT of an answer that
    was not asked to stream, TPOT of a stream whose tokens all came in its first chunk.
    """
    # when a stream was asked for and a whole body came, the first token came with the last
    first_token_ms = record.e2e_ms if record.ttft_ms is None else record.ttft_ms
    limited = [(record.e2e_ms, limits.e2e_ms)]
    if record.stream:
        limited.append((first_token_ms, limits.ttft_ms))
    if record.tpot_ms is not None:
        limited.append((record.tpot_ms, limits.tpot_ms))
    # what was never seen is late: e.g., a stream that ended without a token
    return record.ok and all(
        limit_ms is None or (took_ms is not None and took_ms <= limit_ms)
        for took_ms, limit_ms in limited
    )


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
    ttft_mean_ms: float | None
    """Means stand beside the medians, as other tools report them; of streams, like `tpot_mean_ms`."""
    tpot_mean_ms: float | None
    e2e_mean_ms: float | None
    send_lag_p99_ms: float | None
    """Of all that left, ok or not; None with fewer than 100."""
    tied_with: tuple[str, ...] = ()
    """Hosts that the run can't tell from this one; only who has all hosts' records can fill it in."""
    error: str | None = None
    """Why nothing was answered, in one sentence; None when anything was."""

    @property
    def is_failing(self) -> bool:
        """Whether more than MOST_ERRORS of its requests fail."""
        return self.errors > MOST_ERRORS * self.requests


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
    failures = [
        (record.error_kind or ("not_sent" if record.sent_at is None else "unknown"), record.error)
        for record in measured
        if not record.ok
    ]
    kinds = dict(sorted(Counter(kind for kind, _ in failures).items(), key=lambda it: (-it[1], it)))
    error = None
    if not measured:
        error = "no request was sent"
    elif not answers:
        # what mostly went wrong, by kind first: errors of one kind may differ in a port or an id, and then no two texts are equal
        most = next(iter(kinds))
        texts = Counter(text for kind, text in failures if kind == most and text)
        text = texts.most_common(1)[0][0] if texts else most
        error = f"{text} ({kinds[most]} of {len(measured)} requests)"

    length_s = window_s(measured)
    output_tokens = _sum(record.output_tokens for record in answers)
    good = None if limits is None else sum(is_good(record, limits) for record in answers)
    ttft = Sketch.of(record.ttft_ms for record in answers)
    e2e = Sketch.of(record.e2e_ms for record in answers)
    itl = Sketch.from_bytes(merged(record.itl for record in answers if record.itl))
    # a send may be early by the clock's own grain
    send_lag = Sketch.of(record.send_lag_ms for record in measured if record.sent_at is not None)

    def per_s(amount: float | None) -> float | None:
        return amount / length_s if amount is not None and length_s else None

    def p50(values: Iterable[float | None]) -> float | None:
        return Sketch.of(values).quantile(0.5)

    def p99(sketch: Sketch) -> float | None:
        return sketch.quantile(0.99) if sketch.count >= LEAST_FOR_P99 else None

    return HostSummary(
        name=name,
        url=url,
        requests=len(measured),
        ok=len(answers),
        errors=len(failures),
        error_kinds=kinds,
        rps=per_s(len(answers)),
        output_tokens_per_s=per_s(output_tokens),
        ttft_p50_ms=ttft.quantile(0.5),
        ttft_p95_ms=ttft.quantile(0.95),
        tpot_p50_ms=p50(record.tpot_ms for record in answers),
        itl_p95_ms=itl.quantile(0.95),
        e2e_p50_ms=e2e.quantile(0.5),
        e2e_p95_ms=e2e.quantile(0.95),
        e2e_p99_ms=p99(e2e),
        rtt_ms=None if ledger is None else ledger.rtt_ms,
        client_ok=client_ok,
        goodput=per_s(good),
        verdicts=verdicts,
        run=run,
        concurrency=concurrency,
        rate=rate,
        planned=len(measured),
        missed=sum(record.sent_at is None for record in measured),
        good_share=good / len(measured) if good is not None and measured else None,
        window_s=length_s,
        output_tokens=output_tokens,
        prompt_tokens=_sum(record.prompt_tokens for record in answers),
        output_tokens_estimated=any(
            record.output_tokens_estimated or record.output_tokens is None for record in answers
        ),
        ttft_visible_p50_ms=p50(record.ttft_visible_ms for record in answers),
        unique_e2e_p50_ms=p50(each.e2e_ms for each in answers if each.kind == "unique"),
        twin_e2e_p50_ms=p50(each.e2e_ms for each in answers if each.kind == "twin"),
        ttft_mean_ms=mean(record.ttft_ms for record in answers),
        tpot_mean_ms=mean(record.tpot_ms for record in answers),
        e2e_mean_ms=mean(record.e2e_ms for record in answers),
        send_lag_p99_ms=p99(send_lag),
        error=error,
    )


def window_s(measured: Sequence[RequestRecord]) -> float | None:
    """From the first planned send to the end of the last request; None where that is no time."""
    if not measured:
        return None
    first, last = min(record.planned_at for record in measured), max(map(over_at, measured))
    return last - first if last > first else None


def _sum(values: Iterable[int | None]) -> int | None:
    """Sum what is known: nothing answered is 0 tokens, answers that all keep silent are unknown."""
    listed = list(values)
    known = [value for value in listed if value is not None]
    return sum(known) if known or not listed else None


# --- a sweep: what more requests at once gain, and where they stop to -----------------------------------


def best_level(levels: Sequence[HostSummary]) -> int | None:
    """The largest concurrency that meets the limits, as every lower one does; None without limits.

    A level above a failed one doesn't count: its users would have to pass through the failure.
    """
    best = None
    for level in sorted(levels, key=lambda each: each.concurrency or 0):
        if level.good_share is None or level.good_share < LEAST_GOOD_SHARE:
            break
        best = level.concurrency
    return best


def knee(levels: Sequence[HostSummary]) -> int | None:
    """The lowest concurrency above which no level gains 10 % of throughput, while answers take 1.5 times as long.

    It is held against every higher level, not only the next: one slow level in the middle of a sweep is no knee.
    Levels at which nothing was answered are left out: a host that has died is not saturated. None: the
    sweep ends before the knee, or its levels lie too close together to tell.
    """
    # throughput in requests: tokens are what the host claims
    answered = sorted(
        (level.concurrency or 0, level.rps, level.e2e_p50_ms)
        for level in levels
        if level.rps and level.e2e_p50_ms
    )
    for index, (concurrency, rps, e2e_ms) in enumerate(answered):
        higher = answered[index + 1 :]
        if not any(their_rps >= LEAST_GAIN * rps for _, their_rps, _ in higher):
            waits = any(their_e2e_ms >= LEAST_WAIT * e2e_ms for _, _, their_e2e_ms in higher)
            return concurrency if waits else None
    return None
