"""Before and after: is B better than A, worse, or is no difference shown? Answers of two runs -> rows. No clock.

A host's answers in a run are a row of cells: what came in each second of a blast, or in each wave of a bench.

A figure is taken of all the cells that both sides have, and how sure the difference is by stats.spread. A verdict asks for
more than an interval without 0: all of it must lie beyond 2 % of A's figure (error rates: beyond a tenth of a point), for
what stays the same during a run (a clock, a temperature, a neighbour) moves all of its blocks alike, and can't be seen
in them. Each row is 95 % sure on its own: of many rows of equal servers, without that margin, one in twenty would accuse.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from toolkit.records import Run
from toolkit.stats import ALPHA, LEAST_BLOCKS, at_least, half_interval, of_difference, spread
from toolkit.tuning.cells import Cell, cells_of_tallies, cells_of_waves, summed
from toolkit.tuning.figures import METRICS

if TYPE_CHECKING:
    from toolkit.store import Store

Verdict = Literal["better", "worse", "no difference shown"]

RATES = ("rps", "output_tokens_per_s")
PERCENTILES = ("ttft_p50_ms", "ttft_p95_ms", "e2e_p50_ms", "e2e_p95_ms", "tpot_p50_ms")
COMPARED = (*RATES, *PERCENTILES, "error_rate")
"""The metrics, in the order of the table."""
PERCENTILE_ANSWERS = {0.5: 10, 0.95: 40}
"""Answers that a block needs for a percentile: two of 40 lie beyond the 95th."""
LEAST_SHARE = 0.02
"""Of A's figure; a smaller difference is called none."""
LEAST_ERROR_RATE = 0.001
LEAST_SILENT, SILENT_SHARE = 3, 0.1
"""Cells in which one side answered nothing and the other did; of a slow host a few are chance."""
MOST_CELLS = 120
"""A longer row is merged: stats.spread cuts no finer."""


PLAN = {
    "bench": (
        *("profile", "concurrency", "rate", "arrival", "levels", "stream_share"),
        *("max_tokens", "temperature", "ignore_eos", "sameness", "nonce_place", "twin_share"),
        "sequential",
    ),
    "blast": (
        *("profile", "users_per_host", "spawn_rate", "canaries", "mix", "max_tokens", "rate"),
        *("request_timeout_s", "non_neutral"),
    ),
}
"""Settings that must be equal. Not the model's name, which is what many comparisons are about; not how long it took or how
many requests there were, as only what both have is compared."""


# --- two sides ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One host in one run."""

    run: Run
    """Its settings are the plan: equal ones compare."""
    name: str
    cells: Mapping[int, Cell]
    """By place in the run: the second from its start, or the wave."""


