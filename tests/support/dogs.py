"""`toolkit watchdog` run as a user runs it: a process whose events are collected while it runs."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TOOLKIT = [sys.executable, "-c", "from toolkit.cli import main; main()"]
PATIENCE_S = 90


class Dog:
    """One that runs; its events are collected by a thread."""

    def __init__(self, process: "subprocess.Popen[str]", patience_s: float) -> None:
        self.process, self._patience_s = process, patience_s
        self.events: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.events.append(json.loads(line))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def texts(self) -> list[str]:
        return [each["text"] for each in self.events]

    def wait_for(self, *beginnings: str) -> str:
        """The first text that begins so, once the ones before it have come in this order."""
        at, found, give_up = 0, "", time.monotonic() + self._patience_s
        with self._news:
            for words in beginnings:
                while True:
                    place = next(
                        (
                            n
                            for n in range(at, len(self.events))
                            if self.texts()[n].startswith(words)
                        ),
                        None,
                    )
                    if place is not None:
                        at, found = place + 1, self.texts()[place]
                        break
                    left = give_up - time.monotonic()
                    assert left > 0, (words, self.texts())
                    assert self.process.poll() is None, (words, self.texts())
                    self._news.wait(min(left, 1.0))
        return found

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        code = self.process.wait(self._patience_s)
        self._listener.join(self._patience_s)
        return code


@contextmanager
def watchdog(
    *words: object, cwd: Path, env: Mapping[str, str] | None = None, patience_s: float = PATIENCE_S
) -> Iterator[Dog]:
    command = [*TOOLKIT, "watchdog", "--json", *map(str, words)]
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=None if env is None else dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        drain = threading.Thread(target=process.stderr.read, daemon=True)
        drain.start()
        dog = Dog(process, patience_s)
        try:
            yield dog
        finally:
            if process.poll() is None:
                dog.end()
            drain.join(patience_s)
