"""A lab report and a sweep, each as one HTML file of the same form: what was found in one line, sections, and what it rests on.

Numbers and words come from the report and from the sweep's table; here is reckoned nothing but where a line or a bar goes.
"""

from collections.abc import Callable, Mapping, Sequence

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
from toolkit.tuning.figures import figure, metric
from toolkit.tuning.lab_report import (
    HostReport,
    Report,
    cost_rows,
    even_sentence,
    event_words,
    figures,
)
from toolkit.tuning.sweep_file import SweepPlan
from toolkit.tuning.sweep_table import (
    NO_DIFFERENCE,
    Moved,
    SweepRow,
    by_stage,
    difference_in_words,
    known_of,
    lever_in_words,
    progression,
)
from toolkit.units import span, tick, tick_ms, tick_share

MOST_HOSTS = 6
"""Lines in one plot; a report of more hosts draws the first ones."""
ROOM = 1.25
"""Of the longest bar: an interval that reaches farther is cut there."""
COMPARED = (
    "Differences: against the first configuration of the same list, block by block; geometric means over blocks, and Student's "
    "intervals of them that hold together with 95 % in each list (Bonferroni). Where an interval holds no change, no "
    "difference is shown."
)


NOTHING_SPEAKS = "Nothing is known that speaks against these figures."
RPS, ERRORS = {"requests/s": "rps"}, {"error rate": "error_rate"}
TTFT, E2E = ({each: f"{name}_{each}_ms" for each in ("p50", "p95")} for name in ("ttft", "e2e"))
PLOTS: tuple[tuple[str, str, str, Mapping[str, str], str, Callable[[float], str]], ...] = (
    ("rps", "Requests/s", "ok requests that ended, a second", RPS, "No request was ok.", tick),
    ("ttft", "TTFT", "of ok answers that ended then", TTFT, "No streamed answer.", tick_ms),
    ("e2e", "E2E", "of ok answers that ended then", E2E, "No answer.", tick_ms),
    ("errors", "Error rate", "errors / (ok + errors)", ERRORS, "No request failed.", tick_share),
)
"""Each with its key, title and axes, its lines, what it says where all of them lie at nothing, and how a value is written."""


# --- the lab report -----------------------------------------------------------------------------------


def report_page(report: Report) -> str:
    """The whole document."""
    criteria = []
    for each in report.criteria:
        settle = tag("small", said(each.settle), class_="settle") if each.settle else None
        criteria.append(
            (
                tag("span", each.status, class_=f"mark {each.status.partition(' ')[0]}"),
                Markup.joined([tag("b", each.title), tag("small", each.asks)]),
                Markup.joined([said(each.evidence), settle]),
            )
        )
    titles = [
        ("", "mark"),
        ("criterion", None),
        ("evidence, and what would settle or mend it", None),
    ]
    costs = None
    if report.costs:
        sentence = even_sentence(report.costs)
        columns = [("cost of", None), ("GPU", "right"), ("API", "right")]
        costs = tag(
            "section",
            tag("h2", "Cost"),
            rows_table(columns, cost_rows(report.costs)),
            tag("p", said(sentence)) if sentence else None,
        )
    events = [event_words(each, report.started_at) for each in report.events]
    sections = (
        tag("h2", "Criteria"),
        rows_table(titles, criteria, on_phone=False),
        [_host(host) for host in report.hosts],
        tag("h2", "Over time"),
        tag("div", _charts(report), class_="charts"),
        costs,
        tag("h2", "Events"),
        notes_list(events, "None."),
    )
    return document(
        f"Lab report: {report.headline}",
        heading=f"Lab report of {report.verb} {report.run}",
        found=report.headline,
        about=", ".join(part for part in (report.when, report.plan) if part),
        sections=sections,
        notes=report.notes,
        no_notes=NOTHING_SPEAKS,
    )


def _host(host: HostReport) -> Markup:
    verdicts = [
        Markup.joined([tag("b", one.title), ": ", said(one.because)]) for one in host.verdicts
    ]
    kinds = f"Errors by kind: {host.whole.kinds_in_words}"
    return tag(
        "section",
        tag("h2", host.name, " ", tag("small", host.url, class_="nothing")),
        figures_list(figures(host)),
        tag("p", kinds) if host.whole.error_kinds else None,
        [tag("h3", "Verdicts"), notes_list(verdicts, "")] if verdicts else None,
    )


