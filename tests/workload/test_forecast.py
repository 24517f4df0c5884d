"""What a response cache would answer: instant by instant, against a proxy that counts, and how likely repeats go on."""

import math
from dataclasses import replace

import numpy as np
import pytest
from support.arrived import arrived, body
from support.small_proxy import Request, serve

from toolkit.records import Seen
from toolkit.workload import columns, hit_curve, summarise
from toolkit.workload.forecast import Forecast, HitCell, recommended_size


def cells(
    keys: str, times: list[float], latency_s: float, **more: object
) -> dict[tuple[int | None, float | None], HitCell]:
    """One letter a key."""
    found = hit_curve(
        np.array([ord(key) - ord("a") for key in keys], dtype=np.int64),
        np.array(times, dtype=float),
        np.full(len(keys), latency_s),
        **({"sizes": (None,), "ttls": (None,)} | more),
    )
    return {(cell.size, cell.ttl_s): cell for cell in found}


def counts(cell: HitCell) -> tuple[int, int, int]:
    return cell.hits, cell.coalesced, cell.misses


@pytest.mark.parametrize(
    ("keys", "times", "latency_s", "more", "expected"),
    [
        # a at 0 takes 2 s: at 1 joined, at 2 (complete at that instant) and at 3 from memory
        ("aaaa", [0, 1, 2, 3], 2.0, {}, (2, 1, 1)),
        # a leads at 0, complete at 1, lives 10 s: a hit at 10.5; at 11 it is over and a leads again
        ("aaaa", [0, 10.5, 11, 11.5], 1.0, {"ttls": (10.0,)}, (1, 1, 2)),
        # the leader at 0 fails at 1: one joined it at 0.5; the next at 2 leads, is well, and answers the one at 4
        ("aaaa", [0, 0.5, 2, 4], 1.0, {"failed": np.array([True, False, False, False])}, (1, 1, 2)),
        # a request that failed may itself be answered from memory
        ("aa", [0, 5], 1.0, {"failed": np.array([False, True])}, (1, 0, 1)),
        ("", [], 1.0, {}, (0, 0, 0)),
    ],
)
def test_a_repeat_joins_while_the_first_is_answered_and_is_a_hit_while_the_answer_lives(
    keys: str, times: list[float], latency_s: float, more: dict, expected: tuple[int, int, int]
) -> None:
    [cell] = cells(keys, times, latency_s, **more).values()
    assert counts(cell) == expected


def test_ratios_are_of_all_of_the_allowed_and_of_the_second_half() -> None:
    # may: the 2nd and the 4th to 6th. The 2nd leads (the 1st left nothing), the 4th and 6th are hits, b leads
    may = np.array([False, True, False, True, True, True])
    cell = cells("aaaaba", [0, 10, 20, 30, 40, 50], 1.0, eligible=may)[None, None]
    assert counts(cell) == (2, 0, 4)
    assert (cell.hit_ratio, cell.eligible_hit_ratio) == (2 / 6, 2 / 4)
    # second half: the 4th to 7th of seven: a hit, b hit, c miss, c joins
    cell = cells("abaabcc", [0, 1, 2, 3, 4, 5, 5.1], 0.5)[None, None]
    assert (cell.hit_ratio, cell.coalesced_ratio) == (3 / 7, 1 / 7)
    assert (cell.steady_hit_ratio, cell.steady_coalesced_ratio) == (2 / 4, 1 / 4)
    cell = cells("", [], 1.0)[None, None]
    assert (cell.hit_ratio, cell.eligible_hit_ratio, cell.steady_hit_ratio) == (None, None, None)


def test_a_small_cache_forgets_as_the_proxys_own_cache_does() -> None:
    # Room for 2. a is read before c needs room: it moves to the main queue, then b goes for c, and c for d: the tail pushes out
    # itself and not a.
    found = cells("abacadab", list(range(8)), 0.0, sizes=(2, None))
    assert (counts(found[2, None]), counts(found[None, None])) == ((3, 0, 5), (4, 0, 4))
    # three keys in turn: room for all three misses each once; room for two asks the engine again
    found = cells("abc" * 10, list(range(30)), 0.0, sizes=(2, 3))
    assert found[3, None].misses == 3 < found[2, None].misses


