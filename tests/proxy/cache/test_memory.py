import math
import tracemalloc

import pytest

from toolkit.proxy.cache.memory import ENTRY_BYTES, MemoryCache


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, math.nan])
def test_an_answer_without_time_to_live_is_refused(ttl_s: float) -> None:
    cache: MemoryCache[str, str] = MemoryCache(10)
    assert not cache.put("a", "A", 0.0, ttl_s=ttl_s)
    assert (cache.refused, len(cache)) == (1, 0)


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
