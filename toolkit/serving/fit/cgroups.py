"""What the container may use: memory and cores of its control group, version 2 or 1. It reads only.

A limit stands at any level between the process' own group and the top that can be seen; the tightest one holds.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from toolkit.serving.fit import kernel

UNLIMITED = 1 << 60
"""Version 1 writes 9223372036854771712 for `no limit`, rounded to pages; no machine has an exbibyte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is allowed; None: no limit that can be seen."""

    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    cores: float | None = None


def limits(root: Path = Path("/")) -> Limits:
    """The tightest limits of this process."""
    memory = _tightest_memory(root)
    cores = [cores for level in _levels(root, "cpu") if (cores := _cores(level)) is not None]
    return Limits(
        memory_bytes=memory[0] if memory else None,
        memory_used_bytes=memory[1] if memory else None,
        cores=min(cores) if cores else None,
    )


def _tightest_memory(root: Path) -> tuple[int, int | None] | None:
    found = [pair for level in _levels(root, "memory") if (pair := _memory(level)) is not None]
    return min(found, key=lambda pair: pair[0] - (pair[1] or 0)) if found else None


def _levels(root: Path, controller: str) -> Iterator[Path]:
    """From the process' own group up to the top that is mounted here."""
    for is_two, group in _groups(root, controller):
        mount = _mount(root, controller, is_two=is_two)
        if mount is None:
            continue
        top, inside = mount
        below = group.removeprefix(inside) if inside != "/" else group
        level = top / below.strip("/")
        # a group outside the container's view reads `/../..`; then only the top tells anything
        level = top if ".." in below or not os.path.isdir(level) else level  # noqa: PTH112 (never raises)
        yield level
        while level != top:
            level = level.parent
            yield level


def _groups(root: Path, controller: str) -> Iterator[tuple[bool, str]]:
    """Lines like `0::/user.slice` (version 2) and `4:memory:/docker/ab12` (version 1)."""
    for line in (kernel.text(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        names, _, group = rest.partition(":")
        if number == "0" and not names:
            yield True, group
        elif controller in names.split(","):
            yield False, group


def _mount(root: Path, controller: str, *, is_two: bool) -> tuple[Path, str] | None:
    """Where the controller's files are, and which group stands there as the top."""
    for line in (kernel.text(root / "proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, (kind, *rest) = left.split(), (right.split() or [""])
        if len(fields) < 5 or kind != ("cgroup2" if is_two else "cgroup"):
            continue
        if is_two or controller in (rest[-1] if rest else "").split(","):
            return root / fields[4].lstrip("/"), fields[3]
    return None


def _memory(level: Path) -> tuple[int, int | None] | None:
    limit, used = kernel.number(level / "memory.max"), kernel.number(level / "memory.current")
    inactive = "inactive_file"
    if limit is None and used is None:
        limit = kernel.number(level / "memory.limit_in_bytes")
        used, inactive = kernel.number(level / "memory.usage_in_bytes"), "total_inactive_file"
    if limit is None or limit >= UNLIMITED:
        return None
    dropped = kernel.whole(kernel.table(level / "memory.stat", " ").get(inactive, "")) or 0
    return limit, None if used is None else max(0, used - dropped)


def _cores(level: Path) -> float | None:
    two = (kernel.text(level / "cpu.max") or "").split()
    number: Callable[[str], int | None] = lambda name: kernel.number(level / name)  # noqa: E731
    quota, period = (
        (kernel.whole(two[0]), kernel.whole(two[1]))
        if len(two) == 2
        else (number("cpu.cfs_quota_us"), number("cpu.cfs_period_us"))
    )
    return quota / period if quota and period and quota > 0 else None
