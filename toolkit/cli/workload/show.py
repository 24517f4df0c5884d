"""A workload's report for the terminal: what to do first, then the levers, then the figures they rest on."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from toolkit.cli.workload.source import ReportSource
from toolkit.report.tables import Column, Screen, screen
from toolkit.units import UNKNOWN, share
from toolkit.workload.forecast import HitCell
from toolkit.workload.levers import Lever
from toolkit.workload.report_words import (
    LEVER_NAMES,
    cell_words,
    curve_title,
    figures,
    lever_number,
    losses_told,
    size_words,
    ttl_words,
)
from toolkit.workload.summary import Workload

NAME_WIDTH = 23
WIDEST_LINE = 118
"""Longer lines of text are hard to read back from their end to the next one's beginning."""


def print_report(report: Workload, found: ReportSource) -> None:
    """Print the whole report."""
    console = screen()
    width = min(console.width, WIDEST_LINE)
    console.print(Text(f"Workload of {found.told.replace('`', '')}"), width=width)
    console.print()
    console.print(Text(report.headline, style="bold"), width=width)
    _print_levers(report.levers, console, width)
    _print_figures(report, console, width)
    _print_curve(report.hit_curve, console)
    _print_refusals(report, console)
    told = [*losses_told(found.losses), *found.notes, *report.warnings, *report.unknown]
    _print_notes(told, console, width)


def _title(text: str, console: Screen) -> None:
    console.print()
    console.print(Text(text, style="bold"))


def _print_levers(levers: Sequence[Lever], console: Screen, width: int) -> None:
    _title("Levers, by the GPU work that each saves once those above it are in place", console)
    for place, lever in enumerate(levers, 1):
        saved = "" if lever.saved_share is None else f"saves {share(lever.saved_share)}"
        if (
            saved
            and lever.standalone_share is not None
            and lever.standalone_share != lever.saved_share
        ):
            saved += f", alone {share(lever.standalone_share)}"
        head = f"{place}. {LEVER_NAMES[lever.code]}".ljust(NAME_WIDTH)
        style = "" if lever.recommended else "dim"
        line = Text(f"{head}{saved or lever_number(lever)}".rstrip(), style=style)
        console.print(_hanging(line, width))
        more = "; ".join(filter(None, (lever_number(lever) if saved else "", lever.caveat)))
        console.print(_indented(Text(more, style="dim"), 3, width), width=width)


def _print_figures(report: Workload, console: Screen, width: int) -> None:
    _title("What arrived", console)
    for name, value, more in figures(report):
        line = Text(name.ljust(NAME_WIDTH), style="dim")
        line.append(value, style="not dim")
        if more:
            line.append(f"   {more}", style="dim")
        console.print(_hanging(line, width))


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


def _print_curve(curve: Sequence[HitCell], console: Screen) -> None:
    cells = {(cell.size, cell.ttl_s): cell for cell in curve if cell.hit_ratio is not None}
    if not cells:
        return
    _title(curve_title(curve), console)
    ttls = sorted({ttl for _, ttl in cells}, key=_endless_last)
    sizes = sorted({size for size, _ in cells}, key=_endless_last)
    columns = [
        Column(title="answers held"),
        *(Column(title=ttl_words(ttl), right=True) for ttl in ttls),
    ]
    rows = [
        [size_words(size), *(_answered(cells.get((size, ttl))) for ttl in ttls)] for size in sizes
    ]
    console.table(columns, rows)


def _endless_last(value: float | None) -> float:
    return float("inf") if value is None else value


def _answered(cell: HitCell | None) -> str:
    return UNKNOWN if cell is None else cell_words(cell)


def _print_refusals(report: Workload, console: Screen) -> None:
    refusals = report.model_length.refusals
    if not refusals:
        return
    _title("Refused at other limits", console)
    columns = [
        Column(title="max_model_len", right=True),
        Column(title="requests refused", right=True),
    ]
    columns += [Column(title="share", right=True), Column(title="answers cut", right=True, spare=1)]
    rows = [
        [f"{one.max_model_len:,}", f"{one.refused:,}", share(one.refused_share), f"{one.cut:,}"]
        for one in refusals
    ]
    console.table(columns, rows)


def _print_notes(told: Sequence[str], console: Screen, width: int) -> None:
    if not told:
        return
    _title("What this rests on", console)
    for one in told:
        console.print(Text("- ") + _indented(Text(one), 2, width)[2:], width=width)
