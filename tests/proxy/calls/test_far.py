"""Two whole proxies on one real Redis: for equal misses that arrive at both, one call upstream; and nobody waits in vain."""

import asyncio
from collections.abc import Iterator

import pytest
from support.chat import until
from support.proxied import ASKED, Client, whole
from support.proxy_calls import gates, run
from support.redis_server import RedisServer, needs_redis, redis_server
from support.scripted_upstream import (
    Script,
    ScriptedUpstream,
    dying,
    hanging,
    plain,
    slow,
    streaming,
)
from support.two_proxies import HELLO, PATIENT, gated, led, two, waits

from toolkit.proxy.stored import redis_cache

STREAMED = ASKED | {"stream": True}

pytestmark = needs_redis


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture(autouse=True)
def _patient_puts(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is lost because this machine is busy."""
    monkeypatch.setattr(redis_cache, "PUT_TIMEOUT_S", 20.0)


@pytest.fixture
def clean(server: RedisServer) -> RedisServer:
    server.command("flushall")
    return server


# --- one call --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [ASKED, STREAMED], ids=["whole", "stream"])
def test_equal_misses_at_both_are_one_call(clean: RedisServer, body: dict[str, object]) -> None:
    async def test() -> None:
        gate = asyncio.Event()
        answer = streaming() if body.get("stream") else whole()
        async with (
            ScriptedUpstream(gated(gate, answer)) as engine,
            two(clean.url, engine) as proxies,
        ):
            asked = [asyncio.create_task(proxy.ask(body)) for proxy in proxies * 8]
            await engine.asked()
            follower = next(p for p in proxies if not p.proxy._calls)
            await waits(follower)
            gate.set()
            answers = await asyncio.gather(*asked)
            assert [answer.text for answer in answers] == [HELLO] * 16
            assert len(engine.lines) == 1
            # one led, seven joined it, eight waited for its answer; a later one finds it in memory
            assert sum(proxy.total("requests", cache="coalesced") for proxy in proxies) == 15
            assert sum(proxy.total("requests", cache="miss") for proxy in proxies) == 1
            later = await asyncio.gather(*(proxy.ask(body) for proxy in proxies))
            assert [answer.is_hit for answer in later] == [True, True]
            assert clean.command("keys", "toolkit:lease:*") == ""

    run(test())


def test_one_who_waited_says_so(clean: RedisServer) -> None:
    async def test() -> None:
        async with led(clean.url) as pair:
            second = await pair.followed()
            pair.gate.set()
            assert (await pair.first).cache == "toolkit; fwd=miss; fwd-status=200; stored"
            # an hour to live, less than what this takes
            assert (await second).cache in {
                f"toolkit; fwd=miss; fwd-status=200; ttl={left}; stored; collapsed"
                for left in range(3540, 3600)
            }
            assert pair.other.total("upstream_requests") == 0
            # its very bytes are known from now on, as a hit's
            client = await pair.other.client()
            for _ in range(3):
                assert (await client.ask()).is_hit
            assert pair.other.total("requests", cache="hit") == 3

    run(test())


def test_a_stream_and_a_whole_body_share_one_call(clean: RedisServer) -> None:
    async def test() -> None:
        async with led(clean.url) as pair:
            second = await pair.followed(STREAMED)
            pair.gate.set()
            assert [(await pair.first).text, (await second).text] == [HELLO] * 2
            assert (await second).body.endswith(b"data: [DONE]\n\n")
            assert len(pair.engine.lines) == 1

    run(test())


def test_teams_without_a_pool_share_neither_answers_nor_calls(clean: RedisServer) -> None:
    teams = PATIENT + (
        '[[team]]\nname = "red"\nkey_env = "RED"\n[[team]]\nname = "blue"\nkey_env = "BLUE"\n'
    )

    async def test() -> None:
        gate = asyncio.Event()
        async with (
            ScriptedUpstream(gated(gate, whole())) as engine,
            two(clean.url, engine, teams, RED="r" * 32, BLUE="b" * 32) as (one, other),
        ):
            first = asyncio.create_task(one.ask(key="r" * 32))
            second = asyncio.create_task(other.ask(key="b" * 32))
            await engine.asked(2)
            third = asyncio.create_task(other.ask(key="r" * 32))
            await waits(other)
            gate.set()
            assert [(await each).text for each in (first, second, third)] == [HELLO] * 3
            assert len(engine.lines) == 2

    run(test())


def test_another_prompt_waits_for_nobody(clean: RedisServer) -> None:
    async def test() -> None:
        async with led(clean.url, then=whole("Another")) as pair:
            assert (await pair.other.ask(ASKED | {"seed": 1})).text == "Another"
            pair.gate.set()
            await pair.first

    run(test())


def test_a_user_of_redis_needs_no_more_than_its_own_keys_and_nine_commands(
    clean: RedisServer,
) -> None:
    """As README says."""
    rights = "~toolkit:* +get +set +mget +del +unlink +scan +eval +pexpire +exists"
    clean.command("acl", "setuser", "proxies", "reset", "on", ">secret", *rights.split())
    url = clean.url.replace("redis://", "redis://proxies:secret@")

    async def test() -> None:
        gate = asyncio.Event()
        async with ScriptedUpstream(gated(gate, whole())) as engine, two(url, engine) as proxies:
            asked = [asyncio.create_task(proxy.ask()) for proxy in proxies]
            await engine.asked()
            await waits(next(p for p in proxies if not p.proxy._calls))
            gate.set()
            assert [(await each).text for each in asked] == [HELLO] * 2
            assert len(engine.lines) == 1
            caches = [each.proxy.kit.layers.redis for each in proxies]
            await asyncio.gather(*(cache.settle() for cache in caches))
            assert [cache.problem for cache in caches] == [None, None]
            assert await caches[0].purge() == 1

    run(test())


# --- a leader that brings nothing ------------------------------------------------------------------------------


def test_a_client_that_leaves_does_not_end_the_call_that_others_wait_for(
    clean: RedisServer,
) -> None:
    async def test() -> None:
        texts, steps = ["Hello", " there"], gates(2)
        async with (
            ScriptedUpstream(slow(texts, steps)) as engine,
            two(clean.url, engine) as (one, other),
        ):
            leader = await one.client()
            asked = asyncio.create_task(leader.ask(STREAMED))
            line = await engine.asked()
            second = asyncio.create_task(other.ask(STREAMED))
            await waits(other)
            steps[0].set()
            leader.close()
            asked.cancel()
            await until(lambda: one.total("left") == 1)
            steps[1].set()
            assert (await second).text == HELLO
            assert len(engine.lines) == 1
            assert not line.gone.is_set()

    run(test())


def test_a_call_that_nobody_waits_for_any_more_is_ended(clean: RedisServer) -> None:
    async def test() -> None:
        async with ScriptedUpstream(hanging()) as engine, two(clean.url, engine) as (one, other):
            for number in range(2):
                client = await one.client()
                asked = asyncio.create_task(client.ask())
                line = await engine.asked(number + 1)
                client.close()
                asked.cancel()
                await line.gone.wait()
            # and no lease of it keeps another proxy waiting
            engine.script = whole()
            assert (await other.ask()).text == HELLO

    run(test())


@pytest.mark.parametrize(
    "script",
    [
        plain("500 Internal Server Error"),
        plain("400 Bad Request"),
        plain("200 OK", b'{"no": "answer"}'),
        dying("Hel"),
    ],
    ids=["500", "400", "no-answer", "dying"],
)
def test_an_answer_that_is_not_stored_keeps_nobody_waiting(
    clean: RedisServer, script: Script
) -> None:
    async def test() -> None:
        async with led(clean.url, script, then=streaming(), body=STREAMED) as pair:
            second = await pair.followed(STREAMED)
            pair.gate.set()
            # at once: the bound is 30 s, a dead leader's lease 3 s
            async with asyncio.timeout(2.5):
                assert (await second).text == HELLO
            await pair.first
            assert len(pair.engine.lines) == 2
            assert pair.other.total("errors") == 0

    run(test())


def test_an_answer_that_grows_too_large_is_given_up_before_its_end(clean: RedisServer) -> None:
    async def test() -> None:
        steps = gates(2)
        settings = PATIENT + 'max_answer = "600B"\n'
        async with (
            ScriptedUpstream(streaming()) as engine,
            two(clean.url, engine, settings) as (one, other),
        ):
            engine.scripts = [slow(["x" * 600, "y"], steps)]
            first = asyncio.create_task(one.ask(STREAMED))
            await engine.asked()
            second = asyncio.create_task(other.ask(STREAMED))
            await waits(other)
            steps[0].set()
            assert (await second).text == HELLO
            steps[1].set()
            assert (await first).text == "x" * 600 + "y"

    run(test())


def test_a_leader_that_may_not_ask_keeps_nobody_waiting(clean: RedisServer) -> None:
    """Its proxy is full; the other one has room."""

    async def test() -> None:
        gate = asyncio.Event()
        full = PATIENT + "[admission]\nconcurrency = 1\nqueue = 1\n"
        async with (
            ScriptedUpstream(whole()) as engine,
            two(clean.url, engine, full) as (one, other),
        ):
            engine.scripts = [gated(gate, whole("busy"))]
            busy = asyncio.create_task(one.ask(ASKED | {"seed": 1}))
            await engine.asked()
            queued = asyncio.create_task(one.ask(ASKED | {"seed": 2}))
            await until(lambda: len(one.proxy._calls) == 2)
            assert (await one.ask()).status in (429, 503)
            assert (await other.ask()).text == HELLO
            gate.set()
            await asyncio.gather(busy, queued)

    run(test())


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "given-up"])
def test_many_different_misses_at_both_are_as_many_calls(
    clean: RedisServer, is_stored: bool
) -> None:
    """More at once than there are connections to Redis. Of those that can't be stored each has its own."""
    script = whole() if is_stored else plain("500 Internal Server Error")

    async def test() -> None:
        gate = asyncio.Event()
        async with (
            ScriptedUpstream(gated(gate, script)) as engine,
            two(clean.url, engine) as (one, other),
        ):
            bodies = [ASKED | {"seed": number} for number in range(80)]
            asked = [
                asyncio.create_task(each.ask(body)) for body in bodies for each in (one, other)
            ]
            await engine.asked(80)
            await until(
                lambda: sum(len(p.proxy._answering._far._waits) for p in (one, other)) == 80
            )
            gate.set()
            assert {(await each).status for each in asked} == {200 if is_stored else 500}
            assert len(engine.lines) == (80 if is_stored else 160)
            counts = [each.proxy.kit.layers.redis.counts() for each in (one, other)]
            assert [each.failures for each in counts] == [0, 0]

    run(test())


def test_who_waited_too_long_asks_himself(clean: RedisServer) -> None:
    async def test() -> None:
        settings = PATIENT + 'redis_wait = "200ms"\n[admission]\nwait = "150ms"\nconcurrency = 1\n'
        async with led(clean.url, whole("late"), then=whole(), settings=settings) as pair:
            # what it waited is not taken off its wait for a slot: it would be rejected
            second = await pair.other.ask()
            assert (second.status, second.text) == (200, HELLO)
            pair.gate.set()
            assert (await pair.first).text == "late"

    run(test())


def test_without_a_wait_everybody_asks_himself(clean: RedisServer) -> None:
    async def test() -> None:
        gate = asyncio.Event()
        async with (
            ScriptedUpstream(gated(gate, whole())) as engine,
            two(clean.url, engine, PATIENT + "redis_wait = 0\n") as proxies,
        ):
            asked = [asyncio.create_task(proxy.ask()) for proxy in proxies]
            await engine.asked(2)
            gate.set()
            assert [(await each).text for each in asked] == [HELLO] * 2
            assert (await proxies[0].ask()).is_hit

    run(test())


# --- the ends of those that wait -------------------------------------------------------------------------------


def test_a_client_that_leaves_while_it_waits_is_told_as_left(clean: RedisServer) -> None:
    async def test() -> None:
        async with led(clean.url) as pair:
            client: Client = await pair.other.client()
            second = asyncio.create_task(client.ask())
            third = await pair.followed()
            client.close()
            await until(lambda: pair.other.total("left") == 1)
            pair.gate.set()
            assert (await third).text == (await pair.first).text == HELLO
            second.cancel()
            assert len(pair.engine.lines) == 1

    run(test())


def test_who_comes_when_the_last_one_has_just_left_is_answered(clean: RedisServer) -> None:
    """In the very turn in which that one's search is being ended."""

    async def test() -> None:
        async with led(clean.url) as pair:
            (lease,) = clean.command("keys", "toolkit:lease:1:*[0-9a-f]").split()
            key = bytes.fromhex(lease.rpartition(":")[2])
            searches = pair.other.proxy._answering._far
            leaving = asyncio.create_task(searches.find(key, tenant="", model="tiny"))
            await waits(pair.other)
            leaving.cancel()
            coming = asyncio.create_task(searches.find(key, tenant="", model="tiny"))
            await asyncio.gather(leaving, return_exceptions=True)
            await waits(pair.other)
            pair.gate.set()
            assert (await coming).found is not None
            assert (await pair.first).text == HELLO

    run(test())


def test_a_proxy_that_ends_has_those_that_wait_ask_themselves(clean: RedisServer) -> None:
    async def test() -> None:
        async with led(clean.url, whole("late"), then=whole()) as pair:
            second = await pair.followed()
            await pair.other.proxy.stop()
            assert (await second).text == HELLO
            pair.gate.set()
            await pair.first

    run(test())
