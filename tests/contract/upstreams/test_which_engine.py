"""Which engine is asked: the least loaded that is well and serves the model; who fails, hangs or is gone is left, and taken back."""

import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from contract.harness.clients import BODY, Client, Reply, ask, get, request
from contract.harness.engines import Engine, port_of, serving
from contract.harness.programs import until
from contract.harness.proxies import Proxy, proxy
from contract.harness.servers import answer

FAST = '[cache]\npolicy = "off"\n[routing]\nlook = "50ms"\nstuck = "60s"\nback = "300ms"\n'
SUSPICIOUS = FAST.replace("60s", "300ms") + 'probe = "3s"\n'
"""Where one that makes no token is soon asked for one; long enough for one that is well and slow."""
GONE = answer({"detail": "Not Found"}, "404 Not Found")


def upstreams(door: Proxy) -> dict[str, Any]:
    return {one["name"]: one for one in get(door.admin, "/state").json["upstreams"]}


def say(door: Proxy, text: str = "Hi", model: str = "tiny") -> Reply:
    return ask(door.url, {"model": model, "messages": [{"role": "user", "content": text}]})


def makers(door: Proxy, times: int = 8) -> Counter[str]:
    """Who answers, one request after the other."""
    return Counter(say(door).text.partition(" ")[0] for _ in range(times))


@contextmanager
def two(tmp_path: Path, settings: str = FAST) -> Iterator[tuple[Proxy, Engine, Engine]]:
    a, b = Engine("a"), Engine("b")
    with (
        serving(a) as one,
        serving(b) as other,
        proxy([one.url, other.url], settings, cwd=tmp_path, probes=True) as door,
    ):
        yield door, a, b


def test_others_load_counts_as_its_page_says_and_ours_at_once(tmp_path: Path) -> None:
    # what a page said counts half after three that did not come: a busy machine's are late
    with two(tmp_path, FAST.replace("50ms", "250ms")) as (door, a, b):
        assert makers(door) == {"a": 4, "b": 4}, "in turns"
        a.running, a.waiting, b.waiting = 10, 10, 5
        until(lambda: (upstreams(door)["u0"]["others"], upstreams(door)["u1"]["others"]) == (20, 5))
        assert makers(door) == {"b": 8}
        state = upstreams(door)["u0"]
        assert (state["state"], state["running"], state["waiting"]) == ("up", 10, 10)
        assert (state["models"], state["reason"], state["failures"]) == (["tiny"], None, 0)
        b.running = 40
        until(lambda: upstreams(door)["u1"]["others"] == 45)
        assert makers(door) == {"a": 8}
        # ours count the moment they are sent
        a.running = a.waiting = b.waiting = 0
        b.running = 8
        until(lambda: (upstreams(door)["u0"]["others"], upstreams(door)["u1"]["others"]) == (0, 8))
        a.go_on.clear()
        with ExitStack() as stack:
            clients = [stack.enter_context(Client(door.url)) for _ in range(2)]
            for number, client in enumerate(clients):
                client.send(request(BODY | {"seed": number}))
                until(lambda wanted=number + 1: upstreams(door)["u0"]["in_flight"] == wanted)
            # at its next page it says so itself, and they are not counted twice
            a.running = 2
            until(lambda: upstreams(door)["u0"]["running"] == 2)
            assert upstreams(door)["u0"]["others"] == 0
            a.go_on.set()
            assert [client.reply().text.partition(" ")[0] for client in clients] == ["a", "a"]


def test_one_that_is_gone_is_left_at_once_and_back_without_a_client_s_finding_out(
    tmp_path: Path,
) -> None:
    a, b = Engine("a"), Engine("b")
    with ExitStack() as stack, ExitStack() as first, serving(b) as other:
        one = first.enter_context(serving(a))
        door = stack.enter_context(proxy([one.url, other.url], FAST, cwd=tmp_path, probes=True))
        first.close()
        until(lambda: upstreams(door)["u0"]["state"] == "left")
        assert upstreams(door)["u0"]["reason"] == "unreachable"
        assert door.total("toolkit_proxy_upstream_state", upstream="u0") >= 0
        assert makers(door) == {"b": 8}
        asked = len(a.bodies)
        stack.enter_context(serving(a, port=port_of(one)))
        until(lambda: upstreams(door)["u0"]["state"] == "up")
        assert len(a.bodies) == asked
        assert makers(door)["a"] == 4


def test_health_is_asked_where_there_are_no_numbers_and_5xx_there_means_dead(
    tmp_path: Path,
) -> None:
    with two(tmp_path) as (door, a, _):
        a.broken = {"/metrics": GONE}
        until(lambda: upstreams(door)["u0"]["running"] is None)
        a.broken = {"/metrics": GONE, "/health": answer("", "503 Service Unavailable")}
        until(lambda: upstreams(door)["u0"]["reason"] == "unreachable")
        assert makers(door) == {"b": 8}
        a.broken = {"/metrics": GONE}
        until(lambda: upstreams(door)["u0"]["state"] == "up")
        # a page of no engine is none: what matters is that it answers
        a.broken = {"/metrics": answer("<html>", content_type="text/html"), "/health": GONE}
        assert makers(door)["a"] == 4
        assert upstreams(door)["u0"]["state"] == "up"


