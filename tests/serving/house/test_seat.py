"""What becomes of a seat where the proxy, or the system, does not do as it is told; engines and proxy are made up."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from support.seated import PATIENT, Scene, opened

from toolkit.errors import ToolkitError
from toolkit.serving.house import gate


def played(play: Callable[[Scene], Awaitable[None]]) -> Scene:
    async def all_of_it() -> Scene:
        scene = await opened()
        try:
            await play(scene)
        finally:
            await scene.seat.unwatch()
        return scene

    return asyncio.run(all_of_it())


def deafen(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the proxy's admin does not answer when somebody is to be kept out."""

    async def fail(*_: object) -> None:
        raise ToolkitError("the proxy's admin does not answer")

    monkeypatch.setattr(scene.front, "drain", fail)
    monkeypatch.setattr(gate, "PATIENCE_S", 0.0)


def test_an_engine_that_died_comes_back_though_the_proxy_cannot_be_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(scene: Scene) -> None:
        await scene.seat.unwatch()
        scene.seat._guard = replace(PATIENT, backoff_s=0.01)
        scene.seat.watch()
        deafen(scene, monkeypatch)
        scene.engines[0].exit_code = -9
        await asyncio.wait_for(scene.journal.until("let in e.a"), 30.0)

    scene = played(play)
    assert scene.journal == ["stop old at e.a", "start old at e.a", "warm old at e.a", "let in e.a"]


def test_an_order_that_the_proxy_does_not_take_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(scene: Scene) -> None:
        deafen(scene, monkeypatch)
        with pytest.raises(ToolkitError, match="does not answer"):
            await scene.seat.restart(0.01)
        assert scene.seat.state == "up"
        watching = scene.seat._watching
        assert watching is not None, "it serves on, and nobody would bring it back"
        assert not watching.done()

    assert played(play).journal == []


def test_an_engine_that_the_system_does_not_let_go_of_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def kept() -> None:
        raise ToolkitError("process 7 of the engine can't be ended")

    async def play(scene: Scene) -> None:
        monkeypatch.setattr(scene.engines[0], "stop", kept)
        with pytest.raises(ToolkitError, match="process 7"):
            await scene.seat.restart(0.01)
        assert (scene.seat.state, scene.seat.why) == (
            "down",
            "process 7 of the engine can't be ended",
        )

    assert "start old at e.a" not in played(play).journal
