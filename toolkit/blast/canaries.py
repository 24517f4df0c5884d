"""When is a canary due? Of every 1/share requests of a host on a worker two: a unique one and its exact twin. Pure.

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
