"""A sweep as a picture: each configuration's first figure as a bar with its change and interval. It writes one PNG or SVG file."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from toolkit.report.picture import literal, new_figure, save
from toolkit.tuning.figures import figure, metric
from toolkit.tuning.sweep_file import SweepPlan
from toolkit.tuning.sweep_table import NO_DIFFERENCE, SweepRow, difference_in_words

INCHES_WIDE, INCHES_A_BAR, INCHES_AROUND = 9.0, 0.62, 1.9
FIRST, MOVED, EQUAL = "0.55", "C0", "0.8"
"""The one that the others are compared with; a difference; none shown."""
WHISKER, ROOM = 1.15, 1.8
"""Of the longest bar: an interval is cut there; beside it stands the change, in words."""
LONGEST_NAME = 34


def draw(plan: SweepPlan, rows: Sequence[SweepRow], path: Path) -> None:
    """Draw it; the file's ending says how. Raises OSError when the file cannot be written."""
    save(lambda: picture(plan, rows), path)


def picture(plan: SweepPlan, rows: Sequence[SweepRow]) -> Figure:
    """The bars from top to bottom, in the order of the sweep, stages apart."""
    shown = [row for row in rows if row.status != "not begun"]
    drawn = new_figure((INCHES_WIDE, INCHES_AROUND + INCHES_A_BAR * max(1, len(shown))))
    axes = drawn.add_subplot()
    name = plan.look_at[0]
    longest = max((row.figure(name) or 0.0 for row in shown), default=0.0) or 1.0
    for place, row in enumerate(shown):
        value, compared, ends = row.figure(name), row.of(name), row.ends(name)
        if row.status != "measured" or value is None:
            words = literal(f"{row.status}: {row.cause or 'no figure'}")[:90]
            axes.text(longest * 0.01, place, words, va="center", fontsize=8, color="0.35")
            continue
        is_equal = compared is not None and compared.verdict == NO_DIFFERENCE
        colour = FIRST if compared is None else EQUAL if is_equal else MOVED
        axes.barh(place, value, height=0.62, color=colour)
        end = value
        if ends is not None:
            low, high = max(0.0, ends[0]), min(ends[1], longest * WHISKER)
            axes.plot([low, high], [place, place], color="0.15", linewidth=1.4)
            end = max(end, high)
        words = literal(f"{figure(name, value)}   {difference_in_words(compared)}".rstrip())
        axes.text(end + longest * 0.015, place, words, va="center", fontsize=9)

    names = [
        each.name if len(each.name) <= LONGEST_NAME else f"{each.name[: LONGEST_NAME - 1]}…"
        for each in shown
    ]
    axes.set_yticks(range(len(shown)), [literal(each) for each in names])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(0, longest * ROOM)
    axes.set_xlabel(metric(name).title)
    axes.set_title(literal(plan.summary or plan.name), fontsize=11, loc="left", wrap=True)
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.grid(visible=True, axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return drawn
