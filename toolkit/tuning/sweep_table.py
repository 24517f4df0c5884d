"""A sweep's measurements -> its table: one row a configuration, each against the base, how far each lever moved, and all in words.

Blocks are what is compared: of block j the configuration against the base, both measured within minutes of each other, on
servers started anew. Of their ratios (of shares: their differences) the mean, and Student's interval over the blocks. The
intervals of one stage hold together with 95 % (Bonferroni: each of m comparisons with 1 - 0.05 / m), or ten equal
configurations would bring a "difference" in four sweeps of ten. It never measures, and never prints.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations, groupby
from operator import attrgetter
from statistics import fmean
from typing import Any, Literal

from toolkit.stats import mean_interval, nearest_rank
from toolkit.tuning.figures import Figures, figure, metric
from toolkit.units import UNKNOWN, digits

Status = Literal["measured", "failed", "skipped", "not begun"]
Verdict = Literal["better", "worse", "no difference shown", "not known"]
NO_DIFFERENCE: Verdict = "no difference shown"


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
    """One configuration: what was measured of it, and once the table is made, how it compares with the first of its stage."""

    name: str
    stage: int
    lever: str | None
    value: str | None
    status: Status
    cause: str | None = None
    """Why it failed, or was skipped."""
    blocks: Mapping[int, Figures] = field(default_factory=dict)
    runs: tuple[str, ...] = ()
    starts_s: tuple[float, ...] = ()
    """Of each start: from its command to the first answer."""
    notes: tuple[str, ...] = ()
    against: str | None = None
    compared: tuple[Compared, ...] = ()

    @property
    def became(self) -> str:
        """`measured`, or `failed: the disk is full`."""
        return f"{self.status}: {self.cause}" if self.cause else self.status

    @property
    def start_s(self) -> float | None:
        """Median of its starts."""
        return nearest_rank(self.starts_s, 0.5)

    def figure(self, name: str) -> float | None:
        """The geometric mean over blocks, so that their ratios are the ratios shown; of shares the arithmetic one."""
        known = [value for block in self.blocks.values() if (value := block.get(name)) is not None]
        if not known:
            return None
        if min(known) == max(known):
            return known[0]  # not the 7.999999999999998 that logarithms make of 8
        if min(known) <= 0 or metric(name).is_share:
            return fmean(known)
        return math.exp(fmean(map(math.log, known)))

    def of(self, name: str) -> Compared | None:
        """How it compares in one metric."""
        return next((each for each in self.compared if each.metric == name), None)

    def ends(self, name: str) -> tuple[float, float] | None:
        """The figure itself at both ends of its difference's interval, to be drawn; None: there is no interval."""
        value, compared = self.figure(name), self.of(name)
        if value is None or compared is None or compared.difference is None:
            return None
        if compared.low is None or compared.high is None:
            return None
        if metric(name).is_share:
            base = value - compared.difference
            return base + compared.low, base + compared.high
        base = value / (1 + compared.difference)
        return base * (1 + compared.low), base * (1 + compared.high)

    def as_json(self) -> dict[str, Any]:
        """The object of `toolkit sweep --json`."""
        found = asdict(self)
        del found["starts_s"]
        names = sorted({name for figures in self.blocks.values() for name in figures})
        figures = {name: self.figure(name) for name in names}
        return found | {"blocks": len(self.blocks), "start_s": self.start_s, "figures": figures}


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


def table(measured: Iterable[SweepRow], look_at: Sequence[str]) -> tuple[SweepRow, ...]:
    """The same rows; within a stage each is compared with the first that was measured."""
    rows = []
    for stage in by_stage(measured):
        base = next((row for row in stage if row.status == "measured"), None)
        together = max(1, sum(row.status == "measured" for row in stage) - 1)
        for row in stage:
            if base is None or row is base or row.status != "measured":
                rows.append(row)
                continue
            compared = tuple(_compared(name, base, row, together) for name in look_at)
            rows.append(replace(row, against=base.name, compared=compared))
    return tuple(rows)


def _steps(a: SweepRow, b: SweepRow, name: str) -> tuple[int, list[float]]:
    """In how many blocks both are known, and how far b lies above a in each of them.

    Of shares in points, else as the logarithm of their ratio; no steps where one is 0 and there is no ratio.
    """
    pairs = []
    for block, figures in a.blocks.items():
        ours, theirs = figures.get(name), b.blocks.get(block, {}).get(name)
        if ours is not None and theirs is not None:
            pairs.append((ours, theirs))
    if metric(name).is_share:
        return len(pairs), [theirs - ours for ours, theirs in pairs]
    if any(min(pair) <= 0 for pair in pairs):
        return len(pairs), []
    return len(pairs), [math.log(theirs / ours) for ours, theirs in pairs]


def _change(
    steps: Sequence[float], together: int, name: str
) -> tuple[float, float | None, float | None]:
    """Their mean and its interval: of shares in points, else as ratios minus 1."""
    found = (fmean(steps), *(mean_interval(steps, together) or ()))
    if not metric(name).is_share:
        # a wild interval of two blocks must not overflow
        found = tuple(math.expm1(min(each, 300.0)) for each in found)
    middle, *bounds = found
    low, high = bounds or (None, None)
    return middle, low, high


