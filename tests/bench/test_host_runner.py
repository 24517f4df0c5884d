"""One host's part in a run: made ready, warmed up, asked in a closed loop, charged. Servers do as told."""

import asyncio
import time
from collections import Counter
from typing import Any

import pytest
from support.benching import MARK, measured, plan, profile, runner_at, runner_of, texts, unmarked
from support.chat import CHAT, STREAM, ChatServer, Gate, in_turn, models_page, until
from support.raw_server import RawServer, http

from toolkit.bench.client import HostClient
from toolkit.bench.host_runner import LEVEL_SLOTS, HostRunner
from toolkit.bench.request_record import RequestContext
from toolkit.bench.requests import WARMUP_PROMPTS, PlannedRequest
from toolkit.records import Host, RequestRecord

FAILS = http("no", "500 Internal Server Error")
TWO_MODELS = models_page({"id": "one"}, {"id": "two", "root": "org/Two"})


@pytest.fixture(autouse=True)
def quick_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters that stand still are believed sooner."""
    monkeypatch.setattr("toolkit.bench.host_runner.SETTLE_SAMPLE_S", 0.005)


# --- making ready --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listed", "wanted", "asked_for"),
    [(None, None, "one"), ("two", None, "two"), ("gone", None, "one"), ("one", "org/Two", "two")],
)
async def test_requests_name_the_model_that_was_chosen(
    listed: str | None, wanted: str | None, asked_for: str
) -> None:
    async with ChatServer(**{"/v1/models": TWO_MODELS}) as server:
        await measured(runner_at(server.url, plan(), model=wanted, listed=listed))
        assert {body["model"] for body in server.asked()} == {asked_for}


@pytest.mark.parametrize("listed", [None, "tiny"])
async def test_a_host_that_lists_no_models_is_asked_for_the_named_one(listed: str | None) -> None:
    async with ChatServer(**{"/v1/models": http("no", "403 Forbidden")}) as server:
        runner = runner_at(server.url, plan(), listed=listed)
        await measured(runner)
        found = runner.error, len(server.asked())
    named = listed is not None
    assert found == ((None, 8) if named else ("`/v1/models` answered 403", 0))


# --- a host that is not there --------------------------------------------------------------------------


async def dead_runner(**changes: Any) -> HostRunner:
    async with RawServer({}) as server:
        url = server.url
    runner = runner_at(url, plan(**changes))
    await measured(runner, levels=len(changes.get("levels", (1,))))
    return runner


@pytest.mark.parametrize(
    ("changes", "slots"),
    [
        ({"requests": 25}, {2: range(25)}),
        # at least four waves a level
        ({"levels": (1, 3), "requests": 2}, {1: range(4), 3: range(LEVEL_SLOTS, LEVEL_SLOTS + 12)}),
        # where only time was planned, one wave
        ({"requests": None, "duration_s": 5.0, "concurrency": 3}, {3: range(3)}),
    ],
)
async def test_a_dead_host_is_charged_with_all_that_was_planned_for_it(
    changes: dict[str, Any], slots: dict[int, range]
) -> None:
    runner = await dead_runner(**changes)
    assert runner.error == "`/v1/models`: no connection: connection refused"
    found: dict[int | None, list[int]] = {}
    for shot in runner.records:
        found.setdefault(shot.concurrency, []).append(shot.slot)
    assert found == {level: list(expected) for level, expected in slots.items()}
    [what] = {(s.ok, s.error_kind, s.error, s.sent_at, s.took_ms) for s in runner.records}
    assert what == (False, "not_sent", runner.error, None, None)
    assert len({shot.planned_at for shot in runner.records}) == len(slots)


async def test_a_dead_host_is_charged_when_its_requests_were_due() -> None:
    began_s = time.monotonic()
    runner = await dead_runner(rate=100.0, arrival="constant", requests=5)
    # not all at once: the screen shows a run of so many seconds
    assert time.monotonic() - began_s >= 0.04
    began = runner.records[0].planned_at
    offsets = [shot.planned_at - began for shot in runner.records]
    assert offsets == pytest.approx([0.0, 0.01, 0.02, 0.03, 0.04])
    assert {shot.concurrency for shot in runner.records} == {None}


async def test_charging_lets_the_others_work_meanwhile() -> None:
    async with RawServer({}) as server:
        url = server.url
    runner = runner_at(url, plan(requests=200))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += len(runner.records) > 0

    beside = asyncio.create_task(other())
    await measured(runner)
    beside.cancel()
    charged = len(runner.records)
    assert charged == 200
    assert turns >= 200


# --- warm-up -------------------------------------------------------------------------------------------


async def test_warm_up_prompts_are_no_measured_ones_and_do_not_count() -> None:
    async with ChatServer() as server:
        shots = await measured(runner_at(server.url, plan(warmup=10, requests=20)))
        said = texts(server)
    assert [shot.kind for shot in shots] == ["warmup"] * 10 + ["unique"] * 20
    warm, counted = unmarked(said[:10]), unmarked(said[10:])
    assert set(warm) <= set(WARMUP_PROMPTS)
    assert set(counted) == {message["content"] for p in profile().prompts for message in p.messages}
    assert len({MARK.match(text)[0] for text in said}) == 30


async def test_as_many_are_warmed_up_with_at_once_as_are_measured_at_most() -> None:
    async with Gate() as server:
        runner = runner_at(server.url, plan(levels=(1, 4), warmup=8))
        async with runner.client:
            await runner.choose_model()
            warming = asyncio.create_task(runner.warm_up())
            await until(lambda: server.held == 4)
            server.opened.set()
            await warming
            assert server.most == 4


async def test_a_host_that_fails_is_not_warmed_up_further() -> None:
    async with ChatServer(FAILS) as server:
        runner = runner_at(server.url, plan(warmup=50, requests=1))
        found = [shot.kind for shot in await measured(runner)]
    # two at once, of which each ends with its first failure
    assert found == ["warmup", "warmup", "unique"]


# --- the closed loop -----------------------------------------------------------------------------------


async def test_a_closed_loop_keeps_its_number_under_way_and_no_more() -> None:
    async with Gate() as server:
        runner = runner_at(server.url, plan(concurrency=3, requests=12))
        load = asyncio.create_task(measured(runner))
        await until(lambda: server.held == 3)
        under_way = [runner.in_flight]
        server.opened.set()
        shots = await load
        under_way, most, slots = (
            [*under_way, runner.in_flight],
            server.most,
            [shot.slot for shot in shots],
        )
    assert under_way == [3, 0]
    assert most == 3
    assert sorted(slots) == list(range(12))


async def test_each_request_is_on_its_way_before_the_next_ones_clock_starts() -> None:
    """aiohttp writes a request one turn of the loop later; a hundred clocks started in one turn would be late by it."""
    log: list[tuple[str, int]] = []

    class Noting(HostClient):
        async def send(
            self, context: RequestContext, ask: PlannedRequest, planned_s: float
        ) -> RequestRecord:
            log.append(("clock", ask.slot))
            await asyncio.sleep(0)
            log.append(("written", ask.slot))
            return await super().send(context, ask, planned_s)

    async with Gate() as server:
        wanted = plan(concurrency=5, requests=5)
        client = HostClient(Host(name="alice", url=server.url))
        client.__class__ = Noting
        load = asyncio.create_task(measured(runner_of(client, wanted)))
        await until(lambda: server.held == 5)
        server.opened.set()
        await load
    assert log == [(what, slot) for slot in range(5) for what in ("clock", "written")]


async def test_a_duration_lets_no_request_leave_later_and_waits_for_those_that_left() -> None:
    async with Gate() as server:
        runner = runner_at(server.url, plan(requests=None, duration_s=0.6))
        async with runner.client:
            await runner.choose_model()
            began_s = time.monotonic()
            load = asyncio.create_task(runner.measure(0, began_s))
            await until(lambda: server.held == 2)
            await until(lambda: time.monotonic() >= began_s + 0.6)
            waits = not load.done()
            server.opened.set()
            await load
            shots = runner.records
    assert waits
    assert [shot.ok for shot in shots] == [True, True]
    assert all(shot.sent_at is not None and shot.sent_at < began_s + 0.6 for shot in shots)


async def test_a_duration_goes_on_until_it_is_over() -> None:
    async with ChatServer() as server:
        runner = runner_at(server.url, plan(requests=None, duration_s=0.6))
        async with runner.client:
            await runner.choose_model()
            began_s = time.monotonic()
            await runner.measure(0, began_s)
            shots, took_s = runner.records, time.monotonic() - began_s
    assert took_s >= 0.6
    assert len(shots) > 2
    assert [shot.slot for shot in sorted(shots, key=lambda s: s.slot)] == list(range(len(shots)))


@pytest.mark.parametrize("goes_on", ["requests", "time"])
async def test_a_host_that_fails_at_once_is_not_hammered(goes_on: str) -> None:
    counted = goes_on == "requests"
    wanted = plan(
        requests=1000 if counted else None, duration_s=None if counted else 60.0, concurrency=1
    )

    async with ChatServer(FAILS) as server:
        began_s = time.monotonic()
        load = asyncio.create_task(measured(runner_at(server.url, wanted)))
        await until(lambda: len(server.asked()) >= 5)
        took_s = time.monotonic() - began_s
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)
    # at 0, 0, 0.05, 0.15 and 0.35 s, or later on a busy machine; without pauses within 0.02 s
    assert took_s >= 0.34


async def test_one_failure_costs_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.bench.host_runner.PAUSE_S", 1000.0)
    monkeypatch.setattr("toolkit.bench.host_runner.LONGEST_PAUSE_S", 1000.0)

    async with ChatServer(in_turn(*[FAILS, STREAM] * 3)) as server:
        shots = await measured(runner_at(server.url, plan(concurrency=1, requests=6)))
    assert [shot.ok for shot in shots] == [False, True] * 3


# --- twins and levels ----------------------------------------------------------------------------------


async def test_a_twin_is_byte_for_byte_what_it_repeats() -> None:
    async with ChatServer() as server:
        wanted = plan(concurrency=1, requests=24, sameness="pairs", stream_share=0.5)
        shots = await measured(runner_at(server.url, wanted))
        asked = zip(server.paths(), server.bodies, strict=True)
        bodies = [body for path, body in asked if path == CHAT]
    # one after the other, so that slots and bodies stand in one order
    assert [shot.slot for shot in shots] == list(range(24))
    twins = [shot for shot in shots if shot.kind == "twin"]
    assert len(twins) >= 4
    for twin in twins:
        assert twin.pair is not None
        assert bodies[twin.slot] == bodies[twin.pair]
        assert (shots[twin.pair].kind, shots[twin.pair].ok) == ("unique", True)
    assert len(set(bodies)) == 24 - len(twins)


async def test_levels_follow_each_other_with_slots_and_prompts_of_their_own() -> None:
    async with ChatServer() as server:
        runner = runner_at(server.url, plan(levels=(1, 2, 4), requests=2, warmup=2))
        shots, said = await measured(runner, levels=3), texts(server)
    counted = [shot for shot in shots if shot.kind != "warmup"]
    assert Counter(shot.concurrency for shot in counted) == {1: 4, 2: 8, 4: 16}
    assert [shot.concurrency for shot in counted] == [1] * 4 + [2] * 8 + [4] * 16
    assert len({shot.slot for shot in counted}) == 28
    assert len(set(said)) == 30
    for lower, higher in ((1, 2), (2, 4)):
        ended = [
            shot.sent_at + shot.took_ms / 1000 for shot in counted if shot.concurrency == lower
        ]
        began = [shot.sent_at for shot in counted if shot.concurrency == higher]
        assert max(ended) <= min(began)


async def test_a_host_that_is_late_with_a_whole_level_is_not_asked_at_the_next() -> None:
    async with Gate() as server:
        runner = runner_at(server.url, plan(levels=(1, 2), requests=1, timeout_s=0.05))
        await measured(runner, levels=2)
    kinds = Counter((shot.concurrency, shot.error_kind) for shot in runner.records)
    assert kinds == {(1, "timeout"): 4, (2, "not_sent"): 8}
    assert runner.error == "it answered nothing within 0.05 s a request"
