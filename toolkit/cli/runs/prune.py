"""`toolkit runs prune`: say what would go, ask, delete it, give the room back."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from toolkit.cli.runs.list import Listed, in_a_line, listed
from toolkit.cli.waiting import waiting_for
from toolkit.errors import ToolkitError
from toolkit.records import Run
from toolkit.store import Store
from toolkit.units import counted, date_and_time, file_size


def prune_by(
    store: Store, database: Path, keep: tuple[str, float], *, is_sure: bool, now: float
) -> None:
    """Delete what is not to be kept, if a person agrees."""
    how, amount = keep
    before = now - amount if how == "seconds" else None
    with waiting_for("Counting"):
        runs = store.runs()
        doomed = listed(store, _doomed(store, runs, how, amount, now), now)
        sightings = 0 if before is None else store.sightings_before(before)
    _refuse_live(doomed)
    if not doomed and not sightings:
        click.echo(f"Nothing to delete: {_kept(store, database, runs)}", err=True)
        return
    if not (is_sure or _agreed(doomed, len(runs), sightings, before)):
        click.echo("Nothing was deleted", err=True)
        return
    with waiting_for("Deleting"):
        for run in doomed:
            store.remove_run(run.id)
            click.echo(f"Deleted {in_a_line(run)}", err=True)
        if before is not None and sightings:
            click.echo(f"Deleted {counted(store.remove_sightings(before), 'sighting')}", err=True)
    with waiting_for("Writing the file anew"):
        _shrink(store, database, now)


def _doomed(store: Store, runs: Sequence[Run], how: str, amount: float, now: float) -> list[Run]:
    """The runs that are not to be kept, oldest first; `runs` are all, newest first."""
    if how == "runs":
        return list(reversed(runs[int(amount) :]))
    if how == "seconds":
        return [run for run in reversed(runs) if run.started_at < now - amount]
    if store.used_bytes() <= amount:
        return []
    # the newest stays even where it alone is too large: a slip of the finger must not cost everything
    oldest = list(reversed(runs[1:]))
    sizes = store.used_bytes_without([run.id for run in oldest], enough=int(amount))
    return oldest[: len(sizes)]


def _refuse_live(doomed: Sequence[Listed]) -> None:
    for run in doomed:
        if run.state == "on":
            raise ToolkitError(
                f"run `{run.id}` is still on, and would be deleted",
                "Wait until it is over, or keep more with `--keep`. Nothing was deleted",
            )


def is_terminal() -> bool:
    """Whether a person can answer."""
    return sys.stdin is not None and sys.stdin.isatty()


def _agreed(doomed: Sequence[Listed], all_runs: int, sightings: int, before: float | None) -> bool:
    """Show what would go and ask. Raises ToolkitError when nobody is there to ask."""
    for run in doomed:
        click.echo(f"  {in_a_line(run)}", err=True)
    what = [f"{len(doomed):,} of {counted(all_runs, 'run')}"] if doomed else []
    if sightings and before is not None:
        what.append(f"{counted(sightings, 'sighting')} from before {date_and_time(before)}")
    if not is_terminal():
        raise ToolkitError(
            f"nobody is here to say yes to deleting {' and '.join(what)}",
            "Add `--yes` to delete without a question",
        )
    return click.confirm(f"Delete {' and '.join(what)}?", err=True)


def _shrink(store: Store, database: Path, now: float) -> None:
    """Give the room back, unless somebody writes; say what came of it."""
    if any(run.state == "on" for run in listed(store, store.runs(), now)):
        click.echo(
            f"`{database}` keeps its size while a run is on; new rows fill the room, and another "
            "`toolkit runs prune` gives it back later",
            err=True,
        )
        return
    before = database.stat().st_size
    try:
        store.shrink()
    except ToolkitError as error:
        click.echo(f"The room is left for new rows: {error.message}", err=True)
        return
    click.echo(
        f"`{database}`: {file_size(before)} before, {file_size(database.stat().st_size)} now",
        err=True,
    )


def _kept(store: Store, database: Path, runs: Sequence[Run]) -> str:
    return f"`{database}` has {counted(len(runs), 'run')} in {file_size(store.used_bytes())}"
