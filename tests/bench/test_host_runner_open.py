"""One host's part in an open loop: requests leave on time, whatever the answers take."""

import asyncio
from itertools import islice

import pytest
from support.benching import measured, plan, runner_at
from support.chat import STREAM, ChatServer, Gate, until

from toolkit.bench.plan import send_times
from toolkit.records import RequestRecord

EVERY_20_MS = {"rate": 50.0, "arrival": "constant"}


@pytest.fixture(autouse=True)
def quick_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters that stand still are believed sooner."""
    monkeypatch.setattr("toolkit.bench.host_runner.SETTLE_SAMPLE_S", 0.005)


def planned(shots: list[RequestRecord]) -> list[float]:
    """Seconds after the first, by slot."""
    ordered = sorted(shots, key=lambda shot: shot.slot)
    return [shot.planned_at - ordered[0].planned_at for shot in ordered]


async def test_requests_leave_on_time_though_no_answer_comes() -> None:
    async with Gate() as server:
        runner = runner_at(server.url, plan(**EVERY_20_MS, requests=6, concurrency=100))
        load = asyncio.create_task(measured(runner))
        await until(lambda: server.held == 6)  # all are there, and none is answered
        answered = len(runner.records)
        server.opened.set()
        shots = await load
    assert answered == 0
    assert planned(shots) == pytest.approx([0.0, 0.02, 0.04, 0.06, 0.08, 0.10])
    assert all(shot.ok and shot.concurrency is None for shot in shots)
    assert all(shot.send_lag_ms is not None and shot.send_lag_ms >= -1 for shot in shots)


async def test_they_leave_when_the_schedule_says() -> None:
    wanted = plan(rate=200.0, arrival="poisson", requests=8, concurrency=100, seed=5)

    async with ChatServer() as server:
        found = await measured(runner_at(server.url, wanted))
    due = list(islice(send_times(wanted), 8))
    assert planned(found) == pytest.approx([at - due[0] for at in due])


async def test_who_waits_for_a_place_waits_in_its_own_latency() -> None:
    """Coordinated omission: the second request was due while the first one held the only place."""

    async with Gate() as server:
        runner = runner_at(server.url, plan(**EVERY_20_MS, requests=2, concurrency=1))
        load = asyncio.create_task(measured(runner))
        await until(lambda: server.held == 1)
        await asyncio.sleep(0.2)  # what the first answer takes
        server.opened.set()
        (first, second) = sorted(await load, key=lambda shot: shot.slot)
    assert first.ok
    assert second.ok
    assert None not in (first.sent_at, second.sent_at, second.ttft_ms, second.send_lag_ms)
    # it left only when the first was over, and all of that is in its time to first token; times count from the planned
    # send, and a busy machine sends the first one late as well
    assert second.sent_at >= min(first.planned_at, first.sent_at) + first.e2e_ms / 1000
    assert second.ttft_ms >= second.send_lag_ms >= 150
    # and it is no lateness of this machine
    lag_ms = runner.lag.quantile(1.0)
    assert lag_ms is not None
    assert lag_ms < second.send_lag_ms
    assert runner.lag.count == 2


async def test_no_more_than_the_cap_are_under_way_and_the_overdue_never_leave() -> None:
    async with Gate() as server:
        wanted = plan(**EVERY_20_MS, requests=6, concurrency=2, timeout_s=0.6)
        # the two that leave may take longer than the others may wait
        runner = runner_at(server.url, wanted, timeout_s=30.0)
        load = asyncio.create_task(measured(runner))
        await until(lambda: len(runner.records) == 4)
        server.opened.set()
        shots, most, asked = await load, server.most, len(server.asked())
    assert (most, asked) == (2, 2)
    assert [(shot.slot, shot.ok) for shot in shots[4:]] == [(0, True), (1, True)]
    assert [shot.slot for shot in shots[:4]] == [2, 3, 4, 5]
    for shot in shots[:4]:
        assert (shot.error_kind, shot.ok) == ("not_sent", False)
        assert shot.error == "2 requests were under way for 0.6 s"
        assert (shot.sent_at, shot.send_lag_ms, shot.took_ms) == (None, None, None)
    assert planned(shots) == pytest.approx([0.0, 0.02, 0.04, 0.06, 0.08, 0.10])


async def test_a_place_is_free_again_after_a_failure() -> None:
    async def cut(writer: asyncio.StreamWriter) -> bool:
        writer.write(STREAM[:60])
        return False

    async with ChatServer(cut) as server:
        wanted = plan(**EVERY_20_MS, requests=5, concurrency=1)
        shots = await measured(runner_at(server.url, wanted))
    assert [shot.sent_at is not None for shot in shots] == [True] * 5


async def test_an_open_loop_ends_with_its_time() -> None:
    async with ChatServer() as server:
        wanted = plan(**EVERY_20_MS, requests=None, duration_s=0.1, concurrency=10)
        found = await measured(runner_at(server.url, wanted))
    # at 0, 20, 40, 60 and 80 ms
    assert planned(found) == pytest.approx([0.0, 0.02, 0.04, 0.06, 0.08])
