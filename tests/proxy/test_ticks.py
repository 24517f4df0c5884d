"""What the proxy does outside of a client's own call goes on, or is told, after a fault."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.proxied import ASKED, proxied, whole
from support.scripted_upstream import ScriptedUpstream, hanging

from toolkit.proxy.call import Calls
from toolkit.proxy.client import Front
from toolkit.proxy.handler import Handler
from toolkit.proxy.upstream.health import Prober


class EmptyRedis:
    """One that has nothing, a moment later."""

    problem = None
    wait_s = 0.0

    async def get(self, key: bytes) -> None:
        del key
        await asyncio.sleep(0)

    def hurry(self) -> None:
        """Nobody waits here."""

    def put(self, *args: object, **more: object) -> bool:
        del args, more
        return False


def fails_first(patch: pytest.MonkeyPatch, kind: type, name: str, *, times: int) -> None:
    """Have a method fail so many times, and work from then on."""
    works, faults = getattr(kind, name), [RuntimeError("a fault of ours")] * times

    def work(each: Any) -> Any:
        if faults:
            raise faults.pop()
        return works(each)

    patch.setattr(kind, name, work)


LIMITS = '[admission]\nwhole = "200ms"\n'


async def test_a_fault_in_one_tick_is_told_and_deadlines_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fails_first(monkeypatch, Calls, "tick", times=2)
    async with ScriptedUpstream(hanging()) as engine, proxied(engine, LIMITS) as proxy:
        assert (await proxy.ask(ASKED)).status == 504
        assert proxy.total("events", kind="fault") == 2


async def test_a_fault_behind_a_look_into_redis_leaves_no_client_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("on the way upstream")

    async with ScriptedUpstream(whole()) as engine, proxied(engine) as proxy:
        proxy.proxy.cache.redis = EmptyRedis()
        assert (await proxy.ask()).text == "Hello there"
        monkeypatch.setattr(Handler, "forward", fail)
        assert (await proxy.ask(ASKED | {"seed": 1})).status == 500
        assert proxy.total("events", kind="fault") == 1
        proxy.proxy.cache.redis = None


@pytest.mark.slow
async def test_a_fault_in_one_look_at_the_clients_is_told_and_others_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fails_first(monkeypatch, Front, "sweep", times=1)
    async with (
        ScriptedUpstream() as engine,
        proxied(engine, '[front]\nidle = "100ms"\n') as one,
    ):
        client = await one.client()
        # let go, though the first look at it failed
        assert await client.reader.read() == b""
        assert one.total("events", kind="fault") == 1


async def test_a_fault_behind_a_page_of_the_proxy_s_own_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fails_first(monkeypatch, Prober, "metrics_page", times=1)
    async with ScriptedUpstream() as engine, proxied(engine) as proxy:
        assert (await proxy.ask(b"", path="/metrics", method="GET")).status == 500
        assert proxy.total("events", kind="fault") == 1


@pytest.mark.slow
async def test_a_file_that_cannot_be_written_is_told_once_and_so_is_its_return(
    tmp_path: Path,
) -> None:
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
