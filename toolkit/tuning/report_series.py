"""A run over time, one host after the other: what each stretch of seconds held, of tallies or of timed requests.

A stretch without an answer has no latency: its points are None, and lines have gaps there.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from toolkit.records import ErrorCount, Shot, Tally, Verdict
from toolkit.stats import Sketch, merged

MOST_STRETCHES = 180
"""Of a line: about one for three pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesPart:
    """So many seconds of one host."""

    t_s: float
    """Its middle, from the run's first second."""
    duration_s: float
    ok: int
    errors: int
    output_tokens: int
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    e2e_p50_ms: float | None
    e2e_p95_ms: float | None

    @property
    def rps(self) -> float:
        """Ok requests that ended in it / its length."""
        return self.ok / self.duration_s

    @property
    def error_rate(self) -> float | None:
        """Errors / (ok + errors)."""
        ended = self.ok + self.errors
        return self.errors / ended if ended else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """One host of the run."""

    name: str
    url: str
    duration_s: float
    """From the run's first second to its last."""
    ok: int
    errors: int
    error_kinds: Mapping[str, int]
    streamed: int
    prompt_tokens: int | None
    output_tokens: int
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    e2e_p50_ms: float | None
    e2e_p95_ms: float | None
    e2e_p99_ms: float | None
    cache_told: int
    cache_hits: int
    stretches: tuple[SeriesPart, ...] = ()
    verdicts: tuple[Verdict, ...] = field(default=())

    @property
    def rps(self) -> float | None:
        """Ok requests / seconds."""
        return self.ok / self.duration_s if self.duration_s else None

    @property
    def output_tokens_per_s(self) -> float | None:
        """Of ok answers."""
        return self.output_tokens / self.duration_s if self.duration_s else None

    @property
    def error_rate(self) -> float | None:
        """Errors / (ok + errors)."""
        ended = self.ok + self.errors
        return self.errors / ended if ended else None


def host_report(
    tallies: Sequence[Tally], first_s: int, last_s: int, verdicts: Sequence[Verdict] = ()
) -> HostReport:
    """One host's whole run, from its ranked tallies; there is at least one."""
    seconds = last_s - first_s + 1
    e2e = Sketch.from_bytes(merged(each.e2e for each in tallies))
    ttft = Sketch.from_bytes(merged(each.ttft for each in tallies))
    kinds: Counter[str] = Counter()
    for each in tallies:
        kinds.update({one.kind: one.count for one in each.error_kinds})
    return HostReport(
        name=tallies[0].name,
        url=tallies[0].url,
        duration_s=float(seconds),
        ok=sum(each.ok for each in tallies),
        errors=sum(each.errors for each in tallies),
        error_kinds=dict(kinds.most_common()),
        streamed=sum(each.streamed for each in tallies),
        prompt_tokens=sum(each.prompt_tokens for each in tallies),
        output_tokens=sum(each.output_tokens for each in tallies),
        ttft_p50_ms=ttft.quantile(0.5),
        ttft_p95_ms=ttft.quantile(0.95),
        e2e_p50_ms=e2e.quantile(0.5),
        e2e_p95_ms=e2e.quantile(0.95),
        e2e_p99_ms=e2e.quantile(0.99),
        cache_told=sum(each.cache_told + each.cache_judged for each in tallies),
        cache_hits=sum(each.cache_hits + each.cache_inferred for each in tallies),
        stretches=_stretches(tallies, first_s, seconds),
        verdicts=tuple(verdicts),
    )


def _stretches(tallies: Sequence[Tally], first_s: int, seconds: int) -> tuple[SeriesPart, ...]:
    """Equal ones; a last one that is not whole is left out, as it would look as if load fell."""
    width = max(1, math.ceil(seconds / MOST_STRETCHES))
    count = max(1, seconds // width)
    parts: list[list[Tally]] = [[] for _ in range(count)]
    for each in tallies:
        place = (each.at_s - first_s) // width
        if 0 <= place < count:
            parts[place].append(each)
    return tuple(_stretch(part, place, width) for place, part in enumerate(parts))


def _stretch(part: Sequence[Tally], place: int, width: int) -> SeriesPart:
    e2e = Sketch.from_bytes(merged(each.e2e for each in part))
    ttft = Sketch.from_bytes(merged(each.ttft for each in part))
    return SeriesPart(
        t_s=(place + 0.5) * width,
        duration_s=float(width),
        ok=sum(each.ok for each in part),
        errors=sum(each.errors for each in part),
        output_tokens=sum(each.output_tokens for each in part),
        ttft_p50_ms=ttft.quantile(0.5),
        ttft_p95_ms=ttft.quantile(0.95),
        e2e_p50_ms=e2e.quantile(0.5),
        e2e_p95_ms=e2e.quantile(0.95),
    )


def tallied(shots: Iterable[Shot]) -> list[Tally]:
    """Timed requests as tallies of the second in which each ended, so that a bench is drawn as a blast is."""
    found = []
    for shot in shots:
        if shot.kind == "warmup":
            continue
        began = shot.sent_at if shot.sent_at is not None else shot.planned_at
        ended = began + (shot.took_ms or 0.0) / 1000
        kinds = () if shot.ok else (ErrorCount(kind=shot.error_kind or "unknown", count=1),)
        hit = (shot.cache_status or "").lower()
        found.append(
            Tally(
                run=shot.run,
                name=shot.name,
                url=shot.url,
                at_s=math.floor(ended),
                worker="bench",
                kind="ranked",
                ok=int(shot.ok),
                errors=int(not shot.ok),
                error_kinds=kinds,
                streamed=int(shot.ok and shot.stream),
                prompt_tokens=(shot.prompt_tokens or 0) if shot.ok else 0,
                output_tokens=(shot.output_tokens or 0) if shot.ok else 0,
                cache_told=int(bool(shot.ok and hit)),
                cache_hits=int(bool(shot.ok and "hit" in hit)),
                e2e=_sketched(shot.e2e_ms if shot.ok else None),
                ttft=_sketched(shot.ttft_ms if shot.ok else None),
            )
        )
    return found


def _sketched(value_ms: float | None) -> bytes:
    whole = Sketch()
    if value_ms is not None:
        whole.add(value_ms)
    return whole.to_bytes()
