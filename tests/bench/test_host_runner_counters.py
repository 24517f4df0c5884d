"""What a host's own counters moved by: read before, seen during, read when they stand still."""

import asyncio
import re
import time
from typing import Any

import pytest
from support.benching import measured, plan, runner_at
from support.chat import ChatServer, Gate, hang, in_turn, models_page, until
from support.raw_server import http, recorded

from toolkit.bench.host_runner import HostRunner
from toolkit.sim.app import serve_in_thread

PAGE = recorded("metrics_after_load.txt").decode()
LENGTH = 'vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"}'
WAITING = 'vllm:num_requests_waiting{engine="0",model_name="tiny"}'


def page(*, ended: int = 1000, waiting: int = 0) -> bytes:
    """The recorded page with other numbers."""
    text = PAGE
    for name, value in ((LENGTH, ended), (WAITING, waiting)):
        text, found = re.subn(
            f"^{re.escape(name)} .*$", f"{name} {value}.0", text, flags=re.MULTILINE
        )
        assert found == 1
    return http(text, content_type="text/plain")


def looks(server: ChatServer) -> int:
    return server.paths().count("/metrics")


async def runner_after(server: ChatServer, **changes: Any) -> HostRunner:
    runner = runner_at(server.url, plan(**changes))
    await measured(runner)
    return runner


@pytest.mark.parametrize("name", ["gptq-int4", "cached"])
def test_at_an_honest_host_nothing_is_missing_and_nothing_is_over(name: str) -> None:
    with serve_in_thread(name, model="tiny", max_model_len=512, time_scale=0.01) as sim:
        runner = runner_at(sim.url, plan(requests=20, warmup=4, concurrency=4, stream_share=0.5))
        asyncio.run(measured(runner))
    found, shots = runner.ledger, runner.records
    assert len(shots) == 24
    assert all(shot.ok for shot in shots), {shot.error for shot in shots}
    assert (found.error, found.restarted) == (None, False)
    assert found.requests == 24
    assert found.prompt_tokens == sum(shot.prompt_tokens or 0 for shot in shots)
    assert found.generation_tokens == sum(shot.output_tokens or 0 for shot in shots) > 0
    assert found.asked_tokens == sum(shot.max_tokens for shot in shots)
    assert [model.id for model in found.models_before] == ["tiny"]
    assert found.models_after == found.models_before
    assert found.rtt_ms is not None


async def test_the_counters_are_read_when_they_stand_still() -> None:
    moving = in_turn(*(page(ended=n) for n in (100, 101, 104, 108)))
    async with ChatServer(**{"/metrics": moving}) as server:
        found = (await runner_after(server)).ledger
        # before, then 101, 104, 108 and the first that is as the one before
        assert looks(server) == 5
    assert (found.requests, found.error) == (8, None)


@pytest.mark.parametrize(
    ("shown", "is_counting"),
    [([page(ended=n) for n in range(100, 130)], True), ([page(waiting=3)], False)],
    ids=["somebody else's requests", "a queue that never empties"],
)
async def test_counters_that_never_stand_still_are_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, shown: list[bytes], is_counting: bool
) -> None:
    monkeypatch.setattr("toolkit.bench.host_runner.SETTLE_S", 0.3)

    async with ChatServer(**{"/metrics": in_turn(*shown)}) as server:
        found, count = (await runner_after(server)).ledger, looks(server)
    assert count >= 2
    # before was 100, and each look after it one more
    assert (found.requests, found.error) == (count - 1 if is_counting else 0, None)


@pytest.mark.parametrize("is_long", [False, True])
async def test_the_queue_is_seen_during_the_load_but_not_on_a_long_page(
    monkeypatch: pytest.MonkeyPatch, is_long: bool
) -> None:
    monkeypatch.setattr("toolkit.bench.host_runner.SAMPLE_EVERY_S", 0.01)

    async with Gate() as server:

        async def show(writer: asyncio.StreamWriter) -> bool:
            shown = page(waiting=7 if server.held else 0)
            padding = "# HELP padding\n" * 80_000 if is_long else ""  # 1.2 MB
            _, _, body = shown.decode().partition("\r\n\r\n")
            writer.write(http(body + padding, content_type="text/plain"))
            return True

        server.pages["/metrics"] = show
        load = asyncio.create_task(runner_after(server))
        await until(lambda: server.held == 2)
        before = looks(server)
        await until(lambda: looks(server) > before + 2)
        server.opened.set()
        found = (await load).ledger
    # before and after it is read, whatever it takes
    assert (found.waiting_before, found.waiting_max) == (0, None if is_long else 7)
    # the looks hold no histogram and are no readings of a new process
    assert (found.restarted, found.requests, found.error) == (False, 0, None)


@pytest.mark.parametrize(
    ("metrics", "error"),
    [
        (http("", "404 Not Found"), "`/metrics` answered 404"),
        (http("", "401 Unauthorized"), "`/metrics` answered 401"),
        (http("<html>"), "`/metrics` is no page of a known engine"),
    ],
    ids=["absent", "refused", "html"],
)
async def test_without_counters_the_run_goes_on_and_says_why(metrics: bytes, error: str) -> None:
    async with ChatServer(**{"/metrics": metrics}) as server:
        runner = await runner_after(server)
        assert looks(server) == 1
    assert [shot.ok for shot in runner.records] == [True] * 8
    found = runner.ledger
    assert (found.error, found.requests, found.waiting_max) == (error, None, None)
    # whether the model was exchanged is told all the same
    assert [model.id for model in found.models_before] == ["tiny"]
    assert [model.id for model in found.models_after] == ["tiny"]


async def test_models_that_are_exchanged_during_the_run_are_seen() -> None:
    tiny, other = (models_page({"id": name}) for name in ("tiny", "other"))
    # asked for before the load, by each of two connections that are made ready, and after it
    async with ChatServer(**{"/v1/models": in_turn(tiny, tiny, tiny, other)}) as server:
        found = (await runner_after(server)).ledger
    assert [model.id for model in found.models_before] == ["tiny"]
    assert [model.id for model in found.models_after] == ["other"]


async def test_counters_that_hang_after_the_load_end_the_run_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolkit.bench.client.PAGE_TIMEOUT_S", 0.1)

    async with ChatServer(**{"/metrics": in_turn(page(), hang)}) as server:
        runner = await runner_after(server)
    assert [shot.ok for shot in runner.records] == [True] * 8
    assert runner.ledger.error == "`/metrics` did not finish within 0.1 s"
    assert runner.ledger.requests is None


async def test_looks_that_hang_hold_up_no_request_and_no_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolkit.bench.host_runner.SAMPLE_EVERY_S", 0.0)

    async with Gate(**{"/metrics": in_turn(page(), hang, page())}) as server:
        runner = runner_at(server.url, plan())
        async with runner.client:
            await runner.choose_model()
            await runner.prepare()
            load = asyncio.create_task(runner.measure(0, time.monotonic()))
            await until(lambda: looks(server) == 2)
            server.opened.set()
            await load  # the look still hangs, for it has 5 s
    assert [shot.ok for shot in runner.records] == [True] * 8
