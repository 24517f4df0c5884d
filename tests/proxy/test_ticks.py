"""What the proxy does outside of a client's own call goes on, or is told, after a fault."""

import asyncio
from typing import Any

import pytest
from support.proxied import ASKED, proxied, whole
from support.scripted_upstream import ScriptedUpstream, hanging

from toolkit.proxy.call import Calls
from toolkit.proxy.handler import Handler


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