def test_an_unknown_latency_is_no_number_to_replay_with() -> None:
    with pytest.raises(AssertionError):
        cells("aa", [0, 1], math.nan)


@pytest.mark.parametrize("seed", range(20))
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "latency", "size", "ttl_s"),
    [
        ("two prompts", "0", 10, 600.0),
        ("two prompts", "1", 2, 600.0),
        ("two prompts", "differing", 1_000, 20.0),
        ("zipf", "0", 100, 60.0),
        ("zipf", "0", None, 20.0),
        ("zipf", "1", None, None),
        ("zipf", "differing", 100, 60.0),
    ],
)
def test_what_is_forecast_is_what_a_proxy_counts(
    workload: str, latency: str, size: int | None, ttl_s: float | None
) -> None:
    count, chance = 20_000, np.random.default_rng(7)
    if workload == "two prompts":
        tail = 2 + np.arange(count)
        keys = np.where(chance.random(count) < 0.95, chance.integers(0, 2, count), tail)
    else:
        likely = 1 / np.arange(1, 3_001) ** 0.9
        keys = chance.choice(3_000, size=count, p=likely / likely.sum())
    ts = np.cumsum(chance.exponential(1 / 50, count))
    differing = chance.lognormal(0.0, 1.0, count)
    latency_s = differing if latency == "differing" else np.full(count, float(latency))
    failed = chance.random(count) < 0.02
    (cell,) = hit_curve(keys, ts, latency_s, sizes=(size,), ttls=(ttl_s,), failed=failed)
    requests = [
        Request(at, int(key).to_bytes(16), took, fails)
        for at, key, took, fails in zip(
            ts.tolist(), keys.tolist(), latency_s.tolist(), failed.tolist(), strict=True
        )
    ]
    served = serve(requests, size=size, ttl_s=ttl_s)
    if latency == "0":
        assert counts(cell) == (served.hits, 0, served.misses)
    # asyncio calls what is due within its clock's resolution at once, so two requests may change places: measured, none do
    assert abs(cell.hits - served.hits) + abs(cell.coalesced - served.coalesced) <= 2


# --- How likely the next request is a repeat ------------------------------------------------------------


def forecast(prompts: object, ts: np.ndarray | None = None, **each: object) -> Forecast:
    policy = {"policy": "declared"} if "temperature" in each else {}
    times = None if ts is None else ts.tolist()
    found = summarise(arrived(list(prompts), ts=times, **each), **policy).forecast  # type: ignore[call-overload,arg-type]
    assert found is not None
    return found


def test_the_chance_of_a_repeat_is_one_minus_the_share_of_keys_seen_once() -> None:
    # c and d were seen once: 1 - 2/8; the repeats so far: 1 - 4/8
    chance = forecast("aabbaacd").chance
    assert (chance.ratio, chance.repeats_ratio) == (6 / 8, 4 / 8)
    # what no cache may answer repeats nothing and stays in the count. May: a a b; a twice, b once: 2 of 6 requests
    chance = forecast("aabbbb", temperature=[0.0] * 3 + [1.0] * 3).chance
    assert (chance.ratio, chance.repeats_ratio) == (2 / 6, 1 / 6)
    assert forecast("aaa", temperature=[0.0, 0.0, 1.0]).chance.ratio == 2 / 3


