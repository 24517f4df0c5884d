"""A sweep's measurements -> its table: one row a configuration, each against the base, how far each lever moved, and all in words.

Blocks are what is compared: of block j the configuration against the base, both measured within minutes of each other, on
servers started anew. Of their ratios (of shares: their differences) the mean, and Student's interval over the blocks. The
intervals of one stage hold together with 95 % (Bonferroni: each of m comparisons with 1 - 0.05 / m), or ten equal
configurations would bring a "difference" in four sweeps of ten. It never measures, and never prints.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, groupby
from operator import attrgetter
from statistics import fmean
from typing import Literal

from toolkit.stats import mean_interval, nearest_rank
from toolkit.tuning.figures import Figures, figure, meant
from toolkit.tuning.sweep_file import Configuration
from toolkit.units import UNKNOWN, digits

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

    @property
    def became(self) -> str:
        """`measured`, or `failed: the disk is full`."""
        return f"{self.status}: {self.cause}" if self.cause else self.status

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
    measured: Sequence[MeasuredConfiguration], look_at: Sequence[str]
) -> tuple[SweepRow, ...]:
    """One row a configuration; within a stage each is compared with the first that was measured."""
    rows = []
    for stage in sorted({one.configuration.stage for one in measured}):
        mine = [one for one in measured if one.configuration.stage == stage]
        base = next((one for one in mine if one.status == "measured"), None)
        together = max(1, sum(one.status == "measured" for one in mine) - 1)
        for one in mine:
            names = sorted({name for figures in one.blocks.values() for name in figures})
            compared_with = None if one is base or one.status != "measured" else base
            rows.append(
                SweepRow(
                    name=one.configuration.name,
                    stage=stage,
                    lever=one.configuration.lever,
                    value=one.configuration.value,
                    status=one.status,
                    cause=one.cause,
                    blocks=len(one.blocks),
                    runs=one.runs,
                    start_s=nearest_rank(one.start_s, 0.5),
                    figures={name: _mean(one, name) for name in names},
                    against=compared_with.configuration.name if compared_with else None,
                    compared=tuple(
                        _compared(name, compared_with, one, together) for name in look_at
                    )
                    if compared_with
                    else (),
                    notes=one.notes,
                )
            )
    return tuple(rows)


def _mean(one: MeasuredConfiguration, name: str) -> float | None:
    known = [value for block in one.blocks.values() if (value := block.get(name)) is not None]
    if not known:
        return None
    if min(known) == max(known):
        return known[0]  # not the 7.999999999999998 that logarithms make of 8
    if min(known) <= 0 or meant(name).is_share:
        return fmean(known)
    return math.exp(fmean(map(math.log, known)))


def _steps(
    a: MeasuredConfiguration, b: MeasuredConfiguration, name: str
) -> tuple[int, list[float]]:
    """In how many blocks both are known, and how far b lies above a in each of them.

    Of shares in points, else as the logarithm of their ratio; no steps where one is 0 and there is no ratio.
    """
    pairs = []
    for block, figures in a.blocks.items():
        ours, theirs = figures.get(name), b.blocks.get(block, {}).get(name)
        if ours is not None and theirs is not None:
            pairs.append((ours, theirs))
    if meant(name).is_share:
        return len(pairs), [theirs - ours for ours, theirs in pairs]
    if any(min(pair) <= 0 for pair in pairs):
        return len(pairs), []
    return len(pairs), [math.log(theirs / ours) for ours, theirs in pairs]


def _change(step: float, name: str) -> float:
    """A step as it is told: of shares in points, else as a ratio minus 1; a wild interval of two blocks must not overflow."""
    return step if meant(name).is_share else math.expm1(min(step, 300.0))


def _compared(
    name: str, base: MeasuredConfiguration, one: MeasuredConfiguration, together: int
) -> Compared:
    blocks, steps = _steps(base, one, name)
    if not steps:
        return Compared(metric=name, difference=None, blocks=blocks, verdict="not known")
    bounds = mean_interval(steps, together)
    verdict: Verdict = "not known"
    if bounds and bounds[0] <= 0 <= bounds[1]:
        verdict = NO_DIFFERENCE
    elif bounds:
        verdict = "better" if (bounds[0] > 0) == meant(name).more_is_better else "worse"
    return Compared(
        metric=name,
        difference=_change(fmean(steps), name),
        low=_change(bounds[0], name) if bounds else None,
        high=_change(bounds[1], name) if bounds else None,
        blocks=blocks,
        verdict=verdict,
    )


def moved(measured: Sequence[MeasuredConfiguration], name: str) -> tuple[Moved, ...]:
    """How far each lever moved a metric, the farthest first: its best position against its worst, the base among them."""
    levers: list[Moved] = []
    for stage in sorted({one.configuration.stage for one in measured}):
        known = [one for one in measured if one.configuration.stage == stage and one.blocks]
        origin = [one for one in known if one.configuration.lever is None]
        for lever in dict.fromkeys(one.configuration.lever for one in known):
            if lever is None:
                continue
            positions = [*origin, *(one for one in known if one.configuration.lever == lever)]
            # the pair that lies farthest apart; it is picked among all pairs, so its interval pays for all of them
            pairs = list(combinations(positions, 2))
            known_pairs = [(_steps(*pair, name)[1], *pair) for pair in pairs]
            known_pairs = [pair for pair in known_pairs if pair[0]]
            if not known_pairs:
                continue
            widest, low, high = max(known_pairs, key=lambda pair: abs(fmean(pair[0])))
            if fmean(widest) <= 0:
                widest, low, high = [-step for step in widest], high, low
            bounds = mean_interval(widest, len(pairs))
            worst, best = (low, high) if meant(name).more_is_better else (high, low)
            verdict: Verdict = "better" if bounds else "not known"
            if bounds and bounds[0] <= 0:
                verdict = NO_DIFFERENCE
            # a factor, where a change is told as a factor minus 1
            unchanged = 0.0 if meant(name).is_share else 1.0
            levers.append(
                Moved(
                    lever=lever,
                    best=best.configuration.name,
                    worst=worst.configuration.name,
                    factor=unchanged + _change(fmean(widest), name),
                    low=unchanged + _change(bounds[0], name) if bounds else None,
                    high=unchanged + _change(bounds[1], name) if bounds else None,
                    verdict=verdict,
                    is_share=meant(name).is_share,
                )
            )
    return tuple(sorted(levers, key=lambda each: -each.factor))


# --- in words ------------------------------------------------------------------------------------------


def step(value: float) -> str:
    """A relative difference as `+191 %`, `-4.2 %`; from tenfold on as `11.3x`."""
    percent = 100 * value
    if value >= 9:
        return f"{digits(1 + value)}x"
    places = 0 if abs(percent) >= 9.95 else 1
    return f"{percent:+.{places}f} %"


def points(value: float) -> str:
    """A difference of two shares, in percentage points."""
    return f"{100 * value:+.1f} points"


def difference(one: Compared) -> str:
    """`+191 % (+185 to +197)`, or that none is shown."""
    told = points if meant(one.metric).is_share else step
    if one.difference is None:
        return UNKNOWN
    if one.low is None or one.high is None:
        return f"{told(one.difference)}, one block: no interval"
    if one.low == one.high == 0:
        return NO_DIFFERENCE
    if one.verdict == NO_DIFFERENCE:
        return f"{NO_DIFFERENCE} ({_bounds(told(one.low), told(one.high))})"
    return f"{told(one.difference)} ({_bounds(told(one.low), told(one.high))})"


def _bounds(low: str, high: str) -> str:
    """`+185 to +197 %`: a unit that both have stands once."""
    for unit in (" %", " points"):
        if low.endswith(unit) and high.endswith(unit):
            return f"{low.removesuffix(unit)} to {high}"
    return f"{low} to {high}"


def by_stage(rows: Iterable[SweepRow]) -> list[list[SweepRow]]:
    """Only rows of one stage are compared: the tables, in their order."""
    return [list(stage) for _, stage in groupby(rows, key=attrgetter("stage"))]


def known_of(look_at: Sequence[str], rows: Sequence[SweepRow]) -> list[str]:
    """Those figures that at least one of these rows knows: the columns."""
    return [name for name in look_at if any(row.figures.get(name) is not None for row in rows)]


def progression(rows: Sequence[SweepRow], name: str) -> str | None:
    """`1,070 -> 1,211 (+13 %) -> 3,114 (+191 %)`: the first metric of one stage, in the order of the sweep."""
    told = points if meant(name).is_share else step
    parts = []
    for row in rows:
        value, compared = row.figures.get(name), row.of(name)
        if row.status != "measured" or value is None:
            continue
        part = figure(name, value)
        if compared is not None and compared.difference is not None:
            is_none = compared.verdict == NO_DIFFERENCE
            part += f" ({NO_DIFFERENCE if is_none else told(compared.difference)})"
        parts.append(part)
    return " -> ".join(parts) if len(parts) > 1 else None


def lever(one: Moved, name: str) -> str:
    """How far one lever moved the figure: a factor, or points of a share; and the interval, if there is one."""
    title = meant(name).title
    if one.verdict == NO_DIFFERENCE:
        return f"{one.lever}: {NO_DIFFERENCE} in {title} between its positions"
    far = f"{100 * one.factor:.1f} points" if one.is_share else f"{digits(one.factor)}x"
    if one.low is not None and one.high is not None:
        told = points if one.is_share else digits
        far += f" ({_bounds(told(one.low), told(one.high))})"
    unsure = ", from one block" if one.verdict == "not known" else ""
    return f"{one.lever}: {far} in {title}, {one.best} against {one.worst}{unsure}"
