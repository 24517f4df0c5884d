import math
import tracemalloc
from collections.abc import Iterable

import pytest

from toolkit.proxy.cache.memory import ENTRY_BYTES, MemoryCache


def ask(cache: MemoryCache[str, str], keys: Iterable[str], now: float = 0.0) -> str:
    """Ask for each key and store what is missing, as a proxy does; `h` a hit, `.` a miss."""
    told = ""
    for key in keys:
        if cache.get(key, now) is None:
            cache.put(key, key.upper(), now)
            told += "."
        else:
            told += "h"
    return told


def held(cache: MemoryCache[str, str], keys: str, now: float = 0.0) -> str:
    """Those of the keys that are held; it counts as reading them."""
    return "".join(key for key in keys if cache.get(key, now) is not None)


def test_the_queues_let_go_in_the_order_worked_out_by_hand() -> None:
    # Room for 10: while the main queue is empty, all are in the small one.
    cache: MemoryCache[str, str] = MemoryCache(10)
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
    assert (cache.evicted, len(cache)) == (3 + 2 + 8, 10)


def test_in_the_main_queue_an_answer_goes_round_once_for_each_read_since() -> None:
    # Room for 10. Ten answers, each read once, then x: all ten move to the main queue unread, the small one is empty, so the
    # main queue's oldest, a, goes. Small: x. Main: b to j (9).
    cache: MemoryCache[str, str] = MemoryCache(10)
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


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, math.nan])
def test_an_answer_without_time_to_live_is_refused(ttl_s: float) -> None:
    cache: MemoryCache[str, str] = MemoryCache(10)
    assert not cache.put("a", "A", 0.0, ttl_s=ttl_s)
    assert (cache.refused, len(cache)) == (1, 0)


def test_without_anybody_asking_answers_out_of_time_are_gone_after_half_as_many_puts() -> None:
    cache: MemoryCache[int, str] = MemoryCache(None, ttl_s=60.0)
    for key in range(1000):
        cache.put(key, "x", 0.0)
    # 1,000 answers at two a put
    for key in range(1000, 1502):
        cache.put(key, "x", 60.0)
    assert (cache.expired, len(cache)) == (1000, 502)


def test_memory_beside_the_answers_stays_within_what_is_told_after_ten_times_its_room_of_churn() -> (
    None
):
    # 1,500 answers of the same bytes: what grows is the cache's own. The bound is a fifth over ENTRY_BYTES, which is the mean.
    answer = b"answer"
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        cache: MemoryCache[bytes, bytes] = MemoryCache(1_500_000, ttl_s=600.0)
        for number in range(15_000):
            cache.put(number.to_bytes(16), answer, number / 100, weight=1_000)
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(cache) == 1_500
    assert (after - before) / 1_500 < 1.2 * ENTRY_BYTES
