"""How long a lease lives: as long as its call and somebody who waits for it, and no longer than its holder. Real Redis, whole proxies."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chat import until
from support.proxied import proxied, whole
from support.proxy_calls import run
from support.redis_server import RedisServer, needs_redis, redis_server
from support.scripted_upstream import ScriptedUpstream, hanging
from support.two_proxies import HELLO, PATIENT, gated, led, two, waits

from toolkit.proxy.calls import far
from toolkit.proxy.stored import leases, redis_cache

pytestmark = needs_redis


@pytest.fixture
def clean(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as running:
        yield running


def test_a_call_goes_on_for_others_only_while_they_wait(
    clean: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(far, "RENEW_S", 0.05)
    monkeypatch.setattr(redis_cache, "LEASE_MS", 500)

    async def test() -> None:
        async with ScriptedUpstream(hanging()) as engine, two(clean.url, engine) as (one, other):
            leader, follower = await one.client(), await other.client()
            asked = [asyncio.create_task(leader.ask())]
            line = await engine.asked()
            asked.append(asyncio.create_task(follower.ask()))
            await waits(other)
            leader.close()
            await until(lambda: one.total("left") == 1)
            assert not line.gone.is_set()
            follower.close()
            await line.gone.wait()
            await until(lambda: other.total("left") == 1)
            for each in asked:
                each.cancel()

    run(test())


@pytest.mark.slow
def test_a_dead_leader_is_followed_by_another(
    clean: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing renews its lease: in a second another proxy asks, and a third waits for that one."""
    monkeypatch.setattr(redis_cache, "LEASE_MS", 1000)

    async def test() -> None:
        gate = asyncio.Event()
        async with ScriptedUpstream(whole()) as engine, two(clean.url, engine) as proxies:
            key = await _key_of(engine, clean)
            engine.script = gated(gate, whole())
            dead = redis_cache.RedisCache(clean.url, 10.0)
            assert (await dead.look(key, 0.0)).lease == dead.token
            asked = [asyncio.create_task(proxy.ask()) for proxy in proxies]
            await asyncio.gather(*map(waits, proxies))
            await engine.asked()
            follower = next(p for p in proxies if not p.proxy._calls)
            await waits(follower)
            gate.set()
            assert [(await each).text for each in asked] == [HELLO] * 2
            assert len(engine.lines) == 1
            await dead.close()

    run(test())


async def _key_of(engine: ScriptedUpstream, server: RedisServer) -> bytes:
    """What an answer to ASKED is stored by; nothing of it is left."""
    async with proxied(engine, PATIENT, environ={"CACHE": server.url}) as proxy:
        await proxy.ask()
    (name,) = server.command("keys", f"{redis_cache.PREFIX}:*").split()
    server.command("flushall")
    engine.lines.clear()
    return bytes.fromhex(name.rpartition(":")[2])


@pytest.mark.slow
def test_a_lease_lives_as_long_as_its_call_and_somebody_waits(
    clean: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For twice the time that it has by itself, and with no client left at the proxy that asked."""
    monkeypatch.setattr(redis_cache, "LEASE_MS", 700)
    monkeypatch.setattr(far, "RENEW_S", 0.1)

    async def test() -> None:
        async with led(clean.url) as pair:
            second = await pair.followed()
            pair.one.close_clients()
            pair.first.cancel()
            await asyncio.sleep(1.5)
            pair.gate.set()
            assert (await second).text == HELLO
            assert len(pair.engine.lines) == 1

    run(test())


def test_a_proxy_whose_lease_is_another_s_answers_its_own_clients(
    clean: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood still for too long, and was taken for dead."""
    monkeypatch.setattr(far, "RENEW_S", 0.02)

    async def test() -> None:
        async with led(clean.url) as pair:
            (lease,) = clean.command("keys", f"{redis_cache.LEASES}:*").split()
            clean.command("set", lease, "another's", "px", "60000")
            await until(lambda: not pair.one.proxy._answering._far._leads)
            pair.gate.set()
            assert (await pair.first).text == HELLO
            await pair.one.proxy.kit.layers.redis.settle()
            assert clean.command("get", lease) == "another's"
            assert (await pair.other.ask()).is_hit
            assert len(pair.engine.lines) == 1

    run(test())


def test_the_words_left_in_redis_are_what_the_other_side_reads() -> None:
    """Two releases of the toolkit on one Redis would have to agree."""
    assert leases.GIVEN_UP == b"-"
    assert redis_cache.LEASES == "toolkit:lease:1"
