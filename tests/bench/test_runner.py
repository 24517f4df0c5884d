"""A run over several hosts: the same for all, at the same moment or in turns, kept whole whatever ends it."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from support.benching import MARK, plan, profile, texts, unmarked
from support.chat import CHAT, STREAM, ChatServer, Gate, in_turn, until
from support.raw_server import RawServer

from toolkit.bench.client import HostClient
from toolkit.bench.plan import BenchPlan
from toolkit.bench.runner import Bench
from toolkit.errors import ToolkitError
from toolkit.records import Host, RequestRecord


@pytest.fixture(autouse=True)
def quick_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters that stand still are believed sooner."""
    monkeypatch.setattr("toolkit.bench.host_runner.SETTLE_SAMPLE_S", 0.005)


def bench_of(urls: Sequence[str], wanted: BenchPlan, **settings: Any) -> Bench:
    """A bench over hosts named `a`, `b`, `c`."""
    clients = [
        HostClient(Host(name=name, url=url), timeout_s=wanted.timeout_s)
        for name, url in zip("abc", urls, strict=False)
    ]
    return Bench(clients, wanted, profile(), **settings)


async def run_over(servers: Sequence[RawServer], wanted: BenchPlan, **settings: Any) -> Bench:
    bench = bench_of([server.url for server in servers], wanted, **settings)
    await bench.run()
    return bench


def shots_of(bench: Bench) -> list[RequestRecord]:
    return [shot for runner in bench.hosts for shot in runner.records]


# --- the same for all ----------------------------------------------------------------------------------


async def test_all_hosts_get_the_same_requests_but_for_their_marks() -> None:
    wanted = plan(
        requests=24, concurrency=1, sameness="pairs", stream_share=0.5, levels=(1, 2), warmup=2
    )

    async with ChatServer() as a, ChatServer() as b, ChatServer() as c:
        bench = await run_over((a, b, c), wanted)
        said = [texts(server) for server in (a, b, c)]
    by_slot = [
        {
            shot.slot: (shot.prompt, shot.stream, shot.max_tokens, shot.kind, shot.pair)
            for shot in runner.records
            if shot.concurrency == 1 and shot.kind != "warmup"
        }
        for runner in bench.hosts
    ]
    # one at a time, every answer is there before the next slot, and twins fall on the same slots
    assert by_slot[0] == by_slot[1] == by_slot[2]
    assert len(by_slot[0]) == 24
    assert Counter(kind for _, _, _, kind, _ in by_slot[0].values())["twin"] >= 4
    assert unmarked(said[0][:26]) == unmarked(said[1][:26]) == unmarked(said[2][:26])
    marks = [{MARK.match(text)[0] for text in host} for host in said]
    assert not marks[0] & marks[1]
    assert not marks[1] & marks[2]
    assert not marks[0] & marks[2]


async def test_no_two_levels_and_no_two_runs_ask_the_same() -> None:
    async with ChatServer() as server:
        for _ in range(2):
            await run_over((server,), plan(levels=(1, 2), requests=1, warmup=3, seed=1))
        said = texts(server)
    # 2 runs of 3 + 4 + 8
    assert len(said) == len(set(said)) == 30


async def test_hosts_are_asked_at_the_same_moment() -> None:
    """Each host answers only when all of them are asked: one after the other would never end."""

    async with Gate() as a, Gate() as b, Gate() as c:
        run = asyncio.create_task(run_over((a, b, c), plan()))
        await until(lambda: a.held == b.held == c.held == 2)
        for server in (a, b, c):
            server.opened.set()
        found = await run
    assert all(shot.ok for shot in shots_of(found))


async def test_in_sequence_each_host_is_alone() -> None:
    async with Gate() as a, Gate() as b:
        run = asyncio.create_task(run_over((a, b), plan(sequential=True, warmup=2)))
        await until(lambda: a.held == 2)
        alone = [len(b.asked())]
        a.opened.set()
        await until(lambda: b.held == 2)
        alone.append(10 - len(a.asked()))
        b.opened.set()
        bench = await run
    assert alone == [0, 0]
    first, second = (runner.records for runner in bench.hosts)
    assert max(s.sent_at + s.took_ms / 1000 for s in first) <= min(s.sent_at for s in second)
    assert [len(first), len(second)] == [10, 10]


