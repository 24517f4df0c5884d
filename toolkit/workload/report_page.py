"""The report as one HTML file with plots: nothing in it is fetched, no script runs, and it prints as it looks.

Numbers and words come from the report; it reckons nothing but where a line goes.
"""

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from toolkit.markup import Markup, tag
from toolkit.plot import (
    BOX,
    Frame,
    Look,
    Scale,
    chart,
    empty,
    grid_x,
    grid_y,
    line,
    linear_ticks,
    word,
)
from toolkit.wording import UNKNOWN, rate, share, span, tick
from toolkit.workload.arrivals import Series
from toolkit.workload.forecast import HitCell
from toolkit.workload.lengths import Bin, Spread
from toolkit.workload.levers import Lever
from toolkit.workload.report_words import (
    LEVER_NAMES,
    answered,
    figures,
    length_of_time,
    lever_number,
    losses_told,
    size_words,
    ttl_words,
)
from toolkit.workload.summary import Workload

COLOURS = ("var(--c0)", "var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)", "var(--c5)")
STROKES = ("", "9 5", "2 5", "12 4 2 4")
MOST_POINTS = 300
"""Of a line: about one for two pixels."""
FIRST_REAL_TS = 86_400.0 * 365
"""Times of the year 1970 are a trace's own clock, not a calendar's."""

STYLE = """
:root { color-scheme: light dark; --ink: #14181d; --soft: #5a6572; --line: #d7dde3; --paper: #fff; --accent: #0b6bcb;
  --c0: #0072b2; --c1: #d55e00; --c2: #007a5a; --c3: #a3386f; --c4: #7a6a00; --c5: #5b4bb5; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8edf2; --soft: #9aa7b4; --line: #2f3842; --paper: #14181d;
  --accent: #5cb0ff; --c0: #56b4e9; --c1: #ff8c42; --c2: #2fc49a; --c3: #e58bc0; --c4: #d9c84a; --c5: #a99bf5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 74rem; padding: 1.6rem 1.2rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums; }
h1 { font-size: 1.15rem; font-weight: 500; color: var(--soft); margin: 0; } h2 { font-size: 1.15rem; margin: 2.4rem 0 .8rem; }
.headline { font-size: 1.9rem; line-height: 1.25; font-weight: 650; margin: .3rem 0 1.4rem; text-wrap: balance; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); gap: 1rem 1.6rem; margin: 0; }
dt { color: var(--soft); font-size: .9rem; } dd { margin: 0; font-size: 1.25rem; } dd small { display: block; font-size: .85rem;
  color: var(--soft); line-height: 1.35; }
.table { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th { text-align: left; font-weight: 500; color: var(--soft); font-size: .9rem; } td, th { padding: .45rem .8rem .45rem 0;
  border-bottom: 1px solid var(--line); vertical-align: top; } .right { text-align: right; white-space: nowrap; }
.not td:first-child { color: var(--soft); } td small { color: var(--soft); display: block; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(27rem, 100%), 1fr)); gap: 2rem 2.4rem; }
figure { margin: 0; min-width: 0; } figcaption b { font-weight: 650; margin-right: .6rem; } figcaption small { color: var(--soft); }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
.plot { position: relative; height: 15rem; margin: .6rem 1.6rem 2rem 3.6rem; }
.plot svg { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible; }
.plot path { fill: none; vector-effect: non-scaling-stroke; stroke-linejoin: round; stroke-linecap: round; }
.plot .grid { stroke: var(--line); } .plot .line .ink { stroke: var(--host); stroke-width: 2.4; } .plot .reach { stroke: transparent;
  stroke-width: 14; pointer-events: stroke; } .plot .bar { fill: var(--accent); opacity: .8; stroke: none; }
.plot > span { position: absolute; white-space: nowrap; font-size: .82rem; line-height: 1.1; color: var(--soft); }
.tick.x { transform: translate(-50%, .55rem); } .tick.y { transform: translate(calc(-100% - .5rem), -50%); }
.key { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; padding: 0 0 0 3.6rem; margin: 0; list-style: none; font-size: .9rem; }
.key i { display: inline-block; width: 1.6em; border-top: 3px solid; vertical-align: middle; margin-right: .4em; }
.nothing, .notes { color: var(--soft); } .notes li { margin: .25rem 0; } p { max-width: 62rem; }
h1, .headline, dd { overflow-wrap: anywhere; }
@media (max-width: 44rem) { .headline { font-size: 1.5rem; } thead { display: none; } tr { display: grid;
  grid-template-columns: 1fr auto auto; border-bottom: 1px solid var(--line); padding: .6rem 0; } td { border: 0; padding: 0 .8rem 0 0; }
  td:last-child { grid-column: 1 / -1; } td.right:nth-child(2)::before { content: "saves "; color: var(--soft); }
  td.right:nth-child(3)::before { content: "alone "; color: var(--soft); } .plot { margin-left: 3rem; } }
@media print { body { max-width: none; } figure, tr { break-inside: avoid; } }
"""


