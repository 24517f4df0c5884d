"""What the command line of `toolkit capture` said."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ANY = "any"
ROTATE = "100MB"
KEEP = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """The command line of one capture, fields named as its options."""

    files: tuple[str, ...]
    port: tuple[int, ...]
    iface: str | None
    engine: Literal["scapy", "ring", "tcpdump"] | None
    buffer: int | None
    full: bool
    duration: float | None
    follow: bool
    path: str | None
    as_json: bool
    bodies: bool
    jsonl: Path | None
    rotate: int | None
    keep: int | None
    store_prompts: bool
    show_clients: bool
    database: Path
    no_store: bool

    @property
    def is_live(self) -> bool:
        """Whether packets come from this machine's interfaces."""
        return not self.files

    @property
    def ends_by_itself(self) -> bool:
        """Whether there is an end to what is read."""
        return not (self.is_live or self.follow or "-" in self.files)
