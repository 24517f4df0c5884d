"""What an earlier serve left in its folder when it was killed: engines that still run, and whose answers were stored. It touches files."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.serving.start.launch import end_leftovers
from toolkit.serving.start.processes import is_same

NOTE = ".log.family"
"""What launch.py writes beside each engine's log while it runs."""
ANSWERED = "answered.json"


async def end_orphans(folder: Path) -> list[str]:
    """End the engines of a serve that was killed; a sentence for each that it left."""
    told = []
    for note in await asyncio.to_thread(_notes, folder):
        name = note.name.removesuffix(NOTE)
        pid, runs = _engine_in(note)
        await end_leftovers(note.with_suffix(""))
        if pid is not None:
            how = "is ended now" if runs else "has ended by itself"
            told.append(f"The serve before was killed; its engine `{name}` (pid {pid}) {how}")
    return told


def _notes(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{NOTE}"))


def answered(folder: Path) -> Mapping[str, str] | None:
    """What answered last, by what clients call it (standing.meaning); None: nothing yet. Empty: nobody knows, and it was somebody else."""
    try:
        told = json.loads((folder / ANSWERED).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def write_answered(folder: Path, meanings: Mapping[str, str]) -> None:
    """Keep it, whole or not at all. Raises ToolkitError where the disk is full."""
    draft = folder / f".{ANSWERED}"
    try:
        draft.write_text(json.dumps(dict(meanings), indent=1))
        draft.replace(folder / ANSWERED)
    except OSError as error:
        raise unwritten(folder, error) from error


def unwritten(folder: Path, error: OSError) -> ToolkitError:
    """What the user is told where the folder takes nothing more."""
    why = (error.strerror or "no reason given").lower()
    return ToolkitError(
        f"`{folder}` cannot be written: {why}",
        f"`df -h {folder}` tells how full its disk is; --folder names another",
    )


def _engine_in(note: Path) -> tuple[int | None, bool]:
    """The pid in a note, and whether that very process runs."""
    try:
        told = json.loads(note.read_bytes())
        pid, started = int(told["engine"]), int(told["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, False
    return pid, is_same(pid, started)
