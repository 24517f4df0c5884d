"""What one host answered in a stretch of a run: what comparisons, evidence, a sweep's figures and the lab report are made of.

A cell holds sums and histograms only, which merge: a stretch of any length is a sum of cells. Of a blast there is one for each
second, of a bench one for each wave.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from toolkit.records import RequestRecord, Tally
from toolkit.stats import Sketch, merged

PERCENTILE = re.compile(r"(ttft|e2e|tpot)_p(\d\d)_ms")


@dataclass(slots=True, kw_only=True)
class Cell:
    """What happened in one stretch of a run."""

    elapsed_s: float = 0.0
    ok: int = 0
    errors: int = 0
    error_kinds: Counter[str] = field(default_factory=Counter)
    """How often each kind came."""
    output_tokens: int = 0
    """Of ok answers, as latencies are."""
    e2e: Sketch = field(default_factory=Sketch)
    ttft: Sketch = field(default_factory=Sketch)
    tpot: Sketch = field(default_factory=Sketch)

    @classmethod
    def of_tallies(cls, tallies: Collection[Tally], elapsed_s: float) -> "Cell":
        """All these in one; tallies know no time per token."""
        kinds = Counter[str]()
        for each in tallies:
            kinds.update({one.kind: one.count for one in each.error_kinds})
        return cls(
            elapsed_s=elapsed_s,
            ok=sum(each.ok for each in tallies),
            errors=sum(each.errors for each in tallies),
            error_kinds=kinds,
            output_tokens=sum(each.output_tokens for each in tallies),
            e2e=Sketch.from_bytes(merged(each.e2e for each in tallies)),
            ttft=Sketch.from_bytes(merged(each.ttft for each in tallies)),
        )

    @classmethod
    def of_shots(cls, shots: Collection[RequestRecord], elapsed_s: float) -> "Cell":
        """All these in one."""
        answers = [shot for shot in shots if shot.ok]
        return cls(
            elapsed_s=elapsed_s,
            ok=len(answers),
            errors=len(shots) - len(answers),
            error_kinds=Counter(shot.error_kind or "unknown" for shot in shots if not shot.ok),
            output_tokens=sum(shot.output_tokens or 0 for shot in answers),
            e2e=Sketch.of(shot.e2e_ms for shot in answers),
            ttft=Sketch.of(shot.ttft_ms for shot in answers),
            tpot=Sketch.of(shot.tpot_ms for shot in answers),
        )

    @property
    def ended(self) -> int:
        """Requests, ok or not."""
        return self.ok + self.errors

    def figure(self, metric: str) -> float | None:
        """`rps`, `output_tokens_per_s`, `error_rate`, or a percentile, e.g., `ttft_p95_ms`; None: it tells none."""
        if found := self.sketch_of(metric):
            sketch, share = found
            return sketch.quantile(share)
        if metric == "error_rate":
            return self.errors / self.ended if self.ended else None
        amount = self.ok if metric == "rps" else self.output_tokens
        return amount / self.elapsed_s if self.elapsed_s > 0 else None

    def sketch_of(self, metric: str) -> tuple[Sketch, float] | None:
        """The histogram of a percentile's name, and which share of it is meant; None: it is a rate."""
        if found := PERCENTILE.fullmatch(metric):
            return getattr(self, found[1]), int(found[2]) / 100
        return None


def summed(cells: Iterable[Cell]) -> Cell:
    """One cell of all these."""
    whole = Cell()
    for cell in cells:
        whole.elapsed_s += cell.elapsed_s
        whole.ok += cell.ok
        whole.errors += cell.errors
        whole.error_kinds.update(cell.error_kinds)
        whole.output_tokens += cell.output_tokens
        whole.e2e.merge(cell.e2e)
        whole.ttft.merge(cell.ttft)
        whole.tpot.merge(cell.tpot)
    return whole


def cells_of_tallies(
    tallies: Iterable[Tally], seconds: Sequence[int], shots: Iterable[RequestRecord] = ()
) -> list[Cell]:
    """A cell for each of these seconds, of a host's ranked tallies; one without a tally answered nothing.

    Tallies know no time per token: it comes from the canaries among `shots`, which are few.
    """
    found: dict[int, list[Tally]] = {second: [] for second in seconds}
    for tally in tallies:
        if tally.at_s in found:
            found[tally.at_s].append(tally)
    cells = {second: Cell.of_tallies(those, 1.0) for second, those in found.items()}
    for shot in shots:
        if shot.ok and shot.kind == "unique" and (cell := cells.get(math.floor(_ended_at(shot)))):
            cell.tpot.merge(Sketch.of([shot.tpot_ms]))
    return [cells[second] for second in seconds]


def cells_of_shots(shots: Iterable[RequestRecord]) -> list[Cell]:
    """A cell for each wave of a host's shots in a bench: as many slots as were under way at once.

    Answers go by their slot, so that equal slots meet; time by the moments at which so many were over: a wave's own requests
    overlap with the next one's, so that no wave has a beginning and an end of its own.
    """
    measured = sorted(
        (shot for shot in shots if shot.kind != "warmup"),
        key=lambda shot: (shot.concurrency or 0, shot.slot, shot.kind),
    )
    cells = []
    for level, found in groupby(measured, key=lambda shot: shot.concurrency):
        group = list(found)
        ends = sorted(map(_ended_at, group))
        before = min(shot.planned_at for shot in group)
        wave = level
        if not wave:
            # an open loop: requests under way at once, by Little's law
            window_s = ends[-1] - before
            busy_s = sum(_ended_at(shot) - shot.planned_at for shot in group)
            at_once = busy_s / window_s if window_s > 0 else 1.0
            wave = max(1, math.ceil(at_once)) if math.isfinite(at_once) else 1

        for start in range(0, len(group), wave):
            those = group[start : start + wave]
            over = ends[start + len(those) - 1]
            cells.append(Cell.of_shots(those, max(0.0, over - before)))
            before = max(before, over)
    return cells


def _ended_at(shot: RequestRecord) -> float:
    closed = shot.concurrency is not None and shot.sent_at is not None
    start = shot.sent_at if closed and shot.sent_at is not None else shot.planned_at
    return start + (shot.took_ms or 0.0) / 1000
