"""Two proxies on one real redis-server that is killed, frozen and brought back; and a proxy that is killed and started again."""

import json
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from contract.harness.clients import BODY, Client, ask, request
from contract.harness.databases import select
from contract.harness.programs import free_port, until
from contract.harness.proxies import Proxy, proxy
from contract.harness.servers import Asked, Server, chat, server

SETTINGS = '[cache]\nfile = "none"\nredis_env = "CACHE"\nredis_timeout = "2s"\n'
"""Where the machine stands still for longer than Redis' own limit, a pair would be two calls, and nobody's fault."""
PAIRS = 8


def other(number: int) -> dict[str, Any]:
    return BODY | {"seed": number}


@dataclass
class Redis:
    """A redis-server; it writes nothing to disk."""

    folder: Path
    port: int
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(self.port), "--save", ""]
        self.process = subprocess.Popen(
            [*command, "--dir", str(self.folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(self._answers)

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5) as one:
            one.sendall(b"PING\r\n")
            return one.recv(100).startswith(b"+PONG")
        return False

    def send(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


@contextmanager
def redis_server(folder: Path) -> Iterator[Redis]:
    if shutil.which("redis-server") is None:
        pytest.skip("no redis-server; apt-get install redis-server")
    running = Redis(folder, free_port())
    running.start()
    try:
        yield running
    finally:
        running.kill()


class Engine:
    """Says for which seed it was asked, so that a wrong answer is seen; `go_on` lets it answer."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.go_on.set()

    def __call__(self, asked: Asked) -> None:
        self.go_on.wait(60)
        asked.send(chat(f"for seed {json.loads(asked.body)['seed']}"))


def asked_at_once(doors: list[Proxy], numbers: range) -> None:
    """Each is asked for by a client of each proxy at the same time, and told rightly."""
    with ExitStack() as stack:
        clients = []
        for number in numbers:
            for door in doors:
                client = stack.enter_context(Client(door.url))
                client.send(request(other(number)))
                clients.append((number, client))
        for number, client in clients:
            answer = client.reply()
            assert (answer.status, answer.text) == (200, f"for seed {number}")


def is_used(door: Proxy) -> bool:
    return door.total("toolkit_proxy_redis_breaker_open") == 0


def test_two_proxies_ask_once_while_redis_is_there_and_answer_rightly_while_it_is_not(
    tmp_path: Path,
) -> None:
    engine_does = Engine()
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server(tmp_path))
        engine: Server = stack.enter_context(server({"*": engine_does}))
        doors = [
            stack.enter_context(proxy(engine.url, SETTINGS, cwd=folder, env={"CACHE": redis.url}))
            for folder in folders
        ]
        numbers = iter(range(0, 10**6, PAIRS))

        def next_ones() -> range:
            first = next(numbers)
            return range(first, first + PAIRS)

        # equal misses at both, at once and one after the other, are one call
        asked_at_once(doors, next_ones())
        asked_at_once(doors, range(PAIRS))
        assert len(engine.asked) == PAIRS
        for stop, resume in (
            (redis.kill, redis.start),
            (lambda: redis.send(signal.SIGSTOP), lambda: redis.send(signal.SIGCONT)),
        ):
            stop()
            # no error and no wrong answer, and two calls for a pair at the most
            before = len(engine.asked)
            asked_at_once(doors, next_ones())
            assert len(engine.asked) - before <= 2 * PAIRS
            until(lambda: (asked_at_once(doors, next_ones()), not any(map(is_used, doors)))[1])
            before = len(engine.asked)
            asked_at_once(doors, next_ones())
            assert len(engine.asked) - before == 2 * PAIRS
            resume()
            # used again: what one asked for, the other has
            until(lambda: (asked_at_once(doors, next_ones()), all(map(is_used, doors)))[1])
            before = len(engine.asked)
            asked_at_once(doors, next_ones())
            assert len(engine.asked) - before == PAIRS
        for door in doors:
            assert door.total("toolkit_proxy_errors_total") == 0
        until(lambda: sum(door.total("toolkit_proxy_requests_total", cache="miss") for door in doors) == len(engine.asked))  # fmt: skip

        # one is killed in the midst of its call: the other, which waits for it, asks in its place
        engine_does.go_on.clear()
        before, number = len(engine.asked), 10**7
        with Client(doors[0].url) as leading, Client(doors[1].url) as following:
            leading.send(request(other(number)))
            until(lambda: len(engine.asked) == before + 1)
            following.send(request(other(number)))
            doors[0].program.destroy()
            until(lambda: len(engine.asked) == before + 2)
            engine_does.go_on.set()
            assert following.reply().text == f"for seed {number}"
            with pytest.raises(ConnectionError):
                leading.reply()


def test_what_a_killed_proxy_had_stored_is_served_after_a_restart(tmp_path: Path) -> None:
    stored = range(20)
    with server({"*": Engine()}) as engine:
        with proxy(engine.url, cwd=tmp_path) as door:
            for number in stored:
                assert ask(door.url, other(number)).status == 200
            # written behind the answers' backs, in order
            file, count = tmp_path / "data" / "proxy-cache.db", "select count(*) as n from answers"
            until(lambda: select(file, count) == [{"n": len(stored)}])
            door.program.process.send_signal(signal.SIGKILL)
            door.program.wait()
        with proxy(engine.url, cwd=tmp_path) as door:
            for number in stored:
                answer = ask(door.url, other(number))
                assert (answer.is_hit, answer.text) == (True, f"for seed {number}")
            assert len(engine.asked) == len(stored)
            assert door.total("toolkit_proxy_hits_total", layer="disk") == len(stored)
