"""What the container may use: memory and cores of its control group, version 2 or 1. It reads only.

A limit stands at any level between the process' own group and the top that can be seen; the tightest one holds.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from toolkit.serving.preflight import kernel

UNLIMITED = 1 << 60
"""Version 1 writes 9223372036854771712 for `no limit`, rounded to pages; no machine has an exbibyte."""


def memory(root: Path = Path("/")) -> tuple[int | None, int]:
    """The limit that leaves least, and what is used of it that cannot be dropped; None: no limit that can be seen."""
    found: list[tuple[int, int]] = []
    for level in _levels(root, "memory"):
        limit, used = kernel.number(level / "memory.max"), kernel.number(level / "memory.current")
        inactive = "inactive_file "
        if limit is None and used is None:
            limit = kernel.number(level / "memory.limit_in_bytes")
            used = kernel.number(level / "memory.usage_in_bytes")
            inactive = "total_inactive_file "
        if limit is not None and limit < UNLIMITED:
            lines = (kernel.text(level / "memory.stat") or "").splitlines()
            dropped = sum(int(line.split()[1]) for line in lines if line.startswith(inactive))
            found.append((limit, max(0, (used or 0) - dropped)))
    return min(found, key=lambda pair: pair[0] - pair[1], default=(None, 0))


def cores(root: Path = Path("/")) -> float | None:
    """The fewest that any level allows; None: no limit that can be seen."""
    found = []
    for level in _levels(root, "cpu"):
        pair = kernel.numbers(level / "cpu.max") or [
            *kernel.numbers(level / "cpu.cfs_quota_us"),
            *kernel.numbers(level / "cpu.cfs_period_us"),
        ]
        if len(pair) == 2 and pair[0] > 0 and pair[1] > 0:
            found.append(pair[0] / pair[1])
    return min(found, default=None)


def _levels(root: Path, controller: str) -> Iterator[Path]:
    """From the process' own group up to the top that is mounted here."""
    # lines like `0::/user.slice` (version 2) and `4:memory:/docker/ab12` (version 1)
    for line in (kernel.text(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        names, _, group = rest.partition(":")
        is_two = number == "0" and not names
        if not is_two and controller not in names.split(","):
            continue
        for mount in (kernel.text(root / "proc/self/mountinfo") or "").splitlines():
            left, _, right = mount.partition(" - ")
            fields, (kind, *more) = left.split(), (right.split() or [""])
            is_it = is_two or controller in (more[-1] if more else "").split(",")
            if len(fields) > 4 and kind == ("cgroup2" if is_two else "cgroup") and is_it:
                top, inside = root / fields[4].lstrip("/"), fields[3]
                below = group.removeprefix(inside) if inside != "/" else group
                level = top / below.strip("/")
                # a group outside the container's view reads `/../..`; then only the top says anything
                if ".." in below or not os.path.isdir(level):  # noqa: PTH112 (never raises)
                    level = top
                yield level
                while level != top:
                    level = level.parent
                    yield level
                break
