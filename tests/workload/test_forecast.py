"""The replay through the proxy's own cache: hits, joined requests and misses, instant by instant."""

import math

import numpy as np
import pytest

from toolkit.workload.forecast import HitCell, hit_curve


def cells(
    keys: str, times: list[float], latency_s: float | list[float], **more
) -> dict[tuple[int | None, float | None], HitCell]:
    """One letter a key."""
    grid = {"sizes": (None,), "ttls": (None,)} | more
    told = hit_curve(
        np.array([ord(key) - ord("a") for key in keys], dtype=np.int64),
        np.array(times, dtype=float),
        np.broadcast_to(np.array(latency_s, dtype=float), len(keys)).copy(),
        **grid,
    )
    return {(cell.size, cell.ttl_s): cell for cell in told}


def counts(cell: HitCell) -> tuple[int, int, int]:
    return cell.hits, cell.coalesced, cell.misses


def test_a_repeat_joins_the_first_while_that_is_answered_and_is_a_hit_from_then_on() -> None:
    # a at 0 takes 2 s: at 1 joined, at 2 (complete at that instant) and at 3 from memory
    cell = cells("aaaa", [0, 1, 2, 3], 2.0)[None, None]
    assert counts(cell) == (2, 1, 1)
    assert (cell.hit_ratio, cell.coalesced_ratio) == (0.5, 0.25)


def test_time_to_live_counts_from_the_complete_answer_and_ends_at_the_instant() -> None:
    # a leads at 0, complete at 1, lives 10 s: a hit at 10.5; at 11 it is over and a leads again
    told = cells("aaaa", [0, 10.5, 11, 11.5], 1.0, ttls=(10.0,))
    assert counts(told[None, 10.0]) == (1, 1, 2)


def test_a_failed_answer_is_joined_but_never_kept() -> None:
    # the leader at 0 fails at 1: one joined it at 0.5; the next at 2 leads, is well, and answers the one at 4
    failed = np.array([True, False, False, False])
    cell = cells("aaaa", [0, 0.5, 2, 4], 1.0, failed=failed)[None, None]
    assert counts(cell) == (1, 1, 2)


def test_a_failed_request_itself_may_be_answered_from_memory() -> None:
    cell = cells("aa", [0, 5], 1.0, failed=np.array([False, True]))[None, None]
    assert counts(cell) == (1, 0, 1)


def test_what_a_cache_may_not_answer_is_a_miss_and_fills_no_cache() -> None:
    # may: the 2nd and the 4th to 6th. The 2nd leads (the 1st left nothing), the 4th and 6th are hits, b leads.
    may = np.array([False, True, False, True, True, True])
    cell = cells("aaaaba", [0, 10, 20, 30, 40, 50], 1.0, eligible=may)[None, None]
    assert counts(cell) == (2, 0, 4)
    assert (cell.hit_ratio, cell.eligible_hit_ratio) == (2 / 6, 2 / 4)


def test_the_second_half_is_told_apart_with_the_cache_that_the_first_half_filled() -> None:
    # second half: the 4th to 7th of seven (3 is the first half): a hit, b hit, c miss, c joins
    cell = cells("abaabcc", [0, 1, 2, 3, 4, 5, 5.1], 0.5)[None, None]
    assert counts(cell) == (3, 1, 3)
    assert (cell.steady_hit_ratio, cell.steady_coalesced_ratio) == (2 / 4, 1 / 4)


def test_a_small_cache_forgets_as_the_proxys_own_cache_does() -> None:
    # Room for 2. a is read before c needs room: it moves to the main queue, then b goes for c, and c for d: the tail pushes out
    # itself and not a.
    told = cells("abacadab", list(range(8)), 0.0, sizes=(2, None))
    assert counts(told[2, None]) == (3, 0, 5)
    assert counts(told[None, None]) == (4, 0, 4)


def test_room_for_all_keys_but_one_still_forgets() -> None:
    # three keys in turn: room for all three misses each once; room for two asks the engine again
    told = cells("abc" * 10, list(range(30)), 0.0, sizes=(2, 3))
    assert told[3, None].misses == 3
    assert told[2, None].misses > 3


def test_without_requests_nothing_is_told() -> None:
    cell = cells("", [], 1.0, sizes=(10,), ttls=(60.0,))[10, 60.0]
    assert counts(cell) == (0, 0, 0)
    assert (cell.hit_ratio, cell.eligible_hit_ratio, cell.steady_hit_ratio) == (None, None, None)


def test_an_unknown_latency_is_no_number_to_replay_with() -> None:
    with pytest.raises(AssertionError):
        cells("aa", [0, 1], [1.0, math.nan])


def test_two_prompts_that_hold_95_percent_are_found_and_a_hundred_entries_are_as_good_as_any() -> (
    None
):
    # 19 of 20 requests ask one of two prompts in turn, each 20th another that nobody asked before: of 20,000 that are 1,000 others
    # and 2 first ones that miss, 18,998 hits: 94.99 %
    keys = np.where(np.arange(20_000) % 20 < 19, np.arange(20_000) % 2, np.arange(20_000))
    told = hit_curve(
        keys, np.arange(20_000) / 50, np.zeros(20_000), sizes=(10, 100, None), ttls=(None,)
    )
    assert [cell.hits for cell in told] == [18_998] * 3


def test_two_prompts_at_50_a_second_with_a_latency_and_a_time_to_live_are_worked_out_by_hand() -> (
    None
):
    # 400 s: even requests ask a, odd ones b, but each 20th (19, 39, ...) something else. An answer takes 0.99 s and lives 60 s, so
    # each 61 s, 7 times, a and b are asked of the engine: a at 0 s, 61 s, ..., b at 0.02 s, 61.02 s, ...
    # Joined: 24 even requests each time, 168. Of 24 odd ones two belong to the tail where b leads at a request of number 1 modulo
    # 20 (4 times), three where at 11 (3 times): 4 * 22 + 3 * 21 = 151. Misses: 1,000 of the tail and 2 * 7.
    number = np.arange(20_000)
    keys = np.where(number % 20 == 19, number, number % 2)
    told = hit_curve(keys, number / 50, np.full(20_000, 0.99), sizes=(10, 100, None), ttls=(60.0,))
    assert [counts(cell) for cell in told] == [(20_000 - 319 - 1_014, 319, 1_014)] * 3


@pytest.mark.parametrize("seed", range(40))
def test_a_cache_that_never_evicts_is_worked_out_by_key_as_its_replay_would(seed: int) -> None:
    chance = np.random.default_rng(seed)
    count = int(chance.integers(1, 400))
    keys = (chance.integers(1, 40) * chance.random(count) ** 3).astype(np.int64)
    ts = np.sort(chance.choice([0.25, 1.0, 1.5, 7.0], 1) * chance.integers(0, count, count))
    latency = chance.choice([0.0, 0.25, 1.0, 6.5], count)
    failed = chance.random(count) < chance.choice([0.0, 0.3])
    for ttl_s in (0.25, 3.0, 50.0, None):
        [cell] = hit_curve(keys, ts, latency, sizes=(None,), ttls=(ttl_s,), failed=failed)
        until: dict[int, tuple[float, float]] = {}
        expected = [0, 0, 0]
        for key, at, took, is_lost in zip(keys, ts, latency, failed, strict=True):
            complete, over = until.get(key, (-1.0, -1.0))
            if at < complete:
                expected[1] += 1
            elif at < over:
                expected[0] += 1
            else:
                expected[2] += 1
                life = 0.0 if is_lost else math.inf if ttl_s is None else ttl_s
                until[key] = at + took, at + took + life
        assert list(counts(cell)) == expected
