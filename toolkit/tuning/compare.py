"""Before and after: is B better than A, worse, or is no difference shown? Figures of two runs -> rows. No store, no clock.

A figure is taken of all the cells that both sides have, and how sure the difference is by stats.spread. A verdict asks for
more than an interval without 0: all of it must lie beyond 2 % of A's figure (error rates: beyond a tenth of a point), for
what stays the same during a run (a clock, a temperature, a neighbour) moves all of its blocks alike, and can't be seen
in them. Each row is 95 % sure on its own: of many rows of equal servers, without that margin, one in twenty would accuse.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from toolkit.stats import (
    ALPHA,
    LEAST_BLOCKS,
    Sketch,
    Spread,
    at_least,
    half_interval,
    of_difference,
    spread,
)
from toolkit.tuning.cells import MOST_CELLS, Cell, stretches, summed

Verdict = Literal["better", "worse", "no difference shown"]

LEAST_SHARE = 0.02
"""Of A's figure; a smaller difference is called none."""
LEAST_ERROR_RATE = 0.001
LEAST_SILENT, SILENT_SHARE = 3, 0.1
"""Cells in which one side answered nothing and the other did; of a slow host a few are chance."""
AT_LEAST = {50: 10, 95: 40}
"""Answers that a block needs for a percentile: two of 40 lie beyond the 95th."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One host in one run."""

    run: str
    name: str
    cells: Mapping[int, Cell]
    """By place in the run: the second from its start, or the wave."""
    plan: Mapping[str, Any]
    """What was asked for, by name; equal plans compare."""
    verb: str
    seed: int | None = None
    """Equal plans with other seeds compare, but not request by request."""
    client_ok: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedMetric:
    """One metric; the first six are the keys that `toolkit compare --json` promises."""

    metric: str
    a: float | None
    b: float | None
    difference: float | None
    """b - a."""
    low: float | None
    """95 % confidence interval of the difference; None: too little data."""
    high: float | None
    verdict: Verdict
    """Of B, seen from A."""
    change: float | None
    """difference / a."""
    blocks: int | None
    """That the interval rests on."""
    why: str | None = None
    """Why nothing could be shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two sides, metric by metric."""

    a: Side
    b: Side
    rows: tuple[ComparedMetric, ...]
    paired: bool
    """Block by block; False: each side on its own."""
    cells: int
    """Seconds, or waves, that both have and that were compared."""
    not_comparable: tuple[str, ...]
    """Why the two must not be compared; the rows stand all the same."""
    notes: tuple[str, ...]

    @property
    def comparable(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.not_comparable


class _Cells:
    """One side's row of cells; each way to cut it is worked out once for all metrics."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.whole = summed(cells)
        self._cells = stretches(cells, MOST_CELLS)
        self._cuts: dict[int, list[Cell]] = {}

    def __len__(self) -> int:
        return len(self._cells)

    def cut(self, count: int) -> list[Cell]:
        """So many stretches."""
        if count not in self._cuts:
            self._cuts[count] = stretches(self._cells, count)
        return self._cuts[count]


Figure = Callable[[Cell], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ComparedFigure:
    name: str
    of: Figure
    more_is_better: bool
    answers: int
    """Answers a block needs."""
    sketch: Callable[[Cell], Sketch] | None = None


def _quantile(part: str, percent: int) -> _ComparedFigure:
    def sketch(cell: Cell) -> Sketch:
        found: Sketch = getattr(cell, part)
        return found

    def of(cell: Cell) -> float | None:
        return sketch(cell).quantile(percent / 100)

    return _ComparedFigure(
        name=f"{part}_p{percent}_ms",
        of=of,
        more_is_better=False,
        answers=AT_LEAST[percent],
        sketch=sketch,
    )


def _rps(cell: Cell) -> float | None:
    return cell.ok / cell.elapsed_s if cell.elapsed_s > 0 else None


def _tokens_per_s(cell: Cell) -> float | None:
    return cell.output_tokens / cell.elapsed_s if cell.elapsed_s > 0 else None


def _error_rate(cell: Cell) -> float | None:
    asked = cell.ok + cell.errors
    return cell.errors / asked if asked else None


METRICS = (
    _ComparedFigure(name="rps", of=_rps, more_is_better=True, answers=1),
    _ComparedFigure(name="output_tokens_per_s", of=_tokens_per_s, more_is_better=True, answers=1),
    _quantile("ttft", 50),
    _quantile("ttft", 95),
    _quantile("e2e", 50),
    _quantile("e2e", 95),
    _quantile("tpot", 50),
    _ComparedFigure(name="error_rate", of=_error_rate, more_is_better=False, answers=1),
)


def compare(a: Side, b: Side, *, least_share: float = LEAST_SHARE) -> Comparison:
    """Compare what both sides have; `least_share` is the smallest difference that is called one."""
    reasons = not_comparable(a, b)
    # other prompts in another order: block j of the one is nothing to block j of the other
    paired = not reasons and a.seed == b.seed
    places = sorted(a.cells.keys() & b.cells.keys()) if a.verb == b.verb else []
    if places:
        sides = _row(a, places), _row(b, places)
    else:
        paired, sides = False, (_row(a, sorted(a.cells)), _row(b, sorted(b.cells)))
    rows = [_compared(metric, sides, paired=paired, least_share=least_share) for metric in METRICS]
    return Comparison(
        a=a,
        b=b,
        rows=tuple(rows),
        paired=paired,
        cells=len(places),
        not_comparable=reasons,
        notes=_notes(a, b, places, paired=paired),
    )


def _row(side: Side, places: Sequence[int]) -> _Cells:
    return _Cells([side.cells[place] for place in places])


# --- may they be compared? --------------------------------------------------------------------------


def not_comparable(a: Side, b: Side) -> tuple[str, ...]:
    """Why not, a sentence each; nothing where the two did the same."""
    if a.verb != b.verb:
        return (f"A is a {a.verb}, B a {b.verb}",)
    names = [*a.plan, *(name for name in b.plan if name not in a.plan)]
    reasons = [
        f"`{name}` is {_said(a.plan.get(name))} in A and {_said(b.plan.get(name))} in B"
        for name in names
        if a.plan.get(name) != b.plan.get(name)
    ]
    for letter, side in (("A", a), ("B", b)):
        if side.client_ok is False:
            reasons.append(f"the measuring machine was the limit in {letter}")
    return tuple(reasons)


def _said(value: object) -> str:
    return "not set" if value is None else str(value)


def _notes(a: Side, b: Side, places: Sequence[int], *, paired: bool) -> tuple[str, ...]:
    what = "waves" if a.verb == "bench" else "seconds"
    notes, common = [], len(places)
    if common and (len(a.cells) > common or len(b.cells) > common):
        notes.append(
            f"compared are the {common:,} {what} that both have; A has {len(a.cells):,}, B {len(b.cells):,}"
        )
    if not paired and a.seed != b.seed and a.verb == b.verb:
        notes.append(f"A drew with seed {_said(a.seed)}, B with {_said(b.seed)}: not paired")
    for letter, side, other in (("A", a, b), ("B", b, a)):
        silent = sum(not side.cells[place].ok and other.cells[place].ok > 0 for place in places)
        if silent >= LEAST_SILENT and silent > SILENT_SHARE * common:
            notes.append(
                f"{letter} answered nothing in {silent:,} of the {common:,} {what}: whether that happens again no interval knows"
            )
    return tuple(notes)


# --- one metric ----------------------------------------------------------------------------------------


def _compared(
    metric: _ComparedFigure, sides: tuple[_Cells, _Cells], *, paired: bool, least_share: float
) -> ComparedMetric:
    wholes = sides[0].whole, sides[1].whole
    before, after = (metric.of(whole) for whole in wholes)
    if before is None or after is None:
        missing = [
            letter for letter, value in zip("AB", (before, after), strict=True) if value is None
        ]
        return _untold(metric, before, after, f"{' and '.join(missing)} told none")
    found = _spread(metric, sides, paired=paired)
    if found is None:
        return _untold(metric, before, after, _too_little(metric, sides))
    found = at_least(found, _least_variance(metric, wholes))
    difference, half = after - before, half_interval(found)
    low, high = difference - half, difference + half
    least = LEAST_ERROR_RATE if metric.name == "error_rate" else least_share * abs(before)
    return ComparedMetric(
        metric=metric.name,
        a=before,
        b=after,
        difference=difference,
        low=low,
        high=high,
        verdict=_verdict(low, high, least, more_is_better=metric.more_is_better),
        change=difference / before if before else None,
        blocks=found.blocks,
    )


def _untold(metric: _ComparedFigure, a: float | None, b: float | None, why: str) -> ComparedMetric:
    difference = None if a is None or b is None else b - a
    return ComparedMetric(
        metric=metric.name,
        a=a,
        b=b,
        difference=difference,
        low=None,
        high=None,
        verdict="no difference shown",
        change=difference / a if a and difference is not None else None,
        blocks=None,
        why=why,
    )


def _verdict(low: float, high: float, least: float, *, more_is_better: bool) -> Verdict:
    if low <= least and high >= -least:
        return "no difference shown"
    return "better" if (low > least) == more_is_better else "worse"


def _spread(
    metric: _ComparedFigure, sides: tuple[_Cells, _Cells], *, paired: bool
) -> Spread | None:
    one, other = sides
    if not paired:
        alone, beside = _own_spread(metric, one), _own_spread(metric, other)
        return None if alone is None or beside is None else of_difference(alone, beside)

    def differences(count: int) -> list[float] | None:
        early, late = _figures(metric, one.cut(count)), _figures(metric, other.cut(count))
        if early is None or late is None:
            return None
        return [after - before for before, after in zip(early, late, strict=True)]

    before, after = metric.of(one.whole) or 0.0, metric.of(other.whole) or 0.0
    return spread(after - before, differences, most=min(_most(metric, each) for each in sides))


def _own_spread(metric: _ComparedFigure, side: _Cells) -> Spread | None:
    return spread(
        metric.of(side.whole) or 0.0,
        lambda count: _figures(metric, side.cut(count)),
        most=_most(metric, side),
    )


def _figures(metric: _ComparedFigure, cells: Sequence[Cell]) -> list[float] | None:
    found = [metric.of(cell) for cell in cells]
    known = [value for value in found if value is not None]
    return known if len(known) == len(found) else None


def _answers(metric: _ComparedFigure, whole: Cell) -> int:
    if metric.sketch is not None:
        return metric.sketch(whole).count
    return whole.ok + whole.errors


def _most(metric: _ComparedFigure, side: _Cells) -> int:
    """Into how many blocks a row may be cut so that each can tell the figure."""
    return min(len(side), _answers(metric, side.whole) // metric.answers)


def _least_variance(metric: _ComparedFigure, wholes: tuple[Cell, Cell]) -> float:
    """What is uncertain though all blocks agree.

    A percentile is told within 1 %, evenly spread. No error among n requests is no proof of an error rate of 0: one
    success and one failure are added to each side (Agresti and Caffo 2000).
    """
    if metric.sketch is not None:
        return sum(((metric.of(whole) or 0.0) * ALPHA) ** 2 / 3 for whole in wholes)
    if metric.name != "error_rate":
        return 0.0
    total = 0.0
    for whole in wholes:
        asked = whole.ok + whole.errors + 2
        share = (whole.errors + 1) / asked
        total += share * (1 - share) / asked
    return total


def _too_little(metric: _ComparedFigure, sides: tuple[_Cells, _Cells]) -> str:
    answers = min(_answers(metric, side.whole) for side in sides)
    needed = LEAST_BLOCKS * metric.answers
    if answers < needed:
        return f"too little data: {answers:,} answers of one side, and {needed:,} are needed"
    shortest = min(map(len, sides))
    if shortest < LEAST_BLOCKS:
        return f"too little data: {shortest} blocks of one side, and {LEAST_BLOCKS} are needed"
    return "too little data: in some part of the run one side answered nothing"
