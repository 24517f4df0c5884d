"""`toolkit capture` run as a user runs it: a process, with files or with live packets on `lo`."""

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.live_traffic import ANSWER

COMMAND = [sys.executable, "-c", "from toolkit.cli import main; main()", "capture"]
READY = "Capturing port"
PATIENCE_S = 60


@dataclass
class Ran:
    """How a capture ended."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def requests(self) -> list[dict]:
        return [one for one in self.objects if "summary" not in one]

    @property
    def summary(self) -> dict:
        return self.objects[-1]["summary"]


def capture(*words: object, cwd: Path, data: bytes | None = None, **more: object) -> Ran:
    """Run one to its end; `data` is its standard input."""
    done = subprocess.run(
        [*COMMAND, *map(str, words)],
        cwd=cwd,
        input=data,
        stdin=None if data is not None else subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
        **more,
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


@dataclass
class Live:
    """One that runs; its standard error is collected by a thread."""

    process: subprocess.Popen
    said: list[str] = field(default_factory=list)
    _heard: threading.Condition = field(default_factory=threading.Condition)
    _is_over: bool = False
    listener: threading.Thread | None = None

    def listen(self) -> None:
        for line in self.process.stderr:
            with self._heard:
                self.said.append(line.decode())
                self._heard.notify_all()
        with self._heard:
            self._is_over = True
            self._heard.notify_all()

    def wait_for(self, words: str) -> None:
        """Wait until it says so on standard error."""
        with self._heard:
            self._heard.wait_for(lambda: self._is_over or self._has_said(words), PATIENCE_S)
            assert self._has_said(words), self.said

    def _has_said(self, words: str) -> bool:
        return any(words in line for line in self.said)

    def line(self) -> dict:
        """The next line of its standard output."""
        return json.loads(self.process.stdout.readline())

    def end(self, number: int = signal.SIGINT) -> Ran:
        """Send a signal and wait for the end."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        rest = self.process.stdout.read()
        self.process.wait(PATIENCE_S)
        self.listener.join(PATIENCE_S)
        return Ran(self.process.returncode, rest.decode(), "".join(self.said))


@contextmanager
def capturing(*words: object, cwd: Path, is_live: bool = True, **more: object) -> Iterator[Live]:
    """Start one and, if it is live, wait until it captures; it is killed if the test leaves it running."""
    process = subprocess.Popen(
        [*COMMAND, *map(str, words)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **{"stdin": subprocess.DEVNULL, **more},
    )
    live = Live(process)
    live.listener = threading.Thread(target=live.listen, daemon=True)
    live.listener.start()
    try:
        if is_live:
            live.wait_for(READY)
        yield live
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE_S)
        live.listener.join(PATIENCE_S)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe:
                pipe.close()


class Client:
    """One keep-alive connection to a server of `live_traffic`."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._reading = self._socket.makefile("rb")

    def send(self, data: bytes) -> None:
        """Send a whole request and read its answer."""
        self._socket.sendall(data)
        while self._reading.readline() != b"\r\n":
            pass
        assert self._reading.read(len(ANSWER)) == ANSWER

    def close(self) -> None:
        self._reading.close()
        self._socket.close()


@contextmanager
def talking(port: int) -> Iterator[Client]:
    client = Client(port)
    try:
        yield client
    finally:
        client.close()


def chat(prompt: str, **more: object) -> bytes:
    """The body of a chat request."""
    fields = {"model": "tiny", "messages": [{"role": "user", "content": prompt}], **more}
    return json.dumps(fields).encode()
