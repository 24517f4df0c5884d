"""The laws of the gaps: each fit at its likeliest, and the law that gaps were drawn from found again."""

import math

import numpy as np
import pytest

from toolkit.workload.arrivals import Fit, fits


def best(found: tuple[Fit, ...], law: str) -> Fit:
    return next(fit for fit in found if fit.law == law)


def gamma_density(x: np.ndarray, shape: float, scale: float) -> np.ndarray:
    return x ** (shape - 1) * np.exp(-x / scale) / (math.gamma(shape) * scale**shape)


def weibull_density(x: np.ndarray, shape: float, scale: float) -> np.ndarray:
    return shape / scale * (x / scale) ** (shape - 1) * np.exp(-((x / scale) ** shape))


def exponential_density(x: np.ndarray, _shape: float, scale: float) -> np.ndarray:
    return np.exp(-x / scale) / scale


DENSITIES = {
    "gamma": gamma_density,
    "weibull": weibull_density,
    "exponential": exponential_density,
}


GAPS = {
    "bunches": np.random.default_rng(5).gamma(0.02, 1.0, 300),
    "bursts": np.random.default_rng(1).gamma(0.4, 2.0, 300),
    "even": np.random.default_rng(2).gamma(6.0, 0.1, 300),
    "heavy": np.random.default_rng(3).weibull(0.6, 300) * 3,
    "poisson": np.random.default_rng(4).exponential(0.02, 300),
}


@pytest.mark.parametrize("name", GAPS)
@pytest.mark.parametrize("law", ["gamma", "weibull"])
def test_no_shape_and_scale_near_by_or_far_away_are_likelier(name: str, law: str) -> None:
    gaps = GAPS[name]
    fit = best(fits(gaps), law)
    density = DENSITIES[law]

    def likelihood(shape: float, scale: float) -> float:
        return float(np.log(np.maximum(density(gaps, shape, scale), 1e-300)).sum())

    # the densities are written out above, and know nothing of the code under test
    assert fit.log_likelihood == pytest.approx(likelihood(fit.shape, fit.scale_s), abs=1e-6)
    for shape in fit.shape * np.geomspace(0.3, 3, 41):
        for scale in fit.scale_s * np.geomspace(0.3, 3, 41):
            assert likelihood(shape, scale) <= fit.log_likelihood + 1e-9
    # the grid's own best lies where the fit is: a likelihood that is always too high would pass the above
    assert likelihood(fit.shape * 1.3, fit.scale_s) < fit.log_likelihood - 0.5


@pytest.mark.parametrize("law", ["gamma", "weibull", "exponential"])
def test_what_is_fitted_is_a_density_with_the_gaps_mean(law: str) -> None:
    gaps = GAPS["even"]
    fit = best(fits(gaps), law)
    grid = np.linspace(1e-9, 20, 400_001)
    density = DENSITIES[law](grid, fit.shape, fit.scale_s)
    assert np.trapezoid(density, grid) == pytest.approx(1, abs=1e-4)
    # exactly the mean for exponential and gamma; a Weibull's likeliest mean is only near to it
    assert np.trapezoid(density * grid, grid) == pytest.approx(gaps.mean(), rel=0.02)


def test_the_exponential_is_at_its_closed_form() -> None:
    # mean 2: -30 * (ln 2 + 1) = -50.794; AIC 2 + 101.588
    fit = best(fits(np.array([1.0, 3.0] * 15)), "exponential")
    assert (fit.shape, fit.scale_s) == (1.0, 2.0)
    assert fit.log_likelihood == pytest.approx(-30 * (math.log(2) + 1))
    assert fit.aic == pytest.approx(2 + 60 * (math.log(2) + 1))


@pytest.mark.parametrize(("drawn", "law"), [("gamma", "gamma"), ("weibull", "weibull")])
def test_the_law_that_gaps_were_drawn_from_comes_first(drawn: str, law: str) -> None:
    rng = np.random.default_rng(9)
    gaps = rng.gamma(0.3, 1, 5000) if drawn == "gamma" else rng.weibull(0.4, 5000)
    found = fits(gaps)
    assert found[0].law == law
    assert found[0].shape == pytest.approx(0.3 if drawn == "gamma" else 0.4, abs=0.02)


def test_for_poisson_arrivals_two_parameters_gain_nothing() -> None:
    found = fits(np.random.default_rng(8).exponential(0.5, 20_000))
    assert best(found, "exponential").aic - found[0].aic < 10
    assert best(found, "gamma").shape == pytest.approx(1, abs=0.03)
    assert best(found, "weibull").shape == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize(
    "gaps", [np.full(100, 0.25), np.full(29, 0.1) * np.arange(1, 30), np.r_[0.0, GAPS["even"]]]
)
def test_equal_gaps_few_gaps_and_a_gap_of_nothing_have_no_law(gaps: np.ndarray) -> None:
    assert fits(gaps) == ()


def test_a_silence_of_years_among_microseconds_is_still_fitted() -> None:
    found = fits(np.r_[np.full(60, 1e-6), 1e8])
    assert all(math.isfinite(fit.aic) for fit in found)
    assert best(found, "gamma").shape < 0.1
    assert best(found, "weibull").shape < 0.2
