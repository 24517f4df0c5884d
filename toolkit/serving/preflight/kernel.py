"""What the kernel says in small files of /proc and /sys, and what processes were started as; None where that is refused."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

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


def numbers(path: Path | str) -> list[int]:
    """The whole numbers of a file; none where it holds anything else."""
    try:
        return [int(word) for word in (text(path) or "").split()]
    except ValueError:
        return []


def number(path: Path | str) -> int | None:
    """A file that holds one whole number."""
    return next(iter(numbers(path)), None)


def command(process: psutil.Process | int) -> str | None:
    """What a process was started as, with its arguments, on one line and without keys; None where it cannot be seen."""
    with suppress(psutil.Error, OSError):
        if isinstance(process, int):
            process = psutil.Process(process)
        shown = " ".join(_without_keys(process.cmdline() or [process.name()]))
        # whoever starts a process chooses this text: no line break and no terminal's escape passes
        return " ".join("".join(each if each.isprintable() else " " for each in shown).split())
    return None


def _without_keys(words: list[str]) -> Iterator[str]:
    """`--api-key secret` and `--api-key=secret` are shown as `--api-key ***`; a list of keys ends at the next option."""
    hidden = False
    for word in words:
        name, given, _ = word.partition("=")
        if word.startswith("-"):
            hidden = bool(SECRET.search(name)) and not given
            yield f"{name}=***" if given and SECRET.search(name) else word
        else:
            yield "***" if hidden and word else word
