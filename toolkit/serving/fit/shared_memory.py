"""What lies in /dev/shm, and which of it nobody holds open any more.

A killed vLLM leaves files behind: 420 MB by their length for the front end's and the worker's messages (0.32.0).
Whether somebody still uses one is asked of the kernel by a write lease, which it grants only for a file that no process
has open or mapped, also none of another container that shares the folder; /proc shows this container's alone.
"""

import fcntl
import os
import re
import signal
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from toolkit.serving.fit.facts import Folder, SharedMemory

FOLDER = Path("/dev/shm")  # noqa: S108 (looked at, not written to)
KINDS = re.compile(r"(psm_|sem\.mp-|nccl-|torch_)[A-Za-z0-9_.-]+")
"""What Python's shared memory and semaphores, NCCL and PyTorch call theirs; other files are other people's.
The folder is everybody's: a name with a blank or a terminal's escape in it would be pasted, too."""
MOST_FILES = 4096


def shared_memory(folder: Path = FOLDER) -> SharedMemory:
    """Room, and what is left over."""
    try:
        room = os.statvfs(folder)
        files = sorted(folder.iterdir())
    except OSError as error:
        return SharedMemory(error=f"`{folder}` cannot be read: {(error.strerror or '?').lower()}")
    paths = [path for path in files if KINDS.fullmatch(path.name)][:MOST_FILES]
    judged = [(path, is_left(path)) for path in paths]
    left = [_entry(path) for path, answer in judged if answer]
    return SharedMemory(
        total_bytes=room.f_blocks * room.f_frsize,
        free_bytes=room.f_bavail * room.f_frsize,
        leftovers=tuple(sorted(left, key=lambda each: (-each.used_bytes, each.path))),
        unclear=sum(answer is None for _, answer in judged),
    )


def _entry(path: Path) -> Folder:
    with suppress(OSError):
        return Folder(path=str(path), used_bytes=path.lstat().st_blocks * 512)
    return Folder(path=str(path), used_bytes=0)


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
        return stat.S_ISREG(os.fstat(file).st_mode) and _leased(file, act)
    finally:
        os.close(file)  # ends the lease, too


def _leased(file: int, act: Callable[[], None]) -> bool | None:
    try:
        # somebody who opens it while we hold the lease sends SIGIO, which would end this process; SIGURG is ignored
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except BlockingIOError:
        return False
    except OSError:  # another user's file, or a kernel without leases
        return None
    try:
        act()
    except OSError:
        return None
    return True
