"""A workload's report for the terminal: what to do first, then the levers, then the figures they rest on."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from toolkit.report.tables import Column, screen
from toolkit.units import UNKNOWN, share
from toolkit.workload import Workload
from toolkit.workload.levers import NAMES
from toolkit.workload.page import (
    endless_last,
    figures,
    lever_number,
    size_words,
    ttl_words,
)

NAME_WIDTH = 23
WIDEST_LINE = 118
"""Longer lines of text are hard to read back from their end to the next one's beginning."""


def print_report(report: Workload, source: str, notes: Sequence[str]) -> None:
    """Print the whole report. `notes` are what the source said of itself."""
    console = screen()
    width = min(console.width, WIDEST_LINE)
    console.print(Text(f"Workload of {source}"), width=width)
    console.print()
    console.print(Text(report.headline, style="bold"), width=width)

    def title(text: str) -> None:
        console.print()
        console.print(Text(text, style="bold"))

    title("Levers, by the GPU work that each saves once those above it are in place")
    for place, lever in enumerate(report.levers, 1):
        saved = "" if lever.saved_share is None else f"saves {share(lever.saved_share)}"
        if saved and lever.standalone_share not in (None, lever.saved_share):
            saved += f", alone {share(lever.standalone_share)}"
        head = f"{place}. {NAMES[lever.code]}".ljust(NAME_WIDTH)
        style = "" if lever.recommended else "dim"
        line = Text(f"{head}{saved or lever_number(lever)}".rstrip(), style=style)
        console.print(_hanging(line, width))
        more = "; ".join(filter(None, (lever_number(lever) if saved else "", lever.caveat)))
        console.print(_indented(Text(more, style="dim"), 3, width), width=width)

    title("What arrived")
    for name, value, more in figures(report):
        line = Text(name.ljust(NAME_WIDTH), style="dim")
        line.append(value, style="not dim")
        if more:
            line.append(f"   {more}", style="dim")
        console.print(_hanging(line, width))

    cells = {
        (cell.size, cell.ttl_s): cell for cell in report.hit_curve if cell.hit_ratio is not None
    }
    if cells:
        # where latency is unknown, nobody can tell a hit from a request that joins
        is_split = any(cell.coalesced_ratio is not None for cell in report.hit_curve)
        title(
            "What a response cache answers: from memory + by joining one under way"
            if is_split
            else "What a response cache and single-flight answer together"
        )
        ttls = sorted({ttl for _, ttl in cells}, key=endless_last)
        sizes = sorted({size for size, _ in cells}, key=endless_last)
        rows = []
        for size in sizes:
            row = [size_words(size)]
            for ttl in ttls:
                cell = cells.get((size, ttl))
                text = UNKNOWN if cell is None else share(cell.hit_ratio)
                if cell is not None and cell.coalesced_ratio is not None:
                    text += f" + {share(cell.coalesced_ratio)}"
                row.append(text)
            rows.append(row)
        columns = [Column(title=ttl_words(ttl), right=True) for ttl in ttls]
        console.table([Column(title="answers held"), *columns], rows)

    if report.model_length.refusals:
        title("Refused at other limits")
        columns = [
            Column(title="max_model_len", right=True),
            Column(title="requests refused", right=True),
            Column(title="share", right=True),
            Column(title="answers cut", right=True, spare=1),
        ]
        rows = [
            [f"{one.max_model_len:,}", f"{one.refused:,}", share(one.refused_share), f"{one.cut:,}"]
            for one in report.model_length.refusals
        ]
        console.table(columns, rows)

    rests_on = [*notes, *report.warnings, *report.unknown]
    if rests_on:
        title("Methodology")
    for one in rests_on:
        console.print(Text("- ") + _indented(Text(one), 2, width)[2:], width=width)


def _hanging(line: Text, width: int) -> Text:
    """Wrapped with what follows the name below itself."""
    name, rest = line.divide([NAME_WIDTH])
    return name + _indented(rest, NAME_WIDTH, width)[NAME_WIDTH:]


def _indented(text: Text, left: int, width: int) -> Text:
    """Wrapped, each line behind so many blanks."""
    margin = Text(" " * left)
    lines = text.wrap(Console(width=width), max(20, width - left))
    for line in lines:
        line.rstrip()
    return Text("\n").join(margin + line for line in lines)
