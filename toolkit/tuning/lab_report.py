"""The lab report of a run, and its plain text. The page is drawn by pages.py."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from toolkit.records import Event
from toolkit.tuning.criteria import Costs, Criterion
from toolkit.tuning.host_report import HostReport
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
    hosts: Sequence[HostReport]
    criteria: tuple[Criterion, ...]
    costs: Costs | None
    events: tuple[Event, ...]
    notes: tuple[str, ...]
    """What speaks against the figures."""

    def as_json(self) -> dict[str, Any]:
        """The object of `toolkit report --json`."""
        hosts = [host.as_json() for host in self.hosts]
        return asdict(replace(self, hosts=())) | {"hosts": hosts}


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
    whole = host.whole
    ttft = [milliseconds(whole.figure(f"ttft_{each}_ms")) for each in ("p50", "p95")]
    e2e = [milliseconds(whole.figure(f"e2e_{each}_ms")) for each in ("p50", "p95", "p99")]
    return [
        (
            "Requests/s",
            rate(whole.figure("rps")),
            f"{whole.ok:,} ok requests that ended in the run / its {span(whole.elapsed_s)}",
        ),
        (
            "Output tokens/s",
            rate(whole.figure("output_tokens_per_s")),
            "tokens of ok answers, by the server's usage / the same time",
        ),
        (
            "Error rate",
            share(whole.figure("error_rate")),
            f"{whole.errors:,} errors / (ok + errors), timeouts and refused connections included",
        ),
        (
            "TTFT p50, p95",
            ", ".join(ttft),
            f"first chunk with a token minus send, of {host.streamed:,} ok streams",
        ),
        (
            "E2E p50, p95, p99",
            ", ".join(e2e),
            "last token (or byte) minus send, of ok answers; nearest rank, within 1 %",
        ),
        (
            "Cache hits",
            share(host.cache_hits / host.cache_told) if host.cache_told else UNKNOWN,
            "hits of a response cache / ok answers that tell, or could be told from unique ones",
        ),
    ]


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
        if host.whole.error_kinds:
            yield f"  {'Errors by kind':<18} {host.kinds_told}"
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
