"""What the command line of `toolkit workload` said."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """The command line of one report, fields named as its options."""

    sources: tuple[str, ...]
    run: str | None
    since: float | None
    until: float | None
    latency: float | None
    max_model_len: int | None
    model_limit: int | None
    max_num_seqs: int | None
    policy: Literal["all", "declared"]
    ttl: tuple[float, ...]
    size: tuple[int, ...]
    show_clients: bool
    as_json: bool
    html: Path | None
    profile: Path | None
    export: Literal["mooncake", "burstgpt"] | None
    database: Path
