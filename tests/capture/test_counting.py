"""Counting by key: exact below the cap; above it an estimate that tells its error and keeps it."""

import hashlib
import random
from collections import Counter

import pytest

from toolkit.capture.counting import LEADERS, Counting, HyperLogLog, KeyCount, TopKeys


def key(number: int) -> bytes:
    return hashlib.blake2b(number.to_bytes(8, "little"), digest_size=16).digest()


def test_below_the_cap_all_is_exact() -> None:
    counting = Counting(most=3)
    assert [counting.add(key(n)) for n in (1, 2, 1, 3, 1)] == [True, True, False, True, False]
    assert (counting.unique, counting.error) == (3, None)
    assert counting.top(2) == [KeyCount(key(1), 3, 0), KeyCount(key(2), 1, 0)]


def test_nothing_is_nothing() -> None:
    counting = Counting()
    assert (counting.unique, counting.error, counting.top(5)) == (0, None, [])


def test_beyond_the_cap_known_keys_stay_exact_and_of_others_nobody_says_that_they_are_new() -> None:
    counting = Counting(most=2)
    told = [counting.add(key(n)) for n in (1, 2, 3, 3, 1, 2)]
    assert told == [True, True, None, None, False, False]
    assert counting.unique == 3
    # one of three is estimated
    assert counting.error == pytest.approx(HyperLogLog.ERROR / 3)
    assert counting.top(3) == [
        KeyCount(key(1), 2, 0),
        KeyCount(key(2), 2, 0),
        KeyCount(key(3), 2, 0),
    ]


def test_a_hot_key_that_came_late_still_leads() -> None:
    counting = Counting(most=10, counters=5)
    for n in range(200):
        counting.add(key(n))
        counting.add(key(1_000))
    assert counting.top(1)[0].key == key(1_000)
    # 201 different ones, of which 10 are exact: within 4 standard errors
    assert counting.unique == pytest.approx(201, rel=4 * HyperLogLog.ERROR)


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.2])
def test_the_leaders_are_those_that_a_count_of_everything_finds(skew: float) -> None:
    chance = random.Random(3)
    weights = [1 / (rank + 1) ** skew for rank in range(2_000)]
    arrivals = chance.choices(range(2_000), weights, k=30_000)
    counting, true = Counting(), Counter[int]()
    for place, n in enumerate(arrivals):
        counting.add(key(n))
        true[n] += 1
        if place % 5_000 == 4_999:  # at every moment, not only at the end
            top = counting.top(LEADERS)
            assert [one.arrivals for one in top] == [
                count for _, count in true.most_common(LEADERS)
            ]
            numbers = {key(n): n for n in true}
            assert all(true[numbers[one.key]] == one.arrivals for one in top)
            assert len({one.key for one in top}) == LEADERS


@pytest.mark.parametrize("different", [1, 100, 5_000, 40_000, 82_000, 300_000])
def test_an_estimate_is_within_four_standard_errors_at_every_fill(different: int) -> None:
    """40,000 and 82,000 are where the first HyperLogLog was biased: 2.5 to 5 times its 16,384 registers."""
    sketch = HyperLogLog()
    for n in range(different):
        sketch.add(key(n))
    assert sketch.estimate() == pytest.approx(different, rel=4 * 0.0081, abs=0.01)


def test_a_repeat_changes_no_estimate() -> None:
    sketch = HyperLogLog()
    assert sketch.add(key(1))
    assert not sketch.add(key(1))
    assert sketch.estimate() == pytest.approx(1, abs=0.001)


def test_an_empty_sketch_counts_nothing_and_a_hash_of_zeros_breaks_nothing() -> None:
    sketch = HyperLogLog()
    assert sketch.estimate() == 0
    sketch.add(bytes(16))
    assert sketch.estimate() == pytest.approx(1, abs=0.001)


# --- Space-Saving, against counts worked out by hand, and its promises against exact counts


def counted(words: str, counters: int) -> TopKeys:
    keys = TopKeys(counters)
    for word in words:
        keys.add(word.encode())
    return keys


def test_few_keys_are_counted_exactly() -> None:
    assert counted("abacab", 3).top(10) == [
        KeyCount(b"a", 3, 0),
        KeyCount(b"b", 2, 0),
        KeyCount(b"c", 1, 0),
    ]


def test_a_key_too_many_inherits_the_smallest_count_and_says_so() -> None:
    # a 2, b 1; c takes b's counter: 1 inherited + 1 of its own
    assert counted("aabc", 2).top(10) == [KeyCount(b"a", 2, 0), KeyCount(b"c", 2, 1)]


def test_a_key_that_came_again_since_is_not_the_one_to_go() -> None:
    # a and b 1 each, then a again: b goes though a was the first in
    assert counted("abac", 2).top(10) == [KeyCount(b"a", 2, 0), KeyCount(b"c", 2, 1)]


def test_the_top_is_cut_where_asked_and_equal_keys_keep_their_order() -> None:
    assert [one.key for one in counted("zyxx", 5).top(2)] == [b"x", b"z"]
    assert counted("", 5).top(3) == []


def test_what_comes_often_is_kept_and_no_count_is_outside_its_error() -> None:
    chance = random.Random(7)
    # a third of 30,000 are two hot keys, the rest hardly ever repeat: far more keys than counters
    words = [
        chance.choice([b"hot", b"warm"]) if chance.random() < 1 / 3 else chance.randbytes(4)
        for _ in range(30_000)
    ]
    true, keys = Counter(words), TopKeys(100)
    for word in words:
        keys.add(word)
    top = keys.top(100)
    assert len(top) == 100
    assert {one.key for one in top[:2]} == {b"hot", b"warm"}
    for one in top:
        assert one.arrivals - one.error <= true[one.key] <= one.arrivals
    # Space-Saving never loses or invents an arrival
    assert sum(one.arrivals for one in top) == 30_000
