"""A sweep's measurements -> its table: one row a configuration, each against the base, and how far each lever moved.

Blocks are what is compared: of block j the configuration against the base, both measured within minutes of each other, on
servers started anew. Of their ratios (of shares: their differences) the mean, and Student's interval over the blocks. The
intervals of one stage hold together with 95 % (Bonferroni: each of m comparisons with 1 - 0.05 / m), or ten equal
configurations would bring a "difference" in four sweeps of ten. It never measures, and never prints.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal

from toolkit.stats import mean_interval, nearest_rank
from toolkit.tuning.configurations import Configuration
from toolkit.tuning.figures import Figures
from toolkit.tuning.metrics import meant

Status = Literal["measured", "failed", "skipped", "not begun"]
Verdict = Literal["better", "worse", "no difference shown", "not known"]
NO_DIFFERENCE: Verdict = "no difference shown"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredConfiguration:
    """What is known of one configuration."""

    configuration: Configuration
    status: Status
    cause: str | None = None
    """Why it failed, or was skipped."""
    blocks: Mapping[int, Figures] = field(default_factory=dict)
    runs: tuple[str, ...] = ()
    start_s: tuple[float, ...] = ()
    """Of each start: from its command to the first answer."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One figure of a configuration against the base's; of a share they are differences, else ratios minus 1."""

    metric: str
    difference: float | None
    low: float | None = None
    high: float | None = None
    blocks: int = 0
    """Of which both sides are known."""
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """One line of the table."""

    name: str
    stage: int
    lever: str | None
    value: str | None
    status: Status
    cause: str | None
    blocks: int
    runs: tuple[str, ...]
    start_s: float | None
    """Median of its starts."""
    figures: Figures
    """Geometric means over blocks, so that their ratios are the ratios told; of shares arithmetic ones."""
    against: str | None
    compared: tuple[Compared, ...]
    notes: tuple[str, ...] = ()

    def of(self, name: str) -> Compared | None:
        """How it compares in one metric."""
        return next((each for each in self.compared if each.metric == name), None)

    def ends(self, name: str) -> tuple[float, float] | None:
        """The figure itself at both ends of its difference's interval, to be drawn; None: there is no interval."""
        value, compared = self.figures.get(name), self.of(name)
        if value is None or compared is None or compared.difference is None:
            return None
        if compared.low is None or compared.high is None:
            return None
        if meant(name).is_share:
            base = value - compared.difference
            return base + compared.low, base + compared.high
        base = value / (1 + compared.difference)
        return base * (1 + compared.low), base * (1 + compared.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """How far one lever moved the first metric: its best position against its worst, the base among them."""

    lever: str
    best: str
    worst: str
    factor: float
    """The higher over the lower; of shares, which may be 0, their difference. So are the bounds."""
    low: float | None
    high: float | None
    verdict: Verdict
    is_share: bool = False


# --- the table ---------------------------------------------------------------------------------------


def table(
    measured: Sequence[MeasuredConfiguration],
    look_at: Sequence[str],
) -> tuple[SweepRow, ...]:
    """One row a configuration; within a stage each is compared with the first that was measured."""
    rows = []
    for stage in sorted({one.configuration.stage for one in measured}):
        mine = [one for one in measured if one.configuration.stage == stage]
        base = next((one for one in mine if one.status == "measured"), None)
        others = sum(one.status == "measured" for one in mine) - 1
        rows += [_row(one, base, look_at, max(1, others)) for one in mine]
    return tuple(rows)


def _row(
    one: MeasuredConfiguration,
    base: MeasuredConfiguration | None,
    look_at: Sequence[str],
    together: int,
) -> SweepRow:
    is_compared = base is not None and base is not one and one.status == "measured"
    names = sorted({name for figures in one.blocks.values() for name in figures})
    return SweepRow(
        name=one.configuration.name,
        stage=one.configuration.stage,
        lever=one.configuration.lever,
        value=one.configuration.value,
        status=one.status,
        cause=one.cause,
        blocks=len(one.blocks),
        runs=one.runs,
        start_s=nearest_rank(one.start_s, 0.5),
        figures={name: _mean(one, name) for name in names},
        against=base.configuration.name if is_compared and base else None,
        compared=tuple(_compared(name, base, one, together) for name in look_at)
        if is_compared and base
        else (),
        notes=one.notes,
    )


def _mean(one: MeasuredConfiguration, name: str) -> float | None:
    known = [value for block in one.blocks.values() if (value := block.get(name)) is not None]
    if not known:
        return None
    if min(known) == max(known):
        return known[0]  # not the 7.999999999999998 that logarithms make of 8
    if min(known) <= 0 or meant(name).is_share:
        return math.fsum(known) / len(known)
    return math.exp(math.fsum(map(math.log, known)) / len(known))


def _pairs(
    a: MeasuredConfiguration, b: MeasuredConfiguration, name: str
) -> list[tuple[float, float]]:
    """Values of the blocks in which both are known."""
    found = []
    for block, figures in a.blocks.items():
        ours, theirs = figures.get(name), b.blocks.get(block, {}).get(name)
        if ours is not None and theirs is not None:
            found.append((ours, theirs))
    return found


def _compared(
    name: str,
    base: MeasuredConfiguration,
    one: MeasuredConfiguration,
    together: int,
) -> Compared:
    pairs = _pairs(base, one, name)
    is_share = meant(name).is_share
    if not is_share and any(min(pair) <= 0 for pair in pairs):
        return Compared(metric=name, difference=None, blocks=len(pairs), verdict="not known")
    steps = [b - a if is_share else math.log(b / a) for a, b in pairs]
    if not steps:
        return Compared(metric=name, difference=None, verdict="not known")
    bounds = mean_interval(steps, together)
    told: Callable[[float], float] = (lambda step: step) if is_share else _ratio
    return Compared(
        metric=name,
        difference=told(math.fsum(steps) / len(steps)),
        low=told(bounds[0]) if bounds else None,
        high=told(bounds[1]) if bounds else None,
        blocks=len(pairs),
        verdict=_verdict(bounds, more_is_better=meant(name).more_is_better),
    )


def _ratio(step: float) -> float:
    """A difference of logarithms as a ratio minus 1; a wild interval of two blocks must not overflow."""
    return math.expm1(min(step, 300.0))


def _verdict(bounds: tuple[float, float] | None, *, more_is_better: bool) -> Verdict:
    if bounds is None:
        return "not known"
    low, high = bounds
    if low <= 0 <= high:
        return NO_DIFFERENCE
    return "better" if (low > 0) == more_is_better else "worse"


# --- levers -----------------------------------------------------------------------------------------


def moved(measured: Sequence[MeasuredConfiguration], name: str) -> tuple[Moved, ...]:
    """How far each lever moved a metric, the farthest first: its best position against its worst."""
    found = []
    for stage in sorted({one.configuration.stage for one in measured}):
        known = [one for one in measured if one.configuration.stage == stage and one.blocks]
        origin = [one for one in known if one.configuration.lever is None]
        for lever in dict.fromkeys(one.configuration.lever for one in known):
            mine = [one for one in known if one.configuration.lever == lever]
            if lever is not None and len(origin + mine) > 1:
                found.append(_moved(lever, origin + mine, name))
    known_ones = [one for one in found if one is not None]
    return tuple(sorted(known_ones, key=lambda one: -one.factor))


def _moved(lever: str, positions: Sequence[MeasuredConfiguration], name: str) -> Moved | None:
    """The pair that lies farthest apart. It was picked among all pairs, so its interval pays for all of them."""
    is_share = meant(name).is_share
    pairs = list(combinations(positions, 2))
    widest: tuple[float, MeasuredConfiguration, MeasuredConfiguration, list[float]] | None = None
    for a, b in pairs:
        steps = _steps(_pairs(a, b, name), is_share=is_share)
        if not steps:
            continue
        mean = math.fsum(steps) / len(steps)
        high, low = (a, b) if mean >= 0 else (b, a)
        steps = steps if mean >= 0 else [-step for step in steps]
        if widest is None or abs(mean) > widest[0]:
            widest = (abs(mean), high, low, steps)
    if widest is None:
        return None
    mean, high, low, steps = widest
    bounds = mean_interval(steps, len(pairs))
    told = _itself if is_share else _factor
    best, worst = (high, low) if meant(name).more_is_better else (low, high)
    return Moved(
        lever=lever,
        best=best.configuration.name,
        worst=worst.configuration.name,
        factor=told(mean),
        low=told(bounds[0]) if bounds else None,
        high=told(bounds[1]) if bounds else None,
        verdict="not known" if bounds is None else NO_DIFFERENCE if bounds[0] <= 0 else "better",
        is_share=is_share,
    )


def _steps(pairs: Sequence[tuple[float, float]], *, is_share: bool) -> list[float]:
    """How far a lies above b in each block: of shares in points, else as the logarithm of their ratio; none of what has none."""
    if is_share:
        return [a - b for a, b in pairs]
    return [] if any(min(pair) <= 0 for pair in pairs) else [math.log(a / b) for a, b in pairs]


def _itself(step: float) -> float:
    return step


def _factor(step: float) -> float:
    return 1 + _ratio(step)
