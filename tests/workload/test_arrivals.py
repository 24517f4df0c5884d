"""When requests arrive: rate, clocks, burstiness and the law of gaps against known processes; how many are under way, by hand."""

import math

import numpy as np
import pytest
from support.arrived import arrived

from toolkit.workload import summarise
from toolkit.workload.arrivals import Arrivals, Concurrency, Fit, arrivals, fits

START = 1_790_000_000.0
"""A day of today: floats of such seconds are exact to 2.4e-7 only."""


def poisson(rate: float, seconds: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return START + np.sort(rng.random(rng.poisson(rate * seconds))) * seconds


def at(*ts: float) -> Arrivals:
    return arrivals(np.array(ts))


def test_the_rate_counts_gaps_and_the_peak_is_that_of_any_second() -> None:
    found = at(5.0, 5.5, 6.0, 6.5, 7.0)
    assert (found.first_ts, found.last_ts, found.duration_s) == (5.0, 7.0, 2.0)
    assert found.requests_per_s == 2.0  # 4 gaps in 2 s
    # 4 requests from 10.6 to 11.5: no second of the clock has more than 2
    assert at(1.0, 10.6, 10.9, 11.1, 11.5, 20.0).peak_requests_per_s == 4


@pytest.mark.parametrize(
    ("ts", "bin_s", "requests"),
    [
        # each second from the first arrival on
        ((100.5, 100.9, 101.4, 101.6, 104.0), 1.0, (3, 1, 0, 1)),
        # a long capture has longer bins, and a clock that jumped no endless series
        ((0.0, 86_400.0), 60.0, (1, *[0] * 1439, 1)),
        ((0.0, 1.0, 1.8e9), 86_400.0, (2, *[0] * 3598, 1)),
    ],
)
def test_the_series_counts_each_bin(ts: tuple[float, ...], bin_s: float, requests: tuple) -> None:
    series = at(*ts).series
    assert series is not None
    assert (series.bin_s, series.requests) == (bin_s, requests)


def test_dispersion_is_variance_over_mean_of_whole_windows() -> None:
    # 101 whole windows of a second with 2, 0, 2, 0 ... and a last arrival that begins another
    found, *_ = at(*(w + part for w in range(0, 101, 2) for part in (0.0, 0.5)), 101.0).dispersion
    assert (found.window_s, found.windows) == (1.0, 101)
    counts = [2, 0] * 50 + [2]
    assert found.index == pytest.approx(np.var(counts, ddof=1) / np.mean(counts))
    # printed tables of chi-squared with 100 degrees of freedom: 0.05 % and 99.95 %
    assert found.low == pytest.approx(0.59896, rel=0.01)
    assert found.high == pytest.approx(1.53167, rel=0.01)
    assert at(0.0, 9.9).dispersion == ()
    assert [one.window_s for one in arrivals(np.arange(0, 150.0, 0.5)).dispersion] == [1.0, 10.0]


RNG = np.random.default_rng(0)
BUNCHES = np.sort((RNG.integers(0, 600, 300)[:, None] + RNG.random((300, 20)) * 0.2).ravel())
WAVES = np.concatenate([poisson(0.5 if m % 4 < 2 else 2.0, 60, m) + 60 * m for m in range(40)])
# 20,000 windows of a negative binomial with variance 1.1 times its mean
SLIGHT = np.random.default_rng(2).negative_binomial(10, 10 / 11, 20_000)


@pytest.mark.parametrize(
    ("ts", "verdict", "gap_cv"),
    [
        *((poisson(20, 300, seed), "poisson", 1.0) for seed in range(5)),
        (START + BUNCHES, "burstier", None),
        (START + np.arange(0, 100, 0.1) + RNG.random(1000) * 0.01, "smoother", 0.05),
        # a rate that doubles for minutes is bursty though every second looks like chance
        (np.sort(WAVES), "burstier", None),
        # a difference that is sure but small is not
        (np.repeat(np.arange(20_000.0), SLIGHT) + 0.5, "poisson", None),
        # in a capture of seconds the gaps decide
        (START + np.cumsum(RNG.weibull(0.5, 2000) * 0.001), "burstier", None),
        (START + np.cumsum(RNG.exponential(0.002, 2000)), "poisson", 1.0),
        (START + np.cumsum(RNG.gamma(9, 0.0003, 2000)), "smoother", 1 / 3),
    ],
)
def test_known_processes_are_called_by_their_burstiness(
    ts: np.ndarray, verdict: str, gap_cv: float | None
) -> None:
    found = arrivals(ts)
    assert found.burstiness == verdict, found
    if gap_cv is not None:
        assert found.gap_cv == pytest.approx(gap_cv, abs=0.06)


def test_too_few_requests_have_a_reason_instead_of_a_rate() -> None:
    found = arrivals(np.full(50, START))
    assert (found.requests_per_s, found.gap_cv, found.burstiness) == (None, None, None)
    assert (found.peak_requests_per_s, found.fits, found.dispersion) == (50, (), ())
    assert found.why == "all arrived at the same instant"
    assert (at(START).why, at().why, at().duration_s) == (
        "one request has no rate",
        "no requests",
        None,
    )
    two = at(START, START + 0.5)
    assert two.requests_per_s == pytest.approx(2)
    assert (two.gap_cv, two.burstiness) == (None, None)


@pytest.mark.parametrize("step", [60.0, 1.0, 0.1, 0.001, 1e-6])
def test_the_clocks_step_is_found(step: float) -> None:
    ticks = np.random.default_rng(0).integers(0, 10**6, 1000)
    assert arrivals(np.sort(START - START % 60 + ticks * step)).resolution_s == step


def test_times_in_whole_seconds_hide_the_law_of_the_gaps_but_not_bursts_of_minutes() -> None:
    found = arrivals(np.floor(poisson(20, 900)))
    assert (found.resolution_s, found.fits, found.burstiness) == (1.0, (), "poisson")
    # of seconds without a gap, a coarse clock is fine enough: its gaps of 0 are at most half a step
    rare = arrivals(np.floor(poisson(0.05, 20_000)))
    assert (rare.resolution_s, bool(rare.fits), rare.burstiness) == (1.0, True, "poisson")


# --- Laws of the gaps -----------------------------------------------------------------------------------


def gamma_density(x: np.ndarray, shape: float, scale: float) -> np.ndarray:
    return x ** (shape - 1) * np.exp(-x / scale) / (math.gamma(shape) * scale**shape)


def weibull_density(x: np.ndarray, shape: float, scale: float) -> np.ndarray:
    return shape / scale * (x / scale) ** (shape - 1) * np.exp(-((x / scale) ** shape))


DENSITIES = {"gamma": gamma_density, "weibull": weibull_density}
GAPS = {
    "bunches": np.random.default_rng(5).gamma(0.02, 1.0, 300),
    "bursts": np.random.default_rng(1).gamma(0.4, 2.0, 300),
    "even": np.random.default_rng(2).gamma(6.0, 0.1, 300),
    "heavy": np.random.default_rng(3).weibull(0.6, 300) * 3,
    "poisson": np.random.default_rng(4).exponential(0.02, 300),
}


def best(gaps: np.ndarray, law: str) -> Fit:
    return next(fit for fit in fits(gaps) if fit.law == law)


@pytest.mark.parametrize("name", GAPS)
@pytest.mark.parametrize("law", DENSITIES)
def test_no_shape_and_scale_near_by_or_far_away_are_likelier(name: str, law: str) -> None:
    gaps, density = GAPS[name], DENSITIES[law]
    fit = best(gaps, law)

    def likelihood(shape: float, scale: float) -> float:
        return float(np.log(np.maximum(density(gaps, shape, scale), 1e-300)).sum())

    # the densities are written out above, and know nothing of the code under test
    assert fit.log_likelihood == pytest.approx(likelihood(fit.shape, fit.scale_s), abs=1e-6)
    for shape in fit.shape * np.geomspace(0.3, 3, 41):
        for scale in fit.scale_s * np.geomspace(0.3, 3, 41):
            assert likelihood(shape, scale) <= fit.log_likelihood + 1e-9
    # the grid's own best lies where the fit is: a likelihood that is always too high would pass the above
    assert likelihood(fit.shape * 1.3, fit.scale_s) < fit.log_likelihood - 0.5


def test_the_exponential_is_at_its_closed_form() -> None:
    # mean 2: -30 * (ln 2 + 1) = -50.794; AIC 2 + 101.588
    fit = best(np.array([1.0, 3.0] * 15), "exponential")
    assert (fit.shape, fit.scale_s) == (1.0, 2.0)
    assert fit.log_likelihood == pytest.approx(-30 * (math.log(2) + 1))
    assert fit.aic == pytest.approx(2 + 60 * (math.log(2) + 1))


def test_the_law_that_gaps_were_drawn_from_comes_first() -> None:
    rng = np.random.default_rng(9)
    for law, gaps, shape in (("gamma", rng.gamma(0.3, 1, 5000), 0.3), ("weibull", rng.weibull(0.4, 5000), 0.4)):  # fmt: skip
        found = fits(gaps)
        assert (found[0].law, found[0].shape) == (law, pytest.approx(shape, abs=0.02))
    # for Poisson arrivals two parameters gain nothing
    gaps = rng.exponential(0.5, 20_000)
    assert best(gaps, "exponential").aic - fits(gaps)[0].aic < 10
    for law in DENSITIES:
        assert best(gaps, law).shape == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize(
    "gaps", [np.full(100, 0.25), np.full(29, 0.1) * np.arange(1, 30), np.r_[0.0, GAPS["even"]]]
)
def test_equal_gaps_few_gaps_and_a_gap_of_nothing_have_no_law(gaps: np.ndarray) -> None:
    assert fits(gaps) == ()


def test_a_silence_of_years_among_microseconds_is_still_fitted() -> None:
    gaps = np.r_[np.full(60, 1e-6), 1e8]
    assert all(math.isfinite(fit.aic) for fit in fits(gaps))
    assert best(gaps, "gamma").shape < 0.1
    assert best(gaps, "weibull").shape < 0.2


# --- Requests under way ---------------------------------------------------------------------------------


def concurrency(
    prompts: object, ts: list[float] | None = None, latency_s: float | None = None, **each: object
) -> Concurrency:
    return summarise(arrived(list(prompts), ts=ts, **each), latency_s=latency_s).concurrency  # type: ignore[call-overload]


def test_concurrency_is_what_was_counted_else_from_latencies_else_littles_else_unknown() -> None:
    found = concurrency("abcd", in_flight=[0, 1, 2, 9], latency_ms=1000.0, latency_s=5.0)
    assert (found.basis, found.mean, found.p50, found.max) == ("in_flight", 4.0, 2, 10)
    # ends: 2.5, 1.5, 7.0, 3.1; so 1, 2, 2, 2 under way
    found = concurrency("abcd", latency_ms=[2500.0, 500.0, 5000.0, 100.0])
    assert (found.basis, found.mean, found.max) == ("latency", 1.75, 2)
    # 11 arrivals a second apart, 3 s each: 1 * 3 under way; the request of 3 s ago has just ended
    found = concurrency(range(11), latency_s=3.0)
    assert (found.basis, found.mean, found.p99, found.max) == ("assumed_latency", 3.0, 3, 3)
    found = concurrency("ab", latency_ms=[5.0, None])
    assert (found.basis, found.mean, found.p99) == (None, None, None)
    assert "latencies are unknown" in found.why
    assert concurrency("", latency_s=1.0).why == "no requests"
    # a burst at one instant is under way all at once, and has no rate
    found = concurrency(range(40), [7.0] * 40, 2.0)
    assert (found.mean, found.p50, found.max) == (None, 20, 40)
