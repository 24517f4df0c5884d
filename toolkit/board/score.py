"""Figures of a host in a window, what it is ranked by, and who shares a rank. Pure arithmetic on counts and quantiles."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from toolkit.board.standings import RankBy
from toolkit.sketches import ALPHA

BAND = (1 + ALPHA) / (1 - ALPHA)
"""Each latency is known within 1 %, so two that differ by less than this factor (2 %) may be equal."""
FEW_FOR_P50, FEW_FOR_P95 = 11, 130
"""Below so many answers a quantile is shown as unsure. LoadGen's rule: of n answers the second slowest bounds the
quantile q with 99 % confidence from the n on at which q^n + n q^(n-1) (1-q) is at most 1 %; 0.95 needs 130."""
_ROUNDING = 1 + 1e-9
"""Neighbouring buckets lie exactly one BAND apart, but for the last bit of a float."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One host in one window: counts, quantiles, and the seconds that rates are divided by."""

    counted_s: int
    ok: int
    errors: int
    streamed: int
    output_tokens: int
    output_tokens_estimated: int
    cache_told: int
    cache_hits: int
    cache_judged: int
    cache_inferred: int
    p50_ms: float | None
    p95_ms: float | None
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None

    @property
    def rps(self) -> float:
        """Ok requests a second: missing seconds count as zeros."""
        return self.ok / self.counted_s if self.counted_s else 0.0

    @property
    def output_tokens_per_s(self) -> float:
        """Of the ok answers."""
        return self.output_tokens / self.counted_s if self.counted_s else 0.0

    @property
    def error_rate(self) -> float | None:
        """Share of all that ended; None of nothing."""
        ended = self.ok + self.errors
        return self.errors / ended if ended else None

    @property
    def hit_share(self) -> float | None:
        """Cache hits among the ok answers that tell; None: none tells."""
        told = self.cache_told + self.cache_judged
        return (self.cache_hits + self.cache_inferred) / told if told else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Metric:
    value: Callable[[Figures], float | None]
    words: str
    more_is_better: bool = False
    band: float = 1.0
    """Values that differ by no more than this factor are tied; 1: only equal ones, for counts are exact."""


_METRICS: Mapping[RankBy, _Metric] = {
    "rps": _Metric(
        value=lambda seen: seen.rps,
        words="ok requests that ended in the window / its seconds",
        more_is_better=True,
    ),
    "output_tokens_per_s": _Metric(
        value=lambda seen: seen.output_tokens_per_s,
        words="output tokens of the ok answers / seconds of the window",
        more_is_better=True,
    ),
    "error_rate": _Metric(value=lambda seen: seen.error_rate, words="errors / (ok + errors)"),
    "ttft_p50": _Metric(
        value=lambda seen: seen.ttft_p50_ms, words="median time to first token", band=BAND
    ),
    "ttft_p95": _Metric(
        value=lambda seen: seen.ttft_p95_ms, words="95th percentile of TTFT", band=BAND
    ),
    "p50": _Metric(value=lambda seen: seen.p50_ms, words="median of E2E", band=BAND),
    "p95": _Metric(value=lambda seen: seen.p95_ms, words="95th percentile of E2E", band=BAND),
}
_SCORED: tuple[RankBy, ...] = ("rps", "output_tokens_per_s", "ttft_p95", "p95")

FORMULA = (
    "score = geometric mean of (RPS / best RPS, tok/s / best tok/s, best TTFT p95 / TTFT p95, best p95 / p95)"
    " x ok / (ok + errors)"
)
FORMULAS: Mapping[RankBy, str] = {
    **{name: f"{name} = {metric.words}" for name, metric in _METRICS.items()},
    "score": FORMULA,
}
"""What to print beside a board ranked by that."""
TIES = (
    "=: tied. Latencies are known within 1 %, so hosts within 2 % of the best of their group share its rank"
    " (scores: within as much as that makes); counts are exact and tie only when equal. Of tied hosts the one that"
    " has stood there longer comes first."
)


