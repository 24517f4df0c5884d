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
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from toolkit.serving.preflight.check import Check, as_root, fail, ok, unless_contained, warn
from toolkit.serving.preflight.kernel import MAY_MOUNT, may
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
        files = [path for path in sorted(folder.iterdir()) if KINDS.fullmatch(path.name)]
    except OSError as error:
        reason = (error.strerror or "?").lower()
        why = f"`{folder}` cannot be read: {reason}: vLLM's processes exchange their data there"
        yield fail("shm", why)
        return
    answers = {path: is_left(path) for path in files[:MOST_FILES]}
    left = []
    for path in (path for path, answer in answers.items() if answer):
        with suppress(OSError):
            left.append((-path.lstat().st_blocks * 512, path))
    left.sort()
    held, free = -sum(used for used, _ in left), room.f_bavail * room.f_frsize
    tidy = "toolkit preflight --fix"
    if len(left) <= MOST_NAMED:
        tidy = "rm -f -- " + " ".join(shlex.quote(str(path)) for _, path in left)

    said = f"{size(free)} of {size(room.f_blocks * room.f_frsize)} free in `{folder}`"
    # what is left over goes first where that alone makes room; a container without rights must be started anew.
    # A share of the memory, not a size: a mount that may outgrow the memory ends in the kernel's choice of a victim
    remount = f"mount -o remount,size=50% {folder}"
    larger: str | None = as_root(remount)
    if free + held >= WANTED:
        larger = tidy
    elif not may(MAY_MOUNT):
        larger = unless_contained(remount, "--ipc=host")
    if free >= WANTED:
        yield ok("shm", f"{said}; vLLM and NCCL exchange their data there")
    elif free >= LEAST:
        yield warn("shm", f"{said}: too little for several GPUs, which want 2 GiB", larger)
    else:
        why = "vLLM's processes exchange their data there, and one that finds it full ends with a bus error"
        yield fail("shm", f"{said}: {why}", larger)

    code, unclear = "shm_leftovers", sum(answer is None for answer in answers.values())
    if left:
        why = (
            f"{counted(len(left), 'file')} in `{folder}` that no process holds any more, {size(held)}: a killed vLLM"
            " leaves them, and they fill the memory until somebody removes them"
        )
        yield warn(code, why, tidy, partial(_removed, [path for _, path in left]))
    elif unclear:
        why = f"unknown: {counted(unclear, 'file')} in `{folder}` may still be in use; only their owner and root can tell"
        fix = None if os.geteuid() == 0 else 'sudo "$(command -v toolkit)" preflight'
        yield warn(code, why, fix)
    else:
        yield ok(code, f"no killed server left files in `{folder}`")


def _removed(paths: list[Path]) -> tuple[bool, str]:
    gone = sum(is_left(path, remove=True) is True for path in paths)
    kept = f"; {len(paths) - gone} could not be removed" if gone < len(paths) else ""
    return not kept, f"removed {counted(gone, 'file')} that no process held{kept}"


def is_left(path: Path, *, remove: bool = False) -> bool | None:
    """Whether nobody has a file open any more; None where the kernel does not tell this user.

    With `remove` it goes, too, while the kernel keeps everybody else out: who opens it meanwhile waits for us.
    """
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
        if remove:
            path.unlink()
    except BlockingIOError:
        return False
    except OSError:  # another user's file, or a kernel without leases
        return None
    finally:
        os.close(file)  # ends the lease, too
    return True
