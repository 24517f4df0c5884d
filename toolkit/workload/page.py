"""A report for people: its figures in words, the same for the terminal and for HTML, and one HTML file with plots.

Numbers come from the report; it reckons nothing but where a line goes.
"""

import math
from collections.abc import Mapping, Sequence
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
    HEADROOM,
    STROKES,
    document,
    figures_list,
    legend,
    rows_table,
)
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
from toolkit.workload.levers import Code, Lever
from toolkit.workload.summary import Workload

LEVER_NAMES: dict[Code, str] = {
    "response_cache": "response cache",
    "single_flight": "single-flight",
    "prefix_cache": "prefix cache",
    "max_model_len": "max_model_len",
    "max_tokens": "max_tokens",
    "batching": "batching",
    "quantization": "quantization",
}

LOSSES = {
    "kernel_drops": "frames that the kernel dropped",
    "app_drops": "requests dropped for want of room",
    "gaps": "holes in connections",
    "truncated": "frames cut by the capture (use -s 0)",
    "encrypted": "connections that speak TLS",
    "unparsed": "stretches that were no HTTP/1",
}
"""Classes of a capture's losses, in the words for one report."""

Figure = tuple[str, str, str]
"""Name, value, and what explains it; the last may be empty."""
MOST_POINTS = 300
"""Of a line: about one for two pixels."""
FIRST_REAL_TS = 86_400.0 * 365
"""Times of the year 1970 are a trace's own clock, not a calendar's."""


def figures(report: Workload) -> list[Figure]:
    """What arrived, one figure a row."""
    return [row for row in (*_repetition(report), *_traffic(report)) if row[1]]


def _repetition(report: Workload) -> list[Figure]:
    """How many came, how they repeat, and what caches make of it."""
    beside = (
        (report.other, "that ask no model"),
        (report.refused, "refused and left out"),
        (report.damaged, "damaged"),
    )
    told = ", ".join(f"{count:,} {what}" for count, what in beside if count)
    rows = [("requests", f"{report.requests:,}", told)]

    if report.unique_prompts is None:
        rows.append(("unique", UNKNOWN, "nothing tells which requests are alike"))
    else:
        ways = (
            (report.unique_canonical, "as a cache sees them"),
            (report.unique_exact, "byte for byte"),
        )
        told = ", ".join(f"{count:,} {what}" for count, what in ways if count is not None)
        rows.append(("unique", counted(report.unique_prompts, "prompt"), told))

    tops = [(name, share(value)) for name, value in report.top_share.items() if value is not None]
    if tops:
        (_, first), *more = tops
        # what is asked by the top 10 as well as by the top 100 needs no second word
        news = [one for before, one in zip(tops, more, strict=False) if one[1] != before[1]]
        told = ", ".join(f"top {name}: {value}" for name, value in news)
        rows.append(("most frequent prompt", f"{first} of requests", told))

    spread = report.distribution
    if report.entropy_bits is not None:
        said = []
        if spread.effective_prompts is not None:
            alike = _count(spread.effective_prompts)
            said.append(f"as much as {alike} equally frequent prompts have")
        if spread.zipf is not None:
            laws = {"zipf": "Zipf", "unknown": "Zipf or not is unknown"}
            said.append(f"{laws.get(spread.zipf.shape, 'not Zipf')}: {spread.zipf.why}")
        rows.append(("entropy", f"{report.entropy_bits:.2f} bits", "; ".join(said)))

    ahead = report.forecast
    if ahead is not None and ahead.chance.ratio is not None:
        chance = ahead.chance
        told = f"of further requests ask what came before; {share(chance.repeats_ratio)} did so far"
        low, high = share(chance.low), share(chance.high)
        # where no prompt came only once, chance has nothing to vary: an interval of no width would only look like a proof
        if low != high:
            told = f"{told}; 95 % sure: {low} to {high}"
        rows.append(("repeats to come", share(chance.ratio), told))
    if ahead is not None and ahead.recommended_size is not None:
        told = "answers that a response cache should hold"
        endless = _endless_ratio(ahead.canonical)
        if endless is not None:
            told += f"; without end it answers {share(endless)}"
            for key, cells in (("bytes", ahead.exact), ("the prompt alone", ahead.prompt)):
                ratio = _endless_ratio(cells)
                told += "" if ratio is None else f", keyed by {key} {share(ratio)}"
        rows.append(("cache size", f"{ahead.recommended_size:,}", told))

    found = report.prefixes
    if report.prefix_share is not None:
        said = ["of prompt tokens, the ceiling of a prefix cache"]
        if found.estimated:
            said.append("an estimate from bytes")
        for cell in found.by_capacity:
            said.append(f"{share(cell.share)} with {cell.tokens:,.0f} tokens of KV cache")
        if found.by_volume:
            first_ = found.by_volume[0]
            tokens = _count(first_.tokens)
            said.append(f"the largest: {tokens} tokens of {first_.requests:,} requests")
        rows.append(("shared prefixes", share(report.prefix_share), "; ".join(said)))
    return rows


