"""How many different keys there are and which come most often: exact up to a cap, an estimate with its error beyond.

The first `most` different keys are counted exactly for as long as the capture lasts. What comes after them is estimated (how
many) and shares a Space-Saving list (which). Keys must be hashes: their bits are taken for random ones.
It never holds a prompt, and says of no estimate that it is a count.
"""

import heapq
import math
from typing import NamedTuple

MOST_EXACT = 2_000_000
"""Different keys of 16 bytes: a million took 106 MB."""
COUNTERS = 10_000
SMALLEST = 16_384
"""Hashes kept to estimate how many others there are."""
LEADERS = 100
"""Of the keys counted exactly so many are always known to lead: to look through two million takes 0.08 s of CPU."""


class KeyCount(NamedTuple):
    """One key and how often it came: between `arrivals` - `error` and `arrivals` times."""

    key: bytes
    arrivals: int
    error: int


class TopKeys:
    """The most frequent of any number of keys, with `counters` counters: Space-Saving (Metwally et al., 2005).

    A key that comes when all counters are taken inherits the smallest count, so that a count may be too high, by at most
    the error told with it, and never too low. Every key that came more often than 1 / counters of the time is kept.
    """

    def __init__(self, counters: int) -> None:
        self._most = counters
        self._counts: dict[bytes, tuple[int, int]] = {}
        self._smallest: list[tuple[int, bytes]] = []
        """A heap whose counts are as old as their last look: a key that came since is moved when it surfaces."""

    def add(self, key: bytes) -> None:
        """Count one arrival."""
        found = self._counts.get(key)
        if found is not None:
            self._counts[key] = (found[0] + 1, found[1])
            return
        inherited = 0
        while len(self._counts) >= self._most:
            # a key with the smallest count goes, and leaves it to this one
            told, smallest = self._smallest[0]
            inherited = self._counts[smallest][0]
            if inherited == told:
                heapq.heappop(self._smallest)
                del self._counts[smallest]
            else:
                heapq.heapreplace(self._smallest, (inherited, smallest))
        self._counts[key] = (inherited + 1, inherited)
        heapq.heappush(self._smallest, (inherited + 1, key))

    def top(self, most: int) -> list[KeyCount]:
        """The keys with the highest counts, the highest first; equal ones in the order of their arrival."""
        found = heapq.nlargest(most, self._counts.items(), key=lambda item: item[1][0])
        return [KeyCount(key, count, error) for key, (count, error) in found]


class Counting:
    """Arrivals by key."""

    def __init__(self, most: int = MOST_EXACT, counters: int = COUNTERS) -> None:
        self._most = most
        self._exact: dict[bytes, int] = {}
        self._leaders: dict[bytes, None] = {}
        """The keys with the highest counts; of equal ones those that reached them first."""
        self._bar = 0
        """No leader came less often."""
        self._counters = counters
        self._late: TopKeys | None = None
        self._different = Different()
        self._unique = 0

    def add(self, key: bytes) -> bool | None:
        """Count one arrival and tell whether it is the key's first; None: that is not known any more."""
        count = self._exact.get(key)
        if count is not None:
            self._exact[key] = count + 1
            if count >= self._bar and key not in self._leaders:
                self._lead(key)
            return False
        if len(self._exact) < self._most:
            self._exact[key] = 1
            self._unique += 1
            if not self._bar:
                self._lead(key)
            return True
        if self._late is None:
            self._late = TopKeys(self._counters)
        self._late.add(key)
        if self._different.add(key):
            self._unique = len(self._exact) + round(self._different.estimate())
        return None

    def _lead(self, key: bytes) -> None:
        self._leaders[key] = None
        if len(self._leaders) > LEADERS:
            # the newest of the smallest goes
            last = min(reversed(self._leaders), key=self._exact.__getitem__)
            del self._leaders[last]
        if len(self._leaders) == LEADERS:
            self._bar = min(self._exact[leader] for leader in self._leaders)

    @property
    def unique(self) -> int:
        """How many different keys came; beyond the cap an estimate, and `error` tells how good."""
        return self._unique

    @property
    def error(self) -> float | None:
        """Standard error of `unique`, as a share of it; None: it is exact."""
        if self._late is None:
            return None
        late = self._unique - len(self._exact)
        return Different.ERROR * late / self._unique

    def top(self, most: int) -> list[KeyCount]:
        """The keys that came most often, at most LEADERS; beyond the cap some with an error."""
        found = [KeyCount(key, self._exact[key], 0) for key in self._leaders]
        late = self._late.top(most) if self._late else []
        return sorted([*found, *late], key=lambda one: -one.arrivals)[: min(most, LEADERS)]


class Different:
    """How many different hashes came, by the smallest of them (k minimum values; Bar-Yossef et al., 2002).

    Of n hashes spread evenly over [0, 1) the k-th smallest lies near k / n, and (k - 1) / it is off by 1 / sqrt(k - 2): 0.8 %
    of the count with 16,384 of them, in 2 MB. As many as are kept are counted exactly.
    """

    ERROR = 1 / math.sqrt(SMALLEST - 2)

    def __init__(self) -> None:
        self._heap: list[int] = []
        """Negated, so that the largest is the first to go."""
        self._kept: set[int] = set()

    def add(self, key: bytes) -> bool:
        """Note a hash of 8 bytes or more; tell whether that changes the estimate."""
        value = int.from_bytes(key[:8], "little")
        is_full = len(self._heap) == SMALLEST
        if (is_full and value >= -self._heap[0]) or value in self._kept:
            return False
        self._kept.add(value)
        if is_full:
            self._kept.discard(-heapq.heapreplace(self._heap, -value))
        else:
            heapq.heappush(self._heap, -value)
        return True

    def estimate(self) -> float:
        """About how many there were."""
        if len(self._heap) < SMALLEST:
            return len(self._heap)
        return (SMALLEST - 1) * 2**64 / -self._heap[0]
