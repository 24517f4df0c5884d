"""Tables that fit the terminal, or stand whole in a pipe. Writes to standard output and error; only verbs that print a table load it."""

import io
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from toolkit.safe_text import cleaned, drawing_on
from toolkit.units import DASH, UNKNOWN

GAP = 2
"""Characters between two columns."""
LITTLE = 8
"""A column with at least so much `spare` goes before any cell is folded."""
LEAST_TEXT = 8
"""Characters that a folded text keeps on the narrowest screen."""
PIPE_WIDTH = 240
"""Columns of a table that goes into a file or a pipe, where rich would assume 80 and cut."""
Cell = str | Text


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its title, how a record's cell is made, and how soon it gives way on a narrow screen."""

    title: str
    cell: Callable[[Any], Cell] = str
    _: KW_ONLY
    right: bool = False
    spare: int = 0
    """0 always stays; of the others those go first that hold no figure, then the largest."""
    widest: int | None = None
    """Longer cells are folded: one host's long path must not cost all hosts their other columns."""
    narrowest: int | None = None
    """Cells are folded to so many characters before a column goes whose `spare` is less than LITTLE."""


class Screen(Console):
    """A console whose own escape sequences are the only ones: what is shown has none left."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Clean what rich makes of anything, and leave its colours and its cursor alone."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else cleaned(text), style, control)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; a terminal folds a sentence between words, in a pipe it stays one line unless a width is given."""
        keeps_line = not self.is_terminal and all(isinstance(one, str | Text) for one in objects)
        options.setdefault("soft_wrap", keeps_line and "width" not in options)
        super().print(*objects, **options)

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
        """Print a table that fits."""
        self.print(fit_table(columns, rows, self))

    def records(self, columns: Sequence[Column], records: Sequence[Any]) -> None:
        """Print a table that fits, with a row for each record."""
        self.print(table_of(columns, records, self))


def screen() -> Screen:
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


def side_screen() -> Screen:
    """The console on standard error, for what moves."""
    return Screen(file=drawing_on(sys.stderr))


def table_of(columns: Sequence[Column], records: Sequence[Any], console: Console) -> RenderableType:
    """A row for each record, of the cells that its columns make."""
    rows = [[column.cell(record) for column in columns] for record in records]
    return fit_table(columns, rows, console)


def notes(
    found: Iterable[tuple[str, str, str]], *, most_names: int = sys.maxsize
) -> Iterator[Text]:
    """(host, title, sentence) -> one line a sentence, with the hosts it stands for; of many only the first few are named."""
    hosts: dict[tuple[str, str], list[str]] = {}
    for name, title, sentence in found:
        hosts.setdefault((title, sentence), []).append(name)
    for (title, sentence), names in hosts.items():
        more = len(names) - most_names
        listed = ", ".join(names[:most_names]) + (f" and {more} more" if more > 0 else "")
        yield Text.assemble((title, "bold"), f"  {listed}: {sentence}")


def fit_table(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], console: Console
) -> RenderableType:
    """Lay out rows in the console's width: titles and long cells fold between words, then spare columns go, and a line says which."""
    # by hand: rich would lay the table out to know its widths (35 ms), and break words of titles where it is narrow
    every = range(len(columns))
    words, flat, whole, least = [], [], [], []
    for column, *cells in zip(columns, *rows, strict=True):
        parts = column.title.split()
        folded = [(parts[:at], parts[at:]) for at in range(1, len(parts) + 1)]
        title = min(
            (max(cell_len(" ".join(part)) for part in two) for two in folded), default=0
        )  # in two lines
        cell = max((cell_len(str(cell)) for cell in cells), default=0)
        body = max(title, min(cell, column.widest or sys.maxsize))
        words.append(title)
        flat.append(body)
        whole.append(max(body, cell_len(column.title)))
        least.append(max(title, min(body, column.narrowest or sys.maxsize)))

    def width(widths: Sequence[int], shown: Sequence[int]) -> int:
        return sum(widths[i] for i in shown) + GAP * (len(shown) - 1)

    # rows of one line are worth more than a column that hardly matters
    is_unknown = [all(str(row[i]) in ("", DASH, UNKNOWN) for row in rows) for i in every]
    kept = list(every)
    for needs, least_spare in ((flat, LITTLE), (least, 1)):
        while width(needs, kept) > console.width:
            spare = [i for i in kept if columns[i].spare >= least_spare]
            if not spare:
                break
            kept.remove(max(spare, key=lambda i: (is_unknown[i], columns[i].spare)))
    by_worth = sorted(every, key=lambda i: (is_unknown[i], columns[i].spare))
    for i in by_worth:  # a narrow one may fit where a wider one went
        if i not in kept and width(flat, [*kept, i]) <= console.width:
            kept = sorted([*kept, i])

    # what is left of the width goes to cells first, then to titles that it lets stand in one line
    widths = list(least)
    for wanted in (flat, whole):
        for i in (i for i in by_worth if i in kept):
            room = console.width - width(widths, kept)
            if wanted is flat or wanted[i] - widths[i] <= room:
                widths[i] += max(0, min(wanted[i] - widths[i], room))
    # a narrow screen: the longest texts fold anywhere
    while width(widths, kept) > console.width:
        texts = [i for i in kept if not columns[i].right and widths[i] > max(words[i], LEAST_TEXT)]
        if not texts:
            break
        widths[max(texts, key=lambda i: widths[i])] -= 1

    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1),
        collapse_padding=True,
        show_edge=False,
    )
    for i in kept:
        justify: Literal["left", "right"] = "right" if columns[i].right else "left"
        table.add_column(columns[i].title, justify=justify, overflow="fold", width=widths[i])
    for row in rows:
        cells = [row[i] for i in kept]
        # Text, not str: a host's `[red]` is a name, not a colour; nor does a line's end in a name begin another row
        table.add_row(
            *(
                cell if isinstance(cell, Text) else Text(cleaned(cell).replace("\n", "?"))
                for cell in cells
            )
        )
    left_out = [columns[i].title for i in every if i not in kept and columns[i].title]
    if not left_out:
        return table
    wider = f"a terminal of {width(flat, every)} columns shows all, and so does `--json`"
    where = wider if console.is_terminal else "`--json` has all"
    return Group(table, Text(f"Not shown: {', '.join(left_out)}; {where}", style="dim"))
