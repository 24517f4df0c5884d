"""When are steps due, with a clock that only sleeping moves and that always sleeps a little too long? And the API process's one core."""

import asyncio
from collections.abc import Iterator

import pytest

from toolkit.sim import state
from toolkit.sim.engine import EngineRequest, StepResult
from toolkit.sim.presets import setup_for
from toolkit.sim.state import Core, FrontCpu

STEP_S = 0.010
STEPS = {
    "step_overhead_s": STEP_S,
    "prefill_s_per_token": 0,
    "decode_s_per_sequence": 0,
    "jitter": 0,
}


def times_of(
    tokens: int, lateness: Iterator[float], monkeypatch: pytest.MonkeyPatch
) -> list[float]:
    """When each token comes, in steps of 10 ms from 100 on; each sleep is late by what comes next."""
    clock = [100.0]
    times: list[float] = []
    real_sleep = asyncio.sleep

    async def sleep(seconds: float) -> None:
        clock[0] += seconds + next(lateness)
        await real_sleep(0)

    async def live() -> None:
        core = Core(setup_for(**STEPS), 0, 0.0)
        ended = asyncio.Event()

        def on_progress(result: StepResult | None) -> None:
            times.append(clock[0])
            if result is None or result.reason:
                ended.set()

        core.submit(
            EngineRequest(
                id="a",
                prompt_ids=(1, 2, 3),
                max_tokens=tokens,
                output_ids=(7,) * (tokens + 1),
                arrived_at=clock[0],
                on_progress=on_progress,
            )
        )
        task = asyncio.create_task(core.run())
        await ended.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    monkeypatch.setattr(state.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(state.asyncio, "sleep", sleep)
    asyncio.run(live())
    return times


def test_the_lateness_of_one_step_is_not_added_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = times_of(100, iter([0.001] * 100), monkeypatch)
    # each step ends 1 ms late, and none later than that: 100 + 100 * 0.010 + 0.001
    assert times == pytest.approx([100 + STEP_S * (n + 1) + 0.001 for n in range(100)])


def test_a_process_that_stalled_catches_up_on_a_twentieth_of_a_second_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = times_of(12, iter([0.0, 1.0] + [0.0] * 10), monkeypatch)
    # the second step ends at 101.020; 50 ms are five steps that take no time, then all is as ever
    expected = [100.01, *[101.02] * 6, 101.03, 101.04, 101.05, 101.06, 101.07]
    assert times == pytest.approx(expected)


def test_requests_take_turns_on_the_one_core() -> None:
    cpu = FrontCpu()
    # three at once of 0.25 s each; a fourth that comes when all is quiet waits for nobody
    assert [cpu.through_at(10.0, 0.25) for _ in range(3)] == [10.25, 10.5, 10.75]
    assert cpu.through_at(12.0, 0.25) == 12.25