def test_three_failures_in_a_row_and_it_is_left_for_a_while(tmp_path: Path) -> None:
    settings = FAST.replace('back = "300ms"', 'back = "2s"\nretries = 0')
    with two(tmp_path, settings) as (door, a, b):
        b.running = 5
        until(lambda: upstreams(door)["u1"]["others"] == 5)
        # an answer between them, and they are not in a row
        a.statuses = [500, 500]
        assert [say(door).status for _ in range(3)] == [500, 500, 200]
        assert upstreams(door)["u0"]["failures"] == 0
        a.statuses = [500] * 3
        assert [say(door).status for _ in range(3)] == [500] * 3
        state = upstreams(door)["u0"]
        assert (state["state"], state["reason"], state["failures"]) == ("left", "failing", 3)
        assert 0 < state["back_in_s"] <= 2
        # unless these took longer than that
        assert makers(door, 4) == {"b": 4} or upstreams(door)["u0"]["state"] != "left"
        # then one request finds out; it fails, and the wait is twice as long
        until(lambda: upstreams(door)["u0"]["state"] == "trying")
        a.statuses, began_s = [500], time.monotonic()
        assert say(door).status == 500
        back_in_s = upstreams(door)["u0"]["back_in_s"]
        assert back_in_s <= 4 <= back_in_s + time.monotonic() - began_s
        until(lambda: upstreams(door)["u0"]["state"] == "trying")
        assert (say(door).status, upstreams(door)["u0"]["state"]) == (200, "up")


def test_one_that_makes_no_token_is_left_what_waits_there_goes_elsewhere_and_it_comes_back(
    tmp_path: Path,
) -> None:
    with two(tmp_path, SUSPICIOUS) as (door, a, b):
        b.running = 5
        until(lambda: upstreams(door)["u1"]["others"] == 5)
        a.go_on.clear()
        with Client(door.url) as client:
            client.send(request(BODY))
            until(lambda: len(a.bodies) == 1)
            b.running = 0
            until(lambda: upstreams(door)["u0"]["reason"] == "stuck")
            assert client.reply().text.startswith("b ")
        # it was asked for one token, past any cache
        (probe,) = [body for body in a.bodies if body.get("max_tokens") == 1][:1]
        assert (probe["model"], probe["temperature"], probe["prompt"]) == ("tiny", 0, "ping")
        assert makers(door) == {"b": 8}
        # its pages come all the while, and tell that it moves again
        a.tokens += 1
        until(lambda: upstreams(door)["u0"]["state"] == "up")
        a.go_on.set()


@pytest.mark.parametrize("sign", ["tokens", "kv_usage"])
def test_one_that_counts_on_is_busy_and_one_that_makes_the_token_is_well(
    tmp_path: Path, sign: str
) -> None:
    a, b = Engine("a"), Engine("b")
    with serving(a) as one, serving(b) as other:
        door_of = proxy([one.url, other.url], SUSPICIOUS, cwd=tmp_path, probes=True)
        with door_of as door, Client(door.url) as client:
            b.running = 5
            until(lambda: upstreams(door)["u1"]["others"] == 5)
            a.go_on.clear()
            a.counts_on = sign
            client.send(request(BODY))
            until(lambda: len(a.bodies) == 1)
            # for five times as long as it takes to be suspect
            scrapes = one.paths().count("/metrics")
            states = set()
            while one.paths().count("/metrics") < scrapes + 30:
                states.add(upstreams(door)["u0"]["state"])
            assert states == {"up"}
            a.go_on.set()
            assert client.reply().text.startswith("a ")
            # others' requests stand still there: asked, it makes a token, and stays
            a.counts_on, a.running = None, 1
            until(lambda: sum(body.get("max_tokens") == 1 for body in a.bodies) >= 2)
            assert upstreams(door)["u0"]["state"] == "up"


def test_idle_engines_are_asked_for_no_token_and_unwatched_ones_for_nothing(tmp_path: Path) -> None:
    a = Engine()
    with serving(a) as one:
        with proxy(one.url, FAST, cwd=tmp_path, probes=True) as door:
            until(lambda: one.paths().count("/metrics") > 20)
            assert set(one.paths()) == {"/metrics", "/v1/models", "/version"}
            assert (one.paths().count("/version"), one.connections) == (1, 1)
            agents = {each.headers["user-agent"] for each in one.asked}
            assert agents == {"llm-serving-toolkit-watch"}
            assert get(door.url, "/version").json == {"version": "0.32.0"}
        one.asked.clear()
        with proxy(one.url, FAST, cwd=tmp_path) as door:
            assert say(door).status == 200
            assert one.paths() == ["/v1/chat/completions"]


