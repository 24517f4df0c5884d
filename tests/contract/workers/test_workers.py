"""`workers = 2`: two processes on one port, which die and come back without anybody's noticing but who was connected to them."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from contract.harness.clients import BODY, Client, Reply, ask, get, request
from contract.harness.programs import until
from contract.harness.proxies import Proxy, proxy
from contract.harness.servers import Asked, Server, chat, server

CLIENTS = 24
"""The kernel deals connections out by chance: all 24 to one of two workers once in 8 million times."""


def other(number: int) -> dict[str, Any]:
    return BODY | {"seed": number}


@pytest.fixture
def engine() -> Iterator[Server]:
    def truthful(asked: Asked) -> None:
        asked.send(chat(f"for seed {json.loads(asked.body).get('seed')}"))

    with server({"*": truthful}) as running:
        yield running


def pids(door: Proxy) -> dict[int, int]:
    """Worker -> its process, as `ps` shows them."""
    found = {}
    for each in door.program.family():
        with suppress(psutil.NoSuchProcess):
            for word in each.cmdline():
                if word.startswith("worker-") and each.status() != psutil.STATUS_ZOMBIE:
                    found[int(word.removeprefix("worker-"))] = each.pid
    return found


def by_worker(clients: list[Client]) -> dict[str, list[Client]]:
    """The clients by who serves them; every one gets a hit."""
    found: dict[str, list[Client]] = {}
    for client in clients:
        answer = client.ask()
        assert answer.is_hit, answer
        found.setdefault(answer.headers["x-request-id"].partition("-")[0], []).append(client)
    assert len(found) == 2
    return found


class Counted(Client):
    """Counts the answers that all of its kind got, as the proxy should."""

    answers = 0

    def reply(self) -> Reply:
        found = super().reply()
        Counted.answers += 1
        return found


def counted_ask(door: Proxy, body: object = BODY) -> Reply:
    with Counted(door.url) as client:
        return client.ask(body)


def tried(client: Client, body: object = BODY) -> Reply | None:
    """What it got; None: its worker is dead."""
    with suppress(ConnectionError):
        return client.ask(body)
    return None


def connected(door: Proxy, stack: ExitStack) -> list[Client]:
    return [stack.enter_context(Counted(door.url)) for _ in range(CLIENTS)]


def test_equal_misses_are_one_call_hits_come_from_each_worker_and_all_counts_add_up(
    tmp_path: Path, engine: Server
) -> None:
    truthful, go_on = engine.pages["*"], threading.Event()

    def late(asked: Asked) -> None:
        go_on.wait(60)
        assert callable(truthful)
        truthful(asked)

    engine.pages["*"] = late
    with proxy(engine.url, "workers = 2\n", cwd=tmp_path) as door, ExitStack() as stack:
        before = Counted.answers
        clients = connected(door, stack)
        for client in clients:
            client.send(request(other(1)))
        # the owner's own clients and those that the other has handed on
        until(lambda: get(door.admin, "/state").json["busy"] >= CLIENTS)
        go_on.set()
        answers = [client.reply() for client in clients]
        assert {(each.status, each.text) for each in answers} == {(200, "for seed 1")}
        assert len(engine.asked) == 1
        counted_ask(door)
        until(lambda: counted_ask(door).is_hit)
        parted = by_worker(clients)
        for mine in parted.values():
            assert mine[0].ask(b"{").status == 400
            assert mine[0].ask(other(1)).text == "for seed 1"
        sent = Counted.answers - before
        # a worker that a busy machine keeps from answering is told of as it was
        until(lambda: door.total("toolkit_proxy_requests_total") == sent)
        assert door.total("toolkit_proxy_requests_total", cache="miss") == len(engine.asked) == 2
        assert door.total("toolkit_proxy_workers") == 2
        door.program.end(signal.SIGTERM)
        assert door.program.line(rf"^{sent:,} requests in ")


def test_a_worker_that_is_killed_costs_nobody_elses_answer_and_comes_back(
    tmp_path: Path, engine: Server
) -> None:
    with proxy(engine.url, "workers = 2\n", cwd=tmp_path) as door, ExitStack() as stack:
        before_all = Counted.answers

        def is_all_counted() -> bool:
            told = door.total("toolkit_proxy_requests_total")
            return told == Counted.answers - before_all

        clients = connected(door, stack)
        counted_ask(door)
        until(lambda: all(client.ask().is_hit for client in clients))
        parted, before = by_worker(clients), pids(door)
        assert before.keys() == {0, 1}
        # what is purged is in the memory of neither any more
        truthful = engine.pages["*"]
        for number, mine in enumerate(parted.values()):
            engine.pages["*"] = chat(f"anew {number}")
            assert ask(door.admin, {"all": True}, path="/purge").json["purged"] > 0
            assert mine[0].ask().text == f"anew {number}"
            until(lambda: all(client.ask().is_hit for client in clients))
        engine.pages["*"] = truthful
        # a worker that a busy machine keeps from answering is told of as it was
        until(is_all_counted)
        # one that answers hits only
        os.kill(before[1], signal.SIGKILL)
        until(lambda: pids(door).get(1) != before[1])
        alive = [answer for client in clients if (answer := tried(client)) is not None]
        assert len(alive) in {len(mine) for mine in parted.values()}
        assert all(answer.is_hit for answer in alive)
        door.program.line(rf"Worker 1.*{before[1]}.*SIGKILL.*started again")
        # whoever is dealt to it is served, and what it had counted is still there
        assert all(counted_ask(door).is_hit for _ in range(CLIENTS))
        until(lambda: pids(door).keys() == {0, 1} and pids(door)[1] != before[1])
        assert pids(door)[0] == before[0]
        until(is_all_counted)

        # the one that asks upstream: hits go on, and a miss is told to come again
        again = connected(door, stack)
        until(lambda: all(client.ask().is_hit for client in again))
        os.kill(pids(door)[0], signal.SIGKILL)
        kept = [client for client in again if (hit := tried(client)) is not None and hit.is_hit]
        assert 0 < len(kept) < CLIENTS
        for number, client in enumerate(kept):
            miss = client.ask(other(number))
            assert miss.status in (200, 503)
            if miss.status == 503:
                assert miss.headers["retry-after"] == "1"
            else:
                assert miss.text == f"for seed {number}"

        def is_served(number: int, **over: Client) -> bool:
            """By the one that came back; who asks the one that is dead, or is not known to it yet, asks again."""
            with suppress(ConnectionError):
                client = over.get("client")
                told = client.ask(other(number)) if client else ask(door.url, other(number))
                return told.status == 200 and told.text == f"for seed {number}"
            return False

        until(lambda: is_served(1000))
        until(lambda: is_served(1001, client=kept[0]))
        assert pids(door).keys() == {0, 1}


def test_what_a_worker_passes_on_is_of_its_client_s_team_and_nobody_else_may_say_so(
    tmp_path: Path, engine: Server
) -> None:
    settings = "workers = 2\n" + "".join(
        f'[[team]]\nname = "{team}"\nkey_env = "{team.upper()}"\n' for team in ("red", "blue")
    )
    keys = {"RED": "key-of-red", "BLUE": "key-of-blue"}
    forged = ["x-toolkit-team: red", "x-toolkit-arrived: 0.0", "x-toolkit-peer: 10.0.0.1"]
    with proxy(engine.url, settings, cwd=tmp_path, env=keys) as door, ExitStack() as stack:
        for number in range(CLIENTS):
            client, body = stack.enter_context(Client(door.url)), other(number)
            assert client.ask(body, headers=forged).status == 401
            mine = [client.ask(body, key="key-of-red") for _ in range(2)]
            assert [(each.status, each.is_hit) for each in mine] == [(200, False), (200, True)]
            theirs = client.ask(body, key="key-of-blue", headers=forged)
            assert (theirs.status, theirs.is_hit) == (200, False)
        until(lambda: door.total("toolkit_proxy_requests_total", team="red") == 2 * CLIENTS)
        assert door.total("toolkit_proxy_requests_total", team="blue") == CLIENTS
        # what a worker says of a client is believed on a socket that is this user's alone
        private = {
            str(each.laddr)
            for process in door.program.family()
            for each in process.net_connections("unix")
            if str(each.laddr).endswith(".sock")
        }
        assert {Path(each).name for each in private} == {"primary.sock", "worker-1.sock"}
        assert {Path(each).stat().st_mode & 0o777 for each in private} == {0o600}
