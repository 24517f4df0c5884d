"""What a report says to people: its figures in words, the same for the terminal and for HTML, and one HTML file with plots.

Numbers come from the report; nothing is reckoned here but where a line goes.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise

from toolkit.report import charts
from toolkit.report import page as pages
from toolkit.report.charts import BOX, ChartFrame, LineStyle
from toolkit.report.html import Markup, tag
from toolkit.units import (
    UNKNOWN,
    counted,
    digits,
    milliseconds,
    rate,
    round_span,
    share,
    span,
    tick,
    tick_share,
)
from toolkit.workload.forecast import HitCell
from toolkit.workload.lengths import LengthSpread
from toolkit.workload.levers import NAMES, Lever
from toolkit.workload.summary import Workload

LOSSES = {
    "kernel_drops": "frames that the kernel dropped",
    "app_drops": "requests dropped for want of room",
    "gaps": "holes in connections",
    "truncated": "frames cut by the capture (use -s 0)",
    "encrypted": "connections that speak TLS",
    "unparsed": "stretches that were no HTTP/1",
}
"""Classes of a capture's losses, in the words for one report."""
MOST_POINTS = 300
"""Of a line: about one for two pixels."""
FIRST_REAL_TS = 86_400.0 * 365
"""Times of the year 1970 are a trace's own clock, not a calendar's."""

Figure = tuple[str, str, str]
"""Name, value, and what explains it; the last may be empty."""


