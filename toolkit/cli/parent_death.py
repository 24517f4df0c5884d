"""Runs a command that ends with the process that wants it: `python parent_death.py PARENT COMMAND...`.

A parent that is killed can tell nobody. Linux is asked to send SIGTERM to the command then, which ends a blast cleanly;
elsewhere the command outlives its parent. Run by path, so it imports nothing of the toolkit's.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""From <sys/prctl.h>; the setting outlives exec."""


def main() -> None:
    """Ask for the parent-death signal and become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before it could be asked about
        sys.exit(1)
    os.execv(command[0], command)  # noqa: S606 (the parent's own words, and no shell)


if __name__ == "__main__":
    main()
