"""Charts of few hosts: overlaid latency densities, figures over time, and one host's latencies as a heat strip."""

import base64
import math
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence

from leaderboard_page.colours import NOBODY
from toolkit.board.history import Density, Heat, HostSeries
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
    time_ticks,
)
from toolkit.report.html import Markup, tag
from toolkit.stats import ALPHA
from toolkit.units import share, tick, tick_ms, time_of_day

MOST_BINS = 72
"""Columns of a density: a sketch's own buckets of 2 % are finer than a few hundred answers can fill."""
BUCKET = (1 + ALPHA) / (1 - ALPHA)
"""Each of the sketch's buckets is this much above the one before."""


def density_chart(
    densities: Sequence[Density], *, looks: Mapping[str, LineStyle], key: str
) -> Markup:
    """How the answers' times spread, as shares of each host's answers, one over the other."""
    frame = ChartFrame(
        key=key,
        title="How long answers take",
        alt="Share of each host's answers by latency, logarithmic: two humps are cache hits and misses",
        axes="share of answers by latency, on a logarithmic axis",
    )
    filled = [one for one in densities if sum(one.counts)]
    if not filled:
        return empty(frame, "No answers in this window.")
    shares, x = _binned(filled)
    y = Scale(0.0, 1.1 * max(value for points in shares.values() for _, value in points))
    columns, below = grid_x([(x.at(v), tick_ms(v)) for v in log_ticks(x, most=5)])
    rows, beside = grid_y([(y.at(v), share(v)) for v in linear_ticks(y.high, 4)])
    drawn = [columns, rows]
    for name, told in shares.items():
        points = [(x.at(value_ms), y.at(value)) for value_ms, value in told]
        look = looks.get(name, NOBODY)
        style = f"--host:{look.colour}"
        drawn += [
            tag("path", d=area(points), class_="ground", style=style),
            line(name, points, look),
        ]
    whose = legend(shares, looks) if len(shares) > 1 else None
    return chart(frame, drawn, [*below, *beside], whose)


def _binned(densities: Sequence[Density]) -> tuple[dict[str, list[Point]], Scale]:
    """Each host's (latency, share of its answers) in columns of whole buckets, and the axis of them all.

    Columns that cut through buckets would hold now two of them, now three, and draw a comb.
    """
    counts = {
        one.name: {
            _bucket(value): count
            for value, count in zip(one.values_ms, one.counts, strict=True)
            if count
        }
        for one in densities
    }
    first = min(min(of_host) for of_host in counts.values())
    last = max(max(of_host) for of_host in counts.values())
    width = max(2, -(-(last - first + 1) // MOST_BINS))
    columns = range(-1, (last - first) // width + 2)
    shares: dict[str, list[Point]] = {}
    for name, of_host in counts.items():
        binned = dict.fromkeys(columns, 0)
        for bucket, count in of_host.items():
            binned[(bucket - first) // width] += count
        whole = sum(binned.values())
        shares[name] = [
            (BUCKET ** (first + (column + 0.5) * width - 0.5), count / whole)
            for column, count in binned.items()
        ]
    return shares, log_scale((at for told in shares.values() for at, _ in told), room=1.05)


def _bucket(value_ms: float) -> int:
    """The number of a bucket, counted from the one at 1 ms."""
    return round(math.log(value_ms) / math.log(BUCKET))


def legend(names: Iterable[str], looks: Mapping[str, LineStyle]) -> Markup:
    """Whose colour is whose."""
    items = [
        tag(
            "li",
            tag("i", class_="chip"),
            tag("span", name, class_="name"),
            style=f"--host:{looks.get(name, NOBODY).colour}",
        )
        for name in names
    ]
    return tag("ul", items, class_="legend")


def series_chart(
    series: Sequence[HostSeries], *, metric: str, title: str, looks: Mapping[str, LineStyle]
) -> Markup:
    """One figure of a few hosts over time; `metric` is a field of Series."""
    latency = metric.endswith("_ms")
    frame = ChartFrame(
        key=f"series-{metric}",
        title=title,
        alt=f"{title} over time of {', '.join(one.name for one in series)}",
    )
    known = [v for one in series for v in getattr(one, metric) if v is not None]
    times = [at for one in series for at in one.times]
    if not known or min(times) == max(times):
        return empty(frame, "Nothing to draw yet.")
    x = Scale(min(times), max(times))
    y = log_scale(known) if latency else Scale(0.0, 1.1 * (max(known) or 1.0))
    ticks = log_ticks(y, most=5) if latency else linear_ticks(y.high, 4)
    written = tick_ms if latency else tick
    columns, below = grid_x([(x.at(at), told) for at, told in time_ticks(x.low, x.high, most=5)])
    rows, beside = grid_y([(y.at(v), written(v)) for v in ticks])
    lines = []
    for one in series:
        points: list[Point | None] = [
            None if value is None else (x.at(at), y.at(value))
            for at, value in zip(one.times, getattr(one, metric), strict=True)
        ]
        lines.append(line(one.name, points, looks.get(one.name, NOBODY)))
    return chart(frame, [columns, rows, lines], [*below, *beside])


# --- the heat strip -------------------------------------------------------------------------------


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
    rows = [column for column in heat.counts if any(column)]
    if not rows or len(heat.times) < 2:
        return empty(frame, "No answers yet.")
    used = [place for place in range(len(heat.edges_ms) - 1) if any(c[place] for c in rows)]
    low, high = max(0, used[0] - 2), min(len(heat.edges_ms) - 1, used[-1] + 3)
    y = Scale(max(heat.edges_ms[low], 1e-3), heat.edges_ms[high], logarithmic=True)
    x = Scale(heat.times[0], heat.times[-1] + heat.step_s)
    columns, below = grid_x([(x.at(at), told) for at, told in time_ticks(x.low, x.high)])
    lines, beside = grid_y([(y.at(v), tick_ms(v)) for v in log_ticks(y, most=6)])
    picture = _picture([column[low:high] for column in heat.counts])
    mask = f"url(data:image/png;base64,{base64.b64encode(picture).decode()})"
    field = tag(
        "div",
        class_="heat",
        style=f"mask-image:{mask};-webkit-mask-image:{mask}",
        title=f"{time_of_day(x.low)} to {time_of_day(x.high)}",
    )
    return chart(frame, [columns, lines], [field, *below, *beside])


def _picture(columns: Sequence[Sequence[int]]) -> bytes:
    """A PNG whose opacity is each field's share of its column, the highest latency on top."""
    height, width = len(columns[0]), len(columns)
    peak = max(max(column) / sum(column) for column in columns if any(column))
    lines = bytearray()
    for level in range(height - 1, -1, -1):
        lines.append(0)  # no filter on this line
        for column in columns:
            whole = sum(column)
            part = column[level] / whole / peak if whole else 0.0
            # the square root shows the few slow answers, too
            lines += bytes((255, round(255 * part**0.5)))
    head = struct.pack(">IIBBBBB", width, height, 8, 4, 0, 0, 0)  # 8 bits of grey and alpha
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", head),
            _chunk(b"IDAT", zlib.compress(bytes(lines), 6)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
