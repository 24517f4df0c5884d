"""All workers of a proxy in the test's own loop, each with a port of its own, so that a test says which of them it asks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.proxied import ASKED, Answer, Client
from support.scripted_upstream import ScriptedUpstream

from toolkit.proxy.app import Proxy
from toolkit.proxy.auth import from_environment
from toolkit.proxy.config import Settings, checked, read
from toolkit.proxy.telemetry import Telemetry
from toolkit.proxy.telemetry.access_log import AccessLog
from toolkit.proxy.workers import listeners, shared_out


@dataclass
class Family:
    """Worker 0 is the primary."""

    settings: Settings
    folder: Path
    environ: dict[str, str]
    primary: Proxy
    others: dict[int, Proxy] = field(default_factory=dict)
    ports: list[int] = field(default_factory=list)
    admin_port: int = 0
    log: AccessLog | None = None
    said: list[str] = field(default_factory=list)
    _clients: list[Client] = field(default_factory=list)

    async def client(self, worker: int) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.ports[worker]))
        self._clients.append(client)
        return client

    async def ask(self, worker: int, body: object = ASKED, **more: Any) -> Answer:
        return await (await self.client(worker)).ask(body, **more)

    async def admin(self, path: str, told: object = None) -> Answer:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.admin_port))
        self._clients.append(client)
        method = "GET" if told is None else "POST"
        return await client.ask(b"" if told is None else told, path=path, method=method)

    async def start_another(self, number: int) -> Proxy:
        """One that hands on to the primary; a second one of a number takes the first one's place."""
        (found,) = listeners("127.0.0.1", 0, 1)
        self.ports[number:] = [found[0].getsockname()[1], *self.ports[number + 1 :]]
        keys = from_environment(self.settings.teams, self.environ)
        server = Proxy(
            self.settings,
            variables={},
            keys=keys,
            telemetry=Telemetry(self.log),
            say=self.said.append,
            number=number,
            folder=self.folder,
            clients=found,
        )
        self.others[number] = server
        await server.start()
        return server

    async def stop_other(self, number: int) -> None:
        server = self.others.pop(number)
        await server.stop()

    async def filed(self) -> None:
        """Return once all that was stored stands in the file, where other workers find it."""
        shared = self.primary.cache.sqlite
        assert shared is not None
        await asyncio.to_thread(shared.flush)

    async def everywhere(self, body: object = ASKED, **more: Any) -> list[Answer]:
        """Asked twice of each worker: what is in the file is in each one's memory after it."""
        await self.filed()
        for worker in range(len(self.ports)):
            await self.ask(worker, body, **more)
        return [await self.ask(worker, body, **more) for worker in range(len(self.ports))]

    def close_clients(self) -> None:
        for client in self._clients:
            client.close()

    async def close(self) -> None:
        self.close_clients()
        for number in tuple(self.others):
            await self.stop_other(number)
        await self.primary.stop(0.0)


@contextlib.asynccontextmanager
async def family(
    upstream: ScriptedUpstream,
    folder: Path,
    settings: str = "",
    *,
    workers: int = 3,
    environ: dict[str, str] | None = None,
    probes: bool = False,
) -> AsyncIterator[Family]:
    """Run one; `settings`: TOML behind the upstream's."""
    environ = environ or {}
    named = f'[[upstream]]\nname = "u"\nurl = "{upstream.url}"\nprobes = {str(probes).lower()}\n'
    flags = {"port": 0, "admin_port": 0, "workers": workers, "cache.file": str(folder / "c.db")}
    found = shared_out(read(named + settings, "test.toml", flags))
    (clients,), (admin,) = listeners("127.0.0.1", 0, 1), listeners("127.0.0.1", 0, 1)
    log = AccessLog(str(folder / "log.jsonl"), say=print)
    said: list[str] = []
    primary = Proxy(
        found,
        variables=checked(found, environ),
        keys=from_environment(found.teams, environ),
        telemetry=Telemetry(log),
        say=said.append,
        folder=folder,
        clients=clients,
        admin=admin,
    )
    ports = [clients[0].getsockname()[1]]
    inside = Family(found, folder, environ, primary, ports=ports, log=log, said=said)
    inside.admin_port = admin[0].getsockname()[1]
    try:
        await primary.start()
        for number in range(1, workers):
            await inside.start_another(number)
        yield inside
    finally:
        await inside.close()
        log.close()