def _traffic(report: Workload) -> list[Figure]:
    """When they came, how long they are, what they ask for, and how they were answered."""
    rows = [("streamed", share(report.stream_share), "")]

    came = report.arrivals
    if came.requests_per_s is None:
        rows.append(("rate", UNKNOWN, came.why))
    else:
        said = [f"over {span(came.duration_s)}"]
        if came.peak_requests_per_s is not None:
            said.append(f"up to {came.peak_requests_per_s:,} in a second")
        if came.burstiness is not None:
            law = "as" if came.burstiness == "poisson" else f"{came.burstiness} than"
            said.append(f"{law} Poisson ({came.why})")
        rows.append(("rate", f"{rate(came.requests_per_s)} /s", ", ".join(said)))

    at_once = report.concurrency
    if at_once.basis is None:
        rows.append(("under way at once", UNKNOWN, at_once.why))
    elif at_once.p50 is None:
        rows.append(("under way at once", f"{_count(at_once.mean)} on average", at_once.why))
    else:
        told = f"median of arrivals; p99 {_count(at_once.p99)}; {at_once.why}"
        rows.append(("under way at once", f"{at_once.p50:,}", told))

    rows.append(("prompt tokens", *_spread(report.lengths.prompt_tokens)))
    rows.append(("output tokens", *_spread(report.lengths.output_tokens)))
    for setting in report.mix.parameters:
        if setting.name not in {"stream", "messages"}:
            first, *more = setting.values
            said = [f"{share(first.share)} of requests"]
            said += [f"{_value(one.value)}: {share(one.share)}" for one in more]
            if setting.rest:
                others = setting.different - len(setting.values)
                said.append(f"{others:,} more: {setting.rest:,} requests")
            rows.append((setting.name, _value(first.value), ", ".join(said)))

    who = report.clients
    if who.clients:
        said = []
        if who.top_share is not None and who.clients > 1:
            said.append(f"the busiest sent {share(who.top[0].share)}")
        if who.shared_share is not None and who.clients > 1:
            said.append(f"{share(who.shared_share)} of requests bear a prompt of several clients")
        rows.append(("clients", f"{who.clients:,}", ", ".join(said)))

    answers = report.answers
    value = UNKNOWN
    said = []
    if answers.latency_ms is not None:
        value = milliseconds(answers.latency_ms.p50)
        said.append("median latency")
    elif answers.statuses:
        value = f"{sum(answers.statuses.values()):,}"
    if value != UNKNOWN:
        said += [f"HTTP {status}: {count:,}" for status, count in answers.statuses.items()]
        if (ttft := answers.ttft_ms) is not None:
            said.append(f"TTFT p50 {milliseconds(ttft.p50)}, p99 {milliseconds(ttft.p99)}")
        if answers.cache_told:
            hits, joined = share(answers.cache_hit_ratio), share(answers.cache_coalesced_ratio)
            said.append(f"{hits} from a cache, {joined} joined")
    rows.append(("answers", value, "; ".join(said)))

    limit = report.model_length
    if limit.recommended is None:
        rows.append(("max_model_len", UNKNOWN, limit.why))
    else:
        told = f"recommended: {limit.why}, {100 * limit.margin:.0f} % more, rounded up"
        if limit.wanted != limit.recommended:
            told = f"recommended: all that the model takes; {limit.wanted:,} would leave room"
        told += "" if limit.current is None else f"; {limit.current:,} is set now"
        rows.append(("max_model_len", f"{limit.recommended:,}", told))
    return rows


