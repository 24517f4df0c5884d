"""What a restart costs, as a picture: the window's error rate and RPS over time. It writes one PNG file, opens no window."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from toolkit.board.impact import Impact
from toolkit.report.picture import literal, new_figure, save
from toolkit.safe_text import cleaned
from toolkit.units import spoken

INCHES = (10, 5.5)
ERRORS, ANSWERS = "C3", "C0"
FARTHEST = 2.0
"""A break-even later than this many times the taint is told in words only, or the curve would shrink to a line."""
PADDING = 1.03
UNITS = ((3 * 3600.0, 3600.0, "hours"), (180.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
"""From this length of the axis on, in seconds; seconds in the unit; its name."""


def draw(impact: Impact, path: Path, *, title: str = "") -> None:
    """Draw it into a PNG file. Raises OSError when the file cannot be written."""
    save(lambda: picture(impact, title=title), path)


def picture(impact: Impact, *, title: str = "") -> Figure:
    """The error rate as an area, the RPS as a line, and the moments that matter."""
    figure = new_figure(INCHES)
    axes = figure.add_subplot()
    right = axes.twinx()
    marks = _marks(impact)
    end_s = max([impact.tainted_s, impact.downtime_s, *(at_s for at_s, _ in marks)])
    unit_s, unit = next((size, name) for least, size, name in UNITS if end_s >= least)
    _draw_curves(axes, right, impact, unit_s)
    _draw_marks(axes, marks, unit_s)
    axes.axvspan(0, impact.downtime_s / unit_s, color="0.9", zorder=0, label="down")
    axes.set_xlim(0, end_s / unit_s * PADDING)
    axes.set_xlabel(f"{unit} since it went down")
    axes.set_title(literal(cleaned(title or _title(impact))), fontsize=11)
    figure.legend(loc="outside lower center", ncols=5, fontsize=9)
    return figure


def _title(impact: Impact) -> str:
    down, window = spoken(impact.downtime_s), spoken(impact.window_s)
    return (
        f"{down} down, seen through a window of {window}: up to {impact.peak_error_rate:.0%} errors"
    )


def _draw_curves(axes: Axes, right: Axes, impact: Impact, unit_s: float) -> None:
    times = [each.t_s / unit_s for each in impact.series]
    # None becomes NaN: a gap, not a zero
    rates = [float("nan") if each.error_rate is None else each.error_rate for each in impact.series]
    axes.fill_between(times, rates, color=ERRORS, alpha=0.25, linewidth=0)
    axes.plot(times, rates, color=ERRORS, label="error rate of the window")
    axes.set_ylim(0, min(1.05, impact.peak_error_rate * 1.25 or 1))
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.set_ylabel("error rate", color=ERRORS)
    right.plot(
        times, [each.rps for each in impact.series], color=ANSWERS, label="RPS of the window"
    )
    right.set_ylim(0, max((each.rps for each in impact.series), default=0) * 1.25 or 1)
    right.set_ylabel("RPS", color=ANSWERS)


def _marks(impact: Impact) -> list[tuple[float, str]]:
    marks: list[tuple[float, str]] = []
    if impact.tainted_s:
        marks.append((impact.tainted_s, "no error left"))
    even_s = impact.breakeven_s
    if even_s is not None and even_s <= FARTHEST * (impact.downtime_s + impact.window_s):
        marks.append((even_s, "paid back"))
    return marks


def _draw_marks(axes: Axes, marks: Sequence[tuple[float, str]], unit_s: float) -> None:
    for style, (at_s, word) in zip((":", "--"), marks, strict=False):
        axes.axvline(at_s / unit_s, color="0.3", linestyle=style, label=f"{word}: {spoken(at_s)}")