def figures(report: Workload) -> Iterator[Figure]:
    """What arrived, one figure a row: how many came and how they repeat, then when, how long, and how they were answered."""
    beside = {
        "that ask no model": report.other,
        "refused and left out": report.refused,
        "damaged": report.damaged,
    }
    yield "requests", f"{report.requests:,}", _counts(beside)
    if report.unique_prompts is None:
        yield "unique", UNKNOWN, "nothing says which requests are alike"
    else:
        ways = {
            "as a cache sees them": report.unique_canonical,
            "byte for byte": report.unique_exact,
        }
        yield "unique", counted(report.unique_prompts, "prompt"), _counts(ways)
    tops = [(name, share(value)) for name, value in report.top_share.items() if value is not None]
    if tops:
        # what is asked by the top 10 as well as by the top 100 needs no second word
        news = [one for before, one in pairwise(tops) if one[1] != before[1]]
        more = ", ".join(f"top {name}: {value}" for name, value in news)
        yield "most frequent prompt", f"{tops[0][1]} of requests", more
    spread = report.distribution
    if report.entropy_bits is not None:
        alike = f"as much as {_count(spread.effective_prompts)} equally frequent prompts have"
        if spread.zipf is not None:
            laws = {"zipf": "Zipf", "unknown": "Zipf or not is unknown"}
            alike += f"; {laws.get(spread.zipf.shape, 'not Zipf')}: {spread.zipf.why}"
        yield "entropy", f"{report.entropy_bits:.2f} bits", alike

    if (ahead := report.forecast) is not None and (chance := ahead.chance).ratio is not None:
        more = f"of further requests ask what came before; {share(chance.repeats_ratio)} did so far"
        low, high = share(chance.low), share(chance.high)
        # where no prompt came only once, chance has nothing to vary: an interval of no width would only look like a proof
        if low != high:
            more += f"; 95 % sure: {low} to {high}"
        yield "repeats to come", share(chance.ratio), more
    if ahead is not None and ahead.recommended_size is not None:
        endless = [
            next((one for one in cells if one.size is None and one.ttl_s is None), None)
            for cells in (ahead.canonical, ahead.exact, ahead.prompt)
        ]
        kinds = ("; without end it answers", ", keyed by bytes", ", keyed by the prompt alone")
        ratios = (
            f"{kind} {share(answered(cell))}"
            for kind, cell in zip(kinds, endless, strict=True)
            if cell is not None and cell.hit_ratio is not None and endless[0] is not None
        )
        more = "answers that a response cache should hold" + "".join(ratios)
        yield "cache size", f"{ahead.recommended_size:,}", more
    if report.prefix_share is not None:
        found = report.prefixes
        parts = ["of prompt tokens, the ceiling of a prefix cache"]
        parts += ["an estimate from bytes"] * found.estimated
        parts += [
            f"{share(cell.share)} with {cell.tokens:,.0f} tokens of KV cache"
            for cell in found.by_capacity
        ]
        parts += [
            f"the largest: {_count(one.tokens)} tokens of {one.requests:,} requests"
            for one in found.by_volume[:1]
        ]
        yield "shared prefixes", share(report.prefix_share), "; ".join(parts)

    yield "streamed", share(report.stream_share), ""
    if (came := report.arrivals).requests_per_s is None:
        yield "rate", UNKNOWN, came.why
    else:
        more = f"over {span(came.duration_s)}, up to {came.peak_requests_per_s or 0:,} in a second"
        if came.burstiness is not None:
            law = "as" if came.burstiness == "poisson" else f"{came.burstiness} than"
            more += f", {law} Poisson ({came.why})"
        yield "rate", f"{rate(came.requests_per_s)} /s", more
    if (at_once := report.concurrency).p50 is None:
        yield "under way at once", UNKNOWN, at_once.why
    else:
        more = f"median of arrivals; p99 {_count(at_once.p99)}; {at_once.why}"
        yield "under way at once", f"{at_once.p50:,}", more
    yield "prompt tokens", *_spread(report.lengths.prompt_tokens)
    yield "output tokens", *_spread(report.lengths.output_tokens)
    for setting in report.mix.parameters:
        if setting.name not in {"stream", "messages"}:
            first, *others = setting.values
            parts = [f"{share(first.share)} of requests"]
            parts += [f"{_value(one.value)}: {share(one.share)}" for one in others]
            if setting.rest:
                rest = setting.different - len(setting.values)
                parts.append(f"{rest:,} more: {setting.rest:,} requests")
            yield setting.name, _value(first.value), ", ".join(parts)
    if (who := report.clients).clients:
        parts = []
        if who.clients > 1:
            parts.append(f"the busiest sent {share(who.top[0].share)}")
            if who.shared_share is not None:
                parts.append(
                    f"{share(who.shared_share)} of requests bear a prompt of several clients"
                )
        yield "clients", f"{who.clients:,}", ", ".join(parts)

    if (answers := report.answers).latency_ms is None and not answers.statuses:
        yield "answers", UNKNOWN, ""
    else:
        value, parts = f"{sum(answers.statuses.values()):,}", []
        if answers.latency_ms is not None:
            value, parts = milliseconds(answers.latency_ms.p50), ["median latency"]
        parts += [f"HTTP {status}: {count:,}" for status, count in answers.statuses.items()]
        if (ttft := answers.ttft_ms) is not None:
            parts.append(f"TTFT p50 {milliseconds(ttft.p50)}, p99 {milliseconds(ttft.p99)}")
        if answers.cache_told:
            hits, joined = share(answers.cache_hit_ratio), share(answers.cache_coalesced_ratio)
            parts.append(f"{hits} from a cache, {joined} joined")
        yield "answers", value, "; ".join(parts)
    if (limit := report.model_length).recommended is None:
        yield "max_model_len", UNKNOWN, limit.why
    else:
        more = f"recommended: {limit.why}, {100 * limit.margin:.0f} % more, rounded up"
        if limit.wanted != limit.recommended:
            more = f"recommended: all that the model takes; {limit.wanted:,} would leave room"
        more += "" if limit.current is None else f"; {limit.current:,} is set now"
        yield "max_model_len", f"{limit.recommended:,}", more


def _counts(counts: Mapping[str, int | None]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)


def _spread(found: LengthSpread | None) -> tuple[str, str]:
    if found is None:
        return UNKNOWN, ""
    ends = {"p90": found.p90, "p99": found.p99, "longest": found.max}
    parts = [f"{name} {_count(value)}" for name, value in ends.items() if value is not None]
    # so many answers were cut off that nobody knows what half of them would have come to
    middle = "median" if found.p50 is not None else "median unknown"
    if found.censored:
        parts.append(f"{found.censored:,} cut off by their limit")
    return _count(found.p50), f"{middle}; {', '.join(parts)}; mean {_count(found.mean)}"


