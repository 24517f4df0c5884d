"""Sketches: within 1 % of the exact nearest rank, however they are merged. Intervals: worked by hand, and true as often as they say."""

import math
import random
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.stats import (
    ABOVE_MS,
    BELOW_MS,
    Sketch,
    Spread,
    half_interval,
    mean_interval,
    merged,
    of_difference,
    spread,
    student_t,
)

WITHIN = 0.01 + 1e-12  # the bound, and what floats round away
GAMMA = Fraction(101, 99)

latencies = st.floats(min_value=0, max_value=2e6)
many = st.lists(st.tuples(latencies, st.integers(min_value=1, max_value=200_000)), max_size=30)


def sketch(values, count: int = 1) -> Sketch:
    made = Sketch()
    for value in values:
        made.add(value, count)
    return made


def counted(pairs) -> Sketch:
    made = Sketch()
    for value, count in pairs:
        made.add(value, count)
    return made


def nearest_rank(values, q: str) -> float:
    """The ceil(q * n)-th smallest value, in whole numbers."""
    return sorted(values)[max(1, math.ceil(Fraction(q) * len(values))) - 1]


def mixture(name: str, seed: int) -> list[float]:
    draw = random.Random(seed)
    share = {"log-normal": 0.0, "half hits": 0.5, "60 % hits": 0.6, "95 % hits": 0.95}[name]
    hit, miss = (math.log(2), 0.3), (math.log(3000), 0.4)
    return [draw.lognormvariate(*(hit if draw.random() < share else miss)) for _ in range(5000)]


@pytest.mark.parametrize("name", ["log-normal", "half hits", "60 % hits", "95 % hits"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_quantile_is_within_one_per_cent(name, seed):
    values = mixture(name, seed)
    made = sketch(values)
    for q in ("0", "0.001", "0.01", "0.1", "0.5", "0.9", "0.95", "0.99", "0.999", "1"):
        assert made.quantile(float(q)) == pytest.approx(nearest_rank(values, q), rel=WITHIN, abs=0)


def test_a_value_on_an_edge_of_its_bucket_is_within_the_bound():
    for number in range(1, 922):
        edge = float(Fraction(1, 100) * GAMMA**number)
        for value in (math.nextafter(edge, 0), edge, math.nextafter(edge, math.inf)):
            assert sketch([value]).quantile(0.5) == pytest.approx(value, rel=WITHIN, abs=0)


def test_a_known_value_has_a_known_bucket():
    # 100 ms: ln(10,000) / ln(1.01 / 0.99) = 9.210340 / 0.020000667 = 460.5017, so bucket 461
    assert sketch([100.0]).to_bytes() == struct.pack("<HH", 461, 1)


def test_zero_and_all_up_to_ten_microseconds_are_told_as_below():
    for value in (0, 0.0, -0.0, 5e-324, 0.0099, BELOW_MS):
        made = sketch([value])
        assert made.to_bytes() == struct.pack("<HH", 0, 1)
        assert made.quantile(0.5) <= BELOW_MS
    assert sketch([0.0101]).quantile(0.5) > BELOW_MS


def test_beyond_a_thousand_seconds_is_told_as_above():
    for value in (1.03e6, 1e9, 1.7e308):
        made = sketch([value])
        assert made.to_bytes() == struct.pack("<HH", 923, 1)
        assert made.quantile(0.5) >= ABOVE_MS
    assert sketch([1e6]).quantile(0.5) < ABOVE_MS
    assert ABOVE_MS > 1e6


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1e-9])
def test_what_is_no_latency_is_refused_and_not_counted(value):
    made = sketch([1.0])
    with pytest.raises(ValueError, match="no latency"):
        made.add(value)
    assert made == sketch([1.0])


