"""What one host's records say, in numbers: the record behind a line of `toolkit bench`.

A fold over records and nothing else: it times nothing, judges nothing and knows no other host.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from toolkit.bench.evidence import over_at
from toolkit.bench.goodput import GoodputLimits, is_good
from toolkit.records import Ledger, RequestRecord, Verdict
from toolkit.stats import Sketch

LEAST_FOR_P99 = 100
"""With fewer samples the nearest rank of p99 is the largest value: one stall would be the figure."""


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
