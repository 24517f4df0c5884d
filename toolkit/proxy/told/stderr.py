"""A sentence for the user on standard error, from a thread that has to go on whoever reads it. It touches the terminal."""

import contextlib
import sys


def say(sentence: str) -> None:
    """Print it; nobody hears of it if whoever read there is gone."""
    with contextlib.suppress(OSError, ValueError):
        print(sentence, file=sys.stderr, flush=True)
