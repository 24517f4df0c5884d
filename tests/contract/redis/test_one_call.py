"""Two proxies on one Redis, one call: who leads brings nothing, is left by its clients, or may not wait; and what lies in Redis meanwhile."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from contract.harness.clients import Client, ask, request
from contract.harness.programs import until
from contract.harness.proxies import Proxy, proxy
from contract.harness.servers import Asked, Server, answer, chat, server
from contract.redis.test_redis import SETTINGS, Redis, other, redis_server

RIGHTS = "~toolkit:* +get +set +mget +del +unlink +scan +eval +pexpire +exists"
"""As README said in November 2026: whoever gave these need give no others."""
PATIENT = SETTINGS + 'redis_wait = "10m"\n'
"""Nobody asks in the place of another only as he has waited long enough."""


def command(redis: Redis, *words: str) -> bytes:
    """What Redis says to it."""
    with socket.create_connection(("127.0.0.1", redis.port), 30) as one:
        one.sendall(" ".join(words).encode() + b"\r\nQUIT\r\n")
        return b"".join(iter(lambda: one.recv(65536), b""))


@dataclass
class Pair:
    one: Proxy
    two: Proxy
    engine: Server
    redis: Redis
    go_on: threading.Event
    """Lets the engine answer what it is asked first."""

    def following(self, client: Client, body: object) -> None:
        """Have a client of the second proxy ask, and wait until that one looks what became of the first one's call."""
        before = self._looks()
        client.send(request(body))
        # what it says to Redis when it begins to wait is there before it has looked so often
        until(lambda: self._looks() > before + 20)

    def _looks(self) -> int:
        told = command(self.redis, "INFO", "commandstats")
        return int(told.partition(b"cmdstat_mget:calls=")[2].split(b",")[0] or 0)

    def have_nothing_end_by_itself(self) -> None:
        """Redis forgets nothing for ten minutes: who goes on before that was told to."""
        for name in command(self.redis, "KEYS", "toolkit:*").split():
            if name.startswith(b"toolkit:"):
                command(self.redis, "PEXPIRE", name.decode(), "600000")


@contextmanager
def pair(folder: Path, first: bytes, then: bytes, *, url: str = "", settings: str = PATIENT) -> Iterator[Pair]:  # fmt: skip
    go_on = threading.Event()

    def late(asked: Asked) -> None:
        if len(engine.asked) > 1:
            asked.send(then)
            return
        go_on.wait(60)
        asked.send(first)

    with ExitStack() as stack:
        redis = stack.enter_context(redis_server(folder))
        engine = stack.enter_context(server({"*": late}))
        doors = []
        for name in ("one", "two"):
            (folder / name).mkdir()
            env = {"CACHE": url.format(port=redis.port) or redis.url}
            if url and not doors:
                command(redis, f"ACL SETUSER proxies reset on >secret {RIGHTS}")
            doors.append(
                stack.enter_context(proxy(engine.url, settings, cwd=folder / name, env=env))
            )
        yield Pair(*doors, engine, redis, go_on)
        go_on.set()


@pytest.mark.parametrize("first", [answer({"error": "ill"}, "500 Ill"), answer({"no": "answer"})], ids=["500", "no-answer"])  # fmt: skip
def test_an_answer_that_is_not_stored_keeps_nobody_waiting(tmp_path: Path, first: bytes) -> None:
    with (
        pair(tmp_path, first, chat("second")) as both,
        Client(both.one.url) as leading,
        Client(both.two.url) as following,
    ):
        leading.send(request(other(1)))
        until(lambda: len(both.engine.asked) == 1)
        both.following(following, other(1))
        both.have_nothing_end_by_itself()
        both.go_on.set()
        assert following.reply().text == "second"
        assert leading.reply().body == first.partition(b"\r\n\r\n")[2]
        assert len(both.engine.asked) == 2


