"""A proxy of several workers as the user starts it, in front of scripted upstreams of the test's own."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.proxied import ASKED, Answer, Client
from support.scripted_upstream import ScriptedUpstream

READY = re.compile(r"Ready: clients on http://127.0.0.1:(\d+), admin on http://127.0.0.1:(\d+)")


@dataclass
class Crewed:
    """Its parent process, and what it said so far."""

    process: asyncio.subprocess.Process
    folder: Path
    said: list[str] = field(default_factory=list)
    port: int = 0
    admin_port: int = 0
    _moved: asyncio.Event = field(default_factory=asyncio.Event)
    _clients: list[Client] = field(default_factory=list)

    async def heard(self, *words: str) -> str:
        """The first line that holds all of these words, once it is there."""
        while True:
            for line in self.said:
                if all(word in line for word in words):
                    return line
            assert self.process.returncode is None, self.said
            self._moved.clear()
            await self._moved.wait()

    async def listen(self) -> None:
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.said.append(line.decode().rstrip())
            self._moved.set()
        await self.process.wait()
        self._moved.set()

    # --- its processes ---------------------------------------------------------------------------

    def pids(self) -> dict[int, int]:
        """The workers that run, each with its process."""
        found = {}
        for name in Path("/proc").iterdir():
            if not name.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                words = (name / "cmdline").read_bytes().split(b"\0")
                parent = (name / "stat").read_text().rpartition(")")[2].split()[1]
                worker = next((word for word in words if word.startswith(b"worker-")), None)
                if worker is not None and int(parent) == self.process.pid:
                    found[int(worker.removeprefix(b"worker-"))] = int(name.name)
        return found

    def kill(self, worker: int) -> int:
        """End a worker without a word; its process."""
        pid = self.pids()[worker]
        os.kill(pid, signal.SIGKILL)
        return pid

    # --- its clients -----------------------------------------------------------------------------

    async def client(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self._clients.append(client)
        return client

    async def clients(self, count: int) -> list[Client]:
        """So many connections: of 48 each of three workers has one but for a chance of 1 in 94 million."""
        return [await self.client() for _ in range(count)]

    async def ask(self, body: object = ASKED, **more: Any) -> Answer:
        return await (await self.client()).ask(body, **more)

    async def admin(self, path: str, told: object = None) -> Answer:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.admin_port))
        self._clients.append(client)
        method = "GET" if told is None else "POST"
        return await client.ask(b"" if told is None else told, path=path, method=method)

    async def counts(self) -> dict[str, float]:
        """Requests by how the cache served them."""
        page = (await self.admin("/metrics")).body.decode()
        found: dict[str, float] = {}
        for line in page.splitlines():
            if line.startswith("toolkit_proxy_requests_total{"):
                cache = re.search(r'cache="(\w+)"', line)
                assert cache is not None
                found[cache[1]] = found.get(cache[1], 0) + float(line.rpartition(" ")[2])
        return found

    async def until(self, holds: Callable[[], Any]) -> None:
        """Ask until it is so: for what no event tells, e.g., another process."""
        while True:
            told = holds()
            if await told if asyncio.iscoroutine(told) else told:
                return
            await asyncio.sleep(0.02)

    def close(self) -> None:
        for client in self._clients:
            client.close()

    @property
    def log(self) -> list[dict[str, Any]]:
        """Its whole lines: of the last one a worker may have written a part."""
        whole, _, _ = (self.folder / "log.jsonl").read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]


@contextlib.asynccontextmanager
async def crewed(
    upstreams: Sequence[ScriptedUpstream] | ScriptedUpstream,
    folder: Path,
    settings: str = "",
    *,
    workers: int = 3,
    environ: dict[str, str] | None = None,
    before: str = "",
) -> AsyncIterator[Crewed]:
    """Start one, wait until it is ready, and end it.

    `settings`: TOML, its tables after those of the upstreams; `before`: what the primary's process runs first, e.g., to set a time.
    """
    those = [upstreams] if isinstance(upstreams, ScriptedUpstream) else upstreams
    named = "".join(
        f'[[upstream]]\nname = "u{number}"\nurl = "{each.url}"\nprobes = false\n'
        for number, each in enumerate(those)
    )
    config = folder / "proxy.toml"
    config.write_text(settings + named if settings.startswith("drain") else named + settings)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *(
            "-c",
            f"{before}\nfrom toolkit.cli import main; main()",
            "proxy",
            "--config",
            str(config),
        ),
        *("--port", "0", "--admin-port", "0", "--workers", str(workers)),
        *("--cache-file", str(folder / "cache.db"), "--log", str(folder / "log.jsonl")),
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(folder)} | (environ or {}),
    )
    running = Crewed(process, folder)
    listening = asyncio.create_task(running.listen())
    try:
        ready = READY.search(await running.heard("Ready:"))
        assert ready is not None
        running.port, running.admin_port = int(ready[1]), int(ready[2])
        yield running
    finally:
        running.close()
        if process.returncode is None:
            # a second signal ends it at once
            process.terminate()
            process.terminate()
        await listening
