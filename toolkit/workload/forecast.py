"""What a response cache would have answered: captured arrivals replayed through the proxy's own cache, equal requests joined as it joins them.

A repeat is a hit once the first answer is complete, coalesced while that is being generated, else a miss, as is what the policy
does not let a cache answer. At one instant answers are complete before requests arrive. It reads no clock and never samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from toolkit.proxy.cache.memory import MemoryCache
from toolkit.workload.columns import Codes, Mask, Numbers, RequestColumns

Outcomes = NDArray[np.int8]

MISS, HIT, COALESCED = 0, 1, 2

TIME_BLOCKS = 20
"""Of equal length; whole ones are drawn for the interval, because requests close in time resemble each other."""
FEWEST_BLOCKS = 5
"""With requests in fewer of them an interval would be a guess."""
DRAWS = 1_000
INTERVAL = (0.025, 0.975)
NEAR = 0.005
"""A cache within half a point of one without end is as good."""
ROOM_FOR_EACH_HOT = 10
"""Answers held for each hot one: in a smaller cache the tail pushes hot answers out (LRU more than ours)."""
SOON_S = 10.0
"""Most answers take less: a twin that comes so soon after the first may find it unanswered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HitCell:
    """What one cache answers. Ratios are None where there is nothing to divide by."""

    size: int | None
    """Answers it holds; None: without end."""
    ttl_s: float | None
    """Time to live; None: without end."""
    hits: int
    coalesced: int
    """Requests that would have joined an equal one under way."""
    misses: int
    hit_ratio: float | None
    """Of all requests, as the two that follow; begun with an empty cache."""
    coalesced_ratio: float | None
    eligible_hit_ratio: float | None
    """Of the requests that a cache may answer."""
    steady_hit_ratio: float | None
    """Of the second half of all requests, the first half having filled the cache."""
    steady_coalesced_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatChance:
    """How likely the next request repeats an earlier one: what a cache without end tends to. None: too few."""

    ratio: float | None
    """Good and Turing's estimate, 1 - (keys seen once) / (requests). The share of repeats so far is less: the start counts, too."""
    low: float | None
    high: float | None
    """A 95 % interval: time blocks drawn anew (1,000 times), and Esty's term for what is drawn but once (1983)."""
    repeats_ratio: float | None
    """Of the requests so far: 1 - (keys) / (requests)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a response cache in front would do with such a workload. None: nothing to go by."""

    exact: tuple[HitCell, ...]
    """Keyed by the body's bytes, without end, for each time to live; so with `prompt`."""
    canonical: tuple[HitCell, ...]
    """Keyed as the proxy does it, for each size and time to live. What it has over `exact` is what other spellings cost."""
    prompt: tuple[HitCell, ...]
    """Keyed by the prompt alone, whatever the sampling: what equal settings would add. No honest cache does this."""
    chance: RepeatChance
    recommended_size: int | None
    """Answers to hold; None: nothing repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """Which requests would be answered without the GPU."""

    repeats: Mask
    """All but the first of each key: what a cache and single-flight answer together."""
    cached: Mask | None
    """By a cache alone: an equal request was answered before this one came. None: latency is not known."""
    soon: Mask | None
    """Repeats that come within ten seconds of the first of their key. None: the source has no times."""
    joined: Mask | None
    """By single-flight alone: an equal request, itself not joined, is under way. None: latency is not known."""


def forecast(
    columns: RequestColumns,
    latency_s: Numbers | None,
    *,
    sizes: Sequence[int | None],
    ttls: Sequence[float | None],
    eligible: Mask,
    failed: Mask,
) -> Forecast:
    """The curves by all three keys, the chance of a repeat, and a size to choose."""

    def curve(keys: Codes, sizes: Sequence[int | None]) -> tuple[HitCell, ...]:
        return hit_curve(
            keys, columns.ts, latency_s, sizes=sizes, ttls=ttls, eligible=eligible, failed=failed
        )

    canonical = curve(columns.request, sizes)
    return Forecast(
        # else nobody knows the bytes that requests were sent in
        exact=curve(columns.exact, (None,)) if columns.identities == "bodies" else (),
        canonical=canonical,
        prompt=curve(columns.prompt, (None,)),
        chance=repeat_chance(columns.request, columns.ts, eligible),
        recommended_size=recommended_size(canonical, columns.request, eligible),
    )


def hit_curve(
    keys: Codes,
    ts: Numbers,
    latency_s: Numbers | None,
    *,
    sizes: Sequence[int | None],
    ttls: Sequence[float | None],
    eligible: Mask | None = None,
    failed: Mask | None = None,
) -> tuple[HitCell, ...]:
    """A cell for each size and time to live; an answer that failed is not kept. `ts` must rise.

    Of unknown latency, None, every repeat is a hit, and how many would join another is unknown.
    """
    assert latency_s is None or not np.isnan(latency_s).any(), "a replay needs every latency"
    assert (np.diff(ts) >= 0).all(), "a replay goes forward in time"
    total = len(keys)
    which = np.arange(total) if eligible is None else np.flatnonzero(eligible)
    late = which >= total // 2
    worthless = (np.zeros(total, dtype=bool) if failed is None else failed)[which]
    ready = (ts if latency_s is None else ts + latency_s)[which]
    keys, ts = keys[which], ts[which]

    def ratio(count: int, of: int = total) -> float | None:
        return count / of if of else None

    holds_all = len(np.unique(keys))  # nothing is ever evicted from so much
    cells = []
    for ttl_s in ttls:
        endless = None
        for size in sizes:
            if size is not None and size < holds_all:
                outcomes = _replayed(keys, ts, ready, worthless, size, ttl_s)
            else:
                if endless is None:
                    endless = _endless(keys, ts, ready, worthless, ttl_s)
                outcomes = endless
            hit, joined = outcomes == HIT, outcomes == COALESCED
            hits, coalesced = int(hit.sum()), int(joined.sum())
            cell = HitCell(
                size=size,
                ttl_s=ttl_s,
                hits=hits,
                coalesced=coalesced,
                misses=total - hits - coalesced,
                hit_ratio=ratio(hits),
                coalesced_ratio=None if latency_s is None else ratio(coalesced),
                eligible_hit_ratio=ratio(hits, len(keys)),
                steady_hit_ratio=ratio(int((hit & late).sum()), total - total // 2),
                steady_coalesced_ratio=None
                if latency_s is None
                else ratio(int((joined & late).sum()), total - total // 2),
            )
            cells.append(cell)
    return tuple(cells)


def _replayed(
    keys: Codes, ts: Numbers, ready: Numbers, failed: Mask, size: int, ttl_s: float | None
) -> Outcomes:
    """Each request's outcome, by the very cache that the proxy runs; `ready` is when the answer that it made would be complete."""
    cache: MemoryCache[int, bool] = MemoryCache(size, ttl_s=ttl_s)
    calls: set[int] = set()
    """Keys whose call is under way: who comes meanwhile joins it."""
    under_way: list[tuple[float, int, int]] = []
    outcomes = bytearray(len(keys))
    ready_at, has_failed = ready.tolist(), failed.tolist()
    get = cache.get
    for number, (key, at) in enumerate(zip(keys.tolist(), ts.tolist(), strict=True)):
        while under_way and under_way[0][0] <= at:
            done, which, called = heappop(under_way)
            if not has_failed[which]:
                cache.put(called, True, done)
            calls.discard(called)
        if get(key, at):
            outcomes[number] = HIT
        elif key in calls:
            outcomes[number] = COALESCED
        else:
            calls.add(key)
            heappush(under_way, (ready_at[number], number, key))
    return np.frombuffer(outcomes, dtype=np.int8)


