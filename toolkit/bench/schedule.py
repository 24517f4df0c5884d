"""When is each request due, and can a plan be at all? Numbers in, numbers out: it reads no clock and waits for nothing.

Times are counted from the run's start and never from the request before, so that a late request moves no other.
"""

import math
import random
from collections.abc import Iterator
from itertools import count, islice, pairwise, takewhile

from toolkit.bench.plan import BenchPlan
from toolkit.errors import ToolkitError

LEAST_RATE, MOST_RATE = 0.0001, 10_000.0
"""Requests a second and host; the least is one in three hours."""
MOST_CONCURRENCY = 10_000
"""Linux lends a client 28,232 ports (32768 to 60999) towards one address."""
MOST_TOKENS = 10_000_000
"""Longer than any model's context: whoever asks for more mistyped."""
MOST_TWIN_SHARE = 0.5
"""Each unique request has one twin at most."""
WAVES = 4
"""A level of a sweep with fewer waves of requests would be mostly its own start and end."""


def send_times(plan: BenchPlan) -> Iterator[float]:
    """Seconds from the start at which the requests of an open loop are due, equal for all hosts.

    `constant`: the first at 0, then every 1/rate. `poisson`: gaps drawn from the exponential distribution with
    mean 1/rate, the first of them before the first request. It ends with the plan's requests or before its
    duration is over, whichever comes first.
    """
    if plan.rate is None:
        raise ValueError("a closed loop has no send times")
    times = _poisson(plan.rate, plan.seed) if plan.arrival == "poisson" else _constant(plan.rate)
    duration_s = math.inf if plan.duration_s is None else plan.duration_s
    return takewhile(lambda at: at < duration_s, islice(times, plan.requests))


def _constant(rate: float) -> Iterator[float]:
    return (number / rate for number in count())


def _poisson(rate: float, seed: int) -> Iterator[float]:
    draw = random.Random(f"arrivals {seed}")  # noqa: S311 (it must repeat itself)
    at = 0.0
    while True:
        at += -math.log(1.0 - draw.random()) / rate
        yield at


def requests_of(plan: BenchPlan, level: int) -> int | None:
    """How many requests each host gets at this concurrency; None: as many as the duration lets in.

    The plan's number; a level of a sweep gets at least four waves. Without levels the number is the user's word.
    """
    if plan.requests is None or not plan.levels:
        return plan.requests
    return max(plan.requests, WAVES * level)


def check_plan(plan: BenchPlan) -> None:
    """Raise ToolkitError with a way out when a plan cannot be."""
    _check_length(plan)
    _check_load(plan)
    _check_levels(plan)
    _check_requests(plan)


def _check_length(plan: BenchPlan) -> None:
    if plan.requests is None and plan.duration_s is None:
        raise ToolkitError(
            "a bench without a number of requests and without a duration never ends",
            "Give one of them, e.g., 16 requests or `60s`",
        )
    if plan.requests is not None and plan.requests < 1:
        raise _refusal("requests", plan.requests, "Give at least 1 request, e.g., 16")
    if plan.duration_s is not None and not 0 < plan.duration_s < math.inf:
        raise _refusal("duration in seconds", plan.duration_s, "Give a time above 0, e.g., `60s`")
    if plan.warmup < 0:
        raise _refusal("warm-up requests", plan.warmup, "Give 0 for none, or twice the concurrency")


def _check_load(plan: BenchPlan) -> None:
    if not 1 <= plan.concurrency <= MOST_CONCURRENCY:
        raise _refusal("concurrency", plan.concurrency, f"Give 1 to {MOST_CONCURRENCY:,}, e.g., 8")
    if plan.rate is None:
        return
    if plan.levels:
        raise ToolkitError(
            f"a sweep over concurrencies and a rate of `{plan.rate:g}` a second exclude each other",
            "A rate plans its requests whatever the concurrency; leave one of the two out",
        )
    if not plan.rate >= LEAST_RATE:
        raise _refusal(
            "rate", plan.rate, f"Give at least {LEAST_RATE:g} a second, or none: a closed loop"
        )
    if plan.rate > MOST_RATE:
        raise _refusal(
            "rate", plan.rate, f"One client core can't send that; give at most {MOST_RATE:,.0f}"
        )
    if next(send_times(plan), None) is None:
        raise ToolkitError(
            f"in `{plan.duration_s:g}` s at `{plan.rate:g}` requests a second none is due",
            "Give a longer duration or a higher rate",
        )


def _check_levels(plan: BenchPlan) -> None:
    for level in plan.levels:
        if not 1 <= level <= MOST_CONCURRENCY:
            raise _refusal("level", level, f"Give concurrencies from 1 to {MOST_CONCURRENCY:,}")
    for lower, higher in pairwise(plan.levels):
        if lower >= higher:
            raise ToolkitError(
                f"the level `{higher}` stands after `{lower}`",
                "Levels rise, so that a host meets each with the lower ones behind it, e.g., 1,8,32",
            )


def _check_requests(plan: BenchPlan) -> None:
    for name, share in (
        ("share of streams", plan.stream_share),
        ("share of twins", plan.twin_share),
    ):
        if not 0 <= share <= 1:
            raise _refusal(name, share, "Give a share from 0 to 1, e.g., 0.25")
    if plan.sameness == "pairs" and plan.twin_share > MOST_TWIN_SHARE:
        raise _refusal("share of twins", plan.twin_share, "At most half are twins: give up to 0.5")
    if not 1 <= plan.max_tokens <= MOST_TOKENS:
        raise _refusal("max_tokens", plan.max_tokens, "Give at least 1, e.g., 256")
    if plan.temperature is not None and not 0 <= plan.temperature < math.inf:
        raise _refusal("temperature", plan.temperature, "Give 0 or more, or leave it out")
    if not 0 < plan.timeout_s < math.inf:
        raise _refusal("timeout in seconds", plan.timeout_s, "Give a time above 0, e.g., `120s`")


def _refusal(name: str, value: float, hint: str) -> ToolkitError:
    return ToolkitError(f"no bench can have {name} `{value:,}`", hint)
