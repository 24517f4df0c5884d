"""A live engine in a process of its own, for what a test can't do to itself: lose its rights, be interrupted, move house.

    python capture_child.py IFACE PORT BUFFER_BYTES

Prints a line of JSON: what was granted, or what was refused. Then pumps until THE_END was seen or it is interrupted, and
prints what it saw.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__)
ROOT = HERE.parents[2]


@contextmanager
def capture_child(
    iface: str,
    port: int = 8000,
    *,
    buffer_bytes: int = 8 * 1024 * 1024,
    without: tuple[str, ...] = (),
    namespace: str | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """Run one; `without`: capabilities that it and its children can't have, e.g., `net_raw`."""
    command = [sys.executable, str(HERE), iface, str(port), str(buffer_bytes)]
    if without and os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        assert setpriv, "setpriv is a part of util-linux"
        command = [setpriv, "--bounding-set", ",".join(f"-{one}" for one in without), *command]
    if namespace:
        command = ["ip", "netns", "exec", namespace, *command]
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE.parents[1])])},
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def heard(child: subprocess.Popen[str]) -> dict:
    """The child's next line."""
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line, child.communicate()[1]
    return json.loads(line)


def say(**words: object) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def main(iface: str, port: int, buffer_bytes: int) -> None:
    from support.live_traffic import capturing

    from toolkit.cli.capture.verb import Stop
    from toolkit.errors import ToolkitError

    try:
        opened = capturing(iface, port, buffer_bytes=buffer_bytes)
        # as the command takes it: an interrupt in the midst of a frame would lose that frame
        with opened as capture, Stop() as stop:
            say(buffer_bytes=capture.engine.buffer_bytes)
            capture.pump(stop)
            capture.pump_rest()
        say(
            bodies=[body.decode() for body in capture.bodies],
            frames=len(capture.frames),
            drops=capture.engine.drops(),
            note=capture.engine.note,
        )
    except ToolkitError as error:
        say(message=error.message, hint=error.hint)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
