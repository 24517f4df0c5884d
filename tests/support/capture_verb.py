"""`toolkit capture` as a process that listens while a test sends: start it, stop it, read what it printed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from contract.harness.programs import TOOLKIT, Program, program, rows


class Capture:
    """The process, once it listens."""

    def __init__(self, running: Program) -> None:
        self._running = running

    def stop(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Ctrl-C: what it saw, and its summary. The process must end well."""
        assert self._running.end() == 0, self._running.text
        *seen, last = rows("\n".join(self._running.out))
        return seen, last["summary"]


@contextmanager
def capturing(folder: Path, *words: str, namespace: str | None = None) -> Iterator[Capture]:
    """`toolkit capture --json` with these words, in a network namespace if one is named; nothing sent later is missed."""
    enter = ["ip", "netns", "exec", namespace] if namespace else []
    command = [*enter, TOOLKIT, "capture", "--json", *words]
    own = {"TOOLKIT_DB": str(folder / "toolkit.db")}
    with program(command, cwd=folder, env=own) as running:
        running.line("Capturing port")
        yield Capture(running)
