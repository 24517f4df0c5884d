"""The gaps between arrivals: which law describes them best, exponential, gamma or Weibull, by likelihood.

Exponential gaps are Poisson arrivals; a shape under 1 is burstier, above 1 more even. numpy and math only.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Law = Literal["exponential", "gamma", "weibull"]

FEWEST = 30
"""Fewer gaps than this fit any law."""
NEWTON_STEPS = 100
EVEN = 1e-9
"""Log of the arithmetic over the geometric mean: below this all gaps are equal, and no shape is large enough."""


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


def fits(gaps_s: Numbers) -> tuple[Fit, ...]:
    """The laws, the best first; none for too few gaps, for a gap of 0, or where all gaps are equal."""
    if len(gaps_s) < FEWEST or gaps_s.min() <= 0:
        return ()
    logs = np.log(gaps_s)
    mean = float(gaps_s.mean())
    if math.log(mean) - float(logs.mean()) < EVEN:
        return ()
    found = (_exponential(len(gaps_s), mean), _gamma(logs, mean), _weibull(logs))
    return tuple(sorted(found, key=lambda fit: fit.aic))


def _exponential(gaps: int, mean: float) -> Fit:
    return _fit("exponential", 1.0, mean, -gaps * (math.log(mean) + 1))


def _gamma(logs: Numbers, mean: float) -> Fit:
    mean_log = float(logs.mean())
    shape = gamma_shape(math.log(mean) - mean_log)
    scale = mean / shape
    each = (shape - 1) * mean_log - shape - shape * math.log(scale) - math.lgamma(shape)
    return _fit("gamma", shape, scale, len(logs) * each)


def gamma_shape(spread: float) -> float:
    """The k with ln k - digamma(k) = spread: the likeliest shape where that is ln(mean) - mean(ln)."""
    # Minka's start (2002) is within 1.5 % of the root everywhere; Newton's steps on 1/k converge from there
    shape = (3 - spread + math.sqrt((spread - 3) ** 2 + 24 * spread)) / (12 * spread)
    for _ in range(NEWTON_STEPS):
        miss = math.log(shape) - digamma(shape) - spread
        slope = 1 / shape - trigamma(shape)
        better = 1 / (1 / shape + miss / (shape**2 * slope))
        if abs(better - shape) <= 1e-12 * shape:
            return better
        shape = better
    return shape


def digamma(x: float) -> float:
    """Derivative of ln(gamma) at x > 0: pushed above 10 by its recurrence, then the asymptotic series."""
    less = 0.0
    while x < 10:
        less += 1 / x
        x += 1
    square = 1 / (x * x)
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square / 240)))
    return math.log(x) - 0.5 / x - series - less


def trigamma(x: float) -> float:
    """Derivative of digamma at x > 0, the same way."""
    more = 0.0
    while x < 10:
        more += 1 / (x * x)
        x += 1
    square = 1 / (x * x)
    series = square / x * (1 / 6 - square * (1 / 30 - square * (1 / 42 - square / 30)))
    return 1 / x + 0.5 * square + series + more


def _weibull(logs: Numbers) -> Fit:
    shape = _weibull_shape(logs)
    top = float(logs.max())
    # by the largest gap: a power of a gap itself could overflow
    log_scale = top + math.log(float(np.exp(shape * (logs - top)).mean())) / shape
    each = math.log(shape) - shape * log_scale + (shape - 1) * float(logs.mean()) - 1
    return _fit("weibull", shape, math.exp(log_scale), len(logs) * each)


def _weibull_shape(logs: Numbers) -> float:
    """The k with sum(x^k ln x) / sum(x^k) - mean(ln x) = 1 / k, by bisection-guarded Newton steps."""
    offset = logs - logs.max()
    mean = float(offset.mean())
    low, high = 0.0, math.inf
    # the standard deviation of a Weibull's logarithm is pi / (sqrt(6) k)
    shape = math.pi / math.sqrt(6) / max(float(offset.std()), 1e-12)
    for _ in range(NEWTON_STEPS):
        weights = np.exp(shape * offset)
        weights /= weights.sum()
        tilted = float(weights @ offset)
        miss = tilted - mean - 1 / shape
        low, high = (shape, high) if miss < 0 else (low, shape)
        slope = float(weights @ offset**2) - tilted**2 + 1 / shape**2
        better = shape - miss / slope
        if not low < better < high:
            better = (low + high) / 2 if math.isfinite(high) else shape * 2
        if abs(better - shape) <= 1e-12 * shape:
            return better
        shape = better
    return shape


def _fit(law: Law, shape: float, scale_s: float, log_likelihood: float) -> Fit:
    parameters = 1 if law == "exponential" else 2
    return Fit(
        law=law,
        shape=shape,
        scale_s=scale_s,
        log_likelihood=log_likelihood,
        aic=2 * parameters - 2 * log_likelihood,
    )
