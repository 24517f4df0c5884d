"""What an upstream may say in HTTP/1.1 and what it may not; over real sockets, through `Upstream`."""

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import trustme
import uvloop
from support.chat import HEAD, LAST, ROLE, STREAM, chunk
from support.scripted_upstream import Line, ScriptedUpstream

from toolkit.proxy.exchange import Job
from toolkit.proxy.http.wire import HEADERS, HELD_BYTES
from toolkit.proxy.settings import UpstreamSetting
from toolkit.proxy.upstreams.upstream import Answer, Upstream, UpstreamError

JOB = Job(path="/v1/chat/completions", body=b"{}")
GET = Job(path="/v1/models", method="GET", body=b"")
OK = b"HTTP/1.1 200 OK\r\n"

Use = Callable[[ScriptedUpstream, Upstream], Coroutine[Any, Any, None]]


def with_answers(use: Use, *answers: bytes, close: bool = False) -> None:
    """Each request gets the next of some answers, byte for byte; `close`: and then the end."""

    async def test() -> None:
        left = list(answers)

        async def play(line: Line) -> None:
            line.send(left.pop(0))
            if close:
                line.close()

        async with (
            ScriptedUpstream(play) as server,
            Upstream(UpstreamSetting(name="a", url=server.url)) as upstream,
        ):
            await use(server, upstream)

    for run in (asyncio.run, uvloop.run):
        run(asyncio.wait_for(test(), 60))


async def whole(answer: Answer) -> bytes:
    data = b""
    try:
        while part := await answer.read():
            data += part
    finally:
        answer.close()
    return data


async def kind(asked: Coroutine[Any, Any, Answer]) -> str:
    """What kind of fault an exchange ends with, its body included."""
    with pytest.raises(UpstreamError) as caught:
        await whole(await asked)
    return caught.value.fault.kind


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (OK + b"content-length: 5\r\n\r\nHello", b"Hello"),
        (OK + b"transfer-encoding: chunked\r\n\r\n" + chunk(b"Hello") + LAST, b"Hello"),
        (OK + b"transfer-encoding: chunked\r\n\r\n5;a=b\r\nHello\r\n0\r\nx: y\r\n\r\n", b"Hello"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"content-length: 2\r\n\r\nHi", b"Hi"),
        (
            b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + OK + b"content-length: 0\r\n\r\n",
            b"",
        ),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", b""),
    ],
    ids=["length", "chunks", "trailers", "100", "103", "204", "304"],
)
def test_an_answer_has_its_end_where_http_says_and_its_connection_serves_on(
    answer: bytes, body: bytes
) -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        for _ in range(2):
            found = await upstream.ask(JOB)
            assert await whole(found) == body
            # what was said before the answer is no part of it
            assert b"link" not in dict(found.headers)
        assert server.connections == 1

    with_answers(use, answer, answer)


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"connection: close\r\ncontent-length: 2\r\n\r\nHi",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nHi",
        OK + b"content-length: 2\r\n\r\nHi and more",
        OK + b"content-length: 2\r\n\r\nHi" + OK + b"content-length: 4\r\n\r\nEvil",
    ],
    ids=["close", "1.0", "more than was said", "a second answer"],
)
def test_after_such_an_answer_the_connection_serves_nobody(answer: bytes) -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        for _ in range(2):
            assert await whole(await upstream.ask(JOB)) == b"Hi"
        assert server.connections == 2

    with_answers(use, answer, answer)


def test_what_comes_unasked_on_an_idle_connection_is_no_answer_to_the_next_request() -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        assert await whole(await upstream.ask(JOB)) == b"Hi"
        (connection,) = server.open
        connection.transport.write(OK + b"content-length: 4\r\n\r\nEvil")
        await server.until(lambda: not server.open)
        assert await whole(await upstream.ask(JOB)) == b"Hi"

    hi = OK + b"content-length: 2\r\n\r\nHi"
    with_answers(use, hi, hi)


def test_a_body_without_a_length_ends_with_its_connection() -> None:
    async def use(_: ScriptedUpstream, upstream: Upstream) -> None:
        assert await whole(await upstream.ask(JOB)) == b"Hello"

    with_answers(use, OK + b"\r\nHello", close=True)


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"content-length: 9\r\n\r\nHello",
        OK + b"transfer-encoding: chunked\r\n\r\n" + chunk(b"Hello"),
        OK + b"content-le",
    ],
    ids=["length", "chunks", "head"],
)
def test_an_answer_that_ends_too_early_is_cut(answer: bytes) -> None:
    async def use(_: ScriptedUpstream, upstream: Upstream) -> None:
        assert await kind(upstream.ask(JOB)) == "cut"

    with_answers(use, answer, close=True)


@pytest.mark.parametrize(
    "answer",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        OK + b"x: " + b"y" * 70_000,
        OK + b"x: y\r\n" * (HEADERS + 1) + b"\r\n",
        OK + b"content-length: 2\r\ncontent-length: 3\r\n\r\nHi",
        OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        OK + b"bad header\r\n\r\n",
    ],
    ids=["TLS", "101", "long head", "many headers", "two lengths", "no chunk", "no header"],
)
def test_what_is_not_http_is_garbage_and_closes_the_connection(answer: bytes) -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        assert await kind(upstream.ask(JOB)) == "garbage"
        await server.until(lambda: not server.open)
        assert len(server.lines) == 1

    with_answers(use, answer)


