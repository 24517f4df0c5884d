"""A watched event loop, with faults planted in it; the clocks are made up where time itself is told."""

import asyncio
import contextlib
import gc
import sys
import time
from collections.abc import Iterator

import pytest
from support.chat import turns

from toolkit.bench.health import Fitness, Health, quiet_collector, short_turns


def hold_up(seconds: float) -> None:
    """Keep the loop from everything else."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


class Clocks:
    """Wall and CPU clock by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall_s = self.cpu_s = 100.0
        monkeypatch.setattr("toolkit.bench.health._now_s", lambda: (self.wall_s, self.cpu_s))

    def go_on(self, wall_s: float, cpu_s: float) -> None:
        self.wall_s += wall_s
        self.cpu_s += cpu_s


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clocks]:
    with monkeypatch.context() as patched:
        yield Clocks(patched)


async def test_a_loop_that_was_held_up_is_told() -> None:
    health = Health()
    health.start()
    await turns()  # now it sleeps for 10 ms
    hold_up(0.06)
    await turns()
    health.stop()
    lag_ms = health.fitness(None).loop_lag_p99_ms
    # held up for 60 ms of which 10 ms were its own; a sketch is right within 1 %
    assert lag_ms is not None
    assert lag_ms >= 0.99 * 50


async def test_only_watched_stretches_count_and_all_of_them(clocks: Clocks) -> None:
    health = Health()
    shares = [health.fitness(None).cpu_share]
    health.start()
    clocks.go_on(2.0, 1.0)
    shares.append(health.fitness(None).cpu_share)
    health.stop()
    clocks.go_on(50.0, 50.0)  # nobody watches: making ready, another host's turn
    shares.append(health.fitness(None).cpu_share)
    health.start()
    clocks.go_on(2.0, 2.0)
    health.stop()
    shares.append(health.fitness(None).cpu_share)
    # 1 s of 2 s, and 3 s of 4 s
    assert shares == [None, 0.5, 0.5, 0.75]


async def test_lateness_outlives_the_stretch_in_which_it_was_seen() -> None:
    health = Health()
    health.start()
    await turns()
    hold_up(0.06)
    await turns()
    health.stop()
    health.start()
    await turns()
    health.stop()
    found = health.fitness(None).loop_lag_p99_ms
    assert (found or 0.0) >= 0.99 * 50


async def test_the_senders_lateness_is_judged_with_the_rest(clocks: Clocks) -> None:
    health = Health()
    health.start()
    clocks.go_on(1.0, 0.5)
    health.stop()
    found = health.fitness(1.0).ok, health.fitness(60.0).ok
    assert found == (True, False)


async def test_nothing_watches_on_after_the_stop() -> None:
    before, health = asyncio.all_tasks(), Health()
    health.start()
    health.start()
    health.stop()
    await turns()
    assert asyncio.all_tasks() == before


@pytest.fixture
def thawed() -> Iterator[None]:
    """As in a process of its own: here all that was collected is frozen (tests/conftest.py)."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("thawed")
def test_the_collector_leaves_what_was_loaded_alone_and_comes_back() -> None:
    before, seen = gc.get_threshold(), []
    with contextlib.suppress(KeyError), quiet_collector():
        seen += [gc.get_freeze_count() > 1000, gc.get_threshold()[0] > before[0], gc.isenabled()]
        raise KeyError
    assert seen == [True, True, True]
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_what_was_frozen_before_stays_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with quiet_collector():
        pass
    assert gc.get_freeze_count() >= frozen > 0


def test_threads_take_short_turns_until_the_end() -> None:
    before, seen = sys.getswitchinterval(), []
    with contextlib.suppress(KeyError), short_turns():
        seen.append(sys.getswitchinterval())
        raise KeyError
    assert seen == [pytest.approx(0.0005)]
    assert sys.getswitchinterval() == before


# --- when it says of itself that it was the limit ---------------------------------------------------------

GOOD = {"loop_lag_p99_ms": 20.0, "send_lag_p99_ms": 50.0, "cpu_share": 0.85}
"""Each on its limit, which is still good."""


def test_on_its_limits_it_is_fit() -> None:
    found = Fitness(**GOOD)
    assert (found.ok, found.why) == (True, None)
    assert (found.loop_lag_p99_ms, found.send_lag_p99_ms, found.cpu_share) == (20.0, 50.0, 0.85)


@pytest.mark.parametrize(
    ("past", "why"),
    [
        ({"loop_lag_p99_ms": 20.6}, "its event loop was 21 ms late (p99)"),
        ({"send_lag_p99_ms": 51.0}, "requests left 51 ms late (p99)"),
        ({"cpu_share": 0.86}, "it used 86% of a core"),
        (
            {"loop_lag_p99_ms": 30.0, "send_lag_p99_ms": 60.0, "cpu_share": 1.0},
            "its event loop was 30 ms late (p99), requests left 60 ms late (p99), it used 100% of a core",
        ),
    ],
)
def test_past_any_limit_it_is_not_and_says_why(past: dict[str, float], why: str) -> None:
    found = Fitness(**GOOD | past)
    assert (found.ok, found.why) == (False, why)


def test_what_is_unknown_accuses_nobody() -> None:
    found = Fitness(loop_lag_p99_ms=None, send_lag_p99_ms=None, cpu_share=None)
    assert (found.ok, found.why) == (True, None)
