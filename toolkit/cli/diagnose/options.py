"""What the command line of `toolkit diagnose` said."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnoseOptions:
    """The command line of one diagnosis, fields named as its options."""

    target: str
    interval: float
    capture: str | None
    log: Path | None
    model: str | None
    gpu: str | None
    timeout: float
    as_json: bool
    database: Path
    insecure: bool
    ca: str | None
