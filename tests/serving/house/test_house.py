"""The order of a stack's beginning and end, and who may give which order when; engines and proxy are made up."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from support.seated import PATIENT, SETTING, Journal, MadeUpEngine, MadeUpFront

from toolkit.errors import ToolkitError
from toolkit.proxy.settings import Settings, UpstreamSetting
from toolkit.serving.house import house
from toolkit.serving.house.house import Given, House
from toolkit.serving.house.orders import give, held
from toolkit.serving.house.standing import meaning
from toolkit.serving.stack import EngineSetting, Stack
from toolkit.serving.start.leftovers import answered

PROXY = Settings(upstreams=(UpstreamSetting(name="e.a", url="http://127.0.0.1:1"),), drain_s=0.01)


@dataclass
class Stage:
    folder: Path
    journal: Journal = field(default_factory=Journal)
    bad: set[str] = field(default_factory=set)
    said: list[str] = field(default_factory=list)
    ready: list[str] = field(default_factory=list)
    fit: bool = True
    blast: str | None = None

    async def serve(
        self,
        *engines: EngineSetting,
        then: Callable[[House], Awaitable[None]] | None = None,
        proxy: Settings | None = PROXY,
    ) -> None:
        """Serve until `then` is done, which begins when the stack is open."""
        stack = Stack(engines=engines, proxy=proxy, guard=PATIENT, folder=str(self.folder))
        served = House(stack, self._given())
        tasks: list[asyncio.Task[None]] = []

        async def act() -> None:
            try:
                if then is not None:
                    await then(served)
            finally:
                served.stop()

        def ready(url: str) -> None:
            self.ready.append(url)
            tasks.append(asyncio.create_task(act()))

        with held(self.folder):
            await served.run(ready)
        await asyncio.gather(*tasks)

    def _given(self) -> Given:
        async def open_proxy(_: Settings, is_others: bool) -> Any:
            self.journal.append("open, what is stored was others'" if is_others else "open")
            names = ("e.a", "e.b", "x.a", "y.a")
            return MadeUpFront(self.journal, upstreams=names)

        async def preflight() -> None:
            self.journal.append("preflight")
            if not self.fit:
                raise ToolkitError("not fit")

        def changed(setting: EngineSetting, words: Mapping[str, Any]) -> EngineSetting:
            return replace(setting, **words)

        outfit: Any = (self.journal, self.bad)
        return Given(
            outfit=outfit,
            open_proxy=open_proxy,
            preflight=preflight,
            changed=changed,
            blasting=lambda: self.blast,
            tell=lambda _: None,
            say=self.said.append,
        )


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    def made(setting: EngineSetting, upstream: str, outfit: Any, _: object) -> MadeUpEngine:
        return MadeUpEngine(setting, upstream, *outfit)

    monkeypatch.setattr(house, "Engine", made)
    return Stage(tmp_path)


def engine(name: str, **more: Any) -> EngineSetting:
    return replace(SETTING, name=name, model=name, **more)


async def order(stage: Stage, word: str, **more: Any) -> dict[str, Any]:
    return await give(stage.folder, {"order": word} | more, stage.said.append)


def test_the_proxy_opens_behind_warm_engines_and_closes_before_they_end(stage: Stage) -> None:
    asyncio.run(stage.serve(SETTING))
    assert stage.journal == [
        "preflight",
        "start old at e.a",
        "warm old at e.a",
        "open",
        "keep out e.b",
        # so that it knows how long a start takes
        "let in e.a",
        "close",
        "stop old at e.a",
    ]
    assert stage.ready == ["http://clients"]


def test_a_machine_that_is_not_fit_starts_nothing(stage: Stage) -> None:
    stage.fit = False
    with pytest.raises(ToolkitError, match="not fit"):
        asyncio.run(stage.serve(SETTING))
    assert not [line for line in stage.journal if line.startswith(("start", "open"))]


def test_engines_on_one_gpu_start_in_turn_and_those_on_others_beside_them(stage: Stage) -> None:
    one, two, far = (engine(name, gpus=gpu) for name, gpu in (("x", "0"), ("y", "0"), ("z", "1")))
    asyncio.run(stage.serve(one, two, far, proxy=None))
    begun = [line.split()[1] for line in stage.journal if line.startswith("start")]
    assert begun.index("y") > begun.index("x")
    assert stage.journal.index("warm x at x.a") < stage.journal.index("start y at y.a")
    assert stage.journal.index("start z at z.a") < stage.journal.index("start y at y.a")


def test_without_a_proxy_clients_are_told_the_engines_own_address(stage: Stage) -> None:
    asyncio.run(stage.serve(SETTING, proxy=None))
    assert stage.ready == ["http://127.0.0.1:1"]


def test_one_that_does_not_start_is_told_and_kept_out_and_the_others_serve(stage: Stage) -> None:
    stage.bad.add("x")
    asyncio.run(stage.serve(engine("x"), engine("y")))
    assert stage.ready == ["http://clients"]
    assert any("x does not start" in line for line in stage.said)
    assert "keep out x.a" in stage.journal
    assert "stop x at x.a" in stage.journal


def test_where_none_starts_the_first_cause_is_the_error_and_no_door_opens(stage: Stage) -> None:
    stage.bad |= {"x", "y"}
    with pytest.raises(ToolkitError, match="x does not start"):
        asyncio.run(stage.serve(engine("x"), engine("y")))
    assert "open" not in stage.journal


def test_a_stop_while_an_engine_warms_up_ends_it_and_opens_nothing(stage: Stage) -> None:
    async def scene() -> None:
        serving = asyncio.create_task(stage.serve(engine("hanging")))
        await stage.journal.until("warm hanging at hanging.a")
        told = await order(stage, "status")
        assert (told["open"], told["engines"][0]["state"]) == (False, "warming")
        with pytest.raises(ToolkitError, match="not open yet"):
            await order(stage, "restart")
        await order(stage, "stop")
        await serving

    asyncio.run(scene())
    assert stage.ready == []
    assert stage.journal[-1] == "stop hanging at hanging.a"


def test_what_another_model_answered_is_not_shown_after_a_new_start(stage: Stage) -> None:
    asyncio.run(stage.serve(SETTING))
    asyncio.run(stage.serve(replace(SETTING, gpus="1")))
    asyncio.run(stage.serve(replace(SETTING, model="new")))
    opened = [line for line in stage.journal if line.startswith("open")]
    assert opened == ["open", "open", "open, what is stored was others'"]


def test_whose_answers_are_stored_is_nobodys_until_the_proxy_is_open(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the first answer of the new model and the note, the old one would show what the new one answered."""
    asyncio.run(stage.serve(SETTING))
    noted: list[object] = []

    async def look(*_: object) -> None:
        noted.append(answered(stage.folder))

    monkeypatch.setattr(house.Gate, "open", look)
    asyncio.run(stage.serve(replace(SETTING, model="new"), proxy=PROXY))
    assert noted == [{}]


