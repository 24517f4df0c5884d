"""When an engine is in trouble, and above all when it is not; how it is brought back, and when that is given up. Times are made up."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import pytest
from support.chat import hang, until
from support.raw_server import RawServer, http, vllm_pages

from toolkit.errors import ToolkitError
from toolkit.records import Event, Host
from toolkit.serving.stack import GuardSetting
from toolkit.serving.warmup import Warmed
from toolkit.serving.watchdog import (
    Backoff,
    EngineProgress,
    GuardedEngine,
    LivenessProbe,
    ProbeResult,
)

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

    async def let_clients_in(self) -> None:
        self.done.append("back")

    def keep_clients_out(self, cause: str, *, again: bool) -> None:
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


def test_a_crash_loop_ends_with_its_family_ended_and_is_told() -> None:
    dying = Dying(fails=["port taken"] * 10)
    why = course(dying, crashes(), restarts=3)
    assert why == "3 restarts within 600 s: a crash loop"
    assert dying.done[0] == f"fell: {KILLED}"
    assert dying.done[1:7] == ["stop", "start"] * 3
    assert dying.done[7:] == ["stop", f"gave up: {why}"]
    assert dying.told()[-1] == ("mark", f"stays down: {why}")


def test_what_cannot_be_ended_is_not_started_beside_itself() -> None:
    dying = Dying(cannot_stop=True)
    assert course(dying, crashes()) == "process 7 of the engine can't be ended"
    assert dying.done == [
        f"fell: {KILLED}",
        "stop",
        "gave up: process 7 of the engine can't be ended",
    ]


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


def progress() -> EngineProgress:
    return EngineProgress(GuardSetting(stuck_s=30.0, answer_s=30.0, refused_s=5.0, ask_s=60.0))


def counted(
    tokens: float, *, kv: float = 0.5, under_way: float | None = 3, prompt: float = 7
) -> ProbeResult:
    return ProbeResult(answer="came", signs=(prompt, tokens, tokens, kv), under_way=under_way)


IDLE = counted(1, under_way=0)
REFUSED, LATE, CAME = (ProbeResult(answer=answer) for answer in ("refused", "late", "came"))
Step = tuple[float, ProbeResult | bool | str, object]
"""When, and a look with what is said of it, the answer to a question with what is said of that, or `asks?` with whether it wants one."""
STORIES: dict[str, list[Step]] = {
    "connections are refused for a while": [
        *((at, REFUSED, None) for at in (0.0, 1.0, 4.9)),
        (5.0, REFUSED, "connections were refused for 5.0 s"),
    ],
    "a page between two refused ones": [
        *[(0, REFUSED, None), (4, CAME, None), (8, REFUSED, None), (12.9, REFUSED, None)],
        *[(13, LATE, None), (14, REFUSED, None), (18.9, REFUSED, None)],
    ],
    "a late page is never a refused one": [(float(at), LATE, None) for at in range(3600)],
    "tokens stand still, and none comes on asking": [
        # the counters are seen to move at 10 for the last time
        *[(0, counted(100), None), (10, counted(110), None)],
        *((at, counted(110), None) for at in (20, 30, 39.9)),
        *[(39.9, "asks?", False), (40, counted(110), None), (40, "asks?", True)],
        # it is being asked
        *[(41, "asks?", False), (69, counted(110), None)],
        (70, False, "3 requests under way, and no token for 60.0 s, nor one when it was asked"),
    ],
    "a token on asking clears it": [
        *[(0, counted(1), None), (40, counted(1), None), (40, "asks?", True), (45, True, None)],
        # and it counts as a sign: the next question comes 30 s after it
        *[(74, counted(1), None), (74, "asks?", False)],
        *[(75, counted(1), None), (75, "asks?", True)],
    ],
    "a counter that moved meanwhile clears it": [
        *[(0, counted(1), None), (40, counted(1), None), (40, "asks?", True)],
        *[(60, counted(2), None), (70, False, None)],
    ],
    "it froze with its pages": [
        # the last sign is the page at 0
        *[(0, counted(1), None), (10, LATE, None), (29, LATE, None), (29, "asks?", False)],
        *[(30, LATE, None), (30, "asks?", True)],
        (60, False, "no page for 60.0 s, and no token when it was asked for one"),
    ],
    "it hangs and says that it is idle": [
        *((float(at), IDLE, None) for at in range(0, 61, 10)),
        *[(60, "asks?", True), (70, IDLE, None)],
        (90, False, "idle, it says, and no token for 30.0 s, nor one when it was asked"),
    ],
    "work that comes after an idle question": [
        *[(0, IDLE, None), (60, IDLE, None), (60, "asks?", True)],
        # many came meanwhile: our token waits behind them, but theirs move
        *[(61, counted(9, under_way=500), None), (89, counted(99, under_way=500), None)],
        *[(90, False, None), (91, "asks?", False)],
    ],
    "without counters a late token may wait behind a thousand others": [
        *((float(at), CAME, None) for at in range(0, 61, 10)),
        *[(60, "asks?", True), (90, False, None), (160, REFUSED, None)],
        (165, REFUSED, "connections were refused for 5.0 s"),
    ],
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_trouble_is_an_end_or_a_hang_and_nothing_else(story: list[Step]) -> None:
    one = progress()
    for at, what, told in story:
        if isinstance(what, ProbeResult):
            assert one.probed(at, what) == told, at
        elif what == "asks?":
            assert one.wants_token(at) is told, at
        else:
            assert one.token(at, made=bool(what)) == told, at


def asks_at(one: EngineProgress, looks: Iterable[tuple[float, ProbeResult]]) -> list[float]:
    """When it wants a token; each is answered None at once: it could not be asked for."""
    times = []
    for at, look in looks:
        assert one.probed(at, look) is None
        if one.wants_token(at):
            times.append(at)
            one.token(at, None)
    return times


def test_an_idle_engine_is_asked_now_and_then() -> None:
    assert asks_at(progress(), [(float(at), IDLE) for at in range(0, 200, 10)]) == [60, 120, 180]


# --- busy is no trouble -----------------------------------------------------------------------------------


def test_a_saturated_server_is_never_even_asked() -> None:
    # an hour at one token in 25 s, 900 requests waiting
    one = progress()
    looks = [(float(at), counted(at // 25, under_way=900)) for at in range(3600)]
    assert asks_at(one, looks) == []


def test_a_long_prefill_moves_no_token_for_minutes_but_fills_blocks() -> None:
    # 128K tokens in steps of 2,048: 64 steps; at 5 s a step that is more than 5 minutes without a token
    one = progress()
    looks = [(float(at), counted(1, kv=(at // 5) / 64)) for at in range(64 * 5)]
    assert asks_at(one, looks) == []


Told = TypeVar("Told")
COMPLETIONS = "/v1/completions"
TOKEN = http(json.dumps({"choices": [{"text": "a"}]}), content_type="application/json")


def ask(
    server: RawServer, question: Callable[[LivenessProbe], Awaitable[Told]], **settings: Any
) -> Told:
    async def run() -> Told:
        async with server:
            return await question_of(server.url, question, **settings)

    return asyncio.run(run())


async def question_of(
    url: str, question: Callable[[LivenessProbe], Awaitable[Told]], **settings: Any
) -> Told:
    model = settings.pop("model", None)
    host = Host(name="alice", url=url, model=model)
    guard = GuardSetting(answer_s=settings.pop("answer_s", 5.0))
    async with LivenessProbe(host, guard, **({"limit_s": 5.0} | settings)) as probe:
        return await question(probe)


def look(pages: dict[str, Any], **settings: Any) -> ProbeResult:
    return ask(RawServer(pages), LivenessProbe.pages, **settings)


def token(pages: dict[str, Any], **settings: Any) -> bool | None:
    return ask(RawServer(pages), LivenessProbe.token, **settings)


async def cut(_: asyncio.StreamWriter) -> None:
    """Close the connection without a word."""


async def drip(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.05)


# --- a look -------------------------------------------------------------------------------------------------


def test_a_recorded_page_of_a_real_vllm_is_read_by_its_own_names() -> None:
    seen = look(vllm_pages())
    page = vllm_pages()["/metrics"]
    assert isinstance(page, bytes)

    def value(name: str) -> float:
        (line,) = [each for each in page.decode().splitlines() if each.startswith(name + "{")]
        return float(line.rpartition(" ")[2])

    assert seen.answer == "came"
    assert seen.signs == (
        value("vllm:prompt_tokens_total"),
        value("vllm:generation_tokens_total"),
        value("vllm:iteration_tokens_total_count"),
        value("vllm:kv_cache_usage_perc"),
    )
    assert seen.under_way == value("vllm:num_requests_running") + value("vllm:num_requests_waiting")


@pytest.mark.parametrize("misbehave", [hang, drip, cut])
@pytest.mark.parametrize("path", ["/health", "/metrics"])
def test_a_page_that_hangs_drips_or_is_cut_is_late_and_not_refused(
    path: str, misbehave: Any
) -> None:
    assert look(vllm_pages() | {path: misbehave}, limit_s=0.3).answer == "late"


# --- one token ------------------------------------------------------------------------------------------------


def test_one_token_is_asked_of_the_model_that_is_served_past_any_cache() -> None:
    server = RawServer(vllm_pages() | {COMPLETIONS: TOKEN})
    assert ask(server, LivenessProbe.token, key="sk-1") is True
    method, path, headers = server.requests[-1]
    body = json.loads(server.bodies[-1])
    assert (method, path) == ("POST", COMPLETIONS)
    assert (body["max_tokens"], body["model"]) == (1, "tiny")
    assert headers["authorization"] == "Bearer sk-1"
    assert "no-store" in headers["cache-control"]


@pytest.mark.parametrize(
    ("answer", "made"),
    [
        (http('{"choices": []}'), False),
        (http("what?"), False),
        (http('{"error": {}}', "500 Internal Server Error"), False),
        (http('{"error": {}}', "429 Too Many Requests"), None),
        (http('{"error": {}}', "503 Busy"), None),
        (http('{"error": "Unauthorized"}', "401 Unauthorized"), None),
        (cut, False),
    ],
)
def test_what_an_answer_proves(answer: Any, *, made: bool | None) -> None:
    assert token({COMPLETIONS: answer}, model="m") is made
