"""Which blast a board is of, and what its owner writes into it: freeze and reveal."""

import time
from pathlib import Path

import click

from toolkit.board.freeze import frozen_at_s
from toolkit.cli.moments import clock
from toolkit.errors import ToolkitError
from toolkit.records import Event, Run
from toolkit.store import Store

HINTED_RUNS = 5
FEED_IT = "Feed it: `toolkit blast hosts.txt --duration 15m`, or `toolkit demo` to see one"


def run_of(store: Store, run_id: str | None, database: Path, at: float | None = None) -> Run:
    """The run that is named, else the newest blast, or the newest that had begun by a moment.

    Raises ToolkitError when there is none.
    """
    run = _newest(store, database, at) if run_id is None else store.run(run_id)
    if run is None:
        known = ", ".join(f"`{each.id}`" for each in store.runs(verb="blast", limit=HINTED_RUNS))
        raise ToolkitError(
            f"`{database}` has no run `{run_id}`", f"Its newest blasts: {known or 'none yet'}"
        )
    if at is not None and at <= run.started_at:
        raise ToolkitError(
            f"the run `{run.id}` began only at {clock(run.started_at)}",
            "Give a later time with `--at`",
        )
    return run


def _newest(store: Store, database: Path, at: float | None) -> Run:
    blasts = store.runs(verb="blast", limit=1 if at is None else None)
    if not blasts:
        raise ToolkitError(f"`{database}` holds no blast yet", FEED_IT)
    return next((run for run in blasts if at is None or run.started_at < at), blasts[-1])


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
