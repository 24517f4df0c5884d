"""What was seen of one host, before it is judged."""

from dataclasses import dataclass

from toolkit.tuning.evidence import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What is known of one host."""

    name: str
    url: str
    evidence: Evidence
    run: str | None = None
    error: str | None = None
    """Why nothing could be seen."""
    stopped: bool = False
    """Somebody stopped the looking; what was seen until then is judged."""
