"""Whether frequencies follow Zipf's law: the exponent that fits best, and how far off the fit is.

The n-th most frequent key of a Zipf law is asked n ^ -exponent as often as the first. Pure arithmetic over counts.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from toolkit.units import share

Counts = NDArray[np.int64]
Numbers = NDArray[np.float64]
Shape = Literal["zipf", "even", "few", "other", "unknown"]

FEW_KEYS = 10
"""Under ten ranks, any falling curve looks like Zipf's."""
HELD_BY_TWO = 0.9
"""Two keys with this share are the whole story, whatever the tail does."""
FAR = 0.05
"""The distance is the largest error of any top-n share, so it is what a forecast by the fit would be off by. Samples
of true Zipf laws (exponents 0.8 to 2) stayed under 0.04 where `UNSEEN` held, a log-normal of sigma 1 came to 0.07."""
UNSEEN = 0.2
"""With a larger share of keys asked once, too much of the tail is missing for its ranks to be known: samples of a true
Zipf law came to a distance of 0.08."""
ORDINARY = 0.1
"""Samples of the law lie further off than this one in more than one of ten: no reason to doubt it."""
MANY = 5_000
"""With more requests no real traffic passes a test for exactly Zipf; the distance alone decides."""
RESAMPLES = 99
STEEPEST = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Zipf:
    """What a fit of Zipf's law came to."""

    shape: Shape
    """`zipf`; `even`: all keys equally often; `few`: a handful of keys; `other`; `unknown`: too little repeats."""
    why: str
    exponent: float | None = None
    """By maximum likelihood over the observed ranks. None, as what follows: no fit would mean anything."""
    distance: float | None = None
    """Kolmogorov and Smirnov's: the largest gap between the shares of the top n, counted and fitted, over all n."""
    p_value: float | None = None
    """Share of samples of the fitted law that lie further off than this one; only up to 5,000 requests."""


def zipf(counts: Counts) -> Zipf:
    """Judge frequencies, the most frequent first."""
    other = _no_law(counts)
    if other is not None:
        return other
    exponent = fitted_exponent(counts)
    off = distance(counts, exponent)
    p_value = _p_value(counts, exponent, off)
    shape, why = _judged(counts, off, p_value)
    return Zipf(shape=shape, why=why, exponent=exponent, distance=off, p_value=p_value)


def _no_law(counts: Counts) -> Zipf | None:
    """What makes a fit meaningless."""
    keys, total = len(counts), int(counts.sum())
    if keys < FEW_KEYS:
        return Zipf(shape="few", why=f"{keys} key{'s' if keys > 1 else ''}: too few for a law")
    held = int(counts[:2].sum()) / total
    if held >= HELD_BY_TWO:
        return Zipf(shape="few", why=f"two keys hold {share(held)} of requests")
    once = int((counts == 1).sum()) / total
    if once > UNSEEN:
        why = f"{share(once)} of requests ask what no other asked: the tail is unknown"
        return Zipf(shape="unknown", why=why)
    return None


def _judged(counts: Counts, off: float, p_value: float | None) -> tuple[Shape, str]:
    if is_even(counts):
        return "even", "all keys are asked equally often, but for chance"
    if off <= FAR or (p_value is not None and p_value > ORDINARY):
        return "zipf", f"no top-n share is more than {share(off)} off the law"
    return "other", f"a top-n share is {share(off)} off the best law"


def fitted_exponent(counts: Counts) -> float:
    """The exponent under which these counts of the ranks 1, 2, 3 ... are likeliest, by Newton's method."""
    logs = np.log(np.arange(1, len(counts) + 1))
    seen = float(counts @ logs) / float(counts.sum())
    exponent = 1.0
    for _ in range(100):
        weights = np.exp(-exponent * logs)
        weights /= weights.sum()
        mean = float(weights @ logs)
        spread = float(weights @ logs**2) - mean**2
        step = (mean - seen) / max(spread, 1e-12)
        # the likelihood is concave: half steps at most, and never below 0, keep a start too far off from running away
        exponent, before = min(max(exponent + max(-0.5, min(step, 0.5)), 0.0), STEEPEST), exponent
        if abs(exponent - before) < 1e-10:
            break
    return exponent


def distance(counts: Counts, exponent: float) -> float:
    """The largest gap between counted and fitted shares of the top n."""
    law = _law(len(counts), exponent)
    return float(np.abs(np.cumsum(counts) / counts.sum() - np.cumsum(law)).max())


def _law(keys: int, exponent: float) -> Numbers:
    weights = np.arange(1, keys + 1, dtype=float) ** -exponent
    law: Numbers = weights / weights.sum()
    return law


def _p_value(counts: Counts, exponent: float, off: float) -> float | None:
    """How often a sample of the law itself, ranked and fitted as this one was, lies at least as far off."""
    total = int(counts.sum())
    if total > MANY:
        return None
    law = _law(len(counts), exponent)
    # seeded: the same capture gets the same answer twice
    samples = np.random.default_rng(0).multinomial(total, law, RESAMPLES)
    further = sum(_distance_of_a_sample(sample) >= off for sample in samples)
    return (further + 1) / (RESAMPLES + 1)


def _distance_of_a_sample(sample: Counts) -> float:
    ranked = np.sort(sample[sample > 0])[::-1]
    return distance(ranked, fitted_exponent(ranked))


def is_even(counts: Counts) -> bool:
    """Whether chance alone explains that some keys were asked more often (chi-squared, four deviations)."""
    expected = counts.sum() / len(counts)
    misfit = float(((counts - expected) ** 2 / expected).sum())
    freedom = len(counts) - 1
    return misfit <= freedom + 4 * float(np.sqrt(2 * freedom))
