"""Zipf's law: the likeliest exponent, samples of the law told from other falling curves."""

import numpy as np
import pytest

from toolkit.workload.distribution import is_even, zipf


def drawn(shares: np.ndarray, requests: int, seed: int = 0) -> np.ndarray:
    """Counts of a sample, the most frequent first."""
    counts = np.random.default_rng(seed).multinomial(requests, shares / shares.sum())
    return np.sort(counts[counts > 0])[::-1]


def law(keys: int, exponent: float) -> np.ndarray:
    return np.arange(1, keys + 1) ** -exponent


def log_likelihood(counts: np.ndarray, exponent: float) -> float:
    """Written out, rank by rank."""
    total = sum(rank**-exponent for rank in range(1, len(counts) + 1))
    return sum(
        count * np.log(rank**-exponent / total) for rank, count in enumerate(counts.tolist(), 1)
    )


@pytest.mark.parametrize("exponent", [0.3, 0.8, 1.0, 1.5, 2.5])
def test_no_exponent_on_a_fine_grid_is_likelier_than_the_fitted_one(exponent: float) -> None:
    counts = drawn(law(40, exponent), 2000)
    grid = np.arange(0.0, 4.0, 0.001)
    best = max(grid, key=lambda one: log_likelihood(counts, one))
    assert zipf(counts).exponent == pytest.approx(best, abs=0.001)


def test_counts_in_the_very_proportions_of_a_law_have_its_exponent_and_no_distance() -> None:
    # 2520 / n for n = 1 to 10: Zipf's law with exponent 1, without a rest
    counts = np.array([2520 // rank for rank in range(1, 11)])
    assert zipf(counts).exponent == pytest.approx(1.0, abs=1e-6)
    assert zipf(counts).distance == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("keys", "exponent", "requests"),
    [(20_000, 1.0, 200_000), (1000, 0.8, 10_000), (10_000, 1.2, 100_000), (100, 1.0, 1000)],
)
def test_samples_of_zipf_are_called_so(keys: int, exponent: float, requests: int) -> None:
    found = zipf(drawn(law(keys, exponent), requests))
    assert found.shape == "zipf", found
    assert found.exponent == pytest.approx(exponent, abs=0.06)


@pytest.mark.parametrize(
    "shares",
    [
        0.9 ** np.arange(200.0),  # geometric
        0.99 ** np.arange(2000.0),
        np.random.default_rng(0).lognormal(0, 1, 1000),
        np.r_[np.full(30, 10.0), np.full(970, 0.1)],  # thirty favourites and a plain
    ],
)
def test_other_falling_curves_are_not_zipf(shares: np.ndarray) -> None:
    found = zipf(drawn(shares, 100_000))
    assert found.shape == "other", found
    assert found.distance is not None
    assert found.distance > 0.05


def test_two_keys_with_95_per_cent_are_not_zipf_whatever_their_tail() -> None:
    tail = drawn(law(200, 1.0), 500)
    found = zipf(np.r_[4750, 4750, tail])
    assert found.shape == "few"
    assert "two keys hold 95.0 %" in found.why


@pytest.mark.parametrize(("keys", "words"), [(1, "1 key:"), (2, "2 keys"), (9, "9 keys")])
def test_under_ten_keys_no_law_is_told(keys: int, words: str) -> None:
    found = zipf(np.full(keys, 100))
    assert found.shape == "few"
    assert words in found.why
    assert found.exponent is None


def test_the_edges_of_few_and_unknown_are_where_they_are_said_to_be() -> None:
    ten = np.array([2520 // rank for rank in range(1, 11)])
    assert zipf(ten).shape == "zipf"
    # two keys with 90 of 100 requests are few, with 89 they are not
    assert zipf(np.array([50, 40, 2, 1, 1, 1, 1, 1, 1, 1, 1])).shape == "few"
    assert zipf(np.array([50, 39, 3, 1, 1, 1, 1, 1, 1, 1, 1])).shape != "few"
    # a fifth of the requests is not yet too much that nobody else asked
    assert zipf(np.array([40, 20, 13, 7, *[1] * 20])).shape != "unknown"
    assert zipf(np.array([40, 20, 13, 6, *[1] * 21])).shape == "unknown"


def test_equally_frequent_keys_are_even_and_not_a_flat_zipf() -> None:
    # chance ranks them into a curve that a Zipf law of exponent 0.27 fits
    found = zipf(drawn(np.ones(100), 1000))
    assert found.shape == "even"
    assert is_even(np.full(50, 7))
    assert not is_even(drawn(law(100, 0.5), 10_000))


def test_when_every_request_is_new_the_tail_is_unknown() -> None:
    found = zipf(np.ones(1000, dtype=int))
    assert found.shape == "unknown"
    assert "100 % of requests" in found.why
