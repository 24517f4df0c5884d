"""What `--fix` does: only what needs no risk, and what it touched is told. Everything else stays a command to paste.

Nobody is ended, no file is removed that somebody may still want, no setting of the kernel is changed.
"""

import resource
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from toolkit.serving.fit.facts import Facts
from toolkit.serving.fit.gpus import keep_awake
from toolkit.serving.fit.needs import Needs, open_files
from toolkit.serving.fit.shared_memory import remove_left
from toolkit.serving.fit.system_checks import FILES_WANTED
from toolkit.serving.outcome import Check


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """One thing that was tried, or left to the user."""

    check: str
    done: bool
    text: str


def repairs(found: Iterable[Check], facts: Facts, needs: Needs) -> tuple[Repair, ...]:
    """Mend what can be mended without risk, and say of each other finding that it was left."""
    done: list[Repair] = []
    for check in found:
        if check.status != "ok":
            done += list(_repaired(check, facts, needs))
    return tuple(done)


def _repaired(check: Check, facts: Facts, needs: Needs) -> Iterator[Repair]:
    if check.check == "open_files":
        yield lifted(open_files(needs))
    elif check.check == "shm_leftovers" and facts.shared.leftovers:
        yield _tidied(facts)
    elif check.check.endswith("_persistence") and facts.root:
        yield _awake(check.check)
    elif check.fix:
        yield Repair(check=check.check, done=False, text=f"left to you: {check.fix}")
    else:
        yield Repair(check=check.check, done=False, text="left: no command helps from here")


def lifted(wanted: int) -> Repair:
    """Lift this process' limit of open files, and with it that of everything it starts; a shell keeps its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    aim = max(wanted, FILES_WANTED) if hard == endless else min(hard, max(wanted, FILES_WANTED))
    if soft != endless and soft < aim:
        resource.setrlimit(resource.RLIMIT_NOFILE, (aim, hard))
        soft = aim
    if soft != endless and soft < wanted:
        text = (
            f"{soft:,} open files are all that this user may have; only root lifts the hard limit"
        )
        return Repair(check="open_files", done=False, text=text)
    text = f"{soft:,} open files for this process and what it starts; your shell keeps its own: ulimit -n {aim}"
    return Repair(check="open_files", done=True, text=text)


def _tidied(facts: Facts) -> Repair:
    paths = [Path(each.path) for each in facts.shared.leftovers]
    gone = [path for path in paths if remove_left(path)]
    kept = len(paths) - len(gone)
    text = f"removed {len(gone)} file{'s' * (len(gone) != 1)} that no process held"
    text += f"; {kept} could not be removed" if kept else ""
    return Repair(check="shm_leftovers", done=not kept, text=text)


def _awake(code: str) -> Repair:
    index = int(code.split("_")[1])
    refusal = keep_awake(index)
    text = f"GPU {index} stays awake now" if refusal is None else f"GPU {index} refuses: {refusal}"
    return Repair(check=code, done=refusal is None, text=text)
