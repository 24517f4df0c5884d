"""How `toolkit impact` shows what an outage of a run cost."""

import click

from toolkit.board.impact import explained, outcome, recorded
from toolkit.cli.impact.options import ImpactOptions
from toolkit.cli.impact.read import Fall, fall_of
from toolkit.cli.impact.show import show
from toolkit.cli.named_run import blast_of
from toolkit.cli.output import say
from toolkit.cli.waiting import waiting_for
from toolkit.store import Store
from toolkit.units import spoken, time_of_day


def show_recorded(options: ImpactOptions) -> None:
    """Show what an outage of a run cost."""
    with waiting_for("Reading"), Store.open_readonly(options.database) as store:
        fall = fall_of(
            store,
            blast_of(store, options.run, options.database),
            name=options.host or "",
            at=options.at,
            everything=options.everything,
        )
    outage, told = fall.outage, fall.course
    impact = recorded(told, outage, options.window, fall.others)
    if not options.as_json:
        say(_heading(fall))
        click.echo()
    lines = explained(impact)
    if outage.is_over:
        lines.append(outcome(impact, told.end_s - outage.from_s))
    show(impact, options, lines, _about(fall), title=_heading(fall))


def _heading(fall: Fall) -> str:
    outage = fall.outage
    what = "restarted" if outage.restarted else "went down"
    length = spoken(outage.to_s - outage.from_s)
    end = f"back after {length}" if outage.is_over else f"not back {length} later"
    return f"{fall.name} {what} at {time_of_day(outage.from_s)}, {end} (run {fall.run})"


def _about(fall: Fall) -> dict[str, object]:
    """Keys of a recorded outage."""
    return {
        "run": fall.run,
        "name": fall.name,
        "from_s": fall.outage.from_s,
        "to_s": fall.outage.to_s,
        "restarted": fall.outage.restarted,
        "is_over": fall.outage.is_over,
    }
