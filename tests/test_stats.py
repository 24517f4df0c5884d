"""Sketches: within 1 % of the exact nearest rank, and the same in every order."""

import math
import random
import struct
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.stats import ABOVE_MS, BELOW_MS, Sketch, merged

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


def test_the_median_between_hits_and_misses_is_a_latency_that_somebody_had():
    # 50 hits and 50 misses: the 50th smallest is a hit; with one hit less it is a miss
    assert sketch([2.0] * 50 + [3000.0] * 50).quantile(0.5) == pytest.approx(2.0, rel=WITHIN)
    assert sketch([2.0] * 49 + [3000.0] * 51).quantile(0.5) == pytest.approx(3000.0, rel=WITHIN)


@given(value=st.floats(min_value=BELOW_MS, max_value=1e6, exclude_min=True))
def test_one_value_is_every_quantile(value):
    made = sketch([value])
    for q in (0, 0.5, 1):
        assert made.quantile(q) == pytest.approx(value, rel=WITHIN, abs=0)


def test_a_value_on_an_edge_of_its_bucket_is_within_the_bound():
    for number in range(1, 922):
        edge = float(Fraction(1, 100) * GAMMA**number)
        for value in (math.nextafter(edge, 0), edge, math.nextafter(edge, math.inf)):
            assert sketch([value]).quantile(0.5) == pytest.approx(value, rel=WITHIN, abs=0)


def test_the_buckets_grow_by_two_per_cent():
    # 10.0 and 10.19 may share a bucket, 10.0 and 10.3 may not: gamma is 1.0202
    assert sketch([10.0]) != sketch([10.3])
    values = [
        10 * 1.0001**step for step in range(1000)
    ]  # up to 11.05, ln(1.105) / ln(1.0202) = 5.0
    assert len({sketch([value]).quantile(1) for value in values}) in (5, 6, 7)


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


@pytest.mark.parametrize("count", [0, -1])
def test_a_count_below_one_is_refused(count):
    made = Sketch()
    with pytest.raises(ValueError, match="no count"):
        made.add(1.0, count)
    assert made == Sketch()


def test_an_empty_sketch_has_no_quantile():
    assert (Sketch().count, Sketch().quantile(0.5), Sketch().to_bytes()) == (0, None, b"")


@pytest.mark.parametrize("q", [-0.01, 1.01, math.nan, math.inf])
def test_a_quantile_outside_0_to_1_is_refused(q):
    with pytest.raises(ValueError, match="no quantile"):
        sketch([1.0]).quantile(q)
    with pytest.raises(ValueError, match="no quantile"):
        Sketch().quantile(q)


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


def test_a_count_stands_for_so_many_values():
    made = Sketch()
    made.add(5.0, 3)
    made.add(7.0)
    assert made == sketch([7.0, 5.0, 5.0, 5.0])
    assert made.count == 4


# Merging


@given(first=many, second=many)
def test_merging_is_adding_all(first, second):
    made = counted(first)
    made.merge(counted(second))
    assert made == counted(first + second)
    assert made.count == sum(count for _, count in first + second)
    assert made.to_bytes() == counted(first + second).to_bytes()


@given(parts=st.lists(many, max_size=5), order=st.randoms())
def test_every_order_of_merging_gives_the_same_bytes(parts, order):
    def merged(sketches):
        made = Sketch()
        for each in sketches:
            made.merge(counted(each))
        return made.to_bytes()

    there = merged(parts)
    order.shuffle(parts)
    assert merged(parts) == there


@given(first=many, second=many)
def test_subtracting_undoes_merging(first, second):
    made = counted(first)
    made.merge(counted(second))
    made.subtract(counted(second))
    assert made == counted(first)
    assert (made.count, made.to_bytes()) == (counted(first).count, counted(first).to_bytes())


@given(first=many, second=many)
def test_merging_and_subtracting_leave_the_other_one_alone(first, second):
    made, other = counted(first), counted(second)
    made.merge(other)
    made.subtract(other)
    assert other == counted(second)


def test_subtracting_what_was_never_added_changes_nothing():
    made = sketch([1.0, 5.0])
    for more in ([5.0, 5.0], [1.0, 7.0]):
        with pytest.raises(ValueError, match="never added"):
            made.subtract(sketch(more))
        assert made == sketch([1.0, 5.0])


def test_a_sketch_may_be_merged_with_and_subtracted_from_itself():
    made = sketch([1.0, 5.0])
    made.merge(made)
    assert made == sketch([1.0, 1.0, 5.0, 5.0])
    made.subtract(made)
    assert made == Sketch()


def test_a_sketch_equals_no_other_thing():
    assert sketch([1.0]) != b""
    assert sketch([1.0]) != sketch([1.0, 1.0])
    assert sketch([1.0]) != sketch([2.0])


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


def test_buckets_stand_in_ascending_order():
    # 1 ms: ln(100) / 0.020000667 = 230.25, so bucket 231
    assert sketch([100.0, 1.0, 100.0]).to_bytes() == struct.pack("<4H", 231, 1, 461, 2)


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


@pytest.mark.parametrize(
    "blob", [b"\x01", struct.pack("<HHH", 1, 1, 2), struct.pack("<HH", 924, 1)]
)
def test_what_no_blob_can_be_is_not_merged(blob):
    with pytest.raises(ValueError, match="sketch"):
        merged([sketch([1.0]).to_bytes(), blob])
