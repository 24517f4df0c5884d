"""One call upstream: what is asked again and where, how long it is waited for, who shares it and who does not; and the orders of whoever
runs the proxy.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest
from contract.harness.clients import BODY, Client, Reply, ask, get, request
from contract.harness.programs import until
from contract.harness.proxies import Proxy, proxy
from contract.harness.servers import Asked, Server, answer, chat, server

NO_FILE = "[cache]\nfile = 'none'\n"
STREAM = {"stream": True}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


FIRST = {"id": "c", "object": "chat.completion.chunk", "created": 5, "model": "tiny"}


def chunk(fields: dict[str, Any]) -> bytes:
    data = b"data: %b\n\n" % json.dumps(FIRST | fields).encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(text: str, finish: str | None = None) -> bytes:
    delta = {"content": text} | ({"role": "assistant"} if text == "one" else {})
    return chunk({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
END = event("", "stop") + chunk({"choices": [], "usage": USAGE})
END += b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def dies(asked: Asked) -> None:
    asked.reset()


def half_a_head(asked: Asked) -> None:
    asked.send(b"HTTP/1.1 200 OK\r\ncontent-ty")
    asked.reset()


def half_a_body(asked: Asked) -> None:
    asked.send(HEAD + event("one"))
    # or the reset would overtake it
    time.sleep(0.5)
    asked.reset()


Page = bytes | Callable[[Asked], None]
ELSEWHERE: dict[str, tuple[Page, bool]] = {
    # what the first one does, and whether the other one is asked
    "dies": (dies, True),
    "half a head": (half_a_head, True),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", True),
    "502": (answer({"error": "a"}, "502 Bad"), True),
    "503": (answer({"error": "a"}, "503 Busy", retry_after="7"), True),
    "504": (answer({"error": "a"}, "504 Late"), True),
    "500": (answer({"error": "a"}, "500 Oh"), False),
    "400": (answer({"error": "a"}, "400 No"), False),
    "429": (answer({"error": "a"}, "429 Slow", retry_after="7"), False),
    "half a stream": (half_a_body, False),
}


def is_well(door: Proxy) -> bool:
    """Are all engines asked, the one that failed again, too?"""
    return all(each["state"] == "up" for each in get(door.admin, "/state").json["upstreams"])


def test_what_fails_before_its_first_byte_is_asked_elsewhere_once_and_nothing_else(
    tmp_path: Path,
) -> None:
    with (
        server({"*": chat("a")}) as one,
        server({"*": chat("b")}) as two,
        proxy([one.url, two.url], NO_FILE + "[routing]\nback = '0.1s'\n", cwd=tmp_path) as door,
    ):
        wrong = []
        for number, (name, (does, goes_on)) in enumerate(ELSEWHERE.items()):
            bad: list[Asked] = []

            def first(asked: Asked, does: Page = does, bad: list[Asked] = bad) -> None:
                """Whoever is asked first does it, and the other is well."""
                bad.append(asked)
                if len(bad) > 1:
                    asked.send(chat("well"))
                elif callable(does):
                    does(asked)
                else:
                    asked.keep = False
                    asked.send(does)

            one.pages["*"] = two.pages["*"] = first
            reply = ask(door.url, BODY | STREAM | {"seed": number})
            told = (reply.status, len(bad))
            expected = (200, 2) if goes_on else (reply.status, 1)
            if told != expected or (goes_on and reply.text != "well"):
                wrong.append((name, reply, len(bad)))
            if not goes_on and name.isdigit():
                if (reply.status, reply.json["error"]) != (int(name), "a"):
                    wrong.append((name, reply, len(bad)))
                if reply.headers.get("retry-after") != ("7" if name == "429" else None):
                    wrong.append((name, reply, len(bad)))
            # neither is left for it when the next one comes
            one.pages["*"] = two.pages["*"] = chat()
            until(lambda: ask(door.url, BODY | {"seed": time.time_ns()}) and is_well(door))
        assert wrong == []

        # both fail: no third try
        one.pages["*"] = two.pages["*"] = answer({"error": "a"}, "502 Bad")
        before = len(one.asked) + len(two.asked)
        assert ask(door.url, BODY | {"seed": 100}).status == 502
        assert len(one.asked) + len(two.asked) == before + 2
        one.pages["*"] = two.pages["*"] = dies
        assert ask(door.url, BODY | {"seed": 101}).status == 502
        with (
            server({"*": answer({"error": "a"}, "502 Bad")}) as three,
            proxy([one.url, two.url, three.url], NO_FILE, cwd=tmp_path) as wide,
        ):
            one.pages["*"] = two.pages["*"] = answer({"error": "a"}, "502 Bad")
            before = len(one.asked) + len(two.asked)
            assert ask(wide.url, BODY | {"seed": 102}).status == 502
            assert len(one.asked) + len(two.asked) + len(three.asked) == before + 2
        # a busy one without another has its own words passed on
        one.pages["*"] = two.pages["*"] = answer({"error": "busy"}, "503 Busy", retry_after="7")
        until(lambda: ask(door.url, BODY | {"seed": time.time_ns()}).headers.get("retry-after") == "7")  # fmt: skip


def test_how_long_a_first_token_a_gap_and_the_whole_are_waited_for(tmp_path: Path) -> None:
    settings = NO_FILE + "[admission]\nfirst_token = '1s'\ntoken_gap = '3s'\nwhole = '6s'\n"

    def late(asked: Asked) -> None:
        kind = json.loads(asked.body)["messages"][0]["content"]
        if kind == "token":
            asked.is_gone(60)
        elif kind == "gap":
            asked.send(HEAD + event("one"))
            asked.is_gone(60)
        elif kind == "whole":
            asked.send(HEAD)
            for _ in range(100):
                asked.send(event("one"))
                if asked.is_gone(0.3):
                    break
        elif kind == "body":
            # of a whole body nobody knows when its first token was made
            time.sleep(1.5)
            asked.send(chat())
        else:
            asked.is_gone(60)

    with server({"*": late}) as engine, proxy(engine.url, settings, cwd=tmp_path) as door:

        def told(kind: str, **more: Any) -> Reply:
            return ask(door.url, BODY | {"messages": [{"role": "user", "content": kind}]} | more)

        token = told("token", **STREAM)
        assert (token.status, "first token" in token.body.decode()) == (504, True)
        for kind, words in (("gap", "stood still"), ("whole", "too long")):
            cut = told(kind, **STREAM)
            assert (cut.status, cut.is_whole) == (200, False)
            assert words in cut.body.decode()
            assert b"[DONE]" not in cut.body
        assert told("body").text == "Hello there"
        never = told("never")
        assert (never.status, "too long" in never.body.decode()) == (504, True)
        # the engine was told each time that nobody waits any more, and asked once for each
        assert len(engine.asked) == 5
        kinds = ("timeout_first_token", "timeout_gap", "timeout_whole")
        until(lambda: [door.total("toolkit_proxy_errors_total", kind=each) for each in kinds] == [1, 1, 2])  # fmt: skip


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[tuple[Proxy, Server, threading.Semaphore]]:
    go_on = threading.Semaphore(0)

    def slowly(asked: Asked) -> None:
        body = json.loads(asked.body)
        if not body.get("stream"):
            if body.get("seed") == 501:
                asked.send(b"HTTP/1.1 500 Oh\r\ncontent-length: 9\r\n\r\nsorry")
                go_on.acquire(timeout=60)
                asked.send(b", no")
                return
            go_on.acquire(timeout=60)
            asked.send(chat() if body.get("seed") != 500 else answer({"error": "a"}, "500 Oh"))
            return
        asked.send(HEAD + event("one"))
        go_on.acquire(timeout=60)
        asked.send(event("two") + END)

    with server({"*": slowly}) as engine, proxy(engine.url, NO_FILE, cwd=tmp_path) as door:
        yield door, engine, go_on
        go_on.release(100)


def test_who_shares_a_call_and_who_does_not(
    shared: tuple[Proxy, Server, threading.Semaphore],
) -> None:
    door, engine, go_on = shared
    with ExitStack() as stack:

        def asks(body: object, *headers: str) -> Client:
            client = stack.enter_context(Client(door.url))
            client.send(request(body, headers=headers))
            return client

        leader = asks(BODY | STREAM)
        until(lambda: len(engine.asked) == 1)
        twin = asks(BODY | STREAM)
        # it has the beginning at once
        twin._until(b"one")
        twin = asks(BODY | STREAM)
        whole = asks(BODY)
        stored = asks(BODY | STREAM, "cache-control: no-store")
        until(lambda: get(door.admin, "/state").json["busy"] == 5)
        assert len(engine.asked) == 1
        # who wants an answer of its own has one
        for count, headers in ((2, "cache-control: no-cache"), (3, "x-toolkit-cache: off")):
            asks(BODY | STREAM, headers)
            until(lambda count=count: len(engine.asked) == count)
        only = ask(door.url, BODY | {"seed": 1}, headers=["cache-control: only-if-cached"])
        assert only.status == 504
        go_on.release(10)
        replies = [each.reply() for each in (leader, twin, whole, stored)]
        assert {each.text for each in replies} == {"onetwo"}
        assert ["collapsed" in each.headers["cache-status"] for each in replies] == [False, True, True, True]  # fmt: skip
        assert len(engine.asked) == 3
        until(lambda: get(door.admin, "/state").json["busy"] == 0)

        # an engine's error is all theirs who wait for it, and nobody's who comes later
        while go_on.acquire(blocking=False):
            pass
        failing = BODY | {"seed": 500}
        both = [asks(failing), asks(failing)]
        until(lambda: get(door.admin, "/state").json["busy"] == 2)
        until(lambda: len(engine.asked) == 4)
        go_on.release()
        assert [each.reply().status for each in both] == [500, 500]
        go_on.release()
        assert ask(door.url, failing).status == 500
        assert len(engine.asked) == 5

        # nor is one that has begun: whoever comes before its head has come still shares it
        asks(BODY | {"seed": 501})
        until(lambda: len(engine.asked) == 6)
        until(lambda: asks(BODY | {"seed": 501}) and len(engine.asked) > 6)
        go_on.release(1000)
        until(lambda: get(door.admin, "/state").json["busy"] == 0)
        while go_on.acquire(blocking=False):
            pass
        # what is not to be stored is not
        before = len(engine.asked)
        go_on.release(2)
        for count in (before + 1, before + 2):
            lines = ["cache-control: no-store"]
            assert not ask(door.url, BODY | {"seed": 2}, headers=lines).is_hit
            assert len(engine.asked) == count
        # what clients say of a stored answer
        assert ask(door.url, BODY).is_hit
        for headers, is_hit in (
            ("cache-control: max-age=3600", True),
            ("cache-control: max-age=0", False),
            ("cache-control: min-fresh=60", True),
            ("cache-control: min-fresh=4000", False),
            ("cache-control: only-if-cached", True),
            ("x-toolkit-cache: no-cache", False),
            ("x-toolkit-cache: nonsense", False),
            ("pragma: no-cache", True),
        ):
            go_on.release()
            time.sleep(1.1 if "max-age=0" in headers else 0)
            assert ask(door.url, BODY, headers=[headers]).is_hit == is_hit, headers
            while go_on.acquire(blocking=False):
                pass


def test_an_engine_s_connections_are_used_again_and_what_it_adds_is_not_passed_on(
    tmp_path: Path,
) -> None:
    page = chat().replace(
        b"\r\n", b"\r\nset-cookie: a=b\r\nserver: me\r\nx-up: c\r\ndate: now\r\n", 1
    )
    early = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
    with server({"*": page}) as engine, proxy(engine.url, NO_FILE, cwd=tmp_path) as door:
        with Client(door.url) as client:
            for number in range(5):
                reply = client.ask(BODY | {"seed": number}, headers=["x-request-id: mine-1"])
                assert reply.status == 200
                assert reply.headers["x-request-id"] == "mine-1"
                assert not {"set-cookie", "server", "x-up"} & reply.headers.keys()
                sent_at = parsedate_to_datetime(reply.headers["date"])
                assert abs(time.time() - sent_at.timestamp()) < 300
            engine.pages["*"] = early + page
            assert client.ask(BODY | {"seed": 10}).text == "Hello there"
            odd = client.ask(BODY | {"seed": 11}, headers=["x-request-id: a<b>"])
            assert odd.headers["x-request-id"] not in ("a<b>", "")
            # those that are known by their very bytes have an id each, too
            ids = {client.ask(BODY | {"seed": 0}).headers["x-request-id"] for _ in range(4)}
            assert len(ids) == 4
        assert engine.connections == 1
        assert len(engine.asked) == 7
        assert reply.headers.keys() == {
            *("date", "content-length", "content-type", "cache-status", "x-request-id"),
        }  # fmt: skip
        assert engine.asked[0].headers.keys() == {
            *("host", "accept", "accept-encoding", "user-agent", "content-type", "content-length"),
        }  # fmt: skip

        # one that the engine has closed meanwhile costs nobody an answer
        def last(asked: Asked) -> None:
            asked.send(chat())
            asked.keep = False

        engine.pages["*"] = last
        assert [ask(door.url, BODY | {"seed": 20 + n}).status for n in range(10)] == [200] * 10

        # nor one that it closes while the next request is on its way: that is sent once more, on a new connection
        used: set[object] = set()

        def crosses(asked: Asked) -> None:
            if asked.connection in used:
                asked.keep = False
            else:
                used.add(asked.connection)
                asked.send(chat())

        engine.pages["/v1/models"] = crosses
        assert [get(door.url, "/v1/models").status for _ in range(4)] == [200] * 4


def test_orders_to_the_proxy_and_its_engines(tmp_path: Path) -> None:
    go_on = threading.Event()

    def slowly(asked: Asked) -> None:
        go_on.wait(60)
        asked.send(chat())

    with (
        server({"*": slowly}) as engine,
        proxy(engine.url, NO_FILE + "[admission]\nwait = '1s'\n", cwd=tmp_path) as door,
        Client(door.url) as busy,
        Client(door.url) as idle,
    ):

        def order(path: str, body: object = b"") -> Reply:
            return ask(door.admin, body, path=path)

        assert [get(door.admin, path).status for path in ("/ready", "/health", "/ping")] == [
            200
        ] * 3
        assert idle.ask(b"", method="GET", path="/ping").status == 200
        busy.send(request(BODY))
        until(lambda: len(engine.asked) == 1)
        # an engine that is drained gets no more, and keeps what it has
        assert order("/drain", {"upstream": "u0"}).json == {"upstream": "u0", "draining": True}
        refused = ask(door.url, BODY | {"seed": 1})
        assert (refused.status, len(engine.asked)) == (503, 1)
        for port in (door.url, door.admin):
            assert [get(port, path).status for path in ("/ready", "/health", "/ping")] == [503, 503, 200]  # fmt: skip
        state = get(door.admin, "/state").json
        assert (state["ready"], state["upstreams"][0]["draining"], state["upstreams"][0]["in_flight"]) == (False, True, 1)  # fmt: skip
        assert order("/undrain", {"upstream": "u0"}).status == 200
        assert get(door.url, "/ready").status == 200
        for path, body in (
            ("/drain", {"upstream": "u9"}), ("/drain", {"up": "u0"}), ("/drain", {"upstream": 7}), ("/purge", b""),
            ("/purge", {}), ("/purge", {"all": False}), ("/purge", {"all": True, "model": "a"}), ("/purge", {"al": True}), ("/drain", b"[]"),
        ):  # fmt: skip
            assert order(path, body).status == 400, (path, body)
        assert get(door.admin, "/purge").status == 405
        assert order("/drain", b"").status == 200
        # the proxy itself: who is answered is answered, and nobody new comes in
        assert idle.is_closed()
        until(lambda: get(door.admin, "/state").json["draining"])
        assert get(door.admin, "/ready").status == 503
        go_on.set()
        assert busy.reply().text == "Hello there"
        assert order("/undrain", b"").status == 200
        until(lambda: get(door.admin, "/ready").status == 200)
        until(lambda: _is_open(door))
        assert ask(door.url).is_hit


def _is_open(door: Proxy) -> bool:
    try:
        return get(door.url, "/ping").status == 200
    except ConnectionError:
        return False
