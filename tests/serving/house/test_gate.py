"""What the proxy is told, and what is done where it does not answer; the proxy is made up."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from support.seated import Journal, MadeUpFront

from toolkit.errors import ToolkitError
from toolkit.serving.house import gate
from toolkit.serving.house.gate import Gate


@dataclass
class Deaf(MadeUpFront):
    """A proxy whose admin does not answer so many times."""

    fails: int = 0

    async def drain(self, upstream: str, why: str, back_in_s: float | None) -> None:
        self._refuse()
        await super().drain(upstream, why, back_in_s)

    async def undrain(self, upstream: str, start_s: float | None) -> None:
        self._refuse()
        await super().undrain(upstream, start_s)

    async def state(self) -> Mapping[str, Any]:
        self._refuse()
        return await super().state()

    def _refuse(self) -> None:
        if self.fails:
            self.fails -= 1
            self.journal.append("no answer")
            raise ToolkitError("the proxy's admin does not answer")


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> Deaf:
    monkeypatch.setattr(gate, "AGAIN_S", 0.0)
    return Deaf(Journal())


def test_who_is_kept_out_before_there_is_a_proxy_is_told_when_it_opens(deaf: Deaf) -> None:
    async def act() -> None:
        one = Gate(look_s=0.01)
        await one.keep_out("e.b", "spare")
        await one.keep_out("e.a", "restart", 3.0)
        await one.let_in("e.a", 3.0)
        await one.open(deaf)

    asyncio.run(act())
    assert deaf.journal == ["keep out e.b", "let in e.a"]


def test_a_proxy_that_does_not_answer_is_told_again(deaf: Deaf) -> None:
    async def act() -> None:
        one = Gate(look_s=0.01)
        await one.open(deaf)
        deaf.fails = 2
        await one.keep_out("e.a", "restart", 3.0)
        deaf.fails = 1
        await one.let_in("e.a", 3.0)

    asyncio.run(act())
    assert deaf.journal == ["no answer", "no answer", "keep out e.a", "no answer", "let in e.a"]


def test_one_that_does_not_answer_in_time_is_an_error(
    deaf: Deaf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "PATIENCE_S", 0.0)

    async def act() -> None:
        one = Gate(look_s=0.01)
        await one.open(deaf)
        deaf.fails = 10
        with pytest.raises(ToolkitError, match="does not answer"):
            await one.keep_out("e.a", "restart", 3.0)

    asyncio.run(act())
    assert deaf.journal == ["no answer"]


def test_a_wait_outlasts_an_admin_that_does_not_answer(deaf: Deaf) -> None:
    async def act() -> tuple[bool, bool]:
        one = Gate(look_s=0.01)
        await one.open(deaf)
        deaf.fails = 1
        up = await one.until_up("e.a")
        deaf.fails = 10**9
        return up, await one.until_idle("e.a", 0.0)

    assert asyncio.run(act()) == (True, False)