def _count(value: float | None) -> str:
    """A number of tokens or the like: no decimals where it is whole."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value == round(value) else digits(value)


def _value(value: object) -> str:
    if value is None:
        return "not set"
    return tick(value) if isinstance(value, float) else str(value)


def answered(cell: HitCell) -> float:
    """Share of requests that no engine has to compute: from memory, or by joining one under way."""
    return min(1.0, (cell.hit_ratio or 0.0) + (cell.coalesced_ratio or 0.0))


def lever_number(lever: Lever) -> str:
    """A lever's own figure with what it is of; empty where it has none."""
    if lever.number is None:
        return ""
    if lever.what.startswith("share"):
        return f"{share(lever.number)}: {lever.what}"
    return f"{lever.number:,.3g} {lever.what}"


def losses_lines(losses: Mapping[str, int]) -> list[str]:
    """What a capture lost, a sentence a class; none where nothing was."""
    return [f"{losses[name]:,} {what}" for name, what in LOSSES.items() if losses.get(name)]


def endless_last(value: float | None) -> float:
    """What to sort sizes and times to live by: without end comes last."""
    return math.inf if value is None else value


def size_words(size: int | None) -> str:
    """`1k` for 1,000 and for 1,024, as people call limits of either kind."""
    if size is None:
        return "all"
    for unit in (1000, 1024):
        if size >= unit and size % unit == 0:
            return f"{size // unit}k"
    return f"{size}"


def ttl_words(ttl_s: float | None) -> str:
    """A time to live."""
    return "kept for ever" if ttl_s is None else f"kept {round_span(ttl_s)}"


# --- One HTML file ----------------------------------------------------------------------------------------


def page(report: Workload, *, source: str, notes: Sequence[str], losses: Mapping[str, int]) -> str:
    """The whole document. `source` names where requests come from; `notes` and `losses` are what it said of itself."""
    titles = [
        ("lever", None),
        ("saves", "right"),
        ("alone", "right"),
        ("its number, and its caveat", None),
    ]
    rows = [
        (
            tag("b", NAMES[lever.code]),
            share(lever.saved_share),
            share(lever.standalone_share),
            Markup.joined([lever_number(lever), tag("small", lever.caveat)]),
        )
        for lever in report.levers
    ]
    limit = report.model_length
    drawn = [
        _hit_chart(report.hit_curve),
        _bar_chart(
            "tops",
            "Repetition",
            "share of requests that the most frequent prompts hold",
            {f"top {name}": value for name, value in report.top_share.items() if value is not None},
            share,
            otherwise="Which requests are alike is not known.",
        ),
        _rate_chart(report),
        _length_chart("prompt-tokens", "Prompt tokens", report.lengths.prompt_tokens),
        _length_chart("output-tokens", "Output tokens", report.lengths.output_tokens),
        _bar_chart(
            "refusals",
            "Refused at max_model_len",
            "share of these requests that would not fit",
            {size_words(one.max_model_len): one.refused_share for one in limit.refusals},
            share,
            otherwise=f"Not known: {limit.why}.",
        ),
    ]
    return pages.document(
        f"Workload: {report.headline}",
        heading=["Workload of ", source.replace("`", "")],
        found=report.headline,
        sections=[
            pages.figures_list(list(figures(report))),
            tag("h2", "Levers, by the GPU work they save"),
            pages.rows_table(titles, rows, faint=[not one.recommended for one in report.levers]),
            tag("h2", "What arrived"),
            tag("div", *drawn, class_="charts"),
        ],
        notes=[*losses_lines(losses), *notes, *report.warnings, *report.unknown],
        no_notes="Nothing was lost, and nothing is unknown.",
    )


def _hit_chart(curve: Sequence[HitCell]) -> Markup:
    cells = {(cell.size, cell.ttl_s): cell for cell in curve if cell.hit_ratio is not None}
    frame = ChartFrame(
        key="hits",
        title="Response cache",
        axes="share of requests answered from memory, joined ones included, by the answers it holds",
        alt="; ".join(
            f"{size_words(size)}, {ttl_words(ttl)}: {share(answered(cell))}"
            for (size, ttl), cell in cells.items()
        ),
    )
    if not cells:
        return charts.empty(frame, "Which requests are alike is not known.")
    sizes = sorted({size for size, _ in cells}, key=endless_last)
    places = {size: (place + 0.5) / len(sizes) for place, size in enumerate(sizes)}
    lines, key = [], []
    for number, ttl in enumerate(sorted({ttl for _, ttl in cells}, key=endless_last)):
        look = LineStyle(
            pages.COLOURS[number % len(pages.COLOURS)], pages.STROKES[number % len(pages.STROKES)]
        )
        points = [
            (places[size], answered(cells[size, ttl])) if (size, ttl) in cells else None
            for size in sizes
        ]
        lines.append(charts.line(ttl_words(ttl), points, look))
        key.append((ttl_words(ttl), look))
    grid, words = _shares_grid()
    ticks, names = charts.grid_x((places[size], size_words(size)) for size in sizes)
    return charts.chart(frame, [grid, ticks, *lines], [*words, *names], pages.legend(key))


