"""`toolkit watchdog` run as a user runs it: a process whose events are read while it runs."""

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.harness.programs import PATIENCE_S, Program, toolkit, until


@dataclass
class Dog:
    """One that runs."""

    program: Program
    patience_s: float = PATIENCE_S

    @property
    def events(self) -> list[dict[str, Any]]:
        """So far."""
        return [json.loads(line) for line in self.program.out]

    def texts(self) -> list[str]:
        return [each["text"] for each in self.events]

    def wait_for(self, *beginnings: str) -> str:
        """The first text that begins so, once the ones before it have come in this order."""
        passed, found = 0, ""
        for words in beginnings:

            def matching(words: str = words, passed: int = passed) -> list[tuple[int, str]]:
                texts = list(enumerate(self.texts()))[passed:]
                return [(place, text) for place, text in texts if text.startswith(words)]

            place, found = until(matching, patience_s=self.patience_s, step_s=0.02)[0]
            passed = place + 1
        return found

    def end(self, number: int = signal.SIGINT) -> int:
        return self.program.end(number, self.patience_s)


@contextmanager
def watchdog(
    *words: object, cwd: Path, env: Mapping[str, str] | None = None, patience_s: float = PATIENCE_S
) -> Iterator[Dog]:
    with toolkit("watchdog", "--json", *words, cwd=cwd, env=env) as program:
        dog = Dog(program, patience_s)
        try:
            yield dog
        finally:
            # killed, it would leave its engine
            dog.end()
