"""What the last minute was like: the five indicators, for people without a Prometheus. It reads no clock; someone looks once a second.

Quantiles are Prometheus's own estimate from the histograms' buckets; at or below the first edge and beyond the last one, the edge.
"""

from collections import deque
from dataclasses import dataclass
from itertools import accumulate

from toolkit.promtext import Histogram
from toolkit.proxy.told.counters import BYPASS, EDGES_S, Counters

WINDOW_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Indicators:
    """How the proxy fared over a while; None where nothing happened that could tell."""

    window_s: float
    """Younger proxies have looked at less than a minute."""
    requests_per_s: float | None = None
    ttft_p50_s: float | None = None
    """As clients saw it, hits included; only streams have one."""
    ttft_p95_s: float | None = None
    tpot_p50_s: float | None = None
    tpot_p95_s: float | None = None
    queue_p50_s: float | None = None
    """Of the requests that needed a slot."""
    queue_p95_s: float | None = None
    hit_ratio: float | None = None
    """Hits / cacheable requests."""
    coalesced_ratio: float | None = None
    """Of the same."""
    error_rate: float | None = None
    """Errors / (ok + errors): neither rejections nor clients that left are in it."""
    rejections_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sums:
    at: float
    requests: float
    bypassed: float
    hits: float
    coalesced: float
    rejections: float
    left: float
    errors: float
    times: tuple[tuple[int, ...], ...]
    """Buckets of TTFT, TPOT and queue."""


class Recent:
    """Looks at counters now and then, and tells what happened between the newest look and one a minute older."""

    __slots__ = ("_looks", "_window_s")

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._looks: deque[_Sums] = deque()

    def look(self, now: float, counters: Counters) -> None:
        """Remember what was counted so far; `now` is of any monotonic clock."""
        sums = _sums(now, counters)
        looks = self._looks
        if looks and _is_backwards(looks[-1], sums):
            looks.clear()  # a process began anew: what it had counted is gone
        looks.append(sums)
        while len(looks) > 2 and looks[1].at <= now - self._window_s:
            looks.popleft()

    def indicators(self) -> Indicators:
        """What happened lately; as of the newest look."""
        if len(self._looks) < 2:
            return Indicators(window_s=0.0)
        return _between(self._looks[0], self._looks[-1])


def _sums(now: float, counters: Counters) -> _Sums:
    by_cache = counters.settle().by("requests", "cache")
    return _Sums(
        at=now,
        requests=sum(by_cache.values()),
        bypassed=by_cache.get(BYPASS, 0),
        hits=by_cache.get("hit", 0),
        coalesced=by_cache.get("coalesced", 0),
        rejections=counters.total("rejections"),
        left=counters.total("left"),
        errors=counters.total("errors"),
        times=tuple(tuple(counters.timed(name).counts) for name in ("ttft", "tpot", "queue")),
    )


def _is_backwards(old: _Sums, new: _Sums) -> bool:
    pairs = zip(
        (old.requests, old.hits, old.rejections, old.errors, *map(sum, old.times)),
        (new.requests, new.hits, new.rejections, new.errors, *map(sum, new.times)),
        strict=True,
    )
    return any(later < earlier for earlier, later in pairs)


def _between(old: _Sums, new: _Sums) -> Indicators:
    window_s = new.at - old.at
    requests, rejections = new.requests - old.requests, new.rejections - old.rejections
    cacheable = requests - (new.bypassed - old.bypassed)
    ended = requests - rejections - (new.left - old.left)
    ttft, tpot, queue = (
        _histogram(earlier, later) for earlier, later in zip(old.times, new.times, strict=True)
    )
    return Indicators(
        window_s=window_s,
        requests_per_s=_share(requests, window_s),
        rejections_per_s=_share(rejections, window_s),
        ttft_p50_s=_quantile(ttft, 0.5),
        ttft_p95_s=_quantile(ttft, 0.95),
        tpot_p50_s=_quantile(tpot, 0.5),
        tpot_p95_s=_quantile(tpot, 0.95),
        queue_p50_s=_quantile(queue, 0.5),
        queue_p95_s=_quantile(queue, 0.95),
        hit_ratio=_share(new.hits - old.hits, cacheable),
        coalesced_ratio=_share(new.coalesced - old.coalesced, cacheable),
        error_rate=_share(new.errors - old.errors, ended),
    )


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _histogram(old: tuple[int, ...], new: tuple[int, ...]) -> Histogram:
    inside = [later - earlier for earlier, later in zip(old, new, strict=True)]
    counts = tuple(float(upto) for upto in accumulate(inside))
    return Histogram(edges=(*EDGES_S, float("inf")), counts=counts, sum=None, count=counts[-1])


def _quantile(histogram: Histogram, share: float) -> float | None:
    found = histogram.quantile(share)
    return next(
        (told for told in (found.value, found.below, found.above) if told is not None), None
    )
