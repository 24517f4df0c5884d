"""Who belongs to an engine; ends them all, and removes the shared memory that they leave.

A vLLM is a family: API server, engine core, workers, resource trackers. SIGKILL on the first orphans the rest, which
keep their memory; so a family is found by descent, by session and by a mark in its environment, and no one alone.
"""

import os
import platform
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

MARK = "TOOLKIT_ENGINE"
"""The variable that an engine's whole family inherits; vLLM 0.32's renamed processes keep it, others may not."""
SHARED_MEMORY = "/dev/shm/"  # noqa: S108 (where POSIX keeps shared memory on Linux)
NOBODY = -1
LOOK_S = 0.05
"""Between two looks at those who are to end."""
TERM_S = 10.0
"""From SIGTERM to SIGKILL; a vLLM at rest takes about 2 s."""
KILLED_S = 30.0
"""Longest wait after SIGKILL; a process that is still there waits in the kernel, e.g., for a GPU's driver."""
DEAD = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
"""Its memory is free, only its exit code waits to be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a family descends from."""

    reaper: int
    """NOBODY once it is gone: its number may be another's."""
    engine: int
    """Leader of a session of its own, which carries its number."""
    started: int
    """The engine's `start_ticks`."""
    mark: str


@dataclass(frozen=True, slots=True, order=True)
class SharedFile:
    """A file in shared memory, and which one: names are used again."""

    path: str
    inode: int


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot: with the pid, who it is. None where it is gone."""
    # psutil's own time of creation moves when the machine's clock is set; from boot on it does not
    booted: float = psutil.boot_time()
    with suppress(psutil.Error):
        created: float = psutil.Process(pid).create_time()
        return round((created - booted) * os.sysconf("SC_CLK_TCK"))
    return None


def is_same(pid: int, started: int) -> bool:
    """Whether this very process still runs."""
    with suppress(psutil.Error):
        return start_ticks(pid) == started and psutil.Process(pid).status() not in DEAD
    return False


def boot_id() -> str:
    """Pids and ticks begin anew with each boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()


def identity(pid: int) -> dict[str, str | int]:
    """Who a process is, for `still_runs`: the database keeps it of whoever writes a run."""
    return {"boot": boot_id(), "pid": pid, "started": start_ticks(pid) or 0}


def still_runs(noted: object) -> bool:
    """Whether the process with this identity runs, on this machine and since the same boot."""
    match noted:
        case {"boot": str(boot), "pid": int(pid), "started": int(started)}:
            return boot == boot_id() and is_same(pid, started)
    return False


def family(origin: Origin) -> list[psutil.Process]:
    """Those of an engine that still run, without its reaper."""
    # a session outlives its leader and keeps its number from others; with another leader it is another session
    is_ours = start_ticks(origin.engine) in (None, origin.started)
    session = origin.engine if is_ours else NOBODY
    running: dict[int, psutil.Process] = {}
    parents: dict[int, int] = {}
    ours: set[int] = set()
    # not `process_iter`: its cache leaves out a process that has another's number, once
    for pid in psutil.pids():
        with suppress(psutil.Error, OSError):
            one = psutil.Process(pid)
            with one.oneshot():
                if one.status() in DEAD:
                    continue
                running[pid], parents[pid] = one, one.ppid()
            is_near = parents[pid] == origin.reaper or os.getsid(pid) == session
            # other users' environments are kept from us
            if is_near or one.environ().get(MARK) == origin.mark:
                ours.add(pid)
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return [running[pid] for pid in sorted(ours - {origin.reaper, os.getpid()})]


def end(origin: Origin, within_s: float, meanwhile: Callable[[], None] = lambda: None) -> list[int]:
    """End a family: SIGTERM, after `within_s` SIGKILL; the pids of those whom even that does not end.

    The engine gets its SIGTERM alone: workers that end beside their parent look to it like a failure.
    Those that it leaves behind get theirs when it has gone.
    """
    left = family(origin)
    engine = [one for one in left if one.pid == origin.engine]
    _signal(engine or left, signal.SIGTERM)
    kill_at = time.monotonic() + within_s
    while left := family(origin):
        now = time.monotonic()
        if now >= kill_at + KILLED_S:
            break
        if now >= kill_at:
            _signal(left, signal.SIGKILL)
        elif engine and all(one.pid != origin.engine for one in left):
            _signal(left, signal.SIGTERM)
            engine = []
        meanwhile()
        time.sleep(LOOK_S)
    return [one.pid for one in left]


def _signal(members: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Signal those who are still the same, and wake them: a frozen process would not act on it."""
    for one in members:
        with suppress(psutil.Error):
            one.send_signal(number)
            one.resume()


def shared_files(pids: Iterable[int]) -> set[SharedFile]:
    """The shared memory that processes have mapped: vLLM's ring buffers, multiprocessing's semaphores."""
    paths = set()
    for pid in pids:
        # psutil reads `smaps`, for which the kernel counts every page: 6.0 ms against 0.4 ms for 232 mappings
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
            paths |= {line[line.find("/") :] for line in lines if SHARED_MEMORY in line}
    found = {_shared_file(path) for path in paths if path.startswith(SHARED_MEMORY)}
    return {each for each in found if each is not None}


def _shared_file(path: str) -> SharedFile | None:
    """None for one that is gone: such lines end in ` (deleted)`, and so name no file."""
    try:
        return SharedFile(path, os.stat(path).st_ino)  # noqa: PTH116
    except OSError:
        return None


def remove_shared(files: Iterable[SharedFile]) -> None:
    """Remove what was a family's and is now nobody's."""
    wanted = {file for file in files if _shared_file(file.path) == file}
    if wanted:
        for file in wanted - shared_files(psutil.pids()):
            with suppress(OSError):
                os.unlink(file.path)  # noqa: PTH108
