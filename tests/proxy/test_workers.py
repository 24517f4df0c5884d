"""Several workers over real sockets, in one loop: what one cannot answer the primary does, in the same words, and what is purged is so everywhere."""

import asyncio
import contextlib
import json
import signal
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from contract.harness.clients import Client as RawClient
from contract.harness.clients import get, request
from contract.harness.programs import gone
from contract.harness.programs import until as wait_until
from contract.harness.proxies import proxy
from contract.harness.servers import Asked, chat, server
from support.chat import until
from support.proxied import ASKED, Answer, Client, raw, whole
from support.scripted_upstream import Line, Script, ScriptedUpstream, dying, hanging, plain

from toolkit.proxy import workers
from toolkit.proxy.app import Proxy
from toolkit.proxy.auth import from_environment
from toolkit.proxy.config import Settings, checked, read
from toolkit.proxy.telemetry import Telemetry
from toolkit.proxy.telemetry.access_log import AccessLog
from toolkit.proxy.workers import Relay, listeners, shared_out

STREAMED = ASKED | {"stream": True}
KEYS = {"RED": "sk-red", "BLUE": "sk-blue"}
RED, BLUE = "sk-red", "sk-blue"
TEAMS = "".join(f'[[team]]\nname = "{n}"\nkey_env = "{n.upper()}"\n' for n in ("red", "blue"))
ALL = (0, 1, 2)


def other(number: int) -> dict[str, object]:
    return ASKED | {"seed": number}


# --- all workers in the test's own loop --------------------------------------------------------------------


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


# --- misses -----------------------------------------------------------------------------------------------

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ODD = b'{"model" : "tiny","messages":[{"role":"user","content":"\xc3\xa9 \\u0041"}]}'
LONG = json.dumps(ASKED | {"messages": [{"role": "user", "content": "x" * 5_000_000}]}).encode()


async def headless(line: Line) -> None:
    """With a length and no body, as a server answers HEAD."""
    line.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n")


@pytest.mark.parametrize(
    ("script", "sent", "status"),
    [
        (
            whole(),
            raw(ODD, key="sk-mine", headers=[f"traceparent: {TRACE}", "cookie: a", "accept: b/c"]),
            200,
        ),
        # also where both are long
        (whole(), raw(LONG, headers=["x-toolkit-cache: " + "ttl=1h, " * 6000 + "ttl=1h"]), 200),
        (plain("404 Not Found", b'{"error": "no model"}'), raw(), 404),
        (plain("500 Internal Server Error", b"x" * 100_000), raw(), 500),
        (plain("429 Too Many", b"{}", "retry-after: 7"), raw(), 429),
        (dying("Hel"), raw(STREAMED), 200),
        # each of the two counts; what can't be read as a wish counts as `off`
        (whole(), raw(headers=["cache-control: no-store", "cache-control: no-cache"]), 200),
        (whole(), raw().replace(b"\r\n\r\n", b"\r\nx-toolkit-cache: \xff\r\n\r\n", 1), 200),
        (whole(), raw(headers=["cache-control: only-if-cached"]), 504),
    ],
)
async def test_a_worker_asks_and_answers_as_the_primary_does(
    script: Script, sent: bytes, status: int, tmp_path: Path
) -> None:
    sent = sent.replace(b"\r\n\r\n", b"\r\nx-request-id: mine\r\n\r\n", 1)
    async with ScriptedUpstream(script) as engine, family(engine, tmp_path) as home:
        answers, asked = [], []
        for worker in (0, 1):
            answers.append(await (await home.client(worker)).send(sent))
            await home.admin("/purge", {"all": True})
            asked.append([(one.method, one.target, one.headers, one.body) for one in engine.lines])
            engine.lines.clear()
        direct, relayed = answers
        assert (relayed.status, relayed.headers["x-request-id"]) == (status, "mine")
        assert asked[0] == asked[1]
        for each in answers:
            del each.headers["date"]
        assert direct == relayed
        assert b"cookie" not in repr(asked).encode()


async def test_a_head_tells_no_length_that_a_get_would_not_have(tmp_path: Path) -> None:
    async with ScriptedUpstream(headless) as engine, family(engine, tmp_path) as home:
        for worker in ALL:
            answer = await home.ask(worker, b"", path="/v1/models", method="HEAD")
            assert (answer.status, answer.headers.get("content-length"), answer.body) == (
                200,
                None,
                b"",
            )