def test_after_head_no_body_follows_whatever_its_length_says() -> None:
    async def use(_: ScriptedUpstream, upstream: Upstream) -> None:
        answer = await upstream.ask(Job(path="/v1/models", method="HEAD", body=b""))
        assert (answer.status, await whole(answer)) == (200, b"")

    with_answers(use, OK + b"content-length: 500\r\n\r\n")


def test_a_get_that_nobody_answered_is_asked_once_more_and_no_third_time() -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        assert await kind(upstream.ask(GET)) == "cut"
        assert len(server.lines) == 2

    with_answers(use, b"", b"", close=True)


def test_what_was_half_answered_is_not_asked_again() -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        assert await whole(await upstream.ask(GET)) == b""
        (connection,) = server.open
        asking = asyncio.ensure_future(kind(upstream.ask(GET)))
        await server.asked(2)
        connection.transport.close()
        assert await asking == "cut"
        assert len(server.lines) == 2

    with_answers(use, OK + b"content-length: 0\r\n\r\n", b"HTTP/1.1 2")


def test_an_early_answer_to_a_long_request_is_taken_and_its_connection_serves_nobody() -> None:
    class Hasty(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            # it reads nothing of the request
            transport.pause_reading()
            transport.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
            self.transport = transport

    async def test() -> None:
        made: list[Hasty] = []

        def factory() -> Hasty:
            made.append(Hasty())
            return made[-1]

        server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Upstream(UpstreamSetting(name="a", url=url)) as upstream:
            for _ in range(2):
                answer = await upstream.ask(JOB, b"x" * 64_000_000)
                assert (answer.status, await whole(answer)) == (413, b"no")
        assert len(made) == 2
        for each in made:
            each.transport.abort()
        server.close()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_of_an_answer_that_nobody_reads_little_is_held_and_nothing_lost() -> None:
    count = 40 * HELD_BYTES

    async def use(_: ScriptedUpstream, upstream: Upstream) -> None:
        answer = await upstream.ask(JOB)
        wire = answer._wire
        assert wire is not None
        while not wire._is_paused:  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0)
        # one read beyond it, and a loop reads at most 256 KiB at a time
        assert wire._held <= 2 * HELD_BYTES
        assert len(await whole(answer)) == count

    with_answers(use, OK + b"content-length: %d\r\n\r\n" % count + b"x" * count)


def test_headers_of_the_connection_cannot_be_set_by_a_job() -> None:
    headers = [
        *((b"host", b"evil"), (b"authorization", b"Bearer theirs"), (b"connection", b"close")),
        *((b"content-length", b"0"), (b"transfer-encoding", b"chunked"), (b"expect", b"x")),
        *((b"accept-encoding", b"gzip"), (b"x-a", b"1\r\nevil: 2"), (b"x-b", b"caf\xe9")),
    ]

    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        await whole(await upstream.ask(Job(path="/x", body=b"{}", headers=headers)))
        (line,) = server.lines
        assert line.headers["host"].startswith("127.0.0.1:")
        del line.headers["host"]
        assert line.headers == {
            "accept": "*/*",
            "accept-encoding": "identity",
            "user-agent": "llm-serving-toolkit",
            "x-b": "caf\xe9",
            "content-length": "2",
        }
        assert len(line.names) == 6

    with_answers(use, OK + b"content-length: 0\r\n\r\n")


def test_an_idle_connection_is_closed_before_the_server_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolkit.proxy.upstreams.upstream.IDLE_S", 0.0)

    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        await whole(await upstream.ask(JOB))
        await server.until(lambda: not server.open)
        assert not upstream._wires
        assert not upstream._idle

    with_answers(use, OK + b"content-length: 0\r\n\r\n")


def test_a_connection_that_is_in_use_again_is_idle_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.proxy.upstreams.upstream.IDLE_S", 0.0)

    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        await whole(await upstream.ask(JOB))
        assert await whole(await upstream.ask(JOB)) == b"Hi"
        assert server.connections == 1

    with_answers(use, OK + b"content-length: 0\r\n\r\n", OK + b"content-length: 2\r\n\r\nHi")


def test_connections_are_given_back_when_the_upstream_is_closed() -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        answers = [await upstream.ask(JOB) for _ in range(3)]
        await upstream.close()
        assert not upstream._wires
        await server.until(lambda: not server.open)
        for answer in answers:
            answer.close()
        assert await kind(upstream.ask(JOB)) == "ours"

    with_answers(use, *[HEAD + ROLE] * 3)


def test_the_connection_used_last_is_used_next() -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        first, second = [await upstream.ask(JOB) for _ in range(2)]
        assert await whole(second)
        assert await whole(first)
        wire = next(reversed(upstream._idle))
        answer = await upstream.ask(JOB)
        assert answer._wire is wire
        assert await whole(answer)
        assert server.connections == 2

    with_answers(use, *[STREAM] * 3)


def test_tls_is_spoken_and_who_is_not_trusted_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    authority, file = trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(file)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    async def test() -> None:
        async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n{}")
            writer.write(OK + b"content-length: 2\r\n\r\nHi")
            await reader.read()
            writer.close()

        server = await asyncio.start_server(play, "127.0.0.1", 0, ssl=context)
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Upstream(UpstreamSetting(name="a", url=url)) as upstream:
            assert await kind(upstream.ask(JOB)) == "tls"
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        async with Upstream(UpstreamSetting(name="a", url=url)) as upstream:
            assert await whole(await upstream.ask(JOB)) == b"Hi"
        async with Upstream(
            UpstreamSetting(name="a", url=url.replace("https", "http"))
        ) as upstream:
            assert await kind(upstream.ask(JOB)) in {"cut", "garbage"}
        server.close()

    asyncio.run(asyncio.wait_for(test(), 60))