def test_a_model_is_asked_of_who_serves_it_and_the_fallback_of_nobody_else_s(
    tmp_path: Path,
) -> None:
    a, b, spare = Engine("a"), Engine("b", "big"), Engine("spare", "small")
    with ExitStack() as stack, ExitStack() as first, serving(spare) as third:
        one = first.enter_context(serving(a))
        two_ = first.enter_context(serving(b))
        more = (
            f'[[upstream]]\nname = "spare"\nurl = "{third.url}"\nfallback = true\nmodel = "small"\n'
        )
        door = stack.enter_context(
            proxy([one.url, two_.url], FAST + more, cwd=tmp_path, probes=True)
        )
        assert {say(door, model="big").text.partition(" ")[0] for _ in range(4)} == {"b"}
        assert {say(door).text.partition(" ")[0] for _ in range(4)} == {"a"}
        assert third.asked == []
        # whom nobody is known to serve is asked of an engine, which says so itself
        assert say(door, model="nope").text.partition(" ")[0] in ("a", "b")
        assert third.asked == []
        first.close()
        until(lambda: {upstreams(door)[n]["state"] for n in ("u0", "u1")} == {"left"})
        assert say(door).text.startswith("spare ")
        assert {body["model"] for body in spare.bodies} == {"small"}


def test_equal_beginnings_go_to_one_engine_unless_it_is_much_fuller(tmp_path: Path) -> None:
    with two(tmp_path, FAST + "affinity = true\n") as (door, a, _):
        by_start: dict[str, set[str]] = {}
        for number in range(24):
            start = f"{number % 8} " + "x" * 4000
            maker = say(door, f"{start}{number}").text.partition(" ")[0]
            by_start.setdefault(start, set()).add(maker)
        assert {len(those) for those in by_start.values()} == {1}
        assert set.union(*by_start.values()) == {"a", "b"}
        start = next(start for start, those in by_start.items() if those == {"a"})
        a.running = 50
        until(lambda: upstreams(door)["u0"]["others"] == 50)
        assert say(door, start).text.startswith("b ")


def test_the_clients_metrics_are_the_engines_own_of_this_moment(tmp_path: Path) -> None:
    a, b = Engine("a"), Engine("b")
    settings = FAST.replace("50ms", "3s")
    with ExitStack() as stack, ExitStack() as first, serving(b) as other:
        one = first.enter_context(serving(a))
        door = stack.enter_context(proxy([one.url, other.url], settings, cwd=tmp_path, probes=True))

        def tokens() -> dict[str, float]:
            page = get(door.url, "/metrics").body.decode()
            found = re.findall(r'(?m)^vllm:generation_tokens_total\{WorkerId="(\d)".* (\S+)$', page)
            assert page.count("# TYPE vllm:generation_tokens_total counter") == 1
            return {number: float(value) for number, value in found}

        for count in (111, 222, 333):
            a.tokens, b.tokens = count, 2 * count
            assert tokens() == {"0": count, "1": 2 * count}
        age = 'toolkit_proxy_upstream_metrics_age_seconds{upstream="u0"}'
        assert door.metrics()[age] < 3
        first.close()
        assert tokens() == {"0": 333, "1": 666}, "its last page stands in for a while"
        until(lambda: tokens() == {"1": 666})
        assert door.metrics()[age] > 6


def test_a_drained_engine_gets_no_more_until_it_is_taken_back(tmp_path: Path) -> None:
    with two(tmp_path) as (door, a, _):
        ask(door.admin, {"upstream": "u0"}, path="/drain")
        assert upstreams(door)["u0"]["draining"] is True
        assert makers(door) == {"b": 8}
        assert a.bodies == []
        ask(door.admin, {"upstream": "u0"}, path="/undrain")
        assert makers(door) == {"a": 4, "b": 4}


def test_one_that_is_left_is_asked_all_the_same_where_there_is_no_other(tmp_path: Path) -> None:
    a = Engine()
    settings = FAST.replace('back = "300ms"', 'back = "60s"')
    with serving(a) as one, proxy(one.url, settings, cwd=tmp_path) as door:
        a.statuses = [500] * 3
        assert [say(door).status for _ in range(4)] == [500, 500, 500, 200]
        assert upstreams(door)["u0"]["state"] == "up"


def test_an_engine_takes_as_many_at_a_time_as_it_may(tmp_path: Path) -> None:
    a, b = Engine("a"), Engine("b")
    with serving(a) as one, serving(b) as other:
        more = f'[[upstream]]\nname = "few"\nurl = "{other.url}"\nconcurrency = 1\nprobes = false\n'
        with proxy(one.url, FAST + more, cwd=tmp_path) as door, ExitStack() as stack:
            for each in (a, b):
                each.go_on.clear()
            clients = [stack.enter_context(Client(door.url)) for _ in range(6)]
            for number, client in enumerate(clients):
                client.send(request(BODY | {"seed": number}))
            until(lambda: len(a.bodies) + len(b.bodies) == 6)
            assert (len(a.bodies), upstreams(door)["few"]["in_flight"]) == (5, 1)
            for each in (a, b):
                each.go_on.set()
            assert {client.reply().status for client in clients} == {200}
