"""The answers in memory: against a model of the same rules (lists, searched from end to end, and no index), and what they take of it."""

import math
import random
import tracemalloc
from dataclasses import dataclass

import pytest

from toolkit.proxy.cache.memory import ENTRY_BYTES, MemoryCache


@dataclass(slots=True)
class Held:
    key: int
    value: int
    end: float
    weight: int
    place: int
    reads: int = 0


class Model:
    """Two lists of answers, the oldest first, a list of keys, and the places that the search for old ones goes round."""

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.small: list[Held] = []
        self.main: list[Held] = []
        self.ghost: list[int] = []
        self.places = 2
        """Of which two belong to the queues; a freed one is taken again before a new one, the last freed first."""
        self.freed: list[int] = []
        self.looked_at = 0
        self.evicted = self.expired = 0

    def all(self) -> list[Held]:
        return self.small + self.main

    def weight(self) -> int:
        return sum(one.weight for one in self.all())

    def find(self, key: int) -> Held | None:
        return next((one for one in self.all() if one.key == key), None)

    def get(self, key: int, now: float) -> int | None:
        one = self.find(key)
        if one is None:
            return None
        if now >= one.end:
            self.expire(one)
            return None
        one.reads = min(3, one.reads + 1)
        return one.value

    def put(self, key: int, value: int, now: float, weight: int, ttl: float) -> None:
        self.look(now)
        if weight > self.capacity:
            return
        to_main = key in self.ghost
        old = self.find(key)
        if old is not None:
            to_main = old in self.main
            if now >= old.end:
                self.expire(old)
            else:
                self.drop(old)
        while self.weight() + weight > self.capacity:
            if sum(one.weight for one in self.small) >= self.capacity / 10 or not self.main:
                self.evict_small(now)
            else:
                self.evict_main(now)
        if self.freed:
            place = self.freed.pop()
        else:
            place = self.places
            self.places += 1
        (self.main if to_main else self.small).append(Held(key, value, now + ttl, weight, place))

    def evict_small(self, now: float) -> None:
        while self.small:
            first = self.small[0]
            if now >= first.end:
                self.expire(first)
                return
            if first.reads == 0:
                self.remember(first.key)
                self.drop(first)
                self.evicted += 1
                return
            self.small.remove(first)
            first.reads = 0
            self.main.append(first)

    def evict_main(self, now: float) -> None:
        while True:
            first = self.main[0]
            if now >= first.end:
                self.expire(first)
                return
            if first.reads == 0:
                self.drop(first)
                self.evicted += 1
                return
            self.main.remove(first)
            first.reads -= 1
            self.main.append(first)

    def look(self, now: float) -> None:
        for place in (self.looked_at, self.looked_at + 1):
            for one in self.all():
                if one.place == place and now >= one.end:
                    self.expire(one)
        self.looked_at += 2
        if self.looked_at + 1 >= self.places:
            self.looked_at = 0

    def expire(self, one: Held) -> None:
        if one in self.main:
            self.remember(one.key)
        self.drop(one)
        self.expired += 1

    def drop(self, one: Held) -> None:
        (self.small if one in self.small else self.main).remove(one)
        self.freed.append(one.place)

    def remember(self, key: int) -> None:
        if key not in self.ghost:
            self.ghost.append(key)
            while len(self.ghost) > 0.9 * len(self.all()):
                self.ghost.pop(0)

    def purge(self) -> None:
        for one in sorted(self.all(), key=lambda one: one.value):  # as they were put
            self.drop(one)
        self.ghost = []

    def state(self) -> tuple[int, int, int]:
        return len(self.all()), self.evicted, self.expired

    def remove(self, key: int) -> bool:
        one = self.find(key)
        if one is None:
            return False
        self.drop(one)
        return True


STEPS = ["ask"] * 100 + ["get"] * 20 + ["put"] * 15 + ["remove"] * 5 + ["purge"]


@pytest.mark.parametrize("seed", range(60))
def test_any_sequence_gives_what_the_model_gives_and_never_more_weight_than_allowed(
    seed: int,
) -> None:
    chance = random.Random(seed)
    capacity = chance.choice([1, 2, 9, 10, 11, 20, 30, 60])
    heaviest = chance.choice([1, 1, 3, capacity + 1])
    keys = chance.choice([5, 20, 100])
    pace_s = chance.choice([0.0, 0.1, 1.0])
    cache: MemoryCache[int, int] = MemoryCache(capacity)
    model = Model(capacity)
    now = 1000.0
    for number in range(700):
        now += pace_s * chance.choice([0, 0, 1, 5])
        key = int(keys * chance.random() ** 3)  # the smaller the more often
        step = chance.choice(STEPS)
        found = None
        if step in {"ask", "get"}:
            found = cache.get(key, now)
            assert found == model.get(key, now)
        if step == "put" or (step == "ask" and found is None):
            weight, ttl_s = chance.randint(1, heaviest), chance.choice([math.inf, 5.0, 20.0])
            stored = cache.put(key, number, now, weight=weight, ttl_s=ttl_s)
            assert stored == (weight <= capacity)
            model.put(key, number, now, weight, ttl_s)
        if step == "remove":
            assert cache.remove(key) == model.remove(key)
        if step == "purge":
            cache.purge()
            model.purge()
        assert cache.weight == model.weight() <= capacity
        assert (len(cache), cache.evicted, cache.expired) == model.state()
        assert len(cache._ghost) == len(model.ghost)


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
