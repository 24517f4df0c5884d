"""Files that hold what clients and servers wrote are made for their owner's eyes alone. What exists keeps its rights."""

import contextlib
import os
from pathlib import Path

MODE = 0o600


def make_private(path: Path) -> None:
    """Make an empty file, unless there is one; SQLite gives a file's -wal and -shm its rights and its owner.

    Where that is not possible, whoever opens it next says why.
    """
    with contextlib.suppress(OSError):
        # a link may lead to what is not there yet
        where = os.path.realpath(path)
        number = os.open(where, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, MODE)
        try:
            give_to_user(number)
        finally:
            os.close(number)


def make_folder(path: Path) -> None:
    """Make a folder with those above it, unless it is there; who may read it is the umask's to say."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in missing:
        give_to_user(each)


def give_to_user(new: int | Path) -> None:
    """Under sudo, which a live capture wants, a new file belongs to the user who said sudo, or no later command could write it."""
    if os.geteuid() != 0:
        return
    uid, gid = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if uid.isdecimal() and gid.isdecimal():
        os.chown(new, int(uid), int(gid))