async def test_a_host_that_hangs_delays_nobody_and_is_charged() -> None:
    order: list[tuple[str, str | None]] = []

    async with ChatServer() as a, Gate() as b, ChatServer() as c:
        bench = await run_over(
            (a, b, c),
            plan(timeout_s=0.8, requests=2),
            show=lambda shot: order.append((shot.name, shot.error_kind)),
        )
    # all the others' are over before the first of the hanging one's
    assert {name for name, _ in order[:4]} == {"a", "c"}
    assert order[4:] == [("b", "timeout")] * 2
    assert [[shot.ok for shot in runner.records] for runner in bench.hosts] == [
        [True, True],
        [False, False],
        [True, True],
    ]


async def test_levels_begin_together_though_one_host_is_slower() -> None:
    async with ChatServer() as fast, Gate() as slow:
        bench = bench_of([fast.url, slow.url], plan(levels=(1, 2), requests=1))
        run = asyncio.create_task(bench.run())
        await until(lambda: slow.held == 1 and len(bench.hosts[0].records) == 4)
        before = [shot.concurrency for shot in bench.hosts[0].records]
        slow.opened.set()
        await run
        after = [shot.concurrency for shot in bench.hosts[0].records]
    assert before == [1] * 4
    assert after == [1] * 4 + [2] * 8


# --- the model of the command line ---------------------------------------------------------------------


# --- what is kept --------------------------------------------------------------------------------------


async def test_every_shot_is_kept_once_and_in_order() -> None:
    kept: list[RequestRecord] = []
    keepers: set[int] = set()

    def keep(batch: Sequence[RequestRecord]) -> None:
        assert batch
        kept.extend(batch)
        keepers.add(threading.get_ident())

    async with ChatServer() as a, ChatServer() as b:
        bench = await run_over((a, b), plan(requests=30, warmup=5), keep=keep)
    assert len(kept) == 70
    for runner in bench.hosts:
        assert [shot for shot in kept if shot.name == runner.host.name] == runner.records
    # a slow disk is not the event loop's, and a connection to a store is used by one thread alone
    assert len(keepers) == 1
    assert threading.get_ident() not in keepers


async def test_shots_are_kept_while_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.bench.runner.KEEP_EVERY_S", 0.01)
    kept: list[RequestRecord] = []

    async with Gate() as server:
        server.pages[CHAT] = in_turn(STREAM, STREAM, server.answer)
        run = asyncio.create_task(
            run_over((server,), plan(requests=4, concurrency=1), keep=kept.extend)
        )
        await until(lambda: len(kept) == 2)
        assert server.held <= 1
        server.opened.set()
        await run
    assert len(kept) == 4


