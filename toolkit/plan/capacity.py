"""How many requests are in memory at once, how many a second that is, and how many users keep the GPU busy.

Plain numbers in, plain numbers out. It knows no model and no GPU, and measures nothing: times are told.
"""

import math
from dataclasses import dataclass

BUSY = 0.95
"""A GPU that computes for this share of the time counts as busy."""
SPARE = (2.0, 3.0)
"""Times the peak that a server should be able to answer: between the two, peaks are met and the GPU is not idle for nothing."""
SLACK = 1e-9
"""Quotients that are whole must not be pushed to the next number by rounding."""


def blocks(tokens: float, block_size: int) -> int:
    """Blocks that so many tokens take; the last one need not be full."""
    return math.ceil(tokens / block_size - SLACK)


def held(num_gpu_blocks: int, blocks_per_request: int, blocks_to_begin: int | None = None) -> int:
    """Requests that fit at once; vLLM keeps one block for itself (the null block).

    661 blocks at 17 for each request: (661 - 1) // 17 = 38. `blocks_to_begin`: must be free for the last one, where that is more.
    """
    left = num_gpu_blocks - 1 - max(blocks_per_request, blocks_to_begin or 0)
    return 1 + left // blocks_per_request if blocks_per_request > 0 and left >= 0 else 0


def held_by_bytes(kv_bytes: float, request_bytes: float) -> int:
    """Requests that fit at once if memory were not dealt in blocks: the school's formula.

    20 GB at 688,128 bytes a token and 550 tokens (378 MB): 52. Where the same example says 58, it has divided by
    the 500 tokens of the prompt alone, and its 59 is a slip of the pen.
    """
    return math.floor(kv_bytes / request_bytes + SLACK) if request_bytes > 0 else 0


def requests_per_s(at_once: float, seconds: float) -> float:
    """Little's law: so many at once that each take so long. 52 of 5 s are 10.4 a second."""
    return at_once / seconds


def under_way(rate_per_s: float, seconds: float) -> float:
    """The same law the other way round: requests under way at a rate. 10 a second of 5 s are 50."""
    return rate_per_s * seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Requests of users that make several calls each, one after the other, with other work between them."""

    calls: int
    busy_s: float
    """All calls of one request together."""
    total_s: float
    """From its first call to its end, what lies between the calls included."""
    busy_share: float
    """Of the time, with one user: `busy_s` / `total_s`."""
    users_busy: int
    """So many keep the GPU computing for 95 % of the time, if they do not wait for each other."""
    users_full: int
    """So many have as many calls under way, on average, as fit in memory."""
    requests_per_s: float
    """Of users, not of calls, when memory is full."""


def chain(calls_s: tuple[float, ...], idle_s: float, at_once: int) -> Chain:
    """Say what calls that follow each other mean for the load: the more idle time, the more users it takes.

    Calls of 300, 300, 300 and 100 ms with 429 ms between them: one user keeps the GPU busy for 1000 / 1429 = 70 %
    of the time, three for 1 - 0.3 ** 3 = 97 %. (The example that these calls come from reckons 700 ms of 1000;
    its calls add up to 1000, so 70 % means 429 ms of idle time.)
    """
    busy_s = math.fsum(calls_s)
    total_s = busy_s + idle_s
    share = busy_s / total_s
    return Chain(
        calls=len(calls_s),
        busy_s=busy_s,
        total_s=total_s,
        busy_share=share,
        users_busy=users_for(share, BUSY),
        users_full=math.ceil(at_once / share - SLACK),
        requests_per_s=requests_per_s(at_once, busy_s),
    )


def busy_with(users: int, share: float) -> float:
    """Share of time in which at least one of them is in a call, each at a moment of its own."""
    return 1 - (1 - share) ** users


def users_for(share: float, wanted: float) -> int:
    """Fewest users with whom the GPU is busy for the wanted share of time."""
    if share >= wanted:
        return 1
    return math.ceil(math.log(1 - wanted) / math.log(1 - share) - SLACK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """What a target rate asks for, with 2 to 3 times of it to spare."""

    target_rps: float
    tested_rps: tuple[float, float]
    """To be tried before it counts."""
    under_way: float | None
    """Requests at once at the target; None: their time is not known."""
    engines: tuple[int, int] | None
    """Servers like this one for 2 times, and for 3 times the target."""
    factor: float | None
    """What this server can do / target."""


def headroom(target_rps: float, seconds: float | None, rps: float | None) -> Headroom:
    """Compare a peak rate with what one server does; `rps` None or 0: nobody knows, or nothing fits."""
    low, high = (times * target_rps for times in SPARE)
    return Headroom(
        target_rps=target_rps,
        tested_rps=(low, high),
        under_way=None if seconds is None else under_way(target_rps, seconds),
        engines=(math.ceil(low / rps - SLACK), math.ceil(high / rps - SLACK)) if rps else None,
        factor=None if rps is None else rps / target_rps,
    )
