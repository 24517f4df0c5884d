"""One thing that preflight looked at, and what came of it: a record, and the three ways to make one. Pure."""

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


def good(check: str, why: str) -> Check:
    """Nothing to do."""
    return Check(check=check, status="ok", why=why)


def doubtful(check: str, why: str, fix: str | None = None) -> Check:
    """It serves, but worse, or nobody can tell."""
    return Check(check=check, status="warn", why=why, fix=fix)


def bad(check: str, why: str, fix: str | None = None) -> Check:
    """It does not serve, or breaks under load."""
    return Check(check=check, status="fail", why=why, fix=fix)


def as_root(command: str, *, root: bool) -> str:
    """The command as this user can paste it."""
    return command if root else f"sudo {command}"


def anew(container: str | None, options: str) -> str | None:
    """How a container is started with what it lacks; a pod has no such command, its description says it."""
    return f"{container} run {options}" if container in {"docker", "podman"} else None


def size(value: float) -> str:
    """A number of bytes as people read it: `64 MiB`, `1.5 GiB`, `140 GiB`."""
    for unit, power in (("TiB", 4), ("GiB", 3), ("MiB", 2), ("KiB", 1)):
        if value >= 1024**power:
            amount = value / 1024**power
            return f"{amount:.3g} {unit}" if amount < 999.5 else f"{amount:,.0f} {unit}"
    return f"{value:.0f} B"