def _compared(name: str, base: SweepRow, row: SweepRow, together: int) -> Compared:
    blocks, steps = _steps(base, row, name)
    if not steps:
        return Compared(metric=name, difference=None, blocks=blocks, verdict="not known")
    difference, low, high = _change(steps, together, name)
    verdict: Verdict = "not known"
    if low is not None and high is not None:
        verdict = "better" if (low > 0) == metric(name).more_is_better else "worse"
        verdict = NO_DIFFERENCE if low <= 0 <= high else verdict
    return Compared(
        metric=name, difference=difference, low=low, high=high, blocks=blocks, verdict=verdict
    )


def moved(rows: Iterable[SweepRow], name: str) -> tuple[Moved, ...]:
    """How far each lever moved a metric, the farthest first: its best position against its worst, the base among them."""
    levers: list[Moved] = []
    # a factor, where a change is a factor minus 1
    unchanged = 0.0 if metric(name).is_share else 1.0
    for stage in by_stage(rows):
        known = [row for row in stage if row.blocks]
        origin = [row for row in known if row.lever is None]
        for lever in dict.fromkeys(row.lever for row in known if row.lever is not None):
            positions = [*origin, *(row for row in known if row.lever == lever)]
            # the pair that lies farthest apart; it is picked among all pairs, so its interval pays for all of them
            pairs = list(combinations(positions, 2))
            stepped = [(steps, *pair) for pair in pairs if (steps := _steps(*pair, name)[1])]
            if not stepped:
                continue
            widest, low_row, high_row = max(stepped, key=lambda pair: abs(fmean(pair[0])))
            if fmean(widest) <= 0:
                widest, low_row, high_row = [-step for step in widest], high_row, low_row
            factor, low, high = _change(widest, len(pairs), name)
            best, worst = (
                (high_row, low_row) if metric(name).more_is_better else (low_row, high_row)
            )
            verdict: Verdict = "not known"
            if low is not None:
                verdict = "better" if low > 0 else NO_DIFFERENCE
            levers.append(
                Moved(
                    lever=lever,
                    best=best.name,
                    worst=worst.name,
                    factor=unchanged + factor,
                    low=None if low is None else unchanged + low,
                    high=None if high is None else unchanged + high,
                    verdict=verdict,
                    is_share=metric(name).is_share,
                )
            )
    return tuple(sorted(levers, key=lambda each: -each.factor))


def by_stage(rows: Iterable[SweepRow]) -> list[list[SweepRow]]:
    """Only rows of one stage are compared: the tables, in their order."""
    return [list(stage) for _, stage in groupby(rows, key=attrgetter("stage"))]


def known_of(look_at: Sequence[str], rows: Sequence[SweepRow]) -> list[str]:
    """Those figures that at least one of these rows knows: the columns."""
    return [name for name in look_at if any(row.figure(name) is not None for row in rows)]


# --- in words ------------------------------------------------------------------------------------------


def change_in_words(value: float) -> str:
    """A relative difference as `+191 %`, `-4.2 %`; from tenfold on as `11.3x`."""
    percent = 100 * value
    if value >= 9:
        return f"{digits(1 + value)}x"
    places = 0 if abs(percent) >= 9.95 else 1
    return f"{percent:+.{places}f} %"


def points(value: float) -> str:
    """A difference of two shares, in percentage points."""
    return f"{100 * value:+.1f} points"


def difference_in_words(one: Compared | None) -> str:
    """`+191 % (+185 to +197)`, or that none is shown; of no comparison nothing."""
    if one is None:
        return ""
    if one.difference is None:
        return UNKNOWN
    words = points if metric(one.metric).is_share else change_in_words
    if one.low is None or one.high is None:
        return f"{words(one.difference)}, one block: no interval"
    if one.low == one.high == 0:
        return NO_DIFFERENCE
    found = NO_DIFFERENCE if one.verdict == NO_DIFFERENCE else words(one.difference)
    return f"{found} ({_bounds(words(one.low), words(one.high))})"


def _bounds(low: str, high: str) -> str:
    """`+185 to +197 %`: a unit that both have stands once."""
    for unit in (" %", " points"):
        if low.endswith(unit) and high.endswith(unit):
            return f"{low.removesuffix(unit)} to {high}"
    return f"{low} to {high}"


def progression(rows: Sequence[SweepRow], name: str) -> str | None:
    """`1,070 -> 1,211 (+13 %) -> 3,114 (+191 %)`: the first metric of one stage, in the order of the sweep."""
    words = points if metric(name).is_share else change_in_words
    parts = []
    for row in rows:
        value, compared = row.figure(name), row.of(name)
        if row.status != "measured" or value is None:
            continue
        part = figure(name, value)
        if compared is not None and compared.difference is not None:
            is_none = compared.verdict == NO_DIFFERENCE
            part += f" ({NO_DIFFERENCE if is_none else words(compared.difference)})"
        parts.append(part)
    return " -> ".join(parts) if len(parts) > 1 else None


def lever_in_words(one: Moved, name: str) -> str:
    """How far one lever moved the figure: a factor, or points of a share; and the interval, if there is one."""
    title = metric(name).title
    if one.verdict == NO_DIFFERENCE:
        return f"{one.lever}: {NO_DIFFERENCE} in {title} between its positions"
    words = f"{100 * one.factor:.1f} points" if one.is_share else f"{digits(one.factor)}x"
    if one.low is not None and one.high is not None:
        bound = points if one.is_share else digits
        words += f" ({_bounds(bound(one.low), bound(one.high))})"
    unsure = ", from one block" if one.verdict == "not known" else ""
    return f"{one.lever}: {words} in {title}, {one.best} against {one.worst}{unsure}"
