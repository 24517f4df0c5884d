"""The order of a swap, what it leaves when it fails, and whether there is room for one; engines and proxy are made up."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import psutil
import pytest
from support.seated import SETTING, MadeUpEngine, Scene, opened

from toolkit.errors import ToolkitError
from toolkit.serving.fit.facts import Gpu, Gpus, Memory, Slice
from toolkit.serving.house import swap
from toolkit.serving.house.gate import Gate
from toolkit.serving.stack import EngineSetting

NEW = replace(SETTING, model="new")
GIB = 2**30
NO_GPU, UNKNOWN = Gpus(), Memory()


def played(scene_of: Callable[[Scene], Awaitable[None]]) -> Scene:
    async def all_of_it() -> Scene:
        scene = await opened()
        await scene_of(scene)
        await scene.seat.unwatch()
        return scene

    return asyncio.run(all_of_it())


async def forget(scene: Scene) -> None:
    await scene.front.forget("m")


def swapped(how: Any, setting: EngineSetting, **state: Any) -> Scene:
    async def play(scene: Scene) -> None:
        scene.bad |= state.get("bad", set())
        scene.front.in_flight |= state.get("in_flight", {})
        with contextlib.suppress(ToolkitError):
            await how(scene.seat, setting, 0.01, lambda: forget(scene))

    return played(play)


def test_beside_the_new_one_is_warm_before_it_is_asked_and_the_old_one_done_before_it_ends() -> (
    None
):
    scene = swapped(swap.beside, NEW)
    assert scene.journal == [
        "keep out e.b",
        "start new at e.b",
        "warm new at e.b",
        "let in e.b",
        "keep out e.a",
        "forget m",
        "stop old at e.a",
    ]
    assert (scene.seat.upstream, scene.seat.state, scene.seat.setting) == ("e.b", "up", NEW)
    assert [(event.kind, event.text) for event in scene.events] == [("model", "old -> new")]


def test_the_next_swap_goes_back_to_the_first_place() -> None:
    async def play(scene: Scene) -> None:
        await swap.beside(scene.seat, NEW, 0.01, lambda: forget(scene))
        scene.journal.clear()
        await swap.beside(scene.seat, SETTING, 0.01, lambda: forget(scene))

    scene = played(play)
    assert scene.journal[1] == "start old at e.a"
    assert scene.seat.upstream == "e.a"


def test_more_room_for_the_same_model_keeps_what_was_stored() -> None:
    scene = swapped(swap.beside, replace(SETTING, flags=(("max-num-seqs", "8"),)))
    assert "forget m" not in scene.journal
    assert scene.events[0].text == "--max-num-seqs - -> 8"


def test_what_a_secret_flag_says_stands_in_no_event() -> None:
    setting = replace(SETTING, flags=(("hf-token", "hf_geheim"), ("max-num-seqs", "8")))
    assert swapped(swap.beside, setting).events[0].text == "--hf-token, --max-num-seqs - -> 8"


async def fail(*_: object) -> None:
    raise ToolkitError("no answer")


def test_the_old_one_ends_though_the_proxy_answers_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(scene: Scene) -> None:
        monkeypatch.setattr(Gate, "until_idle", fail)
        with pytest.raises(ToolkitError, match="no answer"):
            await swap.beside(scene.seat, NEW, 0.01, lambda: forget(scene))

    scene = played(play)
    assert scene.journal[-1] == "stop old at e.a"
    assert (scene.seat.upstream, scene.seat.state) == ("e.b", "up")


def test_the_old_one_serves_on_where_the_proxy_cannot_be_told_of_the_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(scene: Scene) -> None:
        monkeypatch.setattr(Gate, "let_in", fail)
        with pytest.raises(ToolkitError, match="no answer"):
            await swap.beside(scene.seat, NEW, 0.01, lambda: forget(scene))
        assert scene.seat._watching is not None

    scene = played(play)
    assert scene.journal[-1] == "stop new at e.b"
    assert (scene.seat.upstream, scene.seat.state) == ("e.a", "up")


def test_in_place_one_that_nobody_can_be_let_to_is_ended_and_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(scene: Scene) -> None:
        monkeypatch.setattr(Gate, "let_in", fail)
        with pytest.raises(ToolkitError, match="no answer"):
            await swap.in_place(scene.seat, NEW, 0.01, lambda: forget(scene))

    scene = played(play)
    # nobody waits for it any more
    assert scene.journal[-2:] == ["stop new at e.a", "keep out e.a"]
    assert (scene.seat.state, scene.seat.why) == ("down", "no answer")


def test_a_new_one_that_does_not_start_leaves_the_old_one_serving() -> None:
    scene = swapped(swap.beside, NEW, bad={"new"})
    assert scene.journal == ["keep out e.b", "start new at e.b", "stop new at e.b"]
    assert (scene.seat.upstream, scene.seat.state, scene.seat.setting) == ("e.a", "up", SETTING)


def test_a_new_one_that_the_proxy_cannot_reach_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gate, "until_up", AsyncMock(return_value=False))

    async def play(scene: Scene) -> None:
        with pytest.raises(ToolkitError, match="does not reach the new `e`"):
            await swap.beside(scene.seat, NEW, 0.01, lambda: forget(scene))

    assert played(play).journal[-1] == "stop new at e.b"


def test_answers_that_do_not_end_in_time_are_told_as_lost() -> None:
    scene = swapped(swap.beside, NEW, in_flight={"e.a": 2})
    assert any("which are lost" in line for line in scene.journal)
    assert scene.journal[-1] == "stop old at e.a"


@pytest.mark.parametrize("moment", ["warm", "idle"])
def test_an_interrupted_swap_leaves_one_engine(moment: str) -> None:
    """While the new one is warmed, the old one stays; once it was let in, the old one goes."""

    async def play(scene: Scene) -> None:
        scene.front.in_flight["e.a"] = 1
        setting = replace(NEW, model="hanging") if moment == "warm" else NEW
        task = asyncio.create_task(swap.beside(scene.seat, setting, 60.0, lambda: forget(scene)))
        wanted = "warm hanging at e.b" if moment == "warm" else "keep out e.a"
        await scene.journal.until(wanted)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    scene = played(play)
    assert scene.journal[-1] == ("stop hanging at e.b" if moment == "warm" else "stop old at e.a")
    assert scene.seat.setting.model == ("old" if moment == "warm" else "new")


def test_in_place_the_old_one_is_gone_before_the_new_one_starts() -> None:
    scene = swapped(swap.in_place, NEW)
    assert scene.journal == [
        "keep out e.a",
        "stop old at e.a",
        "start new at e.a",
        "warm new at e.a",
        "forget m",
        "let in e.a",
    ]
    kinds = [event.kind for event in scene.events]
    assert kinds == ["restart", "mark", "mark", "model"]


def test_in_place_the_old_one_comes_back_where_the_new_one_does_not_start() -> None:
    async def play(scene: Scene) -> None:
        scene.bad.add("new")
        with pytest.raises(ToolkitError, match="new does not start; the one before serves again"):
            await swap.in_place(scene.seat, NEW, 0.01, lambda: forget(scene))

    scene = played(play)
    assert scene.journal[2:] == [
        "start new at e.a",
        "stop new at e.a",
        "keep out e.a",
        "start old at e.a",
        "warm old at e.a",
        "let in e.a",
    ]
    assert (scene.seat.state, scene.seat.setting) == ("up", SETTING)


def test_in_place_the_new_one_serves_and_is_watched_though_what_was_stored_cannot_be_let_go() -> (
    None
):
    """What is stored is given in any case; and kept out, the new one would be of no use, and nobody would bring it back."""

    async def play(scene: Scene) -> None:
        with pytest.raises(ToolkitError, match="no answer"):
            await swap.in_place(scene.seat, NEW, 0.01, fail)
        watching = scene.seat._watching
        assert watching is not None
        assert not watching.done()

    scene = played(play)
    assert scene.journal[-1] == "let in e.a"
    assert (scene.seat.state, scene.seat.setting) == ("up", NEW)
    assert scene.events[-1].text == "old -> new"


def test_in_place_a_new_one_that_the_system_does_not_let_go_of_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def stop(engine: MadeUpEngine) -> None:
        if engine.setting == NEW:
            raise ToolkitError("process 7 of the engine can't be ended")

    async def play(scene: Scene) -> None:
        monkeypatch.setattr(MadeUpEngine, "stop", stop)
        scene.bad.add("new")
        with pytest.raises(ToolkitError, match="process 7"):
            await swap.in_place(scene.seat, NEW, 0.01, lambda: forget(scene))

    scene = played(play)
    assert (scene.seat.state, scene.seat.why) == ("down", "process 7 of the engine can't be ended")


# --- is there room? --------------------------------------------------------------------------------------


def why(
    setting: EngineSetting,
    gpus: Gpus = NO_GPU,
    memory: Memory = UNKNOWN,
    *,
    pids: Sequence[int] = (),
) -> str | None:
    async def ask() -> str | None:
        scene = await opened()
        await scene.seat.unwatch()
        members = [SimpleNamespace(pid=pid) for pid in pids]
        scene.engines[0].process = SimpleNamespace(pid=1, members=lambda: members)
        return swap.why_no_room(
            scene.seat, setting, lambda chosen: _seen(gpus, chosen), lambda: memory
        )

    return asyncio.run(ask())


def _seen(gpus: Gpus, chosen: str | None) -> Gpus:
    """As gpus.py tells them: with what the engine will see, which is inherited where nobody chose."""
    return gpus if chosen is None else replace(gpus, visible=chosen)


def on_gpus(*free_gib: float, **more: Any) -> Gpus:
    return Gpus(
        gpus=tuple(
            Gpu(index=i, uuid=f"GPU-{i}", total_bytes=80 * GIB, free_bytes=int(free * GIB), **more)
            for i, free in enumerate(free_gib)
        )
    )


VLLM = replace(SETTING, kind="vllm")


def test_without_a_second_port_there_is_no_room() -> None:
    assert "no second port" in (why(replace(VLLM, spare_port=None)) or "")


def test_the_simulator_fits_everywhere() -> None:
    assert why(SETTING) is None


@pytest.mark.parametrize(
    ("free_gib", "flags", "fits"),
    [
        # vLLM claims 92 % of 80 GiB by itself: 73.6
        (73.0, (), False),
        (74.0, (), True),
        # and 45 % where it is told so: 36
        (35.0, (("gpu-memory-utilization", "0.45"),), False),
        (37.0, (("gpu-memory-utilization", "0.45"),), True),
    ],
)
def test_there_is_room_where_vllm_finds_free_what_it_claims(
    free_gib: float, flags: tuple[tuple[str, str], ...], fits: bool
) -> None:
    told = why(replace(VLLM, flags=flags), on_gpus(free_gib))
    assert (told is None) is fits
    if told is not None:
        assert told.startswith(f"GPU 0 has {free_gib:.0f} GiB free")


def test_only_the_engines_own_gpus_count() -> None:
    machine = on_gpus(1.0, 79.0)
    assert why(replace(VLLM, gpus="1"), machine) is None
    assert why(replace(VLLM, gpus="GPU-1"), machine) is None
    assert why(replace(VLLM, gpus="0,1"), machine) is not None
    assert why(VLLM, machine) is not None
    # of an engine that names none those count that it inherits
    assert why(VLLM, replace(machine, visible="1")) is None


def test_a_slice_is_measured_by_itself() -> None:
    part = Slice(uuid="MIG-7", name="3g.40gb", total_bytes=40 * GIB, free_bytes=39 * GIB)
    machine = on_gpus(1.0, mig=True, slices=(part,))
    assert why(replace(VLLM, gpus="MIG-7"), machine) is None
    full = replace(part, free_bytes=10 * GIB)
    told = why(replace(VLLM, gpus="MIG-7"), on_gpus(79.0, mig=True, slices=(full,)))
    assert told is not None
    assert told.startswith("slice 0 of GPU 0 has 10 GiB free")


def test_on_the_cpu_the_new_one_needs_as_much_memory_as_the_old_one_has() -> None:
    taken = psutil.Process().memory_info().rss
    # a tenth of 100 GiB stays free for everybody else
    total, spare = 100 * GIB, 10 * GIB
    enough = Memory(total_bytes=total, available_bytes=spare + 2 * taken)
    short = Memory(total_bytes=total, available_bytes=spare + taken // 2)
    pids = [os.getpid()]
    assert why(VLLM, memory=enough, pids=pids) is None
    assert "of memory, and" in (why(VLLM, memory=short, pids=pids) or "")
    caged = replace(enough, limit_bytes=total, limit_used_bytes=total - spare - taken // 2)
    assert why(VLLM, memory=caged, pids=pids) is not None


def test_who_has_gone_takes_no_memory() -> None:
    assert swap.resident_bytes([2**22 + 1]) == 0