def _length_chart(key: str, title: str, spread: LengthSpread | None) -> Markup:
    bars, axes = {}, ""
    if spread is not None:
        axes = f"requests by length; median {_count(spread.p50)}, p99 {_count(spread.p99)}"
        bars = {
            f"{size_words(round(one.low))}\N{EN DASH}{size_words(round(one.high))}": one.count
            for one in spread.histogram
        }
    why = "Not known: capture with --full." if key == "output-tokens" else "Not known."
    return _bar_chart(key, title, axes, bars, tick, otherwise=why)


def _rate_chart(report: Workload) -> Markup:
    came = report.arrivals
    began = ""
    if came.first_ts is not None and came.first_ts >= FIRST_REAL_TS:
        began = f", from {datetime.fromtimestamp(came.first_ts, UTC):%Y-%m-%d %H:%M:%S} UTC"
    frame = ChartFrame(
        key="arrivals",
        title="Arrivals",
        axes="" if came.series is None else f"requests per {round_span(came.series.bin_s)}{began}",
        alt=f"{rate(came.requests_per_s)} requests a second on average",
    )
    if came.series is None or len(came.series.requests) < 2:
        return charts.empty(frame, "Too few requests, or too little time, for a line.")
    # without a last bin that the capture did not fill: it would look as if load fell
    filled = math.floor((came.duration_s or 0.0) / came.series.bin_s)
    bins = came.series.requests[:filled] if filled > 1 else came.series.requests
    # means of equal stretches, so many as a plot can show; a last stretch that is not whole is left out
    step = -(-len(bins) // MOST_POINTS)
    starts = range(0, len(bins) - len(bins) % step, step)
    means = [sum(bins[start : start + step]) / step for start in starts]
    middles = [(start + step / 2) * came.series.bin_s for start in starts]
    lines = [("requests", means, LineStyle(pages.COLOURS[0], ""))]
    return pages.time_chart(frame, middles, lines, max(means))


def _shares_grid() -> tuple[Markup, list[Markup]]:
    return charts.grid_y((value, tick_share(value)) for value in (0.0, 0.25, 0.5, 0.75, 1.0))


def _bar_chart(
    key: str,
    title: str,
    axes: str,
    bars: Mapping[str, float],
    written: Callable[[float], str],
    *,
    otherwise: str,
) -> Markup:
    """A bar for each name; its value as `written`, which is `share` for shares of one; `otherwise`, where there is none."""
    alt = "; ".join(f"{name}: {written(value)}" for name, value in bars.items())
    frame = ChartFrame(key=key, title=title, axes=axes, alt=alt)
    if not bars:
        return charts.empty(frame, otherwise)
    high = max(bars.values()) or 1.0
    scale = charts.Scale(0.0, high * pages.HEADROOM)
    grid, words = charts.grid_y((scale.at(v), tick(v)) for v in charts.linear_ticks(high))
    if written is share:
        scale = charts.Scale(0.0, 1.0)
        grid, words = _shares_grid()
    width = 1 / len(bars)
    step = -(-len(bars) // 6)  # words of more bars would run into each other
    drawn = []
    for place, (name, value) in enumerate(bars.items()):
        if place % step == 0:
            words.append(charts.word(name, x=(place + 0.5) * width, y=0, class_="tick x"))
        left, right = (place + 0.12) * width * BOX, (place + 0.88) * width * BOX
        top = (1 - scale.at(value)) * BOX
        path = tag("path", d=f"M{left:.1f} {BOX}V{top:.1f}H{right:.1f}V{BOX}Z", class_="bar")
        drawn.append(tag("g", tag("title", f"{name}: {written(value)}"), path))
    return charts.chart(frame, [grid, *drawn], words)
