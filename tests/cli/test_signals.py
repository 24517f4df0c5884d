"""What ends a verb beside Ctrl-C: real signals to a process of its own."""

import subprocess
import sys

import pytest

RAISING = """
import os, signal
from toolkit.cli.signals import signals_raise
first, second, ignored = (getattr(signal, name) if name else None for name in {names})
if ignored:
    signal.signal(ignored, signal.SIG_IGN)
try:
    with signals_raise(lambda number: SystemExit(128 + number)):
        try:
            os.kill(os.getpid(), first)
            print("went on")
        finally:
            if second:
                os.kill(os.getpid(), second)
            print("cleared away")
finally:
    print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
"""
SERVING = """
import asyncio, os, signal
from toolkit.cli.signals import end_in_order
first, second, ignored = (getattr(signal, name) if name else None for name in {names})
if ignored:
    signal.signal(ignored, signal.SIG_IGN)

async def serve():
    end_in_order(lambda: print("ending", flush=True), lambda: print("at once", flush=True))
    for number in (first, second):
        heard = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, heard.set)
        if number:
            os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGUSR1)  # heard behind it
        await heard.wait()
    print("ended")

asyncio.run(serve())
"""


def ended(program: str, *names: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", program.format(names=names)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("names", "code", "printed"),
    [
        (("SIGTERM", "", ""), 143, "cleared away\nTrue\n"),
        # the shell and the kernel both tell of one closed terminal: the second does not cut the clearing away off
        (("SIGHUP", "SIGHUP", ""), 129, "cleared away\nTrue\n"),
        (("SIGTERM", "SIGHUP", ""), 143, "cleared away\nTrue\n"),
        # under nohup a closed terminal ends nothing
        (("SIGHUP", "", "SIGHUP"), 0, "went on\ncleared away\nTrue\n"),
    ],
)
def test_a_signal_ends_it_once_and_what_was_made_is_cleared_away(
    names: tuple[str, ...], code: int, printed: str
) -> None:
    assert ended(RAISING, *names) == (code, printed)


@pytest.mark.parametrize(
    ("names", "code", "printed"),
    [
        (("SIGTERM", "", ""), 0, "ending\nended\n"),
        (("SIGHUP", "SIGHUP", ""), 0, "ending\nended\n"),
        (("SIGHUP", "", "SIGHUP"), 0, "ended\n"),
        # who cannot wait
        (("SIGINT", "SIGINT", ""), 130, "ending\nat once\n"),
        (("SIGHUP", "SIGTERM", ""), 130, "ending\nat once\n"),
    ],
)
def test_what_serves_is_ended_in_order_and_at_once_by_a_second_signal(
    names: tuple[str, ...], code: int, printed: str
) -> None:
    assert ended(SERVING, *names) == (code, printed)
