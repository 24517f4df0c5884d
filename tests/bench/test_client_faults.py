"""Hosts that misbehave: each failure is a RequestRecord with its kind, the connection is let go, and the next request works."""

import asyncio
import gzip
import json
import socket
import time

import pytest
from support.chat import (
    CHAT,
    DONE,
    FINISH,
    HEAD,
    LAST,
    ROLE,
    STREAM,
    USAGE,
    WHOLE,
    ChatServer,
    Run,
    ask,
    client_of,
    context,
    event,
    hang,
    one_shot,
    token,
    turns,
)
from support.raw_server import Misbehave, http

from toolkit.records import RequestRecord

CLOSED = "the connection was closed before an answer came"
CUT = "the connection was closed in the middle of the answer"
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


def writes(*pieces: bytes, reset: bool = False, stays: bool = False) -> Misbehave:
    """Write the pieces, each when the one before was read; then close, reset or keep the connection."""

    async def answer(writer: asyncio.StreamWriter) -> bool:
        for piece in pieces:
            writer.write(piece)
            await turns()
        if reset:
            writer.transport.abort()
        if stays:
            await asyncio.Event().wait()
        return False

    return answer


def packed_with(encoding: bytes) -> bytes:
    page = http(b"no such packing", content_type="application/json")
    return page.replace(b"\r\n\r\n", b"\r\ncontent-encoding: " + encoding + b"\r\n\r\n", 1)


def json_error(status: str, message: str) -> bytes:
    said = json.dumps({"error": {"message": message}})
    return http(said, status, content_type="application/json")


STREAM_ERROR = event(None, error={"message": "CUDA out of memory", "code": 500})
GARBLED = b"no chunk size\r\n"

NO_HTTP = "no HTTP answer"
UPGRADE = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n"
BODY = WHOLE.encode()
FAULTS = {
    # what the host does: (kind, status, the sentence's start)
    "closes before the headers": (writes(), "cut", None, CLOSED),
    "resets before the headers": (writes(reset=True), "cut", None, ""),
    "closes in the headers": (writes(HEAD[:30]), "cut", None, CLOSED),
    "closes after the headers": (writes(HEAD), "cut", 200, CUT),
    "closes in the middle": (writes(HEAD + ROLE, token("Hello")), "cut", 200, CUT),
    "resets in the middle": (writes(HEAD, token("Hello"), reset=True), "cut", 200, ""),
    "closes before the end mark": (writes(HEAD, token("Hello"), FINISH), "cut", 200, CUT),
    "promises more than it sends": (writes(JSON_HEAD + b"content-length: 5000\r\n\r\n" + BODY), "cut", 200, CUT),
    "sends more than it promises": (
        writes(JSON_HEAD + b"content-length: 20\r\n\r\n" + BODY), "garbage", None, NO_HTTP),
    "promises nonsense": (writes(JSON_HEAD + b"content-length: -1\r\n\r\n" + BODY), "garbage", None, NO_HTTP),
    "garbles a chunk": (
        writes(HEAD, token("Hello"), GARBLED, stays=True), "garbage", 200, "the body is not framed as HTTP says"),
    "speaks another protocol": (writes(b"SSH-2.0-OpenSSH_9.2 \x1b[31m\r\n"), "garbage", None, NO_HTTP),
    "sends no text at all": (writes(bytes(range(256))), "garbage", None, NO_HTTP),
    "sends a line without end": (
        writes(b"HTTP/1.1 200 OK\r\nx: " + b"a" * 100_000, stays=True), "garbage", None, NO_HTTP),
    "sends headers without end": (
        writes(b"HTTP/1.1 200 OK\r\n" + b"x: a\r\n" * 10_000, stays=True), "garbage", None, NO_HTTP),
    "claims gzip": (packed_with(b"gzip"), "garbage", 200, "the answer is compressed"),
    "claims an unknown packing": (packed_with(b"rot13"), "garbage", 200, "the body is no JSON"),
    "answers nothing": (http("", "204 No Content"), "garbage", 204, "the body is empty"),
    "is busy": (json_error("429 Too Many Requests", "slow down"), "http_429", 429, "slow down"),
    "fails": (http("<h1>oops</h1>", "500 Oops"), "http_500", 500, "<h1>oops</h1>"),
    "refuses": (json_error("401 Unauthorized", "no key"), "http_401", 401, "no key"),
    "changes the protocol": (writes(UPGRADE), "http_101", 101, ""),
    "fails and closes in the middle of its reason": (
        writes(b"HTTP/1.1 500 Oops\r\ncontent-length: 500\r\n\r\nno memory left"), "http_500", 500, "no memory left"),
    "tells its failure in the stream": (
        HEAD + token("Hello") + STREAM_ERROR + DONE + LAST, "stream_error", 200, "CUDA out of memory"),
    "tells its failure in the stream and closes": (
        writes(HEAD + token("Hello") + STREAM_ERROR), "stream_error", 200, "CUDA out of memory"),
    "gives no finish reason": (
        HEAD + token("Hello") + DONE + LAST, "no_finish", 200, "the answer ended without a finish reason"),
}  # fmt: skip


