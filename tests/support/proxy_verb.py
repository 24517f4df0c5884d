"""`toolkit proxy` run as a user runs it: a process, with a raw client beside it."""

import http.client
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.harness.programs import PATIENCE_S, Program, toolkit

CHAT = "/v1/chat/completions"


@dataclass
class Verb:
    """One that runs."""

    program: Program
    port: int
    admin: int

    @property
    def process(self) -> Any:
        return self.program.process

    @property
    def said(self) -> list[str]:
        """On standard error."""
        return self.program.err

    def ask(self, body: dict[str, Any], **headers: str) -> tuple[int, dict[str, str], bytes]:
        return ask(self.port, "POST", CHAT, json.dumps(body).encode(), **headers)

    def get(self, path: str, *, admin: bool = False) -> tuple[int, dict[str, str], bytes]:
        return ask(self.admin if admin else self.port, "GET", path)

    def end(self, number: int = signal.SIGINT) -> int:
        return self.program.end(number)


def ask(
    port: int, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers in lower case and body, over a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, {"content-type": "application/json"} | named)
        with connection.getresponse() as answer:
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, headers, answer.read()
    finally:
        connection.close()


@contextmanager
def proxying(*words: object, cwd: Path, **environ: str) -> Iterator[Verb]:
    """Run one until it is ready; it is killed if the test leaves it running."""
    with toolkit("proxy", "--port", 0, "--admin-port", 0, *words, cwd=cwd, env=environ) as program:
        ready = program.line(r"^Ready: clients on http://\S+:(\d+), admin on http://\S+:(\d+)")
        yield Verb(program, int(ready[1]), int(ready[2]))
