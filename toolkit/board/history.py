"""A run in even steps: counts and latencies of every host in each step, and what is drawn from them. No store, no clock.

A step is a slab (window.py): what all parts of its seconds add up to. A window that begins and ends with a step is the
sum of its slabs, equal to a recount of its parts, bit for bit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from toolkit.board.ranking import Figures, places
from toolkit.board.standings import RankBy
from toolkit.board.window import (
    COUNTS,
    E2E,
    TTFT,
    Integers,
    Slab,
    Totals,
    bucket_edges_ms,
    bucket_values_ms,
    quantiles_ms,
)
from toolkit.records import Part
from toolkit.stats import BUCKETS

KEPT_LINES = 32
"""Kinds of ranking that are remembered: 0.2 MB each after two hours of 20 hosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Every host's rank at even moments; None while it had none."""

    times: tuple[int, ...]
    """The windows' last seconds."""
    ranks: Mapping[str, tuple[int | None, ...]]
    """Host name -> its rank at each of the times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSeries:
    """One host's figures in even steps, each on its own, not over a window."""

    name: str
    step_s: int
    times: tuple[int, ...]
    """The steps' first seconds."""
    rps: tuple[float, ...]
    output_tokens_per_s: tuple[float, ...]
    ok: tuple[int, ...]
    errors: tuple[int, ...]
    p50_ms: tuple[float | None, ...]
    p95_ms: tuple[float | None, ...]
    ttft_p50_ms: tuple[float | None, ...]
    ttft_p95_ms: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """How many of one host's answers took how long, in even steps."""

    name: str
    step_s: int
    times: tuple[int, ...]
    """The steps' first seconds."""
    edges_ms: tuple[float, ...]
    """Of the latency buckets, ascending: one more than there are buckets."""
    counts: tuple[tuple[int, ...], ...]
    """For each of the times, the answers in each bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Density:
    """How one host's latencies spread over a window; only buckets between its fastest and its slowest answer."""

    name: str
    metric: str
    values_ms: tuple[float, ...]
    """The buckets' values, ascending; each is 2 % above the one before."""
    counts: tuple[int, ...]


def figures(
    counts: Sequence[int], quantiles: Sequence[Sequence[float | None]], counted_s: int
) -> Figures:
    """Name the columns of one host: its counts, and (p50, p95) of E2E and of TTFT."""
    return Figures(
        counted_s=counted_s,
        **dict(zip(COUNTS, counts, strict=True)),
        p50_ms=quantiles[E2E][0],
        p95_ms=quantiles[E2E][1],
        ttft_p50_ms=quantiles[TTFT][0],
        ttft_p95_ms=quantiles[TTFT][1],
    )


def all_figures(totals: Totals, counted_s: int) -> list[Figures]:
    """The figures of every host."""
    quantiles = totals.quantiles_ms(50, 95)
    return [
        figures(counts, found, counted_s)
        for counts, found in zip(totals.counts.tolist(), quantiles, strict=True)
    ]


