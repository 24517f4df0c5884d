"""What the kernel says in small files of /proc, /sys and control groups, and what processes were started as. It reads only."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import psutil

SECRET = re.compile("key|token|secret|passw", re.IGNORECASE)
"""In the name of an option whose value is nobody's business."""
MAY_MOUNT, MAY_LIFT = 1 << 21, 1 << 24
"""CAP_SYS_ADMIN and CAP_SYS_RESOURCE among a process' effective capabilities; Docker gives its root neither."""
UNLIMITED = 1 << 60
"""Version 1 of control groups writes 9223372036854771712 for `no limit`, rounded to pages; no machine has an exbibyte."""


def text(path: Path | str) -> str | None:
    """A file's text; None where it is missing or kept from this user."""
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return None


def numbers(path: Path | str) -> list[int]:
    """The whole numbers of a file; none where it holds anything else."""
    try:
        return [int(word) for word in (text(path) or "").split()]
    except ValueError:
        return []


def number(path: Path | str) -> int | None:
    """A file that holds one whole number."""
    return next(iter(numbers(path)), None)


def may(capability: int) -> bool:
    """Whether this process has a right beyond other users'."""
    status = text("/proc/self/status") or ""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return bool(found and int(found[1], 16) & capability)


# --- processes ------------------------------------------------------------------------------------------------


def command(process: psutil.Process | int, longest: int | None = None) -> str | None:
    """What a process was started as, with its arguments, on one line and without keys; None where it cannot be seen."""
    try:
        if isinstance(process, int):
            process = psutil.Process(process)
        words = process.cmdline() or [process.name()]
    except (psutil.Error, OSError):
        return None
    # `--api-key secret` and `--api-key=secret` are shown as `--api-key ***`; a list of keys ends at the next option
    shown, hidden = [], False
    for word in words:
        name, has_value, _ = word.partition("=")
        if word.startswith("-"):
            is_secret = bool(SECRET.search(name))
            hidden = is_secret and not has_value
            shown.append(f"{name}=***" if is_secret and has_value else word)
        else:
            shown.append("***" if hidden and word else word)
    # whoever starts a process chooses this text: no line break and no terminal's escape passes
    printable = "".join(each if each.isprintable() else " " for each in " ".join(shown))
    line = " ".join(printable.split())
    if longest is not None and len(line) > longest:
        return line[: longest - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return line


# --- control groups -------------------------------------------------------------------------------------------
# A limit stands at any level between the process' own group and the top that can be seen; the tightest one holds.


def memory_limit(root: Path = Path("/")) -> tuple[int | None, int]:
    """The limit that leaves least, and what is used of it that cannot be dropped, in bytes; None: no limit that can be seen."""
    found: list[tuple[int, int]] = []
    for level in _control_groups(root, "memory"):
        limit, used = number(level / "memory.max"), number(level / "memory.current")
        inactive = "inactive_file "
        if limit is None and used is None:
            limit = number(level / "memory.limit_in_bytes")
            used = number(level / "memory.usage_in_bytes")
            inactive = "total_inactive_file "
        if limit is not None and limit < UNLIMITED:
            lines = (text(level / "memory.stat") or "").splitlines()
            dropped = sum(int(line.split()[1]) for line in lines if line.startswith(inactive))
            found.append((limit, max(0, (used or 0) - dropped)))
    return min(found, key=lambda pair: pair[0] - pair[1], default=(None, 0))


def core_limit(root: Path = Path("/")) -> float | None:
    """The fewest cores that any level allows; None: no limit that can be seen."""
    found = []
    for level in _control_groups(root, "cpu"):
        pair = numbers(level / "cpu.max") or [
            *numbers(level / "cpu.cfs_quota_us"),
            *numbers(level / "cpu.cfs_period_us"),
        ]
        if len(pair) == 2 and pair[0] > 0 and pair[1] > 0:
            found.append(pair[0] / pair[1])
    return min(found, default=None)


def _control_groups(root: Path, controller: str) -> Iterator[Path]:
    """From the process' own group up to the top that is mounted here."""
    mounts = [line.split() for line in (text(root / "proc/self/mountinfo") or "").splitlines()]
    for line in (text(root / "proc/self/cgroup") or "").splitlines():
        # lines like `0::/user.slice` (version 2) and `4:memory:/docker/ab12` (version 1)
        version, _, rest = line.partition(":")
        names, _, group = rest.partition(":")
        is_two = version == "0" and not names
        if not is_two and controller not in names.split(","):
            continue
        for fields in mounts:
            # `31 23 0:27 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory`
            if len(fields) < 9 or fields[-3] != ("cgroup2" if is_two else "cgroup"):
                continue
            if is_two or controller in fields[-1].split(","):
                top = root / fields[4].lstrip("/")
                below = group.removeprefix(fields[3]).strip("/")
                level = top / below
                # a group outside the container's view reads `/../..`; then only the top says anything
                if ".." in below or not os.path.isdir(level):  # noqa: PTH112 (never raises)
                    level = top
                yield from (each for each in (level, *level.parents) if each.is_relative_to(top))
                break
