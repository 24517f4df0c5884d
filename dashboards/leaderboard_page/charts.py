"""The page's charts: ranks over time, rate against latency, and of a few hosts densities, figures and a heat strip.

Ten colours (`--c0` to `--c9` in page.css, one set for each theme), each at least 3:1 against the page and as far from the others
for people with any of the common colour blindnesses as ten can be. The table's first ten hosts have one each and solid lines,
the next ten the same colours with another stroke and another shape of dot; names at lines and dots make colour a help and
never the only sign. Nothing is ranked here.
"""

import base64
import math
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from leaderboard_page.address import story_link
from leaderboard_page.badges import ERROR_LEVELS, error_level
from toolkit.board.history import Density, Heat, HostSeries, Ranks
from toolkit.board.standings import Standing
from toolkit.records import Event
from toolkit.report.charts import (
    ChartFrame,
    LineStyle,
    Point,
    Scale,
    area,
    chart,
    empty,
    grid_x,
    grid_y,
    line,
    linear_ticks,
    log_scale,
    log_ticks,
    rule,
    time_ticks,
    trace,
    word,
)
from toolkit.report.html import Markup, tag
from toolkit.stats import ALPHA
from toolkit.units import milliseconds, rate, share, tick, tick_ms, time_of_day

COLOURS = 10
STROKES = ("", "9 5", "2 5", "12 4 2 4")
"""Dash patterns in pixels: the first ten are solid."""
SHAPES = ("disc", "square", "diamond", "ring")
"""Of dots, in the same order."""
NOBODY = LineStyle("var(--quiet)", "")
MOST_POINTS = 240
"""Moments of the rank chart: more are finer than a screen shows, and cost every viewer bytes."""
MARKED = frozenset({"mark", "restart", "model", "config", "phase", "freeze", "reveal", "resume"})
SAME_MOMENT_S = 5.0
CROWDED = 0.03
"""Marks that are nearer to each other than this share of the axis would hide one another."""
MOST_BINS = 72
"""Columns of a density: a sketch's own buckets of 2 % are finer than a few hundred answers can fill."""
BUCKET = (1 + ALPHA) / (1 - ALPHA)
"""Each of the sketch's buckets is this much above the one before."""


# --- whose line is which --------------------------------------------------------------------------


def line_styles(names: Iterable[str]) -> Mapping[str, LineStyle]:
    """Host name -> its colour and stroke; `names` stand in the table's order.

    Among ten hosts each has the colour that its name's place in the alphabet gives it, or the next one that is free: it keeps it
    while the ten change ranks, and also most of the time when one of them makes room for another.
    """
    in_order = list(dict.fromkeys(names))
    wished = {name: place % COLOURS for place, name in enumerate(sorted(in_order))}
    found: dict[str, LineStyle] = {}
    for lap, first in enumerate(range(0, len(in_order), COLOURS)):
        stroke = STROKES[lap % len(STROKES)]
        colours: dict[int, str] = {}
        ten = sorted(in_order[first : first + COLOURS])
        for name in ten:
            colours.setdefault(wished[name], name)
        for name in ten:
            if colours[wished[name]] != name:
                turns = ((wished[name] + turn) % COLOURS for turn in range(COLOURS))
                colours[next(colour for colour in turns if colour not in colours)] = name
        found |= {name: LineStyle(f"var(--c{colour})", stroke) for colour, name in colours.items()}
    return found


def solid(styles: Mapping[str, LineStyle], names: Iterable[str]) -> Mapping[str, LineStyle]:
    """The styles of a few hosts: solid lines, but where two of them have one colour."""
    found: dict[str, LineStyle] = {}
    for name in names:
        style = styles.get(name, NOBODY)
        is_first = style.colour not in {other.colour for other in found.values()}
        found[name] = LineStyle(style.colour, "") if is_first else style
    return found


def host_style(name: str, styles: Mapping[str, LineStyle]) -> str:
    """The CSS variable of a host's colour, for page.css."""
    return f"--host:{styles.get(name, NOBODY).colour}"


# --- ranks over time ------------------------------------------------------------------------------


