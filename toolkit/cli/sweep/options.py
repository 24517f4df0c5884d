"""What the command line of `toolkit sweep` said."""

from dataclasses import dataclass
from pathlib import Path

NEWEST = "newest"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """The command line of one sweep, fields named as its options; None: not said."""

    sweep: str | None
    sim: bool
    dry_run: bool
    recipes: bool
    resume: str | None
    show: str | None
    blocks: int | None
    duration: float | None
    users: int | None
    profile: str | None
    chart: Path | None
    html: Path | None
    as_json: bool
    database: Path