def test_a_call_goes_on_without_its_clients_while_another_proxy_waits_and_ends_when_none_does(
    tmp_path: Path,
) -> None:
    with pair(tmp_path, chat("first"), chat("second")) as both:
        with Client(both.one.url) as leading, Client(both.two.url) as following:
            leading.send(request(other(1)))
            until(lambda: len(both.engine.asked) == 1)
            both.following(following, other(1))
            leading.socket.close()
            until(lambda: both.one.total("toolkit_proxy_clients_left_total") == 1)
            # longer than a lease lives that nobody renews
            assert not both.engine.asked[0].is_gone(within_s=5)
            both.go_on.set()
            answer = following.reply()
            assert (answer.text, len(both.engine.asked)) == ("first", 1)
            assert "collapsed" in answer.headers["cache-status"]
        both.engine.pages["*"] = lambda _: None
        with Client(both.one.url) as alone:
            alone.send(request(other(2)))
            until(lambda: len(both.engine.asked) == 2)
            both.have_nothing_end_by_itself()
        assert both.engine.asked[1].is_gone(within_s=60)
        # nor does what is left of it keep others waiting
        both.engine.pages["*"] = chat("third")
        assert ask(both.two.url, other(2)).text == "third"


def test_who_waited_as_long_as_the_settings_say_asks_itself(tmp_path: Path) -> None:
    settings = SETTINGS + 'redis_wait = "1s"\n'
    with (
        pair(tmp_path, chat("first"), chat("second"), settings=settings) as both,
        Client(both.one.url) as leading,
    ):
        leading.send(request(other(1)))
        until(lambda: len(both.engine.asked) == 1)
        assert ask(both.two.url, other(1)).text == "second"
        both.go_on.set()
        assert leading.reply().text == "first"


def test_answers_lie_in_redis_as_long_as_they_live_and_a_purge_takes_them_alone(
    tmp_path: Path,
) -> None:
    url = "redis://proxies:secret@127.0.0.1:{port}/0"
    with pair(tmp_path, chat("first"), chat("second"), url=url) as both:
        command(both.redis, "SET", "somebody:else", "1")
        both.go_on.set()
        assert ask(both.one.url, other(1)).text == "first"
        # with the rights that README names it is found by the other
        until(lambda: b"toolkit:1:" in command(both.redis, "KEYS", "*"))
        found = ask(both.two.url, other(1))
        assert (found.is_hit, found.text) == (True, "first")
        assert both.two.total("toolkit_proxy_hits_total", layer="redis") == 1
        (name,) = [
            n for n in command(both.redis, "KEYS", "*").split() if n.startswith(b"toolkit:1:")
        ]
        left_s = int(command(both.redis, "TTL", name.decode()).split(b"\r\n")[0][1:])
        assert 3600 - 600 < left_s <= 3600
        purged = ask(both.one.admin, {"all": True}, path="/purge")
        assert purged.status == 200, purged.body
        keys = command(both.redis, "KEYS", "*")
        assert b"toolkit:1:" not in keys
        assert b"somebody:else" in keys
        assert "secret" not in both.one.program.text + both.two.program.text
        assert json.loads(ask(both.one.admin, b"", path="/state", method="GET").body)["redis_open"] is False  # fmt: skip


def test_a_foreign_answer_in_an_answer_s_place_is_a_miss(tmp_path: Path) -> None:
    with pair(tmp_path, chat("first"), chat("second")) as both:
        both.go_on.set()
        ask(both.one.url, other(1))
        ask(both.one.url, other(2))

        def names() -> list[str]:
            found = command(both.redis, "KEYS", "toolkit:1:*").split()
            return [each.decode() for each in found if each.startswith(b"toolkit:1:")]

        until(lambda: len(names()) == 2)
        one, two = names()
        # as a mixed-up connection would bring it: another request's
        command(both.redis, "COPY", one, two, "REPLACE")
        asked = len(both.engine.asked)
        texts = [ask(both.two.url, other(number)) for number in (1, 2)]
        assert sorted(each.is_hit for each in texts) == [False, True]
        assert len(both.engine.asked) == asked + 1
