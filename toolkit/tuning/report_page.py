"""The lab report as one HTML file with plots. Numbers and words come from the report; it reckons nothing but where a line goes."""

from collections.abc import Callable, Sequence

from toolkit.report.charts import ChartFrame, LineStyle, empty, rule
from toolkit.report.html import Markup, tag
from toolkit.report.page import (
    COLOURS,
    STROKES,
    Series,
    document,
    figures_list,
    notes_list,
    rows_table,
    said,
    time_chart,
)
from toolkit.tuning.criteria import Criterion
from toolkit.tuning.report_series import HostReport, SeriesPart
from toolkit.tuning.report_words import (
    Report,
    cost_rows,
    even_sentence,
    event_words,
    figures,
    headline,
    when,
)
from toolkit.units import milliseconds, rate, share, tick, tick_ms, tick_share

MOST_HOSTS = 6
"""Lines in one plot; a report of more hosts draws the first ones."""


def page(report: Report) -> str:
    """The whole document."""
    body = tag(
        "main",
        tag("h1", f"Lab report of {report.verb} {report.run}"),
        tag("p", headline(report), class_="headline"),
        tag("p", ", ".join(part for part in (when(report), report.told) if part), class_="told"),
        tag("h2", "Criteria"),
        _criteria(report.criteria),
        [_host(host) for host in report.hosts],
        tag("h2", "Over time"),
        tag("div", *_charts(report), class_="charts"),
        _costs(report),
        tag("h2", "Events"),
        notes_list([event_words(each, report.started_at) for each in report.events], "None."),
        tag("h2", "What this rests on"),
        notes_list(report.notes, "Nothing is known that speaks against these figures."),
    )
    return document(f"Lab report: {headline(report)}", body)


def _criteria(found: Sequence[Criterion]) -> Markup:
    rows = [
        (
            tag("span", each.status, class_=f"mark {each.status.partition(' ')[0]}"),
            Markup.joined([tag("b", each.title), tag("small", each.asks)]),
            Markup.joined(
                [
                    said(each.evidence),
                    tag("small", said(each.settle), class_="settle") if each.settle else None,
                ]
            ),
        )
        for each in found
    ]
    titles = [
        ("", "mark"),
        ("criterion", None),
        ("evidence, and what would settle or mend it", None),
    ]
    return rows_table([(title, class_) for title, class_ in titles], rows, on_phone=False)


def _host(host: HostReport) -> Markup:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in host.error_kinds.items())
    verdicts = [
        Markup.joined([tag("b", one.code), f" ({one.confidence}): ", said(one.evidence)])
        for one in host.verdicts
    ]
    return tag(
        "section",
        tag("h2", host.name, " ", tag("small", host.url, class_="nothing")),
        figures_list([(one.name, one.value, one.definition) for one in figures(host)]),
        tag("p", f"Errors by kind: {kinds}") if kinds else None,
        [tag("h3", "Verdicts"), notes_list(verdicts, "")] if verdicts else None,
    )


def _costs(report: Report) -> Markup | None:
    if report.costs is None:
        return None
    titles = [("cost of", None), ("GPU", "right"), ("API", "right")]
    sentence = even_sentence(report.costs)
    return tag(
        "section",
        tag("h2", "Cost"),
        rows_table([(title, class_) for title, class_ in titles], cost_rows(report.costs)),
        tag("p", said(sentence)) if sentence else None,
    )


# --- plots ------------------------------------------------------------------------------------------


def _charts(report: Report) -> list[Markup]:
    shown = report.hosts[:MOST_HOSTS]
    rules = _rules(report)
    return [
        _rate_chart(shown, rules),
        _latency_chart("ttft", "TTFT", shown, rules),
        _latency_chart("e2e", "E2E", shown, rules),
        _error_chart(shown, rules),
    ]


def _times(hosts: Sequence[HostReport]) -> list[float]:
    return [each.t_s for each in max((host.stretches for host in hosts), key=len, default=())]


def _series(
    hosts: Sequence[HostReport], values: Sequence[tuple[str, Callable[[SeriesPart], float | None]]]
) -> list[Series]:
    """A line a host, or a host and quantile."""
    found: list[Series] = []
    for number, host in enumerate(hosts):
        for place, (word, value) in enumerate(values):
            names = [host.name] if len(hosts) > 1 else []
            names += [word] if len(values) > 1 or not names else []
            look = LineStyle(COLOURS[number % len(COLOURS)], STROKES[place % len(STROKES)])
            found.append((" ".join(names), [value(each) for each in host.stretches], look))
    return found


def _rules(report: Report) -> list[Markup]:
    """An upright line for each event within the run."""
    times = _times(report.hosts)
    length = (times[-1] + times[0]) if times else 0.0
    return [
        rule(
            (each.at - report.started_at) / length,
            class_=each.kind,
            title=event_words(each, report.started_at),
        )
        for each in report.events
        if length and 0 <= each.at - report.started_at <= length
    ]


def _lines(
    frame: ChartFrame,
    hosts: Sequence[HostReport],
    series: Sequence[Series],
    rules: Sequence[Markup],
    tick_of: Callable[[float], str],
    nothing: str,
) -> Markup:
    """The chart, or what it says where all lines lie at nothing."""
    values = [value for _, values, _ in series for value in values if value is not None]
    highest = max(values, default=0.0)
    if not highest:
        return empty(frame, nothing)
    return time_chart(frame, _times(hosts), series, highest, tick=tick_of, rules=rules)


def _rate_chart(hosts: Sequence[HostReport], rules: Sequence[Markup]) -> Markup:
    told = "; ".join(f"{host.name}: {rate(host.rps)} on average" for host in hosts)
    axes = "ok requests that ended, a second"
    frame = ChartFrame(key="rps", title="Requests/s", axes=axes, alt=told)
    series = _series(hosts, [("requests/s", lambda each: each.rps)])
    return _lines(frame, hosts, series, rules, tick, "No request was ok.")


def _latency_chart(
    field: str, title: str, hosts: Sequence[HostReport], rules: Sequence[Markup]
) -> Markup:
    told = "; ".join(
        f"{host.name}: median {milliseconds(getattr(host, f'{field}_p50_ms'))}, "
        f"p95 {milliseconds(getattr(host, f'{field}_p95_ms'))}"
        for host in hosts
    )
    frame = ChartFrame(key=field, title=title, axes="of ok answers that ended then", alt=told)
    series = _series(
        hosts,
        [
            ("p50", lambda each: getattr(each, f"{field}_p50_ms")),
            ("p95", lambda each: getattr(each, f"{field}_p95_ms")),
        ],
    )
    nothing = "No streamed answer." if field == "ttft" else "No answer."
    return _lines(frame, hosts, series, rules, tick_ms, nothing)


def _error_chart(hosts: Sequence[HostReport], rules: Sequence[Markup]) -> Markup:
    told = "; ".join(f"{host.name}: {share(host.error_rate)}" for host in hosts)
    axes = "errors / (ok + errors)"
    frame = ChartFrame(key="errors", title="Error rate", axes=axes, alt=told)
    series = _series(hosts, [("errors", lambda each: each.error_rate)])
    return _lines(frame, hosts, series, rules, tick_share, "No request failed.")
