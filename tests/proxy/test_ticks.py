"""What the proxy does outside of a client's own call goes on, or is told, after a fault."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.one_house import house
from support.proxied import ASKED, proxied, whole
from support.proxy_calls import run
from support.scripted_upstream import ScriptedUpstream, hanging

from toolkit.proxy.calls.calls import Calls
from toolkit.proxy.desk.answering import Answering
from toolkit.proxy.http.front import Front
from toolkit.proxy.upstreams.scrape import Scrape


class EmptyRedis:
    """One that has nothing, a moment later."""

    problem = None

    async def get(self, key: bytes, now: float) -> None:
        del key, now
        await asyncio.sleep(0)

    def put(self, *args: object, **more: object) -> bool:
        del args, more
        return False


LIMITS = '[admission]\nwhole = "200ms"\n'


def test_a_fault_in_one_tick_is_told_and_deadlines_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticked, faults = Calls.tick, [RuntimeError("one"), RuntimeError("two")]

    def tick(calls: Calls) -> None:
        if faults:
            raise faults.pop()
        ticked(calls)

    monkeypatch.setattr(Calls, "tick", tick)

    async def test() -> None:
        async with ScriptedUpstream(hanging()) as engine, proxied(engine, LIMITS) as proxy:
            assert (await proxy.ask(ASKED)).status == 504
            assert proxy.total("events", kind="fault") == 2

    run(test())


def test_a_fault_behind_a_look_into_redis_leaves_no_client_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("on the way upstream")

    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine, proxied(engine) as proxy:
            proxy.proxy.kit.layers.redis = EmptyRedis()
            assert (await proxy.ask()).text == "Hello there"
            monkeypatch.setattr(Answering, "_miss", fail)
            assert (await proxy.ask(ASKED | {"seed": 1})).status == 500
            assert proxy.total("events", kind="fault") == 1
            proxy.proxy.kit.layers.redis = None

    run(test())


@pytest.mark.slow
def test_a_fault_in_one_look_at_the_clients_is_told_and_others_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swept, faults = Front.sweep, [RuntimeError("one")]

    def sweep(front: Front) -> None:
        if faults:
            raise faults.pop()
        swept(front)

    monkeypatch.setattr(Front, "sweep", sweep)

    async def test() -> None:
        async with (
            ScriptedUpstream() as engine,
            proxied(engine, '[front]\nidle = "100ms"\n') as one,
        ):
            client = await one.client()
            # let go, though the first look at it failed
            assert await client.reader.read() == b""
            assert one.total("events", kind="fault") == 1

    run(test())


def test_a_fault_behind_a_page_of_the_proxy_s_own_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def page(_: Scrape) -> str:
        raise RuntimeError("one")

    monkeypatch.setattr(Scrape, "page", page)

    async def test() -> None:
        async with ScriptedUpstream() as engine, proxied(engine) as proxy:
            assert (await proxy.ask(b"", path="/metrics", method="GET")).status == 500
            assert proxy.total("events", kind="fault") == 1

    run(test())


@pytest.mark.slow
def test_a_worker_that_is_not_the_owner_lets_slow_clients_go_after_a_fault_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept, faults = Front.sweep, [RuntimeError("one") for _ in range(3)]

    def sweep(front: Front) -> None:
        if faults:
            raise faults.pop()
        swept(front)

    monkeypatch.setattr(Front, "sweep", sweep)

    async def test() -> None:
        settings = '[front]\nidle = "100ms"\n'
        async with (
            ScriptedUpstream() as engine,
            house(engine, tmp_path, settings, workers=2) as home,
        ):
            client = await home.client(1)
            assert await client.reader.read() == b""

    run(test())


@pytest.mark.slow
def test_a_file_that_cannot_be_written_is_told_once_and_so_is_its_return(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            ScriptedUpstream(whole()) as engine,
            proxied(engine, folder=tmp_path) as proxy,
        ):

            async def until_told(end: str) -> None:
                while not proxy.said or not proxy.said[-1].endswith(end):  # noqa: ASYNC110 (nobody is told)
                    await asyncio.sleep(0.05)

            with closing(sqlite3.connect(tmp_path / "cache.db", isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                await proxy.ask()
                await until_told("is locked by another process; it is tried again")
                other.execute("ROLLBACK")
            await until_told("is used again")
            assert len(proxy.said) == 2
            assert proxy.total("events", kind="cache_file") == 2

    run(test())