def rank_chart(
    ranks: Ranks,
    events: Sequence[Event],
    *,
    names: Sequence[str],
    styles: Mapping[str, LineStyle],
    note: str = "",
    above: int = 0,
) -> Markup:
    """A line for each host in `names`, which stand in the table's order; what happened is marked where it happened.

    The first place is on top. Tied hosts share a rank but not a line: they stand side by side, in the table's order. Beside
    a later page of the table the `above` first ones have no line, and the place below them is on top.
    """
    until = time_of_day(ranks.times[-1] if ranks.times else None)
    drawn = names[above:]
    order_words = f"from place {above + 1}" if above else "from the first"
    alt = f"Ranks until {until}; now {order_words}: {', '.join(drawn)}"
    frame = ChartFrame(key="ranks", title="Rank over time", alt=alt, axes=note)
    if len(ranks.times) < 2 or not drawn:
        return empty(frame, "Ranks are drawn here once the blast is a few seconds old.")
    # evenly spread, the last always among them
    count = len(ranks.times)
    moments = range(count - 1, -1, -count // MOST_POINTS)[::-1]
    x = Scale(ranks.times[moments[0]], ranks.times[-1])
    points: dict[str, list[Point | None]] = {name: [] for name in drawn}
    for moment in moments:
        ranked = sorted(
            (rank, order)
            for order, name in enumerate(names)
            if name in ranks.ranks and (rank := ranks.ranks[name][moment]) is not None
        )
        here: dict[str, Point] = {}
        row = 0
        for rank, order in ranked:
            # A host above or below the drawn ones leaves its line at the chart's head or foot. The first place's row is on
            # top, the last's at the foot, as the table's rows stand.
            row = max(row + 1, rank)
            level = 1 - (min(max(row - above, 0), len(drawn) + 1) - 0.5) / len(drawn)
            here[names[order]] = (x.at(ranks.times[moment]), level)
        for name in drawn:
            points[name].append(here.get(name))

    lines, ends = [], []
    for name in drawn:
        known = [rank for rank in ranks.ranks.get(name, ()) if rank is not None]
        title = f"{name}: now {known[-1]}, best {min(known)}, worst {max(known)}" if known else name
        lines.append(line(name, points[name], styles.get(name, NOBODY), title=title))
        last = points[name][-1]
        if last is not None and 0 <= last[1] <= 1:
            style = host_style(name, styles)
            ends.append(word(name, x=1, y=last[1], class_="end", style=style, data_host=name))

    # a rule across for what concerns all, a ring on the line for what concerns one host; and their numbers
    rules, marks, listed = [], [], []
    taken: list[Point] = []
    happened = [e for e in events if e.kind in MARKED and x.low <= e.at <= x.high + SAME_MOMENT_S]
    for number, event in enumerate(happened, 1):
        href = story_link(event.at, event.name)
        words = tag("a", event_sentence(event), href=href)
        listed.append(tag("li", tag("b", number, class_=f"mark {event.kind}"), words))
        at, level = x.at(event.at), 1.0
        if event.name is None:
            rules.append(rule(at, class_=event.kind, title=event_sentence(event)))
        else:
            of_host = [point for point in points.get(event.name, ()) if point is not None]
            level = min(of_host, key=lambda point: abs(point[0] - at), default=(at, -1.0))[1]
        if not 0 <= level <= 1:
            continue
        beside = sum(abs(at - there) < CROWDED and level == height for there, height in taken)
        taken.append((at, level))
        marks.append(
            word(
                # the list below has the same link for keys and ears
                tag("a", number, href=href, tabindex="-1", aria_hidden="true"),
                x=at,
                y=level,
                class_=f"mark {event.kind}" + (" all" if event.name is None else ""),
                title=event_sentence(event),
                data_key=f"mark/{number}",
                style=f"margin-left:{1.7 * beside:.1f}em",
            )
        )
    grid, ticks = grid_x([(x.at(at), written) for at, written in time_ticks(x.low, x.high)])
    below = tag("ol", listed, class_="happened") if listed else None
    words = [*ticks, *ends, *marks]
    return chart(frame, [grid, rules, lines[::-1]], words, below, style=f"--lines:{len(names)}")


_HAPPENED = {
    "mark": "",
    "restart": "restarted",
    "model": "serves another model",
    "config": "other settings",
    "phase": "phase",
    "freeze": "the board was frozen",
    "reveal": "the board was revealed",
    "resume": "the blast was resumed",
    "start": "the blast began",
    "stop": "the blast ended",
}


def event_sentence(event: Event) -> str:
    """An event in words: `14:32:10 alice restarted: vLLM 0.11.2`."""
    what = _HAPPENED.get(event.kind, event.kind)
    if event.text and event.kind in {"restart", "model", "config"}:
        what = ""  # the text says it all
    happened = ": ".join(part for part in (what, event.text) if part)
    return " ".join(part for part in (time_of_day(event.at), event.name, happened) if part)


# --- rate against latency -------------------------------------------------------------------------


def pareto(standings: Sequence[Standing]) -> list[Standing]:
    """The hosts that nobody beats in both: by rising latency, each with more requests/s than all quicker ones.

    One that is down or fails is not among them: what it still answers is no choice that anybody has.
    """
    front: list[Standing] = []
    known = [one for one in standings if one.p95_ms is not None and not one.trouble]
    for one in sorted(known, key=lambda one: (one.p95_ms or 0.0, -one.rps)):
        if not front or one.rps > front[-1].rps:
            front.append(one)
    return front


def tradeoff_chart(
    standings: Sequence[Standing],
    *,
    styles: Mapping[str, LineStyle],
    honest_leader: str | None = None,
    down_since: Mapping[str, float] | None = None,
) -> Markup:
    """Who is both fast and busy, and who buys the one with the other: a dot a host, and the front joined by steps.

    `standings` are in the table's order: where names crowd (live.js puts them), those first in line choose first. `down_since`
    are moments of hosts that are down; one that never answered has none.
    """
    frame = ChartFrame(
        key="tradeoff",
        title="Requests/s against latency p95",
        alt="Each host's requests a second against the 95th percentile of its latency; up and left is better",
        axes="both axes logarithmic; up and left is better",
    )
    last_signs = {
        one.name: "never answered"
        if (since := (down_since or {}).get(one.name)) is None
        else f"down since {time_of_day(since, seconds=False)}"
        for one in standings
        if one.trouble == "down"
    }
    known = [one for one in standings if one.p95_ms and one.rps > 0]
    silent = last_signs.keys() - {one.name for one in known}
    gone = None
    if silent:
        listed = ", ".join(f"{name} ({last_signs[name]})" for name in last_signs if name in silent)
        gone = tag("p", f"No answer in this window: {listed}", class_="gone")
    if not known:
        return empty(frame, "Hosts are drawn here once they have answered.", gone)
    x, y = (
        _calm_scale([getattr(one, field) for one in known], room)
        for field, room in (("p95_ms", 1.4), ("rps", 1.3))
    )
    columns, below = grid_x([(x.at(v), tick_ms(v)) for v in log_ticks(x, most=5)])
    rows, beside = grid_y([(y.at(v), tick(v)) for v in log_ticks(y, most=6)])

    front = pareto(known)
    corners: list[Point] = []
    for one in front:
        if corners:
            corners.append((x.at(one.p95_ms or 0.0), corners[-1][1]))
        corners.append((x.at(one.p95_ms or 0.0), y.at(one.rps)))
    steps = tag("path", tag("title", "Pareto front"), d=trace(corners), class_="front")

    best = {one.name for one in front} if len(front) > 1 else set()
    dots = []
    for one in known:
        look, level = styles.get(one.name, NOBODY), error_level(one.error_rate)
        failing = f"{share(one.error_rate)} errors" if level else None
        note = last_signs.get(one.name, failing)
        kinds = ("dot", SHAPES[STROKES.index(look.stroke)], "best" if one.name in best else None)
        kinds += ("down" if one.name in last_signs else level,)
        figures = f"{one.name}: {rate(one.rps)} requests/s, p95 {milliseconds(one.p95_ms)}"
        star = tag("i", class_="star") if one.name == honest_leader else None
        more = tag("small", f" {note}") if note else None
        dots.append(
            word(
                tag("span", star, tag("span", one.name, class_="name"), more, class_="label"),
                x=x.at(one.p95_ms or 0.0),
                y=y.at(one.rps),
                class_=" ".join(filter(None, kinds)),
                style=host_style(one.name, styles),
                title=f"{figures}, {note}" if note else figures,
                data_host=one.name,
            )
        )
    drawn = [columns, rows, steps if len(front) > 1 else None]
    key = _key_of(known, honest_leader, front)
    words = [*below, *beside, *dots]
    return chart(frame, drawn, words, [key, gone], style=f"--lines:{len(known)}")


def _calm_scale(values: Sequence[float], room: float) -> Scale:
    """A logarithmic axis whose ends stay where they are while the values change a little: whole eighths of a decade."""
    low, high = (math.log10(end) * 8 for end in (min(values) / room, max(values) * room))
    return Scale(10 ** (math.floor(low) / 8), 10 ** (math.ceil(high) / 8), logarithmic=True)


def _key_of(
    known: Sequence[Standing], honest_leader: str | None, front: Sequence[Standing]
) -> Markup | None:
    """What the signs of this chart mean, those that are on it."""
    levels = {error_level(one.error_rate) for one in known if one.trouble != "down"}
    listed = [
        (len(front) > 1, tag("i", class_="dashes"), "Pareto front: nobody is faster and busier"),
        (any(one.name == honest_leader for one in known), tag("i", class_="star"), "honest leader"),
        *(
            (level in levels, tag("i", class_=f"spot {level}"), f"errors over {100 * above:.0f} %")
            for above, level in reversed(ERROR_LEVELS)
        ),
        (any(one.trouble == "down" for one in known), tag("i", class_="spot down"), "down"),
    ]
    items = [tag("li", sign, text) for is_there, sign, text in listed if is_there]
    return tag("ul", items, class_="legend") if items else None


# --- a few hosts ----------------------------------------------------------------------------------


def density_chart(
    densities: Sequence[Density], *, styles: Mapping[str, LineStyle], key: str
) -> Markup:
    """How the answers' times spread, as shares of each host's answers, one over the other."""
    frame = ChartFrame(
        key=key,
        title="How long answers take",
        alt="Share of each host's answers by latency, logarithmic: two humps are cache hits and misses",
        axes="share of answers by latency, on a logarithmic axis",
    )
    # each host's answers by bucket, which are counted from the one at 1 ms
    counts = {
        one.name: {
            round(math.log(value) / math.log(BUCKET)): count
            for value, count in zip(one.values_ms, one.counts, strict=True)
            if count
        }
        for one in densities
        if sum(one.counts)
    }
    if not counts:
        return empty(frame, "No answers in this window.")
    # Columns of whole buckets: those that cut through some would hold now two of them, now three, and draw a comb.
    first = min(min(of_host) for of_host in counts.values())
    last = max(max(of_host) for of_host in counts.values())
    width = max(2, -(-(last - first + 1) // MOST_BINS))
    columns = range(-1, (last - first) // width + 2)
    middles = [BUCKET ** (first + (column + 0.5) * width - 0.5) for column in columns]
    shares: dict[str, list[float]] = {}
    for name, of_host in counts.items():
        binned = dict.fromkeys(columns, 0)
        for bucket, count in of_host.items():
            binned[(bucket - first) // width] += count
        shares[name] = [count / sum(of_host.values()) for count in binned.values()]

    x = log_scale(middles, room=1.05)
    y = Scale(0.0, 1.1 * max(max(of_host) for of_host in shares.values()))
    upright, below = grid_x([(x.at(v), tick_ms(v)) for v in log_ticks(x, most=5)])
    level, beside = grid_y([(y.at(v), share(v)) for v in linear_ticks(y.high, 4)])
    drawn, legend = [upright, level], []
    for name, of_host_shares in shares.items():
        points = [(x.at(at), y.at(part)) for at, part in zip(middles, of_host_shares, strict=True)]
        style = host_style(name, styles)
        drawn.append(tag("path", d=area(points), class_="ground", style=style))
        drawn.append(line(name, points, styles.get(name, NOBODY)))
        chip = tag("i", class_="chip")
        legend.append(tag("li", chip, tag("span", name, class_="name"), style=style))
    whose = tag("ul", legend, class_="legend") if len(legend) > 1 else None
    return chart(frame, drawn, [*below, *beside], whose)


def series_chart(
    series: Sequence[HostSeries], *, metric: str, title: str, styles: Mapping[str, LineStyle]
) -> Markup:
    """One figure of a few hosts over time; `metric` is a field of Figures."""
    is_latency = metric.endswith("_ms")
    frame = ChartFrame(
        key=f"series-{metric}",
        title=title,
        alt=f"{title} over time of {', '.join(one.name for one in series)}",
    )
    values = {one.name: [getattr(step, metric) for step in one.figures] for one in series}
    known = [value for of_host in values.values() for value in of_host if value is not None]
    times = [at for one in series for at in one.times]
    if not known or min(times) == max(times):
        return empty(frame, "Nothing to draw yet.")
    x = Scale(min(times), max(times))
    y = log_scale(known) if is_latency else Scale(0.0, 1.1 * (max(known) or 1.0))
    ticks = log_ticks(y, most=5) if is_latency else linear_ticks(y.high, 4)
    written = tick_ms if is_latency else tick
    columns, below = grid_x([(x.at(at), text) for at, text in time_ticks(x.low, x.high, most=5)])
    rows, beside = grid_y([(y.at(v), written(v)) for v in ticks])
    lines = []
    for one in series:
        points: list[Point | None] = [
            None if value is None else (x.at(at), y.at(value))
            for at, value in zip(one.times, values[one.name], strict=True)
        ]
        lines.append(line(one.name, points, styles.get(one.name, NOBODY)))
    return chart(frame, [columns, rows, lines], [*below, *beside])


def heat_strip(heat: Heat) -> Markup:
    """One host's latencies over time: the darker a field, the more answers of its moment took that long.

    A picture of one pixel a field, used as a mask over the accent colour, so that it suits both themes.
    """
    frame = ChartFrame(
        key="heat",
        title="Latency over time",
        alt=f"Latencies of {heat.name} over time, logarithmic; each column adds up to its moment's answers",
        axes="on a logarithmic axis; the brighter, the more answers",
    )
    buckets = max(0, len(heat.edges_ms) - 1)
    counts = np.array(heat.counts, dtype=np.int64).reshape(len(heat.times), buckets)
    used = np.flatnonzero(counts.any(axis=0)).tolist()
    if not used or len(heat.times) < 2:
        return empty(frame, "No answers yet.")
    low, high = max(0, used[0] - 2), min(buckets, used[-1] + 3)
    y = Scale(max(heat.edges_ms[low], 1e-3), heat.edges_ms[high], logarithmic=True)
    x = Scale(heat.times[0], heat.times[-1] + heat.step_s)
    columns, below = grid_x([(x.at(at), text) for at, text in time_ticks(x.low, x.high)])
    lines, beside = grid_y([(y.at(v), tick_ms(v)) for v in log_ticks(y, most=6)])
    picture = base64.b64encode(_picture(counts[:, low:high])).decode()
    mask = f"url(data:image/png;base64,{picture})"
    field = tag(
        "div",
        class_="heat",
        style=f"mask-image:{mask};-webkit-mask-image:{mask}",
        title=f"{time_of_day(x.low)} to {time_of_day(x.high)}",
    )
    return chart(frame, [columns, lines], [field, *below, *beside])


def _picture(counts: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> bytes:
    """A PNG whose opacity is each field's share of its moment (a row of `counts`), the highest latency on top."""
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    width, height = counts.shape
    lines = np.zeros((height, 1 + 2 * width), dtype=np.uint8)  # no filter on any line
    lines[:, 1::2] = 255
    # the square root shows the few slow answers, too
    lines[:, 2::2] = np.rint(255 * np.sqrt(shares / shares.max())).T[::-1]
    chunks = (
        (
            b"IHDR",
            struct.pack(">IIBBBBB", width, height, 8, 4, 0, 0, 0),
        ),  # 8 bits of grey and alpha
        (b"IDAT", zlib.compress(lines.tobytes(), 6)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
