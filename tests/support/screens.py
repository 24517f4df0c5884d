"""What a terminal receives, and what is to be heard on standard error."""

import os
import pty
import subprocess
from collections.abc import Sequence


def heard(errors: str) -> str:
    """Standard error without the warning that the machine of the tests is busy, which may come at any time."""
    lines = errors.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("Warning: this machine was"))


def on_a_terminal(command: Sequence[str], *, columns: int = 120, **environment: str) -> str:
    """All that a command writes to a terminal of this size; it must work."""
    ours, theirs = pty.openpty()
    size = {"COLUMNS": str(columns), "LINES": "30", "TERM": "xterm"} | environment
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | size
    ) as running:
        os.close(theirs)
        answer = received(ours)
    os.close(ours)
    assert running.returncode == 0, answer
    return answer


def received(terminal: int) -> str:
    """All that comes until the other end is closed."""
    return b"".join(iter(lambda: _read(terminal), b"")).decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux's way to say that the other end is closed
        return b""
