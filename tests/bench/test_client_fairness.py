"""What the host may not be charged with, and what it may not get: the end of an idle connection, and the key."""

import asyncio
import json
import time

import pytest
from support.chat import (
    CHAT,
    DONE,
    HEAD,
    LAST,
    STREAM,
    ChatServer,
    ask,
    client_of,
    context,
    event,
    one_shot,
    turns,
    until,
)
from support.raw_server import RawServer, http

from toolkit.bench.client import PageError
from toolkit.records import RequestRecord

# --- the key -------------------------------------------------------------------------------------------

KEY = "sk-proj-0123456789abcdef"


def json_error(status: str, message: str) -> bytes:
    said = json.dumps({"error": {"message": message}})
    return http(said, status, content_type="application/json")


@pytest.mark.parametrize("padding", range(276, 290))
async def test_a_key_that_the_host_repeats_does_not_reach_a_shot(padding: int) -> None:
    """Not even the part that is left where its sentence is cut, after 299 characters."""

    said = "x" * padding + f" {KEY} and more"
    async with ChatServer(json_error("401 Unauthorized", said)) as server:
        shot = await one_shot(server.url, key=KEY)
    assert shot.error_kind == "http_401"
    assert shot.error is not None
    assert "sk-p" not in shot.error
    assert shot.error.startswith("x" * padding)


@pytest.mark.parametrize("place", ["model", "id", "finish_reason", "x-cache", "not HTTP"])
async def test_a_key_is_taken_out_wherever_it_is_repeated(place: str) -> None:
    page = {
        "model": HEAD + event({"delta": {"content": "a"}, "finish_reason": "stop"}, model=KEY),
        "id": HEAD + event({"delta": {"content": "a"}, "finish_reason": "stop"}, id=KEY),
        "finish_reason": HEAD + event({"delta": {"content": "a"}, "finish_reason": f"no {KEY}"}),
        "x-cache": STREAM.replace(b"\r\n\r\n", b"\r\nx-cache: " + KEY.encode() + b"\r\n\r\n", 1),
        "not HTTP": f"you said {KEY}\r\n\r\n".encode(),
    }[place]
    whole = page if page.endswith(LAST) or place == "not HTTP" else page + DONE + LAST

    async with ChatServer(whole) as server:
        shot = await one_shot(server.url, key=KEY)
    assert "***" in repr(shot)
    assert "sk-p" not in repr(shot)


async def test_the_key_goes_to_the_api_and_to_metrics_only_where_it_is_wanted() -> None:
    async with ChatServer() as server, client_of(server.url, key=KEY) as client:
        await client.models()
        await client.numbers()
        await client.send(context(), ask(), time.monotonic())
        server.pages["/metrics"] = http("who are you?", "401 Unauthorized")
        for _ in range(2):
            with pytest.raises(PageError, match="answered 401"):
                await client.numbers()
        found = [(path, headers.get("authorization")) for _, path, headers in server.requests]
    bearer = f"Bearer {KEY}"
    assert found == [
        ("/v1/models", bearer),
        ("/metrics", None),
        (CHAT, bearer),
        ("/metrics", None),
        ("/metrics", bearer),
        ("/metrics", bearer),
    ]


async def test_a_key_in_a_page_does_not_reach_what_is_told_of_it() -> None:
    page = http(f'{{"data": [{{"id": "tiny", "root": "for {KEY}"}}]}}')

    pages = {"/v1/models": page}
    async with RawServer(pages) as server, client_of(server.url, key=KEY) as client:
        [model] = await client.models()
        server.pages["/v1/models"] = f"{KEY}\r\n\r\n".encode()
        with pytest.raises(PageError) as raised:
            await client.models()
        root, error = model.root, str(raised.value)
    assert root == "for ***"
    assert "sk-p" not in error


# --- connections that end between two requests ---------------------------------------------------------


async def two_shots(server: RawServer) -> tuple[RequestRecord, RequestRecord]:
    async with client_of(server.url) as client:
        first = await client.send(context(), ask(0), time.monotonic())
        await until(lambda: len(server.requests) == 1)
        return first, await client.send(context(), ask(1), time.monotonic())


