"""What the command line of `toolkit report` said."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """The command line of one report, fields named as its options."""

    run: str
    html: Path | None
    log: str | None
    call: str | None
    call_key_env: str | None
    gpu_hour: float | None
    gpus: int
    api_price: tuple[float, float] | None
    as_json: bool
    database: Path
