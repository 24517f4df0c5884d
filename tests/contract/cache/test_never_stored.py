"""What an upstream says is not to be stored, or says in a way that two readers may read in two, comes from no cache: each time it is asked anew."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from contract.harness.clients import Client, Reply
from contract.harness.proxies import Proxy, proxy
from contract.harness.servers import Asked, Server, chat, server

GOOD = chat()
GOOD_BODY = GOOD.partition(b"\r\n\r\n")[2]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


def said(message: object, *, head: bytes = HEAD, name: str = "message") -> bytes:
    """A whole chat completion with this message."""
    choice = {"index": 0, name: message, "finish_reason": "stop"}
    return whole({"id": "a", "model": "tiny", "choices": [choice]}, head=head)


def whole(body: object, *, head: bytes = HEAD) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head + b"content-length: %d\r\n\r\n" % len(data) + data


def stream(*deltas: object, head: bytes = b"") -> bytes:
    """A streamed chat completion of these deltas; bytes go as they are."""
    first = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"
    events = b""
    for delta in [*deltas, None]:
        end = {"delta": {}, "finish_reason": "stop"}
        choice = {"index": 0, **({"delta": delta} if delta is not None else end)}
        chunk = {"id": "a", "model": "tiny", "choices": [choice]}
        told = delta if isinstance(delta, bytes) else json.dumps(chunk).encode()
        events += b"data: " + told + b"\n\n"
    events += b'data: {"id":"a","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
    return first + head + b"\r\n" + events + b"data: [DONE]\n\n"


def with_headers(*lines: str) -> bytes:
    head, _, body = GOOD.partition(b"\r\n\r\n")
    return b"\r\n".join([head, *(line.encode("latin-1") for line in lines)]) + b"\r\n\r\n" + body


FORBIDDEN = {
    "no-store": with_headers("Cache-Control: no-store"),
    "among others": with_headers("cache-control: max-age=60, NO-STORE , public"),
    "in a second line": with_headers("cache-control: max-age=60", "Cache-Control: no-store"),
    "private": with_headers("cache-control: private"),
    "private for a header": with_headers('cache-control: max-age=9, private="set-cookie"'),
    "varies": with_headers("vary: *"),
    "varies, too": with_headers("vary: accept-encoding", "Vary: accept , *"),
    "stream": stream({"content": "a"}, head=b"cache-control: no-store\r\n"),
}
"""What an upstream asks for; the setting overrides it."""
ODD = {
    "status 600": GOOD.replace(b"200 OK", b"600 Odd"),
    "status 999": GOOD.replace(b"200 OK", b"999 Odd"),
    "status 201": GOOD.replace(b"200 OK", b"201 Created"),
    "status 206": GOOD.replace(b"200 OK", b"206 Partial Content"),
    "HTTP/2": GOOD.replace(b"HTTP/1.1", b"HTTP/2"),
    "HTTP/2.0": GOOD.replace(b"HTTP/1.1", b"HTTP/2.0"),
    "HTTP/0.9": GOOD.replace(b"HTTP/1.1", b"HTTP/0.9"),
    "HTTP/1.2": GOOD.replace(b"HTTP/1.1", b"HTTP/1.2"),
    "HTTP/1.0 in chunks": b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n"
    b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(GOOD_BODY), GOOD_BODY),
    "a large head": with_headers("x-much: " + "a" * 70_000),
    "a large head of many": with_headers(*(f"x-{n}: {'a' * 900}" for n in range(100))),
    "too many headers": with_headers(*(f"x-{n}: a" for n in range(200))),
    "a message that is a text": said("Hello"),
    "a message that is a list": said(["Hello"]),
    "a delta that is a text": said("Hello", name="delta"),
    "choices that are texts": whole({"choices": ["Hello"], "finish_reason": "stop"}),
    "a streamed delta that is a text": stream("Hello"),
    "a good and a bad delta": stream({"content": "a"}, "Hello", {"content": "b"}),
    "no UTF-8": whole(GOOD_BODY.replace(b"Hello", b"H\xe9llo")),
    "half a surrogate in UTF-8": whole(GOOD_BODY.replace(b"Hello", b"H\xed\xa0\x80llo")),
    "a stream without UTF-8": stream(
        {"content": "a"},
        b'{"id":"a","choices":[{"index":0,"delta":{"content":"\xff\xfe"}}]}',
        {"content": "b"},
    ),
}
FINE = {
    "plain": GOOD,
    "no-cache": with_headers("cache-control: no-cache"),
    "lives long": with_headers("cache-control: public, max-age=60", "vary: accept-encoding"),
    "a directive's look-alike": with_headers('cache-control: x="no-store, private", no-stores'),
    "HTTP/1.0": GOOD.replace(b"HTTP/1.1", b"HTTP/1.0"),
    "a head of 60 KB": with_headers("x-much: " + "a" * 60_000),
    "stream": stream({"role": "assistant"}, {"content": "a"}, head=b"cache-control: no-cache\r\n"),
}
CASES = [*FORBIDDEN.values(), *ODD.values(), *FINE.values()]
MESSAGES: list[Any] = ["text", ["text"], [], {}, {"role": "user", "content": "a"}, 7, None]
CLOSED = (b"connection: close", b"HTTP/1.0")


@pytest.fixture(scope="module")
def upstream() -> Iterator[Server]:
    """Answers with the case whose number a request has as its seed."""

    def tell(asked: Asked) -> None:
        case = CASES[json.loads(asked.body)["seed"]]
        asked.keep = not any(mark in case for mark in CLOSED)
        asked.send(case)

    with server({"*": tell}) as running:
        yield running


@pytest.fixture(scope="module")
def plain(upstream: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with proxy(upstream.url, cwd=tmp_path_factory.mktemp("proxy")) as running:
        yield running


def twice(proxy: Proxy, upstream: Server, case: bytes) -> tuple[list[Reply], int]:
    """The answers to two equal requests, and how often the upstream was asked."""
    body: dict[str, Any] = {
        "model": "tiny",
        "seed": CASES.index(case),
        "messages": [{"role": "user", "content": "Hi"}],
    }
    if b"event-stream" in case:
        body |= {"stream": True}
    before = len(upstream.asked)
    replies = []
    for _ in range(2):
        with Client(proxy.url) as client:
            replies.append(client.ask(body))
    return replies, len(upstream.asked) - before


def test_what_is_forbidden_or_odd_is_passed_or_refused_and_asked_for_anew(
    plain: Proxy, upstream: Server
) -> None:
    wrong = []
    for name, case in (FORBIDDEN | ODD).items():
        replies, asked = twice(plain, upstream, case)
        told = int(case.split(b" ")[1])
        good = all(each.status in (told, 502) and not each.is_hit for each in replies)
        stored = any("; stored" in each.headers.get("cache-status", "") for each in replies)
        if name in FORBIDDEN:
            good = good and all(each.status == 200 and each.is_whole for each in replies)
        if not good or asked < 2 or stored:
            wrong.append((name, asked, [(each.status, each.headers) for each in replies]))
    assert wrong == []


def test_what_is_fine_is_stored_and_the_setting_has_an_upstream_s_wish_overridden(
    plain: Proxy, upstream: Server, tmp_path_factory: pytest.TempPathFactory
) -> None:
    overriding = "[cache]\nobeys_upstream = false\n"
    with proxy(upstream.url, overriding, cwd=tmp_path_factory.mktemp("other")) as other:
        wrong = []
        for running, cases in ((plain, FINE), (other, FORBIDDEN)):
            for name, case in cases.items():
                replies, asked = twice(running, upstream, case)
                if [each.status for each in replies] != [200, 200] or not replies[1].is_hit:
                    wrong.append((name, asked, [(each.status, each.headers) for each in replies]))
        assert wrong == []


def test_messages_that_are_no_list_of_objects_are_passed_on_or_refused_and_never_stored(
    plain: Proxy,
) -> None:
    wrong = []
    seed = CASES.index(GOOD)
    for path in ("/v1/chat/completions", "/v1/messages"):
        for messages in MESSAGES:
            for _ in range(2):
                with Client(plain.url) as client:
                    body = {"model": "tiny", "seed": seed, "messages": messages}
                    reply = client.ask(body, path=path)
                if reply.is_hit or "; stored" in reply.headers.get("cache-status", ""):
                    wrong.append((path, messages, reply))
    assert wrong == []
