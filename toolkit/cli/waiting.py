"""A sign of life while something is waited for: on a terminal a line that moves, in a pipe one every ten seconds.

It goes to standard error alone. Whatever else is printed meanwhile takes the moving line's place.
"""

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from toolkit.cli.output import to_stderr
from toolkit.safe_text import drawing_on, moving_line
from toolkit.units import span, spoken_list

EVERY_S = 1.0
PIPE_EVERY_S = 10.0
LONG_S = 3.0
"""Who has waited for so long hears of each step that is done; what is over sooner shows itself."""
NAMED = 3
NAME = "sign of life"
"""Of the thread that shows it."""


class Waiting:
    """What is waited for, and which of its steps, e.g. hosts, are not done yet."""

    def __init__(self, what: str, steps: Sequence[str] = ()) -> None:
        self.what = what
        self.figures: Callable[[], str] = lambda: ""
        """What else there is to say of it now."""
        self._left, self._all = dict.fromkeys(steps), len(steps)
        self._began_s = time.monotonic()

    def done(self, step: str, how: str = "done") -> None:
        """Take a step off the list; what is done twice is said once."""
        if step not in self._left:
            return
        del self._left[step]
        if time.monotonic() - self._began_s >= LONG_S:
            count = f" ({self._all - len(self._left)} of {self._all})" if self._all > 1 else ""
            to_stderr(f"{step}: {how}{count}")

    def line(self) -> str:
        """All of it, and for how long by now."""
        parts = [self.figures()]
        left = list(self._left)
        if left and self._all > 1:
            done = f"{self._all - len(left)} of {self._all} done"
            parts.append(f"{done}, not yet {spoken_list(left, NAMED)}")
        so_far = "; ".join(filter(None, parts))
        passed = span(time.monotonic() - self._began_s)
        return f"{self.what}{': ' if so_far else ''}{so_far} ... {passed}"


@contextlib.contextmanager
def waiting_for(
    what: str, steps: Sequence[str] = (), *, shown: bool = True, endless: bool = False
) -> Iterator[Waiting]:
    """Show it until the block ends. `shown`: False where another line lives there; `endless`: a log need not hear of it."""
    waiting = Waiting(what, steps)
    is_seen = sys.stderr is not None and sys.stderr.isatty()
    if sys.stderr is None or not shown or (endless and not is_seen):
        yield waiting
        return
    is_over = threading.Event()
    show = _draw if is_seen else _print
    showing = threading.Thread(target=show, args=(waiting, is_over), name=NAME, daemon=True)
    showing.start()
    try:
        yield waiting
    finally:
        is_over.set()
        showing.join()


def _draw(waiting: Waiting, is_over: threading.Event) -> None:
    terminal = drawing_on(sys.stderr)
    while not is_over.wait(EVERY_S):
        width = shutil.get_terminal_size().columns - 1
        moving_line.draw(terminal, fitted(waiting.line(), width))
    moving_line.wipe()


def _print(waiting: Waiting, is_over: threading.Event) -> None:
    while not is_over.wait(PIPE_EVERY_S):
        to_stderr(waiting.line())


def fitted(text: str, width: int) -> str:
    """As much of it as fits, in whole words: the half of a number is another number."""
    if len(text) <= width:
        return text
    words = text[:width].rpartition(" ")[0].rstrip(",;: ")
    return f"{words} …".lstrip() if len(words) <= width - 2 else words
