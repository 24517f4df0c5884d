"""Intervals over blocks: worked by hand, and whether they hold the truth as often as they say."""

import math
import random

import numpy as np
import pytest

from toolkit.stats import (
    Spread,
    at_least,
    half_interval,
    mean_interval,
    of_difference,
    spread,
    student_t,
)

SEEDS = 400


def blocks_of(series: np.ndarray):
    def blocks(count: int) -> list[float]:
        return [float(part.mean()) for part in np.array_split(series, count)]

    return blocks


def autocorrelated(seed: int, seconds: int, memory: float) -> np.ndarray:
    """A series with mean 0 and variance 1, each value `memory` times the one before, plus noise."""
    chance = np.random.default_rng(seed)
    noise = chance.normal(size=seconds + 100) * math.sqrt(1 - memory**2)
    values = [0.0]
    for each in noise:
        values.append(memory * values[-1] + each)
    return np.array(values[-seconds:])


def test_six_blocks_by_hand() -> None:
    # off the mean 2 by -1 1 -1 1 -1 1: sum of squares 6, / 5 / 6 = 0.2; neighbours go against each other
    found = spread(2.0, lambda _: [1.0, 3.0, 1.0, 3.0, 1.0, 3.0], most=6)
    assert found is not None
    assert (found.variance, found.freedom, found.blocks) == (pytest.approx(0.2), 5, 6)
    # t of 5 degrees of freedom, two-sided 95 %, is 2.571
    assert half_interval(found) == pytest.approx(2.571 * math.sqrt(0.2), rel=1e-3)


def test_blocks_are_centred_on_the_figure_of_the_whole() -> None:
    # all blocks say 3, the whole says 2: six squares of 1, / 5 / 6; nothing goes together
    found = spread(2.0, lambda _: [3.0] * 6, most=6)
    assert found is not None
    assert found.variance == pytest.approx(0.2)


def test_neighbours_that_go_together_widen_the_interval_where_no_longer_block_is_left() -> None:
    # -5 -3 -1 1 3 5: squares 70; neighbours 15 + 3 - 1 + 3 + 15 = 35; 35 / 70 + 1 / 6 = 2 / 3; (1 + 2/3) / (1 - 2/3) = 5
    found = spread(0.0, lambda _: [-5.0, -3.0, -1.0, 1.0, 3.0, 5.0], most=6)
    assert found is not None
    assert found.variance == pytest.approx(70 / 5 / 6 * 5)


