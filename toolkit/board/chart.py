"""What a restart costs, as a picture: the window's error rate and RPS over time. It writes one PNG file, opens no window."""

from pathlib import Path

from matplotlib.figure import Figure

from toolkit.board.impact import Impact
from toolkit.report.picture import literal, new_figure, save
from toolkit.safe_text import cleaned
from toolkit.units import spoken

INCHES = (10, 5.5)
ERRORS, ANSWERS = "C3", "C0"
FARTHEST = 2.0
"""A break-even later than this many times downtime and window is given in words only, or the curve would shrink to a line."""
PADDING = 1.03
UNITS = ((3 * 3600.0, 3600.0, "hours"), (180.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
"""From this length of the axis on, in seconds; seconds in the unit; its name."""


def draw(impact: Impact, path: Path, *, title: str = "") -> None:
    """Draw it into a PNG file. Raises OSError when the file cannot be written."""
    save(lambda: picture(impact, title=title), path)


def picture(impact: Impact, *, title: str = "") -> Figure:
    """The error rate as an area, the RPS as a line, and the moments that matter."""
    marks = []
    if impact.tainted_s:
        marks.append((impact.tainted_s, "no error left", ":"))
    even_s = impact.breakeven_s
    if even_s is not None and even_s <= FARTHEST * (impact.downtime_s + impact.window_s):
        marks.append((even_s, "paid back", "--"))
    end_s = max([impact.tainted_s, impact.downtime_s, *(at_s for at_s, *_ in marks)])
    unit_s, unit = next((size, name) for least, size, name in UNITS if end_s >= least)

    figure = new_figure(INCHES)
    left = figure.add_subplot()
    right = left.twinx()
    times = [each.t_s / unit_s for each in impact.series]
    # None becomes NaN: a gap, not a zero
    rates = [float("nan") if each.error_rate is None else each.error_rate for each in impact.series]
    left.fill_between(times, rates, color=ERRORS, alpha=0.25, linewidth=0)
    left.plot(times, rates, color=ERRORS, label="error rate of the window")
    left.set_ylim(0, min(1.05, impact.peak_error_rate * 1.25 or 1))
    left.yaxis.set_major_formatter("{x:.0%}")
    left.set_ylabel("error rate", color=ERRORS)
    answered = [each.rps for each in impact.series]
    right.plot(times, answered, color=ANSWERS, label="RPS of the window")
    right.set_ylim(0, max(answered, default=0) * 1.25 or 1)
    right.set_ylabel("RPS", color=ANSWERS)
    for at_s, name, style in marks:
        label = f"{name}: {spoken(at_s)}"
        left.axvline(at_s / unit_s, color="0.3", linestyle=style, label=label)
    left.axvspan(0, impact.downtime_s / unit_s, color="0.9", zorder=0, label="down")
    left.set_xlim(0, end_s / unit_s * PADDING)
    left.set_xlabel(f"{unit} since it went down")

    usual = (
        f"{spoken(impact.downtime_s)} down, seen through a window of {spoken(impact.window_s)}:"
        f" up to {impact.peak_error_rate:.0%} errors"
    )
    left.set_title(literal(cleaned(title or usual)), fontsize=11)
    figure.legend(loc="outside lower center", ncols=5, fontsize=9)
    return figure
