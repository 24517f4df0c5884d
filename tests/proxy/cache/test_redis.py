"""The Redis layer against a real redis-server: full, locked, crossed, and not a Redis at all."""

import asyncio
import hashlib
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.chat import until
from support.raw_server import http
from support.redis_server import RedisServer, needs_redis, redis_server

from toolkit.errors import ToolkitError
from toolkit.proxy.cache import redis as module
from toolkit.proxy.cache.redis import Lease, RedisCache

NOW = 1_700_000_000.0
PATIENT_S = 20.0
"""Where the limit of time is not what is tested: this machine may be busy."""
SECRET = "s3cr3t-pass"


def key(number: int) -> bytes:
    return hashlib.blake2b(str(number).encode(), digest_size=16).digest()


def name(number: int) -> str:
    """As it is written in Redis, so that no other program's keys are touched."""
    return f"toolkit:1:{key(number).hex()}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture
def clean(server: RedisServer) -> RedisServer:
    server.command("flushall")
    return server


def run(url: str, work: Callable[[RedisCache], Awaitable[None]]) -> RedisCache:
    """Do something with a cache of that address; the cache, closed."""

    async def whole() -> RedisCache:
        cache = RedisCache(url, PATIENT_S)
        try:
            await work(cache)
        finally:
            await cache.close()
        return cache

    return asyncio.run(whole())


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The module's clocks, to be set; and no answer is lost because this machine is busy: no test here is about that limit."""
    monkeypatch.setattr(module, "PUT_TIMEOUT_S", PATIENT_S)
    clocks = SimpleNamespace(monotonic=time.monotonic, time=lambda: NOW)
    monkeypatch.setattr(module, "time", clocks)
    return clocks


# --- a Redis that is well ----------------------------------------------------------------------------------


@needs_redis
def test_what_is_too_large_or_too_much_at_once_is_not_put(clean: RedisServer) -> None:
    async def work(cache: RedisCache) -> None:
        assert not cache.put(key(0), b"x" * (2 * 2**20 + 1), ends_at=math.inf)
        # nothing has run in between: 1,024 are under way or wait, the limit
        puts = [cache.put(key(number), b"x", ends_at=math.inf) for number in range(1030)]
        assert puts == [True] * 1024 + [False] * 6
        await cache.settle()
        # 8 of 2 MiB are 16 MiB less their heads: a ninth is more than may be
        puts = [cache.put(key(n), b"x" * (2 * 2**20 - 24), ends_at=math.inf) for n in range(9)]
        assert puts == [True] * 8 + [False]
        await cache.settle()
        assert cache.put(key(9), b"x", ends_at=math.inf)

    assert run(clean.url, work).lost == 1 + 6 + 1
    assert len(clean.command("keys", "*").split()) == 1024


# --- a Redis that is not -------------------------------------------------------------------------------------


@needs_redis
def test_a_wrong_password_is_said_without_saying_it(tmp_path: Path, caplog: object) -> None:
    with redis_server(tmp_path, "--requirepass", "right") as server:
        url = server.url.replace("redis://", f"redis://:{SECRET}@")

        async def work(cache: RedisCache) -> None:
            assert await cache.get(key(1)) is None
            assert cache.problem == "it wants another password"
            with pytest.raises(ToolkitError) as caught:
                await cache.purge()
            told = f"{caught.value.message} {caught.value.hint} {cache!r} {vars(caught.value)}"
            assert SECRET not in told
            assert caught.value.__context__ is None

        run(url, work)
    assert SECRET not in caplog.text


async def _endless(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"$999999999\r\n" + b"x" * 65536)
        await writer.drain()


@pytest.mark.parametrize(
    "answer",
    [
        http("no Redis"),
        b"\x00\xff" * 1000,
        b"*1000000000\r\n",
        b"$-7\r\n",
        b"$99999999999999999999\r\n",
        b":1\r\n:2\r\n:3\r\n",
        b"+OK\r\n+OK\r\n+OK\r\n",
        b"*1\r\n" * 5000,
        _endless,
    ],
    ids=["http", "noise", "array", "length", "huge", "numbers", "words", "deep", "endless"],
)
async def test_what_is_no_redis_is_a_miss(answer: object) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(1)
            if callable(answer):
                await answer(writer)
            writer.write(answer)
            await writer.drain()
            await reader.read()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    cache = RedisCache(f"redis://127.0.0.1:{port}/0", 0.05)
    for _ in range(8):
        assert await cache.get(key(1)) is None
    cache.put(key(1), b"x", ends_at=math.inf)
    await cache.close()
    server.close()


