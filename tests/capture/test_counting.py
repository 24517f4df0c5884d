"""Counting by key: exact below the cap; above it an estimate that tells its error and keeps it."""

import hashlib
import random
from collections import Counter

import pytest

from toolkit.capture.counting import Counting, Different, KeyCount, TopKeys


def key(number: int) -> bytes:
    return hashlib.blake2b(number.to_bytes(8, "little"), digest_size=16).digest()


def test_below_the_cap_all_is_exact() -> None:
    counting = Counting(most=3)
    assert [counting.add(key(n)) for n in (1, 2, 1, 3, 1)] == [True, True, False, True, False]
    assert (counting.unique, counting.error) == (3, None)
    assert counting.top(2) == [KeyCount(key(1), 3, 0), KeyCount(key(2), 1, 0)]


def test_beyond_the_cap_known_keys_stay_exact_and_of_others_nobody_says_that_they_are_new() -> None:
    counting = Counting(most=2)
    told = [counting.add(key(n)) for n in (1, 2, 3, 3, 1, 2)]
    assert told == [True, True, None, None, False, False]
    assert counting.unique == 3
    # one of three is estimated
    assert counting.error == pytest.approx(Different.ERROR / 3)
    assert counting.top(3) == [
        KeyCount(key(1), 2, 0),
        KeyCount(key(2), 2, 0),
        KeyCount(key(3), 2, 0),
    ]


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
            top = counting.top(100)
            assert [one.arrivals for one in top] == [count for _, count in true.most_common(100)]
            numbers = {key(n): n for n in true}
            assert all(true[numbers[one.key]] == one.arrivals for one in top)
            assert len({one.key for one in top}) == 100


@pytest.mark.parametrize("different", [0, 1, 5_000, 16_383])
def test_as_many_hashes_as_are_kept_are_counted_exactly_however_often_they_come(
    different: int,
) -> None:
    counted = Different()
    assert all(counted.add(key(n)) for n in range(different))
    assert not any(counted.add(key(n)) for n in range(0, different, 7))
    assert counted.estimate() == different


@pytest.mark.parametrize("different", [16_384, 20_000, 82_000])
def test_an_estimate_is_within_four_standard_errors(different: int) -> None:
    counted = Different()
    counted.add(bytes(16))  # a hash of zeros breaks nothing
    for n in range(1, different):
        counted.add(key(n))
        counted.add(key(n // 2 + 1))
    # one divided by the root of 16,382
    assert counted.estimate() == pytest.approx(different, rel=4 * 0.0079)


# --- Space-Saving, against counts worked out by hand, and its promises against exact counts


def counted(words: str, counters: int) -> TopKeys:
    keys = TopKeys(counters)
    for word in words:
        keys.add(word.encode())
    return keys


def test_a_key_too_many_inherits_the_smallest_count_and_says_so() -> None:
    # a 2, b 1; c takes b's counter: 1 inherited + 1 of its own
    assert counted("aabc", 2).top(10) == [KeyCount(b"a", 2, 0), KeyCount(b"c", 2, 1)]


def test_a_key_that_came_again_since_is_not_the_one_to_go() -> None:
    # a and b 1 each, then a again: b goes though a was the first in
    assert counted("abac", 2).top(10) == [KeyCount(b"a", 2, 0), KeyCount(b"c", 2, 1)]


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
