"""Ctrl-C, SIGTERM and a closed terminal: what they do to a verb that serves, or that clears away what it made."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import NoReturn

from toolkit.cli.exit_codes import INTERRUPTED

END_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def end_in_order(end: Callable[[], object], at_once: Callable[[], object] = lambda: None) -> None:
    """Have the first signal call `end` in the running loop; at a second one the process is gone, after `at_once`."""
    loop, is_ending = asyncio.get_running_loop(), False

    def act() -> None:
        nonlocal is_ending
        if is_ending:
            at_once()
            os._exit(INTERRUPTED)
        is_ending = True
        end()

    def hang_up() -> None:
        # of one closed terminal its shell tells and then the kernel: the second is nobody's haste
        if not is_ending:
            act()

    for number in END_SIGNALS:
        loop.add_signal_handler(number, act)
    # nohup's own wish is that a closed terminal ends nothing
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, hang_up)


@contextlib.contextmanager
def signals_raise(error: Callable[[int], BaseException]) -> Iterator[None]:
    """Inside, SIGTERM and a closed terminal raise this error of the signal's number, so that what was made is cleared away."""

    def end(number: int, _: object) -> NoReturn:
        # of one closed terminal its shell tells and then the kernel: the second must not disturb the clearing away
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        raise error(number)

    before = {
        number: signal.signal(number, end)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN  # nohup's
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