@pytest.mark.parametrize("url", [f"http://:{SECRET}@host", f"redis://:{SECRET}@host:port/0", ""])
def test_an_address_that_is_none_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        RedisCache(url)
    assert SECRET not in caught.value.message + caught.value.hint
    assert caught.value.__suppress_context__


# --- one call for all proxies ------------------------------------------------------------------------------


def sharing(
    url: str, work: Callable[[RedisCache, RedisCache], Awaitable[None]], **settings: object
) -> None:
    """Do something with two proxies' caches."""

    async def whole() -> None:
        one, two = (
            RedisCache(url, **{"timeout_s": PATIENT_S, "wait_s": PATIENT_S} | settings)
            for _ in range(2)
        )
        try:
            await work(one, two)
        finally:
            await one.close()
            await two.close()

    asyncio.run(whole())


async def leading(cache: RedisCache, number: int = 1) -> Lease:
    answer, waited, lease = await cache.search(key(number))
    assert (answer, waited) == (None, False)
    assert lease is not None
    return lease


async def waiting(
    cache: RedisCache, number: int = 1
) -> "asyncio.Task[tuple[tuple[bytes, float] | None, bool, Lease | None]]":
    """One who waits for another proxy by now."""
    task = asyncio.create_task(cache.search(key(number)))
    await until(lambda: key(number) in cache._polled)
    return task


@needs_redis
def test_a_lease_that_became_another_s_is_left_to_it(
    clean: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process stood still for too long, and was taken for dead."""
    monkeypatch.setattr(module, "RENEW_S", 0.02)

    async def work(one: RedisCache, _: RedisCache) -> None:
        lost = asyncio.Event()
        lease = await leading(one)
        name = f"toolkit:lease:1:{key(1).hex()}"
        clean.command("set", name, "another's", "px", "60000")
        lease.unwanted = lost.set
        await lost.wait()
        lease.end(is_stored=False)
        assert one.put(key(1), b"x", ends_at=math.inf)
        await one.settle()
        assert clean.command("get", name) == "another's"
        # its last client may leave still
        lost.clear()
        lease.unwanted = lost.set
        lease.check()
        await lost.wait()

    sharing(clean.url, work)


@needs_redis
def test_a_redis_that_is_full_keeps_nobody_waiting_and_gives_what_it_has(
    clean: RedisServer,
) -> None:
    async def work(one: RedisCache, two: RedisCache) -> None:
        one.put(key(9), b"x", ends_at=math.inf)
        await one.settle()
        lease = await leading(one)
        other = await waiting(two)
        clean.command("config", "set", "maxmemory", "1")
        try:
            one.put(key(1), b"x", ends_at=math.inf)
            lease.end(is_stored=True)
            assert (await other)[2] is None
            await one.settle()
            assert one.lost == 1
            assert await one.get(key(9)) == (b"x", math.inf)
            assert not one.is_left_alone
        finally:
            clean.command("config", "set", "maxmemory", "0")

    sharing(clean.url, work)


@needs_redis
def test_a_user_of_redis_needs_no_more_than_its_own_keys_and_seven_commands(
    clean: RedisServer,
) -> None:
    """As README says."""
    rights = "~toolkit:* +get +set +mget +del +unlink +scan +pexpire"
    clean.command("acl", "setuser", "proxies", "reset", "on", ">secret", *rights.split())

    async def work(one: RedisCache, two: RedisCache) -> None:
        one.keep_fingerprints({"tiny": "a"})
        await asyncio.gather(*one._tasks)
        assert await two.fingerprints() == {"tiny": "a"}
        lease = await leading(one)
        lease.unwanted = lambda: None
        other = await waiting(two)
        await one.renew([lease])
        assert one.put(key(1), b"x", ends_at=math.inf)
        lease.end(is_stored=True)
        assert (await other)[0] is not None
        (await leading(one, 2)).release()
        await asyncio.gather(*(cache.settle() for cache in (one, two)))
        assert (one.problem, two.problem) == (None, None)
        assert await one.purge() == 1

    sharing(clean.url.replace("redis://", "redis://proxies:secret@"), work)
