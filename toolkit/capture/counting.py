"""How many different keys there are and which come most often: exact up to a cap, an estimate with its error beyond.

The first `most` different keys are counted exactly for as long as the capture lasts. What comes after them shares a
HyperLogLog (how many) and a Space-Saving list (which). Keys must be hashes: their bits are taken for random ones.
It never holds a prompt, and says of no estimate that it is a count.
"""

import heapq
import math
from collections import Counter
from typing import NamedTuple

MOST_EXACT = 2_000_000
"""Different keys of 16 bytes: a million took 106 MB."""
COUNTERS = 10_000
INDEX_BITS = 14
"""2^14 registers: a standard error of 1.04 / sqrt(2^14) = 0.8 %, in 16 KiB."""
RANK_BITS = 64 - INDEX_BITS
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
        self._different = HyperLogLog()
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
        return HyperLogLog.ERROR * late / self._unique

    def top(self, most: int) -> list[KeyCount]:
        """The keys that came most often, at most LEADERS; beyond the cap some with an error."""
        found = [KeyCount(key, self._exact[key], 0) for key in self._leaders]
        late = self._late.top(most) if self._late else []
        return sorted([*found, *late], key=lambda one: -one.arrivals)[: min(most, LEADERS)]


class HyperLogLog:
    """How many different hashes came, in 16 KiB (Flajolet et al., 2007; estimator of Ertl, 2017, arXiv 1702.01284).

    The first estimator needs tables against its bias where few registers are taken; Ertl's needs none anywhere.
    """

    ERROR = 1.04 / math.sqrt(2**INDEX_BITS)

    def __init__(self) -> None:
        self._registers = bytearray(2**INDEX_BITS)
        self._histogram = Counter({0: 2**INDEX_BITS})

    def add(self, key: bytes) -> bool:
        """Note a hash of 8 bytes or more; tell whether that can change the estimate."""
        bits = int.from_bytes(key[:8], "little")
        index = bits & (2**INDEX_BITS - 1)
        # leading zeros of the other bits, and one
        rank = RANK_BITS - (bits >> INDEX_BITS).bit_length() + 1
        before = self._registers[index]
        if rank <= before:
            return False
        self._registers[index] = rank
        self._histogram[before] -= 1
        self._histogram[rank] += 1
        return True

    def estimate(self) -> float:
        """About how many there were (Ertl's algorithm 6)."""
        registers = 2**INDEX_BITS
        total = registers * _tau(1 - self._histogram[RANK_BITS + 1] / registers)
        for rank in range(RANK_BITS, 0, -1):
            total = 0.5 * (total + self._histogram[rank])
        total += registers * _sigma(self._histogram[0] / registers)
        return float(registers * registers / (2 * math.log(2) * total))


def _sigma(share: float) -> float:
    """Of the registers that are empty; without end when all are."""
    if share == 1.0:
        return math.inf
    weight, total, before = 1.0, share, -1.0
    while total != before:
        share *= share
        before, total = total, total + share * weight
        weight += weight
    return total


def _tau(share: float) -> float:
    """Of the registers that are not full."""
    if share in (0.0, 1.0):
        return 0.0
    weight, total, before = 1.0, 1 - share, -1.0
    while total != before:
        share = math.sqrt(share)
        weight *= 0.5
        before, total = total, total - (1 - share) ** 2 * weight
    return total / 3