def _endless(
    keys: Codes, ts: Numbers, ready: Numbers, failed: Mask, ttl_s: float | None
) -> Outcomes:
    """The same for a cache that never evicts: there each key's requests are a story of their own.

    A leader answers all equal requests until its answer's time is over; the first after that leads anew. So each key's leaders
    are a chain, and who follows whom in it is found for all requests at once.
    """
    count = len(keys)
    order = np.argsort(keys, kind="stable")
    keys, ready = keys[order], ready[order]
    life_s = np.where(failed[order], 0.0, np.inf if ttl_s is None else ttl_s)
    before_end = np.searchsorted(ts, ready + life_s, side="left")
    # a key's requests stand together, each by its place among all: the next leader is the first beyond `before_end`, or the
    # next key's first request, which leads as well
    places = keys * (count + 1) + order
    following = np.searchsorted(places, keys * (count + 1) + before_end, side="left")
    next_leader = np.maximum(following, np.arange(count) + 1).tolist()
    leaders = []
    at = 0
    while at < count:
        leaders.append(at)
        at = next_leader[at]
    led = np.diff(np.array([*leaders, count]))
    sorted_outcomes = np.where(ts[order] < np.repeat(ready[leaders], led), COALESCED, HIT)
    sorted_outcomes[leaders] = MISS
    outcomes = np.empty(count, dtype=np.int8)
    outcomes[order] = sorted_outcomes
    return outcomes


