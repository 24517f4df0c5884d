"""All workers of a proxy in the test's own loop, each with a port of its own, so that a test says which of them it asks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.proxied import ASKED, Answer, Client
from support.scripted_upstream import ScriptedUpstream

from toolkit.proxy.keyring import from_environment
from toolkit.proxy.processes.doors import Place, doors
from toolkit.proxy.processes.hit_server import HitServer, shared_out
from toolkit.proxy.processes.server import Proxy
from toolkit.proxy.settings import Settings
from toolkit.proxy.settings_file import checked, read
from toolkit.proxy.told.request_log import RequestLog
from toolkit.proxy.told.telling import Telling


@dataclass
class House:
    """Worker 0 is the owner."""

    settings: Settings
    folder: Path
    environ: dict[str, str]
    owner: Proxy
    others: dict[int, HitServer] = field(default_factory=dict)
    ports: list[int] = field(default_factory=list)
    admin_port: int = 0
    log: RequestLog | None = None
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

    async def start_another(self, number: int) -> HitServer:
        """One that hands on to the owner; a second one of a number takes the first one's place."""
        server = self.another(number)
        await server.start()
        await server.open()
        return server

    def another(self, number: int) -> HitServer:
        """The same, made and not started."""
        (found,) = doors("127.0.0.1", 0, 1)
        self.ports[number:] = [found[0].getsockname()[1], *self.ports[number + 1 :]]
        place = Place(number=number, folder=self.folder, clients=found)
        keys = from_environment(self.settings.teams, self.environ)
        server = HitServer(
            self.settings, place, keys=keys, telling=Telling(self.log, None), say=self.said.append
        )
        self.others[number] = server
        return server

    async def stop_other(self, number: int) -> None:
        server = self.others.pop(number)
        server.shut()
        await server.end()

    async def filed(self) -> None:
        """Return once all that was stored stands in the file, where other workers find it."""
        shared = self.owner.kit.layers.shared
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
        await self.owner.stop(0.0)


@contextlib.asynccontextmanager
async def house(
    upstream: ScriptedUpstream,
    folder: Path,
    settings: str = "",
    *,
    workers: int = 3,
    environ: dict[str, str] | None = None,
    probes: bool = False,
) -> AsyncIterator[House]:
    """Run one; `settings`: TOML behind the upstream's."""
    environ = environ or {}
    named = f'[[upstream]]\nname = "u"\nurl = "{upstream.url}"\nprobes = {str(probes).lower()}\n'
    flags = {"port": 0, "admin_port": 0, "workers": workers, "cache.file": str(folder / "c.db")}
    found = shared_out(read(named + settings, "test.toml", flags), workers)
    (clients,), (admin,) = doors("127.0.0.1", 0, 1), doors("127.0.0.1", 0, 1)
    log = RequestLog(str(folder / "log.jsonl"))
    said: list[str] = []
    owner = Proxy(
        found,
        variables=checked(found, environ),
        keys=from_environment(found.teams, environ),
        log=log,
        say=said.append,
        place=Place(number=0, folder=folder, clients=clients, admin=admin),
    )
    ports = [clients[0].getsockname()[1]]
    inside = House(found, folder, environ, owner, ports=ports, log=log, said=said)
    inside.admin_port = admin[0].getsockname()[1]
    try:
        await owner.start()
        for number in range(1, workers):
            await inside.start_another(number)
        yield inside
    finally:
        await inside.close()
        log.close()