@pytest.mark.parametrize("what", FAULTS)
@pytest.mark.usefixtures("loop")
async def test_a_host_that_misbehaves_gets_its_kind_of_failure(what: str) -> None:
    page, kind, status, sentence = FAULTS[what]

    async with ChatServer(page) as server, client_of(server.url) as client:
        bad = await client.send(context(), ask(0), time.monotonic())
        server.pages[CHAT] = STREAM
        good = await client.send(context(), ask(1), time.monotonic())
    assert (bad.ok, bad.error_kind, bad.status_code) == (False, kind, status)
    assert bad.error
    assert bad.error.startswith(sentence)
    assert bad.error.isprintable()
    assert len(bad.error) <= 300
    assert bad.took_ms is not None
    assert (good.ok, good.error) == (True, None)


WELL = (HEAD + ROLE, token("Hello"), token(" there"), FINISH + USAGE + DONE)


@pytest.mark.parametrize(
    "page",
    [
        writes(*WELL),
        writes(*WELL, reset=True),
        writes(*WELL, GARBLED),
        writes(*WELL, stays=True),
    ],
    ids=["closes", "resets", "garbles", "never ends"],
)
@pytest.mark.usefixtures("loop")
async def test_what_comes_after_the_end_mark_breaks_no_answer(page: Misbehave) -> None:
    async with ChatServer(page) as server, client_of(server.url) as client:
        shots = [await client.send(context(), ask(n), time.monotonic()) for n in range(2)]
        connections = server.connections
    assert [(shot.ok, shot.output_tokens, shot.error) for shot in shots] == [(True, 2, None)] * 2
    # such a connection is not used again
    assert connections == 2


async def test_the_wait_for_the_bodys_end_is_nobodys_latency() -> None:
    async with ChatServer(writes(STREAM.removesuffix(LAST), stays=True)) as server:
        began_s = time.monotonic()
        shot = await one_shot(server.url)
        # else there was no wait, and this test could not fail
        assert time.monotonic() - began_s >= 0.05
    assert shot.ok
    # all bytes came in one read
    assert shot.took_ms == shot.e2e_ms


@pytest.mark.usefixtures("loop")
async def test_an_answer_may_end_with_its_connection() -> None:
    head = JSON_HEAD + b"connection: close\r\n\r\n"

    async with ChatServer(writes(head + WHOLE[:20].encode(), WHOLE[20:].encode())) as server:
        found = await one_shot(server.url, stream=False)
    assert found.ok


# --- hosts that hang -----------------------------------------------------------------------------------


HANGS = {
    "never answers": (hang, None),
    "hangs after the headers": (writes(HEAD, stays=True), 200),
    "hangs in the middle": (writes(HEAD + ROLE, token("Hello"), stays=True), 200),
    "hangs in a token": (writes(HEAD + ROLE, token("Hello")[:20], stays=True), 200),
    "hangs before the end mark": (writes(HEAD, token("Hello"), FINISH, stays=True), 200),
}


