"""What a log file gained since it was read last. It reads one file, never all of it, and writes none."""

from pathlib import Path

MOST_BYTES = 2**24
"""Of one reading: of a log that grew by more only the end is read."""


class LogTail:
    """Reads on from where the file ended when this was made. Raises OSError where there is no such file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode, self._at = _state(path)

    def new_lines(self) -> list[str]:
        """The whole lines that came since the last call; what a file that was replaced holds is all new."""
        try:
            inode, size = _state(self._path)
            if inode != self._inode or size < self._at:
                self._inode, self._at = inode, 0
            self._at = max(self._at, size - MOST_BYTES)
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read(MOST_BYTES)
        except OSError:
            return []  # it is gone: nothing new is known
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        return whole.decode("utf-8", "replace").splitlines()


def _state(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_ino, stat.st_size
