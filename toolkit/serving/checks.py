"""Is this machine fit to serve? Facts in, checks out. It looks at nothing itself: machine.py does."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at; the keys of `toolkit preflight --json`."""

    check: str
    """A stable code, e.g., `open_files`, `disk`, `port_8000`."""
    status: State
    why: str
    """What was found, and why it matters, in one sentence."""
    fix: str | None = None
    """A command that can be pasted; None: nothing is wrong, or no command helps."""
