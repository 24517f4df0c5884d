"""The frame of every chart: a stretched SVG for the lines, and HTML for the words on it.

Lines live in a box of 1000 x 1000 that is stretched to whatever room there is, with strokes that are not; words are
placed by per cent and keep their size. So one drawing fits a television and a phone. It knows no host and no metric.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from toolkit.report.html import Markup, tag
from toolkit.units import time_of_day

BOX = 1000
NARROW_PX, LETTER_PX = 250, 7
"""The narrowest plot, on a phone, and a letter of an axis' words with its share of the room between two."""
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class LineStyle:
    """How one line is drawn."""

    colour: str
    """A CSS colour."""
    stroke: str
    """A dash pattern; empty: solid."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Values -> 0..1 along an axis."""

    low: float
    high: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """Where a value stands, clipped to the axis."""
        low, high = self._along(self.low), self._along(self.high)
        if high <= low:
            return 0.5
        return min(1.0, max(0.0, (self._along(value) - low) / (high - low)))

    def _along(self, value: float) -> float:
        return math.log(max(value, 1e-9)) if self.logarithmic else value


def log_scale(values: Iterable[float], *, room: float = 1.25) -> Scale:
    """A logarithmic axis around the values, with some room on both sides."""
    known = [value for value in values if value > 0]
    if not known:
        return Scale(1.0, 1000.0, logarithmic=True)
    return Scale(min(known) / room, max(known) * room, logarithmic=True)


def linear_ticks(high: float, count: int = 5) -> list[float]:
    """Round values from 0 to at most `high`."""
    if high <= 0:
        return [0.0]
    rough = high / count
    power = 10 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough)
    return [step * place for place in range(math.floor(high / step + 1e-9) + 1)]


def log_ticks(scale: Scale, *, most: int = 7) -> list[float]:
    """Round values on a logarithmic axis: 1, 2 and 5 of each decade, fewer where they crowd, evenly spaced ones on a short axis."""
    first, last = math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high))
    inside: list[float] = []
    for steps in ((1, 2, 5), (1, 3), (1,)):
        found = [m * 10.0**p for p in range(first, last + 1) for m in steps]
        inside = [value for value in found if scale.low <= value <= scale.high]
        if len(inside) <= most:
            break
    if len(inside) < 3 and scale.high < 10 * scale.low:
        even = linear_ticks(scale.high, 2 * most)
        inside = [value for value in even if scale.low <= value]
    return inside[:: math.ceil(len(inside) / most) or 1]


_TIME_STEPS_S = (5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)


def time_ticks(begin: float, end: float, *, most: int = 6) -> list[tuple[float, str]]:
    """Round times of day between two moments, and how they are written."""
    length = max(1.0, end - begin)
    step = next((s for s in _TIME_STEPS_S if length / s <= most), _TIME_STEPS_S[-1])
    # round by the local clock: zones are off by whole quarters of an hour
    offset = datetime.fromtimestamp(begin).astimezone().utcoffset()
    zone_s = offset.total_seconds() if offset else 0.0
    first = math.ceil((begin + zone_s) / step) * step - zone_s
    count = math.floor((end - first) / step) + 1
    return [
        (at, time_of_day(at, seconds=step < 60))
        for at in (first + place * step for place in range(max(0, count)))
    ]


# --- drawing --------------------------------------------------------------------------------------


def trace(points: Sequence[Point | None]) -> str:
    """An SVG path through points of 0..1 (y upwards); a gap where one is None, a dot where it stands alone."""
    parts: list[str] = []
    last = len(points) - 1
    for place, point in enumerate(points):
        if point is None:
            continue
        before = points[place - 1] if place else None
        after = points[place + 1] if place < last else None
        if before and after and before[1] == point[1] == after[1]:
            continue  # on a level line; most of a rank's points are
        spot = f"{point[0] * BOX:.1f} {(1 - point[1]) * BOX:.1f}"
        parts.append(f"L{spot}" if before else f"M{spot}" + ("" if after else "h0"))
    return "".join(parts)


