"""The lab report of a run: its hosts whole and over time, the criteria, the costs; as JSON and as plain text. pages.py draws the page.

No store, no clock.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from toolkit.records import Event, RequestRecord, Tally, Verdict
from toolkit.tuning.cells import Cell, cell_of, second_of, summed
from toolkit.tuning.criteria import Costs, Criterion
from toolkit.units import UNKNOWN, day, milliseconds, rate, share, span, time_of_day

MOST_STRETCHES = 180
"""Of a line: about one for three pixels."""
MARKS = {"met": "met", "not met": "NOT MET", "unknown": "unknown"}
Rows = list[tuple[str, str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """One host of the run, from its first second to its last."""

    name: str
    url: str
    whole: Cell
    stretches: Sequence[tuple[float, Cell]] = ()
    """Each with its middle, in seconds from the run's first one."""
    verdicts: Sequence[Verdict] = ()

    def as_json(self) -> dict[str, Any]:
        """The host of `toolkit report --json`."""
        whole = self.whole
        more = ("e2e_p99_ms", "rps", "output_tokens_per_s", "error_rate")
        return {
            "name": self.name,
            "url": self.url,
            **_stretch_json(whole),
            "error_kinds": dict(whole.error_kinds.most_common()),
            "streamed": whole.streamed,
            "prompt_tokens": whole.prompt_tokens,
            "cache_told": whole.cache_known,
            "cache_hits": whole.cache_hits,
            "stretches": [{"t_s": t_s} | _stretch_json(cell) for t_s, cell in self.stretches],
            "verdicts": [asdict(each) for each in self.verdicts],
            **{name: whole.figure(name) for name in more},
        }


def _stretch_json(cell: Cell) -> dict[str, Any]:
    latencies = ("ttft_p50_ms", "ttft_p95_ms", "e2e_p50_ms", "e2e_p95_ms")
    return {
        "duration_s": cell.elapsed_s,
        "ok": cell.ok,
        "errors": cell.errors,
        "output_tokens": cell.output_tokens,
        **{name: cell.figure(name) for name in latencies},
    }


def host_report(
    records: Sequence[Tally | RequestRecord],
    seconds: range,
    verdicts: Sequence[Verdict] = (),
    *,
    duration_s: float | None = None,
) -> HostReport:
    """One host's whole run of these seconds, from its ranked tallies or its timed requests, at least one.

    `duration_s`: its rates' time, if that is not the run's.
    """
    # equal stretches; a last one that is not whole is drawn in none, as it would look as if load fell
    width = max(1, math.ceil(len(seconds) / MOST_STRETCHES))
    last = max(1, len(seconds) // width)
    parts: list[list[Tally | RequestRecord]] = [[] for _ in range(last + 1)]
    for each in records:
        parts[min((second_of(each) - seconds.start) // width, last)].append(each)
    cells = [cell_of(part, float(width)) for part in parts]
    whole = summed(cells)
    whole.elapsed_s = duration_s or float(len(seconds))
    return HostReport(
        name=records[0].name,
        url=records[0].url,
        whole=whole,
        stretches=[((place + 0.5) * width, cell) for place, cell in enumerate(cells[:last])],
        verdicts=verdicts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that one report shows."""

    run: str
    verb: str
    started_at: float
    ended_at: float | None
    plan: str
    """The run's plan in a few words, e.g., `profile contest, 64 users`."""
    hosts: Sequence[HostReport]
    criteria: tuple[Criterion, ...]
    costs: Costs | None
    events: tuple[Event, ...]
    notes: tuple[str, ...]
    """What speaks against the figures."""

    @property
    def headline(self) -> str:
        """`5 of 7 criteria met, 1 not met, 1 unknown`."""
        counts = Counter(each.status for each in self.criteria)
        rest = [f"{counts[status]} {status}" for status in ("not met", "unknown") if counts[status]]
        return ", ".join([f"{counts['met']} of {len(self.criteria)} criteria met", *rest])

    @property
    def when(self) -> str:
        """`21 November 2026, 14:02:10, for 15 min`."""
        started_at, ended_at = self.started_at, self.ended_at
        length = "" if ended_at is None else f", for {span(ended_at - started_at)}"
        return f"{day(started_at)}, {time_of_day(started_at)}{length}"

    def as_json(self) -> dict[str, Any]:
        """The object of `toolkit report --json`."""
        found = asdict(replace(self, hosts=()))
        found["told"] = found.pop("plan")
        return found | {"hosts": [host.as_json() for host in self.hosts]}


# --- in words -----------------------------------------------------------------------------------------


def figures(host: HostReport) -> Rows:
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
            f"first chunk with a token minus send, of {whole.streamed:,} ok streams",
        ),
        (
            "E2E p50, p95, p99",
            ", ".join(e2e),
            "last token (or byte) minus send, of ok answers; nearest rank, within 1 %",
        ),
        (
            "Cache hits",
            share(whole.cache_hits / whole.cache_known) if whole.cache_known else UNKNOWN,
            "hits of a response cache / ok answers that say so, or that unique ones show to be hits or misses",
        ),
    ]


def cost_rows(costs: Costs) -> Rows:
    """What, on the GPU, at the API."""

    def price(value: float | None) -> str:
        if value is None:
            return UNKNOWN
        return f"{value:,.2f}" if value >= 1 else f"{value:.4f}"

    own, api = costs.per_million_tokens, costs.api_per_million_tokens
    own_thousand, api_thousand = costs.per_thousand_requests, costs.api_per_thousand_requests
    return [
        ("an hour", f"{costs.gpu_hour * costs.gpus:.2f}", UNKNOWN),
        ("a million tokens, prompt and answer", price(own), price(api)),
        ("a thousand requests", price(own_thousand), price(api_thousand)),
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
    yield f"Lab report of {report.verb} `{report.run}`, {report.when}"
    if report.plan:
        yield report.plan
    yield ""
    yield report.headline
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
            yield f"  {'Errors by kind':<18} {host.whole.kinds_in_words}"
        for verdict in host.verdicts:
            yield f"  Verdict {verdict.title}: {verdict.because}"

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
