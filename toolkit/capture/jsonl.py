"""Lines of JSON into a file that is rotated: FILE is the newest, FILE.1 the one before it. The only file here that writes one.

Lines go to the file whole and at once. What a full disk refuses waits, and is tried again with the next lines; what
then has no room is counted, never passed over.
"""

import errno
import fcntl
import os
import stat
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from toolkit.errors import ToolkitError, reason_of
from toolkit.private_files import MODE, make_private

WAITING_BYTES = 16 * 1024 * 1024
"""Of lines that the file does not take; further ones are lost and counted."""


class RotatedFile:
    """An open file of JSON lines; `warn` is told once of each thing that goes wrong on the way.

    What stands in the file already stays there. A pipe or a terminal is written to and never rotated.
    """

    def __init__(
        self, path: Path, *, rotate_bytes: int, keep: int, warn: Callable[[str], object]
    ) -> None:
        self._path, self._rotate_bytes, self._keep = path, rotate_bytes, keep
        self._warn_user, self._warned = warn, set[str]()
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self.lost = 0
        """Lines that found no room."""
        self.removed = 0
        """Files that were removed for being older than `keep`."""
        self._number = self._size = -1
        self._is_file = False
        try:
            self._open()
        except OSError as error:
            raise ToolkitError(
                f"`{path}` cannot be written: {reason_of(error)}",
                "Give another file: `--jsonl FILE`",
            ) from error

    def write(self, lines: Sequence[bytes]) -> None:
        """Write whole lines, and before them what waits."""
        for line in lines:
            if self._waiting_bytes and self._waiting_bytes + len(line) > WAITING_BYTES:
                self.lost += 1
            else:
                self._waiting.append(line)
                self._waiting_bytes += len(line)
        try:
            self._follow_the_name()
            while self._waiting:
                count, size = 0, self._size
                for line in self._waiting:
                    size += len(line)
                    if self._is_file and size > self._rotate_bytes and size > len(line):
                        break
                    count += 1
                if count:
                    self._append(count)
                else:
                    self._rotate()
        except OSError as error:
            self._warn(f"`{self._path}` takes nothing: {reason_of(error)}; it is tried again")

    def close(self) -> None:
        """Try what waits a last time, and let go of the file; what found no room is in `lost`."""
        self.write(())
        self.lost += len(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        if self._number >= 0:
            os.close(self._number)
            self._number = -1

    def _open(self) -> None:
        """Open the file, keep a second writer out, and begin on a new line after one that was cut by a kill."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(self._path.stat().st_mode):
                # a pipe that is opened for both ways never misses its reader
                flags = os.O_WRONLY | os.O_CLOEXEC
        if flags & os.O_CREAT:
            make_private(self._path)
        number = os.open(self._path, flags, MODE)
        try:
            found = os.fstat(number)
            is_file = stat.S_ISREG(found.st_mode)
            if is_file:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if found.st_size and os.pread(number, 1, found.st_size - 1) != b"\n":
                    os.write(number, b"\n")
            self._size = os.fstat(number).st_size
        except BlockingIOError as error:
            os.close(number)
            raise ToolkitError(
                f"`{self._path}` is being written by another process",
                "Give each capture a file of its own: `--jsonl FILE`",
            ) from error
        except BaseException:
            os.close(number)
            raise
        self._number, self._is_file = number, is_file

    def _follow_the_name(self) -> None:
        """Open the file anew where somebody moved or removed it: what goes into a nameless one is lost."""
        if self._number >= 0 and self._is_file:
            with suppress(FileNotFoundError):
                if os.path.samestat(self._path.stat(), os.fstat(self._number)):
                    return
            os.close(self._number)
            self._number = -1
        if self._number < 0:
            try:
                self._open()
            except ToolkitError as error:
                raise OSError(errno.EBUSY, error.message) from error

    def _append(self, count: int) -> None:
        """Write the first of the waiting lines; of what a full disk cuts, the whole lines stay."""
        data = memoryview(b"".join(self._waiting[:count]))
        written = whole = size = 0
        try:
            while written < len(data):
                written += os.write(self._number, data[written:])
        finally:
            while whole < count and size + len(self._waiting[whole]) <= written:
                size += len(self._waiting[whole])
                whole += 1
            self._size += size
            del self._waiting[:whole]
            self._waiting_bytes -= size
            if written > size and self._is_file:
                with suppress(OSError):
                    os.ftruncate(self._number, self._size)

    def _rotate(self) -> None:
        """Move FILE to FILE.1 and every older one on; the last of them goes."""
        numbered = [f"{self._path.name}.{n}" for n in range(1, self._keep + 1)]
        names = [self._path, *map(self._path.with_name, numbered)]
        filled = next((n for n, name in enumerate(names) if not name.exists()), len(names))
        try:
            if filled == len(names):
                names[-1].unlink()
                self.removed += 1
                filled -= 1
                self._warn(
                    f"`{self._path}` is rotated, and only {self._keep} old files are kept: the oldest is"
                    " removed from now on; keep more with `--keep`"
                )
            for n in range(filled, 0, -1):
                names[n - 1].rename(names[n])
        except OSError as error:
            self._rotate_bytes = sys.maxsize
            self._warn(f"`{self._path}` cannot be rotated, and grows: {reason_of(error)}")
            return
        os.close(self._number)
        self._number = -1
        self._follow_the_name()

    def _warn(self, sentence: str) -> None:
        if sentence not in self._warned:
            self._warned.add(sentence)
            self._warn_user(sentence)
