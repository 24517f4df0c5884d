"""Figures of a host in a window, its score, its rank and who shares it. Pure arithmetic on counts and histograms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot, prod, sqrt
from statistics import NormalDist
from typing import NamedTuple

from toolkit.board.standings import RankBy, Standing
from toolkit.board.window import COUNTS, Integers, quantiles_ms
from toolkit.stats import ALPHA

BAND = (1 + ALPHA) / (1 - ALPHA)
"""Each latency is known within 1 %, so two that differ by less than this factor (2 %) may be equal."""
FEW_FOR_P50, FEW_FOR_P95 = 11, 130
"""Below so many answers a quantile is shown as unsure. LoadGen's rule: of n answers the second slowest bounds the
quantile q with 99 % confidence from the n on at which q^n + n q^(n-1) (1-q) is at most 1 %; 0.95 needs 130."""
SURE = 0.99
_Z = NormalDist().inv_cdf((1 + SURE) / 2)
"""2.576 standard errors to either side hold SURE of what chance does."""
_ROUNDING = 1 + 1e-9
"""Neighbouring buckets lie exactly one BAND apart, but for the last bit of a float."""


class Figures(NamedTuple):
    """One host's figures over a stretch of seconds, as `Standing` explains them."""

    rps: float
    output_tokens_per_s: float
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    p50_ms: float | None
    p95_ms: float | None
    error_rate: float | None
    ok: int
    errors: int
    streamed: int
    hit_share: float | None
    hit_share_inferred: bool
    output_tokens_estimated: bool


def figures(counts: Integers, histograms: Integers, counted_s: int) -> list[Figures]:
    """The figures of whatever stands along the first axis, hosts or steps; rates are over `counted_s` seconds."""
    found = []
    for row, (e2e, ttft) in zip(counts.tolist(), quantiles_ms(histograms, (50, 95)), strict=True):
        count = dict(zip(COUNTS, row, strict=True))
        ok, errors = count["ok"], count["errors"]
        known = count["cache_told"] + count["cache_judged"]
        hits = count["cache_hits"] + count["cache_inferred"]
        one = Figures(
            rps=ok / counted_s if counted_s else 0.0,
            output_tokens_per_s=count["output_tokens"] / counted_s if counted_s else 0.0,
            ttft_p50_ms=ttft[0],
            ttft_p95_ms=ttft[1],
            p50_ms=e2e[0],
            p95_ms=e2e[1],
            error_rate=errors / (ok + errors) if ok + errors else None,
            ok=ok,
            errors=errors,
            streamed=count["streamed"],
            hit_share=hits / known if known else None,
            hit_share_inferred=count["cache_judged"] > 0,
            output_tokens_estimated=count["output_tokens_estimated"] > 0,
        )
        found.append(one)
    return found


@dataclass(frozen=True, slots=True)
class _RankMetric:
    field: str
    """Of Figures."""
    words: str
    more_is_better: bool = False
    band: float = 1.0
    """Values that differ by no more than this factor are tied: how exactly a latency is known. 1: exactly."""

    def of(self, host: Figures) -> float | None:
        value: float | None = getattr(host, self.field)
        return value


_METRICS: Mapping[RankBy, _RankMetric] = {
    "rps": _RankMetric("rps", "ok requests that ended in the window / its seconds", True),
    "output_tokens_per_s": _RankMetric(
        "output_tokens_per_s", "output tokens of the ok answers / seconds of the window", True
    ),
    "error_rate": _RankMetric("error_rate", "errors / (ok + errors)"),
    "ttft_p50": _RankMetric("ttft_p50_ms", "median time to first token", band=BAND),
    "ttft_p95": _RankMetric("ttft_p95_ms", "95th percentile of TTFT", band=BAND),
    "p50": _RankMetric("p50_ms", "median of E2E", band=BAND),
    "p95": _RankMetric("p95_ms", "95th percentile of E2E", band=BAND),
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
    "=: tied, as the window cannot tell them apart: rates and scores within the 99 % interval of two counts' difference"
    " (2.58 sqrt(a + b) answers), latencies within 2 %. Tied hosts stand by name."
)


def may_lead(one: Standing, rank_by: RankBy) -> bool:
    """Whether a host may be named for its figure: it is in no trouble, and has the answers that a sure one takes."""
    answers = one.streamed if rank_by in {"ttft_p50", "ttft_p95"} else one.ok
    few = FEW_FOR_P95 if rank_by in {"ttft_p95", "p95"} else FEW_FOR_P50
    return one.trouble is None and answers >= few


# --- scores -------------------------------------------------------------------------------------------


def scores(hosts: Sequence[Figures]) -> list[float | None]:
    """The score of each host; a metric that no host has is left out, one that only this host lacks counts 0."""
    shares = list(_shares_of_best(hosts).values())
    if not shares:
        return [None] * len(hosts)
    found: list[float | None] = []
    for host, of_host in zip(hosts, zip(*shares, strict=True), strict=True):
        mean: float = prod(of_host) ** (1 / len(of_host))
        found.append(0.0 if host.error_rate is None else mean * (1 - host.error_rate))
    return found