@pytest.mark.usefixtures("loop")
async def test_a_host_that_ends_each_connection_unannounced_is_asked_over_new_ones() -> None:
    async def answer(writer: asyncio.StreamWriter) -> bool:
        writer.write(STREAM)
        return False

    async with ChatServer(answer) as server, client_of(server.url) as client:
        shots = [await client.send(context(), ask(n), time.monotonic()) for n in range(30)]
        assert ([shot.error for shot in shots], server.connections) == ([None] * 30, 30)


class ClosesOnTheSecond(ChatServer):
    """Ends each connection when its second request is there: for the client that is what a close on the way looks like."""

    def __init__(self) -> None:
        super().__init__(self.answer)
        self._asked_by: set[int] = set()

    async def answer(self, writer: asyncio.StreamWriter) -> bool:
        port = writer.get_extra_info("peername")[1]
        if port in self._asked_by:
            return False
        self._asked_by.add(port)
        writer.write(STREAM)
        return True


@pytest.mark.usefixtures("loop")
async def test_a_request_that_crosses_the_end_of_an_idle_connection_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolkit.bench.client.LEAST_IDLE_S", 0.0)

    async with ClosesOnTheSecond() as server:
        _, second = await two_shots(server)
        asked, connections = len(server.asked()), server.connections
    assert (second.ok, second.error) == (True, None)
    assert (asked, connections) == (3, 2)


@pytest.mark.usefixtures("loop")
async def test_a_busy_connection_that_ends_is_the_hosts_failure() -> None:
    async with ClosesOnTheSecond() as server:
        _, second = await two_shots(server)
        asked = len(server.asked())
    assert (second.ok, second.error_kind, asked) == (False, "cut", 2)


async def test_a_request_that_the_host_had_for_long_is_not_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolkit.bench.client.LEAST_IDLE_S", 0.0)
    monkeypatch.setattr("toolkit.bench.client.CROSSING_S", 0.0)

    async with ClosesOnTheSecond() as server:
        _, second = await two_shots(server)
        asked = len(server.asked())
    assert (second.ok, second.error_kind, asked) == (False, "cut", 2)


async def test_an_answer_that_began_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.bench.client.LEAST_IDLE_S", 0.0)

    async def begin(writer: asyncio.StreamWriter) -> bool:
        writer.write(HEAD)
        await turns()
        writer.transport.abort()
        return False

    async with ChatServer() as server, client_of(server.url) as client:
        await client.send(context(), ask(0), time.monotonic())
        server.pages[CHAT] = begin
        second, asked = await client.send(context(), ask(1), time.monotonic()), len(server.asked())
    assert (second.ok, asked) == (False, 2)


@pytest.mark.usefixtures("loop")
async def test_a_new_connection_gets_no_second_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.bench.client.LEAST_IDLE_S", 0.0)

    async def close(_: asyncio.StreamWriter) -> bool:
        return False

    async with ChatServer(close) as server:
        shot, asked = await one_shot(server.url), len(server.asked())
    assert (shot.ok, shot.error_kind, asked) == (False, "cut", 1)


@pytest.mark.usefixtures("loop")
async def test_a_host_that_went_away_is_not_asked_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection of the request before was idle; this one's is refused."""
    monkeypatch.setattr("toolkit.bench.client.LEAST_IDLE_S", 0.0)

    async def close(writer: asyncio.StreamWriter) -> bool:
        writer.write(STREAM)
        return False

    async with ChatServer() as server, client_of(server.url, timeout_s=2.0) as client:
        shots = [await client.send(context(), ask(0), time.monotonic())]
        server.pages[CHAT] = close
        shots.append(await client.send(context(), ask(1), time.monotonic()))
        await server.__aexit__(None, None, None)
        shots.append(await client.send(context(), ask(2), time.monotonic()))
        assert [shot.error_kind for shot in shots] == [None, None, "connect"]
