import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support.chat import HEAD, LAST, ROLE, STREAM, chunk, token
from support.scripted_upstream import (
    Line,
    ScriptedUpstream,
    hanging,
    hanging_in_stream,
    plain,
    refusing,
)

from toolkit.proxy.exchange import Headers, Job
from toolkit.proxy.settings import UpstreamSetting
from toolkit.proxy.upstreams.upstream import Answer, Upstream, UpstreamError

BODY = b'{"model": "tiny", "messages": [], "stream": true}'
JOB = Job(
    path="/v1/chat/completions",
    body=BODY,
    headers=((b"content-type", b"application/json"), (b"x-request-id", b"r1")),
)


def with_server(
    use: Callable[[ScriptedUpstream, Upstream], Awaitable[None]],
    *,
    key: str | None = None,
    path: Path | None = None,
    back: Callable[[Headers], Headers] = tuple,
) -> None:
    async def run() -> None:
        async with ScriptedUpstream(path=path) as server:
            setting = UpstreamSetting(name="a", url=server.url)
            async with Upstream(setting, key=key, back=back) as upstream:
                await use(server, upstream)

    asyncio.run(asyncio.wait_for(run(), 60))


async def whole(answer: Answer) -> bytes:
    data = b""
    while part := await answer.read():
        data += part
    answer.close()
    return data


def test_the_body_goes_out_byte_for_byte_and_the_answer_comes_back_so() -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        answer = await upstream.ask(JOB)
        assert (answer.status, answer.content_type) == (200, "text/event-stream; charset=utf-8")
        body = await whole(answer)
        # of STREAM what is no head and no chunk's frame
        assert body.startswith(b'data: {"id": "chatcmpl-1"')
        assert body.endswith(b"data: [DONE]\n\n")
        (line,) = server.lines
        assert (line.method, line.target, line.body) == ("POST", "/v1/chat/completions", BODY)

    with_server(use)


def test_only_allowed_headers_and_the_upstreams_own_key_are_sent() -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        await whole(await upstream.ask(JOB))
        headers = server.lines[0].headers
        assert headers.pop("host").startswith("127.0.0.1:")
        assert headers == {
            "content-type": "application/json",
            "x-request-id": "r1",
            "authorization": "Bearer own",
            "accept": "*/*",
            "accept-encoding": "identity",
            "user-agent": "llm-serving-toolkit",
            "content-length": str(len(BODY)),
        }

    with_server(use, key="own")


def test_a_query_and_an_escaped_path_are_sent_as_they_were_written() -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        job = Job(path="/v1/models/a%2Fb", query="x=%7e&y=1+2", method="GET", body=b"")
        await whole(await upstream.ask(job))
        (line,) = server.lines
        assert (line.method, line.target) == ("GET", "/v1/models/a%2Fb?x=%7e&y=1+2")
        assert "content-length" not in line.headers

    with_server(use)


def test_a_body_is_sent_only_where_it_means_something_and_is_no_second_request() -> None:
    hidden = b"POST /v1/load_lora_adapter HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n"

    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        server.script = plain("200 OK")
        for method in ("GET", "GET", "HEAD"):
            await whole(await upstream.ask(Job(method=method, path="/v1/models", body=hidden)))
        assert [line.body for line in server.lines] == [b"", b"", b""]
        assert not any("content-length" in line.headers for line in server.lines)

    with_server(use)


def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        server.script = plain("307 Temporary Redirect", b"", f"location: {server.url}/elsewhere")
        answer = await upstream.ask(JOB)
        assert answer.status == 307
        await whole(answer)
        assert [line.target for line in server.lines] == ["/v1/chat/completions"]

    with_server(use)


def test_cookies_are_not_sent_back() -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        server.script = plain("200 OK", b"{}", "set-cookie: a=b; Path=/")
        for _ in range(2):
            await whole(await upstream.ask(JOB))
        assert [line.headers.get("cookie") for line in server.lines] == [None, None]

    with_server(use)


def test_no_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")

    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        await whole(await upstream.ask(JOB))
        assert len(server.lines) == 1

    with_server(use)


