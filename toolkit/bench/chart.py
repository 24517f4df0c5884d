"""A sweep as a picture: throughput against latency, one line a host. It writes one PNG file and opens no window."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

from toolkit.bench.results import Result
from toolkit.report.picture import literal, new_figure, save

INCHES = (10, 6.5)
MARKERS = "osD^vPX*<>"
"""With ten colours and ten markers of different cycles (10 and 9), 90 hosts differ."""
FONT = "DejaVu Sans"
"""matplotlib brings it along."""
LONGEST_NAME = 32
"""In characters: one long name must not leave the lines half of the picture."""
NAMES_IN_COLUMN = 36
LEAST_SPAN = 4.0
"""The time axis reaches at least from t to 4 t: so it has two numbers or more, whatever t is."""
PADDING = 1.15


def draw(results: Sequence[Result], path: Path) -> None:
    """Draw every host's levels into a PNG file. Raises OSError when the file cannot be written."""
    save(lambda: picture(results), path)


def picture(results: Sequence[Result]) -> Figure:
    """Every host's levels, each point with its concurrency, and a legend beside them."""
    figure = new_figure(INCHES)
    axes = figure.add_subplot()
    for number, result in enumerate(results):
        points = [
            (level.e2e_p50_ms / 1000, level.output_tokens_per_s, level.concurrency)
            for level in result.levels
            if level.e2e_p50_ms and level.output_tokens_per_s is not None
        ]
        label = _label(result.summary.name, result.summary.url)
        axes.plot(
            [wait_s for wait_s, _, _ in points],
            [tokens_per_s for _, tokens_per_s, _ in points],
            marker=MARKERS[number % 9],
            color=f"C{number % 10}",
            markersize=5,
            label=label if points else f"{label} (no figures)",
        )
        for wait_s, tokens_per_s, concurrency in points:
            axes.annotate(
                str(concurrency),
                (wait_s, tokens_per_s),
                xytext=(4, 4),
                textcoords="offset points",
                fontsize=8,
            )
    _draw_scales(axes)
    columns = max(1, math.ceil(len(results) / NAMES_IN_COLUMN))
    figure.legend(loc="outside right upper", fontsize=8, ncols=columns)
    return figure


def _label(name: str, url: str) -> str:
    """How the legend calls a host: its URL where the font lacks a letter of the name, and boxes would be drawn."""
    font = get_font(findfont(FONT))
    word = name if all(font.get_char_index(ord(letter)) for letter in name) else url
    if len(word) > LONGEST_NAME:
        half = LONGEST_NAME // 2
        word = f"{word[: half - 1]}…{word[-half:]}"
    # a leading `_` hides a line from the legend
    return "\u200b" + literal(word)


def _draw_scales(axes: Axes) -> None:
    axes.set(
        title="Throughput against latency; numbers are requests at once",
        xlabel="E2E p50, seconds (log)",
        ylabel="output tokens a second",
        xscale="log",
    )
    low_s, high_s = axes.dataLim.intervalx
    if 0 < low_s <= high_s < math.inf:  # somebody answered
        axes.set_ylim(0, axes.dataLim.ymax * PADDING or 1)
        room = max(PADDING, math.sqrt(LEAST_SPAN * low_s / high_s))
        low_s, high_s = low_s / room, high_s * room
        axes.set_xlim(low_s, high_s)
        # more numbers than these would overlap
        decades = math.log10(high_s / low_s)
        numbers = (1, 2, 3, 5, 7) if decades < 1 else (1, 2, 5) if decades < 2.5 else (1,)
        axes.xaxis.set_major_locator(LogLocator(subs=numbers, numticks=100))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(visible=True, alpha=0.3)
