"""What the command line of `toolkit watchdog` said."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchdogOptions:
    """The command line of one watchdog, fields named as its options."""

    url: str
    name: str | None
    api_key_env: str | None
    model: str | None
    look: float
    stuck: float
    answer: float
    idle: float
    refused: float
    backoff: float
    backoff_most: float
    restarts: int
    within: float
    stop_within: float
    ready: float
    warm: bool
    profile: str | None
    max_num_seqs: int | None
    warm_limit: float
    log: Path
    until_trouble: bool
    as_json: bool
    database: Path
    no_store: bool
    command: tuple[str, ...]