@pytest.mark.parametrize("what", HANGS)
@pytest.mark.usefixtures("loop")
async def test_a_host_that_hangs_is_given_up(what: str) -> None:
    page, status = HANGS[what]

    # a busy machine answers the second request within 2 s
    async with ChatServer(page) as server, client_of(server.url, timeout_s=2.0) as client:
        bad = await client.send(context(), ask(0), time.monotonic())
        server.pages[CHAT] = STREAM
        good = await client.send(context(), ask(1), time.monotonic())
    assert (bad.ok, bad.error_kind, bad.status_code) == (False, "timeout", status)
    assert bad.error == "no whole answer within 2 s"
    assert bad.took_ms is not None
    assert bad.took_ms >= 1999  # uvloop counts whole milliseconds
    assert good.ok, good.error


async def test_a_host_that_drips_is_given_up_and_keeps_what_it_said() -> None:
    async def drip(writer: asyncio.StreamWriter) -> bool:
        writer.write(HEAD)
        while True:
            writer.write(token("drop"))
            await asyncio.sleep(0.01)

    async with ChatServer(drip) as server:
        shot = await one_shot(server.url, timeout_s=2.0)
    assert (shot.ok, shot.error_kind) == (False, "timeout")
    assert shot.ttft_ms is not None
    assert shot.token_chunks is not None
    assert shot.token_chunks >= 2


async def test_a_body_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.protocol.completion.MAX_BODY_BYTES", 2**20)

    poured = 0

    async def pour(writer: asyncio.StreamWriter) -> bool:
        nonlocal poured
        writer.write(HEAD)
        while poured < 64 * 2**20:
            poured += len(drop := token("water" * 1000))
            writer.write(drop)
            await writer.drain()
        return False

    async with ChatServer(pour) as server:
        shot = await one_shot(server.url, timeout_s=60.0)
    assert (shot.ok, shot.error_kind) == (False, "too_large")
    # the rest was not read
    assert poured < 32 * 2**20


async def test_a_packed_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.protocol.completion.MAX_BODY_BYTES", 2**20)
    bomb = http(gzip.compress(bytes(64 * 2**20))).replace(
        b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n", 1
    )

    async with ChatServer(bomb) as server:
        assert (await one_shot(server.url)).error_kind == "too_large"


async def test_a_host_that_answers_without_reading_gets_no_wait() -> None:
    """Its refusal is here while most of a long prompt is not yet sent."""

    over = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()
        writer.write(json_error("413 Too Large", "too long"))
        await over.wait()
        writer.transport.abort()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with client_of(url, timeout_s=60.0) as client:
        shot = await client.send(context(), ask(text="x" * 30_000_000), time.monotonic())
    over.set()
    await turns()
    server.close()
    assert (shot.error_kind, shot.error) == ("http_413", "too long")


# --- hosts that are not there --------------------------------------------------------------------------


@pytest.mark.usefixtures("loop")
async def test_a_host_that_refuses_connections_says_so() -> None:
    with socket.socket() as bound:  # bound and not listening: nobody else gets the port
        bound.bind(("127.0.0.1", 0))
        shot = await one_shot(f"http://127.0.0.1:{bound.getsockname()[1]}")
    assert (shot.ok, shot.error_kind) == (False, "connect")
    assert shot.error == "no connection: connection refused"
    # it was tried: that is no request which never left
    assert shot.sent_at is not None


def test_a_host_that_accepts_nobody_is_not_connected(
    loop: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.bench.client.CONNECT_TIMEOUT_S", 0.2)

    async def scene() -> RequestRecord:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            waiting = [socket.socket() for _ in range(3)]  # more than its queue holds
            try:
                for each in waiting:
                    each.setblocking(False)
                    each.connect_ex(full.getsockname())
                return await one_shot(f"http://127.0.0.1:{full.getsockname()[1]}")
            finally:
                for each in waiting:
                    each.close()

    shot = loop(scene())
    assert (shot.ok, shot.error_kind) == (False, "connect")
    assert shot.error == "no connection within 0.2 s"