def _spread(found: LengthSpread | None) -> tuple[str, str]:
    if found is None:
        return UNKNOWN, ""
    told = [
        f"{name} {_count(value)}"
        for name, value in (("p90", found.p90), ("p99", found.p99), ("longest", found.max))
        if value is not None
    ]
    # so many answers were cut off that nobody knows what half of them would have come to
    middle = "median" if found.p50 is not None else "median unknown"
    if found.censored:
        told.append(f"{found.censored:,} cut off by their limit")
    return f"{_count(found.p50)}", f"{middle}; {', '.join(told)}; mean {_count(found.mean)}"


def _count(value: float | None) -> str:
    """A number of tokens or the like: no decimals where it is whole."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value == round(value) else digits(value)


def _value(value: object) -> str:
    if value is None:
        return "not set"
    return tick(value) if isinstance(value, float) else str(value)


def _endless_ratio(cells: Sequence[HitCell]) -> float | None:
    """What a cache without end or time to live answers, joined requests included."""
    cell = next((one for one in cells if one.size is None and one.ttl_s is None), None)
    return None if cell is None or cell.hit_ratio is None else answered(cell)


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


def losses_told(losses: Mapping[str, int]) -> list[str]:
    """What a capture lost, a sentence a class; none where nothing was."""
    return [f"{losses[name]:,} {what}" for name, what in LOSSES.items() if losses.get(name)]


def endless_last(value: float | None) -> float:
    """What to sort sizes and times to live by: without end comes last."""
    return float("inf") if value is None else value


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


def page(report: Workload, *, told: str, notes: Sequence[str], losses: dict[str, int]) -> str:
    """The whole document. `told` names the source; `notes` and `losses` are what it said of itself."""
    titles = [
        ("lever", None),
        ("saves", "right"),
        ("alone", "right"),
        ("its number, and its caveat", None),
    ]
    rows = [
        (
            tag("b", LEVER_NAMES[lever.code]),
            share(lever.saved_share),
            share(lever.standalone_share),
            Markup.joined([lever_number(lever), tag("small", lever.caveat)]),
        )
        for lever in report.levers
    ]
    charts = [
        _hit_chart(report.hit_curve),
        _top_chart(report),
        _rate_chart(report),
        _length_chart("prompt-tokens", "Prompt tokens", report.lengths.prompt_tokens),
        _length_chart("output-tokens", "Output tokens", report.lengths.output_tokens),
        _refusal_chart(report),
    ]
    return document(
        f"Workload: {report.headline}",
        heading=["Workload of ", told.replace("`", "")],
        found=report.headline,
        sections=[
            figures_list(figures(report)),
            tag("h2", "Levers, by the GPU work they save"),
            rows_table(titles, rows, faint=[not lever.recommended for lever in report.levers]),
            tag("h2", "What arrived"),
            tag("div", *charts, class_="charts"),
        ],
        notes=[*losses_told(losses), *notes, *report.warnings, *report.unknown],
        no_notes="Nothing was lost, and nothing is unknown.",
    )


def _hit_chart(curve: Sequence[HitCell]) -> Markup:
    frame = ChartFrame(
        key="hits",
        title="Response cache",
        axes="share of requests answered from memory, joined ones included, by the answers it holds",
        alt="; ".join(
            f"{size_words(cell.size)}, {ttl_words(cell.ttl_s)}: {share(answered(cell))}"
            for cell in curve
        ),
    )
    cells = [cell for cell in curve if cell.hit_ratio is not None]
    if not cells:
        return empty(frame, "Which requests are alike is not known.")
    sizes = sorted({cell.size for cell in cells if cell.size is not None})
    places = {size: (place + 0.5) / (len(sizes) + 1) for place, size in enumerate([*sizes, None])}
    lines, key = [], []
    for number, ttl in enumerate(sorted({cell.ttl_s for cell in cells}, key=endless_last)):
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
        why = "Not known: capture with --full." if key == "output-tokens" else "Not known."
        return empty(ChartFrame(key=key, title=title, alt=""), why)
    p50, p99, longest = (
        UNKNOWN if value is None else f"{value:,.0f}"
        for value in (spread.p50, spread.p99, spread.max)
    )
    frame = ChartFrame(
        key=key,
        title=title,
        axes=f"requests by length; median {p50}, p99 {p99}",
        alt=f"median {p50}, longest {longest}",
    )
    bars = [
        (f"{size_words(round(one.low))}\N{EN DASH}{size_words(round(one.high))}", float(one.count))
        for one in spread.histogram
    ]
    return _bar_chart(frame, bars)


def _rate_chart(report: Workload) -> Markup:
    series, first_ts = report.arrivals.series, report.arrivals.first_ts
    frame = ChartFrame(
        key="arrivals",
        title="Arrivals",
        axes="" if series is None else f"requests per {round_span(series.bin_s)}",
        alt=f"{rate(report.arrivals.requests_per_s)} requests a second on average",
    )
    if series is None or len(series.requests) < 2 or first_ts is None:
        return empty(frame, "Too few requests, or too little time, for a line.")
    # without a last bin that the capture did not fill: it would look as if load fell
    filled = math.floor((report.arrivals.duration_s or 0.0) / series.bin_s)
    bins = series.requests[:filled] if filled > 1 else series.requests
    # means of equal stretches, so many as a plot can show; a last stretch that is not whole is left out
    step = -(-len(bins) // MOST_POINTS)
    counts = [
        sum(bins[start : start + step]) / step
        for start in range(0, len(bins) - len(bins) % step, step)
    ]
    high = max(counts)
    scale = Scale(0.0, high * HEADROOM)
    points = [(place / (len(counts) - 1), scale.at(each)) for place, each in enumerate(counts)]
    grid, words = grid_y((scale.at(value), tick(value)) for value in linear_ticks(high))
    ticks, names = grid_x((k / 3, span(len(bins) * series.bin_s * k / 3)) for k in range(4))
    drawn = line("requests", points, LineStyle(COLOURS[0], ""))
    since = None
    if first_ts >= FIRST_REAL_TS:  # else it is a trace whose clock starts at 0
        began = datetime.fromtimestamp(first_ts, UTC)
        since = tag("p", f"from {began:%Y-%m-%d %H:%M:%S} UTC", class_="nothing")
    return chart(frame, [grid, ticks, drawn], [*words, *names], since)


def _shares_grid() -> tuple[Markup, list[Markup]]:
    return grid_y((value, tick_share(value)) for value in (0.0, 0.25, 0.5, 0.75, 1.0))


def _bar_chart(
    frame: ChartFrame, bars: Sequence[tuple[str, float]], *, shares: bool = False
) -> Markup:
    high = 1.0 if shares else max(value for _, value in bars) or 1.0
    scale = Scale(0.0, high if shares else high * HEADROOM)
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
    drawn = []
    for place, (name, value) in enumerate(bars):
        left, right = (place + 0.12) * width * BOX, (place + 0.88) * width * BOX
        top = (1 - scale.at(value)) * BOX
        path = f"M{left:.1f} {BOX}V{top:.1f}H{right:.1f}V{BOX}Z"
        told = f"{name}: {share(value) if shares else tick(value)}"
        drawn.append(tag("g", tag("title", told), tag("path", d=path, class_="bar")))
    return chart(frame, [grid, *drawn], [*words, *names])
