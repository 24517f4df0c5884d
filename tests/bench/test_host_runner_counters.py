"""What a host's own counters moved by: read before, seen during, read when they stand still."""

import asyncio
import re
import time
from typing import Any

import pytest
from support.benching import measured, plan, runner_at
from support.chat import ChatServer, Gate, hang, models_page, until
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


class Counting(ChatServer):
    """Shows one page after the other, and the last one from then on."""

    def __init__(self, *shown: bytes) -> None:
        super().__init__(**{"/metrics": self.show})
        self._shown = list(shown)

    async def show(self, writer: asyncio.StreamWriter) -> bool:
        writer.write(self._shown.pop(0) if len(self._shown) > 1 else self._shown[0])
        return True

    @property
    def looks(self) -> int:
        return self.paths().count("/metrics")


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
    moving = [page(ended=n) for n in (100, 101, 104, 108)]
    async with Counting(*moving) as server:
        runner, looks = await runner_after(server), server.looks
    # before, then 101, 104, 108 and the first that is as the one before
    assert runner.ledger.requests == 8
    assert runner.ledger.error is None
    assert looks == 5


@pytest.mark.parametrize(
    ("shown", "is_counting"),
    [([page(ended=n) for n in range(100, 130)], True), ([page(waiting=3)], False)],
    ids=["somebody else's requests", "a queue that never empties"],
)
async def test_counters_that_never_stand_still_are_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, shown: list[bytes], is_counting: bool
) -> None:
    monkeypatch.setattr("toolkit.bench.host_runner.SETTLE_S", 0.3)

    async with Counting(*shown) as server:
        runner, looks = await runner_after(server), server.looks
    assert looks > 3
    # before was 100, and each look after it one more
    assert runner.ledger.requests == (looks - 1 if is_counting else 0)
    assert runner.ledger.error is None


async def test_the_queue_is_seen_during_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.bench.host_runner.SAMPLE_EVERY_S", 0.01)

    class Queue(Gate):
        waiting = 0

        async def show(self, writer: asyncio.StreamWriter) -> bool:
            writer.write(page(waiting=7 if self.held else 0))
            return True

    async with Queue() as server:
        server.pages["/metrics"] = server.show
        load = asyncio.create_task(runner_after(server))
        await until(lambda: server.held == 2)
        looks = len(server.paths())
        await until(lambda: len(server.paths()) > looks + 2)
        server.opened.set()
        seen = await load
    found = seen.ledger
    assert (found.waiting_before, found.waiting_max) == (0, 7)
    # the looks hold no histogram and are no readings of a new process
    assert found.restarted is False


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
        looks = server.paths().count("/metrics")
    assert [shot.ok for shot in runner.records] == [True] * 8
    found = runner.ledger
    assert (found.error, found.requests, found.waiting_max) == (error, None, None)
    # whether the model was exchanged is told all the same
    assert [model.id for model in found.models_before] == ["tiny"]
    assert [model.id for model in found.models_after] == ["tiny"]
    assert looks == 1


async def test_models_that_are_exchanged_during_the_run_are_seen() -> None:
    class Switching(ChatServer):
        async def answer(self, writer: asyncio.StreamWriter) -> bool:
            self.pages["/v1/models"] = models_page({"id": "other"})
            writer.write(self.pages["stream"])
            return True

    async with Switching() as server:
        server.pages["stream"] = server.pages["/v1/chat/completions"]
        server.pages["/v1/chat/completions"] = server.answer
        seen = await runner_after(server)
    found = seen.ledger
    assert [model.id for model in found.models_before] == ["tiny"]
    assert [model.id for model in found.models_after] == ["other"]


async def test_counters_that_hang_after_the_load_end_the_run_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolkit.bench.client.PAGE_TIMEOUT_S", 0.1)

    class Hanging(ChatServer):
        async def show(self, writer: asyncio.StreamWriter) -> bool:
            if self.paths().count("/metrics") > 1:
                await hang(writer)
            writer.write(page())
            return True

    async with Hanging() as server:
        server.pages["/metrics"] = server.show
        runner = await runner_after(server)
    assert [shot.ok for shot in runner.records] == [True] * 8
    assert runner.ledger.error == "`/metrics` did not finish within 0.1 s"
    assert runner.ledger.requests is None


async def test_looks_that_hang_hold_up_no_request_and_no_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolkit.bench.host_runner.SAMPLE_EVERY_S", 0.0)

    class Hanging(Gate):
        async def show(self, writer: asyncio.StreamWriter) -> bool:
            if self.paths().count("/metrics") == 2:
                await hang(writer)
            writer.write(page())
            return True

    async with Hanging() as server:
        server.pages["/metrics"] = server.show
        runner = runner_at(server.url, plan())
        async with runner.client:
            await runner.choose_model()
            await runner.prepare()
            load = asyncio.create_task(runner.measure(0, time.monotonic()))
            await until(lambda: server.paths().count("/metrics") == 2)
            server.opened.set()
            await load  # the look still hangs, for it has 5 s
            found = runner
    assert [shot.ok for shot in found.records] == [True] * 8


async def test_a_long_page_is_not_looked_at_during_the_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolkit.bench.host_runner.SAMPLE_EVERY_S", 0.01)
    long = http(PAGE + "# HELP padding\n" * 80_000, content_type="text/plain")  # 1.2 MB

    async with Gate(**{"/metrics": long}) as server:
        load = asyncio.create_task(runner_after(server))
        await until(lambda: server.held == 2)
        before = server.paths().count("/metrics")
        await until(lambda: server.paths().count("/metrics") > before + 2)
        server.opened.set()
        seen = await load
    found = seen.ledger
    # before and after it is read, whatever it takes
    assert (found.waiting_max, found.requests, found.error) == (None, 0, None)
