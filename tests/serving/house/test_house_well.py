"""A house is well while each engine that serves is looked at and the proxy answers; what it says of itself is one line."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.seated import PATIENT, SETTING, Journal, MadeUpEngine, MadeUpFront, Scene, opened

from toolkit.errors import ToolkitError
from toolkit.proxy.settings import Settings, UpstreamSetting
from toolkit.serving.house import house
from toolkit.serving.house.house import Given, House
from toolkit.serving.house.orders import held
from toolkit.serving.house.seat import UNSEEN_S
from toolkit.serving.stack import Stack


def of_a_seat(look: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        scene = await opened()
        try:
            await look(scene)
        finally:
            await scene.seat.unwatch()

    asyncio.run(main())


def test_an_engine_that_serves_is_looked_after() -> None:
    async def look(scene: Scene) -> None:
        assert scene.seat.is_looked_after

    of_a_seat(look)


@pytest.mark.parametrize("state", ["up", "restarting"])
def test_one_whose_watchdog_ended_by_a_fault_is_not(state: Any) -> None:
    async def look(scene: Scene) -> None:
        scene.seat.be(state)
        watching = scene.seat._watching
        assert watching is not None
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        assert not scene.seat.is_looked_after
        # given up in a crash loop its watchdog has nothing to do any more
        scene.seat.be("down")
        assert scene.seat.is_looked_after

    of_a_seat(look)


def test_one_at_which_nobody_looked_for_too_long_is_not() -> None:
    async def look(scene: Scene) -> None:
        longest_s = 2 * PATIENT.look_s + UNSEEN_S
        scene.seat._looked_s = time.monotonic() - longest_s + 10.0
        assert scene.seat.is_looked_after
        scene.seat._looked_s -= 20.0
        assert not scene.seat.is_looked_after
        # on its way back it is started and warmed, which takes minutes without a look
        scene.seat.be("warming")
        assert scene.seat.is_looked_after

    of_a_seat(look)


def test_while_an_order_is_carried_out_nobody_has_to_look() -> None:
    async def look(scene: Scene) -> None:
        await scene.seat.unwatch()
        assert scene.seat.is_looked_after

    of_a_seat(look)


class Silent(MadeUpFront):
    """A proxy whose admin answers no more."""

    is_silent = False

    async def state(self) -> Mapping[str, Any]:
        if self.is_silent:
            raise ToolkitError("the proxy's admin does not answer")
        return await super().state()


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(setting: Any, upstream: str, *_: object) -> MadeUpEngine:
        return MadeUpEngine(setting, upstream, Journal(), set())

    monkeypatch.setattr(house, "Engine", made)


@pytest.mark.usefixtures("made_up")
def test_a_house_says_in_one_line_what_it_does_and_whether_its_proxy_answers(
    tmp_path: Path,
) -> None:
    front = Silent(Journal(), upstreams=("x.a", "x.b", "y.a", "y.b"))

    async def nothing() -> None:
        assert served.in_a_line() == "Starting: x waiting, y waiting"
        assert await served.is_well()

    async def open_proxy(*_: object) -> Any:
        return front

    async def look() -> None:
        assert served.in_a_line() == "Clients on http://clients: x up, y up"
        assert await served.is_well()
        front.is_silent = True
        assert not await served.is_well()
        front.is_silent = False
        served.stop()
        await served.wanted_to_stop()
        assert served.in_a_line() == "Ending: x up, y up"

    proxy = Settings(upstreams=(UpstreamSetting(name="x.a", url="http://127.0.0.1:1"),))
    engines = tuple(replace(SETTING, name=name) for name in ("x", "y"))
    stack = Stack(engines=engines, proxy=proxy, guard=PATIENT, folder=str(tmp_path))
    outfit: Any = None
    given = Given(
        outfit=outfit,
        open_proxy=open_proxy,
        preflight=nothing,
        changed=lambda setting, _: setting,
        blasting=lambda: None,
        tell=lambda _: None,
        say=lambda _: None,
    )
    served = House(stack, given)

    async def main() -> None:
        tasks: list[asyncio.Task[None]] = []
        with held(tmp_path):
            await served.run(lambda _: tasks.append(asyncio.create_task(look())))
        await asyncio.gather(*tasks)

    async def within() -> None:
        async with asyncio.timeout(30):
            await main()

    asyncio.run(within())
