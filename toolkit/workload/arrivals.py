"""When requests arrive: rate, burstiness, the law of the gaps, and how many are under way at once.

Everything follows from the times of arrival (and latencies, where known); it never asks a clock. Exponential gaps are
Poisson arrivals; a shape under 1 is burstier, above 1 more even.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from toolkit.stats import rank
from toolkit.units import digits
from toolkit.workload.columns import Numbers, RequestColumns
from toolkit.workload.distribution import likeliest

Burstiness = Literal["burstier", "poisson", "smoother"]
Law = Literal["exponential", "gamma", "weibull"]
Basis = Literal["in_flight", "latency", "assumed_latency"]

WINDOWS_S = (1.0, 10.0, 60.0)
"""Windows of the index of dispersion, seconds."""
FEW_WINDOWS = 10
"""Fewer windows than this: the variance of their counts says nothing."""
BEYOND = 3.29
"""Standard deviations on either side of Poisson that chance passes once in a thousand captures."""
MATTERS = 0.25
"""An index nearer to 1 than this is no reason to plan otherwise, however sure the sign of it is."""
BEYOND_DOUBT = 10.0
"""Difference of AIC from which on the worse law has no support."""
STEPS_S = (60.0, 1.0, 0.1, 0.01, 0.001)
"""Resolutions that clocks and logs are rounded to, the coarsest first."""
FINEST_S = 1e-6
"""Captures stamp microseconds, and a float of today's seconds holds no finer."""
COARSE = 0.1
"""A clock that moves in steps of over a tenth of the mean gap hides the law of the gaps."""
SERIES_POINTS = 3600
SERIES_BINS_S = (1.0, 10.0, 60.0, 600.0, 3600.0, 86400.0)
FEWEST = 30
"""Fewer gaps than this fit any law."""
SHAPES = (math.log(1e-6), math.log(1e10))
"""Logs of the shapes that are looked through: from a gap that holds all time to gaps that differ in their tenth digit."""
EVEN = 1e-9
"""Log of the arithmetic over the geometric mean: below this all gaps are equal, and no shape is large enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispersion:
    """How much more the counts of equal windows vary than Poisson arrivals would."""

    window_s: float
    windows: int
    """Whole ones between the first and the last request."""
    index: float
    """Variance / mean of the counts; 1 for Poisson."""
    low: float
    """Chance alone leaves the index of Poisson arrivals between the two in 999 of 1,000 captures."""
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One law at its likeliest."""

    law: Law
    shape: float
    """1 for the exponential."""
    scale_s: float
    log_likelihood: float
    aic: float
    """2 parameters - 2 log likelihood: the lowest describes best; a difference of 10 is beyond doubt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Requests per bin of time, from the first arrival on, empty ones included."""

    bin_s: float
    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """How requests arrive. None: too few requests, or times too coarse, to say."""

    first_ts: float | None = None
    last_ts: float | None = None
    duration_s: float | None = None
    """From the first arrival to the last."""
    requests_per_s: float | None = None
    """Gaps / duration: of two requests a second apart, 1."""
    peak_requests_per_s: int | None = None
    """Most requests that arrived within one second, wherever it begins."""
    series: Series | None = None
    resolution_s: float | None = None
    """Step of the clock that stamped them."""
    gap_cv: float | None = None
    """Standard deviation / mean of the gaps; 1 for Poisson."""
    dispersion: tuple[Dispersion, ...] = ()
    fits: tuple[Fit, ...] = ()
    """Laws of the gaps, the best first."""
    burstiness: Burstiness | None = None
    """Compared with Poisson arrivals of the same rate."""
    why: str = ""


