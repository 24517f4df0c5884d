"""The lab report of a run: each host's figures, whole and over time, from tallies or from timed requests; and its plain text.

A stretch without an answer has no latency: its points are None, and lines have gaps there. The page is drawn by pages.py.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.records import ErrorCount, Event, RequestRecord, Tally, Verdict
from toolkit.stats import Sketch, merged
from toolkit.tuning.criteria import Costs, Criterion
from toolkit.units import UNKNOWN, day, milliseconds, rate, share, span, time_of_day

MOST_STRETCHES = 180
"""Of a line: about one for three pixels."""
MARKS = {"met": "met", "not met": "NOT MET", "unknown": "unknown"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What one host answered in so many seconds."""

    duration_s: float
    ok: int
    errors: int
    output_tokens: int
    """Of ok answers."""
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    e2e_p50_ms: float | None
    e2e_p95_ms: float | None

    @property
    def rps(self) -> float | None:
        """Ok requests that ended in it / its length."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesPart(Answered):
    """A stretch of the run."""

    t_s: float
    """Its middle, from the run's first second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport(Answered):
    """One host of the run, from its first second to its last."""

    name: str
    url: str
    error_kinds: Mapping[str, int]
    streamed: int
    prompt_tokens: int | None
    e2e_p99_ms: float | None
    cache_told: int
    cache_hits: int
    stretches: tuple[SeriesPart, ...] = ()
    verdicts: tuple[Verdict, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that one report shows."""

    run: str
    verb: str
    started_at: float
    ended_at: float | None
    told: str
    """The run's plan in a few words, e.g., `profile contest, 64 users`."""
    hosts: tuple[HostReport, ...]
    criteria: tuple[Criterion, ...]
    costs: Costs | None
    events: tuple[Event, ...]
    notes: tuple[str, ...]
    """What speaks against the figures."""


def host_report(
    tallies: Sequence[Tally], first_s: int, last_s: int, verdicts: Sequence[Verdict] = ()
) -> HostReport:
    """One host's whole run, from its ranked tallies; there is at least one."""
    seconds = last_s - first_s + 1
    kinds: Counter[str] = Counter()
    for each in tallies:
        kinds.update({one.kind: one.count for one in each.error_kinds})
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
        error_kinds=dict(kinds.most_common()),
        streamed=sum(each.streamed for each in tallies),
        prompt_tokens=sum(each.prompt_tokens for each in tallies),
        e2e_p99_ms=Sketch.from_bytes(merged(each.e2e for each in tallies)).quantile(0.99),
        cache_told=sum(each.cache_told + each.cache_judged for each in tallies),
        cache_hits=sum(each.cache_hits + each.cache_inferred for each in tallies),
        stretches=tuple(
            SeriesPart(t_s=(place + 0.5) * width, **_answered(part, width))
            for place, part in enumerate(parts)
        ),
        verdicts=tuple(verdicts),
        **_answered(tallies, seconds),
    )


def _answered(tallies: Sequence[Tally], seconds: int) -> dict[str, Any]:
    e2e = Sketch.from_bytes(merged(each.e2e for each in tallies))
    ttft = Sketch.from_bytes(merged(each.ttft for each in tallies))
    return {
        "duration_s": float(seconds),
        "ok": sum(each.ok for each in tallies),
        "errors": sum(each.errors for each in tallies),
        "output_tokens": sum(each.output_tokens for each in tallies),
        "ttft_p50_ms": ttft.quantile(0.5),
        "ttft_p95_ms": ttft.quantile(0.95),
        "e2e_p50_ms": e2e.quantile(0.5),
        "e2e_p95_ms": e2e.quantile(0.95),
    }


def tallied(shots: Iterable[RequestRecord]) -> list[Tally]:
    """Timed requests as tallies of the second in which each ended, so that a bench is drawn as a blast is."""
    found = []
    for shot in shots:
        if shot.kind == "warmup":
            continue
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


# --- in words -----------------------------------------------------------------------------------------


def headline(report: Report) -> str:
    """`5 of 7 criteria met, 1 not met, 1 unknown`."""
    counts = Counter(each.status for each in report.criteria)
    rest = [f"{counts[status]} {status}" for status in ("not met", "unknown") if counts[status]]
    return ", ".join([f"{counts['met']} of {len(report.criteria)} criteria met", *rest])


