"""How `toolkit impact` shows what a restart costs: a table and sentences, or JSON, and a picture."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType

import click

from toolkit.board.impact import (
    Impact,
    PlannedRestart,
    ahead,
    decision,
    explained,
    planned,
    shown_at,
    turning_points,
)
from toolkit.cli.impact.options import GAIN, RPS, ImpactOptions
from toolkit.cli.output import print_json, say
from toolkit.cli.waiting import waiting_for
from toolkit.errors import ToolkitError
from toolkit.report.tables import Column, screen
from toolkit.units import DASH, percent, short, spoken

COLUMNS = (
    Column(title="after", right=True),
    Column(title="what happens"),
    Column(title="error rate", right=True),
    Column(title="RPS of the window", right=True),
    Column(title="requests ahead", right=True),
)


def show_planned(options: ImpactOptions) -> None:
    """Show what a restart would cost."""
    rps = RPS if options.rps is None else options.rps
    impact = planned(
        PlannedRestart(
            downtime_s=options.downtime or 0.0,
            window_s=options.window,
            rps=rps,
            error_rps=rps if options.error_rps is None else options.error_rps,
            gain=GAIN if options.gain is None else options.gain,
        )
    )
    show(impact, options, [*explained(impact), decision(impact, options.left)])


def show(
    impact: Impact,
    options: ImpactOptions,
    sentences: Sequence[str],
    about: Mapping[str, object] = MappingProxyType({}),
    *,
    title: str = "",
) -> None:
    """Show it as the command line asks."""
    if options.as_json:
        print_json(asdict(impact) | dict(about))
    else:
        _print_table(impact)
        for line in sentences:
            say(line)
    if options.png:
        draw_to(options.png, impact, title=title)


def _print_table(impact: Impact) -> None:
    console = screen()
    rows = [_row(impact, at_s, what) for at_s, what in turning_points(impact)]
    console.table(COLUMNS, rows)
    console.print()


def _row(impact: Impact, at_s: float, what: str) -> list[str]:
    shown, won = shown_at(impact, at_s), ahead(impact, at_s)
    return [
        spoken(at_s),
        what,
        percent(shown.error_rate if shown else None, 1),
        DASH if shown is None else short(shown.rps),
        DASH if won is None else f"{round(won):+,}" if round(won) else "0",
    ]


def draw_to(path: Path, impact: Impact, *, title: str = "") -> None:
    """Draw the picture and say where it is."""
    # matplotlib tells of a home that it cannot write to and fails to load where MPLBACKEND names none that it
    # knows: nothing of that changes the picture
    logging.getLogger("matplotlib").setLevel(logging.CRITICAL)
    os.environ.pop("MPLBACKEND", None)
    try:
        with waiting_for("Drawing"):
            from toolkit.board.chart import draw

            path.parent.mkdir(parents=True, exist_ok=True)
            draw(impact, path, title=title)
    except OSError as error:
        reason = (error.strerror or str(error) or "no reason given").lower()
        raise ToolkitError(
            f"the picture `{path}` cannot be written: {reason}", "Give another file: `--chart`"
        ) from error
    click.echo(f"Picture: {path}", err=True)
