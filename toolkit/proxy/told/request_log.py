"""The log's file: lines go into memory, a thread of its own writes them. A slow, full or lost disk never holds up an answer.

What is written: every 64 KiB, and what there is each half second. So a process that is killed loses less than a second. While the disk
stalls, up to HELD_BYTES wait in memory; further lines are dropped, counted, and told in the log itself once it goes on.
"""

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.private_files import MODE, make_private
from toolkit.proxy.told.log_lines import event_line
from toolkit.proxy.told.stderr import say

CHUNK_BYTES = 64 * 1024
FLUSH_S = 0.5
HELD_BYTES = 16 * 2**20
CLOSE_S = 2.0
"""As long may the last lines take when it is closed: whoever reads a pipe may have stopped for good."""
STDOUT = 1


class RequestLog:
    """Lines of bytes into a file (appended; one that it makes is 0600) or, for `-`, to standard output.

    `write` and `close` belong to one thread. `tell` is called in the log's own, with one sentence, when lines can't be written and
    when they can again. Several processes may write one file: each chunk is one write to its end.
    """

    __slots__ = (
        *("_broken", "_closing", "_descriptor", "_is_torn", "_lines", "_lost", "_name", "_refused"),
        *("_reopen", "_since", "_taken", "_tell", "_thread", "_told", "_wake", "_wall", "_written"),
    )

    def __init__(
        self,
        name: str,
        *,
        tell: Callable[[str], None] = say,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Open the file; raises ToolkitError if that is not possible."""
        self._name, self._tell, self._wall = name, tell, wall
        self._lines: deque[bytes] = deque()
        # each of these is changed by one thread alone: the first three by `write`'s, the others by the log's
        self._taken = self._since = self._refused = 0
        self._written = self._lost = self._told = 0
        self._broken = self._is_torn = self._reopen = self._closing = False
        self._wake = threading.Event()
        try:
            self._descriptor = self._opened()
        except OSError as error:
            raise ToolkitError(
                f"cannot write the log `{name}`: {error.strerror or error}",
                "Name a file in a folder that exists and is yours, or `-` for standard output",
            ) from error
        self._thread = threading.Thread(target=self._run, name="request log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Lines that are lost: there was no room to hold them, or they could not be written."""
        return self._refused + self._lost

    def write(self, line: bytes) -> None:
        """Take one line, with its newline."""
        size = len(line)
        if self._taken - self._written + size > HELD_BYTES:
            self._refused += 1
            return
        self._lines.append(line)
        self._taken += size
        self._since += size
        if self._since >= CHUNK_BYTES:
            self._since = 0
            self._wake.set()

    def reopen(self) -> None:
        """Go on in a new file of the same name: a rotation moved the old one away."""
        self._reopen = True
        self._wake.set()

    def close(self) -> None:
        """Write what there is, for at most CLOSE_S, and end; lines that come later go nowhere."""
        self._closing = True
        self._wake.set()
        self._thread.join(CLOSE_S)

    # --- In the log's own thread ------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(FLUSH_S)
            self._wake.clear()
            self._write_held()
        self._write_held()
        if self._descriptor != STDOUT:
            os.close(self._descriptor)

    def _write_held(self) -> None:
        self._follow_rotation()
        while self._lines:
            self._follow_rotation()
            chunk = self._chunk()
            self._write_chunk(chunk)
            self._written += len(chunk)
        lost = self.dropped - self._told
        if lost and not self._broken:
            self._told += lost
            self._write_chunk(event_line(self._wall(), "log_lines_dropped", {"lines": lost}))

    def _chunk(self) -> bytes:
        lines: list[bytes] = []
        size = 0
        while self._lines and size < CHUNK_BYTES:
            lines.append(self._lines.popleft())
            size += len(lines[-1])
        return b"".join(lines)

    def _write_chunk(self, chunk: bytes) -> None:
        rest = memoryview(chunk)
        try:
            if self._is_torn:
                self._write_some(memoryview(b"\n"))
                self._is_torn = False
            while rest:
                rest = rest[self._write_some(rest) :]
        except OSError as error:
            self._lose(chunk, bytes(rest), error)
        else:
            self._mend()

    def _write_some(self, rest: memoryview) -> int:
        """How many bytes were taken; waits for a reader that is slow, until the log is closed."""
        while True:
            try:
                return os.write(self._descriptor, rest)
            except BlockingIOError:
                if self._closing and not select.select([], [self._descriptor], [], CLOSE_S)[1]:
                    raise
                select.select([], [self._descriptor], [], FLUSH_S)

    def _lose(self, chunk: bytes, rest: bytes, error: OSError) -> None:
        written = chunk[: len(chunk) - len(rest)]
        # half a line may stand there now: the next one is to begin on a line of its own
        self._is_torn = self._is_torn or (written != b"" and not written.endswith(b"\n"))
        self._lost += rest.count(b"\n")
        if not self._broken:
            self._broken = True
            self._tell(
                f"Cannot write the log `{self._name}`: {error.strerror or error}; lines are lost"
            )

    def _mend(self) -> None:
        if self._broken:
            self._broken = False
            self._tell(f"The log `{self._name}` is written again; lines lost: {self.dropped:,}")

    def _opened(self) -> int:
        if self._name == "-":
            return STDOUT
        # a pipe that nobody reads would hold up the start: it is an error at once
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        make_private(Path(self._name))
        descriptor = os.open(self._name, flags, MODE)
        self._is_torn = _ends_torn(self._name)
        return descriptor

    def _follow_rotation(self) -> None:
        if not self._reopen:
            return
        self._reopen = False
        try:
            descriptor = self._opened()
        except OSError as error:
            self._tell(
                f"Cannot open the log `{self._name}` anew: {error.strerror or error}; the old one goes on"
            )
            return
        if self._descriptor != STDOUT:
            os.close(self._descriptor)
        self._descriptor = descriptor


def _ends_torn(name: str) -> bool:
    """Whether a file's last line was left unfinished by a process that was killed."""
    try:
        size = Path(name).stat().st_size
        if not size:
            return False
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.pread(descriptor, 1, size - 1) != b"\n"
    finally:
        os.close(descriptor)
