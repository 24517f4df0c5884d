"""How `toolkit runs` lists runs, as a table or as JSON lines, and how all its words name one."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import click

from toolkit.cli.output import print_json
from toolkit.records import Run
from toolkit.serving.processes import still_runs
from toolkit.store import Store
from toolkit.units import DASH, counted, date_and_time, stopwatch

LIVE_S = 60.0
"""A run without an end, of which something was stored so lately, is still on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A run and what is stored of it; the fields are the keys of `--json`, where `id` is `run` as everywhere."""

    id: str
    verb: str
    state: Literal["ended", "on", "cut"]
    """`cut`: it never said that it ended, and nothing more comes."""
    started_at: float
    """Seconds since 1970, as `ended_at`."""
    ended_at: float | None
    took_s: float | None
    """To its end, else to the last that was stored of it."""
    hosts: int
    requests: int
    """All that were sent, canaries included, warm-up left out; of a capture all that arrived."""
    errors: int
    """Of a capture the answers of 400 and more, where answers were followed."""
    client_ok: bool | None
    """False: the measuring machine was the limit."""


def listed(store: Store, runs: Iterable[Run], now: float) -> list[Listed]:
    """Count what is stored of runs."""
    return [_listed(store, run, now) for run in runs]


def _listed(store: Store, run: Run, now: float) -> Listed:
    content = store.content(run.id)
    noted = json.loads(run.settings).get("process")
    # a serve whose engines are well has nothing to store for days: it says who it is
    is_on = run.ended_at is None and (
        still_runs(noted)
        if noted is not None
        else now - max(content.last_at or 0, run.started_at) < LIVE_S
    )
    last_at = run.ended_at or (now if is_on and noted else content.last_at)
    return Listed(
        id=run.id,
        verb=run.verb,
        state="on" if is_on else "cut" if run.ended_at is None else "ended",
        started_at=run.started_at,
        ended_at=run.ended_at,
        took_s=None if last_at is None else max(0.0, last_at - run.started_at),
        hosts=content.hosts,
        requests=content.requests,
        errors=content.errors,
        client_ok=run.client_ok,
    )


def print_list(runs: Sequence[Listed], verb: str | None, *, as_json: bool) -> None:
    """Print them in their order; `verb` is the only one that was asked for."""
    if as_json:
        for run in runs:
            told = asdict(run)
            print_json({"run": told.pop("id"), **told})
    elif runs:
        _print_table(runs)
    elif verb:
        click.echo(f"No run of `{verb}`. `toolkit runs` lists those of all commands", err=True)
    else:
        click.echo(
            "No run yet. `toolkit bench HOSTS`, `blast HOSTS` or `capture` makes one", err=True
        )


def _print_table(runs: Sequence[Listed]) -> None:
    from toolkit.report.tables import Column, screen

    columns = [
        Column(title="run"),
        Column(title="verb"),
        Column(title="began"),
        Column(title="took", right=True),
        Column(title="hosts", right=True, spare=1),
        Column(title="requests", right=True),
        Column(title="errors", right=True),
        Column(title="client ok", spare=2),
    ]
    health = {True: "yes", False: "no: the limit", None: DASH}
    rows = [
        [
            run.id,
            run.verb,
            date_and_time(run.started_at),
            _took(run),
            f"{run.hosts:,}",
            f"{run.requests:,}",
            f"{run.errors:,}",
            health[run.client_ok],
        ]
        for run in runs
    ]
    screen().table(columns, rows)


def _took(run: Listed) -> str:
    said = DASH if run.took_s is None else duration(run.took_s)
    return {"ended": said, "on": f"{said}, still on", "cut": f"{said}, cut off"}[run.state]


def duration(seconds: float) -> str:
    """`3.2 s`, else `1:02:03`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return stopwatch(round(seconds), shows_hours=True)


def in_a_line(run: Listed) -> str:
    """A run in a few words."""
    return (
        f"run {run.id} ({run.verb} of {date_and_time(run.started_at)}, {counted(run.hosts, 'host')}, "
        f"{counted(run.requests, 'request')})"
    )
