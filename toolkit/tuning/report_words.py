"""A lab report in words: its headline, figures with their definitions, and the whole as plain text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from toolkit.records import Event
from toolkit.tuning.criteria import Costs, Criterion
from toolkit.tuning.report_series import HostReport
from toolkit.units import UNKNOWN, day, milliseconds, rate, share, span, time_of_day

MARKS = {"met": "met", "not met": "NOT MET", "unknown": "unknown"}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of one host."""

    name: str
    value: str
    definition: str


def headline(report: Report) -> str:
    """`5 of 7 criteria met, 1 not met, 1 unknown`."""
    counts = dict.fromkeys(MARKS, 0)
    for each in report.criteria:
        counts[each.status] += 1
    rest = [f"{counts[status]} {status}" for status in ("not met", "unknown") if counts[status]]
    return ", ".join([f"{counts['met']} of {len(report.criteria)} criteria met", *rest])


def when(report: Report) -> str:
    """`21 November 2026, 14:02:10, for 15 min`."""
    length = "" if report.ended_at is None else f", for {span(report.ended_at - report.started_at)}"
    return f"{day(report.started_at)}, {time_of_day(report.started_at)}{length}"


def figures(host: HostReport) -> list[Figure]:
    """One host's figures, each with its definition."""
    return [
        Figure(
            name="Requests/s",
            value=rate(host.rps),
            definition=f"{host.ok:,} ok requests that ended in the run / its {span(host.duration_s)}",
        ),
        Figure(
            name="Output tokens/s",
            value=rate(host.output_tokens_per_s),
            definition="tokens of ok answers, by the server's usage / the same time",
        ),
        Figure(
            name="Error rate",
            value=share(host.error_rate),
            definition=f"{host.errors:,} errors / (ok + errors), timeouts and refused connections included",
        ),
        Figure(
            name="TTFT p50, p95",
            value=f"{milliseconds(host.ttft_p50_ms)}, {milliseconds(host.ttft_p95_ms)}",
            definition=f"first chunk with a token minus send, of {host.streamed:,} ok streams",
        ),
        Figure(
            name="E2E p50, p95, p99",
            value=", ".join(
                milliseconds(each) for each in (host.e2e_p50_ms, host.e2e_p95_ms, host.e2e_p99_ms)
            ),
            definition="last token (or byte) minus send, of ok answers; nearest rank, within 1 %",
        ),
        Figure(
            name="Cache hits",
            value=share(host.cache_hits / host.cache_told) if host.cache_told else UNKNOWN,
            definition="hits of a response cache / ok answers that tell, or could be told from unique ones",
        ),
    ]


def cost_rows(costs: Costs) -> list[tuple[str, str, str]]:
    """What, on the GPU, at the API."""
    return [
        ("an hour", f"{costs.gpu_hour * costs.gpus:.2f}", UNKNOWN),
        (
            "a million tokens, prompt and answer",
            _price(costs.per_million_tokens),
            _price(costs.api_per_million_tokens),
        ),
        (
            "a thousand requests",
            _price(costs.per_thousand_requests),
            _price(costs.api_per_thousand_requests),
        ),
    ]


def even_sentence(costs: Costs) -> str | None:
    """From which load on the GPU is cheaper."""
    if costs.even_rps is None:
        return None
    return f"From {rate(costs.even_rps)} requests a second on, the GPU is cheaper than the API."


def _price(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:,.2f}" if value >= 1 else f"{value:.4f}"


def event_words(event: Event, started_at: float) -> str:
    """`2 min 10 s  alice: restart, out of memory`."""
    who = f"{event.name}: " if event.name else ""
    what = event.text if event.kind == "mark" else f"{event.kind} {event.text}".strip()
    return f"{moment(event.at - started_at)}  {who}{what}"


def moment(t_s: float) -> str:
    """A moment of the run; what came before it, e.g., a server's start, is so long before."""
    return span(t_s) if t_s >= -0.5 else f"{span(-t_s)} before"


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
        for figure in figures(host):
            yield f"  {figure.name:<18} {figure.value:<26} {figure.definition}"
        if host.error_kinds:
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in host.error_kinds.items())
            yield f"  {'Errors by kind':<18} {kinds}"
        for verdict in host.verdicts:
            yield f"  Verdict {verdict.code} ({verdict.confidence}): {verdict.evidence}"
    yield from _costs(report.costs)
    yield from _rest("Events", [event_words(each, report.started_at) for each in report.events])
    yield from _rest("Notes", report.notes)


def _costs(costs: Costs | None) -> Iterator[str]:
    if costs is None:
        return
    yield ""
    yield f"Cost of{'':<30} GPU          API"
    for what, own, api in cost_rows(costs):
        yield f"  {what:<36} {own:<12} {api}"
    if sentence := even_sentence(costs):
        yield f"  {sentence}"


def _rest(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield title
        yield from (f"  {line}" for line in lines)
