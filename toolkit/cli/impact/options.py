"""What the command line of `toolkit impact` said."""

from dataclasses import dataclass
from pathlib import Path

RPS, GAIN = 10.0, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImpactOptions:
    """The command line of one impact, fields named as its options."""

    downtime: float | None
    window: float
    rps: float | None
    error_rps: float | None
    gain: float | None
    left: float | None
    run: str | None
    host: str | None
    at: float | None
    everything: bool
    as_json: bool
    png: Path | None
    database: Path

    @property
    def is_recorded(self) -> bool:
        """Whether it asks for an outage that a run saw."""
        return self.run is not None or self.host is not None
