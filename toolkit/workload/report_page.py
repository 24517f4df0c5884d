"""The report as one HTML file with plots.

Numbers and words come from the report; it reckons nothing but where a line goes.
"""

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from toolkit.report.charts import (
    BOX,
    ChartFrame,
    LineStyle,
    Scale,
    chart,
    empty,
    grid_x,
    grid_y,
    line,
    linear_ticks,
    word,
)
from toolkit.report.html import Markup, tag
from toolkit.report.page import (
    COLOURS,
    STROKES,
    document,
    figures_list,
    legend,
    notes_list,
    rows_table,
)
from toolkit.units import UNKNOWN, rate, round_span, share, span, tick, tick_share
from toolkit.workload.arrivals import Series
from toolkit.workload.forecast import HitCell
from toolkit.workload.lengths import Bin, LengthSpread
from toolkit.workload.levers import Lever
from toolkit.workload.report_words import (
    LEVER_NAMES,
    answered,
    figures,
    lever_number,
    losses_told,
    size_words,
    ttl_words,
)
from toolkit.workload.summary import Workload

MOST_POINTS = 300
"""Of a line: about one for two pixels."""
FIRST_REAL_TS = 86_400.0 * 365
"""Times of the year 1970 are a trace's own clock, not a calendar's."""


def page(report: Workload, *, told: str, notes: Sequence[str], losses: dict[str, int]) -> str:
    """The whole document. `told` names the source; `notes` and `losses` are what it said of itself."""
    body = tag(
        "main",
        tag("h1", "Workload of ", _source(told)),
        tag("p", report.headline, class_="headline"),
        figures_list(figures(report)),
        tag("h2", "Levers, by the GPU work they save"),
        _levers(report.levers),
        tag("h2", "What arrived"),
        tag("div", *_charts(report), class_="charts"),
        tag("h2", "What this rests on"),
        notes_list(
            [*losses_told(losses), *notes, *report.warnings, *report.unknown],
            "Nothing was lost, and nothing is unknown.",
        ),
    )
    return document(f"Workload: {report.headline}", body)


def _source(told: str) -> str:
    return told.replace("`", "")


def _levers(levers: Sequence[Lever]) -> Markup:
    rows = [
        (
            tag("b", LEVER_NAMES[lever.code]),
            share(lever.saved_share),
            share(lever.standalone_share),
            Markup.joined([lever_number(lever), tag("small", lever.caveat)]),
        )
        for lever in levers
    ]
    titles = [
        ("lever", None),
        ("saves", "right"),
        ("alone", "right"),
        ("its number, and its caveat", None),
    ]
    return rows_table(titles, rows, faint=[not lever.recommended for lever in levers])


# --- plots ----------------------------------------------------------------------------------------


def _charts(report: Workload) -> list[Markup]:
    return [
        _hit_chart(report.hit_curve),
        _top_chart(report),
        _rate_chart(report),
        _length_chart("prompt-tokens", "Prompt tokens", report.lengths.prompt_tokens),
        _length_chart("output-tokens", "Output tokens", report.lengths.output_tokens),
        _refusal_chart(report),
    ]


def _hit_chart(curve: Sequence[HitCell]) -> Markup:
    frame = ChartFrame(
        key="hits",
        title="Response cache",
        axes="share of requests answered from memory, joined ones included, by the answers it holds",
        alt="; ".join(_cell_words(cell) for cell in curve),
    )
    cells = [cell for cell in curve if cell.hit_ratio is not None]
    if not cells:
        return empty(frame, "Which requests are alike is not known.")
    sizes = sorted({cell.size for cell in cells if cell.size is not None})
    places = {size: (place + 0.5) / (len(sizes) + 1) for place, size in enumerate([*sizes, None])}
    lines, key = [], []
    for number, ttl in enumerate(sorted({cell.ttl_s for cell in cells}, key=_endless_last)):
        look = LineStyle(COLOURS[number % len(COLOURS)], STROKES[number % len(STROKES)])
        mine = {cell.size: cell for cell in cells if cell.ttl_s == ttl}
        points = [
            (places[size], answered(mine[size])) if size in mine else None
            for size in (*sizes, None)
        ]
        lines.append(line(ttl_words(ttl), points, look))
        key.append((ttl_words(ttl), look))
    grid, words = _shares_grid()
    ticks, names = grid_x((places[size], size_words(size)) for size in (*sizes, None))
    return chart(frame, [grid, ticks, *lines], [*words, *names], legend(key))


def _endless_last(ttl_s: float | None) -> float:
    return float("inf") if ttl_s is None else ttl_s


def _cell_words(cell: HitCell) -> str:
    return f"{size_words(cell.size)}, {ttl_words(cell.ttl_s)}: {share(answered(cell))}"


def _top_chart(report: Workload) -> Markup:
    told = [(name, value) for name, value in report.top_share.items() if value is not None]
    frame = ChartFrame(
        key="tops",
        title="Repetition",
        axes="share of requests that the most frequent prompts hold",
        alt="; ".join(f"top {name}: {share(value)}" for name, value in told),
    )
    if not told:
        return empty(frame, "Which requests are alike is not known.")
    return _bar_chart(frame, [(f"top {name}", value) for name, value in told], shares=True)


