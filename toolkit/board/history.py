"""A run in even steps: counts and latencies of every host in each step, and what is drawn from them. No store, no clock.

A step is a slab (window.py): what all parts of its seconds add up to. A window that begins and ends with a step is the
sum of its slabs, equal to a recount of its parts, bit for bit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from toolkit.board.ranking import Figures, figures, places
from toolkit.board.standings import RankBy
from toolkit.board.window import (
    COUNTS,
    METRICS,
    Integers,
    Slab,
    Totals,
    bucket_edges_ms,
    bucket_values_ms,
)
from toolkit.records import Part
from toolkit.stats import BUCKETS

KEPT_RANKINGS = 32
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
    times: tuple[int, ...]
    """The steps' first seconds."""
    figures: tuple[Figures, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """How many of one host's answers took how long, in even steps."""

    name: str
    step_s: int
    times: tuple[int, ...]
    """The steps' first seconds."""
    edges_ms: tuple[float, ...]
    """Of the latency buckets between its fastest and its slowest answer, ascending: one more than there are buckets."""
    counts: tuple[tuple[int, ...], ...]
    """For each of the times, the answers in each bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Density:
    """How one host's latencies spread over a window; only buckets between its fastest and its slowest answer."""

    name: str
    values_ms: tuple[float, ...]
    """The buckets' values, ascending; each is 2 % above the one before."""
    counts: tuple[int, ...]


class Steps:
    """Slabs of every step of a run since its start; parts may come late, but each only once."""

    def __init__(self, hosts: Sequence[int], *, start_s: int, step_s: int) -> None:
        """Begin empty; hosts are rows in this order."""
        self.hosts = hosts
        self.start_s = start_s
        self.step_s = step_s
        self.slabs: dict[int, Slab] = {}
        self._rankings: dict[tuple[object, ...], list[list[int]]] = {}
        """What ranks() has found so far: for each step, each host's rank."""

    def add(self, parts: Sequence[Part]) -> None:
        """Add parts; what was ranked of their steps and later is ranked anew."""
        of_step: dict[int, list[Part]] = {}
        for part in parts:
            of_step.setdefault((part.at_s - self.start_s) // self.step_s, []).append(part)
        for step, found in of_step.items():
            totals = Totals(self.hosts)
            if step in self.slabs:
                totals.add_slab(self.slabs[step])
            totals.add(found)
            self.slabs[step] = totals.slab()
        if of_step:
            first = max(0, min(of_step))
            for ranking in self._rankings.values():
                del ranking[first:]

    def over(self, to_s: int) -> range:
        """The steps that are over when `to_s` is the last second."""
        return range(max(0, (to_s + 1 - self.start_s) // self.step_s))

    def times(self, steps: range) -> tuple[int, ...]:
        """The steps' first seconds."""
        return tuple(self.start_s + step * self.step_s for step in steps)

    def ranks(self, window_s: int, rank_by: RankBy, rows: Mapping[int, str], *, to_s: int) -> Ranks:
        """Rank the hosts of `rows` (row -> name) at the end of every complete step; the window is rounded to whole steps."""
        steps, width = self.over(to_s), max(1, round(window_s / self.step_s))
        key = (width, rank_by, tuple(rows))
        known = self._rankings.pop(key, [])
        self._rankings[key] = known
        if len(self._rankings) > KEPT_RANKINGS:
            del self._rankings[next(iter(self._rankings))]

        # a window that moves from step to step, filled with what lies before the first new one
        totals, first = Totals(self.hosts), len(known)
        for step in range(max(0, first - width), len(steps)) if first < len(steps) else ():
            if step in self.slabs:
                totals.add_slab(self.slabs[step])
            if step >= first:
                if step - width >= 0 and step - width in self.slabs:
                    totals.add_slab(self.slabs[step - width], -1)
                lived_s = min(width, step + 1) * self.step_s
                everyone = figures(totals.counts, totals.histograms, lived_s)
                known.append([at.rank for at in places([everyone[row] for row in rows], rank_by)])
        return Ranks(
            times=tuple(first_s + self.step_s - 1 for first_s in self.times(steps)),
            ranks={
                name: tuple(ranks[place] for ranks in known[: len(steps)])
                for place, name in enumerate(rows.values())
            },
        )

    def counts(self, row: int, steps: range) -> Integers:
        """One host's counts: steps x COUNTS."""
        counts = np.zeros((len(steps), len(COUNTS)), dtype=np.int64)
        for place, step in enumerate(steps):
            if step in self.slabs:
                counts[place] = self.slabs[step].counts[row]
        return counts

    def histograms(self, row: int, steps: range) -> Integers:
        """One host's histograms: steps x metrics x buckets."""
        width = METRICS * BUCKETS
        dense = np.zeros((len(steps), width), dtype=np.int64)
        for place, step in enumerate(steps):
            slab = self.slabs.get(step)
            if slab is not None:
                low, high = np.searchsorted(slab.cells, (row * width, (row + 1) * width))
                dense[place, slab.cells[low:high] - row * width] = slab.values[low:high]
        return dense.reshape(len(steps), METRICS, BUCKETS)


def heat(name: str, step_s: int, times: tuple[int, ...], histograms: Integers) -> Heat:
    """How one host's latencies spread in each step; `histograms` are steps x buckets."""
    low, high = _filled(histograms.sum(axis=0))
    return Heat(
        name=name,
        step_s=step_s,
        times=times,
        edges_ms=tuple(bucket_edges_ms()[low : high + 1].tolist()) if high > low else (),
        counts=tuple(map(tuple, histograms[:, low:high].tolist())),
    )


def density(name: str, histogram: Integers) -> Density:
    """How one host's latencies spread."""
    low, high = _filled(histogram)
    return Density(
        name=name,
        values_ms=tuple(bucket_values_ms()[low:high].tolist()),
        counts=tuple(histogram[low:high].tolist()),
    )


def _filled(histogram: Integers) -> tuple[int, int]:
    """The first bucket that holds any, and the one after the last."""
    found = np.flatnonzero(histogram)
    return (int(found[0]), int(found[-1]) + 1) if len(found) else (0, 0)
