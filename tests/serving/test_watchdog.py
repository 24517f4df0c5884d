"""In which order a watchdog brings an engine back, what it tells, and when it gives up. What is done is written down, not done."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from support.chat import until

from toolkit.errors import ToolkitError
from toolkit.records import Event, Host
from toolkit.serving.stack import GuardSetting
from toolkit.serving.warmup import Warmed
from toolkit.serving.watchdog import Backoff, GuardedEngine, ProbeResult, well_again

ALICE = Host(name="alice", url="http://h:1")
QUICK: dict[str, Any] = {"look_s": 0.01, "backoff_s": 0.001, "backoff_most_s": 0.002}
WARM = Warmed(
    name="alice", url="u", measure="ttft", cold_ttft_ms=89_000.0, warm_ttft_ms=219.0, concurrency=64
)


class Dying(GuardedEngine):
    """An engine that dies and comes back as it is told, and a list of all that is done to it. It is its own probe, too."""

    exit_code: int | None = None

    def __init__(
        self, *, fails: Sequence[str] = (), warmed: Warmed | None = WARM, cannot_stop: bool = False
    ) -> None:
        """`fails`: of the starts that come, why each fails; then they work."""
        self.events: list[Event] = []
        super().__init__(ALICE, None, GuardSetting(), self.events.append)
        self.fails, self.warmed, self.cannot_stop = list(fails), warmed, cannot_stop
        self.done: list[str] = []

    @property
    def code(self) -> int | None:
        return self.exit_code

    async def pages(self) -> ProbeResult:
        return ProbeResult(answer="came", signs=(1.0,), under_way=0)

    async def token(self) -> bool | None:
        return True

    async def start(self) -> float:
        self.done.append("start")
        if self.fails:
            raise ToolkitError(self.fails.pop(0))
        self.exit_code = None
        return 3.0

    async def stop(self) -> None:
        self.done.append("stop")
        if self.cannot_stop:
            raise ToolkitError("process 7 of the engine can't be ended")

    async def warm(self) -> Warmed | None:
        self.done.append("warm")
        return self.warmed

    async def back(self) -> None:
        self.done.append("back")

    def fell(self, cause: str, *, again: bool) -> None:
        self.done.append(f"fell: {cause}" if again else f"fell for good: {cause}")

    def gave_up(self, cause: str) -> None:
        self.done.append(f"gave up: {cause}")

    async def watch_as_told(self, **guard: Any) -> str:
        probe: Any = self
        self.guard = GuardSetting(**(QUICK | guard))
        self._backoff = Backoff(self.guard)
        return await self.watch(probe)

    def told(self) -> list[tuple[str, str]]:
        """Events with their numbers taken out."""
        return [(each.kind, re.sub(r"\d+\.\d s", "N s", each.text)) for each in self.events]


def course(dying: Dying, script: Callable[[Dying], Awaitable[None]], **guard: Any) -> str | None:
    """Watch while a script runs; why it was given up, or None where it was still watched at the end."""

    async def run() -> str | None:
        watching = asyncio.create_task(dying.watch_as_told(**guard))
        await script(dying)
        if watching.done():
            return watching.result()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        return None

    return asyncio.run(run())


def crashes(times: int = 1) -> Callable[[Dying], Awaitable[None]]:
    """Let it be killed so often, each time after it is back."""

    async def script(dying: Dying) -> None:
        for number in range(1, times + 1):
            dying.exit_code = -9
            await until(
                lambda number=number: (
                    dying.done.count("back") == number
                    or (dying.done[-1:] and dying.done[-1].startswith("gave up"))
                )
            )

    return script


KILLED = "its process was ended by signal 9"
ONE_ROUND = [f"fell: {KILLED}", "stop", "start", "warm", "back"]


def test_every_step_is_an_event_of_the_host_for_whatever_run_is_on() -> None:
    dying = Dying()
    course(dying, crashes())
    assert dying.told() == [
        ("restart", KILLED),
        ("mark", "ready after N s"),
        ("mark", "cold TTFT 89000 ms, warm TTFT 219 ms"),
        ("mark", "back after N s"),
    ]
    assert {(each.run, each.name, each.url) for each in dying.events} == {
        (None, "alice", "http://h:1")
    }


def test_it_watches_on_after_it_brought_one_back() -> None:
    dying = Dying()
    assert course(dying, crashes(3)) is None
    assert dying.done == ONE_ROUND * 3


def test_a_start_that_fails_is_one_more_crash_and_its_cause_is_told() -> None:
    dying = Dying(fails=["no space left on the disk", "no space left on the disk"])
    assert course(dying, crashes()) is None
    assert dying.done == [
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
    assert dying.told()[1:3] == [("mark", "did not come back: no space left on the disk")] * 2


def test_an_engine_that_answers_nothing_when_it_is_warmed_up_is_not_let_in() -> None:
    dead = Warmed(name="alice", url="u", error="connection refused")
    dying = Dying(warmed=dead)
    why = course(dying, crashes(), restarts=2)
    assert why == "2 restarts within 600 s: a crash loop"
    assert "back" not in dying.done
    assert dying.told()[2] == (
        "mark",
        "did not come back: `alice` answers nothing: connection refused",
    )


def test_one_that_clients_cannot_be_let_to_has_not_come_back() -> None:
    dying, refusals = Dying(), ["the proxy's admin does not answer"]

    async def back() -> None:
        dying.done.append("let in")
        if refusals:
            raise ToolkitError(refusals.pop())
        dying.done.append("back")

    dying.back = back  # type: ignore[method-assign]
    assert course(dying, crashes()) is None
    assert dying.done == [*ONE_ROUND[:-1], "let in", *ONE_ROUND[1:-1], "let in", "back"]
    assert ("mark", "did not come back: the proxy's admin does not answer") in dying.told()


def test_an_unsteady_engine_that_answers_is_let_in() -> None:
    dying = Dying(warmed=Warmed(name="a", url="u", measure="ttft", error="no two rounds agree"))
    assert course(dying, crashes()) is None
    assert dying.done[-1] == "back"


def test_who_wants_no_warmup_gets_none() -> None:
    dying = Dying(warmed=None)
    assert course(dying, crashes()) is None
    assert [text for _, text in dying.told()] == [KILLED, "ready after N s", "back after N s"]


def test_a_crash_loop_ends_with_its_family_ended_and_is_told() -> None:
    dying = Dying(fails=["port taken"] * 10)
    why = course(dying, crashes(), restarts=3)
    assert why == "3 restarts within 600 s: a crash loop"
    assert dying.done[0] == f"fell: {KILLED}"
    assert dying.done[1:7] == ["stop", "start"] * 3
    assert dying.done[7:] == ["stop", f"gave up: {why}"]
    assert dying.told()[-1] == ("mark", f"stays down: {why}")


def test_crashes_one_after_each_coming_back_are_a_crash_loop_too() -> None:
    dying = Dying()
    assert course(dying, crashes(3), restarts=2) == "2 restarts within 600 s: a crash loop"
    assert dying.done.count("back") == 2
    # and nobody is told that it would be started once more
    assert dying.done[-3:-1] == [f"fell for good: {KILLED}", "stop"]


def test_what_cannot_be_ended_is_not_started_beside_itself() -> None:
    dying = Dying(cannot_stop=True)
    assert course(dying, crashes()) == "process 7 of the engine can't be ended"
    assert dying.done == [
        f"fell: {KILLED}",
        "stop",
        "gave up: process 7 of the engine can't be ended",
    ]


def test_one_that_is_well_is_left_alone() -> None:
    dying, looks = Dying(), 0

    async def counted() -> ProbeResult:
        nonlocal looks
        looks += 1
        return ProbeResult(answer="came", signs=(1.0,), under_way=0)

    dying.pages = counted  # type: ignore[method-assign]

    async def many_looks(_: Dying) -> None:
        await until(lambda: looks >= 20)

    assert course(dying, many_looks) is None
    assert (dying.done, dying.events) == ([], [])


def test_cancelled_in_a_question_it_leaves_no_task_and_ends_nobody() -> None:
    dying, asked = Dying(), asyncio.Event()

    async def never() -> bool | None:
        asked.set()
        await asyncio.Event().wait()
        return None

    async def busy() -> ProbeResult:
        return ProbeResult(answer="came", signs=(1.0,), under_way=3)

    dying.token, dying.pages = never, busy  # type: ignore[method-assign]

    async def run() -> int:
        watching = asyncio.create_task(dying.watch_as_told(stuck_s=0.01))
        await asked.wait()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        return len(asyncio.all_tasks())

    assert asyncio.run(run()) == 1
    assert dying.done == []


def test_the_end_of_a_process_is_noticed_between_two_looks_that_are_far_apart() -> None:
    dying = Dying()

    async def script(one: Dying) -> None:
        await asyncio.sleep(0)
        await crashes()(one)

    # a look each hour: only the exit code can have told
    assert course(dying, script, look_s=3600.0) is None
    assert dying.done == ONE_ROUND


def test_well_again_wants_a_token_and_not_only_pages() -> None:
    class Thawing(Dying):
        answers: Any = iter([False, False, True])

        async def token(self) -> bool | None:
            self.done.append("asked")
            return bool(next(self.answers))

    probe: Any = Thawing()
    asyncio.run(well_again(probe, 0.001))
    assert probe.done == ["asked"] * 3


# --- how long it waits before it starts an engine again, and when it gives up ------------------------------


def backoff(**changes: Any) -> Backoff:
    settings = {"backoff_s": 2.0, "backoff_most_s": 60.0, "restarts": 100, "restarts_s": 600.0}
    return Backoff(GuardSetting(**(settings | changes)))


def test_waits_double_up_to_the_cap() -> None:
    assert [backoff().next(0.0), backoff(backoff_s=5.0, backoff_most_s=1.0).next(0.0)] == [2, 5]
    one = backoff(restarts=10**9)
    assert [one.next(float(at)) for at in range(8)] == [2, 4, 8, 16, 32, 60, 60, 60]
    # and a long row of crashes overflows nothing
    assert {one.next(float(at)) for at in range(8, 2000)} == {60}


def test_the_waits_begin_anew_after_a_stretch_of_being_well_as_long_as_the_cap() -> None:
    one = backoff()
    assert (one.next(0), one.next(10)) == (2, 4)
    one.well_s = 20
    assert one.next(20 + 59) == 8, "a second too few"
    one.well_s = 100
    assert (one.next(100 + 60), one.next(300)) == (2, 4), "it never came back between these two"


def test_too_many_within_the_window_are_a_crash_loop_however_well_it_was_between_them() -> None:
    one = backoff(restarts=2)
    for at in (0, 300):
        assert one.next(at) is not None
        one.well_s = at + 10
    assert one.next(599) is None
    assert one.refusal() == "2 restarts within 600 s: a crash loop"
    # at 600 the one at 0 is out, and the refused one at 599 was none
    assert one.next(600) is not None
    assert one.next(601) is None
    assert backoff(restarts=0).next(0) is None
    assert backoff(restarts=0).refusal() == "no restart is allowed"