def repeat_chance(keys: Codes, ts: Numbers, may: Mask) -> RepeatChance:
    """Good and Turing's estimate for a cache without end and its interval; what a cache may not answer repeats nothing."""
    total = len(keys)
    if not total:
        return RepeatChance(ratio=None, low=None, high=None, repeats_ratio=None)
    times = np.bincount(keys[may], minlength=int(keys.max()) + 1)
    repeated = may & (times[keys] > 1)
    low = high = None
    span_s = float(ts[-1] - ts[0])
    if span_s > 0:
        block = np.minimum((TIME_BLOCKS * (ts - ts[0]) / span_s).astype(np.int64), TIME_BLOCKS - 1)
        requests = np.bincount(block, minlength=TIME_BLOCKS)
        if np.count_nonzero(requests) >= FEWEST_BLOCKS:
            repeats = np.bincount(block, weights=repeated, minlength=TIME_BLOCKS)
            chance = np.random.default_rng(0)  # the same capture gives the same interval
            even = np.full(TIME_BLOCKS, 1 / TIME_BLOCKS)
            drawn = chance.multinomial(TIME_BLOCKS, even, size=DRAWS)
            drawn = drawn[drawn @ requests > 0]
            shares = (drawn @ repeats) / (drawn @ requests)
            # which keys were seen once is itself left to chance: a variance of 2 * (keys seen twice) / requests^2
            twice = int((times == 2).sum())
            shares += chance.normal(0.0, np.sqrt(2 * twice) / total, len(shares))
            low, high = np.clip(np.quantile(shares, INTERVAL), 0.0, 1.0).tolist()
    return RepeatChance(
        ratio=float(repeated.mean()),
        low=low,
        high=high,
        repeats_ratio=float((may.sum() - (times > 0).sum()) / total),
    )


def recommended_size(curve: Sequence[HitCell], keys: Codes, may: Mask) -> int | None:
    """The smallest size as good as the best at every time to live, and room for ten answers for each hot one.

    Hot are the fewest keys that half of all repeats are of.
    """
    times = np.bincount(keys[may])
    repeats = np.sort(times[times > 1] - 1)[::-1]
    if not len(repeats):
        return None
    hot = int(np.searchsorted(np.cumsum(repeats), repeats.sum() / 2)) + 1
    best: dict[float | None, int] = {}
    for cell in curve:
        best[cell.ttl_s] = max(best.get(cell.ttl_s, 0), cell.hits)
    lacking = {cell.size for cell in curve if best[cell.ttl_s] - cell.hits > NEAR * len(keys)}
    enough = [
        cell.size for cell in curve if cell.size is not None and cell.size not in lacking
    ] or [int((times > 0).sum())]
    return max(min(enough), ROOM_FOR_EACH_HOT * hot)


def reuse(keys: Codes, ts: Numbers | None, latency_s: Numbers | None, eligible: Mask) -> Reuse:
    """Replay arrivals against a cache that forgets nothing, against single-flight, and against both.

    Without times, `ts` None, only the order of the requests counts.
    """
    repeats, soon, cached, joined = (np.zeros(len(keys), dtype=bool) for _ in range(4))
    which = np.flatnonzero(eligible)
    keys = keys[which]
    _, first, kind = np.unique(keys, return_index=True, return_inverse=True)
    repeats[which] = True
    repeats[which[first]] = False
    if ts is None:
        return Reuse(repeats=repeats, soon=None, cached=None, joined=None)
    ts = ts[which]
    soon[which] = ts - ts[first[kind]] < SOON_S
    soon &= repeats
    if latency_s is None:
        return Reuse(repeats=repeats, soon=soon, cached=None, joined=None)
    ready = ts + latency_s[which]
    # single-flight alone: as if every answer were forgotten at once
    joined[which] = _endless(keys, ts, ready, np.zeros(len(keys), dtype=bool), 0.0) == COALESCED
    # a cache alone: all that come after the earliest answer of their key, whoever's it was
    order = np.lexsort((ready, kind))
    earliest = order[np.unique(kind[order], return_index=True)[1]][kind]
    cached[which] = (ts >= ready[earliest]) & (np.arange(len(keys)) > earliest)
    return Reuse(repeats=repeats, soon=soon, cached=cached, joined=joined)
