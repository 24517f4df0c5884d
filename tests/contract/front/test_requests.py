"""Where one request ends and the next begins, on the clients' port: what two readers could read in two ways is refused and reaches no
engine, all else is taken however it is cut, and answers come in the order of their questions.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from contract.harness.clients import BODY, CHAT, Client, Reply, ask, get, request
from contract.harness.programs import until
from contract.harness.proxies import Proxy, proxy
from contract.harness.servers import Asked, Server, answer, chat, server

SAID = json.dumps(BODY).encode()
LENGTH = f"content-length: {len(SAID)}"
CHUNKED = "transfer-encoding: chunked"
SETTINGS = """
paths = ["/tokenize"]
[cache]
file = "none"
[front]
body_size = "64KiB"
"""


def head(*lines: str, first: str = f"POST {CHAT} HTTP/1.1", host: str = "host: a") -> bytes:
    said = [first, *([host] if host else []), "content-type: application/json", *lines, "", ""]
    return "\r\n".join(said).encode("latin-1")


def plain(*lines: str, **more: str) -> bytes:
    return head(LENGTH, *lines, **more) + SAID


def chunks(*parts: bytes, size: str = "%x", end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(size.encode() % len(one) + b"\r\n" + one + b"\r\n" for one in parts) + end


REFUSED: dict[str, tuple[bytes, int]] = {
    "a length and chunks": (head(LENGTH, CHUNKED) + chunks(SAID), 400),
    "chunks and a length": (head(CHUNKED, LENGTH) + chunks(SAID), 400),
    "two lengths": (plain(LENGTH), 400),
    "two other lengths": (plain("content-length: 3"), 400),
    "a signed length": (head(f"content-length: +{len(SAID)}") + SAID, 400),
    "a list of lengths": (head(f"content-length: {len(SAID)}, {len(SAID)}") + SAID, 400),
    "chunks in HTTP/1.0": (head(CHUNKED, first=f"POST {CHAT} HTTP/1.0") + chunks(SAID), 400),
    "chunks twice": (head(CHUNKED, CHUNKED) + chunks(SAID), 400),
    "another coding": (head("transfer-encoding: gzip, chunked") + chunks(SAID), 501),
    "no coding": (head("transfer-encoding: identity") + SAID, 400),
    "no host": (plain(host=""), 400),
    "two hosts": (plain("Host: b"), 400),
    "two names in a host": (plain(host="host: a, b"), 400),
    "a user in a host": (plain(host="host: a@b"), 400),
    "two keys": (plain("authorization: Bearer a", "Authorization: Bearer b"), 400),
    "two types": (plain("content-type: text/plain"), 400),
    "two ids": (plain("x-request-id: a", "x-request-id: b"), 400),
    "a full address": (plain(first=f"POST http://a{CHAT} HTTP/1.1"), 400),
    "a star": (plain(first="OPTIONS * HTTP/1.1"), 400),
    "a fragment": (plain(first=f"POST {CHAT}#a HTTP/1.1"), 400),
    "a long target": (plain(first=f"POST {CHAT}?{'a' * 9000} HTTP/1.1"), 414),
    "a tunnel": (head(first="CONNECT a:443 HTTP/1.1"), 501),
    "another protocol": (plain("connection: upgrade", "upgrade: websocket"), 501),
    "another expectation": (plain("expect: a-miracle"), 417),
    "a packed body": (plain("content-encoding: gzip"), 415),
    "HTTP/2": (plain(first=f"POST {CHAT} HTTP/2.0"), 505),
    "HTTP/1.2": (plain(first=f"POST {CHAT} HTTP/1.2"), 505),
    "another protocol's name": (plain(first=f"POST {CHAT} ICY/1.1"), 400),
    "an unknown method": (plain(first=f"FROBNICATE {CHAT} HTTP/1.1"), 501),
    "bare line ends": (plain().replace(b"\r\n", b"\n"), 400),
    "one bare line end": (plain("x-a: b\nx-c: d"), 400),
    "a folded line": (plain("x-a: b\r\n c"), 400),
    "a zero": (plain("x-a: \0"), 400),
    "a space before the colon": (plain("x-a : b"), 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 40, 400),
    "a large head": (head("x-a: " + "a" * 70_000), 431),
    "many headers": (plain(*(f"x-{n}: a" for n in range(120))), 431),
    "a large body": (head("content-length: 65537"), 413),
    "a large chunk": (head(CHUNKED) + b"10001\r\n", 413),
    "large chunks": (head(CHUNKED) + chunks(*[b"a" * 9000] * 8), 413),
    "small chunks": (head(CHUNKED) + chunks(*[b"a"] * 9000), 400),
    "a chunk's odd size": (head(CHUNKED) + chunks(SAID, size="0x%x"), 400),
    "a chunk without its end": (head(CHUNKED) + b"%x\r\n%b0\r\n\r\n" % (len(SAID), SAID), 400),
    "a chunk's bare line end": (head(CHUNKED) + b"%x\n%b\r\n0\r\n\r\n" % (len(SAID), SAID), 400),
    "an odd trailer": (head(CHUNKED) + chunks(SAID, end=b"0\r\nno trailer\r\n\r\n"), 400),
}  # fmt: skip
TAKEN: dict[str, bytes] = {
    "plain": plain(),
    "chunks": head(CHUNKED) + chunks(SAID),
    "chunks of any case": head("Transfer-Encoding: Chunked") + chunks(SAID, size="%X"),
    "many chunks": head(CHUNKED) + chunks(*(SAID[n : n + 7] for n in range(0, len(SAID), 7))),
    "extensions and trailers": head(CHUNKED)
    + chunks(SAID, size='%x;a="b"', end=b"0;c\r\nx-d: e\r\n\r\n"),
    "an empty line before": b"\r\n" + plain(),
    "a body that is announced": plain("expect: 100-continue"),
    "an offer of HTTP/2": plain(
        "connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: AAMAAABk"
    ),
    "HTTP/1.0 that goes on": plain(
        "connection: keep-alive", first=f"POST {CHAT} HTTP/1.0", host=""
    ),
    "blanks around values": plain("x-a: \t b \t ", "x-b:"),
    "a body said to be as it is": plain("content-encoding: identity"),
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Server]:
    def tell(asked: Asked) -> None:
        body = json.loads(asked.body)
        asked.send(chat(f"for seed {body.get('seed')}"))

    pages = {
        "*": tell,
        "/v1/models": answer({"object": "list", "data": [{"id": "tiny"}]}),
        "/tokenize": answer({"count": 1}),
    }
    with server(pages) as running:
        yield running


@pytest.fixture(scope="module")
def door(engine: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with proxy(engine.url, SETTINGS, cwd=tmp_path_factory.mktemp("proxy")) as running:
        yield running


def sent(door: Proxy, data: bytes, step: int = 0) -> tuple[Reply, bool]:
    """The answer to these bytes, at once or in steps, and whether the connection was closed after it."""
    with Client(door.url) as client:
        try:
            for at in range(0, len(data), step or len(data)):
                client.send(data[at : at + (step or len(data))])
                if step:
                    # a packet of its own
                    time.sleep(0.001)
        except ConnectionError:
            # it was refused before all was sent
            pass
        reply = client.reply()
        if reply.headers.get("connection") != "close":
            return reply, False
        return reply, client.is_closed()


def test_what_is_not_without_doubt_is_refused_and_its_connection_closed(
    door: Proxy, engine: Server
) -> None:
    before, wrong = len(engine.asked), []
    for name, (data, status) in REFUSED.items():
        counted = door.total("toolkit_proxy_refused_requests_total")
        # what follows it may be the rest of it, or hidden in it: it is answered by nobody
        reply, is_closed = sent(door, data + plain())
        more = door.total("toolkit_proxy_refused_requests_total") - counted
        if (reply.status, is_closed, more) != (status, True, 1) or "error" not in reply.json:
            wrong.append((name, reply, is_closed, more))
    assert wrong == []
    assert len(engine.asked) == before


def test_behind_a_good_request_it_waits_for_its_answer_and_takes_nobody_s(
    door: Proxy, engine: Server
) -> None:
    wrong = []
    for number, (name, (data, status)) in enumerate(REFUSED.items()):
        before = len(engine.asked)
        with Client(door.url) as client:
            # one that is asked upstream, and one behind that would be answered at once
            with suppress(ConnectionError):
                client.send(request(BODY | {"seed": 50_000 + number}) + data + plain())
            good, refused = client.reply(), client.reply()
            told = (good.status, refused.status, client.is_closed(), len(engine.asked) - before)
        if told != (200, status, True, 1) or good.text != f"for seed {50_000 + number}":
            wrong.append((name, told, good, refused))
    assert wrong == []


@pytest.mark.parametrize("step", [0, 1, 50])
def test_however_it_is_cut_a_request_is_taken_and_sent_on_with_its_length(
    door: Proxy, engine: Server, step: int
) -> None:
    wrong = []
    for name, data in TAKEN.items():
        # each is a request of its own
        seed = 1000 + 100 * step + list(TAKEN).index(name)
        said = SAID[:-1] + b', "seed": %d}' % seed
        mine = data.replace(LENGTH.encode(), b"content-length: %d" % len(said))
        mine = mine.replace(SAID, said).replace(b"%x" % len(SAID), b"%x" % len(said))
        mine = mine.replace(b"%X" % len(SAID), b"%X" % len(said))
        if name == "many chunks":
            mine = head(CHUNKED) + chunks(*(said[n : n + 7] for n in range(0, len(said), 7)))
        with Client(door.url) as client:
            replies = []
            for data_of in (mine, plain()):
                for at in range(0, len(data_of), step or len(data_of)):
                    client.send(data_of[at : at + (step or len(data_of))])
                reply = client.reply()
                replies.append(client.reply() if reply.status == 100 else reply)
        asked = next(each for each in engine.asked if each.body == said)
        if [each.status for each in replies] != [200, 200] or replies[0].text != f"for seed {seed}":
            wrong.append((name, replies))
        if (asked.headers["content-length"], "transfer-encoding" in asked.headers) != (
            str(len(said)),
            False,
        ):
            wrong.append((name, asked.headers))
        gone = {"x-a", "expect", "upgrade", "http2-settings"} & asked.headers.keys()
        if gone:
            wrong.append((name, gone))
    assert wrong == []


def test_requests_in_one_go_are_answered_in_their_order(door: Proxy) -> None:
    known = json.dumps(BODY | {"seed": 7001}).encode()
    assert ask(door.url, known).status == 200
    bodies = [known, BODY | {"seed": 7002}, known, b"{", BODY | {"seed": 7003}, known]
    data = b"".join(map(request, bodies))
    gets = request(b"", method="GET", path="/v1/models")
    with Client(door.url) as client:
        client.send(data + gets + request(known, headers=["connection: close"]) + request(known))
        replies = [client.reply() for _ in range(8)]
        assert [each.status for each in replies] == [200, 200, 200, 400, 200, 200, 200, 200]
        texts = [each.text for each in replies if each.status == 200 and "choices" in each.json]
        assert texts == [f"for seed {n}" for n in (7001, 7002, 7001, 7003, 7001, 7001)]
        assert replies[7].headers["connection"] == "close"
        # nothing is answered behind the last one
        assert client.is_closed()
        with pytest.raises(ConnectionError):
            client.reply()


def test_methods_and_paths_that_are_served_and_what_is_said_of_others(
    door: Proxy, engine: Server
) -> None:
    with Client(door.url) as client:
        for method, path, status, allow in (
            ("GET", CHAT, 405, "POST"),
            ("HEAD", CHAT, 405, "POST"),
            ("OPTIONS", CHAT, 405, "POST"),
            ("DELETE", "/v1/models", 405, "GET, HEAD"),
            ("POST", "/health", 405, "GET, HEAD"),
            ("PUT", "/tokenize", 405, "GET, HEAD, POST"),
            ("POST", "/v1/models", 405, "GET, HEAD"),
            ("GET", "/v1//models", 404, None),
            ("GET", "/v1/models/", 404, None),
            ("GET", "/V1/models", 404, None),
            ("POST", "/v1/chat%2fcompletions", 404, None),
            ("POST", "/v1/../v1/completions", 404, None),
            ("POST", "/v1/load_lora_adapter", 404, None),
            ("POST", "/chat/completions", 404, None),
            ("GET", "/state", 404, None),
            ("POST", "/purge", 404, None),
        ):
            before = len(engine.asked)
            client.send(request(b"", method=method, path=path))
            first = client._until(b"\r\n\r\n").decode()
            length = next(
                int(n.split(":")[1])
                for n in first.lower().split("\r\n")
                if n.startswith("content-length")
            )
            if method != "HEAD":
                client._exactly(length)
            assert first.split(" ")[1] == str(status), (method, path, first)
            assert (f"allow: {allow}" in first.lower().replace(str(allow).lower(), str(allow))) == (allow is not None), first  # fmt: skip
            assert len(engine.asked) == before
        # HEAD is a GET whose body nobody wants, and the next answer is not taken for it
        for path in ("/v1/models", "/health", "/ping", "/ready", "/version", "/metrics"):
            client.send(request(b"", method="HEAD", path=path))
            told = client._until(b"\r\n\r\n")
            assert told.startswith(b"HTTP/1.1 200 "), path
            assert client.ask(b"", method="GET", path="/v1/models").json["data"][0]["id"] == "tiny"
        # what settings open goes on as it came, each time
        before = len(engine.asked)
        for _ in range(2):
            reply = client.ask({"prompt": "a"}, path="/tokenize?x=1")
            assert (reply.status, reply.json, reply.is_hit) == (200, {"count": 1}, False)
        assert [each.path for each in engine.asked[before:]] == ["/tokenize?x=1"] * 2
        assert json.loads(engine.asked[-1].body) == {"prompt": "a"}
        assert get(door.url, "/v1/models").json["object"] == "list"


def test_an_answer_s_end_is_told_as_its_reader_understands_it(tmp_path: Path) -> None:
    """To HTTP/1.1 by a length or chunks, to HTTP/1.0 by a length or the connection's end."""
    stream = BODY | {"stream": True}
    go_on = threading.Event()

    def events(asked: Asked) -> None:
        asked.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")  # fmt: skip
        for text, finish in (("Hello", None), (" there", "stop")):
            said = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
            data = b"data: %b\n\n" % json.dumps({"id": "c", "choices": [said]}).encode()
            asked.send(b"%x\r\n%b\r\n" % (len(data), data))
            go_on.wait(60)
        asked.send(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    def whole(asked: Asked) -> None:
        (events if json.loads(asked.body).get("stream") else (lambda one: one.send(chat())))(asked)

    with server({"*": whole}) as engine, proxy(engine.url, SETTINGS, cwd=tmp_path) as door:
        data = json.dumps(stream | {"seed": 1}).encode()
        old = f"POST {CHAT} HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: "
        go_on.set()
        for _ in range(2):
            with Client(door.url) as client:
                client.send((old + f"{len(data)}\r\n\r\n").encode() + data)
                assert client.is_closed()
                told, _, body = client._held.partition(b"\r\n\r\n")
                assert b"transfer-encoding" not in told.lower()
                assert body.startswith(b"data: ")
                assert body.endswith(b"data: [DONE]\n\n")

        # one that is cut looks cut to it, too
        def cut(asked: Asked) -> None:
            asked.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 99\r\n\r\n")  # fmt: skip
            asked.send(b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n')
            go_on.wait(60)
            asked.reset()

        engine.pages["*"] = cut
        go_on.clear()
        with Client(door.url) as client:
            client.send((old + f"{len(data)}\r\n\r\n").encode() + data.replace(b": 1}", b": 2}"))
            assert b'"a"' in client._until(b"}]}\n\n")
            go_on.set()
            with pytest.raises(ConnectionResetError):
                until(lambda: client.socket.recv(65536) == b"")
        engine.pages["*"] = whole
        with Client(door.url) as client:
            short = json.dumps(BODY).encode()
            for number in range(2):
                keep = "connection: keep-alive\r\n" if not number else ""
                client.send(f"POST {CHAT} HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {len(short)}\r\n{keep}\r\n".encode() + short)  # fmt: skip
                assert client.reply().text == "Hello there"
            assert client.is_closed()
        until(lambda: get(door.admin, "/state").json["busy"] == 0)
