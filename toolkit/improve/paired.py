"""How sure is a difference between two series? Blocks, not requests: a variance and its degrees of freedom. No clock.

The method is that of batch means in simulation (Schmeiser, Batch Size Effects in the Analysis of Simulation Output,
1982), and for quantiles that of sectioning (Asmussen and Glynn, Stochastic Simulation, 2007, chapter III.5): the series is cut
into k stretches, the figure is taken once of the whole and once of each stretch, and

    variance = sum((block - whole)**2) / (k - 1) / k           half an interval = t(k - 1) * sqrt(variance)

Requests and seconds are not independent: what runs together shares the engine's steps, and a slow second is followed by
another one. Stretches that are longer than such a memory are nearly independent, and there are few of them, which
Student's t pays for. So k begins at 20 and falls until neighbouring blocks no longer go together; where they still do at
6, the variance is widened by (1 + r) / (1 - r), r being their correlation, as for an autoregressive series.

Pairs. Where both sides had the same plan, block j of the one is compared with block j of the other: whatever the plan
does at that moment (a ramp, a hard prompt, a second in which the loader was slow) is in both and falls out of the
difference. Else each side has its own variance, and the two add up (Welch).

Why no block bootstrap. It was tried first: the stationary one (Politis and Romano 1994), its mean length chosen from the
data (Politis and White 2004). With the seconds of one run it is too sure of itself. Measured: of 2,000 (bootstrap: 400)
simulated series of n seconds, each 0, 0.5, 0.8 or 0.9 of the one before plus noise, how many 95 % intervals held the mean,
in per cent:

                         n = 60                120                 300
    memory         0   .5   .8   .9     0   .5   .8   .9     0   .5   .8   .9
    this          96   93   89   86    96   95   93   90    96   96   94   93
    10 blocks     94   92   82   68    95   93   90   81    95   94   93   91
    bootstrap     94   87   75   62    95   86   79   68    95   90   86   80

So a minute is enough where a second remembers half of the last; where it remembers more, run for five.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

BLOCKS = (20, 15, 12, 10, 8, 6)
"""Tried from the left. All divide 120, so that whoever cuts a series into 120 cells has to cut no further."""
LEAST_BLOCKS = 6
RELATED = 0.1
"""Neighbouring blocks that go together by more than this are too short."""
MOST_RELATED = 0.8
STUDENT_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Two-sided 95 % at 1, 2, ... degrees of freedom; past the last one it stays, which is on the safe side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How far a figure may be off by chance."""

    variance: float
    freedom: float
    """Degrees of freedom that the variance rests on."""
    blocks: int


Blocks = Callable[[int], Sequence[float] | None]
"""The figure in each of so many stretches of the series; None where it cannot be told of one of them."""


def spread(whole: float, blocks: Blocks, *, most: int) -> Spread | None:
    """Tell how far `whole` may be off, from at most so many stretches; None: there are too few to tell."""
    found: Spread | None = None
    for count in (each for each in BLOCKS if each <= most):
        values = blocks(count)
        if values is None:
            continue
        related = _related(values)
        found = _of(whole, values, related)
        if related < RELATED:
            break
    return found


def together(a: Spread, b: Spread) -> Spread:
    """The spread of a difference of two figures that have nothing to do with each other (Welch and Satterthwaite)."""
    variance = a.variance + b.variance
    parts = sum(each.variance**2 / each.freedom for each in (a, b))
    freedom = variance**2 / parts if parts else min(a.freedom, b.freedom)
    return Spread(variance=variance, freedom=freedom, blocks=min(a.blocks, b.blocks))


def at_least(found: Spread, variance: float) -> Spread:
    """The same, with a variance that is known to be no smaller than this."""
    if variance <= found.variance:
        return found
    return Spread(variance=variance, freedom=found.freedom, blocks=found.blocks)


def reach(found: Spread) -> float:
    """Half of the 95 % confidence interval."""
    place = min(max(1, math.floor(found.freedom)), len(STUDENT_T)) - 1
    return STUDENT_T[place] * math.sqrt(found.variance)


def _of(whole: float, values: Sequence[float], related: float) -> Spread:
    count = len(values)
    squares = math.fsum((value - whole) ** 2 for value in values)
    wider = (1 + related) / (1 - related)
    return Spread(variance=squares / (count - 1) / count * wider, freedom=count - 1, blocks=count)


def _related(values: Sequence[float]) -> float:
    """Correlation of neighbouring blocks, 0 to 0.8.

    What a sample of k shows is too low by about 1 / k (Kendall 1954).
    """
    count = len(values)
    mean = math.fsum(values) / count
    off = [value - mean for value in values]
    squares = math.fsum(each * each for each in off)
    if squares <= 0:
        return 0.0
    neighbours = math.fsum(one * other for one, other in pairwise(off))
    return min(MOST_RELATED, max(0.0, neighbours / squares + 1 / count))
