"""What the command line of `toolkit preflight` said."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line, fields named as its options."""

    model: str | None
    port: tuple[int, ...]
    host: str
    users: int
    weights: int | None
    quantization: str | None
    tp: int
    disk: Path | None
    vllm: str
    cpu: bool
    sim: bool
    fix: bool
    as_json: bool
