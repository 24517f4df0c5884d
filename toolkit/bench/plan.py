"""What a bench is to do, as the user said it, and when each of its requests is due. It reads no clock and waits for nothing.

Times are counted from the run's start and never from the request before, so that a late request moves no other.
"""

import math
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice, pairwise, takewhile
from typing import Literal

from toolkit.errors import ToolkitError
from toolkit.records import USUAL_MAX_TOKENS

LEAST_RATE, MOST_RATE = 0.0001, 10_000.0
"""Requests a second and host; the least is one in three hours."""
MOST_CONCURRENCY = 10_000
"""Linux lends a client 28,232 ports (32768 to 60999) towards one address."""
MOST_TOKENS = 10_000_000
"""Longer than any model's context: whoever asks for more mistyped."""
MOST_TWIN_SHARE = 0.5
"""Each unique request has one twin at most."""
ABOVE_0, FINITE = math.ulp(0.0), sys.float_info.max
WAVES = 4
"""A level of a sweep with fewer waves of requests would be mostly its own start and end."""

Sameness = Literal["pairs", "unique", "repeat"]
"""`pairs`: mostly unique prompts, and exact twins of some. `unique`: no prompt twice. `repeat`: prompts as they are."""

NoncePlace = Literal["front", "end"]
"""`front` defeats response and prefix caches, `end` response caches only."""

Arrival = Literal["constant", "poisson"]

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
ENDPOINTS = (CHAT, COMPLETIONS, EMBEDDINGS)
"""What may be asked; an embedding has no token, so that E2E is all that there is of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """One plan, the same for every host."""

    requests: int | None = 16
    """Per host and level; None: as many as `duration_s` lets in."""
    duration_s: float | None = None
    concurrency: int = 8
    """Requests under way at one host at once; in an open loop the most that may be."""
    rate: float | None = None
    """Requests a second and host, planned whatever the answers take (open loop); None: closed loop."""
    arrival: Arrival = "poisson"
    levels: tuple[int, ...] = ()
    """Concurrencies of a sweep, one after the other."""
    stream_share: float = 1.0
    endpoint: str = CHAT
    """One of ENDPOINTS."""
    input_len: str | None = None
    """Tokens of each prompt, as `random_prompts.read_lengths` has it: made-up ones then; None: the profile's prompts."""
    tokenizer: str | None = None
    """The file that `input_len` is counted by; None: each host counts."""
    output_len: str | None = None
    """Tokens of each answer, likewise; None: up to the prompt's limit, and to `max_tokens`."""
    max_tokens: int = USUAL_MAX_TOKENS
    temperature: float | None = None
    """None: left out of the request, as the contest's clients did."""
    ignore_eos: bool = False
    """Ask engines that know the word (vLLM, SGLang) for answers of exactly `max_tokens`."""
    sameness: Sameness = "pairs"
    nonce_place: NoncePlace = "front"
    twin_share: float = 0.25
    """Share of the requests that are twins, with `pairs`."""
    warmup: int = 0
    """Requests per host before the measured ones, with other prompts; not counted."""
    sequential: bool = False
    """One host after the other instead of all at the same moment."""
    timeout_s: float = 120.0
    """For one request, from its planned send."""
    seed: int = 0
    """For the order of prompts, streams, twins and arrivals. Nonces never repeat, whatever the seed."""

    @property
    def concurrencies(self) -> tuple[int, ...]:
        """Of all levels in their order; without a sweep there is one."""
        return self.levels or (self.concurrency,)


def send_times(plan: BenchPlan) -> Iterator[float]:
    """Seconds from the start at which the requests of an open loop are due, equal for all hosts.

    `constant`: the first at 0, then every 1/rate. `poisson`: gaps drawn from the exponential distribution with
    mean 1/rate, the first of them before the first request. It ends with the plan's requests or before its
    duration is over, whichever comes first.
    """
    if plan.rate is None:
        raise ValueError("a closed loop has no send times")
    rate, draw = plan.rate, random.Random(f"arrivals {plan.seed}")  # noqa: S311 (it must repeat itself)

    def poisson() -> Iterator[float]:
        at = 0.0
        while True:
            at += -math.log(1.0 - draw.random()) / rate
            yield at

    times = poisson() if plan.arrival == "poisson" else (number / rate for number in count())
    duration_s = math.inf if plan.duration_s is None else plan.duration_s
    return takewhile(lambda at: at < duration_s, islice(times, plan.requests))


def requests_of(plan: BenchPlan, level: int) -> int | None:
    """How many requests each host gets at this concurrency; None: as many as the duration lets in.

    The plan's number; a level of a sweep gets at least four waves. Without levels the number is the user's word.
    """
    if plan.requests is None or not plan.levels:
        return plan.requests
    return max(plan.requests, WAVES * level)


def check_plan(plan: BenchPlan) -> None:
    """Raise ToolkitError with a way out when a plan cannot be."""
    requests, duration_s, rate = plan.requests, plan.duration_s, plan.rate
    if requests is None and duration_s is None:
        raise ToolkitError(
            "a bench without a number of requests and without a duration never ends",
            "Give one of them, e.g., 16 requests or `60s`",
        )
    if rate is not None and plan.levels:
        raise ToolkitError(
            f"a sweep over concurrencies and a rate of `{rate:g}` a second exclude each other",
            "A rate plans its requests whatever the concurrency; leave one of the two out",
        )

    at_once = f"1 to {MOST_CONCURRENCY:,}"
    most_twins = MOST_TWIN_SHARE if plan.sameness == "pairs" else 1.0
    # what it is, its value, the least and the most that it may be, what to give instead; None is not asked for
    limited: list[tuple[str, float | None, float, float, str]] = [
        ("requests", requests, 1, math.inf, "at least 1 request, e.g., 16"),
        ("duration in seconds", duration_s, ABOVE_0, FINITE, "a time above 0, e.g., `60s`"),
        ("warm-up requests", plan.warmup, 0, math.inf, "0 for none, or twice the concurrency"),
        ("concurrency", plan.concurrency, 1, MOST_CONCURRENCY, f"{at_once}, e.g., 8"),
        (
            "rate",
            rate,
            LEAST_RATE,
            MOST_RATE,
            f"{LEAST_RATE:g} to {MOST_RATE:,.0f} a second; one client core sends no more",
        ),
        *(
            ("level", level, 1, MOST_CONCURRENCY, f"concurrencies from {at_once}")
            for level in plan.levels
        ),
        ("share of streams", plan.stream_share, 0, 1, "a share from 0 to 1, e.g., 0.25"),
        ("share of twins", plan.twin_share, 0, most_twins, f"a share from 0 to {most_twins:g}"),
        ("max_tokens", plan.max_tokens, 1, MOST_TOKENS, "at least 1, e.g., 256"),
        ("temperature", plan.temperature, 0, FINITE, "0 or more, or leave it out"),
        ("timeout in seconds", plan.timeout_s, ABOVE_0, FINITE, "a time above 0, e.g., `120s`"),
    ]
    for name, value, least, most, hint in limited:
        if value is not None and not least <= value <= most:
            raise ToolkitError(f"no bench can have {name} `{value:,}`", f"Give {hint}")
    if rate is not None and next(send_times(plan), None) is None:
        raise ToolkitError(
            f"in `{duration_s:g}` s at `{rate:g}` requests a second none is due",
            "Give a longer duration or a higher rate",
        )
    for lower, higher in pairwise(plan.levels):
        if lower >= higher:
            raise ToolkitError(
                f"the level `{higher}` stands after `{lower}`",
                "Levels rise, so that a host meets each with the lower ones behind it, e.g., 1,8,32",
            )