def _charts(report: Report) -> list[Markup]:
    """Requests a second, TTFT, E2E and errors over the run's time; an upright line for each event within it."""
    hosts = report.hosts[:MOST_HOSTS]
    longest = max((host.stretches for host in hosts), key=len, default=())
    times = [t_s for t_s, _ in longest]
    length = times[-1] + times[0] if times else 0.0
    rules = []
    for each in report.events:
        t_s, title = each.at - report.started_at, event_words(each, report.started_at)
        if length and 0 <= t_s <= length:
            rules.append(rule(t_s / length, class_=each.kind, title=title))

    charts = []
    for key, title, axes, lines, nothing, tick_of in PLOTS:
        # a line a host, or a host and quantile
        series: list[Series] = []
        totals = []
        for number, host in enumerate(hosts):
            for place, (word, name) in enumerate(lines.items()):
                names = [host.name] if len(hosts) > 1 else []
                names += [word] if len(lines) > 1 or not names else []
                look = LineStyle(COLOURS[number % len(COLOURS)], STROKES[place % len(STROKES)])
                values = [cell.figure(name) for _, cell in host.stretches]
                series.append((" ".join(names), values, look))
            words = [
                f"{word} {figure(name, host.whole.figure(name))}" for word, name in lines.items()
            ]
            totals.append(f"{host.name}: {', '.join(words)}")
        alt = f"of the whole run, {'; '.join(totals)}"
        frame = ChartFrame(key=key, title=title, axes=axes, alt=alt)
        known = (value for _, values, _ in series for value in values if value is not None)
        highest = max(known, default=0.0)
        charts.append(
            time_chart(frame, times, series, highest, tick=tick_of, rules=rules)
            if highest
            else empty(frame, nothing)
        )
    return charts


# --- a sweep -----------------------------------------------------------------------------------------


def sweep_page(plan: SweepPlan, rows: Sequence[SweepRow], levers: Sequence[Moved]) -> str:
    """The whole document: how far each configuration and each lever moved."""
    stages, name = by_stage(rows), plan.look_at[0]
    # as a page has them: real arrows, and no line's end before a per cent sign
    lines = [
        line.replace("->", "\N{RIGHTWARDS ARROW}").replace(" %", "\N{NO-BREAK SPACE}%")
        for stage in stages
        if (line := progression(stage, name))
    ]
    definitions = [
        Markup.joined([tag("b", metric(each).title), f": {metric(each).definition}"])
        for each in plan.look_at
    ]
    sections = (
        [
            (
                tag("h2", "Around the best of them" if number else "One after the other"),
                _bars(stage, name),
                tag("p", lines[number]) if number and number < len(lines) else None,
            )
            for number, stage in enumerate(stages)
        ],
        tag("h2", "How far each lever moved"),
        notes_list(
            [lever_in_words(one, name) for one in levers], "No lever has two positions to compare."
        ),
        tag("h2", "All figures"),
        [_figures_table(plan, stage) for stage in stages],
        tag("h2", "What the figures are"),
        notes_list([*definitions, COMPARED], ""),
    )
    title = f"Sweep: {plan.summary or plan.name}"
    about = f"{metric(name).title}; {plan.blocks_in_words} of {span(plan.load.duration_s)}, {plan.users_in_words}"
    return document(
        title,
        heading=title,
        found=lines[0] if lines else "Nothing to compare",
        about=f"{about}, the prompts of {plan.profile}",
        sections=sections,
        notes=[f"{row.name}: {note}" for row in rows for note in row.notes],
        no_notes=NOTHING_SPEAKS,
    )


def _bars(rows: Sequence[SweepRow], name: str) -> Markup:
    """Lying bars with their names above, each with its interval: a phone has room for them, too."""
    values = [row.figure(name) or 0.0 for row in rows]
    ends = [row.ends(name) for row in rows]
    upper = [max(value, end[1]) if end else value for value, end in zip(values, ends, strict=True)]
    longest = min(ROOM * max(values, default=0.0), max(upper, default=0.0)) or 1.0
    bars = []
    for row, value, end in zip(rows, values, ends, strict=True):
        title = tag("span", row.name, class_="name")
        if row.status != "measured" or row.figure(name) is None:
            bars.append(tag("div", title, tag("span", said(row.became), class_="what")))
            continue
        compared = row.of(name)
        is_equal = compared is not None and compared.verdict == NO_DIFFERENCE
        words = f"{figure(name, value)} {difference_in_words(compared)}".strip()
        whisker = None
        if end is not None:
            left, right = 100 * max(0.0, end[0]) / longest, min(100.0, 100 * end[1] / longest)
            place = f"left:{left:.2f}%;width:{max(0.0, right - left):.2f}%"
            whisker = tag("i", class_="cut" if end[1] > longest else None, style=place)
        bar = tag("span", style=f"width:{100 * value / longest:.2f}%")
        bars.append(
            tag(
                "div",
                title,
                tag("span", words, class_="what"),
                tag("div", bar, whisker, class_="rail"),
                class_="first" if compared is None else "equal" if is_equal else None,
            )
        )
    return tag("div", bars, class_="bars")


def _figures_table(plan: SweepPlan, rows: Sequence[SweepRow]) -> Markup:
    names = known_of(plan.look_at, rows)
    titles = [metric(name).title for name in names]
    columns = [
        ("configuration", None),
        *((title, "right") for title in ("blocks", *titles, "start")),
    ]
    body: list[list[object]] = []
    for row in rows:
        status = tag("small", said(row.became)) if row.status != "measured" else None
        cells: list[object] = [Markup.joined([tag("b", row.name), status]), f"{len(row.blocks)}"]
        for name in names:
            compared = row.of(name)
            change = tag("small", difference_in_words(compared)) if compared else None
            cells.append(Markup.joined([figure(name, row.figure(name)), change]))
        body.append([*cells, "" if row.start_s is None else f"{row.start_s:.1f} s"])
    return rows_table(columns, body)