def line(
    name: str,
    points: Sequence[Point | None],
    look: LineStyle,
    *,
    title: str | None = None,
    class_: str = "line",
) -> Markup:
    """One host's line, with a broad invisible one around it for the pointer and its tooltip."""
    d = trace(points)
    return tag(
        "g",
        tag("title", title or name),
        tag("path", d=d, class_="reach"),
        tag("path", d=d, class_="ink", stroke_dasharray=look.stroke or None),
        class_=class_,
        data_host=name,
        style=f"--host:{look.colour}",
    )


def area(points: Sequence[Point]) -> str:
    """An SVG path of the ground below a line."""
    if not points:
        return ""
    left, right = points[0][0] * BOX, points[-1][0] * BOX
    return f"{trace(points)}L{right:.1f} {BOX}L{left:.1f} {BOX}Z"


def rule(x: float, *, class_: str, title: str) -> Markup:
    """An upright line at a moment."""
    return tag(
        "g",
        tag("title", title),
        tag("path", d=f"M{x * BOX:.1f} 0V{BOX}", class_="reach"),
        tag("path", d=f"M{x * BOX:.1f} 0V{BOX}", class_="ink"),
        class_=f"rule {class_}",
    )


def word(text: object, *, x: float, y: float, class_: str, **more: object) -> Markup:
    """A word at a place of 0..1 (y upwards)."""
    place = f"left:{100 * x:.2f}%;top:{100 * (1 - y):.2f}%"
    style = f"{place};{more.pop('style')}" if "style" in more else place
    return tag("span", text, class_=class_, style=style, **more)


def grid_x(ticks: Iterable[tuple[float, str]]) -> tuple[Markup, list[Markup]]:
    """Upright grid lines at 0..1, and their words below: `spare` ones are for plots that are wide enough."""
    ticks = list(ticks)
    d = "".join(f"M{x * BOX:.1f} 0V{BOX}" for x, _ in ticks)
    words, last = [], -1.0
    for x, text in ticks:
        is_spare = x - last < LETTER_PX * (len(text) + 1) / NARROW_PX
        last = last if is_spare else x
        words.append(word(text, x=x, y=0, class_="tick x spare" if is_spare else "tick x"))
    return tag("path", d=d, class_="grid"), words


def grid_y(ticks: Iterable[tuple[float, str]]) -> tuple[Markup, list[Markup]]:
    """Level grid lines at 0..1, and their words on the left."""
    ticks = list(ticks)
    d = "".join(f"M0 {(1 - y) * BOX:.1f}H{BOX}" for y, _ in ticks)
    return tag("path", d=d, class_="grid"), [word(t, x=0, y=y, class_="tick y") for y, t in ticks]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartFrame:
    """What stands around a chart."""

    key: str
    title: str
    alt: str
    """The chart in a sentence, for those who cannot see it."""
    axes: str = ""
    """What its axes are, in a few words."""


def chart(
    frame: ChartFrame,
    drawn: Sequence[object],
    words: Sequence[object],
    below: object = None,
    *,
    style: str | None = None,
) -> Markup:
    """The whole figure: title, drawing, words on it, and what stands below."""
    return tag(
        "figure",
        tag(
            "figcaption",
            tag("b", frame.title),
            tag("small", frame.axes) if frame.axes else None,
            tag("span", frame.alt, class_="unseen"),
        ),
        tag(
            "div",
            tag(
                "svg",
                drawn,
                viewBox=f"0 0 {BOX} {BOX}",
                preserveAspectRatio="none",
                role="img",
                aria_label=frame.alt,
            ),
            words,
            class_="plot",
            style=style,
        ),
        below,
        class_="chart",
        data_chart=frame.key,
        id=f"chart-{frame.key}",
    )


def empty(frame: ChartFrame, why: str, below: object = None) -> Markup:
    """The figure's place while there is nothing to draw."""
    return tag(
        "figure",
        tag("figcaption", tag("b", frame.title)),
        tag("p", why, class_="nothing"),
        below,
        class_="chart",
        data_chart=frame.key,
        id=f"chart-{frame.key}",
    )