@pytest.mark.parametrize(
    ("label", "is_taken"),
    [
        ("content-encoding: gzip", False),
        ("content-encoding: identity, br", False),
        ("transfer-encoding: gzip, chunked", False),
        ("content-encoding: Identity", True),
    ],
)
def test_an_answer_packed_unasked_is_garbage_for_its_label_would_be_lost(
    label: str, *, is_taken: bool
) -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        length = "content-length: 2\r\n" if label.startswith("content") else ""

        async def script(line: Line) -> None:
            line.send(f"HTTP/1.1 200 OK\r\n{label}\r\n{length}\r\n".encode())
            line.send(b"{}" if length else chunk(b"{}") + LAST)

        server.script = script
        if is_taken:
            assert await whole(await upstream.ask(JOB)) == b"{}"
            return
        with pytest.raises(UpstreamError) as caught:
            await upstream.ask(JOB)
        assert caught.value.fault.kind == "garbage"
        await server.until(lambda: not server.open)

    with_server(use)


def test_which_headers_come_back_is_the_given_functions_choice() -> None:
    def back(headers: Headers) -> Headers:
        return [(name, value) for name, value in headers if name == b"retry-after"]

    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        server.script = plain("503 Busy", b"{}", "Retry-After: 3", "Server: uvicorn")
        answer = await upstream.ask(JOB)
        assert answer.headers == ((b"retry-after", b"3"),)
        await whole(answer)

    with_server(use, back=back)


def test_a_unix_socket_is_an_address_too(tmp_path: Path) -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        for _ in range(2):
            await whole(await upstream.ask(JOB))
        assert [line.body for line in server.lines] == [BODY, BODY]
        assert server.connections == 1

    with_server(use, path=tmp_path / "owner")


def test_a_connection_is_used_again_after_a_whole_answer() -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        for _ in range(3):
            await whole(await upstream.ask(JOB))
        assert (len(server.lines), server.connections) == (3, 1)

    with_server(use)


def test_bytes_come_while_the_answer_is_still_being_made() -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        go = asyncio.Event()

        async def play(line: Line) -> None:
            line.send(HEAD + ROLE)
            await go.wait()
            line.send(token("Hello") + LAST)

        server.script = play
        answer = await upstream.ask(JOB)
        assert b'"role"' in await answer.read()
        go.set()
        assert b"Hello" in await answer.read()
        answer.close()

    with_server(use)


def test_an_answer_that_is_closed_early_closes_the_connection_at_once() -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        server.script = hanging_in_stream("Hello")
        answer = await upstream.ask(JOB)
        await answer.read()
        answer.close()
        await server.lines[0].gone.wait()

    with_server(use)


def test_a_request_that_is_cancelled_before_its_answer_closes_the_connection() -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        server.script = hanging()
        asking = asyncio.ensure_future(upstream.ask(JOB))
        line = await server.asked()
        asking.cancel()
        await line.gone.wait()
        with pytest.raises(asyncio.CancelledError):
            await asking

    with_server(use)


def test_a_kept_connection_that_the_server_closed_meanwhile_costs_no_request() -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        await whole(await upstream.ask(JOB))
        (connection,) = server.open
        connection.transport.abort()
        await server.until(lambda: not server.open)
        answer = await upstream.ask(JOB)
        assert answer.status == 200
        await whole(answer)
        assert server.connections == 2

    with_server(use)


def test_a_request_that_crosses_the_end_of_a_kept_connection_is_sent_again() -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        await whole(await upstream.ask(JOB))
        server.scripts = [refusing()]
        answer = await upstream.ask(JOB)
        assert answer.status == 200
        await whole(answer)
        assert (len(server.lines), server.connections) == (3, 2)

    with_server(use)


def test_a_post_on_a_new_connection_is_not_sent_twice() -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        server.script = refusing()
        with pytest.raises(UpstreamError) as caught:
            await upstream.ask(JOB)
        assert caught.value.fault.kind == "cut"
        assert len(server.lines) == 1

    with_server(use)


def test_a_refused_connection_is_told_without_the_address() -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        server.stop_listening()
        with pytest.raises(UpstreamError) as caught:
            await upstream.ask(JOB)
        told = caught.value.fault
        assert (told.kind, told.status) == ("connect", 502)
        assert told.message == "no connection to the upstream: connection refused"

    with_server(use)