def test_without_time_or_with_two_bursts_there_is_no_interval() -> None:
    chance = forecast("aabb", np.zeros(4)).chance
    assert (chance.ratio, chance.low, chance.high) == (1.0, None, None)
    bursts = np.concatenate([np.linspace(0, 1, 500), np.linspace(999, 1000, 500)])
    assert forecast(np.arange(1000) % 7, bursts).chance.low is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "exponent", "requests"), [(2_000, 0.9, 5_000), (2_000, 1.2, 20_000)]
)
def test_the_interval_holds_the_true_chance_about_as_often_as_it_says(
    keys: int, exponent: float, requests: int
) -> None:
    # Zipf's law with known probabilities: the next request repeats an earlier key with the sum of the probabilities of the keys
    # seen. Of 40 intervals of 95 %, fewer than 31 right have a chance of 1 in 100,000.
    likely = 1 / np.arange(1, keys + 1) ** exponent
    likely /= likely.sum()
    right, widths = 0, []
    whole = arrived(range(keys))
    for seed in range(40):
        rng = np.random.default_rng(seed)
        drawn = rng.choice(keys, size=requests, p=likely)
        part = replace(whole.part(drawn), ts=np.cumsum(rng.exponential(1.0, requests)))
        found = summarise(part, sizes=(None,), ttls_s=(None,)).forecast
        assert found is not None
        low, high = found.chance.low, found.chance.high
        assert low is not None
        assert high is not None
        right += low <= likely[np.unique(drawn)].sum() <= high
        widths.append(high - low)
    assert right >= 31
    assert np.mean(widths) < 0.04


def test_blocks_of_time_that_differ_widen_the_interval() -> None:
    # the same keys: spread evenly, and all repeats in the last fifth of the time
    number = np.arange(5_000)
    even = np.where(number % 5 == 0, 0, number)
    widths = []
    for keys in (even, np.sort(even)[::-1]):
        chance = forecast(keys.tolist()).chance
        assert chance.ratio == 0.2
        assert chance.high is not None
        assert chance.low is not None
        widths.append(chance.high - chance.low)
    assert widths[1] > 10 * widths[0]


def test_a_cache_is_never_recommended_smaller_than_ten_times_the_hot_keys() -> None:
    # two prompts hold all repeats, each half of them: one is half, so one is hot: 10 at least; with 3 equal ones two are hot: 20
    assert forecast(np.arange(900) % 2).recommended_size == 10
    assert forecast(np.arange(900) % 3).recommended_size == 20
    assert forecast(np.arange(100)).recommended_size is None


def test_the_recommended_size_is_the_smallest_that_is_as_good_as_one_without_end() -> None:
    # 500 keys in turn, the first asked every other time: smaller caches lose the turn
    keys = np.where(np.arange(20_000) % 2 == 0, 0, 1 + np.arange(20_000) // 2 % 500)
    ts, none = np.arange(20_000.0), np.zeros(20_000)
    curve = hit_curve(keys, ts, none, sizes=(10, 100, 600, 5_000, None), ttls=(None, 9e9))
    assert recommended_size(curve, keys, keys >= 0) == 600
    # 9,000 requests: half a point, 45 hits, less is as good. Of two prompts in turn one is hot
    keys = np.arange(9_000) % 2
    [full] = hit_curve(keys, ts[:9_000], none[:9_000], sizes=(None,), ttls=(None,))
    near = [
        replace(full, size=30, hits=full.hits - 46),
        replace(full, size=40, hits=full.hits - 45),
    ]
    assert recommended_size([*near, full], keys, keys >= 0) == 40


def test_three_keys_give_three_curves() -> None:
    # one prompt in two settings, one of these in two spellings
    bodies = [body("p", 1, request_key="r"), body("p", 2, request_key="r"), body("p", 3)]
    laid = columns(Seen(ts=float(at), asked=bodies[at % 3]) for at in range(9))
    found = summarise(laid, latency_s=0.0, sizes=(10, None), ttls_s=(60.0, None)).forecast
    assert found is not None
    assert [cell.hits for cell in found.exact] == [6, 6]  # 9 less 3 bodies
    assert [cell.hits for cell in found.canonical] == [7] * 4
    assert [cell.hits for cell in found.prompt] == [8, 8]
    assert (found.chance.ratio, found.recommended_size) == (1.0, 10)