async def test_a_client_that_leaves_a_worker_is_seen_leaving_upstream(tmp_path: Path) -> None:
    async with ScriptedUpstream(hanging()) as engine, family(engine, tmp_path) as home:
        client = await home.client(1)
        client.writer.write(raw())
        line = await engine.asked()
        client.close()
        async with asyncio.timeout(60):
            await line.gone.wait()
        await until(lambda: home.primary.telemetry.counters.total("clients_left") == 1)


# --- who asks ---------------------------------------------------------------------------------------------


async def test_the_primarys_private_socket_takes_nothing_but_what_workers_say(
    tmp_path: Path,
) -> None:
    async with (
        ScriptedUpstream(whole()) as engine,
        family(engine, tmp_path, TEAMS, environ=KEYS) as home,
    ):
        assert home.ports
        path = home.folder / "primary.sock"
        assert path.stat().st_mode & 0o077 == 0
        for team, wanted in (([], b"401"), (["x-toolkit-team: nobody"], b"500")):
            lines = ["x-toolkit-arrived: 0.0", *team]
            assert (await private(home, raw(headers=lines))).split(b" ")[1] == wanted
        assert (await private(home, raw())).split(b" ")[1] == b"400"
        assert (await private(home, raw(key=RED))).split(b" ")[1] == b"400"
        assert not engine.lines


async def private(home: Family, data: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(home.folder / "primary.sock"))
    writer.write(data)
    head = await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()
    return head


# --- faults -------------------------------------------------------------------------------------------------


async def test_a_fault_of_ours_leaves_no_client_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(Relay, "received", broken)
    async with ScriptedUpstream(whole()) as engine, family(engine, tmp_path) as home:
        answer = await home.ask(1)
        assert answer.status == 503


# --- forgetting -------------------------------------------------------------------------------------------


async def test_a_purge_that_a_worker_did_not_hear_is_told_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "LIMIT_S", 0.1)

    async with ScriptedUpstream(whole()) as engine, family(engine, tmp_path) as home:
        # somebody is there, and says nothing: it may hold anything
        await home.stop_other(2)
        path = tmp_path / "worker-2.sock"
        path.unlink(missing_ok=True)

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        silent = await asyncio.start_unix_server(listen, path)
        async with silent:
            answer = await home.admin("/purge", {"all": True})
            assert answer.status == 400
            assert "`2`" in answer.json["error"]["message"]
        path.unlink(missing_ok=True)
        # nobody is there: it holds nothing
        assert (await home.admin("/purge", {"all": True})).status == 200


# --- as a user starts them --------------------------------------------------------------------------------

CLIENTS = 24
"""Of which the kernel deals each of two workers one, but for a chance of one in 8 million."""


def asking(url: str, stack: contextlib.ExitStack) -> list[RawClient]:
    """So many clients, each of which waits for an answer that nobody else waits for."""
    clients = [stack.enter_context(RawClient(url)) for _ in range(CLIENTS)]
    for number, client in enumerate(clients):
        client.send(request(other(number)))
    return clients


def test_what_is_under_way_is_answered_before_the_end(tmp_path: Path) -> None:
    go_on = threading.Event()

    def late(asked: Asked) -> None:
        go_on.wait(60)
        asked.send(chat("x"))

    own = {"TMPDIR": str(tmp_path)}
    with (
        server({"*": late}) as engine,
        proxy(engine.url, "workers = 2\n", cwd=tmp_path, env=own) as door,
        contextlib.ExitStack() as stack,
    ):
        clients, processes = asking(door.url, stack), door.program.family()
        wait_until(lambda: get(door.admin, "/state").json["busy"] == CLIENTS)
        door.program.process.send_signal(signal.SIGTERM)
        door.program.line("^Ending")
        go_on.set()
        assert {client.reply().text for client in clients} == {"x"}
        assert door.program.wait() == 0
        assert door.program.line(rf"^{CLIENTS} requests in ")
        assert gone(processes)
        assert not list(tmp_path.glob("toolkit-proxy-*")), "its private folder is left"


def test_workers_end_with_a_parent_that_is_killed_and_free_its_port(tmp_path: Path) -> None:
    go_on = threading.Event()
    own = {"TMPDIR": str(tmp_path)}
    with (
        server({"*": lambda _: go_on.wait(60)}) as engine,
        proxy(engine.url, "workers = 2\n", cwd=tmp_path, env=own) as door,
        contextlib.ExitStack() as stack,
    ):
        asking(door.url, stack)
        wait_until(lambda: len(engine.asked) == CLIENTS)
        processes = door.program.family()
        door.program.process.kill()
        assert gone(processes)
        with pytest.raises(ConnectionRefusedError):
            RawClient(door.url)
        wait_until(lambda: not list(tmp_path.glob("toolkit-proxy-*")))
        go_on.set()