def test_engines_end_though_the_proxy_does_not_end_well(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: object) -> None:
        raise ToolkitError("the proxy fell")

    monkeypatch.setattr(MadeUpFront, "stop", fail)
    with pytest.raises(ToolkitError, match="the proxy fell"):
        asyncio.run(stage.serve(SETTING))
    assert stage.journal[-1] == "stop old at e.a"


def test_what_answers_is_noted_after_a_swap_too(stage: Stage) -> None:
    async def swap(_: House) -> None:
        await order(stage, "swap", changes={"model": "new"}, yes=True)

    asyncio.run(stage.serve(SETTING, then=swap))
    stage.journal.clear()
    asyncio.run(stage.serve(SETTING))
    assert "open, what is stored was others'" in stage.journal
    assert answered(stage.folder) == {"e": meaning(SETTING)}


@pytest.mark.parametrize("in_place", [True, False])
def test_who_swaps_is_told_how_to_let_go_what_the_proxy_keeps(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, in_place: bool
) -> None:
    async def fail(*_: object) -> None:
        raise ToolkitError("Redis does not answer")

    async def swap(served: House) -> None:
        with pytest.raises(ToolkitError, match=r"`e` is swapped, but .*: Redis does not") as told:
            await order(stage, "swap", changes={"model": "new"}, in_place=in_place, yes=True)
        assert "http://admin/purge" in told.value.hint
        assert served.seats["e"].state == "up"

    monkeypatch.setattr(MadeUpFront, "forget", fail)
    asyncio.run(stage.serve(SETTING, then=swap))


