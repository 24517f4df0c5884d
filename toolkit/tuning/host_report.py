"""What one host answered in a run, whole and over time, from tallies or from timed requests. No store, no clock."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from toolkit.records import ErrorCount, RequestRecord, Tally, Verdict
from toolkit.stats import Sketch
from toolkit.tuning.cells import Cell

MOST_STRETCHES = 180
"""Of a line: about one for three pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """One host of the run, from its first second to its last."""

    name: str
    url: str
    whole: Cell
    streamed: int
    """Of ok answers."""
    prompt_tokens: int
    cache_told: int
    cache_hits: int
    stretches: Sequence[tuple[float, Cell]] = ()
    """Each with its middle, in seconds from the run's first one."""
    verdicts: Sequence[Verdict] = ()

    @property
    def kinds_told(self) -> str:
        """`3 timeout, 1 http_500`, the most frequent first."""
        ordered = sorted(self.whole.error_kinds.items(), key=lambda item: (-item[1], item[0]))
        return ", ".join(f"{count:,} {kind}" for kind, count in ordered) or "no kind told"

    def as_json(self) -> dict[str, Any]:
        """The host of `toolkit report --json`."""
        return {
            **_figures(self.whole),
            "name": self.name,
            "url": self.url,
            "error_kinds": dict(self.whole.error_kinds.most_common()),
            "streamed": self.streamed,
            "prompt_tokens": self.prompt_tokens,
            "e2e_p99_ms": self.whole.figure("e2e_p99_ms"),
            "cache_told": self.cache_told,
            "cache_hits": self.cache_hits,
            "stretches": [_figures(cell) | {"t_s": t_s} for t_s, cell in self.stretches],
            "verdicts": [asdict(each) for each in self.verdicts],
            **{name: self.whole.figure(name) for name in RATES},
        }


RATES = ("rps", "output_tokens_per_s", "error_rate")
LATENCIES = ("ttft_p50_ms", "ttft_p95_ms", "e2e_p50_ms", "e2e_p95_ms")


def _figures(cell: Cell) -> dict[str, Any]:
    return {
        "duration_s": cell.elapsed_s,
        "ok": cell.ok,
        "errors": cell.errors,
        "output_tokens": cell.output_tokens,
        **{name: cell.figure(name) for name in LATENCIES},
    }


def host_report(
    tallies: Sequence[Tally],
    first_s: int,
    last_s: int,
    verdicts: Sequence[Verdict] = (),
    *,
    duration_s: float | None = None,
) -> HostReport:
    """One host's whole run, from its ranked tallies, at least one; `duration_s`: its rates' time, if not the run's."""
    seconds = last_s - first_s + 1
    # equal stretches; a last one that is not whole is left out, as it would look as if load fell
    width = max(1, math.ceil(seconds / MOST_STRETCHES))
    parts: list[list[Tally]] = [[] for _ in range(max(1, seconds // width))]
    for each in tallies:
        place = (each.at_s - first_s) // width
        if 0 <= place < len(parts):
            parts[place].append(each)
    return HostReport(
        name=tallies[0].name,
        url=tallies[0].url,
        whole=Cell.of_tallies(tallies, duration_s or float(seconds)),
        streamed=sum(each.streamed for each in tallies),
        prompt_tokens=sum(each.prompt_tokens for each in tallies),
        cache_told=sum(each.cache_told + each.cache_judged for each in tallies),
        cache_hits=sum(each.cache_hits + each.cache_inferred for each in tallies),
        stretches=[
            ((place + 0.5) * width, Cell.of_tallies(part, float(width)))
            for place, part in enumerate(parts)
        ],
        verdicts=verdicts,
    )


def tallied(shots: Iterable[RequestRecord]) -> list[Tally]:
    """Timed requests as tallies of the second in which each ended, so that a bench is drawn as a blast is."""
    found = []
    for shot in shots:
        began = shot.sent_at if shot.sent_at is not None else shot.planned_at
        hit = (shot.cache_status or "").lower()
        kinds = () if shot.ok else (ErrorCount(kind=shot.error_kind or "unknown", count=1),)
        found.append(
            Tally(
                run=shot.run,
                name=shot.name,
                url=shot.url,
                at_s=math.floor(began + (shot.took_ms or 0.0) / 1000),
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
                e2e=Sketch.of([shot.e2e_ms] if shot.ok else []).to_bytes(),
                ttft=Sketch.of([shot.ttft_ms] if shot.ok else []).to_bytes(),
            )
        )
    return found
