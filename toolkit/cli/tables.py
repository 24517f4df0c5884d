"""Tables that fit the screen, or stand whole in a pipe. Only verbs that print one load this."""

import io
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from toolkit.cli.output import drawing_on
from toolkit.wording import cleaned

GAP = 3
"""Characters between two columns."""
UNKNOWN = "-"
PIPE_WIDTH = 200
"""Columns of a table that goes into a file or a pipe, where rich would assume 80 and cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table: its title, and how soon it gives way on a narrow screen."""

    title: str
    right: bool = False
    spare: int = 0
    """0 always stays; of the others the largest goes first."""
    widest: int | None = None
    """Longer cells are folded: one host's long path must not cost all hosts their other columns."""


class Screen(Console):
    """A console whose own escape sequences are the only ones: what is shown has none left."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Clean what rich makes of anything, and leave its colours and its cursor alone."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else cleaned(text), style, control)


def screen() -> Console:
    """The console for data: coloured and as wide as the terminal, or plain and wide in a pipe."""
    if sys.stdout is None:
        return Screen(width=PIPE_WIDTH, highlight=False, color_system=None, force_terminal=False)
    stream = drawing_on(sys.stdout)
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")  # a host's name need not fit the screen's alphabet
    if stream.isatty():
        return Screen(highlight=False, file=stream)
    # force_terminal: FORCE_COLOR in the environment would make a pipe a terminal
    return Screen(
        width=PIPE_WIDTH, highlight=False, color_system=None, force_terminal=False, file=stream
    )


def side_screen() -> Console:
    """The console on standard error, for what moves."""
    return Screen(file=drawing_on(sys.stderr))


def keeps_lines(console: Console) -> bool:
    """Whether a sentence stays one line however long it is: in a pipe. A screen folds it between words."""
    return not console.is_terminal


def fit_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str | Text]], console: Console
) -> Table:
    """Lay out rows; leave out spare columns until the rest fits the console unfolded."""
    widths = [_natural_width(column, [row[i] for row in rows]) for i, column in enumerate(columns)]
    kept = list(range(len(columns)))
    while sum(widths[i] + GAP for i in kept) - GAP > console.width:
        spare = [i for i in kept if columns[i].spare]
        if not spare:
            break
        kept.remove(max(spare, key=lambda i: columns[i].spare))
    return _table([columns[i] for i in kept], [[row[i] for i in kept] for row in rows])


def _natural_width(column: Column, cells: Sequence[str | Text]) -> int:
    """Characters that a column takes unfolded; rich would lay the table out to know that (35 ms)."""
    width = max(cell_len(str(text)) for text in (column.title, *cells))
    return min(width, column.widest or width)


def _table(columns: Sequence[Column], rows: Sequence[Sequence[str | Text]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.right else "left"
        table.add_column(column.title, justify=justify, overflow="fold", max_width=column.widest)
    for row in rows:
        # Text, not str: a host's `[red]` is a name, not a colour; nor does a line's end in a name begin another row
        table.add_row(
            *(
                cell if isinstance(cell, Text) else Text(cleaned(cell).replace("\n", "?"))
                for cell in row
            )
        )
    return table


def milliseconds(value: float | None) -> str:
    """A latency with three digits and its unit: `0.84 ms`, `219 ms`, `89.0 s`."""
    if value is None:
        return UNKNOWN
    if value >= 10_000:
        return f"{value / 1000:,.1f} s" if value < 1e15 else f"{value / 1000:.3g} s"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"