@pytest.mark.parametrize("when", ["at once", "at the end"])
async def test_a_store_that_fails_ends_the_run_with_its_error(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setattr("toolkit.bench.runner.KEEP_EVERY_S", 0.01 if when == "at once" else 60.0)
    ours, tried = asyncio.all_tasks(), list[list[int]]()

    def keep(batch: Sequence[RequestRecord]) -> None:
        tried.append([shot.slot for shot in batch])
        raise OSError(28, "No space left on device")

    async with Gate() as server:
        server.pages[CHAT] = in_turn(STREAM, STREAM if when == "at the end" else server.answer)
        with pytest.raises(OSError, match="No space left"):
            await run_over((server,), plan(concurrency=1), keep=keep)
        # nobody goes on behind the scenes
        assert asyncio.all_tasks() - server.handlers() == ours
    # what could not be kept is tried once more at the end
    assert tried[-1][0] == 0


async def test_what_a_store_refuses_is_tried_again_in_small_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolkit.bench.runner.KEEP_EVERY_S", 60.0)
    monkeypatch.setattr("toolkit.bench.runner.MOST_AT_ONCE", 10)
    tried: list[int] = []
    kept: list[RequestRecord] = []
    warnings: list[str] = []

    def keep(batch: Sequence[RequestRecord]) -> None:
        tried.append(len(batch))
        if len(tried) in (2, 3):
            raise ToolkitError("`t.db` is locked", "Wait")
        kept.extend(batch)

    async with ChatServer() as server:
        bench = await run_over((server,), plan(requests=25), keep=keep, warn=warnings.append)
    # ten of 25 are kept at the end of the run, the next ten are refused
    assert (tried, len(kept)) == ([10, 10], 10)
    with pytest.raises(ToolkitError, match="locked"):
        bench.keep_waiting()
    bench.keep_waiting()
    assert tried == [10, 10, 10, 10, 5]
    assert kept == shots_of(bench)
    assert warnings == ["Warning: `t.db` is locked; the bench continues and tries again"]


async def test_a_screen_that_fails_ends_the_run_with_its_own_error() -> None:
    """`| head` closes standard output: a broken pipe, and no group of one."""

    def show(_: RequestRecord) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    ours, kept = asyncio.all_tasks(), list[RequestRecord]()
    async with Gate() as slow, ChatServer() as fast:
        with pytest.raises(BrokenPipeError):
            await run_over((slow, fast), plan(), show=show, keep=kept.extend)
        left = asyncio.all_tasks() - slow.handlers() - fast.handlers() - ours
    assert left == set()
    assert kept


async def test_a_stopped_run_keeps_what_was_measured_and_closes_everything() -> None:
    ours, kept = asyncio.all_tasks(), list[RequestRecord]()

    async with Gate() as server:
        server.pages[CHAT] = in_turn(STREAM, STREAM, STREAM, server.answer)
        bench = bench_of([server.url], plan(requests=50, concurrency=2), keep=kept.extend)
        run = asyncio.create_task(bench.run())
        await until(lambda: server.held == 2)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        left = asyncio.all_tasks() - server.handlers() - ours
    assert kept == shots_of(bench)
    assert [shot.ok for shot in kept] == [True] * 3
    assert bench.hosts[0].in_flight == 0
    assert bench.hosts[0].ledger.error == "the run was stopped before they were read"
    assert left == set()


# --- the measuring machine -----------------------------------------------------------------------------


def hold_up(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@pytest.mark.parametrize("busy", ["a", "b", None])
async def test_a_machine_that_was_held_up_at_any_hosts_turn_is_not_fit(busy: str | None) -> None:
    def show(shot: RequestRecord) -> None:
        if shot.name == busy:
            hold_up(0.1)

    async with ChatServer() as a, ChatServer() as b:
        found = (await run_over((a, b), plan(sequential=True, requests=4), show=show)).fitness
    lag_ms = found.loop_lag_p99_ms
    assert lag_ms is not None
    if busy:
        assert not found.ok
        assert lag_ms >= 0.99 * 90
    else:
        assert lag_ms < 90


async def test_what_happens_after_the_load_is_not_held_against_the_machine() -> None:
    class Busy(ChatServer):
        async def show(self, writer: asyncio.StreamWriter) -> bool:
            if len(self.asked()) == 8:
                hold_up(0.1)
            writer.write(self.pages["page"])
            return True

    async with Busy() as server:
        server.pages["page"], server.pages["/metrics"] = server.pages["/metrics"], server.show
        found = await run_over((server,), plan())
    lag_ms = found.fitness.loop_lag_p99_ms
    assert lag_ms is not None
    assert lag_ms < 90


async def test_a_host_that_is_slow_is_no_lateness_of_the_machine() -> None:
    """In an open loop whose places it holds, requests leave late for its sake."""
    wanted = plan(requests=4, rate=100.0, arrival="constant", concurrency=1)

    async with Gate() as server:
        run = asyncio.create_task(run_over((server,), wanted))
        await until(lambda: server.held == 1)
        await asyncio.sleep(0.2)
        server.opened.set()
        bench = await run
    most_ms = max(shot.send_lag_ms for shot in shots_of(bench))
    assert most_ms >= 150
    lag_ms = bench.fitness.send_lag_p99_ms
    assert lag_ms is not None
    assert lag_ms < most_ms


async def test_times_of_day_are_the_wall_clocks() -> None:
    async with ChatServer() as server:
        began = time.time()
        bench = await run_over((server,), plan())
        shots, ended = shots_of(bench), time.time()
    for shot in shots:
        assert shot.sent_at is not None
        assert began - 0.01 <= shot.planned_at <= ended + 0.01
        assert began - 0.01 <= shot.sent_at <= ended + 0.01
