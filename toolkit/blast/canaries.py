"""When is a canary due, and which are stored whole? Pure.

Of every 1/share requests of a host on a worker two: a unique one and its exact twin.

The first two unique ones come among the first five requests, so that verdicts and inferred hits start soon. From the
third on they come where the share lets them: up to any request there were at most max(4, share x requests) canaries. A
twin comes as soon as its unique request was answered ok, so it needs no place of its own.
"""

import math
from fractions import Fraction

FIRST = (1, 4)
"""Places (from 0) of the first two unique canaries: the very first request is a ranked one."""


def unique_at(number: int, share: Fraction) -> int | None:
    """Which request of a host, counted from 0, is unique canary `number`, counted from 0? None: there is none."""
    if not share:
        return None
    if number < len(FIRST):
        return FIRST[number]
    # half of the canaries are unique: the place that completes its stretch of 2/share requests
    return math.ceil((number + 1) * 2 / share) - 1


KEPT_AT_ONCE = 4
"""A host's first pairs are stored however soon they follow: at 1 % of a slow host's requests there are two in the first
few seconds and then none for minutes, and one pair tells nothing."""


class CanarySampling:
    """Which of a host's canaries on one worker are stored whole: now and then a pair, for all of them would fill a disk.

    A slow host's twins end long after others' uniques did: a pair that was begun is kept whole, however many began
    meanwhile, for a unique without its twin tells nothing of a cache.
    """

    def __init__(self, every_s: float) -> None:
        """Keep at most one new pair in so long, after the first few."""
        self._every_s = every_s
        self._kept = 0
        self._kept_at_s = float("-inf")
        # that of a unique that failed stays, as it gets no twin: one in `every_s` at most
        self._awaited: set[int] = set()

    def begins(self, slot: int, now_s: float) -> bool:
        """Whether a unique canary that ended now is kept."""
        if self._kept >= KEPT_AT_ONCE and now_s - self._kept_at_s < self._every_s:
            return False
        self._kept += 1
        self._kept_at_s = now_s
        self._awaited.add(slot)
        return True

    def completes(self, pair: int) -> bool:
        """Whether a twin is kept: if its unique was, once."""
        if pair not in self._awaited:
            return False
        self._awaited.discard(pair)
        return True
