"""When requests are due, against what probability says, and which plans cannot be."""

import math
from dataclasses import replace
from itertools import islice, pairwise
from statistics import fmean, pvariance
from typing import Any

import pytest

from toolkit.bench.plan import BenchPlan, check_plan, requests_of, send_times
from toolkit.errors import ToolkitError

OPEN = BenchPlan(requests=None, duration_s=200.0, rate=50.0, arrival="poisson", seed=7)


def gaps(plan: BenchPlan) -> list[float]:
    return [later - earlier for earlier, later in pairwise([0.0, *send_times(plan)])]


def test_constant_requests_start_at_once_and_keep_their_distance() -> None:
    plan = BenchPlan(requests=5, rate=2.0, arrival="constant")
    assert list(send_times(plan)) == [0.0, 0.5, 1.0, 1.5, 2.0]


def test_constant_requests_do_not_drift() -> None:
    # 1/3 has no exact binary form: 300,000 sums of it would miss 100,000 s
    plan = BenchPlan(requests=None, duration_s=1e9, rate=3.0, arrival="constant")
    assert next(islice(send_times(plan), 300_000, None)) == 100_000.0


@pytest.mark.parametrize(
    ("requests", "duration_s", "expected"),
    [
        (None, 1.0, 4),  # 0, 0.25, 0.5, 0.75; at 1.0 it is over
        (3, 1.0, 3),
        (9, 1.0, 4),
        (9, None, 9),
        (None, 1.01, 5),
    ],
)
def test_a_run_ends_with_its_requests_or_its_time(
    requests: int | None, duration_s: float | None, expected: int
) -> None:
    plan = BenchPlan(requests=requests, duration_s=duration_s, rate=4.0, arrival="constant")
    assert len(list(send_times(plan))) == expected


def test_a_poisson_run_ends_with_its_requests_or_its_time() -> None:
    assert len(list(send_times(replace(OPEN, requests=16)))) == 16
    everything = list(send_times(OPEN))
    assert max(everything) < 200.0
    assert list(send_times(replace(OPEN, requests=16))) == everything[:16]


def test_a_closed_loop_has_no_send_times() -> None:
    with pytest.raises(ValueError, match="closed loop"):
        send_times(BenchPlan())


def test_poisson_gaps_are_exponential() -> None:
    found = gaps(OPEN)
    # mean 1/50 s with a standard error of 1/sqrt(10,000) = 1 %
    assert fmean(found) == pytest.approx(0.02, rel=0.03)
    # an exponential gap is above its mean with 1/e = 0.3679 (error 0.0048), above three with 1/e^3 = 0.0498 (0.0022)
    assert sum(gap > 0.02 for gap in found) / len(found) == pytest.approx(0.3679, abs=0.0145)
    assert sum(gap > 0.06 for gap in found) / len(found) == pytest.approx(0.0498, abs=0.0066)
    # and its standard deviation is its mean
    assert math.sqrt(pvariance(found)) == pytest.approx(0.02, rel=0.05)


def test_poisson_gaps_do_not_follow_from_each_other() -> None:
    found = gaps(OPEN)
    products = [(one - 0.02) * (next_one - 0.02) for one, next_one in pairwise(found)]
    # correlation of neighbours: 0, standard error 1/sqrt(10,000) = 0.01
    assert abs(fmean(products) / pvariance(found)) < 0.03


def test_a_seed_repeats_its_times_and_another_does_not() -> None:
    assert list(send_times(OPEN)) == list(send_times(OPEN))
    assert list(send_times(OPEN))[:3] != list(send_times(replace(OPEN, seed=8)))[:3]


def test_a_level_has_at_least_four_waves_of_requests() -> None:
    plan = BenchPlan(requests=16, levels=(1, 4, 5, 64))
    assert [requests_of(plan, level) for level in plan.levels] == [16, 16, 20, 256]
    assert requests_of(replace(plan, requests=None, duration_s=5.0), 64) is None


def test_without_levels_a_host_gets_just_the_requests_asked_for() -> None:
    assert requests_of(BenchPlan(requests=16, concurrency=8), 8) == 16
    assert requests_of(BenchPlan(requests=None, duration_s=5.0), 8) is None


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"requests": None, "duration_s": 60.0},
        {"duration_s": 60.0},
        {"rate": 20.0},
        {"rate": 10_000.0, "arrival": "constant"},
        {"levels": (1, 8, 32)},
        {"stream_share": 0.0, "twin_share": 0.0},
        {"twin_share": 0.5},
        {"twin_share": 1.0, "sameness": "unique"},  # not looked at
        {"temperature": 0.0, "warmup": 16, "requests": 1, "concurrency": 1, "max_tokens": 1},
    ],
)
def test_a_plan_that_can_be_passes(changes: dict[str, Any]) -> None:
    check_plan(replace(BenchPlan(), **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"requests": None}, "a bench without a number of requests and without a duration"),
        ({"requests": 0}, "no bench can have requests `0`"),
        ({"duration_s": 0.0}, "duration in seconds `0.0`"),
        ({"duration_s": math.nan}, "duration in seconds `nan`"),
        ({"duration_s": math.inf}, "duration in seconds `inf`"),
        ({"concurrency": 0}, "concurrency `0`"),
        ({"concurrency": 1_000_000}, "concurrency `1,000,000`"),
        ({"rate": 0.0}, "rate `0.0`"),
        ({"rate": -1.0}, "rate `-1.0`"),
        ({"rate": math.nan}, "rate `nan`"),
        ({"rate": math.inf}, "rate `inf`"),
        ({"rate": 10_001.0}, "rate `10,001.0`"),
        ({"rate": 1e-6}, "no bench can have rate `1e-06`"),
        ({"rate": 0.001, "duration_s": 1.0, "requests": None}, "in `1` s at `0.001` requests"),
        ({"rate": 5.0, "levels": (1, 2)}, "a sweep over concurrencies and a rate of `5`"),
        ({"levels": (0, 2)}, "level `0`"),
        ({"levels": (1, 1_000_000)}, "level `1,000,000`"),
        ({"levels": (1, 8, 8)}, "the level `8` stands after `8`"),
        ({"levels": (8, 1)}, "the level `1` stands after `8`"),
        ({"stream_share": 1.1}, "share of streams `1.1`"),
        ({"stream_share": math.nan}, "share of streams `nan`"),
        ({"twin_share": -0.1}, "share of twins `-0.1`"),
        ({"twin_share": 0.6}, "share of twins `0.6`"),
        ({"warmup": -1}, "warm-up requests `-1`"),
        ({"timeout_s": 0.0}, "timeout in seconds `0.0`"),
        ({"timeout_s": math.nan}, "timeout in seconds `nan`"),
        ({"max_tokens": 0}, "max_tokens `0`"),
        ({"max_tokens": 10**30}, "max_tokens `1,000,"),
        ({"temperature": -0.5}, "temperature `-0.5`"),
        ({"temperature": math.nan}, "temperature `nan`"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_with_a_way_out(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ToolkitError) as caught:
        check_plan(replace(BenchPlan(), **changes))
    assert message in caught.value.message
    assert caught.value.hint