def arrivals(ts: Numbers) -> Arrivals:
    """Describe rising times of arrival, seconds."""
    if not len(ts):
        return Arrivals(why="no requests")
    duration = float(ts[-1] - ts[0])
    within_a_second = np.searchsorted(ts, ts + 1.0, side="left") - np.arange(len(ts))
    found = Arrivals(
        first_ts=float(ts[0]),
        last_ts=float(ts[-1]),
        duration_s=duration,
        peak_requests_per_s=int(within_a_second.max()),
    )
    if duration <= 0:
        why = "one request has no rate" if len(ts) == 1 else "all arrived at the same instant"
        return replace(found, why=why)

    bin_s = next(
        (width for width in SERIES_BINS_S if duration / width < SERIES_POINTS), SERIES_BINS_S[-1]
    )
    # a clock that jumped by years must not ask for a bin of each day since
    shown = np.minimum((ts - ts[0]) // bin_s, SERIES_POINTS - 1).astype(np.int64)
    gaps = np.diff(ts)
    # the coarsest step that all times are multiples of; a float of 1.8e9 seconds is exact to 2.4e-7
    step_s = next(
        (step for step in STEPS_S if np.abs(ts / step - np.round(ts / step)).max() * step < 5e-7),
        FINEST_S,
    )
    # a gap of 0 was one of at most half a step
    laws = fits(np.maximum(gaps, step_s / 2)) if step_s <= COARSE * gaps.mean() else ()
    dispersed = tuple(filter(None, (dispersion(ts, window) for window in WINDOWS_S)))
    verdict, why = burstiness(dispersed, laws)
    return replace(
        found,
        requests_per_s=len(gaps) / duration,
        series=Series(bin_s=bin_s, requests=tuple(np.bincount(shown).tolist())),
        resolution_s=step_s,
        gap_cv=float(gaps.std() / gaps.mean()) if len(gaps) > 1 else None,
        dispersion=dispersed,
        fits=laws,
        burstiness=verdict,
        why=why,
    )


def dispersion(ts: Numbers, window_s: float) -> Dispersion | None:
    """Variance over mean of the counts of whole windows; None for too few windows."""
    windows = math.floor((ts[-1] - ts[0]) / window_s)
    if windows < FEW_WINDOWS:
        return None
    number = ((ts - ts[0]) // window_s).astype(np.int64)
    # only windows with a request are kept, however long the silence: a clock may jump by years
    _, counts = np.unique(number[number < windows], return_counts=True)
    mean = float(counts.sum()) / windows
    variance = (float((counts.astype(float) ** 2).sum()) - windows * mean**2) / (windows - 1)
    # of chi-squared, the quantile as far out as this many standard deviations are (Wilson and Hilferty's cube)
    part = 2 / (9 * (windows - 1))
    low, high = (max(0.0, 1 - part + side * math.sqrt(part)) ** 3 for side in (-BEYOND, BEYOND))
    return Dispersion(window_s=window_s, windows=windows, index=variance / mean, low=low, high=high)


def burstiness(
    dispersed: tuple[Dispersion, ...], laws: tuple[Fit, ...]
) -> tuple[Burstiness | None, str]:
    """Judge by the windows' counts; by the gaps' law where there are too few windows."""
    burstier = [one for one in dispersed if one.index > max(one.high, 1 + MATTERS)]
    smoother = [one for one in dispersed if one.index < min(one.low, 1 - MATTERS)]
    for one in (*burstier, *smoother):
        why = f"counts of {one.window_s:g} s vary {digits(one.index)} times as much as chance has them"
        return "burstier" if burstier else "smoother", why
    if dispersed:
        return "poisson", f"counts of {dispersed[0].window_s:g} s vary about as chance has them"
    if not laws:
        return None, f"fewer than {FEW_WINDOWS} s and {FEWEST} gaps, or times too coarse, to say"
    best, plain = laws[0], next(fit for fit in laws if fit.law == "exponential")
    if plain.aic - best.aic < BEYOND_DOUBT:
        return "poisson", "exponential gaps describe them as well as others"
    side: Burstiness = "burstier" if best.shape < 1 else "smoother"
    return side, f"{best.law} gaps of shape {best.shape:.2g}, by {plain.aic - best.aic:.0f} of AIC"


def fits(gaps_s: Numbers) -> tuple[Fit, ...]:
    """Laws of the gaps, the best first; none for too few gaps, for a gap of 0, or where all gaps are equal."""
    if len(gaps_s) < FEWEST or gaps_s.min() <= 0:
        return ()
    logs = np.log(gaps_s)
    mean, mean_log = float(gaps_s.mean()), float(logs.mean())
    spread, top = math.log(mean) - mean_log, float(logs.max())
    if spread < EVEN:
        return ()

    def gamma(log_shape: float) -> float:
        """A gap's mean log likelihood at the scale that is likeliest for this shape; so with the next."""
        shape = math.exp(log_shape)
        return shape * (log_shape - 1 - spread) - math.lgamma(shape) - mean_log

    def weibull(log_shape: float) -> float:
        shape = math.exp(log_shape)
        return log_shape - shape * log_scale(shape) + (shape - 1) * mean_log - 1

    def log_scale(shape: float) -> float:
        # by the largest gap: a power of a gap itself could overflow
        return top + math.log(float(np.exp(shape * (logs - top)).mean())) / shape

    found = []
    for law, log_likelihood, parameters in (
        ("exponential", gamma, 1),
        ("gamma", gamma, 2),
        ("weibull", weibull, 2),
    ):
        log_shape = 0.0 if parameters == 1 else likeliest(log_likelihood, *SHAPES)
        shape, each = math.exp(log_shape), log_likelihood(log_shape)
        fit = Fit(
            law=law,  # type: ignore[arg-type]
            shape=shape,
            scale_s=math.exp(log_scale(shape)) if law == "weibull" else mean / shape,
            log_likelihood=len(logs) * each,
            aic=2 * parameters - 2 * len(logs) * each,
        )
        found.append(fit)
    return tuple(sorted(found, key=lambda fit: fit.aic))


# --- Requests under way ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """How many requests are under way at once, the arriving one included, as arriving requests find it."""

    basis: Basis | None
    """Counted from the answers; from measured latencies; from a latency that the user gave; not known."""
    why: str
    mean: float | None = None
    """By Little's law where a latency was given: rate * latency."""
    p50: int | None = None
    p95: int | None = None
    p99: int | None = None
    max: int | None = None


def concurrency(
    columns: RequestColumns, requests_per_s: float | None, latency_s: float | None
) -> Concurrency:
    """What was counted, else what latencies say, else what the user's latency says, else nothing."""
    if not len(columns):
        return Concurrency(basis=None, why="no requests")
    counted = columns.in_flight[~np.isnan(columns.in_flight)]
    mean: float | None = None
    if len(counted):
        basis: Basis = "in_flight"
        why = f"counted at {len(counted):,} of {len(columns):,} arrivals"
        found = counted.astype(np.int64) + 1
    elif not np.isnan(columns.latency_s).any():
        basis, why = "latency", "from measured latencies"
        found = under_way(columns.ts, columns.latency_s)
    elif latency_s is None:
        return Concurrency(basis=None, why="latencies are unknown, and none was given")
    else:
        basis = "assumed_latency"
        why = f"by Little's law, with the given latency of {latency_s:g} s for every request"
        found = under_way(columns.ts, np.full(len(columns), latency_s))
        mean = None if requests_per_s is None else requests_per_s * latency_s
    ordered = np.sort(found)
    p50, p95, p99 = (int(ordered[rank(len(ordered), share) - 1]) for share in (0.5, 0.95, 0.99))
    return Concurrency(
        basis=basis,
        why=why,
        mean=mean if basis == "assumed_latency" else float(found.mean()),
        p50=p50,
        p95=p95,
        p99=p99,
        max=int(ordered[-1]),
    )


def under_way(ts: Numbers, latency_s: Numbers) -> NDArray[np.int64]:
    """At each arrival: itself and those before it that had not ended."""
    ended = np.searchsorted(np.sort(ts + latency_s), ts, side="right")
    found: NDArray[np.int64] = np.maximum(np.arange(1, len(ts) + 1) - ended, 1)
    return found
