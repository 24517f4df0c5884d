"""`toolkit serve` as a user starts it: a stack file with the simulator for an engine."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil
from contract.harness.clients import BODY, Client
from contract.harness.programs import free_port, rows, run, toolkit
from contract.harness.proxies import Proxy

ENGINE = (
    'kind = "sim"\nmodel = "gptq-int4"\nname = "one"\nserved_name = "tiny"\n'
    "[engine.flags]\ntime-scale = 0.1\n"
)


@dataclass
class Stack(Proxy):
    """One that is open; its proxy is asked as any other."""

    folder: Path
    """Where it was started."""

    def engines(self) -> dict[str, dict[str, Any]]:
        """`toolkit serve status --json`, by engine."""
        told = run("serve", "status", "--folder", "serve", "--json", cwd=self.folder)
        assert told.returncode == 0, told.stderr
        return {row["name"]: row for row in rows(told.stdout)}

    def engine_processes(self) -> list[psutil.Process]:
        """Everybody whom it started, but itself."""
        return self.program.family()[1:]


class Crowd:
    """Clients that ask what nobody asked before, one request after the other, until told to stop.

    Those that stay keep one connection each, and everything is asked twice.
    """

    def __init__(self, url: str, clients: int, *, stays: bool = False) -> None:
        self.asked = 0
        self.answered = 0
        self.refused: list[str | None] = []
        """The Retry-After of each 503."""
        self.lost: list[str] = []
        """Whatever else came, or did not."""
        self._url, self._stays = url, stays
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._threads = [threading.Thread(target=self._ask_on) for _ in range(clients)]

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for each in self._threads:
            each.join()

    @property
    def table(self) -> dict[str, Any]:
        refused = len(self.refused)
        return {
            "asked": self.asked,
            "answered": self.answered,
            "refused": refused,
            "lost": self.lost,
        }

    def _ask_on(self) -> None:
        while not self._stop.is_set():
            try:
                with Client(self._url, timeout_s=120.0) as client:
                    self._ask(client)
                    while self._stays and not self._stop.is_set():
                        self._ask(client)
            except OSError as error:
                self.lost.append(repr(error))

    def _ask(self, client: Client) -> None:
        with self._lock:
            text = f"number {self.asked // 2 if self._stays else self.asked}"
            self.asked += 1
        reply = client.ask({**BODY, "messages": [{"role": "user", "content": text}]})
        if reply.status == 200 and reply.is_whole:
            with self._lock:
                self.answered += 1
        elif reply.status == 503:
            self.refused.append(reply.headers.get("retry-after"))
        else:
            self.lost.append(f"{reply.status} {reply.body!r}")
        # who asks again at once takes the machine from what is to come up
        self._stop.wait(0.05)


def write_stack(
    folder: Path, *engines: str, admission: str = "", guard: str = "backoff = '100ms'"
) -> Path:
    """A stack file in `folder`; `engines` are TOML of one each, `ENGINE` if none is given; ports that they do not name are free ones."""
    tables = ""
    for each in engines or (ENGINE,):
        own = [
            f"{key} = {free_port()}"
            for key in ("port", "spare_port")
            if not re.search(rf"^{key} ", each, re.MULTILINE)
        ]
        tables += "\n".join(["[[engine]]", *own, each, ""])
    file = folder / "stack.toml"
    file.write_text(
        'database = "toolkit.db"\npreflight = false\n'
        "[proxy]\nport = 0\nadmin_port = 0\ndrain = '30s'\n"
        f"[proxy.admission]\n{admission}\n"
        f"[warm]\nconcurrency = [1, 2]\nrounds = 2\n[guard]\nlook = '200ms'\n{guard}\n{tables}"
    )
    return file


@contextmanager
def stack(folder: Path, *engines: str, **settings: str) -> Iterator[Stack]:
    """Start one and wait until clients are let in; `settings` as for write_stack."""
    file = write_stack(folder, *engines, **settings)
    with toolkit("serve", file, "--folder", "serve", cwd=folder) as running:
        url = running.line(r"Ready: clients on (\S+);")[1]
        found = Stack(running, url, "", folder)
        found.admin = next(iter(found.engines().values()))["admin_url"]
        yield found
