"""Who belongs to an engine, read from /proc; ends them all, and removes the shared memory that they leave.

A vLLM is a family: API server, engine core, workers, resource trackers. SIGKILL on the first orphans the rest, which
keep their memory; so a family is found by descent, by session and by a mark in its environment, and no one alone.
Where there is no /proc, as on a Mac, descent and process group are asked of `ps`: enough for the simulator.
"""

import os
import platform
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "TOOLKIT_ENGINE"
"""The variable that an engine's whole family inherits; vLLM 0.32's renamed processes keep it, others may not."""
SHARED_MEMORY = "/dev/shm/"  # noqa: S108 (where POSIX keeps shared memory on Linux)
HAS_PROC = Path("/proc/self/stat").exists()
NOBODY = -1
LOOK_S = 0.05
"""Between two looks at those who are asked to end."""
KILLED_S = 30.0
"""Longest wait after SIGKILL; who is still there waits in the kernel, e.g., for a GPU's driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One process as /proc shows it."""

    pid: int
    parent: int
    session: int
    started: int
    """Clock ticks since boot: with the pid, who it is."""
    dead: bool
    """A zombie: its memory is free, only its exit code waits to be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a family descends from."""

    keeper: int
    """NOBODY once it is gone: its number may be another's."""
    engine: int
    """Leader of a session of its own, which carries its number."""
    started: int
    """The engine's; older processes are nobody's children."""
    mark: str


@dataclass(frozen=True, slots=True, order=True)
class SharedFile:
    """A file in shared memory, and which one: names are used again."""

    path: str
    inode: int


def member(pid: int) -> Member | None:
    """One process; None where it is gone."""
    if not HAS_PROC:
        return listed().get(pid)
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes().decode(errors="replace")
    except OSError:
        return None
    # the name stands in brackets and may hold brackets and blanks itself
    words = text[text.rfind(")") + 2 :].split()
    return Member(
        pid=pid,
        parent=int(words[1]),
        session=int(words[3]),
        started=int(words[19]),
        dead=words[0] in "ZX",
    )


def everyone() -> dict[int, Member]:
    """All processes of this machine, or of this container."""
    if not HAS_PROC:
        return listed()
    pids = (int(name) for name in os.listdir("/proc") if name.isdecimal())  # noqa: PTH208 (2,000 paths a look)
    return {pid: one for pid in pids if (one := member(pid)) is not None}


def listed() -> dict[int, Member]:
    """All processes as `ps` lists them everywhere: a group for a session, and nobody's start."""
    words = ["ps", "-axo", "pid=,ppid=,pgid=,stat="]
    told = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 (our own words)
    rows = [line.split() for line in told.stdout.splitlines()]
    return {
        int(row[0]): Member(
            pid=int(row[0]),
            parent=int(row[1]),
            session=int(row[2]),
            started=0,
            dead=row[3].startswith("Z"),
        )
        for row in rows
    }


def family(origin: Origin) -> list[Member]:
    """Those of an engine that still run, without its keeper."""
    all_of_them = everyone()
    young = [one for one in all_of_them.values() if one.started >= origin.started]
    leader = all_of_them.get(origin.engine)
    # the number of a session in use is given to nobody; with another leader it is another session
    session = origin.engine if leader is None or leader.started == origin.started else NOBODY
    ours = {one.pid for one in young if one.session == session or _is_marked(one, origin)}
    ours |= {one.pid for one in young if one.parent == origin.keeper}
    while more := {one.pid for one in young if one.parent in ours} - ours:
        ours |= more
    return [
        all_of_them[pid]
        for pid in sorted(ours - {origin.keeper, os.getpid()})
        if not all_of_them[pid].dead
    ]


def _is_marked(one: Member, origin: Origin) -> bool:
    return not one.dead and mark_of(one.pid) == origin.mark


def mark_of(pid: int) -> str | None:
    """The engine that a process was started for; None for all others, and for other users' processes."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    head = f"{MARK}=".encode()
    found = next((word for word in variables if word.startswith(head)), None)
    return None if found is None else os.fsdecode(found.removeprefix(head))


def is_same(pid: int, started: int) -> bool:
    """Whether this very process still runs."""
    one = member(pid)
    return one is not None and one.started == started and not one.dead


def identity(pid: int) -> dict[str, str | int]:
    """Who a process is, for `still_runs`: what a database says of who writes a run."""
    one = member(pid)
    return {"boot": _boot(), "pid": pid, "started": one.started if one else 0}


def still_runs(noted: object) -> bool:
    """Whether the process with this identity runs, on this machine and since the same boot."""
    match noted:
        case {"boot": str(boot), "pid": int(pid), "started": int(started)}:
            return boot == _boot() and is_same(pid, started)
    return False


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()


def tell(members: Iterable[Member], number: signal.Signals) -> None:
    """Send a signal to those who are still the same, and wake who is stopped: a frozen one would never hear it."""
    for one in members:
        if is_same(one.pid, one.started):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(one.pid, number)
                os.kill(one.pid, signal.SIGCONT)


def end(origin: Origin, within_s: float, meanwhile: Callable[[], None] = lambda: None) -> list[int]:
    """Ask the engine, then whoever is left, then leave no choice; the pids of those whom even that does not end.

    The engine is asked alone: told beside their parent, workers die first and it calls that a failure.
    """
    engine = [one for one in family(origin) if one.pid == origin.engine]
    tell(engine or family(origin), signal.SIGTERM)
    if not _gone(origin, within_s, meanwhile, alone=bool(engine)):
        give_up_at = time.monotonic() + KILLED_S
        while (left := family(origin)) and time.monotonic() < give_up_at:
            tell(left, signal.SIGKILL)
            meanwhile()
            time.sleep(LOOK_S)
    return [one.pid for one in family(origin)]


def _gone(origin: Origin, within_s: float, meanwhile: Callable[[], None], *, alone: bool) -> bool:
    """Whether all have ended in time; those whom the engine left behind are asked once themselves."""
    give_up_at = time.monotonic() + within_s
    while left := family(origin):
        if alone and all(one.pid != origin.engine for one in left):
            tell(left, signal.SIGTERM)
            alone = False
        if time.monotonic() >= give_up_at:
            return False
        meanwhile()
        time.sleep(LOOK_S)
    return True


def shared_files(pids: Iterable[int]) -> set[SharedFile]:
    """The shared memory that processes have mapped: vLLM's ring buffers, multiprocessing's semaphores."""
    paths = {path for pid in pids for path in _mapped(pid)}
    return {found for path in paths if (found := _shared_file(path)) is not None}


def _mapped(pid: int) -> set[str]:
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()  # it has gone
    paths = (line[line.find("/") :] for line in lines if SHARED_MEMORY in line)
    return {path for path in paths if path.startswith(SHARED_MEMORY)}


def _shared_file(path: str) -> SharedFile | None:
    """None for one that is gone: such lines end in ` (deleted)`, and so name no file."""
    try:
        return SharedFile(path, os.stat(path).st_ino)  # noqa: PTH116
    except OSError:
        return None


def remove_shared(files: Iterable[SharedFile]) -> list[str]:
    """Remove what was a family's and is now nobody's; the paths that were removed."""
    wanted = {file for file in files if _shared_file(file.path) == file}
    if not wanted:
        return []
    removed = sorted(wanted - shared_files(everyone()))
    for file in removed:
        with suppress(OSError):
            os.unlink(file.path)  # noqa: PTH108
    return [file.path for file in removed]
