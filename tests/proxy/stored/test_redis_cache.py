"""The Redis layer against a real redis-server: killed, frozen, locked, crossed, and not a Redis at all."""

import asyncio
import hashlib
import math
import struct
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from support.raw_server import RawServer, http
from support.redis_server import RedisServer, needs_redis, redis_server

from toolkit.errors import ToolkitError
from toolkit.proxy.stored import redis_cache
from toolkit.proxy.stored.redis_cache import RedisCache

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


def run(url: str, work: Callable[[RedisCache], Awaitable[None]], **settings: object) -> RedisCache:
    """Do something with a cache of that address; the cache, closed."""

    async def whole() -> RedisCache:
        cache = RedisCache(url, **{"timeout_s": PATIENT_S} | settings)
        try:
            await work(cache)
        finally:
            await cache.close()
        return cache

    return asyncio.run(whole())


@pytest.fixture(autouse=True)
def _patient_puts(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is lost because this machine is busy: no test here is about their limit."""
    monkeypatch.setattr(redis_cache, "PUT_TIMEOUT_S", PATIENT_S)


# --- a Redis that is well ----------------------------------------------------------------------------------


@needs_redis
@pytest.mark.parametrize("value", [b"", b"answer", bytes(range(256)) * 4000])
def test_what_is_put_is_found_by_every_proxy(clean: RedisServer, value: bytes) -> None:
    async def work(cache: RedisCache) -> None:
        assert await cache.get(key(1), NOW) is None
        assert cache.put(key(1), value, ends_at=NOW + 60, now=NOW)
        await cache.settle()
        other = RedisCache(clean.url, PATIENT_S)
        assert await other.get(key(1), NOW) == (value, NOW + 60)
        assert await other.get(key(2), NOW) is None
        await other.close()

    counts = run(clean.url, work).counts()
    assert (counts.stored, counts.misses, counts.failures) == (1, 1, 0)


@needs_redis
def test_a_unix_socket_is_an_address_too(clean: RedisServer) -> None:
    async def work(cache: RedisCache) -> None:
        cache.put(key(1), b"answer", ends_at=None, now=NOW)
        await cache.settle()
        assert await cache.get(key(1), NOW) == (b"answer", math.inf)

    run(f"unix://{clean.socket}", work)


@needs_redis
def test_redis_forgets_it_when_it_ends_and_nothing_is_there_for_ever(clean: RedisServer) -> None:
    async def work(cache: RedisCache) -> None:
        cache.put(key(1), b"an hour", ends_at=NOW + 3600, now=NOW)
        cache.put(key(2), b"for ever", ends_at=None, now=NOW)
        assert not cache.put(key(3), b"has ended", ends_at=NOW, now=NOW)

    run(clean.url, work)
    assert sorted(clean.command("keys", "*").split()) == sorted([name(1), name(2)])
    # at most a minute can have passed since
    assert 3_540_000 < int(clean.command("pttl", name(1))) <= 3_600_000
    month_ms = 30 * 86_400_000
    assert month_ms - 60_000 < int(clean.command("pttl", name(2))) <= month_ms


@needs_redis
def test_what_has_ended_by_our_clock_is_not_found(clean: RedisServer) -> None:
    async def work(cache: RedisCache) -> None:
        cache.put(key(1), b"answer", ends_at=NOW + 60, now=NOW)
        await cache.settle()
        assert await cache.get(key(1), NOW + 59.9) is not None
        assert await cache.get(key(1), NOW + 60) is None

    run(clean.url, work)


@needs_redis
@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"short",
        # of another key; without an end that is a number
        struct.pack(">16sd", key(2), NOW + 60) + b"answer",
        struct.pack(">16sd", key(1), math.nan) + b"answer",
    ],
)
def test_what_is_not_this_key_s_answer_is_a_miss(clean: RedisServer, value: bytes) -> None:
    async def work(cache: RedisCache) -> None:
        await cache._client.set(name(1), value)
        assert await cache.get(key(1), NOW) is None

    run(clean.url, work)


@needs_redis
def test_another_type_under_our_name_is_a_miss(clean: RedisServer) -> None:
    clean.command("lpush", name(1), "x")

    async def work(cache: RedisCache) -> None:
        assert await cache.get(key(1), NOW) is None
        assert cache.problem == "it refuses the command"

    run(clean.url, work)


@needs_redis
def test_purging_takes_ours_and_leaves_others(clean: RedisServer) -> None:
    clean.command("set", "somebody:else", "1")

    async def work(cache: RedisCache) -> None:
        for number in range(1_200):
            while not cache.put(key(number), b"x", ends_at=None, now=NOW):
                await cache.settle()
        assert await cache.forget(key(7)) == 1
        assert await cache.get(key(7), NOW) is None
        assert await cache.purge() == 1_199

    run(clean.url, work)
    assert clean.command("keys", "*") == "somebody:else"


@needs_redis
def test_what_is_too_large_or_too_much_at_once_is_not_put(clean: RedisServer) -> None:
    async def work(cache: RedisCache) -> None:
        assert not cache.put(key(0), b"x" * (2 * 2**20 + 1), ends_at=None, now=NOW)
        # nothing has run in between: 1,024 are under way or wait, the limit
        puts = [cache.put(key(number), b"x", ends_at=None, now=NOW) for number in range(1030)]
        assert puts == [True] * 1024 + [False] * 6
        await cache.settle()
        # 8 of 2 MiB are 16 MiB less their heads: a ninth is more than may be
        puts = [cache.put(key(n), b"x" * (2 * 2**20 - 24), ends_at=None, now=NOW) for n in range(9)]
        assert puts == [True] * 8 + [False]
        await cache.settle()
        assert cache.put(key(9), b"x", ends_at=None, now=NOW)

    counts = run(clean.url, work).counts()
    assert (counts.lost, counts.stored) == (1 + 6 + 1, 1024 + 8 + 1)


@needs_redis
def test_more_look_ups_than_connections_take_turns(clean: RedisServer) -> None:
    async def work(cache: RedisCache) -> None:
        cache.put(key(1), b"x", ends_at=None, now=NOW)
        await cache.settle()
        found = await asyncio.gather(*(cache.get(key(1), NOW) for _ in range(200)))
        assert found == [(b"x", math.inf)] * 200
        assert (cache.counts().spared, cache.counts().failures) == (0, 0)

    run(clean.url, work)


def test_a_turn_that_does_not_come_in_time_is_a_miss_and_no_failure() -> None:
    async def work(cache: RedisCache) -> None:
        for _ in range(32):  # all places are taken
            await cache._turns.acquire()
        assert await asyncio.gather(*(cache.get(key(1), NOW) for _ in range(8))) == [None] * 8
        assert (cache.counts().spared, cache.counts().failures) == (8, 0)
        assert cache.counts().misses == 0

    run("redis://127.0.0.1:1/0", work, timeout_s=0.05)


@needs_redis
def test_nothing_is_awaited_in_a_way_that_may_lose_the_limit_s_cancellation(
    clean: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Python 3.11 `wait_for` does, when what it waits for ends in the same moment: the limit is then none."""

    def refuse(*_: object) -> None:
        raise AssertionError

    async def work(cache: RedisCache) -> None:
        monkeypatch.setattr(asyncio, "wait_for", refuse)
        cache.put(key(1), b"x", ends_at=None, now=NOW)
        await cache.settle()
        assert await cache.get(key(1), NOW) == (b"x", math.inf)
        assert cache.counts().failures == 0

    run(clean.url, work)


# --- a Redis that is not -------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@needs_redis
def test_a_frozen_redis_costs_each_look_up_its_limit_and_then_none(tmp_path: Path) -> None:
    clock = Clock()
    with redis_server(tmp_path) as server:

        async def work(cache: RedisCache) -> None:
            cache.put(key(1), b"x", ends_at=None, now=NOW)
            await cache.settle()
            assert await cache.get(key(1), NOW) is not None
            server.freeze()
            cache._timeout_s = 0.05
            # that they come back at all is the limit's doing
            assert [await cache.get(key(1), NOW) for _ in range(5)] == [None] * 5
            assert cache.problem == "it does not answer in time"
            assert (cache.counts().failures, cache.counts().spared) == (5, 0)
            assert [await cache.get(key(1), NOW) for _ in range(100)] == [None] * 100
            assert not cache.put(key(2), b"x", ends_at=None, now=NOW)
            assert (cache.counts().failures, cache.counts().spared) == (5, 100)
            clock.now += 1.1
            # one tries, the others are spared
            assert await asyncio.gather(*(cache.get(key(1), NOW) for _ in range(9))) == [None] * 9
            assert (cache.counts().failures, cache.counts().spared) == (6, 108)
            clock.now += 1.1  # not yet: the second time it is left alone for 2 s
            assert await cache.get(key(1), NOW) is None
            assert cache.counts().failures == 6
            server.thaw()
            cache._timeout_s = PATIENT_S
            clock.now += 1
            assert await once_found(cache, clock) == (b"x", math.inf)
            assert cache.problem is None

        run(server.url, work, clock=clock)


async def once_found(cache: RedisCache, clock: Clock) -> tuple[bytes, float] | None:
    """Look up until it is there, each time a minute later: the longest that a Redis is left alone is half of one."""
    for _ in range(200):
        found = await cache.get(key(1), NOW)
        if found is not None:
            return found
        clock.now += 60
        await asyncio.sleep(0.01)
    return None


@needs_redis
def test_many_that_are_late_together_are_one_failure(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:

        async def work(cache: RedisCache) -> None:
            cache.put(key(1), b"x", ends_at=None, now=NOW)
            await cache.settle()
            server.freeze()
            cache._timeout_s = 0.2
            looks = [asyncio.create_task(cache.get(key(1), NOW)) for _ in range(32)]
            assert await asyncio.gather(*looks) == [None] * 32
            assert (cache.counts().failures, cache.counts().breaks) == (32, 0)
            server.thaw()
            cache._timeout_s = PATIENT_S
            assert await cache.get(key(1), NOW) == (b"x", math.inf)

        run(server.url, work)


@needs_redis
@pytest.mark.slow
def test_no_answer_of_a_late_redis_is_taken_for_another_key_s(tmp_path: Path) -> None:
    """Look-ups are cut off at every moment of a server that freezes and goes on; what comes is right or nothing."""
    with redis_server(tmp_path) as server:

        async def work(cache: RedisCache) -> None:
            for number in range(64):
                while not cache.put(key(number), str(number).encode(), ends_at=None, now=NOW):
                    await cache.settle()
            await cache.settle()
            loop = asyncio.get_running_loop()
            found = 0
            for turn in range(30):
                loop.call_later(0.004, server.freeze)
                loop.call_later(0.012, server.thaw)
                limit_s = 0.002 * (turn % 10)
                cache._timeout_s = limit_s if turn < 29 else PATIENT_S
                cache._failed_in_a_row = 0
                for start in (0, 32):
                    looks = [cache.get(key(number), NOW) for number in range(start, start + 32)]
                    for number, told in enumerate(await asyncio.gather(*looks), start):
                        assert told in (None, (str(number).encode(), math.inf))
                        found += told is not None
                await asyncio.sleep(0.015)
            server.thaw()
            assert found > 0
            assert cache.counts().failures > 0

        run(server.url, work)


@needs_redis
def test_a_redis_killed_under_load_is_missed_until_it_is_back(tmp_path: Path) -> None:
    clock = Clock()
    with redis_server(tmp_path) as server:

        async def work(cache: RedisCache) -> None:
            for number in range(20):
                cache.put(key(number), b"x", ends_at=None, now=NOW)
            await cache.settle()
            looks = [asyncio.create_task(cache.get(key(n), NOW)) for n in range(20)]
            await asyncio.sleep(0)
            server.kill()
            assert set(await asyncio.gather(*looks)) <= {None, (b"x", math.inf)}
            while cache.counts().breaks == 0:
                assert await cache.get(key(1), NOW) is None
            assert cache.problem == "there is no connection to it"
            server.start()
            clock.now += 60
            assert await cache.get(key(1), NOW) is None  # it forgot, but it answers
            assert cache.problem is None
            assert cache.put(key(1), b"again", ends_at=None, now=NOW)
            await cache.settle()
            assert await cache.get(key(1), NOW) == (b"again", math.inf)

        run(server.url, work, clock=clock)


def test_where_nobody_listens_the_start_is_not_delayed_and_every_look_up_misses() -> None:
    async def work(cache: RedisCache) -> None:
        assert [await cache.get(key(1), NOW) for _ in range(10)] == [None] * 10
        assert cache.problem == "there is no connection to it"
        assert (cache.counts().failures, cache.counts().spared) == (5, 5)

    run("redis://127.0.0.1:1/0", work)


@needs_redis
def test_a_wrong_password_is_said_without_saying_it(tmp_path: Path, caplog: object) -> None:
    with redis_server(tmp_path, "--requirepass", "right") as server:
        url = server.url.replace("redis://", f"redis://:{SECRET}@")

        async def work(cache: RedisCache) -> None:
            assert await cache.get(key(1), NOW) is None
            assert cache.problem == "it wants another password"
            with pytest.raises(ToolkitError) as caught:
                await cache.purge()
            told = f"{caught.value.message} {caught.value.hint} {cache!r} {vars(caught.value)}"
            assert SECRET not in told
            assert caught.value.__suppress_context__

        run(url, work)
    assert SECRET not in caplog.text


@needs_redis
def test_the_right_password_is_used(tmp_path: Path) -> None:
    with redis_server(tmp_path, "--requirepass", "right") as server:

        async def work(cache: RedisCache) -> None:
            cache.put(key(1), b"x", ends_at=None, now=NOW)
            await cache.settle()
            assert await cache.get(key(1), NOW) == (b"x", math.inf)

        run(server.url.replace("redis://", "redis://:right@"), work)


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
def test_what_is_no_redis_is_a_miss(answer: object) -> None:
    async def whole() -> None:
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
            assert await cache.get(key(1), NOW) is None
        cache.put(key(1), b"x", ends_at=None, now=NOW)
        await cache.close()
        server.close()

    asyncio.run(whole())


@pytest.mark.parametrize("url", [f"http://:{SECRET}@host", f"redis://:{SECRET}@host:port/0", ""])
def test_an_address_that_is_none_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        RedisCache(url)
    assert SECRET not in caught.value.message + caught.value.hint
    assert caught.value.__suppress_context__


def test_without_the_package_the_way_to_install_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(ToolkitError) as caught:
        RedisCache("redis://127.0.0.1:1/0")
    assert "[redis]" in caught.value.hint


def test_the_prefix_tells_whose_keys_they_are() -> None:
    assert redis_cache.PREFIX.startswith("toolkit:")


def test_a_look_up_that_is_cancelled_leaves_room_for_others() -> None:
    async def whole() -> None:
        async with RawServer({}) as silent:  # an HTTP server waits for the end of the head
            clock = Clock()
            url = silent.url.replace("http://", "redis://")
            cache = RedisCache(url, PATIENT_S, clock=clock)
            looks = [asyncio.create_task(cache.get(key(1), NOW)) for _ in range(32)]
            await asyncio.sleep(0)
            late = asyncio.create_task(cache.get(key(1), NOW))
            await asyncio.sleep(0)
            assert cache._turns.locked()
            for look in (*looks, late):
                look.cancel()
            await asyncio.gather(*looks, late, return_exceptions=True)
            assert cache._turns._value == redis_cache.CONNECTIONS
            # left alone, then tried by one that is cancelled: the next one may try
            cache._failed_in_a_row = redis_cache.FAILURES
            trying = asyncio.create_task(cache.get(key(1), NOW))
            await asyncio.sleep(0)
            trying.cancel()
            await asyncio.gather(trying, return_exceptions=True)
            assert cache._may_try()
            await cache.close()

    asyncio.run(whole())
