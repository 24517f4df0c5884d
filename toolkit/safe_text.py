"""Others' words made fit for a screen or a spreadsheet, and the streams that do it to all that is printed."""

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any, TextIO

ACTS_ON_A_SCREEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
"""Control characters but a line's end and a tab, and what turns the direction of writing."""


def cleaned(text: str) -> str:
    """Any text, of one line or many, with `?` for each character that a screen would act upon."""
    return text if text.isprintable() else ACTS_ON_A_SCREEN.sub("?", text)


def spreadsheet_cell(value: object) -> object:
    """A value as a cell of a CSV: text that a spreadsheet would take for a formula gets an apostrophe; numbers are numbers."""
    if not isinstance(value, str):
        return value
    text = cleaned(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text


def printable(text: str) -> str:
    """Words that a host, a file or a client chose, with `?` for what would act on a terminal, e.g., an escape sequence."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "?" for char in text)


class MovingLine:
    """A terminal's line that is drawn again and again, and makes room for whatever else is printed."""

    def __init__(self) -> None:
        self._terminal: TextIO | None = None
        """Where it stands now."""
        self._lock = Lock()

    def draw(self, terminal: TextIO, text: str) -> None:
        """Put it there anew; the cursor goes back to its beginning."""
        with self._lock, suppress(OSError, ValueError):  # the terminal is gone: nobody looks
            self._terminal = terminal
            terminal.write(f"\x1b[2K{cleaned(text)}\r")
            terminal.flush()

    def wipe(self) -> None:
        """Take it away."""
        if self._terminal is not None:
            with self._lock, suppress(OSError, ValueError):
                terminal, self._terminal = self._terminal, None
                if terminal is not None:
                    terminal.write("\x1b[2K\r")
                    terminal.flush()


moving_line = MovingLine()
"""The process's: its standard output and error are one screen."""


class CleanedStream:
    """Standard output or error for whatever writes text there: what would act on a terminal is `?`.

    A host, a client and a database choose much of what is shown, and it is shown in hundreds of places; hence it is cleaned
    where all of it passes. Whoever draws with escape sequences of its own asks for `drawing_on`, and cleans what it draws.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write all of it, in the place of a line that moves."""
        moving_line.wipe()
        self.stream.write(cleaned(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write them one after the other."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        """All else is the stream's own."""
        return getattr(self.stream, name)


@contextmanager
def cleaned_streams() -> Iterator[None]:
    """Whatever is printed in the block is cleaned."""
    before = sys.stdout, sys.stderr
    # None: closed, as by `>&-`
    sys.stdout, sys.stderr = (each and CleanedStream(each) for each in before)
    try:
        yield
    finally:
        # where a reader has gone away, click has put one in their place that fails at no flush: it stays
        if isinstance(sys.stdout, CleanedStream):
            sys.stdout = before[0]
        if isinstance(sys.stderr, CleanedStream):
            sys.stderr = before[1]


def drawing_on(stream: TextIO) -> TextIO:
    """The stream itself, for escape sequences of our own."""
    return stream.stream if isinstance(stream, CleanedStream) else stream
