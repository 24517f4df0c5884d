"""Shared memory, through which vLLM's processes and NCCL's talk: its room, and files that nobody holds open any more.

A killed vLLM leaves files behind: 420 MB by their length for the front end's and the worker's messages (0.32.0).
Whether somebody still uses one is asked of the kernel by a write lease, which it grants only for a file that no process
has open or mapped, also none of another container that shares the folder; /proc shows this container's alone.
"""

import fcntl
import os
import re
import shlex
import signal
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from toolkit.serving.preflight.check import (
    Check,
    as_root,
    bad,
    container,
    doubtful,
    good,
    started_with,
)
from toolkit.serving.preflight.system import MAY_MOUNT, may
from toolkit.units import counted, size

FOLDER = Path("/dev/shm")  # noqa: S108 (looked at, not written to)
KINDS = re.compile(r"(psm_|sem\.mp-|nccl-|torch_)[A-Za-z0-9_.-]+")
"""What Python's shared memory and semaphores, NCCL and PyTorch call theirs; other files are other people's.
The folder is everybody's: a name with a blank or a terminal's escape in it would be pasted, too."""
MOST_FILES = 4096
LEAST = 512 * 2**20
"""vLLM 0.32.0 laid two files of together 420 MB there; a Docker container has 64 MiB if nobody asks for more."""
WANTED = 2 * 2**30
"""What vLLM's own Kubernetes example mounts there for tensor parallelism."""
MOST_NAMED = 20
"""Leftovers in a command that a person pastes; of more, one word does it."""


def checks(folder: Path = FOLDER) -> Iterator[Check]:
    """Room, and what is left over."""
    try:
        room = os.statvfs(folder)
        files = sorted(folder.iterdir())
    except OSError as error:
        reason = (error.strerror or "?").lower()
        yield bad("shm", f"`{folder}` cannot be read: {reason}: vLLM's processes talk there")
        return
    judged = {
        path: is_left(path)
        for path in [each for each in files if KINDS.fullmatch(each.name)][:MOST_FILES]
    }
    left = sorted(
        ((_used(path), path) for path, answer in judged.items() if answer),
        key=lambda pair: (-pair[0], pair[1]),
    )
    held, free = sum(used for used, _ in left), room.f_bavail * room.f_frsize
    tidy = "toolkit preflight --fix"
    if len(left) <= MOST_NAMED:
        tidy = "rm -f -- " + " ".join(shlex.quote(str(path)) for _, path in left)

    said = f"{size(free)} of {size(room.f_blocks * room.f_frsize)} free in `{folder}`"
    # what is left over goes first where that alone makes room; a container without rights must be started anew.
    # A share of the memory, not a size: a mount that may outgrow the memory ends in the kernel's choice of a victim
    larger = as_root(f"mount -o remount,size=50% {folder}")
    if free + held >= WANTED:
        larger = tidy
    elif container() and not may(MAY_MOUNT):
        larger = started_with("--ipc=host") or ""
    if free >= WANTED:
        yield good("shm", f"{said}; vLLM and NCCL lay their messages there")
    elif free >= LEAST:
        yield doubtful(
            "shm", f"{said}: too little for several GPUs, which want 2 GiB", larger or None
        )
    else:
        why = "vLLM's processes talk there, and one that finds it full ends with a bus error"
        yield bad("shm", f"{said}: {why}", larger or None)

    unclear = sum(answer is None for answer in judged.values())
    if left:
        yield doubtful(
            "shm_leftovers",
            f"{counted(len(left), 'file')} in `{folder}` that no process holds any more, {size(held)}: a killed vLLM"
            " leaves them, and they fill the memory until somebody removes them",
            tidy,
            partial(_removed, [path for _, path in left]),
        )
    elif unclear:
        yield doubtful(
            "shm_leftovers",
            f"unknown: {counted(unclear, 'file')} in `{folder}` of which only their owner can tell whether they are still"
            " in use",
            None if os.geteuid() == 0 else 'sudo "$(command -v toolkit)" preflight',
        )
    else:
        yield good("shm_leftovers", f"no killed server left files in `{folder}`")


def _used(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except OSError:
        return 0


def _removed(paths: list[Path]) -> tuple[bool, str]:
    gone = sum(remove_left(path) for path in paths)
    kept = f"; {len(paths) - gone} could not be removed" if gone < len(paths) else ""
    return not kept, f"removed {counted(gone, 'file')} that no process held{kept}"


def is_left(path: Path) -> bool | None:
    """Whether nobody holds a file any more; None where the kernel does not tell this user."""
    return _while_alone(path, lambda: None)


def remove_left(path: Path) -> bool:
    """Remove a file while the kernel keeps everybody else out; False: somebody holds it, or it is another's."""
    return _while_alone(path, path.unlink) is True


def _while_alone(path: Path, act: Callable[[], None]) -> bool | None:
    """Act while nobody has the file open; False: somebody has. Who opens it meanwhile waits for us."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return False
        # somebody who opens it while we hold the lease sends SIGIO, which would end this process; SIGURG is ignored
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        act()
    except BlockingIOError:
        return False
    except OSError:  # another user's file, or a kernel without leases
        return None
    finally:
        os.close(file)  # ends the lease, too
    return True