def test_what_is_no_http_is_garbage() -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        async def play(line: Line) -> None:
            line.send(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")

        server.script = play
        with pytest.raises(UpstreamError) as caught:
            await upstream.ask(JOB)
        assert caught.value.fault.kind == "garbage"

    with_server(use)


def test_an_answer_that_ends_before_its_end_is_cut() -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        async def play(line: Line) -> None:
            line.send(HEAD + ROLE)
            line.close()

        server.script = play
        answer = await upstream.ask(JOB)
        with pytest.raises(UpstreamError) as caught:
            await whole(answer)
        assert caught.value.fault.kind == "cut"
        answer.close()

    with_server(use)


def test_an_answer_with_malformed_chunks_is_garbage_behind_what_came_before() -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        async def play(line: Line) -> None:
            line.send(HEAD + ROLE + b"zz\r\nno chunk\r\n")
            await line.gone.wait()

        server.script = play
        answer = await upstream.ask(JOB)
        assert b'"role"' in await answer.read()
        with pytest.raises(UpstreamError) as caught:
            await answer.read()
        assert caught.value.fault.kind == "garbage"
        await server.lines[0].gone.wait()
        answer.close()

    with_server(use)


def test_a_long_body_is_sent_whole() -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        body = b'{"prompt": "' + b"x" * 3_000_000 + b'"}'
        await whole(await upstream.ask(JOB, body))
        (line,) = server.lines
        assert line.body == body
        assert line.headers["content-length"] == str(len(body))

    with_server(use)


def test_a_server_that_is_not_read_is_held_back() -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        async def play(line: Line) -> None:
            line.send(HEAD + chunk(b"x" * 32_000_000) + LAST)
            await line.gone.wait()

        server.script = play
        answer = await upstream.ask(JOB)
        # 32 MB are more than the kernel's buffers hold: most of it stays with the server
        for _ in range(200):
            await asyncio.sleep(0)
        assert server.lines[0].unsent > 16_000_000
        answer.close()

    with_server(use)


def test_a_stream_of_the_test_is_what_it_seems() -> None:
    assert STREAM.startswith(HEAD + ROLE)
    assert STREAM.endswith(LAST)


def test_a_long_request_that_is_given_up_does_not_wait_for_a_server_that_reads_nothing() -> None:
    class Deaf(asyncio.Protocol):
        def __init__(self) -> None:
            self.made: asyncio.Future[asyncio.Transport] = asyncio.Future()

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.pause_reading()
            self.made.set_result(transport)

    async def test() -> None:
        loop, deaf = asyncio.get_running_loop(), Deaf()
        server = await loop.create_server(lambda: deaf, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Upstream(UpstreamSetting(name="a", url=url)) as upstream:
            asking = loop.create_task(upstream.ask(JOB, b"x" * 64_000_000))
            there = await deaf.made
            while not any(wire._room for wire in upstream._wires):  # noqa: ASYNC110 (nobody tells)
                await asyncio.sleep(0)
            (wire,) = upstream._wires
            assert wire.transport is not None
            socket = wire.transport.get_extra_info("socket")
            asking.cancel()
            await asyncio.wait([asking])
            await asyncio.sleep(0)
            assert socket.fileno() == -1
        there.abort()
        server.close()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_content_type_of_any_bytes_can_be_passed_on() -> None:
    async def use(server: ScriptedUpstream, upstream: Upstream) -> None:
        async def play(line: Line) -> None:
            line.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/\xff\r\ncontent-length: 0\r\n\r\n")

        server.script = play
        answer = await upstream.ask(JOB)
        assert answer.content_type.encode("latin-1") == b"text/\xff"
        await whole(answer)

    with_server(use)


def test_a_name_with_two_addresses_is_asked_at_the_one_that_answers() -> None:
    async def use(server: ScriptedUpstream, _: Upstream) -> None:
        url = server.url.replace("127.0.0.1", "user:secret@localhost")
        async with Upstream(UpstreamSetting(name="a", url=url)) as upstream:
            await whole(await upstream.ask(JOB))
            assert server.lines[0].headers["host"].startswith("localhost:")
            server.stop_listening()
            await upstream.close()
            await upstream.open()
            with pytest.raises(UpstreamError) as caught:
                await upstream.ask(JOB)
            assert caught.value.fault.kind == "connect"
            assert "127.0.0.1" not in caught.value.fault.message

    with_server(use)
