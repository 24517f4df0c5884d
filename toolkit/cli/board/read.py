"""Which blast a board is of, and what its owner writes into it: freeze and reveal."""

import time
from pathlib import Path

import click

from toolkit.board.freeze import frozen_at_s
from toolkit.cli.named_run import blast_of
from toolkit.errors import ToolkitError
from toolkit.records import Event, Run
from toolkit.store import Store
from toolkit.units import clock


def run_of(store: Store, run_id: str | None, database: Path, at: float | None = None) -> Run:
    """The run that is named, else the newest blast, or the newest that had begun by a moment.

    Raises ToolkitError when there is none.
    """
    run = blast_of(store, run_id, database)
    if at is None:
        return run
    if run_id is None:
        run = next((each for each in store.runs(verb="blast") if each.started_at < at), run)
    if at <= run.started_at:
        raise ToolkitError(
            f"the run `{run.id}` began only at {clock(run.started_at)}",
            "Give a later time with `--at`",
        )
    return run


def freeze_board(at: float, run_id: str | None, database: Path) -> None:
    """Write that the public sees nothing past a moment."""
    with Store.open_existing(database) as store:
        run = run_of(store, run_id, database, at)
        frozen_s = _frozen_at_s(store, run)
        if frozen_s is not None and frozen_s <= at:
            raise ToolkitError(
                f"the board of run `{run.id}` is frozen at {clock(frozen_s)} already",
                "`toolkit board reveal` first, to freeze it later than that",
            )
        store.add_event(Event(run=run.id, at=at, kind="freeze"))
    click.echo(f"Frozen: the board of run {run.id} shows nothing past {clock(at)}", err=True)


def reveal_board(run_id: str | None, database: Path) -> None:
    """Write that the public sees everything again."""
    with Store.open_existing(database) as store:
        run = run_of(store, run_id, database)
        if _frozen_at_s(store, run) is None:
            raise ToolkitError(
                f"the board of run `{run.id}` is not frozen",
                "Nothing is to be done; another run is named by `--run`",
            )
        store.add_event(Event(run=run.id, at=time.time(), kind="reveal"))
    click.echo(f"Revealed: the board of run {run.id} shows everything", err=True)


def _frozen_at_s(store: Store, run: Run) -> int | None:
    return frozen_at_s(event for _, event in store.events(run.id))
