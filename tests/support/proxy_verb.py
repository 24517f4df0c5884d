"""`toolkit proxy` run as a user runs it: a process, with a raw client beside it."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COMMAND = [sys.executable, "-c", "from toolkit.cli import main; main()", "proxy"]
PATIENCE_S = 60
CHAT = "/v1/chat/completions"


@dataclass
class Verb:
    """One that runs; what it says on standard error is collected by a thread."""

    process: subprocess.Popen
    said: list[str] = field(default_factory=list)
    port: int = 0
    admin: int = 0
    _ready: threading.Event = field(default_factory=threading.Event)

    def listen(self) -> None:
        for line in self.process.stderr:
            self.said.append(line.decode().rstrip("\n"))
            if line.startswith(b"Ready:"):
                # Ready: clients on http://127.0.0.1:8000, admin on http://127.0.0.1:8001
                self.port, self.admin = (
                    int(each.rstrip(",").rpartition(":")[2])
                    for each in line.decode().split()
                    if each.startswith("http")
                )
                self._ready.set()
        self._ready.set()

    def wait_until_ready(self) -> None:
        assert self._ready.wait(PATIENCE_S)
        assert self.port, self.said

    def ask(self, body: dict[str, Any], **headers: str) -> tuple[int, dict[str, str], bytes]:
        return ask(self.port, "POST", CHAT, json.dumps(body).encode(), **headers)

    def get(self, path: str, *, admin: bool = False) -> tuple[int, dict[str, str], bytes]:
        return ask(self.admin if admin else self.port, "GET", path)

    def end(self, number: int = signal.SIGINT) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


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
    process = subprocess.Popen(
        [*COMMAND, "--port", "0", "--admin-port", "0", *map(str, words)],
        cwd=cwd,
        env=os.environ | environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    verb = Verb(process)
    listener = threading.Thread(target=verb.listen, daemon=True)
    listener.start()
    try:
        verb.wait_until_ready()
        yield verb
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE_S)
        listener.join(PATIENCE_S)
        process.stdout.close()
        process.stderr.close()


def refused(*words: object, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run one that is expected not to start."""
    return subprocess.run(
        [*COMMAND, *map(str, words)],
        cwd=cwd,
        env=os.environ | environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
