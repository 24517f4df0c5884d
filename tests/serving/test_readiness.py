"""Readiness: /health is asked until it says 200, never longer than is allowed, and whatever listens there."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import pytest

from toolkit.errors import ToolkitError
from toolkit.serving.launch import answer, ready

T = TypeVar("T")
Answers = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def replies(*heads: bytes, seen: list[bytes] | None = None) -> Answers:
    """Answer with each of these in turn, the last one for ever."""
    left = list(heads)

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if seen is not None:
            seen.append(request)
        writer.write(left.pop(0) if len(left) > 1 else left[0])
        with suppress(ConnectionError):
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    return reply


async def served(answers: Answers, ask: Callable[[str], Awaitable[T]]) -> T:
    server = await asyncio.start_server(answers, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        told = await ask(f"http://127.0.0.1:{port}")
        # the server's end of each connection is closed, too, before the loop is
        await asyncio.gather(
            *asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True
        )
        return told


def word(head: bytes) -> str:
    return asyncio.run(served(replies(head), answer))


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
DOWN = b"HTTP/1.1 503 Service Unavailable\r\n\r\n"


def test_a_healthy_engine_is_ready_at_once_and_told_our_key() -> None:
    seen: list[bytes] = []
    seconds = asyncio.run(
        served(replies(OK, seen=seen), lambda url: ready(f"{url}/base/", "secret", 30))
    )
    assert 0 <= seconds < 30
    assert len(seen) == 1
    assert seen[0].startswith(b"GET /base/health HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer secret\r\n" in seen[0]


def test_an_engine_that_is_not_healthy_yet_is_asked_again() -> None:
    seen: list[bytes] = []
    asyncio.run(served(replies(DOWN, DOWN, OK, seen=seen), lambda url: ready(url, None, 30)))
    assert len(seen) == 3
    assert b"authorization" not in seen[0].lower()


def test_one_that_never_is_gets_no_longer_than_its_limit_and_the_last_answer_is_told() -> None:
    with pytest.raises(ToolkitError, match=r"was not ready after 0\.3 s: HTTP 503") as told:
        asyncio.run(served(replies(DOWN), lambda url: ready(url, None, 0.3)))
    # as the stack file and the watchdog call it
    assert "`ready` in a stack file, or --ready" in told.value.hint


def test_a_port_where_nobody_listens_is_waited_for_in_vain(unused_port: int) -> None:
    with pytest.raises(ToolkitError, match="was not ready after 0 s: nobody listens"):
        asyncio.run(ready(f"http://127.0.0.1:{unused_port}", None, 0))
    assert asyncio.run(answer(f"http://127.0.0.1:{unused_port}")) == "connection refused"


def test_an_engine_that_ended_is_not_waited_for(unused_port: int) -> None:
    alive = iter([True, True, False])
    with pytest.raises(ToolkitError, match="ended before it was ready"):
        asyncio.run(ready(f"http://127.0.0.1:{unused_port}", None, 600, lambda: next(alive)))


@pytest.mark.parametrize(
    ("head", "told"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "an answer that is no HTTP"),
        (b"A" * 100_000, "an answer that is no HTTP"),
        (b"", "an answer that is no HTTP"),
    ],
)
def test_whatever_listens_there_is_named_in_a_word(head: bytes, told: str) -> None:
    assert word(head) == told


def test_one_that_takes_the_connection_and_says_nothing_is_left_in_time() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()

    assert asyncio.run(served(silent, lambda url: answer(url, None, 0.2))) == "no answer in 0.2 s"


@pytest.fixture
def unused_port() -> int:
    async def port() -> int:
        server = await asyncio.start_server(replies(OK), "127.0.0.1", 0)
        found = int(server.sockets[0].getsockname()[1])
        server.close()
        await server.wait_closed()
        return found

    return asyncio.run(port())
