"""`toolkit serve` run as a user runs it: a process with a stack file, orders to it, and clients beside it."""

import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from contract.harness.programs import TOOLKIT, Program, gone, program, rows, run

PATIENCE_S = 120


@dataclass
class Served:
    """A serve that runs."""

    program: Program
    folder: Path
    url: str = ""

    @property
    def process(self) -> Any:
        return self.program.process

    @property
    def said(self) -> list[str]:
        """On standard error."""
        return self.program.err

    def until_open(self, limit_s: float = PATIENCE_S) -> None:
        self.url = self.program.line(r"^http://\S+$", patience_s=limit_s)[0]

    def until_said(self, words: str) -> str:
        """Wait until a line holds these words: the first that does."""
        return self.program.line(re.escape(words), patience_s=PATIENCE_S).string

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def order(self, *words: str, timeout_s: float = PATIENCE_S) -> Any:
        """`toolkit serve WORDS --folder ...`, to its end."""
        return run(
            "serve", *words, "--folder", self.folder, cwd=self.folder.parent, timeout_s=timeout_s
        )

    def engines(self) -> dict[str, dict[str, Any]]:
        told = self.order("status", "--json")
        assert told.returncode == 0, told.stderr
        return {row["name"]: row for row in rows(told.stdout)}

    def family(self) -> list[psutil.Process]:
        """All that it started and that runs."""
        return [each for each in self.program.family()[1:] if each.status() != "zombie"]


@contextmanager
def serving(folder: Path, *words: str, command: Sequence[str] = (TOOLKIT,)) -> Iterator[Served]:
    """Run it in `folder` until the end of the block, and see that nothing of it is left."""
    words = (*command, "serve", *words, "--folder", str(folder / "serve"))
    # what vLLM keeps of its models lies in the user's home
    own = {"HOME": os.environ["HOME"]}
    with program(list(words), cwd=folder, env=own) as running:
        served = Served(running, folder / "serve")
        yield served
        family = served.family() if running.process.poll() is None else []
        running.end(signal.SIGTERM, PATIENCE_S)
        assert gone(family)
