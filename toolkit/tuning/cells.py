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
SUMS = (
    *("elapsed_s", "ok", "errors", "error_kinds", "streamed", "prompt_tokens", "output_tokens"),
    *("cache_known", "cache_hits"),
)
SKETCHES = ("e2e", "ttft", "tpot")


@dataclass(slots=True, kw_only=True)
class Cell:
    """What happened in one stretch of a run."""

    elapsed_s: float = 0.0
    ok: int = 0
    errors: int = 0
    error_kinds: Counter[str] = field(default_factory=Counter)
    """How often each kind came."""
    streamed: int = 0
    """Of ok answers, as all below."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    cache_known: int = 0
    """Answers that say whether they came from a response cache, or of which it could be inferred."""
    cache_hits: int = 0
    e2e: Sketch = field(default_factory=Sketch)
    ttft: Sketch = field(default_factory=Sketch)
    tpot: Sketch = field(default_factory=Sketch)

    @property
    def ended(self) -> int:
        """Requests, ok or not."""
        return self.ok + self.errors

    @property
    def kinds_in_words(self) -> str:
        """`3 timeout, 1 http_500`, the most frequent first."""
        ordered = sorted(self.error_kinds.items(), key=lambda item: (-item[1], item[0]))
        return ", ".join(f"{count:,} {kind}" for kind, count in ordered) or "no kind is known"

    def figure(self, metric: str) -> float | None:
        """`rps`, `output_tokens_per_s`, `error_rate`, or a percentile, e.g., `ttft_p95_ms`; None: it knows none."""
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
        for name in SUMS:
            setattr(whole, name, getattr(whole, name) + getattr(cell, name))
        for name in SKETCHES:
            getattr(whole, name).merge(getattr(cell, name))
    return whole


def cell_of_tallies(tallies: Collection[Tally], elapsed_s: float) -> Cell:
    """All these in one; tallies know no time per token."""
    kinds = Counter[str]()
    for each in tallies:
        kinds.update({one.kind: one.count for one in each.error_kinds})
    return Cell(
        elapsed_s=elapsed_s,
        ok=sum(each.ok for each in tallies),
        errors=sum(each.errors for each in tallies),
        error_kinds=kinds,
        streamed=sum(each.streamed for each in tallies),
        prompt_tokens=sum(each.prompt_tokens for each in tallies),
        output_tokens=sum(each.output_tokens for each in tallies),
        cache_known=sum(each.cache_told + each.cache_judged for each in tallies),
        cache_hits=sum(each.cache_hits + each.cache_inferred for each in tallies),
        e2e=Sketch.from_bytes(merged(each.e2e for each in tallies)),
        ttft=Sketch.from_bytes(merged(each.ttft for each in tallies)),
    )


def cell_of_requests(requests: Collection[RequestRecord], elapsed_s: float) -> Cell:
    """All these in one."""
    answers = [each for each in requests if each.ok]
    cached = [each.cache_status.lower() for each in answers if each.cache_status]
    return Cell(
        elapsed_s=elapsed_s,
        ok=len(answers),
        errors=len(requests) - len(answers),
        error_kinds=Counter(each.error_kind or "unknown" for each in requests if not each.ok),
        streamed=sum(each.stream for each in answers),
        prompt_tokens=sum(each.prompt_tokens or 0 for each in answers),
        output_tokens=sum(each.output_tokens or 0 for each in answers),
        cache_known=len(cached),
        cache_hits=sum("hit" in each for each in cached),
        e2e=Sketch.of(each.e2e_ms for each in answers),
        ttft=Sketch.of(each.ttft_ms for each in answers),
        tpot=Sketch.of(each.tpot_ms for each in answers),
    )


def cell_of(records: Iterable[Tally | RequestRecord], elapsed_s: float) -> Cell:
    """All these in one, of a blast or of a bench."""
    tallies, requests = [], []
    for each in records:
        if isinstance(each, Tally):
            tallies.append(each)
        else:
            requests.append(each)
    return cell_of_tallies(tallies, elapsed_s) if tallies else cell_of_requests(requests, elapsed_s)


def ended_at(request: RequestRecord) -> float:
    """When it was over: latencies count from the send in a closed loop, from the plan in an open one."""
    start = request.planned_at if request.concurrency is None else request.sent_at
    return (start or request.planned_at) + (request.took_ms or 0.0) / 1000


def second_of(record: Tally | RequestRecord) -> int:
    """The second in which it ended."""
    return record.at_s if isinstance(record, Tally) else math.floor(ended_at(record))


def cells_of_tallies(
    tallies: Iterable[Tally], seconds: Sequence[int], canaries: Iterable[RequestRecord] = ()
) -> list[Cell]:
    """A cell for each of these seconds, of a host's ranked tallies; one without a tally answered nothing.

    Tallies know no time per token: it comes from the unique canaries, which are few.
    """
    found: dict[int, list[Tally]] = {second: [] for second in seconds}
    for tally in tallies:
        if tally.at_s in found:
            found[tally.at_s].append(tally)
    cells = {second: cell_of_tallies(those, 1.0) for second, those in found.items()}
    for each in canaries:
        if each.ok and each.kind == "unique" and (cell := cells.get(second_of(each))):
            cell.tpot.merge(Sketch.of([each.tpot_ms]))
    return list(cells.values())


def cells_of_waves(requests: Iterable[RequestRecord]) -> list[Cell]:
    """A cell for each wave of a host's requests in a bench: as many slots as were under way at once.

    Answers go by their slot, so that equal slots meet; time by the moments at which so many were over: a wave's own requests
    overlap with the next one's, so that no wave has a beginning and an end of its own.
    """
    measured = sorted(
        (each for each in requests if each.kind != "warmup"),
        key=lambda each: (each.concurrency or 0, each.slot, each.kind),
    )
    cells = []
    for level, found in groupby(measured, key=lambda each: each.concurrency):
        group = list(found)
        ends = sorted(map(ended_at, group))
        before = min(each.planned_at for each in group)
        wave = level
        if not wave:
            # an open loop: requests under way at once, by Little's law
            window_s = ends[-1] - before
            busy_s = sum(ended_at(each) - each.planned_at for each in group)
            at_once = busy_s / window_s if window_s > 0 else 1.0
            wave = max(1, math.ceil(at_once)) if math.isfinite(at_once) else 1

        for start in range(0, len(group), wave):
            those = group[start : start + wave]
            over = ends[start + len(those) - 1]
            cells.append(cell_of_requests(those, max(0.0, over - before)))
            before = over
    return cells
