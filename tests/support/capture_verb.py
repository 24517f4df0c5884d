"""`toolkit capture` as a process that listens while a test sends: start it, stop it, read what it printed."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.locusts import Started, environment

LISTENS_WITHIN_S = 60.0
ENDS_WITHIN_S = 60.0


class Capture(Started):
    """The process, once it listens."""

    told: Path
    """What it says on stderr."""

    def stop(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Ctrl-C: what it saw, and its summary. The process must end well."""
        self.send_signal(signal.SIGINT)
        printed, _ = self.communicate(timeout=ENDS_WITHIN_S)
        assert self.returncode == 0, self.told.read_text()
        *seen, last = [json.loads(line) for line in printed.splitlines()]
        return seen, last["summary"]


@contextmanager
def capturing(folder: Path, *words: str, namespace: str | None = None) -> Iterator[Capture]:
    """`toolkit capture --json` with these words, in a network namespace if one is named; nothing sent later is missed."""
    enter = ["ip", "netns", "exec", namespace] if namespace else []
    told = folder / "capture.err"
    with told.open("w") as stderr:
        process = Capture(
            [*enter, str(Path(sys.executable).with_name("toolkit")), "capture", "--json", *words],
            cwd=folder,
            env=environment(TOOLKIT_DB=str(folder / "toolkit.db")),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
    process.told = told
    with process:
        _wait_until_it_listens(process)
        yield process


def _wait_until_it_listens(process: Capture) -> None:
    give_up_at = time.monotonic() + LISTENS_WITHIN_S
    while "Capturing port" not in process.told.read_text():
        assert process.poll() is None, process.told.read_text()
        assert time.monotonic() < give_up_at, process.told.read_text()
        time.sleep(0.02)