def _refusal_chart(report: Workload) -> Markup:
    refusals = report.model_length.refusals
    frame = ChartFrame(
        key="refusals",
        title="Refused at max_model_len",
        axes="share of these requests that would not fit",
        alt="; ".join(f"{one.max_model_len}: {share(one.refused_share)}" for one in refusals),
    )
    if not refusals:
        return empty(frame, f"Not known: {report.model_length.why}.")
    bars = [(size_words(one.max_model_len), one.refused_share) for one in refusals]
    return _bar_chart(frame, bars, shares=True)


def _length_chart(key: str, title: str, spread: LengthSpread | None) -> Markup:
    if spread is None or not spread.histogram:
        return empty(
            ChartFrame(key=key, title=title, alt=""),
            "Not known: capture with --full." if key == "output-tokens" else "Not known.",
        )
    frame = ChartFrame(
        key=key,
        title=title,
        axes=f"requests by length; median {_tokens(spread.p50)}, p99 {_tokens(spread.p99)}",
        alt=f"median {_tokens(spread.p50)}, longest {_tokens(spread.max)}",
    )
    return _bar_chart(frame, [(_bin_words(one), float(one.count)) for one in spread.histogram])


def _tokens(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}"


def _bin_words(one: Bin) -> str:
    return f"{size_words(round(one.low))}\N{EN DASH}{size_words(round(one.high))}"


def _rate_chart(report: Workload) -> Markup:
    series = report.arrivals.series
    frame = ChartFrame(
        key="arrivals",
        title="Arrivals",
        axes="" if series is None else f"requests per {round_span(series.bin_s)}",
        alt=f"{rate(report.arrivals.requests_per_s)} requests a second on average",
    )
    if series is None or len(series.requests) < 2 or report.arrivals.first_ts is None:
        return empty(frame, "Too few requests, or too little time, for a line.")
    counts = _thinned(_whole_bins(series, report.arrivals.duration_s))
    high = max(counts)
    scale = Scale(0.0, high * 1.08)
    points = [(place / (len(counts) - 1), scale.at(each)) for place, each in enumerate(counts)]
    grid, words = grid_y((scale.at(value), tick(value)) for value in linear_ticks(high))
    length_s = len(_whole_bins(series, report.arrivals.duration_s)) * series.bin_s
    times = [(place / 3, span(length_s * place / 3)) for place in range(4)]
    ticks, names = grid_x(times)
    drawn = line("requests", points, LineStyle(COLOURS[0], ""))
    return chart(frame, [grid, ticks, drawn], [*words, *names], _since(report.arrivals.first_ts))


def _whole_bins(series: Series, duration_s: float | None) -> Sequence[int]:
    """Without a last bin that the capture did not fill: it would look as if load fell."""
    whole = math.floor((duration_s or 0.0) / series.bin_s)
    return series.requests[:whole] if whole > 1 else series.requests


def _thinned(counts: Sequence[int]) -> list[float]:
    """Means of equal stretches, so many as a plot can show; a last stretch that is not whole is left out."""
    step = -(-len(counts) // MOST_POINTS)
    whole = range(0, len(counts) - len(counts) % step, step)
    return [sum(counts[start : start + step]) / step for start in whole]


def _since(first_ts: float) -> Markup | None:
    if first_ts < FIRST_REAL_TS:
        return None  # a trace whose clock starts at 0
    return tag(
        "p", f"from {datetime.fromtimestamp(first_ts, UTC):%Y-%m-%d %H:%M:%S} UTC", class_="nothing"
    )


def _shares_grid() -> tuple[Markup, list[Markup]]:
    return grid_y((value, tick_share(value)) for value in (0.0, 0.25, 0.5, 0.75, 1.0))


def _bar_chart(
    frame: ChartFrame, bars: Sequence[tuple[str, float]], *, shares: bool = False
) -> Markup:
    high = 1.0 if shares else max(value for _, value in bars) or 1.0
    scale = Scale(0.0, high if shares else high * 1.08)
    grid, words = (
        _shares_grid()
        if shares
        else grid_y((scale.at(value), tick(value)) for value in linear_ticks(high))
    )
    width = 1 / len(bars)
    step = -(-len(bars) // 6)  # words of more bars would run into each other
    names = [
        word(name, x=(place + 0.5) * width, y=0, class_="tick x")
        for place, (name, _) in enumerate(bars)
        if place % step == 0
    ]
    drawn = [
        tag(
            "g",
            tag("title", f"{name}: {share(value) if shares else tick(value)}"),
            tag("path", d=_bar(place * width, width, scale.at(value)), class_="bar"),
        )
        for place, (name, value) in enumerate(bars)
    ]
    return chart(frame, [grid, *drawn], [*words, *names])


def _bar(x: float, width: float, height: float) -> str:
    left, right = (x + 0.12 * width) * BOX, (x + 0.88 * width) * BOX
    return f"M{left:.1f} {BOX}V{(1 - height) * BOX:.1f}H{right:.1f}V{BOX}Z"
