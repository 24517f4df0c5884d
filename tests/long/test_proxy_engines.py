"""Engines that stand still, die or are drained behind a running `toolkit proxy`: nobody who asks notices.

The upstreams are a process of their own, and tell the truth: each answer is judged. A frozen one takes requests and answers /health and
/metrics, but makes no token, as a vLLM does whose engine process hangs. It prints how long it took to leave one.
"""

import asyncio
import itertools
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from support.crowding import Fields, House, house, until, upstreams
from support.judging import verdict
from support.truthful import MODEL, Ways, change, telling_the_truth, told

ROUNDS = {"short": 1, "full": 10}[os.environ.get("TOOLKIT_LONG", "short")]
LEFT_S = 10.0
"""The bar: so long after it stood still it is left."""
TRIES = 2
"""It is held if it is held once: where the machine stands still, too, time passes for nobody's fault."""

AT_ONCE = (Ways(name="a", piece=100), Ways(name="b", piece=100))
"""An answer that had begun can't be ended by another engine. These say all at once, so that none has when they stand still or die."""

pytestmark = pytest.mark.timeout(120 + 60 * ROUNDS)

_NUMBERS = itertools.count()


def new(*, stream: bool = False) -> Fields:
    messages = [{"role": "user", "content": f"Tell number {next(_NUMBERS)}"}]
    return {"model": MODEL, "messages": messages, "max_tokens": 8, "stream": stream}


@dataclass
class Crowd:
    """Clients that ask on and on; every answer has to be whole and true."""

    proxy: House
    is_over: bool = False
    makers: Counter[str] = field(default_factory=Counter)
    """Whose answers."""

    async def ask(self, number: int, model: str = MODEL) -> str:
        body = new(stream=number % 2 == 0)
        answer, _ = await self.proxy.ask(body)
        found = verdict(body | {"model": model}, answer)
        assert found.kind == "whole", (found, answer)
        self.makers[found.server] += 1
        return found.server

    async def go_on(self, number: int) -> None:
        while not self.is_over:
            await self.ask(number)
            await asyncio.sleep(0.02)

    async def during(self, act: Callable[[], Awaitable[None]], clients: int = 6) -> None:
        """Have them ask while something is done."""
        self.is_over = False
        async with asyncio.TaskGroup() as group:
            for number in range(clients):
                group.create_task(self.go_on(number))
            await act()
            self.is_over = True


async def asked(url: str) -> int:
    return (await told(url))["asked"]


async def until_asked(url: str) -> None:
    """Until one more request came there."""
    before = await asked(url)

    async def came() -> bool:
        return await asked(url) > before

    await until(came)


async def is_running(url: str) -> bool:
    return (await told(url))["running"] > 0


async def is_idle(url: str) -> bool:
    return not await is_running(url)


# --- one that stands still ---------------------------------------------------------------------------------


def test_an_engine_that_makes_no_tokens_is_left_and_comes_back(tmp_path: Path) -> None:
    with (
        telling_the_truth(*AT_ONCE) as urls,
        house(tmp_path / "house", upstreams(*urls)) as proxy,
    ):
        for _ in range(ROUNDS):
            asyncio.run(_freeze_and_thaw(Crowd(proxy), urls))
    told_of = [line for line in proxy.lines() if line.get("upstream") == "u0"]
    events = [line["event"] for line in told_of if "event" in line]
    assert ROUNDS <= events.count("upstream_left") <= ROUNDS * TRIES
    assert events.count("upstream_back") == events.count("upstream_left")
    assert all(line["status"] == 200 for line in proxy.lines() if "request_id" in line)


async def _freeze_and_thaw(crowd: Crowd, urls: list[str]) -> None:
    proxy = crowd.proxy

    async def freeze() -> None:
        await until_asked(urls[0])
        for _ in range(TRIES):
            took_s = await _left_after(proxy, urls[0])
            assert (await told(urls[0]))["running"] == 0, "what had no byte is taken away"
            print(f"an engine that stands still was left after {took_s:.1f} s")
            await change(urls[0], frozen=False)
            await proxy.until(lambda state: state["upstreams"][0]["state"] == "up")
            await until_asked(urls[0])
            await until(partial(is_told_back, proxy))
            if took_s <= LEFT_S:
                return
        pytest.fail(f"it was left too late, {TRIES} times")

    # whoever asks meanwhile gets the truth: what began at the one that stands still without a byte, from the other
    await crowd.during(freeze)
    assert crowd.makers["a"] > 0
    assert crowd.makers["b"] > 0


async def is_told_back(proxy: House) -> bool:
    events = Counter(line.get("event") for line in proxy.lines())
    return events["upstream_back"] == events["upstream_left"]


async def _left_after(proxy: House, url: str) -> float:
    began_s = time.monotonic()
    await change(url, frozen=True)
    await proxy.until(lambda state: state["upstreams"][0]["reason"] == "stuck")
    took_s = time.monotonic() - began_s
    assert (await proxy.upstreams())["u1"]["state"] == "up"
    # it is given up in the tick after
    await until(partial(is_idle, url))
    return took_s


