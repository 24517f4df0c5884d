"""What the command line of `toolkit blast` said."""

from dataclasses import dataclass
from pathlib import Path

PROFILE = "contest"
WINDOW_S = 900.0
"""What the standings look back on."""
SCOUT_EVERY_S = 5.0
DURATION_S = WINDOW_S
"""One window of the board."""
USERS = 32
CANARY_PERCENT = 1.0
TIMEOUT_S = 60.0
MOST_TIMEOUT_S = 3600.0
"""Of a request; the load holds to it as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlastOptions:
    """The command line of one blast, fields named as its options; None: not said."""

    hosts: tuple[str, ...]
    duration: float | None
    users: int | None
    spawn_rate: float | None
    rate: float | None
    profile: str | None
    mix: int | None
    max_tokens: int | None
    model: str | None
    canaries: float | None
    timeout: float | None
    processes: int | None
    window: float
    resume: str | None
    dry_run: bool
    no_scout: bool
    scout_every: float
    non_neutral: bool
    as_json: bool
    database: Path
    insecure: bool
    ca: str | None