# --- values -------------------------------------------------------------------------------------------


def values(hosts: Sequence[Figures], rank_by: RankBy) -> list[float | None]:
    """What each host is ranked by; None: it has none."""
    if rank_by == "score":
        return scores(hosts)
    metric = _METRICS[rank_by]
    return [metric.value(seen) for seen in hosts]


def scores(hosts: Sequence[Figures]) -> list[float | None]:
    """The score of each host; a metric that no host has is left out, one that only this host lacks counts 0."""
    shares = [found for name in _SCORED if (found := _shares_of_best(hosts, name)) is not None]
    return [
        _score(seen, [of_metric[place] for of_metric in shares]) for place, seen in enumerate(hosts)
    ]


def _score(seen: Figures, shares: Sequence[float]) -> float | None:
    if not shares:
        return None
    if seen.error_rate is None:
        return 0.0
    mean: float = prod(shares) ** (1 / len(shares))
    return mean * (1 - seen.error_rate)


def _shares_of_best(hosts: Sequence[Figures], name: RankBy) -> list[float] | None:
    """Each host's value relative to the best, 0 to 1; None: nobody has any."""
    metric = _METRICS[name]
    found = [metric.value(seen) for seen in hosts]
    known = [value for value in found if value]
    if not known:
        return None
    best = max(known) if metric.more_is_better else min(known)
    shares = []
    for value in found:
        if not value:
            shares.append(0.0)
        else:
            shares.append(value / best if metric.more_is_better else best / value)
    return shares


# --- places -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a host stands."""

    rank: int
    tied: bool


def places(hosts: Sequence[Figures], rank_by: RankBy) -> list[Place]:
    """Rank all hosts; tied ones share the best of their places, and the next one comes after all of them.

    Within the band is no transitive relation: three hosts may each be within 2 % of the next and the first and the
    third not. So a group is what lies within the band of its own best, and the first one beyond it begins the next.
    A host that has no such value comes after all that have one, and one that answered nothing after all that did.
    """
    found = values(hosts, rank_by)
    more_is_better, band = _order(hosts, rank_by)
    keys = [_key(seen, value, more_is_better) for seen, value in zip(hosts, found, strict=True)]
    order = sorted(range(len(hosts)), key=keys.__getitem__)
    groups: list[list[int]] = []
    for host in order:
        if groups and _is_level(keys[groups[-1][0]], keys[host], band):
            groups[-1].append(host)
        else:
            groups.append([host])
    told: dict[int, Place] = {}
    for group in groups:
        rank = len(told) + 1
        told |= {host: Place(rank=rank, tied=len(group) > 1) for host in group}
    return [told[host] for host in range(len(hosts))]


_Key = tuple[int, float]
"""0: it has a value, 1: it has none, 2: it answered nothing; and the value, less is better."""


def _order(hosts: Sequence[Figures], rank_by: RankBy) -> tuple[bool, float]:
    """Whether more is better, and the band within which values are tied."""
    if rank_by != "score":
        return _METRICS[rank_by].more_is_better, _METRICS[rank_by].band
    used = [name for name in _SCORED if _shares_of_best(hosts, name) is not None]
    doubtful = sum(_METRICS[name].band > 1 for name in used)
    # of a mean over four metrics, two latencies that are each off by a factor make its square root
    return True, BAND ** (doubtful / len(used)) if used else 1.0


def _key(seen: Figures, value: float | None, more_is_better: bool) -> _Key:
    if not seen.ok:
        return 2, 0.0
    if value is None:
        return 1, 0.0
    return 0, -value if more_is_better else value


def _is_level(best: _Key, other: _Key, band: float) -> bool:
    """Whether a host is within the band of the best of a group."""
    if best[0] != other[0]:
        return False
    if best[1] == other[1]:
        return True
    smaller, larger = sorted((abs(best[1]), abs(other[1])))
    return band > 1 and larger <= smaller * band * _ROUNDING
