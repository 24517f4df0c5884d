"""The processes that a sweep starts: the toolkit's own commands, each in a session of its own.

What a child prints goes to files, so that it never waits for a reader; and its last words are there after our end. A child
that outlived a killed sweep is found again by its process id and the moment of its start, and ended.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from toolkit.errors import ToolkitError

POLL_S = 0.05
LAST_LINES = 5
"""Of the output of a child that failed without a word of its own."""
MOST_OUTPUT_BYTES = 2**20
STOP_S, LEFT_STOP_S = 45.0, 60.0
"""An orderly end: a blast waits up to 30 s for its last answers, and a server ends its engines."""

Mark = tuple[int, int]
"""A process: its id, and when it started, in the kernel's ticks since boot. Ids come again, moments don't."""


class ChildCommand:
    """One command with all that it starts."""

    def __init__(self, words: Sequence[str], *, folder: Path, name: str) -> None:
        """Start it. To be called in the main thread: Linux takes the end of the thread that forked for the parent's."""
        self.name = name
        self._data, self._log = folder / f"{name}.out", folder / f"{name}.log"
        with self._data.open("wb") as data, self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 (our own words)
                list(words),
                stdin=subprocess.DEVNULL,
                stdout=data,
                stderr=log,
                start_new_session=True,
            )
        self.mark: Mark = self._process.pid, started_ticks(self._process.pid) or 0
        """How it is found again after our end."""

    @property
    def code(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def data(self) -> list[str]:
        """Whole lines of its standard output so far."""
        return _lines(self._data)

    def messages(self) -> list[str]:
        """Whole lines of its standard error so far."""
        return _lines(self._log)

    def first_line(self, limit_s: float) -> str:
        """Wait for its first line of data. Raises ToolkitError with the cause when it ends or takes too long."""
        give_up_s = time.monotonic() + limit_s
        while not (lines := self.data()):
            if self.code is not None:
                raise self.failure()
            if time.monotonic() > give_up_s:
                raise ToolkitError(f"`{self.name}` was not ready after {limit_s:,.0f} s")
            time.sleep(POLL_S)
        return lines[0].strip()

    def wait(self, limit_s: float) -> int:
        """Wait for its end; the exit code. Raises ToolkitError when it takes too long."""
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired as error:
            over = f"`{self.name}` was not over after {limit_s:,.0f} s"
            raise ToolkitError(over) from error

    def failure(self) -> ToolkitError:
        """Why it ended, in its own words."""
        lines = self.messages()
        errors = [line.removeprefix("Error: ") for line in lines if line.startswith("Error: ")]
        if errors:
            return ToolkitError(errors[-1])
        last = "; ".join(line.strip() for line in lines[-LAST_LINES:] if line.strip())
        ended = f"`{self.name}` ended with exit code {self.code}"
        return ToolkitError(f"{ended}: {last}" if last else ended)

    def stop(self, within_s: float = STOP_S) -> None:
        """End it in order, and what is left of its session with force."""
        if self.code is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(within_s)
        pid, ticks = self.mark
        # one that ended long ago was buried, and its number may be another's by now
        if started_ticks(pid) in (None, ticks):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        self._process.wait()


def _lines(path: Path) -> list[str]:
    with contextlib.suppress(OSError), path.open("rb") as file:
        text = file.read(MOST_OUTPUT_BYTES).decode(errors="replace")
        return text[: text.rfind("\n") + 1].splitlines()
    return []


def started_ticks(pid: int) -> int | None:
    """When a process started, in the kernel's ticks since boot; None: there is none, or it waits to be buried."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # the command's name, in brackets, may hold anything
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def is_alive(mark: Mark) -> bool:
    """Whether this very process still runs."""
    return started_ticks(mark[0]) == mark[1]


def end_left(marks: Sequence[Mark], within_s: float = LEFT_STOP_S) -> int:
    """End what a killed sweep left behind; how many there were. They heard of its end already, and may be about to."""
    left = [mark for mark in marks if is_alive(mark)]
    give_up_s = time.monotonic() + within_s
    for mark in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(mark[0], signal.SIGTERM)
    while any(map(is_alive, left)) and time.monotonic() < give_up_s:
        time.sleep(POLL_S)
    for mark in filter(is_alive, left):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(mark[0], signal.SIGKILL)
    return len(left)
