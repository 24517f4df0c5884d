"""`toolkit serve` run as a user runs it: a process with a stack file, orders to it, and clients beside it."""

import http.client
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from contract.harness.programs import free_port, runs, until

TOOLKIT = [sys.executable, "-c", "from toolkit.cli import main; main()"]
PATIENCE_S = 120
CHAT = "/v1/chat/completions"


@dataclass
class Served:
    """A serve that runs; what it says on standard error is collected by a thread."""

    process: subprocess.Popen[str]
    folder: Path
    said: list[str] = field(default_factory=list)
    url: str = ""
    _told: threading.Condition = field(default_factory=threading.Condition)
    _is_open: threading.Event = field(default_factory=threading.Event)

    def listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._told:
                self.said.append(line.rstrip("\n"))
                self._told.notify_all()

    def read(self) -> None:
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self._is_open.set()

    def until_open(self, limit_s: float = PATIENCE_S) -> None:
        assert self._is_open.wait(limit_s), self.said
        assert self.url, self.said

    def until_said(self, words: str) -> str:
        """Wait until a line holds these words: the first that does."""
        with self._told:
            found = self._told.wait_for(
                lambda: [line for line in self.said if words in line], PATIENCE_S
            )
        assert found, self.said
        return found[0]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def order(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`toolkit serve WORDS --folder ...`, to its end."""
        return subprocess.run(
            [*TOOLKIT, "serve", *words, "--folder", str(self.folder)],
            input="", capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip

    def engines(self) -> dict[str, dict[str, Any]]:
        told = self.order("status", "--json")
        assert told.returncode == 0, told.stderr
        rows = [json.loads(line) for line in told.stdout.splitlines()]
        return {row["name"]: row for row in rows}

    def ask(self, text: str, **fields: Any) -> tuple[int, dict[str, str], bytes]:
        return ask(self.port, text, **fields)

    def family(self) -> list[psutil.Process]:
        """All that it started and that runs."""
        return [
            each
            for each in psutil.Process(self.process.pid).children(recursive=True)
            if each.status() != psutil.STATUS_ZOMBIE
        ]


def ask(port: int, text: str, **fields: Any) -> tuple[int, dict[str, str], bytes]:
    """One chat over a connection of its own: status, headers, body."""
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4} | fields
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request(
            "POST", CHAT, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with connection.getresponse() as answer:
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, headers, answer.read()
    finally:
        connection.close()


@contextmanager
def serving(folder: Path, *words: str) -> Iterator[Served]:
    """Run it in `folder` until the end of the block, and see that nothing of it is left."""
    process = subprocess.Popen(
        [*TOOLKIT, "serve", *words, "--folder", str(folder / "serve")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "TOOLKIT_DB"},
        start_new_session=True,
    )
    served = Served(process=process, folder=folder / "serve")
    threads = [threading.Thread(target=each) for each in (served.listen, served.read)]
    for each in threads:
        each.start()
    family: list[psutil.Process] = []
    try:
        yield served
        if process.poll() is None:
            family = served.family()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for each in threads:
            each.join()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    assert [each for each in family if runs(each.pid)] == []


FAST = 'model = "gptq-int4"\nname = "{}"\nserved_name = "{}"\n[engine.flags]\ntime-scale = 0.01\n'
ONE = FAST.format("one", "qwen")


def free_ports(count: int) -> list[int]:
    """Different ones."""
    return [free_port() for _ in range(count)]


def stack_file(folder: Path, *engines: str, more: str = "") -> Path:
    """A stack of simulators that warm up in a moment; each of `engines` is TOML for one."""
    ports = iter(free_ports(2 * len(engines)))
    tables = "".join(
        f'[[engine]]\nkind = "sim"\nport = {next(ports)}\nspare_port = {next(ports)}\n{engine}\n'
        for engine in engines
    )
    path = folder / "stack.toml"
    path.write_text(
        'database = "toolkit.db"\npreflight = false\n'
        "[proxy]\nport = 0\nadmin_port = 0\ndrain = '5s'\n"
        f"[warm]\nconcurrency = [1]\nrounds = 2\n{more}\n{tables}"
    )
    return path


class Crowd:
    """Clients that ask and ask until told to stop: one text, or what nobody asked before."""

    def __init__(self, served: Served, model: str, text: str | None = None) -> None:
        self.answers: list[tuple[int, str]] = []
        """Status, and `hit` or whatever else the proxy's cache says."""
        self.refusals: list[str] = []
        """What was said with every other status than 200, for whoever wonders."""
        self._served, self._model, self._text = served, model, text
        self._stop = threading.Event()
        self._numbers = itertools.count()

    @contextmanager
    def asking(self, clients: int) -> "Iterator[Crowd]":
        threads = [threading.Thread(target=self._ask_on) for _ in range(clients)]
        for each in threads:
            each.start()
        try:
            yield self
        finally:
            self._stop.set()
            for each in threads:
                each.join()

    def _ask_on(self) -> None:
        while not self._stop.is_set():
            text = self._text or f"tell me {next(self._numbers)}"
            status, headers, body = self._served.ask(text, model=self._model, temperature=0)
            if status != 200:
                self.refusals.append(f"{time.strftime('%X')} {status} {body.decode()}")
                # who is refused at once and asks again at once takes the machine from what is to come back
                self._stop.wait(0.1)
            cache = "hit" if "hit" in headers.get("cache-status", "") else "other"
            if cache == "hit":
                # so does who is answered at once
                self._stop.wait(0.01)
            self.answers.append((status, cache))


def wait_until(is_so: Any, limit_s: float = PATIENCE_S) -> None:
    """Until the world is as wanted, which nobody tells."""
    until(is_so, patience_s=limit_s, step_s=0.02)
