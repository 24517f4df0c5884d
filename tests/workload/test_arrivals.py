"""When requests arrive: rate, clocks and burstiness against known processes; how many are under way, by hand."""

import numpy as np
import pytest
from support.arrived import arrived

from toolkit.workload.arrivals import (
    arrivals,
    burstiness,
    chi_squared,
    concurrency,
    dispersion,
    resolution_s,
    under_way,
)

START = 1_790_000_000.0
"""A day of today: floats of such seconds are exact to 2.4e-7 only."""


def poisson(rate: float, seconds: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return START + np.sort(rng.random(rng.poisson(rate * seconds))) * seconds


def test_the_rate_counts_gaps_not_requests() -> None:
    found = arrivals(np.array([5.0, 5.5, 6.0, 6.5, 7.0]))
    assert (found.first_ts, found.last_ts, found.duration_s) == (5.0, 7.0, 2.0)
    assert found.requests_per_s == 2.0  # 4 gaps in 2 s


def test_the_peak_is_that_of_any_second_wherever_it_begins() -> None:
    # 4 requests from 10.6 to 11.5: no second of the clock has more than 2
    found = arrivals(np.array([1.0, 10.6, 10.9, 11.1, 11.5, 20.0]))
    assert found.peak_requests_per_s == 4


def test_the_series_counts_each_second_from_the_first_arrival_on() -> None:
    found = arrivals(np.array([100.5, 100.9, 101.4, 101.6, 104.0]))
    assert found.series is not None
    assert (found.series.bin_s, found.series.requests) == (1.0, (3, 1, 0, 1))


def test_a_long_capture_has_longer_bins_and_a_clock_that_jumped_no_endless_series() -> None:
    day = arrivals(np.array([0.0, 86_400.0])).series
    jumped = arrivals(np.array([0.0, 1.0, 1.8e9])).series
    assert day is not None
    assert jumped is not None
    assert (day.bin_s, len(day.requests), sum(day.requests)) == (60.0, 1441, 2)
    assert len(jumped.requests) <= 3600
    assert sum(jumped.requests) == 3


def test_dispersion_is_variance_over_mean_of_whole_windows() -> None:
    # ten whole windows of a second with 2, 0, 2, 0 ... and a last arrival that begins an eleventh:
    # mean 1, variance 10 * 1 / 9
    ts = np.sort(np.r_[[w + part for w in range(0, 10, 2) for part in (0.0, 0.5)], 10.0])
    found = dispersion(ts, 1.0)
    assert found is not None
    assert (found.windows, found.index) == (10, pytest.approx(10 / 9))
    counts = [2, 0] * 5
    assert found.index == pytest.approx(np.var(counts, ddof=1) / np.mean(counts))


def test_fewer_than_ten_windows_have_no_dispersion() -> None:
    assert dispersion(np.array([0.0, 9.9]), 1.0) is None
    assert dispersion(np.array([0.0, 10.0]), 1.0) is not None
    assert [one.window_s for one in arrivals(np.arange(0, 150.0, 0.5)).dispersion] == [1.0, 10.0]


@pytest.mark.parametrize(
    ("freedom", "deviations", "expected"),
    # printed tables of chi-squared: 99.9 % at 10 and 100, 97.5 % at 30, 0.1 % at 100
    [(10, 3.0902, 29.588), (100, 3.0902, 149.449), (30, 1.95996, 46.979), (100, -3.0902, 61.918)],
)
def test_the_bounds_are_those_of_chi_squared_tables(
    freedom: int, deviations: float, expected: float
) -> None:
    assert chi_squared(freedom, deviations) == pytest.approx(expected, rel=0.01)


def test_poisson_arrivals_are_called_so_and_have_a_cv_of_one() -> None:
    for seed in range(10):
        found = arrivals(poisson(20, 300, seed))
        assert found.burstiness == "poisson", found
        assert found.gap_cv == pytest.approx(1, abs=0.05)


def test_bunches_are_burstier_and_a_metronome_is_smoother() -> None:
    rng = np.random.default_rng(0)
    bunches = np.sort((rng.integers(0, 600, 300)[:, None] + rng.random((300, 20)) * 0.2).ravel())
    found = arrivals(START + bunches)
    assert found.burstiness == "burstier"
    assert found.gap_cv is not None
    assert found.gap_cv > 2
    assert found.fits[0].shape < 1
    ticks = arrivals(START + np.arange(0, 100, 0.1) + rng.random(1000) * 0.01)
    assert ticks.burstiness == "smoother"
    assert ticks.gap_cv is not None
    assert ticks.gap_cv < 0.2


def test_a_rate_that_doubles_for_minutes_is_bursty_though_every_second_looks_like_chance() -> None:
    waves = np.concatenate([poisson(0.5 if m % 4 < 2 else 2.0, 60, m) + 60 * m for m in range(40)])
    found = arrivals(np.sort(waves))
    assert found.burstiness == "burstier"
    assert [one.index > one.high for one in found.dispersion][-1]


def test_a_difference_that_is_sure_but_small_is_not_called_bursty() -> None:
    # 200,000 windows of a negative binomial with variance 1.1 times its mean
    counts = np.random.default_rng(1).negative_binomial(10, 10 / 11, 20_000)
    ts = np.repeat(np.arange(20_000.0), counts) + 0.5
    found = dispersion(ts, 1.0)
    assert found is not None
    assert found.high < found.index < 1.25
    assert burstiness((found,), ())[0] == "poisson"


def test_in_a_capture_of_seconds_the_gaps_decide() -> None:
    rng = np.random.default_rng(2)
    heavy = arrivals(START + np.cumsum(rng.weibull(0.5, 2000) * 0.001))
    plain = arrivals(START + np.cumsum(rng.exponential(0.002, 2000)))
    steady = arrivals(START + np.cumsum(rng.gamma(9, 0.0003, 2000)))
    assert not heavy.dispersion
    found = [one.burstiness for one in (heavy, plain, steady)]
    assert found == ["burstier", "poisson", "smoother"]


def test_all_at_the_same_instant_have_no_rate_and_a_reason() -> None:
    found = arrivals(np.full(50, START))
    assert (found.requests_per_s, found.gap_cv, found.burstiness) == (None, None, None)
    assert (found.peak_requests_per_s, found.fits, found.dispersion) == (50, (), ())
    assert found.why == "all arrived at the same instant"


def test_one_request_and_none_have_their_own_reasons() -> None:
    assert arrivals(np.array([START])).why == "one request has no rate"
    assert arrivals(np.empty(0)).why == "no requests"
    assert arrivals(np.empty(0)).duration_s is None


def test_two_requests_have_a_rate_and_no_more() -> None:
    found = arrivals(np.array([START, START + 0.5]))
    assert found.requests_per_s == pytest.approx(2)
    assert (found.gap_cv, found.burstiness) == (None, None)


@pytest.mark.parametrize(
    ("step", "told"), [(60, 60.0), (1, 1.0), (0.1, 0.1), (0.001, 0.001), (1e-6, 1e-6)]
)
def test_the_clocks_step_is_found(step: float, told: float) -> None:
    ticks = np.random.default_rng(0).integers(0, 10**6, 1000)
    assert resolution_s(np.sort(START - START % 60 + ticks * step)) == told


def test_times_in_whole_seconds_hide_the_law_of_the_gaps_but_not_bursts_of_minutes() -> None:
    found = arrivals(np.floor(poisson(20, 900)))
    assert (found.resolution_s, found.fits) == (1.0, ())
    assert found.burstiness == "poisson"
    # of seconds without a gap, a coarse clock is fine enough: its gaps of 0 are at most half a step
    rare = arrivals(np.floor(poisson(0.05, 20_000)))
    assert rare.resolution_s == 1.0
    assert rare.fits
    assert rare.burstiness == "poisson"


def test_concurrency_counted_from_answers_includes_the_arriving_one() -> None:
    columns = arrived(list("abcd"), in_flight=[0, 1, 2, 9], latency_ms=1000.0)
    found = concurrency(columns, 1.0, 5.0)
    assert (found.basis, found.mean, found.p50, found.max) == ("in_flight", 4.0, 2, 10)


def test_concurrency_from_measured_latencies_is_counted_at_each_arrival() -> None:
    # ends: 2.5, 1.5, 7.0, 3.1
    columns = arrived(list("abcd"), latency_ms=[2500.0, 500.0, 5000.0, 100.0])
    assert under_way(columns.ts, columns.latency_s).tolist() == [1, 2, 2, 2]
    found = concurrency(columns, 1.0, None)
    assert (found.basis, found.mean, found.max) == ("latency", 1.75, 2)


def test_concurrency_from_a_given_latency_is_littles() -> None:
    # 11 arrivals a second apart, 3 s each: 1 * 3 under way; the request of 3 s ago has just ended
    columns = arrived(range(11))
    found = concurrency(columns, 1.0, 3.0)
    assert (found.basis, found.mean, found.p99, found.max) == ("assumed_latency", 3.0, 3, 3)


def test_concurrency_of_unknown_latency_is_unknown_with_its_reason() -> None:
    found = concurrency(arrived(list("ab"), latency_ms=[5.0, None]), 1.0, None)
    assert (found.basis, found.mean, found.p99) == (None, None, None)
    assert "latencies are unknown" in found.why
    assert concurrency(arrived([]), None, 1.0).why == "no requests"


def test_a_burst_at_one_instant_is_under_way_all_at_once() -> None:
    found = concurrency(arrived(range(40), ts=[7.0] * 40), None, 2.0)
    assert (found.mean, found.p50, found.max) == (None, 20, 40)
