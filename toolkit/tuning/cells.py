"""A host's answers in a run -> a row of cells: what came in each second of a blast, or in each wave of a bench.

Sums and histograms only, which merge: stretches of any length are sums of cells. No store, no clock.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from toolkit.records import Shot, Tally
from toolkit.stats import Sketch

MOST_CELLS = 120
"""A longer row is merged: stats.spread cuts no finer."""


@dataclass(slots=True, kw_only=True)
class Cell:
    """What happened in one stretch of a run."""

    elapsed_s: float = 0.0
    ok: int = 0
    errors: int = 0
    output_tokens: int = 0
    e2e: Sketch = field(default_factory=Sketch)
    ttft: Sketch = field(default_factory=Sketch)
    tpot: Sketch = field(default_factory=Sketch)

    def merge(self, other: "Cell") -> None:
        """Add all that the other one holds."""
        self.elapsed_s += other.elapsed_s
        self.ok += other.ok
        self.errors += other.errors
        self.output_tokens += other.output_tokens
        self.e2e.merge(other.e2e)
        self.ttft.merge(other.ttft)
        self.tpot.merge(other.tpot)


def summed(cells: Iterable[Cell]) -> Cell:
    """One cell of all these."""
    whole = Cell()
    for cell in cells:
        whole.merge(cell)
    return whole


def stretches(cells: Sequence[Cell], count: int) -> list[Cell]:
    """Merge a row into so many stretches of neighbours, as equal as can be; a shorter row stays as it is."""
    if len(cells) <= count:
        return list(cells)
    edges = [index * len(cells) // count for index in range(count + 1)]
    return [summed(cells[start:end]) for start, end in pairwise(edges)]


def cells_of_tallies(
    tallies: Iterable[Tally],
    seconds: Sequence[int],
    shots: Iterable[Shot] = (),
) -> list[Cell]:
    """A cell for each of these seconds, of a host's ranked tallies; one without a tally answered nothing.

    Tallies know no time per token: it comes from the canaries among `shots`, which are few.
    """
    cells = {second: Cell(elapsed_s=1.0) for second in seconds}
    for tally in tallies:
        cell = cells.get(tally.at_s)
        if cell is not None:
            _add_tally(cell, tally)
    for shot in shots:
        cell = cells.get(math.floor(_ended_at(shot)))
        if cell is not None and shot.ok and shot.kind == "unique":
            _add(cell.tpot, shot.tpot_ms)
    return [cells[second] for second in seconds]


def _add_tally(cell: Cell, tally: Tally) -> None:
    cell.ok += tally.ok
    cell.errors += tally.errors
    cell.output_tokens += tally.output_tokens
    cell.e2e.merge(Sketch.from_bytes(tally.e2e))
    cell.ttft.merge(Sketch.from_bytes(tally.ttft))


def seconds_of(known: Collection[int], skipped: Collection[int]) -> Mapping[int, int]:
    """Place in the run, from 0 -> second, of the known ones; the first and the last, which are cut, are left out."""
    if len(known) < 3:
        return {}
    first, last = min(known), max(known)
    return {
        second - first: second
        for second in sorted(known)
        if first < second < last and second not in skipped
    }


def cells_of_shots(shots: Iterable[Shot]) -> list[Cell]:
    """A cell for each wave of a host's shots in a bench: as many slots as were under way at once."""
    measured = sorted(
        (shot for shot in shots if shot.kind != "warmup"),
        key=lambda shot: (shot.concurrency or 0, shot.slot, shot.kind),
    )
    return [
        cell
        for level, found in groupby(measured, key=lambda shot: shot.concurrency)
        for cell in _waves(list(found), level)
    ]


def _waves(shots: Sequence[Shot], level: int | None) -> list[Cell]:
    """Answers by their slot, so that equal slots meet; time by the moments at which so many were over.

    A wave's own requests overlap with the next one's, so that no wave has a beginning and an end of its own.
    """
    wave = level or _overlap(shots)
    ends = sorted(map(_ended_at, shots))
    before = min(shot.planned_at for shot in shots)
    cells = []
    for start in range(0, len(shots), wave):
        found = shots[start : start + wave]
        over = ends[start + len(found) - 1]
        cells.append(_wave(found, max(0.0, over - before)))
        before = max(before, over)
    return cells


def _wave(shots: Iterable[Shot], elapsed_s: float) -> Cell:
    cell = Cell(elapsed_s=elapsed_s)
    for shot in shots:
        if not shot.ok:
            cell.errors += 1
            continue
        cell.ok += 1
        cell.output_tokens += shot.output_tokens or 0
        _add(cell.e2e, shot.e2e_ms)
        _add(cell.ttft, shot.ttft_ms)
        _add(cell.tpot, shot.tpot_ms)
    return cell


def _overlap(shots: Sequence[Shot]) -> int:
    """Requests under way at once in an open loop (Little's law), and at least 1."""
    spans = [(shot.planned_at, _ended_at(shot)) for shot in shots]
    window_s = max(end for _, end in spans) - min(start for start, _ in spans)
    under_way = sum(end - start for start, end in spans) / window_s if window_s > 0 else 1.0
    return max(1, math.ceil(under_way)) if math.isfinite(under_way) else 1


def _ended_at(shot: Shot) -> float:
    closed = shot.concurrency is not None and shot.sent_at is not None
    start = shot.sent_at if closed and shot.sent_at is not None else shot.planned_at
    return start + (shot.took_ms or 0.0) / 1000


def _add(sketch: Sketch, value_ms: float | None) -> None:
    if value_ms is not None and math.isfinite(value_ms):
        sketch.add(max(0.0, value_ms))
