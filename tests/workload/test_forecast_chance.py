"""How likely the next request is a repeat: Good and Turing's estimate by hand, and how often its interval is right."""

from dataclasses import replace

import numpy as np
import pytest

from toolkit.records import Asked, Seen
from toolkit.workload import columns
from toolkit.workload.forecast import forecast, hit_curve, recommended_size, repeat_chance


def keys_of(letters: str) -> np.ndarray:
    return np.array([ord(letter) - ord("a") for letter in letters], dtype=np.int64)


def test_the_chance_of_a_repeat_is_one_minus_the_share_of_keys_seen_once() -> None:
    # c and d were seen once: 1 - 2/8; the repeats so far: 1 - 4/8
    told = repeat_chance(keys_of("aabbaacd"), np.arange(8.0))
    assert (told.ratio, told.repeats_ratio) == (6 / 8, 4 / 8)


def test_what_no_cache_may_answer_repeats_nothing_and_stays_in_the_count() -> None:
    # may: a a b; a twice, b once: 2 of 6 requests
    may = np.array([True, True, True, False, False, False])
    told = repeat_chance(keys_of("aabbbb"), np.arange(6.0), may)
    assert (told.ratio, told.repeats_ratio) == (2 / 6, 1 / 6)
    assert (
        repeat_chance(keys_of("aaa"), np.arange(3.0), np.array([True, True, False])).ratio == 2 / 3
    )


def test_without_requests_or_without_time_there_is_no_interval() -> None:
    assert repeat_chance(keys_of(""), np.empty(0)).ratio is None
    told = repeat_chance(keys_of("aabb"), np.zeros(4))
    assert (told.ratio, told.low, told.high) == (1.0, None, None)


def test_two_bursts_are_no_twenty_blocks_of_time() -> None:
    ts = np.concatenate([np.linspace(0, 1, 500), np.linspace(999, 1000, 500)])
    assert repeat_chance(np.arange(1000) % 7, ts).low is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "exponent", "requests"),
    [(2_000, 0.9, 5_000), (20_000, 0.9, 5_000), (2_000, 1.2, 20_000)],
)
def test_the_interval_holds_the_true_chance_about_as_often_as_it_says(
    keys: int, exponent: float, requests: int
) -> None:
    # Zipf's law with known probabilities: the next request repeats an earlier key with the sum of the probabilities of the keys
    # seen. Of 100 intervals of 95 %, fewer than 85 right have a chance of 1 in 10,000.
    likely = 1 / np.arange(1, keys + 1) ** exponent
    likely /= likely.sum()
    right, widths = 0, []
    for seed in range(100):
        chance = np.random.default_rng(seed)
        drawn = chance.choice(keys, size=requests, p=likely)
        told = repeat_chance(drawn, np.cumsum(chance.exponential(1.0, requests)))
        assert told.low is not None
        assert told.high is not None
        right += told.low <= likely[np.unique(drawn)].sum() <= told.high
        widths.append(told.high - told.low)
    assert right >= 85
    assert np.mean(widths) < 0.04


def test_blocks_of_time_that_differ_widen_the_interval() -> None:
    # the same keys: spread evenly, and all repeats in the last fifth of the time
    even = np.where(np.arange(10_000) % 5 == 0, 0, np.arange(10_000))
    apart = np.sort(even)[::-1]
    ts = np.arange(10_000.0)

    def width(keys: np.ndarray) -> float:
        told = repeat_chance(keys, ts)
        assert told.ratio == 0.2
        return (told.high or 0.0) - (told.low or 0.0)

    assert width(apart) > 10 * width(even)


def test_a_cache_is_never_recommended_smaller_than_ten_times_the_hot_keys() -> None:
    # two prompts hold all repeats, each half of them: one is half, so one is hot: 10 at least; with 3 equal ones two are hot: 20
    ts, none = np.arange(9_000.0), np.zeros(9_000)
    two, three = np.arange(9_000) % 2, np.arange(9_000) % 3
    for keys, wanted in ((two, 10), (three, 20)):
        curve = hit_curve(keys, ts, none, sizes=(3, 1_000, None), ttls=(None,))
        assert recommended_size(curve, keys) == wanted


def test_the_recommended_size_is_the_smallest_that_is_as_good_as_one_without_end() -> None:
    # 500 keys in turn, the first asked every other time: smaller caches lose the turn
    keys = np.where(np.arange(20_000) % 2 == 0, 0, 1 + np.arange(20_000) // 2 % 500)
    curve = hit_curve(
        keys,
        np.arange(20_000.0),
        np.zeros(20_000),
        sizes=(10, 100, 600, 5_000, None),
        ttls=(None, 9e9),
    )
    assert recommended_size(curve, keys) == 600


def test_half_a_point_less_is_as_good() -> None:
    # 9,000 requests: half a point is 45 hits. Of two prompts in turn one is hot.
    keys = np.arange(9_000) % 2
    (full,) = hit_curve(keys, np.arange(9_000.0), np.zeros(9_000), sizes=(None,), ttls=(None,))
    curve = [
        replace(full, size=30, hits=full.hits - 46),
        replace(full, size=40, hits=full.hits - 45),
        full,
    ]
    assert recommended_size(curve, keys) == 40


def test_where_nothing_repeats_no_cache_is_recommended() -> None:
    keys = np.arange(100)
    curve = hit_curve(keys, np.arange(100.0), np.zeros(100), sizes=(10, None), ttls=(None,))
    assert recommended_size(curve, keys) is None


def test_three_keys_give_three_curves() -> None:
    def asked(exact: str, request: str, prompt: str) -> Asked:
        return Asked(exact_key=exact, request_key=request, prompt_key=prompt, body_bytes=1)

    # one prompt in two settings, one of these in two spellings
    bodies = [asked("a", "r", "p"), asked("b", "r", "p"), asked("c", "s", "p")]
    laid = columns(Seen(ts=float(at), asked=bodies[at % 3]) for at in range(9))
    told = forecast(laid, np.zeros(9), sizes=(10, None), ttls=(60.0, None))
    assert [cell.hits for cell in told.exact] == [6, 6]  # 9 less 3 bodies
    assert [cell.hits for cell in told.canonical] == [7] * 4
    assert [cell.hits for cell in told.prompt] == [8, 8]
    assert told.chance.ratio == 1.0
    assert told.recommended_size == 10
