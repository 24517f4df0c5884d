"""In which order a watchdog brings an engine back, what it tells, and when it gives up. What is done is written down, not done."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from support.chat import until

from toolkit.errors import ToolkitError
from toolkit.records import Event, Host
from toolkit.serving.stack import GuardSetting
from toolkit.serving.warm.warm_rounds import Warmed
from toolkit.serving.watch.progress import Look
from toolkit.serving.watch.watchdog import Deeds, Senses, Watchdog, well_again

ALICE = Host(name="alice", url="http://h:1")
QUICK: dict[str, Any] = {"look_s": 0.01, "backoff_s": 0.001, "backoff_most_s": 0.002}
WARM = Warmed(
    name="alice", url="u", measure="ttft", cold_ttft_ms=89_000.0, warm_ttft_ms=219.0, concurrency=64
)


@dataclass
class House:
    """An engine that dies and comes back as it is told, and a list of all that is done to it."""

    fails: list[str] = field(default_factory=list)
    """Of the starts that come, why each fails; then they work."""
    warmed: Warmed | None = WARM
    cannot_stop: bool = False
    code: int | None = None
    done: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    async def look(self) -> Look:
        return Look(answer="came", signs=(1.0,), under_way=0)

    async def token(self) -> bool | None:
        return True

    async def start(self) -> None:
        self.done.append("start")
        if self.fails:
            raise ToolkitError(self.fails.pop(0))
        self.code = None

    async def stop(self) -> None:
        self.done.append("stop")
        if self.cannot_stop:
            raise ToolkitError("process 7 of the engine can't be ended")

    async def warm(self) -> Warmed | None:
        self.done.append("warm")
        return self.warmed

    async def back(self) -> None:
        self.done.append("back")

    async def fell(self, why: str) -> None:
        self.done.append(f"fell: {why}")

    async def gave_up(self, why: str) -> None:
        self.done.append(f"gave up: {why}")

    def watchdog(self, **guard: Any) -> Watchdog:
        deeds = Deeds(
            start=self.start,
            stop=self.stop,
            warm=self.warm,
            fell=self.fell,
            back=self.back,
            gave_up=self.gave_up,
        )
        senses = Senses(look=self.look, token=self.token, code=lambda: self.code)
        setting = GuardSetting(**(QUICK | guard))
        return Watchdog(ALICE, setting, senses, deeds, self.events.append)

    def told(self) -> list[tuple[str, str]]:
        """Events with their numbers taken out."""
        return [(each.kind, re.sub(r"\d+\.\d s", "N s", each.text)) for each in self.events]


def course(house: House, script: Callable[[House], Awaitable[None]], **guard: Any) -> str | None:
    """Watch while a script runs; why it was given up, or None where it was still watched at the end."""

    async def run() -> str | None:
        watching = asyncio.create_task(house.watchdog(**guard).run())
        await script(house)
        if watching.done():
            return watching.result()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        return None

    return asyncio.run(run())


def crashes(times: int = 1) -> Callable[[House], Awaitable[None]]:
    """Let it be killed so often, each time after it is back."""

    async def script(house: House) -> None:
        for number in range(1, times + 1):
            house.code = -9
            await until(
                lambda number=number: (
                    house.done.count("back") == number
                    or (house.done[-1:] and house.done[-1].startswith("gave up"))
                )
            )

    return script


KILLED = "its process was ended by signal 9"
ONE_ROUND = [f"fell: {KILLED}", "stop", "start", "warm", "back"]


def test_clients_are_kept_away_until_it_is_ended_started_and_warm() -> None:
    house = House()
    assert course(house, crashes()) is None
    assert house.done == ONE_ROUND


def test_every_step_is_an_event_of_the_host_for_whatever_run_is_on() -> None:
    house = House()
    course(house, crashes())
    assert house.told() == [
        ("restart", KILLED),
        ("mark", "ready after N s"),
        ("mark", "cold TTFT 89000 ms, warm TTFT 219 ms"),
        ("mark", "back after N s"),
    ]
    assert {(each.run, each.name, each.url) for each in house.events} == {
        (None, "alice", "http://h:1")
    }


def test_times_are_told_from_the_fall_and_from_the_start() -> None:
    house = House()
    course(house, crashes())
    times = [float(each.text.split()[2]) for each in house.events if " after " in each.text]
    assert len(times) == 2
    assert all(0 <= each < 60 for each in times)


def test_it_watches_on_after_it_brought_one_back() -> None:
    house = House()
    assert course(house, crashes(3)) is None
    assert house.done == ONE_ROUND * 3


def test_a_start_that_fails_is_one_more_crash_and_its_cause_is_told() -> None:
    house = House(fails=["no space left on the disk", "no space left on the disk"])
    assert course(house, crashes()) is None
    assert house.done == [
        ONE_ROUND[0],
        "stop",
        "start",
        "stop",
        "start",
        "stop",
        "start",
        "warm",
        "back",
    ]
    assert house.told()[1:3] == [("mark", "did not come back: no space left on the disk")] * 2


def test_an_engine_that_answers_nothing_when_it_is_warmed_up_is_not_let_in() -> None:
    dead = Warmed(name="alice", url="u", error="connection refused")
    house = House(warmed=dead)
    why = course(house, crashes(), restarts=2)
    assert why == "2 restarts within 600 s: a crash loop"
    assert "back" not in house.done
    assert house.told()[2] == (
        "mark",
        "did not come back: it answered nothing when it was warmed up: connection refused",
    )


def test_one_that_clients_cannot_be_let_to_has_not_come_back() -> None:
    house, refusals = House(), ["the proxy's admin does not answer"]

    async def back() -> None:
        house.done.append("let in")
        if refusals:
            raise ToolkitError(refusals.pop())
        house.done.append("back")

    house.back = back  # type: ignore[method-assign]
    assert course(house, crashes()) is None
    assert house.done == [*ONE_ROUND[:-1], "let in", *ONE_ROUND[1:-1], "let in", "back"]
    assert ("mark", "did not come back: the proxy's admin does not answer") in house.told()


def test_an_unsteady_engine_that_answers_is_let_in() -> None:
    house = House(warmed=Warmed(name="a", url="u", measure="ttft", error="no two rounds agree"))
    assert course(house, crashes()) is None
    assert house.done[-1] == "back"


def test_who_wants_no_warmup_gets_none() -> None:
    house = House(warmed=None)
    assert course(house, crashes()) is None
    assert [text for _, text in house.told()] == [KILLED, "ready after N s", "back after N s"]


def test_a_crash_loop_ends_with_its_family_ended_and_is_told() -> None:
    house = House(fails=["port taken"] * 10)
    why = course(house, crashes(), restarts=3)
    assert why == "3 restarts within 600 s: a crash loop"
    assert house.done[0] == f"fell: {KILLED}"
    assert house.done[1:7] == ["stop", "start"] * 3
    assert house.done[7:] == ["stop", f"gave up: {why}"]
    assert house.told()[-1] == ("mark", f"stays down: {why}")


def test_crashes_one_after_each_coming_back_are_a_crash_loop_too() -> None:
    house = House()
    assert course(house, crashes(3), restarts=2) == "2 restarts within 600 s: a crash loop"
    assert house.done.count("back") == 2


def test_what_cannot_be_ended_is_not_started_beside_itself() -> None:
    house = House(cannot_stop=True)
    assert course(house, crashes()) == "process 7 of the engine can't be ended"
    assert house.done == [
        f"fell: {KILLED}",
        "stop",
        "gave up: process 7 of the engine can't be ended",
    ]


def test_one_that_is_well_is_left_alone() -> None:
    house, looks = House(), 0

    async def counted() -> Look:
        nonlocal looks
        looks += 1
        return Look(answer="came", signs=(1.0,), under_way=0)

    house.look = counted  # type: ignore[method-assign]

    async def many_looks(_: House) -> None:
        await until(lambda: looks >= 20)

    assert course(house, many_looks) is None
    assert (house.done, house.events) == ([], [])


def test_cancelled_in_a_question_it_leaves_no_task_and_ends_nobody() -> None:
    house, asked = House(), asyncio.Event()

    async def never() -> bool | None:
        asked.set()
        await asyncio.Event().wait()
        return None

    async def busy() -> Look:
        return Look(answer="came", signs=(1.0,), under_way=3)

    house.token, house.look = never, busy  # type: ignore[method-assign]

    async def run() -> int:
        watching = asyncio.create_task(house.watchdog(stuck_s=0.01).run())
        await asked.wait()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        return len(asyncio.all_tasks())

    assert asyncio.run(run()) == 1
    assert house.done == []


def test_the_end_of_a_process_is_noticed_between_two_looks_that_are_far_apart() -> None:
    house = House()

    async def script(one: House) -> None:
        await asyncio.sleep(0)
        await crashes()(one)

    # a look each hour: only the exit code can have told
    assert course(house, script, look_s=3600.0) is None
    assert house.done == ONE_ROUND


def test_well_again_wants_a_token_and_not_only_pages() -> None:
    answers = [False, False, True]
    asked = 0

    async def token() -> bool | None:
        nonlocal asked
        asked += 1
        return answers.pop(0)

    async def look() -> Look:
        return Look(answer="came")

    asyncio.run(well_again(Senses(look=look, token=token), 0.001))
    assert asked == 3
