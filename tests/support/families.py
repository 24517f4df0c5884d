"""Families of processes for the tests of launch: a parent and those whom it starts, each as stubborn as is wanted."""

import os
import sys

# Every member says `NAME PID` once its signals are set, so that a test waits for lines and never for time.
MEMBER = """
import os, signal, subprocess, sys, time
name, stubborn, *children = sys.argv[1:]
if stubborn == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
for child in children:
    kind, _, manners = child.partition(":")
    subprocess.Popen([sys.executable, "-c", os.environ["MEMBER"], kind, manners], start_new_session=kind == "far",
                     env=None if kind != "bare" else {"MEMBER": os.environ["MEMBER"]})
print(name, os.getpid(), flush=True)
time.sleep(600)
"""


def command(name: str, manners: str, *children: str) -> list[str]:
    """A member that starts children `NAME:MANNERS`; one called `far` is in a session of its own."""
    return [sys.executable, "-c", MEMBER, name, manners, *children]


def environment() -> dict[str, str]:
    return {**os.environ, "MEMBER": MEMBER}
