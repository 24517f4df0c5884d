"""Space-Saving against counts worked out by hand, and its promises against exact counts."""

import random
from collections import Counter

from toolkit.capture.topk import KeyCount, TopKeys


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
