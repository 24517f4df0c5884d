"""Orphan cleanup: what an earlier serve left in its folder when it was killed, engines that still run and the note of whose answers were stored."""

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from toolkit.errors import ToolkitError, reason_of
from toolkit.serving.processes import (
    KILLED_S,
    NOBODY,
    TERM_S,
    Origin,
    boot_id,
    end,
    family,
    is_same,
    remove_shared,
    shared_files,
    start_ticks,
)

NOTE = ".family"
"""Beside each engine's log while it runs: which processes it has."""
LOOK_S = 0.1
REAPER_S = KILLED_S + 30.0
"""Longest wait for a reaper whose serve died; its own limits are shorter."""
ANSWERED = "answered.json"


def note_of(log: Path) -> Path:
    """Where it stands which processes were started, for the next start after a crash."""
    return log.with_name(log.name + NOTE)


def write_note(log: Path, origin: Origin) -> None:
    """Note a family. The keys are those of 2026's first releases: what they left is found, too."""
    noted = {
        "boot": boot_id(),
        "house": os.getpid(),
        "house_started": start_ticks(os.getpid()) or 0,
        "keeper_started": start_ticks(origin.reaper) or 0,
        "keeper": origin.reaper,
        "engine": origin.engine,
        "started": origin.started,
        "mark": origin.mark,
    }
    note_of(log).write_text(json.dumps(noted))


async def end_orphan(log: Path, within_s: float = TERM_S) -> tuple[int, bool] | None:
    """End what an earlier start with this log left behind, when both it and its reaper were killed.

    The engine's pid and whether it still ran; None where nothing is noted.
    Raises ToolkitError while the engine of a serve that lives writes there.
    """
    try:
        noted = json.loads(note_of(log).read_bytes())
        serve = int(noted["house"]), int(noted["house_started"])
        reaper = int(noted["keeper"]), int(noted["keeper_started"])
        engine = int(noted["engine"]), int(noted["started"])
        origin = Origin(
            reaper=reaper[0], engine=engine[0], started=engine[1], mark=str(noted["mark"])
        )
        since_boot = noted["boot"] == boot_id()
    except (OSError, ValueError, KeyError, TypeError):
        return None  # none, or one that a full disk cut short
    still_ran = since_boot and is_same(*engine)
    if since_boot:
        if is_same(*serve) and is_same(*reaper):
            raise ToolkitError(
                f"an engine that writes `{log}` is running, started by process {serve[0]}",
                "Stop it first (`toolkit serve stop`), or give this one another folder",
            )
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + REAPER_S
        while is_same(*reaper):
            if loop.time() > give_up_at:
                raise ToolkitError(
                    f"process {reaper[0]} of an earlier start does not end",
                    f"End it by hand: `kill -9 {reaper[0]}`",
                )
            await asyncio.sleep(LOOK_S)
        await asyncio.to_thread(end_without_reaper, origin, within_s)
    note_of(log).unlink(missing_ok=True)
    return engine[0], still_ran


def end_without_reaper(origin: Origin, within_s: float) -> list[int]:
    """End a family whose reaper was killed, with its shared memory; the pids of those whom that does not end."""
    origin = replace(origin, reaper=NOBODY)
    shared = shared_files(one.pid for one in family(origin))
    left = end(origin, within_s)
    remove_shared(shared)
    return left


async def end_orphans(folder: Path) -> list[str]:
    """End the engines of a serve that was killed; a sentence for each that it left."""
    sentences = []
    for note in await asyncio.to_thread(lambda: sorted(folder.glob(f"*.log{NOTE}"))):
        log = note.with_suffix("")
        found = await end_orphan(log)
        if found is not None:
            how = "is ended now" if found[1] else "has ended by itself"
            sentences.append(
                f"The serve before was killed; its engine `{log.stem}` (pid {found[0]}) {how}"
            )
    return sentences


def answered(folder: Path) -> Mapping[str, str] | None:
    """What answered last, by what clients call it (swap.meaning); None: nothing yet. Empty: nobody knows, and it was somebody else."""
    try:
        found = json.loads((folder / ANSWERED).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_answered(folder: Path, meanings: Mapping[str, str]) -> None:
    """Keep it, whole or not at all. Raises ToolkitError where the disk is full."""
    draft = folder / f".{ANSWERED}"
    try:
        draft.write_text(json.dumps(dict(meanings), indent=1))
        draft.replace(folder / ANSWERED)
    except OSError as error:
        raise unwritten(folder, error) from error


def unwritten(folder: Path, error: OSError) -> ToolkitError:
    """The error where the folder takes nothing more."""
    return ToolkitError(
        f"`{folder}` cannot be written: {reason_of(error)}",
        f"`df -h {folder}` tells how full its disk is; --folder names another",
    )
