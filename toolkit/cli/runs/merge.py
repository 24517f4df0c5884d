"""`toolkit runs merge`: another database's runs into this one, each told."""

from pathlib import Path

import click

from toolkit.cli.runs.list import in_a_line, listed
from toolkit.cli.waiting import waiting_for
from toolkit.store import Store
from toolkit.units import counted


def merge_from(store: Store, other: Path, now: float) -> None:
    """Copy the other file's runs that are over and not here yet, oldest first, then what scout saw."""
    with waiting_for("Counting"), Store.open_readonly(other) as theirs:
        runs = listed(theirs, reversed(theirs.runs()), now)
    copied = 0
    with waiting_for("Copying"), store.beside(other):
        for run in runs:
            if store.run(run.id):
                click.echo(f"Skipped {in_a_line(run)}: it is here already", err=True)
            elif run.state == "on":
                click.echo(
                    f"Skipped {in_a_line(run)}: it is still on, so merge again when it is over",
                    err=True,
                )
            else:
                store.copy_run(run.id)
                copied += 1
                click.echo(f"Copied {in_a_line(run)}", err=True)
        sightings = store.copy_sightings()
    click.echo(
        f"From `{other}`: {counted(copied, 'run')} and {counted(sightings, 'sighting')}", err=True
    )
