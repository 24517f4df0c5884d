"""A sweep over concurrencies at one host: what more requests at once gain, and where they stop to.

It orders and compares the levels' figures; it times nothing and accuses nobody.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from toolkit.bench.goodput import GoodputLimits
from toolkit.bench.summary import summary
from toolkit.records import RequestRecord

LEAST_GOOD_SHARE = 0.95
"""At a level that meets the limits, at most one planned request in twenty is late or fails."""
LEAST_GAIN = 1.10
"""A level whose throughput is less than this times another's is no faster."""
LEAST_WAIT = 1.5
"""Answers that take this many times as long show that requests wait for each other. In a closed loop e2e =
concurrency / throughput, so levels that lie too close together can't show it, and no knee is told."""


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
