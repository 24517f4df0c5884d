"""Two whole proxies whose Redis is killed, frozen, full, locked, slow, or none at all: every answer comes, and nobody waits in vain."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from support.chat import until
from support.proxied import ASKED, Proxied, whole
from support.proxy_calls import run
from support.redis_server import RedisServer, needs_redis, redis_server
from support.scripted_upstream import ScriptedUpstream
from support.two_proxies import HELLO, PATIENT, led, two

from toolkit.proxy.stored import redis_cache

# --- a Redis that goes while somebody waits --------------------------------------------------------------------


@pytest.mark.slow
@needs_redis
@pytest.mark.parametrize("end", [RedisServer.kill, RedisServer.freeze], ids=["killed", "frozen"])
def test_a_redis_that_goes_keeps_nobody_waiting(
    tmp_path: Path, end: Callable[[RedisServer], None]
) -> None:
    async def test(server: RedisServer) -> None:
        settings = PATIENT.replace("10s", "500ms")
        async with led(server.url, whole("late"), then=whole(), settings=settings) as pair:
            second = await pair.followed()
            end(server)
            assert (await second).text == HELLO
            pair.gate.set()
            assert (await pair.first).text == "late"
            assert pair.one.total("errors") + pair.other.total("errors") == 0

    with redis_server(tmp_path) as server:
        run(test(server))


@needs_redis
def test_a_full_redis_gives_what_it_has_and_leases_nothing(tmp_path: Path) -> None:
    async def test(server: RedisServer) -> None:
        async with ScriptedUpstream(whole()) as engine, two(server.url, engine) as (one, other):
            assert (await one.ask()).text == HELLO
            await one.proxy.kit.layers.redis.settle()
            server.command("config", "set", "maxmemory", "1")
            for number in range(8):
                for proxy in (one, other):
                    assert (await proxy.ask(ASKED | {"seed": number})).text == HELLO
            assert len(engine.lines) == 1 + 16
            assert not one.proxy.kit.layers.redis.is_left_alone
            assert (await other.ask()).is_hit
            server.command("config", "set", "maxmemory", "0")
            assert (await one.ask(ASKED | {"seed": 9})).text == HELLO
            await one.proxy.kit.layers.redis.settle()
            assert (await other.ask(ASKED | {"seed": 9})).is_hit
            assert server.command("keys", f"{redis_cache.LEASES}:*") == ""

    with redis_server(tmp_path, "--maxmemory-policy", "noeviction") as server:
        run(test(server))


@needs_redis
@pytest.mark.parametrize("why", ["full", "too-large"])
def test_an_answer_that_redis_does_not_take_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    async def test(server: RedisServer) -> None:
        async with led(server.url, whole("first"), then=whole()) as pair:
            second = await pair.followed()
            if why == "full":
                server.command("config", "set", "maxmemory", "1")
            else:
                monkeypatch.setattr(redis_cache, "LARGEST_BYTES", 1)
            pair.gate.set()
            # at once: the bound is 30 s, a dead leader's lease 3 s
            async with asyncio.timeout(2.5):
                assert ((await pair.first).text, (await second).text) == ("first", HELLO)
            assert len(pair.engine.lines) == 2

    with redis_server(tmp_path, "--maxmemory-policy", "noeviction") as server:
        run(test(server))


@pytest.mark.slow
@needs_redis
def test_a_wrong_password_costs_no_answer_and_is_told_once(tmp_path: Path) -> None:
    async def test(url: str) -> None:
        async with ScriptedUpstream(whole()) as engine, two(url, engine) as (one, other):
            for number in range(6):
                assert (await one.ask(ASKED | {"seed": number})).text == HELLO
            await until(lambda: one.said)
            assert one.said == [
                "Redis is not used now: it wants another password; it is tried again"
            ]
            assert one.total("events", kind="redis") == 1
            page = await one.admin("/metrics")
            assert b"\ntoolkit_proxy_redis_breaker_open 1.0" in page.body
            assert other.said == []

    with redis_server(tmp_path, "--requirepass", "right") as server:
        run(test(server.url.replace("redis://", "redis://:wrong@")))


@pytest.mark.slow
@needs_redis
def test_one_that_is_back_is_used_again_and_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_cache, "AWAY_S", 0.05)
    monkeypatch.setattr(redis_cache, "LONGEST_AWAY_S", 0.1)

    async def test(server: RedisServer) -> None:
        async with ScriptedUpstream(whole()) as engine, two(server.url, engine) as (one, other):
            server.kill()
            await until_told(one, "Redis is not used now: there is no connection to it; it is")
            server.start()
            await until_told(one, "Redis is used again")
            await one.proxy.kit.layers.redis.settle()
            asked = len(engine.lines)
            # the last one that was asked there, and stored
            assert (await other.ask(ASKED | {"seed": asked - 1})).is_hit
            assert len(engine.lines) == asked
            assert one.total("errors") == 0

    async def until_told(proxy: Proxied, sentence: str) -> None:
        while not any(line.startswith(sentence) for line in proxy.said):
            number = int(proxy.total("requests"))
            assert (await proxy.ask(ASKED | {"seed": number})).text == HELLO

    with redis_server(tmp_path) as server:
        run(test(server))


@pytest.mark.slow
@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x00\xff" * 1000,
        b"$-7\r\n",
        b"*2\r\n:1\r\n:2\r\n" * 9,
    ],
    ids=["http", "noise", "length", "numbers"],
)
def test_what_is_no_redis_costs_no_answer(said: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                writer.write(said)
                await writer.drain()
        writer.close()

    async def test() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        settings = PATIENT.replace("10s", "50ms")
        async with ScriptedUpstream(whole()) as engine, two(url, engine, settings) as proxies:
            for number in range(8):
                for proxy in proxies:
                    assert (await proxy.ask(ASKED | {"seed": number})).text == HELLO
            assert len(engine.lines) == 16
        server.close()

    run(test())


@pytest.mark.slow
def test_one_that_never_answers_is_given_up_within_its_limit() -> None:
    """However many ask at once: they all wait at the same time, and for nothing else."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    async def test() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        settings = PATIENT.replace("10s", "50ms")
        async with ScriptedUpstream(whole()) as engine, two(url, engine, settings) as (one, _):
            bodies = [ASKED | {"seed": number} for number in range(60)]
            answers = await asyncio.gather(*map(one.ask, bodies))
            assert [answer.text for answer in answers] == [HELLO] * 60
            assert len(engine.lines) == 60
            counts = one.proxy.kit.layers.redis.counts()
            assert counts.failures + counts.spared >= 60
        server.close()

    run(test())