def page(report: Workload, *, told: str, notes: Sequence[str], losses: dict[str, int]) -> str:
    """The whole document. `told` names the source; `notes` and `losses` are what it said of itself."""
    body = tag(
        "main",
        tag("h1", "Workload of ", _source(told)),
        tag("p", report.headline, class_="headline"),
        _figures(report),
        tag("h2", "Levers, by the GPU work they save"),
        _levers(report.levers),
        tag("h2", "What arrived"),
        tag("div", *_charts(report), class_="charts"),
        tag("h2", "What this rests on"),
        _notes(report, notes, losses),
    )
    head = tag(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        # whatever a prompt or a model's name holds, nothing is asked of anybody
        Markup(
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        ),
        tag("title", f"Workload: {report.headline}"),
        Markup(f"<style>{STYLE}</style>"),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', body), lang='en')}\n"


def _source(told: str) -> str:
    return told.replace("`", "")


def _figures(report: Workload) -> Markup:
    return tag(
        "dl",
        [
            tag("div", tag("dt", name), tag("dd", value, tag("small", more) if more else None))
            for name, value, more in figures(report)
        ],
    )


def _levers(levers: Sequence[Lever]) -> Markup:
    rows = [
        tag(
            "tr",
            tag("td", tag("b", LEVER_NAMES[lever.code])),
            tag(
                "td",
                UNKNOWN if lever.saved_share is None else share(lever.saved_share),
                class_="right",
            ),
            tag(
                "td",
                UNKNOWN if lever.standalone_share is None else share(lever.standalone_share),
                class_="right",
            ),
            tag("td", lever_number(lever), tag("small", lever.caveat)),
            class_=None if lever.recommended else "not",
        )
        for lever in levers
    ]
    head = tag(
        "tr",
        tag("th", "lever"),
        tag("th", "saves", class_="right"),
        tag("th", "alone", class_="right"),
        tag("th", "its number, and its caveat"),
    )
    return tag("div", tag("table", tag("thead", head), tag("tbody", rows)), class_="table")


def _notes(report: Workload, notes: Sequence[str], losses: dict[str, int]) -> Markup:
    told = [*losses_told(losses), *notes, *report.warnings, *report.unknown]
    if not told:
        return tag("p", "Nothing was lost, and nothing is unknown.", class_="nothing")
    return tag("ul", [tag("li", one) for one in told], class_="notes")


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
    frame = Frame(
        key="hits",
        title="Response cache",
        axes="share of requests answered from memory, joined ones included, by the answers it holds",
        told="; ".join(_cell_words(cell) for cell in curve),
    )
    cells = [cell for cell in curve if cell.hit_ratio is not None]
    if not cells:
        return empty(frame, "Which requests are alike is not known.")
    sizes = sorted({cell.size for cell in cells if cell.size is not None})
    places = {size: (place + 0.5) / (len(sizes) + 1) for place, size in enumerate([*sizes, None])}
    lines, key = [], []
    for number, ttl in enumerate(sorted({cell.ttl_s for cell in cells}, key=_endless_last)):
        look = Look(COLOURS[number % len(COLOURS)], STROKES[number % len(STROKES)])
        mine = {cell.size: cell for cell in cells if cell.ttl_s == ttl}
        points = [
            (places[size], answered(mine[size])) if size in mine else None
            for size in (*sizes, None)
        ]
        lines.append(line(ttl_words(ttl), points, look))
        key.append(tag("li", tag("i", style=f"border-color:{look.colour}"), ttl_words(ttl)))
    grid, words = _shares_grid()
    ticks, names = grid_x((places[size], size_words(size)) for size in (*sizes, None))
    return chart(frame, [grid, ticks, *lines], [*words, *names], tag("ul", key, class_="key"))


def _endless_last(ttl_s: float | None) -> float:
    return float("inf") if ttl_s is None else ttl_s


def _cell_words(cell: HitCell) -> str:
    return f"{size_words(cell.size)}, {ttl_words(cell.ttl_s)}: {share(answered(cell))}"


def _top_chart(report: Workload) -> Markup:
    told = [(name, value) for name, value in report.top_share.items() if value is not None]
    frame = Frame(
        key="tops",
        title="Repetition",
        axes="share of requests that the most frequent prompts hold",
        told="; ".join(f"top {name}: {share(value)}" for name, value in told),
    )
    if not told:
        return empty(frame, "Which requests are alike is not known.")
    return _bar_chart(frame, [(f"top {name}", value) for name, value in told], shares=True)


def _refusal_chart(report: Workload) -> Markup:
    refusals = report.model_length.refusals
    frame = Frame(
        key="refusals",
        title="Refused at max_model_len",
        axes="share of these requests that would not fit",
        told="; ".join(f"{one.max_model_len}: {share(one.refused_share)}" for one in refusals),
    )
    if not refusals:
        return empty(frame, f"Not known: {report.model_length.why}.")
    bars = [(size_words(one.max_model_len), one.refused_share) for one in refusals]
    return _bar_chart(frame, bars, shares=True)


def _length_chart(key: str, title: str, spread: Spread | None) -> Markup:
    if spread is None or not spread.histogram:
        return empty(
            Frame(key=key, title=title, told=""),
            "Not known: capture with --full." if key == "output-tokens" else "Not known.",
        )
    frame = Frame(
        key=key,
        title=title,
        axes=f"requests by length; median {_tokens(spread.p50)}, p99 {_tokens(spread.p99)}",
        told=f"median {_tokens(spread.p50)}, longest {_tokens(spread.max)}",
    )
    return _bar_chart(frame, [(_bin_words(one), float(one.count)) for one in spread.histogram])


def _tokens(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}"


def _bin_words(one: Bin) -> str:
    return f"{size_words(round(one.low))}\N{EN DASH}{size_words(round(one.high))}"


def _rate_chart(report: Workload) -> Markup:
    series = report.arrivals.series
    frame = Frame(
        key="arrivals",
        title="Arrivals",
        axes="" if series is None else f"requests per {length_of_time(series.bin_s)}",
        told=f"{rate(report.arrivals.requests_per_s)} requests a second on average",
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
    drawn = line("requests", points, Look(COLOURS[0], ""))
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
    return grid_y((value, f"{100 * value:.0f} %") for value in (0.0, 0.25, 0.5, 0.75, 1.0))


def _bar_chart(frame: Frame, bars: Sequence[tuple[str, float]], *, shares: bool = False) -> Markup:
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