class Steps:
    """Slabs of every step of a run since its start; parts may come late, but each only once."""

    def __init__(self, hosts: Sequence[int], *, start_s: int, step_s: int) -> None:
        """Begin empty; hosts are rows in this order."""
        self.hosts = hosts
        self.start_s = start_s
        self.step_s = step_s
        self._slabs: dict[int, Slab] = {}
        self._lines: dict[tuple[object, ...], list[list[int | None]]] = {}
        """What ranks() has told so far: for each step, each host's rank."""

    @property
    def nbytes(self) -> int:
        """Memory of the slabs."""
        return sum(slab.nbytes for slab in self._slabs.values())

    def add(self, parts: Sequence[Part]) -> None:
        """Add parts; what was drawn of their steps and later is drawn anew."""
        of_step: dict[int, list[Part]] = {}
        for part in parts:
            of_step.setdefault((part.at_s - self.start_s) // self.step_s, []).append(part)
        for step, found in of_step.items():
            totals = Totals(self.hosts)
            if step in self._slabs:
                totals.add_slab(self._slabs[step])
            totals.add(found)
            self._slabs[step] = totals.slab()
        if of_step:
            first = max(0, min(of_step))
            for lines in self._lines.values():
                del lines[first:]

    def complete(self, end_s: int) -> int:
        """How many steps have ended when `end_s` is the last second."""
        return max(0, (end_s + 1 - self.start_s) // self.step_s)

    def first_s(self, step: int) -> int:
        """A step's first second."""
        return self.start_s + step * self.step_s

    def ranks(
        self,
        *,
        window_s: int,
        rank_by: RankBy,
        rows: Sequence[int],
        names: Sequence[str],
        end_s: int,
    ) -> Ranks:
        """Rank the hosts of `rows`, who are called `names`, at the end of every complete step.

        The window is rounded to whole steps.
        """
        steps, width = self.complete(end_s), max(1, round(window_s / self.step_s))
        key = (width, rank_by, tuple(rows))
        lines = self._lines.pop(key, [])
        self._lines[key] = lines
        if len(self._lines) > KEPT_LINES:
            del self._lines[next(iter(self._lines))]
        lines += self._ranked(len(lines), steps, width, rank_by, rows)
        return Ranks(
            times=tuple(self.first_s(step + 1) - 1 for step in range(steps)),
            ranks={
                name: tuple(line[place] for line in lines[:steps])
                for place, name in enumerate(names)
            },
        )

    def _ranked(
        self, first: int, steps: int, width: int, rank_by: RankBy, rows: Sequence[int]
    ) -> Iterator[list[int | None]]:
        """Each host's rank at the end of the steps from `first` on: a window that moves from step to step."""
        if first >= steps:
            return
        totals = Totals(self.hosts)
        for step in range(max(0, first - width), steps):
            if step in self._slabs:
                totals.add_slab(self._slabs[step])
            if step < first:
                continue
            left = step - width
            if left >= 0 and left in self._slabs:
                totals.add_slab(self._slabs[left], -1)
            everyone = all_figures(totals, min(width, step + 1) * self.step_s)
            yield [place.rank for place in places([everyone[row] for row in rows], rank_by)]

    def series(self, row: int, name: str, *, first: int, after: int) -> HostSeries:
        """One host's figures in the steps from `first` to before `after`."""
        steps = range(first, after)
        counts = [self._counts(step, row) for step in steps]
        seen = [
            figures(of_step, found, self.step_s)
            for of_step, found in zip(
                counts, quantiles_ms(self._dense(row, steps), (50, 95)), strict=True
            )
        ]
        return HostSeries(
            name=name,
            step_s=self.step_s,
            times=tuple(map(self.first_s, steps)),
            rps=tuple(each.rps for each in seen),
            output_tokens_per_s=tuple(each.output_tokens_per_s for each in seen),
            ok=tuple(each.ok for each in seen),
            errors=tuple(each.errors for each in seen),
            p50_ms=tuple(each.p50_ms for each in seen),
            p95_ms=tuple(each.p95_ms for each in seen),
            ttft_p50_ms=tuple(each.ttft_p50_ms for each in seen),
            ttft_p95_ms=tuple(each.ttft_p95_ms for each in seen),
        )

    def rates(self, row: int, *, first: int, after: int) -> list[float]:
        """One host's ok requests a second in the steps from `first` to before `after`."""
        ok = COUNTS.index("ok")
        return [self._counts(step, row)[ok] / self.step_s for step in range(first, after)]

    def heat(self, row: int, name: str, *, first: int, after: int) -> Heat:
        """One host's E2E in the steps from `first` to before `after`, between its fastest and its slowest answer."""
        steps = range(first, after)
        dense = self._dense(row, steps)[:, E2E]
        low, high = _filled(dense.sum(axis=0))
        return Heat(
            name=name,
            step_s=self.step_s,
            times=tuple(map(self.first_s, steps)),
            edges_ms=tuple(bucket_edges_ms()[low : high + 1].tolist()) if high > low else (),
            counts=tuple(tuple(of_step) for of_step in dense[:, low:high].tolist()),
        )

    def _counts(self, step: int, row: int) -> list[int]:
        slab = self._slabs.get(step)
        counts: list[int] = [0] * len(COUNTS) if slab is None else slab.counts[row].tolist()
        return counts

    def _dense(self, row: int, steps: Sequence[int]) -> Integers:
        """One host's histograms: steps x metrics x buckets."""
        width = 2 * BUCKETS
        dense = np.zeros((len(steps), width), dtype=np.int64)
        for place, step in enumerate(steps):
            slab = self._slabs.get(step)
            if slab is not None:
                low, high = np.searchsorted(slab.cells, (row * width, (row + 1) * width))
                dense[place, slab.cells[low:high] - row * width] = slab.values[low:high]
        return dense.reshape(len(steps), 2, BUCKETS)


def density(name: str, metric: str, histogram: Integers) -> Density:
    """How one host's latencies spread."""
    low, high = _filled(histogram)
    return Density(
        name=name,
        metric=metric,
        values_ms=tuple(bucket_values_ms()[low:high].tolist()),
        counts=tuple(histogram[low:high].tolist()),
    )


def _filled(histogram: Integers) -> tuple[int, int]:
    """The first bucket that holds any, and the one after the last."""
    found = np.flatnonzero(histogram)
    return (int(found[0]), int(found[-1]) + 1) if len(found) else (0, 0)
