"""Tables that fit the screen, or stand whole in a pipe. Only verbs that print one load this (rich: 80 ms)."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 200
"""Columns of a table that goes into a file or a pipe, where rich would assume 80 and cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table: its title, and how soon it gives way on a narrow screen."""

    title: str
    right: bool = False
    spare: int = 0
    """0 always stays; of the others the largest goes first."""


def screen() -> Console:
    """The console for data: coloured and as wide as the terminal, or plain and wide in a pipe."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(width=PIPE_WIDTH, highlight=False, color_system=None)


def fit_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str | Text]], console: Console
) -> Table:
    """Lay out rows; leave out spare columns until the rest fits the console unfolded."""
    kept = list(range(len(columns)))
    while True:
        table = _table([columns[i] for i in kept], [[row[i] for i in kept] for row in rows])
        spare = [i for i in kept if columns[i].spare]
        if not spare or _natural_width(table, console) <= console.width:
            return table
        kept.remove(max(spare, key=lambda i: columns[i].spare))


def _natural_width(table: Table, console: Console) -> int:
    """Columns that the table takes when nothing is folded; rich would stop counting at the screen's."""
    return Measurement.get(console, console.options.update(max_width=10_000), table).maximum


def _table(columns: Sequence[Column], rows: Sequence[Sequence[str | Text]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    for column in columns:
        table.add_column(column.title, justify="right" if column.right else "left", overflow="fold")
    for row in rows:
        # Text, not str: a host's `[red]` is a name, not a colour
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return table