def when(report: Report) -> str:
    """`21 November 2026, 14:02:10, for 15 min`."""
    length = "" if report.ended_at is None else f", for {span(report.ended_at - report.started_at)}"
    return f"{day(report.started_at)}, {time_of_day(report.started_at)}{length}"


def figures(host: HostReport) -> list[tuple[str, str, str]]:
    """One host's figures: name, value, definition."""
    return [
        (
            "Requests/s",
            rate(host.rps),
            f"{host.ok:,} ok requests that ended in the run / its {span(host.duration_s)}",
        ),
        (
            "Output tokens/s",
            rate(host.output_tokens_per_s),
            "tokens of ok answers, by the server's usage / the same time",
        ),
        (
            "Error rate",
            share(host.error_rate),
            f"{host.errors:,} errors / (ok + errors), timeouts and refused connections included",
        ),
        (
            "TTFT p50, p95",
            f"{milliseconds(host.ttft_p50_ms)}, {milliseconds(host.ttft_p95_ms)}",
            f"first chunk with a token minus send, of {host.streamed:,} ok streams",
        ),
        (
            "E2E p50, p95, p99",
            ", ".join(map(milliseconds, (host.e2e_p50_ms, host.e2e_p95_ms, host.e2e_p99_ms))),
            "last token (or byte) minus send, of ok answers; nearest rank, within 1 %",
        ),
        (
            "Cache hits",
            share(host.cache_hits / host.cache_told) if host.cache_told else UNKNOWN,
            "hits of a response cache / ok answers that tell, or could be told from unique ones",
        ),
    ]


def error_kinds(host: HostReport) -> str:
    """`3 timeout, 1 http_500`; empty without errors."""
    return ", ".join(f"{count:,} {kind}" for kind, count in host.error_kinds.items())


def cost_rows(costs: Costs) -> list[tuple[str, str, str]]:
    """What, on the GPU, at the API."""

    def price(value: float | None) -> str:
        if value is None:
            return UNKNOWN
        return f"{value:,.2f}" if value >= 1 else f"{value:.4f}"

    own, api = costs.per_million_tokens, costs.api_per_million_tokens
    return [
        ("an hour", f"{costs.gpu_hour * costs.gpus:.2f}", UNKNOWN),
        ("a million tokens, prompt and answer", price(own), price(api)),
        (
            "a thousand requests",
            price(costs.per_thousand_requests),
            price(costs.api_per_thousand_requests),
        ),
    ]


def even_sentence(costs: Costs) -> str | None:
    """From which load on the GPU is cheaper."""
    if costs.even_rps is None:
        return None
    return f"From {rate(costs.even_rps)} requests a second on, the GPU is cheaper than the API."


def event_words(event: Event, started_at: float) -> str:
    """`2 min 10 s  alice: restart, out of memory`; what came before the run, e.g., a server's start, is so long before."""
    t_s = event.at - started_at
    moment = span(t_s) if t_s >= -0.5 else f"{span(-t_s)} before"
    who = f"{event.name}: " if event.name else ""
    what = event.text if event.kind == "mark" else f"{event.kind} {event.text}".strip()
    return f"{moment}  {who}{what}"


def text_lines(report: Report) -> Iterator[str]:
    """The report as plain text."""
    yield f"Lab report of {report.verb} `{report.run}`, {when(report)}"
    if report.told:
        yield report.told
    yield ""
    yield headline(report)
    for each in report.criteria:
        yield ""
        yield f"{MARKS[each.status]:>8}  {each.title}: {each.asks}"
        yield f"          {each.evidence}"
        if each.settle:
            yield f"          -> {each.settle}"

    for host in report.hosts:
        yield ""
        yield f"{host.name} ({host.url})"
        for name, value, definition in figures(host):
            yield f"  {name:<18} {value:<26} {definition}"
        if host.error_kinds:
            yield f"  {'Errors by kind':<18} {error_kinds(host)}"
        for verdict in host.verdicts:
            yield f"  Verdict {verdict.code} ({verdict.confidence}): {verdict.evidence}"

    if report.costs:
        yield ""
        yield f"Cost of{'':<30} GPU          API"
        for what, own, api in cost_rows(report.costs):
            yield f"  {what:<36} {own:<12} {api}"
        if sentence := even_sentence(report.costs):
            yield f"  {sentence}"

    events = [event_words(each, report.started_at) for each in report.events]
    for title, lines in (("Events", events), ("Notes", report.notes)):
        if lines:
            yield ""
            yield title
            yield from (f"  {line}" for line in lines)
