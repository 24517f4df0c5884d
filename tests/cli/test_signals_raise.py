"""What ends a demo and a sweep beside Ctrl-C: real signals to a process of its own."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, signal
from toolkit.cli.children import signals_raise
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


@pytest.mark.parametrize(
    ("names", "code", "told"),
    [
        (("SIGTERM", "", ""), 143, "cleared away\nTrue\n"),
        # the shell and the kernel both tell of one closed terminal: the second does not cut the clearing away off
        (("SIGHUP", "SIGHUP", ""), 129, "cleared away\nTrue\n"),
        (("SIGTERM", "SIGHUP", ""), 143, "cleared away\nTrue\n"),
        # under nohup a closed terminal ends nothing
        (("SIGHUP", "", "SIGHUP"), 0, "went on\ncleared away\nTrue\n"),
    ],
)
def test_a_signal_ends_it_in_order_once(names: tuple[str, ...], code: int, told: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(names=names)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (code, told), ended.stderr