# --- one that dies -----------------------------------------------------------------------------------------


def test_while_an_engine_is_dead_the_other_answers_everybody(tmp_path: Path) -> None:
    with (
        telling_the_truth(*AT_ONCE) as urls,
        house(tmp_path / "house", upstreams(*urls)) as proxy,
    ):
        crowd = Crowd(proxy)

        async def die() -> None:
            await until_asked(urls[0])
            await change(urls[0], frozen=True)
            # what was there when it froze counts too: while that waits, whoever comes is sent to the idle one
            await until(partial(is_running, urls[0]))
            await change(urls[0], down_s=1.5, frozen=False)
            await proxy.until(lambda state: state["upstreams"][0]["reason"] == "unreachable")
            await until_asked(urls[1])
            await proxy.until(lambda state: state["upstreams"][0]["state"] == "up")
            await until_asked(urls[0])

        asyncio.run(crowd.during(die))
        assert len(asyncio.run(told(urls[0]))["lives"]) == 2
    assert crowd.makers["b"] > 0


# --- one that is drained -----------------------------------------------------------------------------------


def test_an_engine_that_is_drained_ends_what_it_began_and_gets_no_more(tmp_path: Path) -> None:
    with (
        telling_the_truth(Ways(name="a", frozen=True), Ways(name="b")) as urls,
        house(tmp_path / "house", upstreams(*urls, more=["probes = false"] * 2)) as proxy,
    ):
        asyncio.run(_drain(Crowd(proxy), urls))


async def _drain(crowd: Crowd, urls: list[str]) -> None:
    proxy = crowd.proxy
    # one request is under way at each; the other's ends
    held = asyncio.create_task(crowd.ask(0))
    await until(partial(is_running, urls[0]))
    await proxy.admin("/drain", {"upstream": "u0"})
    for number in range(20):
        assert await crowd.ask(number) == "b"
    states = await proxy.upstreams()
    assert (states["u0"]["draining"], states["u0"]["in_flight"]) == (True, 1)
    await change(urls[0], frozen=False)
    assert await held == "a", "what was under way ended there"
    assert await asked(urls[0]) == 1
    await proxy.admin("/undrain", {"upstream": "u0"})
    async with asyncio.timeout(60):
        while await crowd.ask(0) != "a":
            pass


def test_a_proxy_that_is_told_to_end_answers_what_is_under_way(tmp_path: Path) -> None:
    with telling_the_truth(Ways(name="a", frozen=True)) as urls:
        text = upstreams(*urls, more=["probes = false"])
        with house(tmp_path / "house", text) as proxy:
            asyncio.run(_end_with_one_under_way(Crowd(proxy), urls[0]))
    (line,) = (line for line in proxy.lines() if "request_id" in line)
    assert (line["status"], line.get("left")) == (200, None)


async def _end_with_one_under_way(crowd: Crowd, url: str) -> None:
    held = asyncio.create_task(crowd.ask(1))
    await until(partial(is_running, url))
    ending = asyncio.create_task(asyncio.to_thread(crowd.proxy.verb.end))

    async def is_ending() -> bool:
        return any("Ending" in line for line in crowd.proxy.verb.said)

    await until(is_ending)
    await change(url, frozen=False)
    assert await held == "a"
    assert await ending == 0


# --- the fallback ------------------------------------------------------------------------------------------


def test_when_all_are_gone_the_fallback_answers_with_its_own_key_and_model(tmp_path: Path) -> None:
    ways = (Ways(name="a"), Ways(name="b"), Ways(name="c", model="big"))
    with telling_the_truth(*ways) as urls:
        last = 'fallback = true\nmodel = "big"\nkey_env = "BIG_KEY"'
        text = upstreams(*urls, more=["", "", last])
        with house(tmp_path / "house", text, BIG_KEY="sk-of-the-fallback") as proxy:
            asyncio.run(_fall_back(Crowd(proxy), urls))
            seen = [asyncio.run(told(url)) for url in urls]
    # its key goes to nobody else, and the clients' model not to it
    assert [list(each["keys"]) for each in seen] == [
        ["none"],
        ["none"],
        ["Bearer sk-of-the-fallback"],
    ]
    assert [list(each["models"]) for each in seen] == [[MODEL], [MODEL], ["big"]]
    lines = [line for line in proxy.lines() if "request_id" in line]
    assert {line["upstream"] for line in lines if line.get("fallback")} == {"u2"}
    assert not [line for line in lines if line.get("fallback") and line.get("stored")]


async def _fall_back(crowd: Crowd, urls: list[str]) -> None:
    assert {await crowd.ask(number) for number in range(8)} == {"a", "b"}
    assert await asked(urls[2]) == 0, "as long as another can be asked it is not"
    for url in urls[:2]:
        await change(url, down_s=3.0)
    assert {await crowd.ask(number, "big") for number in range(8)} == {"c"}
    await crowd.proxy.until(lambda state: {one["state"] for one in state["upstreams"]} == {"up"})
    before = await asked(urls[2])
    assert {await crowd.ask(number) for number in range(8)} == {"a", "b"}
    assert await asked(urls[2]) == before
