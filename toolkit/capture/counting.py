"""How many different keys there are and which come most often: exact up to a cap, an estimate with its error beyond.

The first `most` different keys are counted exactly for as long as the capture lasts; how many come after them is estimated. Which
lead is known by a Space-Saving list: every key that is 1 in 10,000 arrivals. Keys must be hashes: their bits are taken for
random ones. It never holds a prompt, and says of no estimate that it is a count.
"""

import heapq
import math
from typing import NamedTuple

MOST_EXACT = 2_000_000
"""Different keys of 16 bytes: a million took 106 MB."""
COUNTERS = 10_000
SMALLEST = 16_384
"""Hashes kept to estimate how many others there are."""


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
            known, smallest = self._smallest[0]
            inherited = self._counts[smallest][0]
            if inherited == known:
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
        self._frequent = TopKeys(counters)
        self._late = Different()
        """What came beyond the cap."""
        self.unique = 0
        """How many different keys came; beyond the cap an estimate, and `error` tells how good."""

    def add(self, key: bytes) -> bool | None:
        """Count one arrival and tell whether it is the key's first; None: that is not known any more."""
        self._frequent.add(key)
        count = self._exact.get(key)
        if count is not None:
            self._exact[key] = count + 1
            return False
        if len(self._exact) < self._most:
            self._exact[key] = 1
            self.unique += 1
            return True
        if self._late.add(key):
            self.unique = len(self._exact) + round(self._late.estimate())
        return None

    @property
    def error(self) -> float | None:
        """Standard error of `unique`, as a share of it; None: it is exact."""
        late = self.unique - len(self._exact)
        return Different.ERROR * late / self.unique if late else None

    def top(self, most: int) -> list[KeyCount]:
        """The keys that came most often; beyond the cap some with an error."""
        found = [
            KeyCount(one.key, self._exact[one.key], 0) if one.key in self._exact else one
            for one in self._frequent.top(2 * most)
        ]
        return sorted(found, key=lambda one: -one.arrivals)[:most]


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