@needs_redis
@pytest.mark.slow
@pytest.mark.parametrize(("late_s", "calls"), [(0.01, 6), (0.2, 12)], ids=["within", "beyond"])
def test_a_slow_redis_is_used_within_its_limit_and_costs_no_answer_beyond_it(
    tmp_path: Path, late_s: float, calls: int
) -> None:
    """All that it says comes late. What is asked at both at once is one call within the limit, and two beyond it."""

    async def test(server: RedisServer) -> None:
        settings = PATIENT if late_s < 0.1 else PATIENT.replace("10s", "30ms")
        async with (
            late(server.port, late_s) as url,
            ScriptedUpstream(whole()) as engine,
            two(url, engine, settings) as proxies,
        ):
            for number in range(6):
                body = ASKED | {"seed": number}
                answers = await asyncio.gather(*(proxy.ask(body) for proxy in proxies))
                assert [answer.text for answer in answers] == [HELLO] * 2
            assert len(engine.lines) == calls

    with redis_server(tmp_path) as server:
        run(test(server))


@contextlib.asynccontextmanager
async def late(port: int, late_s: float) -> AsyncIterator[str]:
    """The address of something that passes on what a server says, so much later."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)

        async def back() -> None:
            while data := await far_reader.read(65536):
                loop.call_later(late_s, writer.write, data)

        returning = asyncio.create_task(back())
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                far_writer.write(data)
        far_writer.close()
        returning.cancel()
        writer.close()

    server = await asyncio.start_server(pass_on, "127.0.0.1", 0)
    yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
