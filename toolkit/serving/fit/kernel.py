"""What the kernel tells in small files, /proc and /sys: read whole, or None where that is refused. It writes nothing."""

import re
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
MOST_BYTES = 4 * 2**20
"""A table of sockets with 25,000 rows has 4 MB."""
PART_BYTES = 65_536
SECRET = re.compile("key|token|secret|passw", re.IGNORECASE)
"""In the name of an option whose value is nobody's business."""


def text(path: Path | str) -> str | None:
    """A file's text; None where it is missing or kept from this user."""
    try:
        with Path(path).open("rb", buffering=0) as file:
            parts, room = [], MOST_BYTES
            # /proc/sys refuses to be asked for megabytes at once (ENOMEM)
            while part := file.read(min(PART_BYTES, room)):
                parts.append(part)
                room -= len(part)
            return b"".join(parts).decode("utf-8", "replace")
    except (OSError, ValueError):
        return None


def number(path: Path | str) -> int | None:
    """A file that holds one whole number."""
    words = (text(path) or "").split()
    return whole(words[0]) if len(words) == 1 else None


def whole(word: str) -> int | None:
    """A whole number; None for any other word."""
    try:
        return int(word)
    except ValueError:
        return None


def table(path: Path | str, separator: str = ":") -> dict[str, str]:
    """A file of `name: value` lines."""
    parts = (line.partition(separator) for line in (text(path) or "").splitlines())
    return {name.strip(): value.strip() for name, found, value in parts if found}


def processes(proc: Path = PROC) -> Iterator[int]:
    """Every process that can be seen from here."""
    try:
        names = [each.name for each in proc.iterdir()]
    except OSError:
        return
    yield from sorted(int(name) for name in names if name.isascii() and name.isdigit())


def command(pid: int, proc: Path = PROC) -> str | None:
    """What a process was started as, with its arguments, on one line and without keys; None where it cannot be seen."""
    told = text(proc / str(pid) / "cmdline") or text(proc / str(pid) / "comm") or ""
    shown = " ".join(_without_keys(told.split("\0")))
    # whoever starts a process chooses this text: no line break and no terminal's escape passes
    return " ".join("".join(each if each.isprintable() else " " for each in shown).split()) or None


def _without_keys(words: list[str]) -> Iterator[str]:
    """`--api-key secret` and `--api-key=secret` are told as `--api-key ***`; a list of keys ends at the next option."""
    hidden = False
    for word in words:
        is_option = word.startswith("-")
        name, given, _ = word.partition("=")
        if is_option:
            hidden = bool(SECRET.search(name)) and not given
        if is_option and given and SECRET.search(name):
            yield f"{name}=***"
        else:
            yield "***" if hidden and not is_option and word else word


def parent(pid: int, proc: Path = PROC) -> int | None:
    """The process that a process belongs to."""
    return whole(table(proc / str(pid) / "status").get("PPid", ""))


def is_zombie(pid: int, proc: Path = PROC) -> bool:
    """Whether it has ended and only its exit code is left."""
    return table(proc / str(pid) / "status").get("State", "").startswith("Z")


def used_bytes(pid: int, proc: Path = PROC) -> int | None:
    """The memory that a process holds, what it shares with others included."""
    return kilobytes(table(proc / str(pid) / "status").get("VmRSS"))


def kilobytes(word: str | None) -> int | None:
    """Read `1024 kB` as bytes."""
    amount = whole((word or "").removesuffix("kB").strip())
    return None if amount is None else amount * 1024
