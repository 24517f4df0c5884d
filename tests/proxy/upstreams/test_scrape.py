"""The engines' pages at the moment when somebody asks, however many ask."""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from support.scripted_upstream import Line, Script, ScriptedUpstream, hanging, plain, refusing

from toolkit.proxy.settings import UpstreamSetting
from toolkit.proxy.upstreams import scrape
from toolkit.proxy.upstreams.scrape import Scrape
from toolkit.proxy.upstreams.upstream import Upstream
from toolkit.proxy.upstreams.watch import Seen


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "PAUSE_S", 0.0)


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def page(text: bytes, content_type: str = "text/plain; version=0.0.4") -> Script:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {len(text)}\r\n\r\n"

    async def play(line: Line) -> None:
        line.send(head.encode() + text)

    return play


@asynccontextmanager
async def scraping(
    *scripts: Script, last: bytes | None = None, last_s: float = 0.0, probes: bool = True
) -> AsyncIterator[tuple[Scrape, list[ScriptedUpstream]]]:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(ScriptedUpstream(each)) for each in scripts]
        upstreams = [
            await stack.enter_async_context(
                Upstream(UpstreamSetting(name=str(place), url=server.url, probes=probes))
            )
            for place, server in enumerate(servers)
        ]
        seen = None if last is None else Seen(body=last, content_type="text/plain", at_s=last_s)
        yield Scrape(upstreams, lambda _: seen, look_s=1.0), servers


def test_each_asking_tells_what_holds_now() -> None:
    async def work() -> None:
        async with scraping(page(b"up 1\n")) as (asked, [server]):
            assert await asked.page() == "up 1\n"
            server.script = page(b"up 2\n")
            assert await asked.page() == "up 2\n"

    run(work())


def test_several_engines_are_asked_at_once_and_stand_on_one_page() -> None:
    async def work() -> None:
        both = asyncio.Barrier(2)

        def waiting(text: bytes) -> Script:
            async def script(line: Line) -> None:
                await both.wait()  # neither answers before the other was asked
                await page(text)(line)

            return script

        async with scraping(waiting(b"up 1\n"), waiting(b"up 2\n")) as (asked, _):
            assert await asked.page() == 'up{WorkerId="0"} 1\nup{WorkerId="1"} 2\n'

    run(work())


@pytest.mark.parametrize(
    "script",
    [
        refusing(),
        hanging(),
        plain("404 Not Found", b"{}"),
        page(b"<html>", "text/html"),
        page(b"up 99\n" * 100),
    ],
)
def test_an_engine_that_tells_nothing_has_its_last_word_for_two_looks(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "LIMIT_S", 0.1)
    monkeypatch.setattr(scrape, "MOST_BYTES", 500)

    async def work() -> None:
        now = time.monotonic()
        async with scraping(script, last=b"up 0\n", last_s=now) as (asked, _):
            assert await asked.page() == "up 0\n"
            assert 0 < (asked.age_s("0") or 0.0) < 60
        # older than two looks and the time that one may take
        async with scraping(script, last=b"up 0\n", last_s=now - 3.01) as (asked, _):
            assert await asked.page() == ""
            assert (asked.age_s("0") or 0.0) >= 3.01
        async with scraping(script) as (asked, _):
            assert await asked.page() == ""
            assert asked.age_s("0") is None

    run(work())


def test_an_upstream_that_is_not_to_be_looked_at_is_not_asked() -> None:
    async def work() -> None:
        async with scraping(page(b"up 1\n"), probes=False) as (asked, [server]):
            assert await asked.page() == ""
            assert server.lines == []

    run(work())


def test_who_asks_meanwhile_shares_the_next_answer_and_never_an_older_one() -> None:
    async def work() -> None:
        gate, count = asyncio.Event(), 0
        was_asked = asyncio.Event()

        async def script(line: Line) -> None:
            nonlocal count
            count += 1
            mine = count  # what holds when it is asked
            was_asked.set()
            await gate.wait()
            await page(b"up %d\n" % mine)(line)

        async with scraping(script) as (asked, _):
            first = asyncio.create_task(asked.page())
            await was_asked.wait()
            others = [asyncio.create_task(asked.page()) for _ in range(50)]
            gate.set()
            assert await first == "up 1\n"
            assert set(await asyncio.gather(*others)) == {"up 2\n"}
            assert count == 2

    run(work())


def test_one_who_leaves_takes_nobodys_answer_away() -> None:
    async def work() -> None:
        gate, was_asked = asyncio.Event(), asyncio.Event()

        async def script(line: Line) -> None:
            was_asked.set()
            await gate.wait()
            await page(b"up 1\n")(line)

        async with scraping(script) as (asked, _):
            leaver, stayer = (asyncio.create_task(asked.page()) for _ in range(2))
            await was_asked.wait()
            leaver.cancel()
            await asyncio.wait([leaver])
            gate.set()
            assert await stayer == "up 1\n"
            assert await asked.page() == "up 1\n"

    run(work())


def test_whoever_hammers_the_page_the_engines_have_their_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scrape, "PAUSE_S", 100.0)

    async def work() -> None:
        slept: list[float] = []

        async def sleep(span_s: float) -> None:
            slept.append(span_s)

        monkeypatch.setattr(asyncio, "sleep", sleep)
        async with scraping(page(b"up 1\n")) as (asked, _):
            asked._clock = iter([5.0, 7.0, 7.0, 7.0, 8.0, 9.0, 9.0, 9.0]).__next__
            await asked.page()
            await asked.page()
        # it began at 7.0; at 8.0 there are 99 of 100 s left
        assert slept[-1] == 99.0

    run(work())