def side_of(store: "Store", run: Run, name: str) -> Side:
    """One host's part of a stored run of `bench` or `blast`."""
    requests = store.shots(run.id, name=name)
    if run.verb == "bench":
        return Side(run=run, name=name, cells=dict(enumerate(cells_of_waves(requests))))
    # seconds in which the load generator was at work, and was not the limit; the first and the last are cut
    loader = [second for _, second in store.loader_seconds(run.id)]
    limited = {second.at_s for second in loader if second.limited}
    tallies = store.tallies(run.id, name=name, kind="ranked")
    known = {second.at_s for second in loader}
    if not known and tallies:
        known = set(range(tallies[0].at_s, tallies[-1].at_s + 1))
    first, last = min(known, default=0), max(known, default=0)
    seconds = [at_s for at_s in sorted(known - limited) if first < at_s < last]
    places = (at_s - first for at_s in seconds)
    cells = dict(zip(places, cells_of_tallies(tallies, seconds, requests), strict=True))
    return Side(run=run, name=name, cells=cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedMetric:
    """One metric; the first seven are the keys that `toolkit compare --json` promises."""

    metric: str
    a: float | None
    b: float | None
    difference: float | None = None
    """b - a."""
    low: float | None = None
    """95 % confidence interval of the difference; None: too little data."""
    high: float | None = None
    verdict: Verdict = "no difference shown"
    """Of B, seen from A."""
    change: float | None = None
    """difference / a."""
    blocks: int | None = None
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


def compare(a: Side, b: Side, *, least_share: float = LEAST_SHARE) -> Comparison:
    """Compare what both sides have; `least_share` is the smallest difference that is called one."""
    verbs, plans = (a.run.verb, b.run.verb), (a.run.plan, b.run.plan)
    reasons = []
    if verbs[0] != verbs[1]:
        reasons.append(f"A is a {verbs[0]}, B a {verbs[1]}")
    else:
        for name in PLAN[verbs[0]]:
            ours, theirs = (plan.get(name) for plan in plans)
            if ours != theirs:
                reasons.append(f"`{name}` is {_setting(ours)} in A and {_setting(theirs)} in B")
        for letter, side in (("A", a), ("B", b)):
            if side.run.client_ok is False:
                reasons.append(f"the measuring machine was the limit in {letter}")

    places = sorted(a.cells.keys() & b.cells.keys()) if verbs[0] == verbs[1] else []
    common = len(places)
    rows = [_Row([each.cells[place] for place in places or sorted(each.cells)]) for each in (a, b)]
    # equal plans with other seeds ask other prompts in another order: block j of the one is nothing to block j of the other
    seeds = [plan.get("seed") for plan in plans]
    paired = not reasons and seeds[0] == seeds[1] and common > 0

    what = "waves" if verbs[0] == "bench" else "seconds"
    notes = []
    if common and (len(a.cells) > common or len(b.cells) > common):
        notes.append(
            f"compared are the {common:,} {what} that both have; A has {len(a.cells):,}, B {len(b.cells):,}"
        )
    if seeds[0] != seeds[1] and verbs[0] == verbs[1]:
        drew = f"A drew with seed {_setting(seeds[0])}, B with {_setting(seeds[1])}"
        notes.append(f"{drew}: not paired")
    for letter, side, beside in (("A", a, b), ("B", b, a)):
        silent = sum(not side.cells[place].ok and beside.cells[place].ok > 0 for place in places)
        if silent >= LEAST_SILENT and silent > SILENT_SHARE * common:
            notes.append(
                f"{letter} answered nothing in {silent:,} of the {common:,} {what}: whether that happens again no interval knows"
            )
    return Comparison(
        a=a,
        b=b,
        rows=tuple(
            _compared(metric, *rows, paired=paired, least_share=least_share) for metric in COMPARED
        ),
        paired=paired,
        cells=common,
        not_comparable=tuple(reasons),
        notes=tuple(notes),
    )


def _setting(value: object) -> str:
    return "not set" if value is None else str(value)


# --- one metric ----------------------------------------------------------------------------------------


class _Row:
    """One side's cells; each way to cut them into stretches is worked out once for all metrics."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.whole = summed(cells)
        self.cells = _stretches(cells, MOST_CELLS)
        self._cuts: dict[int, list[Cell]] = {}

    def figures(self, metric: str, count: int) -> list[float] | None:
        """A metric in each of so many stretches; None where one of them knows none."""
        if count not in self._cuts:
            self._cuts[count] = _stretches(self.cells, count)
        found = [cell.figure(metric) for cell in self._cuts[count]]
        known = [value for value in found if value is not None]
        return known if len(known) == len(found) else None


def _stretches(cells: Sequence[Cell], count: int) -> list[Cell]:
    """At most so many stretches of neighbours, as equal as can be."""
    if len(cells) <= count:
        return list(cells)
    edges = [index * len(cells) // count for index in range(count + 1)]
    return [summed(cells[start:end]) for start, end in pairwise(edges)]


def _compared(
    metric: str, one: _Row, other: _Row, *, paired: bool, least_share: float
) -> ComparedMetric:
    before, after = one.whole.figure(metric), other.whole.figure(metric)
    if before is None or after is None:
        missing = [letter for letter, value in (("A", before), ("B", after)) if value is None]
        why = f"not known of {' and '.join(missing)}"
        return ComparedMetric(metric=metric, a=before, b=after, why=why)
    difference = after - before
    row = ComparedMetric(
        metric=metric,
        a=before,
        b=after,
        difference=difference,
        change=difference / before if before else None,
    )

    # into how many blocks each row may be cut so that each of them can tell the figure
    is_percentile, needed, answers = False, 1, []
    for side in (one, other):
        if sketch := side.whole.sketch_of(metric):
            is_percentile, needed = True, PERCENTILE_ANSWERS[sketch[1]]
        answers.append(sketch[0].count if sketch else side.whole.ended)
    most = [
        min(len(side.cells), count // needed)
        for side, count in zip((one, other), answers, strict=True)
    ]

    def differences(count: int) -> list[float] | None:
        early, late = one.figures(metric, count), other.figures(metric, count)
        if early is None or late is None:
            return None
        return [b - a for a, b in zip(early, late, strict=True)]

    if paired:
        found = spread(difference, differences, most=min(most))
    else:
        alone = spread(before, lambda count: one.figures(metric, count), most=most[0])
        beside = spread(after, lambda count: other.figures(metric, count), most=most[1])
        found = of_difference(alone, beside) if alone and beside else None
    if found is None:
        shortest = min(len(one.cells), len(other.cells))
        why = "in some part of the run one side answered nothing"
        if min(answers) < LEAST_BLOCKS * needed:
            why = f"{min(answers):,} answers of one side, and {LEAST_BLOCKS * needed} are needed"
        elif shortest < LEAST_BLOCKS:
            why = f"{shortest} blocks of one side, and {LEAST_BLOCKS} are needed"
        return replace(row, why=f"too little data: {why}")

    # uncertain though all blocks agree: a percentile is known within 1 %, evenly spread; and no error among n requests is no
    # proof of an error rate of 0, so one success and one failure are added to each side (Agresti and Caffo 2000)
    variance = 0.0
    if is_percentile:
        variance = sum((value * ALPHA) ** 2 / 3 for value in (before, after))
    elif metric == "error_rate":
        for side in (one, other):
            requests = side.whole.ended + 2
            share = (side.whole.errors + 1) / requests
            variance += share * (1 - share) / requests
    found = at_least(found, variance)

    half = half_interval(found)
    low, high = difference - half, difference + half
    least = LEAST_ERROR_RATE if metric == "error_rate" else least_share * abs(before)
    verdict: Verdict = "no difference shown"
    if low > least or high < -least:
        verdict = "better" if (low > least) == METRICS[metric].more_is_better else "worse"
    return replace(row, low=low, high=high, verdict=verdict, blocks=found.blocks)
