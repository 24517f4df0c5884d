"""An engine's log on disk: kept from earlier starts, and read while it grows. It writes no line itself."""

import codecs
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

KEPT = 5
"""Logs of earlier starts, `.1` the newest: in a crash loop the first failure says more than the last."""
READ_BYTES = 1 << 20
"""At once."""
LAST_BYTES = 2 << 20
"""That are looked through for a cause; a start that fails writes some 100 KiB."""
LINE_CHARACTERS = 16_384
"""Of a longer line the rest is left out; vLLM's own longest, its configuration, has 4,000."""
_ENDS = re.compile(r"\r\n|\n|\r")
"""Progress bars end their lines by a carriage return."""


def set_aside(log: Path) -> None:
    """Rename the log of the last start to `.1`, that to `.2`, and so on."""
    log.parent.mkdir(parents=True, exist_ok=True)
    for number in range(KEPT - 1, 0, -1):
        with suppress(FileNotFoundError):
            log.with_name(f"{log.name}.{number}").replace(log.with_name(f"{log.name}.{number + 1}"))
    with suppress(FileNotFoundError):
        log.replace(log.with_name(f"{log.name}.1"))
    # it may hold prompts
    log.touch(mode=0o600)


def turn_over(log: Path) -> None:
    """Keep what it holds as `.1` and empty it: the engine has it open, and goes on at its new end. A line in between may be lost."""
    kept = log.with_name(f"{log.name}.1")
    try:
        shutil.copy(log, kept)
    except OSError:  # a disk without room for both: half of one helps nobody
        kept.unlink(missing_ok=True)
    os.truncate(log, 0)


class GrowingLog:
    """Reads the lines that were added since the last time, also when the log began anew meanwhile."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._open = ""

    def read(self) -> list[str]:
        """Whole lines, at most 1 MiB of them; none when nothing was added."""
        return self._lines(self._text())

    def skip(self, last_bytes: int = LAST_BYTES) -> None:
        """Go on near the end: of an engine that ran for days nobody reads all."""
        with suppress(FileNotFoundError):
            self._offset = max(self._offset, self.log.stat().st_size - last_bytes)

    def rest(self) -> list[str]:
        """All that is left, and a last line without an end: nobody writes any more."""
        lines: list[str] = []
        while text := self._text():
            lines += self._lines(text)
        last, self._open = self._open, ""
        return lines + ([last] if last else [])

    def _text(self) -> str:
        try:
            with self.log.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    return self._turned_over()
                file.seek(self._offset)
                added = file.read(READ_BYTES)
        except FileNotFoundError:
            return ""
        self._offset += len(added)
        return self._decoder.decode(added)

    def _turned_over(self) -> str:
        """The log was copied to `.1` and emptied: what we had not read stands there."""
        offset, self._offset = self._offset, 0
        try:
            with self.log.with_name(f"{self.log.name}.1").open("rb") as file:
                file.seek(offset)
                return self._decoder.decode(file.read(READ_BYTES))
        except FileNotFoundError:
            return ""

    def _lines(self, text: str) -> list[str]:
        # a carriage return at the very end may be half of a line's end
        *lines, self._open = _ENDS.split(self._open + text)
        self._open = self._open[-LINE_CHARACTERS:]
        return [line[:LINE_CHARACTERS] for line in lines]