def test_longer_blocks_are_tried_while_neighbours_go_together() -> None:
    asked = []

    def blocks(count: int) -> list[float]:
        asked.append(count)
        rising = [float(place) for place in range(count)]
        return rising if count > 10 else [0.0, 1.0] * (count // 2)

    found = spread(0.5, blocks, most=15)
    assert asked == [15, 12, 10]  # 20 would be more than there may be
    assert found is not None
    assert found.blocks == 10


def test_fewer_than_six_blocks_tell_nothing() -> None:
    assert spread(1.0, lambda count: [1.0] * count, most=5) is None


def test_a_stretch_without_a_figure_makes_longer_ones_be_tried() -> None:
    found = spread(1.0, lambda count: None if count > 8 else [1.0] * count, most=20)
    assert found is not None
    assert found.blocks == 8
    assert spread(1.0, lambda _: None, most=20) is None


def test_the_spreads_of_two_sides_add_up() -> None:
    one = Spread(variance=1.0, freedom=5, blocks=6)
    two = Spread(variance=3.0, freedom=9, blocks=10)
    both = of_difference(one, two)
    # Welch and Satterthwaite: 4**2 / (1**2 / 5 + 3**2 / 9) = 16 / 1.2
    assert (both.variance, both.freedom, both.blocks) == (4.0, pytest.approx(16 / 1.2), 6)
    still = Spread(variance=0.0, freedom=5, blocks=6)
    assert of_difference(still, still).freedom == 5


def test_a_variance_is_never_less_than_what_is_known() -> None:
    found = Spread(variance=1.0, freedom=5, blocks=6)
    assert at_least(found, 0.5) == found
    assert at_least(found, 4.0).variance == 4.0


def within_binomial_bounds(held: int, share: float) -> bool:
    """Whether so many of 400 are what chance makes of a share: four standard deviations, one test in 16,000 by bad luck."""
    return abs(held - SEEDS * share) <= 4 * math.sqrt(SEEDS * share * (1 - share))


# What a longer run of 2,000 series measured (see stats.spread); 0.95 where it keeps its word to the letter.
@pytest.mark.parametrize(
    ("seconds", "memory", "share"),
    [(120, 0.0, 0.96), (300, 0.0, 0.96), (120, 0.5, 0.95), (300, 0.5, 0.95), (300, 0.8, 0.94)],
)
def test_an_interval_holds_the_true_difference_as_often_as_it_says(
    seconds: int, memory: float, share: float
) -> None:
    held = 0
    for seed in range(SEEDS):
        # two hosts with a memory each, B faster by 3; both are slow where the loader is
        common = autocorrelated(3 * seed, seconds, memory)
        a = 10 + common + autocorrelated(3 * seed + 1, seconds, memory)
        b = 13 + common + autocorrelated(3 * seed + 2, seconds, memory)
        difference = float(b.mean() - a.mean())
        found = spread(difference, blocks_of(b - a), most=20)
        assert found is not None
        held += abs(difference - 3) <= half_interval(found)
    assert within_binomial_bounds(held, share), held / SEEDS


def test_pairing_is_worth_what_both_sides_share() -> None:
    common = 5 * autocorrelated(1, 300, 0.5)
    a, b = (common + autocorrelated(seed, 300, 0.5) for seed in (2, 3))
    paired = spread(float((b - a).mean()), blocks_of(b - a), most=20)
    alone = [spread(float(each.mean()), blocks_of(each), most=20) for each in (a, b)]
    assert paired is not None
    assert alone[0] is not None
    assert alone[1] is not None
    # variances 1 + 1 against 26 + 26
    assert half_interval(of_difference(alone[0], alone[1])) > 3 * half_interval(paired)


# Two-sided 95 % quantiles of Student's t, from a printed table; the last ones are 1 - 0.05/2 and 1 - 0.05/10 (scipy 1.16)
@pytest.mark.parametrize(
    ("freedom", "together", "expected"),
    [
        (1, 1, 12.7062),
        (2, 1, 4.30265),
        (3, 1, 3.18245),
        (4, 1, 2.77645),
        (9, 1, 2.26216),
        (30, 1, 2.04227),
        (2, 2, 6.20535),
        (4, 10, 5.59757),
    ],
)
def test_students_quantiles_are_those_of_the_tables(
    freedom: int, together: int, expected: float
) -> None:
    assert student_t(0.05, freedom, together) == pytest.approx(expected, rel=1e-5)


def test_an_interval_is_the_mean_and_what_the_blocks_differ_by() -> None:
    # mean 2, deviations -1 0 1: variance 1, of the mean 1/3; t at 2 degrees 4.30265: +-2.4841
    found = mean_interval([1, 2, 3])
    assert found is not None
    assert found == (pytest.approx(2 - 2.48414, abs=1e-5), pytest.approx(2 + 2.48414, abs=1e-5))
    assert mean_interval([1.0]) is None


def test_an_interval_holds_the_truth_in_95_of_100_cases() -> None:
    dice = random.Random(8)
    held = 0
    for _ in range(2000):
        found = mean_interval([dice.gauss(1, 0.1) for _ in range(4)])
        assert found is not None
        held += found[0] <= 1 <= found[1]
    # the standard deviation of 2,000 such throws is 9.7
    assert abs(held - 1900) < 40
