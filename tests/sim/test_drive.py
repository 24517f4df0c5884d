"""When are steps due? With a clock that only sleeping moves, and that always sleeps a little too long."""

import asyncio
from collections.abc import Iterator

import pytest

from toolkit.sim import drive
from toolkit.sim.checks import Ask
from toolkit.sim.drive import Core
from toolkit.sim.engine import EngineConfig, Progress
from toolkit.sim.families import edges
from toolkit.sim.speech import Speech

STEP_S = 0.010


def asked(tokens: int) -> tuple[Ask, Speech]:
    ask = Ask(
        kind="text",
        prompt_ids=(1, 2, 3),
        max_tokens=tokens,
        min_tokens=0,
        ignore_eos=True,
        temperature=0.0,
        seed=None,
        stream=True,
        include_usage=False,
        continuous_usage=False,
        cache_key="",
    )
    return ask, Speech(("a",) * tokens, (7,) * (tokens + 1))


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
        core = Core(
            EngineConfig(step_overhead_s=STEP_S, prefill_s_per_token=0, decode_s_per_sequence=0),
            edges("v1", 512),
            0.0,
        )
        ended = asyncio.Event()

        def hear(progress: Progress | None) -> None:
            times.append(clock[0])
            if progress is None or progress.finished:
                ended.set()

        core.submit("a", *asked(tokens), hear)
        task = asyncio.create_task(core.run())
        await ended.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    monkeypatch.setattr(drive.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(drive.asyncio, "sleep", sleep)
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
