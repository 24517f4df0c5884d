"""Two running `toolkit proxy` on one redis-server that is killed with SIGKILL and brought back under load, again and again.

The engine tells the truth, so that each answer is judged; it counts what it was asked. Each request is made at both proxies at once. While
Redis is there, that is one call upstream each time, exactly; while it is not, at most two, and every answer comes all the same.
"""

import asyncio
import itertools
import os
import signal
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.crowding import Fields, House, house, until, upstreams
from support.judging import verdict
from support.proxied import Client
from support.proxy_verb import proxying
from support.redis_server import RedisServer, needs_redis, redis_server
from support.truthful import MODEL, Ways, change, telling_the_truth, told

ROUNDS = {"short": 1, "full": 20}[os.environ.get("TOOLKIT_LONG", "short")]
PAIRS_AT_ONCE = 12
PHASE_S = 1.5
CACHE = '[cache]\nredis_env = "CACHE"\nredis_timeout = "2s"\n'
"""Where the machine stands still for longer than Redis' own limit, a pair would be two calls, and nobody's fault."""

pytestmark = [needs_redis, pytest.mark.timeout(120 + 30 * ROUNDS)]

_NUMBERS = itertools.count()


def new() -> Fields:
    """A request that nobody made before; every other one is streamed."""
    number = next(_NUMBERS)
    messages = [{"role": "user", "content": f"Tell number {number}"}]
    return {"model": MODEL, "messages": messages, "max_tokens": 8, "stream": number % 2 == 0}


@dataclass
class Pairs:
    """Clients that ask both proxies for the same at once, on and on."""

    proxies: tuple[House, House]
    asked: int = 0
    """Pairs."""
    kinds: Counter[str] = field(default_factory=Counter)
    wrong: list[object] = field(default_factory=list)

    async def ask(self) -> None:
        body = new()
        self.asked += 1
        for answer, _ in await asyncio.gather(*(proxy.ask(body) for proxy in self.proxies)):
            found = verdict(body, answer)
            self.kinds[found.kind] += 1
            if found.kind != "whole":
                self.wrong.append((found, answer))

    async def go_on(self, seconds: float) -> None:
        ends_s = time.monotonic() + seconds

        async def one() -> None:
            while time.monotonic() < ends_s:
                await self.ask()

        await asyncio.gather(*(one() for _ in range(PAIRS_AT_ONCE)))


async def calls(url: str) -> int:
    return int((await told(url))["asked"])


async def until_asked(url: str, count: int) -> None:
    async def holds() -> bool:
        return await calls(url) >= count

    await until(holds)


async def is_used(proxy: House) -> bool:
    return b"\ntoolkit_proxy_redis_breaker_open 0.0" in await proxy.admin("/metrics")


def test_a_redis_killed_under_load_costs_no_answer_and_is_used_again(tmp_path: Path) -> None:
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server(tmp_path))
        (url,) = stack.enter_context(telling_the_truth(Ways(step_s=0.02)))
        one, other = (
            stack.enter_context(house(tmp_path / name, upstreams(url) + CACHE, CACHE=redis.url))
            for name in ("one", "other")
        )
        asyncio.run(_kill_and_bring_back(Pairs((one, other)), redis, url))


async def _kill_and_bring_back(pairs: Pairs, redis: RedisServer, url: str) -> None:
    for _ in range(ROUNDS):
        before = await calls(url), pairs.asked
        await pairs.go_on(PHASE_S)
        assert await calls(url) - before[0] == pairs.asked - before[1], "one call for each pair"

        before = await calls(url), pairs.asked
        loading = asyncio.create_task(pairs.go_on(2 * PHASE_S))
        await asyncio.sleep(PHASE_S / 2)
        await asyncio.to_thread(redis.kill)
        await loading
        while any([await is_used(proxy) for proxy in pairs.proxies]):
            await pairs.ask()
        asked, took = pairs.asked - before[1], await calls(url) - before[0]
        assert asked < took <= 2 * asked, "some pairs are two calls without Redis, none is three"

        await asyncio.to_thread(redis.start)
        before = await calls(url), pairs.asked
        while not all([await is_used(proxy) for proxy in pairs.proxies]):
            await pairs.ask()
        assert await calls(url) - before[0] <= 2 * (pairs.asked - before[1])
    assert not pairs.wrong, pairs.wrong[:3]
    assert pairs.kinds == {"whole": 2 * pairs.asked}
    await _check_counters(pairs, await calls(url))


async def _check_counters(pairs: Pairs, upstream: int) -> None:
    """What both proxies counted together is what was asked, and what the engine was asked."""
    counted: Counter[tuple[str, ...]] = Counter()
    for proxy in pairs.proxies:
        counted += await proxy.counted("requests_total", "cache", "code")
    assert counted[("miss", "2xx")] == upstream
    assert sum(counted.values()) == 2 * pairs.asked
    assert {code for _, code in counted} == {"2xx"}
    coalesced = counted[("coalesced", "2xx")]
    print(
        f"{pairs.asked:,} pairs, {upstream:,} calls upstream, {coalesced:,} waited; {ROUNDS} kills"
    )


def test_a_proxy_killed_in_the_midst_of_its_call_is_followed_by_the_other(tmp_path: Path) -> None:
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server(tmp_path))
        (url,) = stack.enter_context(telling_the_truth(Ways(frozen=True)))
        text = upstreams(url, more=["probes = false"]) + CACHE
        other = stack.enter_context(house(tmp_path / "other", text, CACHE=redis.url))
        config = tmp_path / "proxy.toml"
        config.write_text(text)
        words = ("--config", config, "--no-cache-file")
        doomed = stack.enter_context(proxying(*words, cwd=tmp_path, CACHE=redis.url))
        asyncio.run(_kill_the_leader(House(doomed, tmp_path), other, url))


async def _kill_the_leader(doomed: House, other: House, url: str) -> None:
    body = new()
    client = Client(*await asyncio.open_connection("127.0.0.1", doomed.verb.port))
    leading = asyncio.create_task(client.ask(body))
    await until_asked(url, 1)
    following = [asyncio.create_task(other.ask(body)) for _ in range(3)]
    await asyncio.sleep(0.5)
    assert await calls(url) == 1, "they wait for the one that was asked first"
    doomed.verb.process.send_signal(signal.SIGKILL)
    began_s = time.monotonic()
    await until_asked(url, 2)
    print(f"taken over after {time.monotonic() - began_s:.1f} s")
    await change(url, frozen=False)
    for answer, _ in await asyncio.gather(*following):
        assert verdict(body, answer).kind == "whole"
    assert await calls(url) == 2, "one of them for all"
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await leading
    client.close()
