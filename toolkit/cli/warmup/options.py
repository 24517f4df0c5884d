"""What the command line of `toolkit warmup` said."""

from dataclasses import dataclass
from pathlib import Path

MOST_AT_ONCE = 64
"""The highest concurrency where nobody says what the engine runs at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line of one warm-up, fields named as its options."""

    hosts: tuple[str, ...]
    concurrency: tuple[int, ...]
    max_num_seqs: int | None
    profile: str | None
    seen: bool
    run: str | None
    stream: bool | None
    structured: bool
    long: bool
    max_tokens: int
    tolerance: float
    rounds: int
    limit: float
    log: Path | None
    model: str | None
    as_json: bool
    database: Path
    insecure: bool
    ca: str | None
