"""What the command line of `toolkit bench` said."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

REQUESTS = 16
CONCURRENCY = 8
MOST_UNDER_WAY = 1_000
"""Of an open loop: at 2.5 s an answer, 400 requests a second."""
MAX_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """The command line of one bench, fields named as its options."""

    hosts: tuple[str, ...]
    requests: int | None
    concurrency: int | None
    duration: float | None
    rate: float | None
    arrival: Literal["constant", "poisson"] | None
    sweep_concurrency: tuple[int, ...]
    sequential: bool
    stream: bool | None
    mix: int | None
    max_tokens: int | None
    temperature: float | None
    ignore_eos: bool
    profile: str
    unique: bool
    repeat: bool
    nonce: Literal["front", "end"] | None
    warmup: int
    goodput: str | None
    model: str | None
    timeout: float
    most_under_way: int | None
    seed: int
    chart: Path | None
    as_json: bool
    database: Path
    no_store: bool
    insecure: bool
    ca: str | None
