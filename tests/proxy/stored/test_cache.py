import math
import tracemalloc
from collections.abc import Iterable

import pytest

from toolkit.proxy.stored.cache import ENTRY_BYTES, Cache


def ask(cache: Cache[str, str], keys: Iterable[str], now: float = 0.0) -> str:
    """Ask for each key and store what is missing, as a proxy does; `h` a hit, `.` a miss."""
    told = ""
    for key in keys:
        if cache.get(key, now) is None:
            cache.put(key, key.upper(), now)
            told += "."
        else:
            told += "h"
    return told


def held(cache: Cache[str, str], keys: str, now: float = 0.0) -> str:
    """Those of the keys that are held; it counts as reading them."""
    return "".join(key for key in keys if cache.get(key, now) is not None)


def test_an_answer_is_found_by_its_key_and_by_no_other() -> None:
    cache: Cache[str, str] = Cache(10)
    assert cache.put("a", "A", 0.0)
    assert (cache.get("a", 1.0), cache.get("b", 1.0)) == ("A", None)
    assert (cache.hits, cache.misses, len(cache), cache.weight) == (1, 1, 1, 1)


def test_the_queues_let_go_in_the_order_worked_out_by_hand() -> None:
    # Room for 10: while the main queue is empty, all are in the small one.
    cache: Cache[str, str] = Cache(10)
    assert ask(cache, "abcdefghij") == ".........."
    assert held(cache, "bd") == "bd"
    # k: the small queue is over its tenth; a, the oldest, was not read and goes to the ghost. l: b was read and moves to the
    # main queue, c goes. m: d moves, e goes. Ghost: a c e. Small: f g h i j k l m. Main: b d.
    assert ask(cache, "klm") == "..."
    # a and c come back: at once into the main queue, for which f and g go. Small: h i j k l m. Main: b d a c. Ghost: a c e f g.
    assert ask(cache, "ac") == ".."
    # Eight unread newcomers push out h i j k l m n o and stay as the small queue's p q r s t u; the main queue is not touched.
    assert ask(cache, "nopqrstu") == "." * 8
    assert held(cache, "abcdefghijklmnopqrstu") == "abcdpqrstu"
    # gone: a c e, f g, h to o
    assert (cache.evicted, cache.stored, len(cache)) == (3 + 2 + 8, 10 + 3 + 2 + 8, 10)


def test_in_the_main_queue_an_answer_goes_round_once_for_each_read_since() -> None:
    # Room for 10. Ten answers, each read once, then x: all ten move to the main queue unread, the small one is empty, so the
    # main queue's oldest, a, goes. Small: x. Main: b to j (9).
    cache: Cache[str, str] = Cache(10)
    ask(cache, "abcdefghijabcdefghijx")
    assert held(cache, "bb") == "bb"
    assert held(cache, "x") == "x"
    # y: the small queue holds its tenth: x was read and moves, nothing is left there; b was read twice and goes round, c goes.
    # Main: d e f g h i j x b (9). Small: y.
    ask(cache, "y")
    # z: y goes. Then z itself was read, so for w: z moves; d goes. Main: e f g h i j x b z. Small: w.
    ask(cache, "zzw")
    assert cache.evicted == 4  # a c y d
    # k pushes w out. Each further newcomer, read once, pushes the one before it into the main queue, and that the oldest out of
    # it: l m n o p q r push e f g h i j x out. With s it is b's turn: one read is left, it goes round, and z goes.
    for newcomer in "klmnopqrs":
        ask(cache, newcomer * 2)
    assert held(cache, "acdefghijxywz") == ""
    assert held(cache, "b") == "b"


@pytest.mark.parametrize("ttl_s", [60.0, 0.1])
def test_an_answer_lives_to_the_very_end_of_its_time_and_not_beyond(ttl_s: float) -> None:
    cache: Cache[str, str] = Cache(10, ttl_s=ttl_s)
    cache.put("a", "A", 1000.0)
    assert cache.get("a", math.nextafter(1000.0 + ttl_s, 0)) == "A"
    assert cache.get("a", 1000.0 + ttl_s) is None
    assert (cache.expired, cache.misses, len(cache), cache.weight) == (1, 1, 0, 0)


def test_reading_does_not_lengthen_life_and_putting_again_does() -> None:
    cache: Cache[str, str] = Cache(10, ttl_s=60.0)
    cache.put("a", "A", 0.0)
    assert cache.get("a", 59.0) == "A"
    assert cache.get("a", 60.0) is None
    cache.put("b", "B", 100.0)
    cache.put("b", "C", 130.0)
    assert cache.get("b", 189.0) == "C"
    assert cache.get("b", 190.0) is None


def test_an_answer_may_bring_its_own_time_to_live() -> None:
    cache: Cache[str, str] = Cache(10, ttl_s=60.0)
    cache.put("short", "A", 0.0, ttl_s=5.0)
    cache.put("ever", "B", 0.0, ttl_s=math.inf)
    assert cache.get("short", 5.0) is None
    assert cache.get("ever", 1e12) == "B"


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, math.nan])
def test_an_answer_without_time_to_live_is_refused(ttl_s: float) -> None:
    cache: Cache[str, str] = Cache(10)
    assert not cache.put("a", "A", 0.0, ttl_s=ttl_s)
    assert (cache.refused, cache.stored, len(cache)) == (1, 0, 0)


def test_without_anybody_asking_answers_out_of_time_are_gone_after_half_as_many_puts() -> None:
    cache: Cache[int, str] = Cache(None, ttl_s=60.0)
    for key in range(1000):
        cache.put(key, "x", 0.0)
    # 1,000 answers at two a put
    for key in range(1000, 1502):
        cache.put(key, "x", 60.0)
    assert (cache.expired, len(cache)) == (1000, 502)


