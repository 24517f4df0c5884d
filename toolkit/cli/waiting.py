"""A sign of life: on a terminal, after a second, what is waited for and for how long; in a pipe nothing."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

from toolkit.safe_text import cleaned, drawing_on

EVERY_S = 1.0
NAME = "sign of life"
"""Of the thread that shows it."""


@contextlib.contextmanager
def waiting_for(what: str, *, shown: bool = True) -> Iterator[None]:
    """Show it on standard error until the block ends; then the line is gone. `shown`: False where another line lives there."""
    if not (shown and sys.stderr is not None and sys.stderr.isatty()):
        yield
        return
    is_over = threading.Event()
    showing = threading.Thread(target=_show, args=(what, is_over), name=NAME, daemon=True)
    showing.start()
    try:
        yield
    finally:
        is_over.set()
        showing.join()


def _show(what: str, is_over: threading.Event) -> None:
    began, is_shown = time.monotonic(), False
    terminal = drawing_on(sys.stderr)
    with contextlib.suppress(OSError, ValueError):  # the terminal is gone: nobody looks
        while not is_over.wait(EVERY_S):
            is_shown = True
            # the cursor goes back: what is said meanwhile begins its line
            terminal.write(f"\x1b[2K{cleaned(what)} ... {time.monotonic() - began:.0f} s\r")
            terminal.flush()
        if is_shown:
            terminal.write("\x1b[2K\r")
            terminal.flush()