def _shares_of_best(hosts: Sequence[Figures]) -> dict[RankBy, list[float]]:
    """For each metric of the score, each host's value relative to the best, 0 to 1; without metrics nobody has."""
    shares = {}
    for name in _SCORED:
        values = [_METRICS[name].of(host) or 0.0 for host in hosts]
        known = [value for value in values if value]
        if known and _METRICS[name].more_is_better:
            best = max(known)
            shares[name] = [value / best for value in values]
        elif known:
            best = min(known)
            shares[name] = [best / value if value else 0.0 for value in values]
    return shares


# --- ranks --------------------------------------------------------------------------------------------


class RankPlace(NamedTuple):
    """Where a host stands."""

    rank: int
    tied: bool


def places(hosts: Sequence[Figures], rank_by: RankBy) -> list[RankPlace]:
    """Rank all hosts; tied ones share the best of their places, and the next one comes after all of them.

    Being tied is no transitive relation: three hosts may each be tied with the next and the first and the third not.
    So a group is all that are tied with its own best, and the first one that is not begins the next. A host that has no
    such value comes after all that have one, and one that answered nothing after all that did.
    """
    if rank_by == "score":
        values = scores(hosts)
        bands = [_METRICS[name].band for name in _shares_of_best(hosts)]
        more_is_better, latencies = True, sum(each > 1 for each in bands)
        # of a mean over four metrics, two latencies that are each off by a factor make its square root
        band = BAND ** (latencies / len(bands)) if bands else 1.0
        counts_share = (len(bands) - latencies) / len(bands) if bands else 0.0
    else:
        metric = _METRICS[rank_by]
        values = [metric.of(host) for host in hosts]
        more_is_better, band, counts_share = metric.more_is_better, metric.band, 0.0

    keys: list[tuple[int, float]] = []
    """First 0: it has a value, 1: it has none, 2: it answered nothing; then the value, less is better."""
    spreads = []
    for seen, value in zip(hosts, values, strict=True):
        if not seen.ok or value is None:
            keys.append((1 if seen.ok else 2, 0.0))
            spreads.append(0.0)
        else:
            keys.append((0, -value if more_is_better else value))
            spreads.append(_standard_error(seen, value, rank_by, counts_share))

    groups: list[list[int]] = []
    # of equal values the surer one first: if it is tied with a group's best, so are the others
    for host in sorted(range(len(hosts)), key=lambda host: (keys[host], spreads[host])):
        best = groups[-1][0] if groups else host
        smaller, larger = sorted((abs(keys[best][1]), abs(keys[host][1])))
        chance = _Z * hypot(spreads[best], spreads[host])
        is_tied = larger <= smaller * band * _ROUNDING + chance
        if groups and keys[best][0] == keys[host][0] and is_tied:
            groups[-1].append(host)
        else:
            groups.append([host])

    found: dict[int, RankPlace] = {}
    for group in groups:
        rank = len(found) + 1
        found |= {host: RankPlace(rank, tied=len(group) > 1) for host in group}
    return [found[host] for host in range(len(hosts))]


def _standard_error(seen: Figures, value: float, rank_by: RankBy, counts_share: float) -> float:
    """How far chance alone moves a host's value, as a standard deviation; of quantiles only the band is known.

    Answers that ended in a window are a count, and taken for Poisson's. Users who wait for their answers make it more even (the
    variance between six equal simulated hosts of four users was 0.04 of it), batches that end together more uneven. So n answers have the variance n, and two hosts' counts a and b of
    one rate differ by more than z sqrt(a + b) only once in a hundred windows (z = 2.576). That is the normal form of the test of Przyborowski
    and Wilenski (Homogeneity of results in testing samples from Poisson series, Biometrika 31, 1940): of a + b answers each
    is a's with probability 1/2. Worked: 18,000 against 18,400 answers differ by 400, less than 2.576 sqrt(36,400) = 491.

    A value proportional to n has the same relative error, 1 / sqrt(n): requests and tokens a second (the tokens of an answer
    taken as given). An error rate is a share e of N, with the variance e (1 - e) / N of Agresti and Caffo (The American
    Statistician 54, 2000): one failure and one success added, so that no error in a few requests is no certainty. A score is
    (requests/s x tokens/s)^(1/m) x ok / N and more that is no count; by the delta method, with ok and errors as two counts, its
    relative variance is (c / m + e)^2 / ok + errors / N^2, where c of its m metrics are counts:
    `counts_share` is c / m.
    """
    ended = seen.ok + seen.errors
    if rank_by == "score":
        variance = (counts_share + seen.errors / ended) ** 2 / seen.ok + seen.errors / ended**2
        return value * sqrt(variance)
    if rank_by == "error_rate":
        share = (seen.errors + 1) / (ended + 2)
        return sqrt(share * (1 - share) / (ended + 2))
    return value / sqrt(seen.ok) if _METRICS[rank_by].band == 1 else 0.0
