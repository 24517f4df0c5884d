"""One host's part in a run: made ready, warmed up, asked in a closed loop, charged. Servers do as told."""

import asyncio
import time
from collections import Counter
from typing import Any

import pytest
from support.benching import MARK, lane_at, measured, plan, profile, texts, unmarked
from support.chat import CHAT, STREAM, ChatServer, Gate, models_page, until
from support.raw_server import RawServer, http

from toolkit.bench.asks import WARMUP_PROMPTS, PlannedRequest
from toolkit.bench.client import HostClient
from toolkit.bench.lane import LEVEL_SLOTS, Lane, LaneSetting
from toolkit.bench.shots import ShotContext
from toolkit.records import Host, Shot

FAILS = http("no", "500 Internal Server Error")
TWO_MODELS = models_page({"id": "one"}, {"id": "two", "root": "org/Two"})


@pytest.fixture(autouse=True)
def quick_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters that stand still are believed sooner."""
    monkeypatch.setattr("toolkit.bench.lane.SETTLE_LOOK_S", 0.005)


# --- making ready --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listed", "wanted", "asked_for"),
    [(None, None, "one"), ("two", None, "two"), ("gone", None, "one"), ("one", "org/Two", "two")],
)
def test_requests_name_the_model_that_was_chosen(
    listed: str | None, wanted: str | None, asked_for: str
) -> None:
    async def scene() -> set[str]:
        async with ChatServer(**{"/v1/models": TWO_MODELS}) as server:
            await measured(lane_at(server.url, plan(), model=wanted, listed=listed))
            return {body["model"] for body in server.asked()}

    assert asyncio.run(scene()) == {asked_for}


@pytest.mark.parametrize("listed", [None, "tiny"])
def test_a_host_that_lists_no_models_is_asked_for_the_named_one(listed: str | None) -> None:
    async def scene() -> tuple[str | None, int]:
        async with ChatServer(**{"/v1/models": http("no", "403 Forbidden")}) as server:
            lane = lane_at(server.url, plan(), listed=listed)
            await measured(lane)
            return lane.error, len(server.asked())

    named = listed is not None
    assert asyncio.run(scene()) == ((None, 8) if named else ("`/v1/models` answered 403", 0))


def test_a_model_that_is_not_served_is_not_asked_for() -> None:
    async def scene() -> tuple[Lane, list[str]]:
        async with ChatServer() as server:
            lane = lane_at(server.url, plan(), model="gone")
            await measured(lane)
            return lane, server.paths()

    lane, paths = asyncio.run(scene())
    assert lane.not_served
    assert lane.error == "it does not serve `gone` but `tiny`"
    assert CHAT not in paths
    assert Counter(shot.error_kind for shot in lane.shots) == {"not_sent": 8}


def test_connections_are_ready_when_the_load_begins() -> None:
    async def scene() -> tuple[int, int]:
        async with Gate() as server:
            lane = lane_at(server.url, plan(concurrency=5, requests=5))
            async with lane.client:
                await lane.choose_model()
                await lane.connect(0)
                ready = server.connections
                load = asyncio.create_task(lane.measure(0, time.monotonic()))
                await until(lambda: server.held == 5)
                server.opened.set()
                await load
                return ready, server.connections

    assert asyncio.run(scene()) == (5, 5)


# --- a host that is not there --------------------------------------------------------------------------


async def dead_lane(**changes: Any) -> Lane:
    async with RawServer({}) as server:
        url = server.url
    lane = lane_at(url, plan(**changes))
    await measured(lane, levels=len(lane._plan.levels) or 1)
    return lane


def test_a_dead_host_is_charged_with_all_that_was_planned_for_it() -> None:
    lane = asyncio.run(dead_lane(requests=25))
    assert lane.error == "`/v1/models`: no connection: connection refused"
    assert [shot.slot for shot in lane.shots] == list(range(25))
    [what] = {
        (s.ok, s.error_kind, s.error, s.sent_at, s.took_ms, s.concurrency) for s in lane.shots
    }
    assert what == (False, "not_sent", lane.error, None, None, 2)
    assert len({shot.planned_at for shot in lane.shots}) == 1


def test_a_dead_host_is_charged_at_each_level() -> None:
    lane = asyncio.run(dead_lane(levels=(1, 3), requests=2))
    # at least four waves a level
    assert Counter(shot.concurrency for shot in lane.shots) == {1: 4, 3: 12}
    assert [shot.slot for shot in lane.shots] == [*range(4), *range(LEVEL_SLOTS, LEVEL_SLOTS + 12)]


def test_a_dead_host_is_charged_when_its_requests_were_due() -> None:
    began_s = time.monotonic()
    lane = asyncio.run(dead_lane(rate=100.0, arrival="constant", requests=5))
    # not all at once: the screen shows a run of so many seconds
    assert time.monotonic() - began_s >= 0.04
    began = lane.shots[0].planned_at
    offsets = [shot.planned_at - began for shot in lane.shots]
    assert offsets == pytest.approx([0.0, 0.01, 0.02, 0.03, 0.04])
    assert {shot.concurrency for shot in lane.shots} == {None}


def test_a_dead_host_owes_one_wave_when_only_time_was_planned() -> None:
    assert len(asyncio.run(dead_lane(requests=None, duration_s=5.0, concurrency=3)).shots) == 3


def test_charging_lets_the_others_work_meanwhile() -> None:
    async def scene() -> tuple[int, int]:
        async with RawServer({}) as server:
            url = server.url
        lane = lane_at(url, plan(requests=200))
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += len(lane.shots) > 0

        beside = asyncio.create_task(other())
        await measured(lane)
        beside.cancel()
        return len(lane.shots), turns

    charged, turns = asyncio.run(scene())
    assert charged == 200
    assert turns >= 200


# --- warm-up -------------------------------------------------------------------------------------------


def test_warm_up_prompts_are_no_measured_ones_and_do_not_count() -> None:
    async def scene() -> tuple[list[Shot], list[str]]:
        async with ChatServer() as server:
            shots = await measured(lane_at(server.url, plan(warmup=10, requests=20)))
            return shots, texts(server)

    shots, said = asyncio.run(scene())
    assert [shot.kind for shot in shots] == ["warmup"] * 10 + ["unique"] * 20
    warm, counted = unmarked(said[:10]), unmarked(said[10:])
    assert set(warm) <= set(WARMUP_PROMPTS)
    assert set(counted) == {message["content"] for p in profile().prompts for message in p.messages}
    assert len({MARK.match(text)[0] for text in said}) == 30


def test_as_many_are_warmed_up_with_at_once_as_are_measured_at_most() -> None:
    async def scene() -> int:
        async with Gate() as server:
            lane = lane_at(server.url, plan(levels=(1, 4), warmup=8))
            async with lane.client:
                await lane.choose_model()
                warming = asyncio.create_task(lane.warm_up())
                await until(lambda: server.held == 4)
                server.opened.set()
                await warming
                return server.most

    assert asyncio.run(scene()) == 4


def test_a_host_that_fails_is_not_warmed_up_further() -> None:
    async def scene() -> list[str]:
        async with ChatServer(FAILS) as server:
            lane = lane_at(server.url, plan(warmup=50, requests=1))
            return [shot.kind for shot in await measured(lane)]

    # two at once, of which each ends with its first failure
    assert asyncio.run(scene()) == ["warmup", "warmup", "unique"]


# --- the closed loop -----------------------------------------------------------------------------------


def test_a_closed_loop_keeps_its_number_under_way_and_no_more() -> None:
    async def scene() -> tuple[list[int], int, list[int]]:
        async with Gate() as server:
            lane = lane_at(server.url, plan(concurrency=3, requests=12))
            load = asyncio.create_task(measured(lane))
            await until(lambda: server.held == 3)
            under_way = [lane.under_way]
            server.opened.set()
            shots = await load
            return [*under_way, lane.under_way], server.most, [shot.slot for shot in shots]

    under_way, most, slots = asyncio.run(scene())
    assert under_way == [3, 0]
    assert most == 3
    assert sorted(slots) == list(range(12))


def test_each_request_is_on_its_way_before_the_next_ones_clock_starts() -> None:
    """aiohttp writes a request one turn of the loop later; a hundred clocks started in one turn would be late by it."""
    log: list[tuple[str, int]] = []

    class Noting(HostClient):
        async def send(self, course: ShotContext, ask: PlannedRequest, planned_s: float) -> Shot:
            log.append(("clock", ask.slot))
            await asyncio.sleep(0)
            log.append(("written", ask.slot))
            return await super().send(course, ask, planned_s)

    async def scene() -> None:
        async with Gate() as server:
            wanted = plan(concurrency=5, requests=5)
            client = HostClient(Host(name="alice", url=server.url))
            client.__class__ = Noting
            setting = LaneSetting(
                run="r", plan=wanted, profile=profile(), model=None, wall_offset_s=0
            )
            load = asyncio.create_task(measured(Lane(client, setting, "n", lambda _: None)))
            await until(lambda: server.held == 5)
            server.opened.set()
            await load

    asyncio.run(scene())
    assert log == [(what, slot) for slot in range(5) for what in ("clock", "written")]


def test_a_duration_lets_no_request_leave_later_and_waits_for_those_that_left() -> None:
    async def scene() -> tuple[list[Shot], float, bool]:
        async with Gate() as server:
            lane = lane_at(server.url, plan(requests=None, duration_s=0.6))
            async with lane.client:
                await lane.choose_model()
                began_s = time.monotonic()
                load = asyncio.create_task(lane.measure(0, began_s))
                await until(lambda: server.held == 2)
                await until(lambda: time.monotonic() >= began_s + 0.6)
                waits = not load.done()
                server.opened.set()
                await load
                return lane.shots, began_s, waits

    shots, began_s, waits = asyncio.run(scene())
    assert waits
    assert [shot.ok for shot in shots] == [True, True]
    assert all(shot.sent_at is not None and shot.sent_at < began_s + 0.6 for shot in shots)


def test_a_duration_goes_on_until_it_is_over() -> None:
    async def scene() -> tuple[list[Shot], float]:
        async with ChatServer() as server:
            lane = lane_at(server.url, plan(requests=None, duration_s=0.6))
            async with lane.client:
                await lane.choose_model()
                began_s = time.monotonic()
                await lane.measure(0, began_s)
                return lane.shots, time.monotonic() - began_s

    shots, took_s = asyncio.run(scene())
    assert took_s >= 0.6
    assert len(shots) > 2
    assert [shot.slot for shot in sorted(shots, key=lambda s: s.slot)] == list(range(len(shots)))


@pytest.mark.parametrize("goes_on", ["requests", "time"])
def test_a_host_that_fails_at_once_is_not_hammered(goes_on: str) -> None:
    counted = goes_on == "requests"
    wanted = plan(
        requests=1000 if counted else None, duration_s=None if counted else 60.0, concurrency=1
    )

    async def scene() -> float:
        async with ChatServer(FAILS) as server:
            began_s = time.monotonic()
            load = asyncio.create_task(measured(lane_at(server.url, wanted)))
            await until(lambda: len(server.asked()) >= 5)
            took_s = time.monotonic() - began_s
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)
            return took_s

    # at 0, 0, 0.05, 0.15 and 0.35 s, or later on a busy machine; without pauses within 0.02 s
    assert asyncio.run(scene()) >= 0.34


def test_one_failure_costs_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.bench.lane.PAUSE_S", 1000.0)
    monkeypatch.setattr("toolkit.bench.lane.LONGEST_PAUSE_S", 1000.0)

    class Flaky(ChatServer):
        def __init__(self) -> None:
            super().__init__(self.answer)

        async def answer(self, writer: asyncio.StreamWriter) -> bool:
            writer.write(FAILS if len(self.asked()) % 2 else STREAM)
            return True

    async def scene() -> list[bool]:
        async with Flaky() as server:
            shots = await measured(lane_at(server.url, plan(concurrency=1, requests=6)))
            return [shot.ok for shot in shots]

    assert asyncio.run(scene()) == [False, True] * 3


# --- twins and levels ----------------------------------------------------------------------------------


def test_a_twin_is_byte_for_byte_what_it_repeats() -> None:
    async def scene() -> tuple[list[Shot], list[bytes]]:
        async with ChatServer() as server:
            wanted = plan(concurrency=1, requests=24, sameness="pairs", stream_share=0.5)
            shots = await measured(lane_at(server.url, wanted))
            asked = zip(server.paths(), server.bodies, strict=True)
            return shots, [body for path, body in asked if path == CHAT]

    shots, bodies = asyncio.run(scene())
    # one after the other, so that slots and bodies stand in one order
    assert [shot.slot for shot in shots] == list(range(24))
    twins = [shot for shot in shots if shot.kind == "twin"]
    assert len(twins) >= 4
    for twin in twins:
        assert twin.pair is not None
        assert bodies[twin.slot] == bodies[twin.pair]
        assert (shots[twin.pair].kind, shots[twin.pair].ok) == ("unique", True)
    assert len(set(bodies)) == 24 - len(twins)


def test_what_was_not_answered_has_no_twin() -> None:
    async def scene() -> Counter[str]:
        async with ChatServer(FAILS) as server:
            wanted = plan(concurrency=8, requests=16, sameness="pairs")
            return Counter(shot.kind for shot in await measured(lane_at(server.url, wanted)))

    assert asyncio.run(scene()) == {"unique": 16}


def test_levels_follow_each_other_with_slots_and_prompts_of_their_own() -> None:
    async def scene() -> tuple[list[Shot], list[str]]:
        async with ChatServer() as server:
            lane = lane_at(server.url, plan(levels=(1, 2, 4), requests=2, warmup=2))
            return await measured(lane, levels=3), texts(server)

    shots, said = asyncio.run(scene())
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


def test_a_host_that_is_late_with_a_whole_level_is_not_asked_at_the_next() -> None:
    async def scene() -> Lane:
        async with Gate() as server:
            lane = lane_at(server.url, plan(levels=(1, 2), requests=1, timeout_s=0.05))
            await measured(lane, levels=2)
            return lane

    lane = asyncio.run(scene())
    kinds = Counter((shot.concurrency, shot.error_kind) for shot in lane.shots)
    assert kinds == {(1, "timeout"): 4, (2, "not_sent"): 8}
    assert lane.error == "it answered nothing within 0.05 s a request"
