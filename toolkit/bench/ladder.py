"""A sweep over concurrencies at one host: what more requests at once gain, and where they stop to.

It orders and compares the levels' figures; it times nothing and accuses nobody.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.bench.goodput import GoodputLimits
from toolkit.bench.summary import HostSummary, summary
from toolkit.records import Shot

LEAST_GOOD_SHARE = 0.95
"""At a level that meets the limits, at most one planned request in twenty is late or fails."""
LEAST_GAIN = 1.10
"""A level whose throughput is less than this times another's is no faster."""
LEAST_WAIT = 1.5
"""Answers that take this many times as long show that requests wait for each other. In a closed loop e2e =
concurrency / throughput, so levels that lie too close together can't show it, and no knee is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One host at one concurrency; the words are Summary's."""

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


def ladder(shots: Sequence[Shot], *, limits: GoodputLimits | None = None) -> tuple[Rung, ...]:
    """One host's rungs, the lowest concurrency first; shots of an open loop are on none."""
    levels = sorted({shot.concurrency for shot in shots if shot.concurrency is not None})
    return tuple(
        rung([shot for shot in shots if shot.concurrency == level], level, limits)
        for level in levels
        if any(shot.concurrency == level and shot.kind != "warmup" for shot in shots)
    )


def rung(shots: Sequence[Shot], concurrency: int, limits: GoodputLimits | None = None) -> Rung:
    """One host's figures at one concurrency, from its shots at that concurrency."""
    told = summary(shots, name="", url="", run="", limits=limits, concurrency=concurrency)
    return rung_of(told, concurrency)


def rung_of(told: HostSummary, concurrency: int) -> Rung:
    """The part of a summary that a sweep compares."""
    return Rung(
        concurrency=concurrency,
        requests=told.requests,
        ok=told.ok,
        rps=told.rps,
        output_tokens_per_s=told.output_tokens_per_s,
        ttft_p50_ms=told.ttft_p50_ms,
        e2e_p50_ms=told.e2e_p50_ms,
        e2e_p95_ms=told.e2e_p95_ms,
        tpot_p50_ms=told.tpot_p50_ms,
        good_share=told.good_share,
    )


def best_level(rungs: Sequence[Rung]) -> int | None:
    """The largest concurrency that meets the limits, as every lower one does; None without limits.

    A level above a failed one doesn't count: its users would have to pass through the failure.
    """
    best = None
    for step in sorted(rungs, key=_level):
        if step.good_share is None or step.good_share < LEAST_GOOD_SHARE:
            break
        best = step.concurrency
    return best


def knee(rungs: Sequence[Rung]) -> int | None:
    """The lowest concurrency above which no level gains 10 % of throughput, while answers take 1.5 times as long.

    Every higher level is asked, not only the next: one slow level in the middle of a ladder is no knee.
    Levels at which nothing was answered are left out: a host that has died is not saturated. None: the
    ladder ends before the knee, or its levels lie too close together to tell.
    """
    # throughput in requests: tokens are what the host claims
    answered = sorted((step for step in rungs if step.rps and step.e2e_p50_ms), key=_level)
    for index, step in enumerate(answered):
        higher = answered[index + 1 :]
        if not any(_is_faster(other, step) for other in higher):
            waits = any(_is_slower(other, step) for other in higher)
            return step.concurrency if waits else None
    return None


def _level(step: Rung) -> int:
    return step.concurrency


def _is_faster(other: Rung, step: Rung) -> bool:
    return (other.rps or 0.0) >= LEAST_GAIN * (step.rps or 0.0)


def _is_slower(other: Rung, step: Rung) -> bool:
    return (other.e2e_p50_ms or 0.0) >= LEAST_WAIT * (step.e2e_p50_ms or 0.0)