def test_one_heavier_than_allowed_is_refused_and_pushes_out_nothing() -> None:
    cache: Cache[str, str] = Cache(100, heaviest=40)
    cache.put("a", "A", 0.0, weight=40)
    cache.put("b", "B", 0.0, weight=40)
    assert not cache.put("c", "C", 0.0, weight=41)
    assert (cache.refused, len(cache), cache.weight) == (1, 2, 80)
    assert not Cache[str, str](100).put("d", "D", 0.0, weight=101)


def test_a_heavy_answer_pushes_out_as_many_light_ones_as_it_needs_room() -> None:
    cache: Cache[str, str] = Cache(100)
    for key in "abcdefghij":
        cache.put(key, key, 0.0, weight=10)
    cache.put("x", "X", 0.0, weight=35)
    # 35 need four tens
    assert held(cache, "abcdefghijx") == "efghijx"
    assert cache.weight == 95


def test_a_newer_answer_takes_the_older_ones_place_and_weight() -> None:
    cache: Cache[str, str] = Cache(100)
    cache.put("a", "A", 0.0, weight=60)
    cache.put("a", "B", 0.0, weight=30)
    assert cache.get("a", 0.0) == "B"
    assert (cache.weight, len(cache), cache.removed, cache.evicted) == (30, 1, 1, 0)


def test_an_older_answer_stays_where_a_newer_one_is_refused() -> None:
    cache: Cache[str, str] = Cache(100)
    cache.put("a", "A", 0.0, weight=60)
    cache.put("a", "B", 0.0, weight=101)
    assert cache.get("a", 0.0) == "A"


def test_an_answer_removed_by_name_is_gone_and_its_room_is_free() -> None:
    cache: Cache[str, str] = Cache(100)
    cache.put("a", "A", 0.0, weight=60)
    assert [cache.remove("a"), cache.remove("a")] == [True, False]
    assert (cache.get("a", 0.0), cache.weight, cache.removed) == (None, 0, 1)


def test_a_purge_takes_what_is_doomed_and_leaves_the_rest_in_its_order() -> None:
    cache: Cache[str, int] = Cache(4)
    for key, epoch in zip("abcd", (1, 2, 1, 2), strict=True):
        cache.put(key, epoch, 0.0)
    assert cache.purge(lambda _, epoch: epoch == 1) == 2
    for key in "efg":
        cache.put(key, 2, 0.0)
    # b was the oldest left: it went for g
    assert [key for key in "abcdefg" if cache.get(key, 0.0)] == ["d", "e", "f", "g"]
    assert (cache.removed, cache.evicted) == (2, 1)


def test_a_purge_of_everything_leaves_an_empty_cache_that_works_on() -> None:
    cache: Cache[str, str] = Cache(10)
    ask(cache, "abcdefghijklm")
    assert cache.purge() == 10
    assert (len(cache), cache.weight, cache.counts().remembered) == (0, 0, 0)
    assert ask(cache, "xyx") == "..h"


def test_a_scan_of_answers_asked_for_once_pushes_out_no_hot_one() -> None:
    # Room for 100. 50 hot answers are asked for twice, then 10,000 others once each, a hot one after every 20th of these. The 50 move
    # to the main queue at their first turn and stay; LRU would have lost each long before its turn came again
    # (50 * 20 = 1,000 others between two reads of the same hot one).
    cache: Cache[str, str] = Cache(100)
    hot = [f"hot {number}" for number in range(50)]
    ask(cache, hot + hot)
    told = "".join(
        ask(cache, [f"cold {number}"] + ([hot[number // 20 % 50]] if number % 20 == 0 else []))
        for number in range(10_000)
    )
    assert told.count("h") == 500  # each of the 500 hot reads
    assert cache.evicted == 10_000 - 50  # 50 of the cold ones fill the rest of the room


def test_what_went_out_of_time_in_the_main_queue_returns_to_it() -> None:
    # Room for 10: a and b are read and move to the main queue when k and l need room.
    cache: Cache[str, str] = Cache(10, ttl_s=60.0)
    ask(cache, "abcdefghij")
    ask(cache, "abkl")
    assert held(cache, "a", 60.0) == ""
    cache.put("a", "A", 60.0)
    ask(cache, "mnopqrstuvw", 61.0)
    assert held(cache, "a", 61.0) == "a"


def test_what_is_stored_is_held_or_accounted_for() -> None:
    cache: Cache[int, str] = Cache(50, ttl_s=10.0)
    for number in range(5000):
        key = number * number % 211
        if cache.get(key, number / 7) is None:
            cache.put(key, "x", number / 7, weight=1 + key % 5)
        if number % 97 == 0:
            cache.remove(key)
    told = cache.counts()
    assert told.stored == told.entries + told.evicted + told.expired + told.removed
    assert told.hits + told.misses == 5000
    assert min(told.evicted, told.expired, told.removed, told.hits) > 0


def test_memory_beside_the_answers_stays_within_what_is_told_after_ten_times_its_room_of_churn() -> (
    None
):
    # 1,500 answers of the same bytes: what grows is the cache's own. The bound is a fifth over ENTRY_BYTES, which is the mean.
    answer = b"answer"
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        cache: Cache[bytes, bytes] = Cache(1_500_000, ttl_s=600.0)
        for number in range(15_000):
            cache.put(number.to_bytes(16), answer, number / 100, weight=1_000)
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(cache) == 1_500
    assert cache.counts().remembered == 1_350
    assert (after - before) / 1_500 < 1.2 * ENTRY_BYTES