@pytest.mark.parametrize(
    ("n", "q", "rank"),
    [
        (1, 0.5, 1),
        (2, 0.5, 1),
        (3, 0.5, 2),
        (100, 0.07, 7),
        (100, 0.95, 95),
        (101, 0.95, 96),
        (10, 0, 1),
        (9, 1, 9),
    ],
)
def test_the_rank_is_the_share_of_all_values_rounded_up(n, q, rank):
    # 0.07 * 100 is a little more than 7 to a float
    values = [1.05**number for number in range(1, n + 1)]
    assert sketch(values).quantile(q) == pytest.approx(values[rank - 1], rel=WITHIN)


# Merging


@given(first=many, second=many)
def test_merging_is_adding_all(first, second):
    made = counted(first)
    made.merge(counted(second))
    assert made == counted(first + second)
    assert made.count == sum(count for _, count in first + second)
    assert made.to_bytes() == counted(first + second).to_bytes()


@given(first=many, second=many)
def test_subtracting_undoes_merging(first, second):
    made = counted(first)
    made.merge(counted(second))
    made.subtract(counted(second))
    assert made == counted(first)
    assert (made.count, made.to_bytes()) == (counted(first).count, counted(first).to_bytes())


def test_subtracting_what_was_never_added_changes_nothing():
    made = sketch([1.0, 5.0])
    for more in ([5.0, 5.0], [1.0, 7.0]):
        with pytest.raises(ValueError, match="never added"):
            made.subtract(sketch(more))
        assert made == sketch([1.0, 5.0])


# Bytes


@given(pairs=many)
def test_bytes_are_read_back_as_they_were(pairs):
    made = counted(pairs)
    assert Sketch.from_bytes(made.to_bytes()) == made
    assert Sketch.from_bytes(made.to_bytes()).count == made.count


def test_a_count_above_two_bytes_repeats_its_bucket():
    # 140,000 = 65,535 + 65,535 + 8,930, in the bucket of 100 ms
    made = Sketch()
    made.add(100.0, 140_000)
    assert made.to_bytes() == struct.pack("<6H", 461, 65_535, 461, 65_535, 461, 8_930)
    assert Sketch.from_bytes(made.to_bytes()).count == 140_000
    full = Sketch()
    full.add(100.0, 65_535)
    assert full.to_bytes() == struct.pack("<HH", 461, 65_535)


@pytest.mark.parametrize(
    "blob",
    [
        b"\x01",
        struct.pack("<HHH", 1, 1, 2),
        struct.pack("<HH", 924, 1),
        struct.pack("<HH", 1, 0),
        struct.pack("<4H", 5, 1, 4, 1),
        struct.pack("<4H", 5, 1, 5, 1),  # twice, though it fits in one pair
    ],
)
def test_damaged_bytes_are_refused(blob):
    with pytest.raises(ValueError, match="sketch"):
        Sketch.from_bytes(blob)


@given(blob=st.binary(max_size=40))
def test_what_can_be_read_is_written_back_byte_for_byte(blob):
    try:
        made = Sketch.from_bytes(blob)
    except ValueError:
        return
    assert made.to_bytes() == blob


# Blobs


@given(parts=st.lists(many, max_size=4))
def test_merged_blobs_are_the_blob_of_the_merged_sketches(parts):
    whole = Sketch()
    for pairs in parts:
        whole.merge(counted(pairs))
    assert merged([counted(pairs).to_bytes() for pairs in parts]) == whole.to_bytes()


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


def test_the_spreads_of_two_sides_add_up() -> None:
    one = Spread(variance=1.0, freedom=5, blocks=6)
    two = Spread(variance=3.0, freedom=9, blocks=10)
    both = of_difference(one, two)
    # Welch and Satterthwaite: 4**2 / (1**2 / 5 + 3**2 / 9) = 16 / 1.2
    assert (both.variance, both.freedom, both.blocks) == (4.0, pytest.approx(16 / 1.2), 6)
    still = Spread(variance=0.0, freedom=5, blocks=6)
    assert of_difference(still, still).freedom == 5


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
