"""What a bench is to do, as the user said it: one flat record. It decides nothing and measures nothing."""

from dataclasses import dataclass
from typing import Literal

Sameness = Literal["pairs", "unique", "repeat"]
"""`pairs`: mostly unique prompts, and exact twins of some. `unique`: no prompt twice. `repeat`: prompts as they are."""

NoncePlace = Literal["front", "end"]
"""`front` defeats response and prefix caches, `end` response caches only."""

Arrival = Literal["constant", "poisson"]


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
    max_tokens: int = 256
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
