"""Which keys come most often, in memory that does not grow: Space-Saving (Metwally, Agrawal and El Abbadi, 2005).

A key that comes when all counters are taken inherits the smallest count, so that a count may be too high, by at most
the error told with it, and never too low. Every key that came more often than 1 / counters of the time is kept.
It never reads a clock and never guesses which keys will come.
"""

import heapq
from typing import NamedTuple


class KeyCount(NamedTuple):
    """One key and how often it came: between `arrivals` - `error` and `arrivals` times."""

    key: bytes
    arrivals: int
    error: int


class TopKeys:
    """The most frequent of any number of keys, with `counters` counters."""

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
        inherited = self._evicted() if len(self._counts) >= self._most else 0
        self._counts[key] = (inherited + 1, inherited)
        heapq.heappush(self._smallest, (inherited + 1, key))

    def _evicted(self) -> int:
        """Let go of a key with the smallest count, and tell that count."""
        while True:
            told, key = self._smallest[0]
            count = self._counts[key][0]
            if count == told:
                heapq.heappop(self._smallest)
                del self._counts[key]
                return count
            heapq.heapreplace(self._smallest, (count, key))

    def top(self, most: int) -> list[KeyCount]:
        """The keys with the highest counts, the highest first; equal ones in the order of their arrival."""
        found = heapq.nlargest(most, self._counts.items(), key=lambda item: item[1][0])
        return [KeyCount(key, count, error) for key, (count, error) in found]
