"""Who may ask upstream now, who waits, who is turned away and with which words; what a key opens, and what of a client goes upstream."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from contract.harness.clients import BODY, Client, Reply, ask, get, request
from contract.harness.programs import until
from contract.harness.proxies import Proxy, proxy
from contract.harness.servers import Asked, Server, answer, chat, server

NO_FILE = "[cache]\nfile = 'none'\n"
TEAMS = """
[[team]]
name = "red"
key_env = "RED"
concurrency = 1
queue = 2
max_prompt_tokens = 50
max_output_tokens = 10
[[team]]
name = "blue"
key_env = "BLUE"
priority = 5
[[team]]
name = "green"
key_env = "GREEN"
"""
KEYS = {"RED": "red-key", "BLUE": "blue-key another-blue-key", "GREEN": "green-key"}


class Gate:
    """Answers by seed, each when it may."""

    def __init__(self) -> None:
        self.open: dict[int, threading.Event] = {}
        self.order: list[int] = []

    def __call__(self, asked: Asked) -> None:
        seed = json.loads(asked.body)["seed"]
        self.order.append(seed)
        self.open.setdefault(seed, threading.Event()).wait(60)
        asked.send(chat(f"for seed {seed}"))

    def let(self, *seeds: int) -> None:
        for seed in seeds:
            self.open.setdefault(seed, threading.Event()).set()


@contextmanager
def gated(settings: str, folder: Path) -> Iterator[tuple[Proxy, Server, Gate, ExitStack]]:
    gate = Gate()
    pages: dict[str, Any] = {"*": gate, "/v1/models": answer({"object": "list", "data": []})}
    with (
        server(pages) as engine,
        proxy(engine.url, settings, cwd=folder, env=KEYS) as door,
        ExitStack() as stack,
    ):
        yield door, engine, gate, stack
        for event in gate.open.values():
            event.set()


def asks(door: Proxy, stack: ExitStack, seed: int, team: str | None = None) -> Client:
    client = stack.enter_context(Client(door.url))
    client.send(request(BODY | {"seed": seed}, key=None if team is None else f"{team}-key"))
    return client


def queued(door: Proxy, **labels: str) -> float:
    name = "team_queue_length" if labels else "queue_length"
    return door.total(f"toolkit_proxy_{name}", **labels)


def test_a_system_s_slots_and_queue(tmp_path: Path) -> None:
    settings = NO_FILE + "[admission]\nconcurrency = 2\nqueue = 2\nwait = '60s'\n"
    with gated(settings, tmp_path) as (door, engine, gate, stack):
        gate.let(99)
        assert ask(door.url, BODY | {"seed": 99}).status == 200
        running = [asks(door, stack, 1)]
        until(lambda: len(gate.order) == 2)
        running.append(asks(door, stack, 2))
        until(lambda: len(gate.order) == 3)
        waiting = [asks(door, stack, 3)]
        until(lambda: queued(door) == 1)
        waiting.append(asks(door, stack, 4))
        until(lambda: queued(door) == 2)
        assert door.total("toolkit_proxy_slots_in_use") == 2
        # no further place: it is told so at once, and when to come again
        told = ask(door.url, BODY | {"seed": 5})
        assert (told.status, told.json["error"]["type"]) == (503, "overloaded_error")
        assert 1 <= int(told.headers["retry-after"]) <= 60
        assert len(engine.asked) == 3
        # what asks for no slot goes on: a hit, a joiner, a list, a page
        assert ask(door.url, BODY | {"seed": 99}).is_hit
        joined = asks(door, stack, 3)
        assert get(door.url, "/v1/models").status == 200
        assert get(door.url, "/ping").status == 200
        # who leaves the queue makes room, and is never asked for; a call that is waited for by another stays
        waiting[1].socket.close()
        until(lambda: queued(door) == 1)
        last = asks(door, stack, 6)
        until(lambda: queued(door) == 2)
        waiting[0].socket.close()
        gate.let(1)
        assert running[0].reply().text == "for seed 1"
        until(lambda: 3 in gate.order)
        assert len(gate.order) == 4
        gate.let(2, 3, 6)
        assert [each.reply().text for each in (running[1], joined, last)] == [f"for seed {n}" for n in (2, 3, 6)]  # fmt: skip
        assert gate.order == [99, 1, 2, 3, 6]
        until(lambda: door.total("toolkit_proxy_slots_in_use") == 0)
        assert door.total("toolkit_proxy_rejections_total", reason="queue_full") == 1
        assert door.total("toolkit_proxy_errors_total") == 0


def test_who_waits_is_turned_away_in_time_and_a_queue_that_is_too_slow_is_not_joined(
    tmp_path: Path,
) -> None:
    settings = NO_FILE + "[admission]\nconcurrency = 1\nwait = '2s'\n"
    with gated(settings, tmp_path) as (door, engine, gate, stack):
        asks(door, stack, 1)
        until(lambda: len(engine.asked) == 1)
        late = asks(door, stack, 2).reply()
        assert (late.status, "in time" in late.json["error"]["message"]) == (503, True)
        assert door.total("toolkit_proxy_rejections_total", reason="expired") == 1
        # now it is known how long one takes: over 2 s
        time.sleep(1)
        gate.let(1)
        until(lambda: door.total("toolkit_proxy_slots_in_use") == 0)
        asks(door, stack, 3)
        until(lambda: len(engine.asked) == 2)
        slow = ask(door.url, BODY | {"seed": 4})
        assert (slow.status, int(slow.headers["retry-after"]) >= 2) == (503, True)
        assert door.total("toolkit_proxy_rejections_total", reason="too_slow") == 1
        assert gate.order == [1, 3]


def test_a_team_s_own_limits_are_told_as_its_own_and_cost_no_other_team(tmp_path: Path) -> None:
    settings = NO_FILE + "[admission]\nconcurrency = 8\nwait = '60s'\n" + TEAMS
    with gated(settings, tmp_path) as (door, engine, gate, stack):
        first = asks(door, stack, 1, "red")
        until(lambda: len(engine.asked) == 1)
        waiting = [asks(door, stack, 2, "red")]
        until(lambda: queued(door, team="red") == 1)
        waiting.append(asks(door, stack, 3, "red"))
        until(lambda: queued(door, team="red") == 2)
        told = ask(door.url, BODY | {"seed": 4}, key="red-key")
        assert (told.status, told.json["error"]["type"]) == (429, "rate_limit_error")
        assert "team `red`" in told.json["error"]["message"]
        gate.let(5)
        for key in ("blue-key", "another-blue-key"):
            assert ask(door.url, BODY | {"seed": 5}, key=key).status == 200
        # too long for it, whatever is free
        long = [{"role": "user", "content": "a word " * 100}]
        for body, status in (
            (BODY | {"seed": 6, "messages": long}, 413),
            (BODY | {"seed": 6, "max_tokens": 11}, 400),
            (BODY | {"seed": 6, "max_completion_tokens": 11}, 400),
        ):
            reply = ask(door.url, body, key="red-key")
            assert (reply.status, "retry-after" in reply.headers) == (status, False)
        gate.let(1, 2, 3, 6)
        assert [each.reply().status for each in (first, *waiting)] == [200] * 3
        assert gate.order == [1, 5, 2, 3]
        for body in (BODY | {"seed": 6, "messages": long}, BODY | {"seed": 6, "max_tokens": 10}):
            assert ask(door.url, body, key="blue-key").status == 200
        reasons = {"team_queue_full": 1, "prompt_too_long": 1, "output_too_long": 2}
        found = {each: door.total("toolkit_proxy_rejections_total", reason=each, team="red") for each in reasons}  # fmt: skip
        assert found == reasons


def test_a_higher_priority_goes_first_and_teams_take_turns(tmp_path: Path) -> None:
    settings = NO_FILE + "[admission]\nconcurrency = 1\nwait = '60s'\nqueue = 5\n" + TEAMS
    with gated(settings, tmp_path) as (door, engine, gate, stack):
        clients = [asks(door, stack, 1, "red")]
        until(lambda: len(engine.asked) == 1)
        for number, (seed, team) in enumerate(((2, "red"), (3, "red"), (4, "green"), (5, "blue"), (6, "green"))):  # fmt: skip
            clients.append(asks(door, stack, seed, team))
            until(lambda number=number: queued(door) == number + 1)
        # a full queue has room for a higher priority, at the cost of who came last to the longest one
        clients.append(asks(door, stack, 7, "blue"))
        until(lambda: door.total("toolkit_proxy_rejections_total", reason="queue_full") == 1)
        replies: dict[int, Reply] = {}
        for expected in (1, 5, 7):
            until(lambda expected=expected: gate.order[-1] == expected)
            gate.let(expected)
        until(lambda: len(gate.order) == 4)
        gate.let(2, 3, 4, 6)
        for seed, client in zip((1, 2, 3, 4, 5, 6, 7), clients, strict=True):
            replies[seed] = client.reply()
        turned_away = [seed for seed, reply in replies.items() if reply.status != 200]
        assert len(turned_away) == 1
        assert turned_away[0] in (3, 6)
        assert replies[turned_away[0]].status == 503
        # one of each team in turn, in a team who came first
        assert gate.order[3:5] in ([2, 4], [4, 2])
        assert len(gate.order) == 6


def test_a_key_opens_what_is_its_team_s_and_stays_here(tmp_path: Path) -> None:
    pools = TEAMS.replace("concurrency = 1\n", "", 1).replace('name = "green"', 'name = "green"\npool = "p"')  # fmt: skip
    pools += '[[team]]\nname = "gray"\nkey_env = "GRAY"\npool = "p"\n'
    keys = KEYS | {"GRAY": "gray-key", "ENGINE": "engine-key"}
    settings = NO_FILE + pools
    with server({"*": chat()}) as engine:
        named = f'[[upstream]]\nname = "other"\nurl = "{engine.url}/"\nkey_env = "ENGINE"\nprobes = false\n'
        with (
            server({"*": chat()}) as unused,
            proxy(unused.url, named + settings, cwd=tmp_path, env=keys) as door,
        ):
            assert door.total("toolkit_proxy_requests_total") == 0
            for number, headers in enumerate(
                ([], ["authorization: Bearer nobody"], ["authorization: Basic red-key"],
                 ["authorization: red-key"], ["authorization: Bearer red-key another"], ["x-api-key: red-key"],
                 ["authorization: Bearer RED-KEY"], ["authorization: Bearer red-key,"])
            ):  # fmt: skip
                reply = ask(door.url, BODY | {"seed": number}, headers=headers)
                assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer"), headers
            assert [get(door.url, path).status for path in ("/health", "/ping", "/v1/models", "/metrics", "/version")] == [200, 200, 401, 404, 404]  # fmt: skip
            assert not engine.asked
            assert not unused.asked
            said: dict[str, Any] = BODY | {"cache_salt": "mine"}
            sent = ["x-secret: a", "user-agent: b", "cookie: c", "traceparent: 00-1-2-01", "authorization: bearer red-key"]  # fmt: skip
            hits = []
            for key in ("red-key", "red-key", "blue-key", "another-blue-key", "green-key", "gray-key"):  # fmt: skip
                lines = [each.replace("red-key", key) for each in sent]
                hits.append(ask(door.url, said, headers=lines).is_hit)
            # a team's own answers are nobody else's; those of a pool are its teams'
            assert hits == [False, True, False, True, False, True]
            every = [*engine.asked, *unused.asked]
            assert len(every) == 3
            salts = {json.loads(each.body)["cache_salt"] for each in every}
            # nor may an engine's prefix cache tell one team of another's prompts
            assert len(salts) == 3
            assert "mine" not in salts
            # a client's own parts its team's further
            for own in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}):
                assert ask(door.url, BODY | {"seed": 77} | own, key="red-key").status == 200
            sent_on = [json.loads(each.body) for each in [*engine.asked, *unused.asked]]
            parted = {each["cache_salt"] for each in sent_on if each.get("seed") == 77}
            assert len(parted) == 3
            assert not parted & {"a", "b"}
            for each in every:
                assert each.headers["traceparent"] == "00-1-2-01"
                assert not {"x-secret", "cookie"} & each.headers.keys()
                assert "-key" not in json.dumps(each.headers).replace("engine-key", "")
                assert each.headers.get("user-agent") != "b"
            for each in engine.asked:
                assert each.headers["authorization"] == "Bearer engine-key"
            assert not any("authorization" in each.headers for each in unused.asked)
            # what `Connection` names stays here, but not what the body is
            stays = [
                *sent,
                "connection: Traceparent, content-type",
                "content-type: application/json",
            ]
            assert ask(door.url, BODY | {"seed": 78}, headers=stays).status == 200
            (last,) = (
                each for each in [*engine.asked, *unused.asked] if b'"seed": 78' in each.body
            )
            assert "traceparent" not in last.headers
            assert last.headers["content-type"] == "application/json"