def test_of_a_serve_that_is_killed_in_a_swap_nothing_that_was_stored_is_shown(stage: Stage) -> None:
    async def swap(_: House) -> None:
        task = asyncio.create_task(order(stage, "swap", changes={"model": "hanging"}, yes=True))
        await stage.journal.until("warm hanging at e.b")
        noted = (answered(stage.folder) or {})["e"]
        assert noted not in (meaning(SETTING), meaning(replace(SETTING, model="hanging")))
        task.cancel()

    asyncio.run(stage.serve(SETTING, then=swap))
    # it ended in order, and the old one had answered all
    assert answered(stage.folder) == {"e": meaning(SETTING)}


def test_an_order_names_the_engine_where_there_are_several(stage: Stage) -> None:
    async def orders(_: House) -> None:
        with pytest.raises(ToolkitError, match="name the engine"):
            await order(stage, "restart")
        with pytest.raises(ToolkitError, match="there is no engine `z`"):
            await order(stage, "restart", engine="z")
        with pytest.raises(ToolkitError, match="knows no order `dance`"):
            await order(stage, "dance")
        told = await order(stage, "restart", engine="y")
        assert (told["name"], told["state"], told["restarts"]) == ("y", "up", 1)

    asyncio.run(stage.serve(engine("x"), engine("y"), then=orders))
    assert stage.ready


def test_a_restart_by_order_keeps_clients_out_until_it_is_warm(stage: Stage) -> None:
    async def restart(_: House) -> None:
        stage.journal.clear()
        await order(stage, "restart")
        assert stage.journal == [
            "keep out e.a",
            "stop old at e.a",
            "keep out e.a",
            "start old at e.a",
            "warm old at e.a",
            "let in e.a",
        ]
        stage.journal.clear()

    asyncio.run(stage.serve(SETTING, then=restart))
    assert stage.journal == ["close", "stop old at e.a"]


def test_a_second_order_waits_for_nothing_and_is_refused(stage: Stage) -> None:
    async def orders(_: House) -> None:
        first = asyncio.create_task(order(stage, "swap", changes={"model": "hanging"}, yes=True))
        await stage.journal.until("warm hanging at e.b")
        with pytest.raises(ToolkitError, match="`e` is being swapped at this moment"):
            await order(stage, "restart")
        first.cancel()

    asyncio.run(stage.serve(SETTING, then=orders))
    # the end of the stack is the end of the order, and of what it had started
    assert "stop hanging at e.b" in stage.journal
    assert stage.journal[-1] == "stop old at e.a"


@pytest.mark.parametrize("word", ["restart", "swap"])
def test_during_a_blast_an_order_wants_a_yes(stage: Stage, word: str) -> None:
    stage.blast = "b1a57"

    async def orders(_: House) -> None:
        stage.journal.clear()
        with pytest.raises(ToolkitError, match="a blast is on"):
            await order(stage, word, changes={"model": "new"})
        assert stage.journal == []
        await order(stage, word, changes={"model": "new"}, yes=True)

    asyncio.run(stage.serve(SETTING, then=orders))
    assert any(line.startswith("let in") for line in stage.journal)


def test_a_gap_is_told_with_its_length_and_asked_about(stage: Stage) -> None:
    asked: list[Mapping[str, Any]] = []

    def agree(question: Mapping[str, Any]) -> bool:
        asked.append(question)
        return len(asked) > 1

    async def orders(_: House) -> None:
        words = {"order": "swap", "changes": {"model": "new"}, "in_place": True}
        with pytest.raises(ToolkitError, match="was not swapped"):
            await give(stage.folder, words, stage.said.append, agree)
        told = await give(stage.folder, words, stage.said.append, agree)
        assert told["model"] == "new"

    asyncio.run(stage.serve(SETTING, then=orders))
    # made-up engines say that they took 90 s, and the made-up proxy that 3 requests/s come
    assert [(each["downtime_s"], each["rps"]) for each in asked] == [(90.0, 3.0)] * 2


def test_another_model_bears_the_name_that_clients_ask_for(stage: Stage) -> None:
    async def swap(served: House) -> None:
        await order(stage, "swap", changes={"model": "new"}, yes=True)
        assert served.seats["e"].setting.served_name == "m"

    asyncio.run(stage.serve(SETTING, then=swap))
    assert "start new at e.b" in stage.journal
