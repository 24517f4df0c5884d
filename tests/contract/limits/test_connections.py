"""What clients that say nothing, or not who they are, may hold: no memory of others, and no connection that another one needs."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from contract.harness.clients import Client, ask, request
from contract.harness.programs import until
from contract.harness.proxies import proxy
from contract.harness.servers import Server, chat, server

MIB = 2**20
NO_FILE = "[cache]\nfile = 'none'\n"
TEAM = '[[team]]\nname = "red"\nkey_env = "RED_KEY"\n'
KEY = "red-key-for-tests"
BODY = b'{"model":"tiny","messages":[{"role":"user","content":"%b"}]}'


@pytest.fixture
def engine() -> Iterator[Server]:
    with server({"*": chat()}) as running:
        yield running


def head_of(size: int, **more: object) -> bytes:
    """A head that promises a body of that size."""
    data = request(b"", headers=[f"content-length: {size}", *more.pop("headers", [])], **more)  # type: ignore[misc, arg-type]
    assert data.endswith(b"\r\n\r\n")
    return data


def test_a_key_is_checked_before_the_body_is_read(tmp_path: Path, engine: Server) -> None:
    with (
        proxy(engine.url, NO_FILE + TEAM, cwd=tmp_path, env={"RED_KEY": KEY}) as door,
        ExitStack() as open_ones,
    ):
        expects = "expect: 100-continue"
        for key in (None, "another-key"):
            for headers in ([], [expects]):
                client = open_ones.enter_context(Client(door.url))
                client.send(head_of(30 * MIB, key=key, headers=headers))
                answer = client.reply()
                assert (answer.status, answer.headers["connection"]) == (401, "close")
                assert "www-authenticate" in answer.headers
                assert client.is_closed()
        # a team's own body is asked for
        client = open_ones.enter_context(Client(door.url))
        body = BODY % b"hello"
        client.send(head_of(len(body), key=KEY, headers=[expects]))
        assert client.reply().status == 100
        client.send(body)
        assert client.reply().status == 200
        # nine without a key send all that is taken of 30 MiB; a team's large prompt has room all the same
        for _ in range(9):
            client = open_ones.enter_context(Client(door.url))
            client.socket.settimeout(1.0)
            client.send(head_of(30 * MIB, key="another-key"))
            with suppress(OSError):
                for _ in range(29):
                    client.send(b"x" * MIB)
        assert ask(door.url, BODY % (b"y" * 24 * MIB), key=KEY).status == 200


def test_bodies_that_stand_still_give_way_and_a_slow_one_that_comes_is_waited_for(
    tmp_path: Path, engine: Server
) -> None:
    settings = NO_FILE + '[front]\nheld = "16MiB"\nbody_size = "8MiB"\nbody_time = "3s"\n'
    with proxy(engine.url, settings, cwd=tmp_path) as door, ExitStack() as open_ones:
        # as long as what has come lasts, at 64 KiB/s, was the rule: 4 MiB and no more would have a minute
        stalled = open_ones.enter_context(Client(door.url, 25.0))
        stalled.send(head_of(5 * MIB) + b"x" * 4 * MIB)
        # as much of late as is wanted, for longer than a body's time
        steady = open_ones.enter_context(Client(door.url))
        body = BODY % (b"z" * 3 * MIB)
        steady.send(head_of(len(body)))
        step = len(body) // 16
        for first in range(0, len(body), step):
            steady.send(body[first : first + step])
            time.sleep(0.5)
        assert steady.reply().status == 200
        assert stalled.reply().status == 408


def test_bodies_that_stand_still_make_room_for_those_that_come(
    tmp_path: Path, engine: Server
) -> None:
    settings = NO_FILE + '[front]\nheld = "16MiB"\nbody_size = "8MiB"\n'
    with proxy(engine.url, settings, cwd=tmp_path) as door, ExitStack() as open_ones:
        for _ in range(3):
            client = open_ones.enter_context(Client(door.url))
            client.send(head_of(8 * MIB) + b"x" * 5 * MIB)
        body = BODY % (b"y" * 6 * MIB)
        # those that stand still have a minute
        until(lambda: ask(door.url, body).status == 200, patience_s=45, step_s=0.5)


def test_the_longest_silent_connections_make_room_for_new_ones(
    tmp_path: Path, engine: Server
) -> None:
    settings = NO_FILE + "[front]\nconnections = 50\n"
    with proxy(engine.url, settings, cwd=tmp_path) as door, ExitStack() as open_ones:
        port = int(door.url.rpartition(":")[2])
        silent = []
        for number in range(150):
            one = open_ones.enter_context(socket.create_connection(("127.0.0.1", port)))
            if number % 2:
                one.sendall(b"POST / HTT")
            silent.append(one)
        for _ in range(60):
            client = open_ones.enter_context(Client(door.url))
            assert client.ask().status == 200
        # the first to come were the first to go, and without a word
        for one in silent[:100]:
            one.settimeout(60)
            # a reset, where it went before what it had sent was read
            with suppress(ConnectionResetError):
                assert one.recv(100) == b""
        # one that is served is not taken for a silent one
        assert client.ask().is_hit


def test_those_that_spoke_since_they_were_found_silent_make_room_all_the_same(
    tmp_path: Path, engine: Server
) -> None:
    settings = NO_FILE + "[front]\nconnections = 50\n"
    with proxy(engine.url, settings, cwd=tmp_path) as door, ExitStack() as open_ones:
        port = int(door.url.rpartition(":")[2])

        def silent(count: int) -> list[socket.socket]:
            address = ("127.0.0.1", port)
            return [
                open_ones.enter_context(socket.create_connection(address)) for _ in range(count)
            ]

        # the longest silent are looked for at the first that is too many, and all but that one speak then
        first, *others = silent(51)
        assert first.recv(100) == b""
        for one in others:
            one.sendall(b"POST / HTT")
        clients = [open_ones.enter_context(Client(door.url)) for _ in range(40)]
        assert {client.ask().status for client in clients} == {200}
