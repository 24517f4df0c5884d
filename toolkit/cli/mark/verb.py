"""`toolkit mark`: write down what somebody did to a server, so that the board can show it."""

import difflib
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.cli import suggestions
from toolkit.cli.options import MOMENT, database_option
from toolkit.cli.output import say
from toolkit.errors import ToolkitError
from toolkit.units import clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toolkit.records import Host, Run
    from toolkit.store import Store

EXAMPLES = """
Write down what happened to a host, so that the leaderboard and its charts show it. HOST is a
name or a URL that the database knows from a scout, bench or blast; `-` concerns all hosts.

\b
  toolkit mark alice "swapped to GPTQ"
  toolkit mark alice "restarted with --max-num-seqs 64" --at 14:32
  toolkit mark --all "lunch break" --at "5m ago"
"""
EVERYONE = "-"
SLACK_S = 1.0
"""A moment further ahead than this is a slip."""


@click.command("mark", help=EXAMPLES, short_help="Write down what somebody did to a host.")
@click.argument("words", nargs=-1, metavar="HOST TEXT", shell_complete=suggestions.host)
@click.option("--all", "everyone", is_flag=True, help="It concerns all hosts; leave HOST out.")
@click.option(
    "--at",
    type=MOMENT,
    default="now",
    show_default=True,
    help='When: `14:32`, `14:32:10`, `"5m ago"` or `2026-11-21T14:32:10`.',
)
@click.option(
    "--run",
    "run_id",
    metavar="RUN",
    shell_complete=suggestions.run(),
    help="Of this run.  [default: of what was on then]",
)
@database_option
def command(
    words: tuple[str, ...], everyone: bool, at: float, run_id: str | None, database: Path
) -> None:
    """Write down an event (the help text is EXAMPLES)."""
    wanted, text = _host_and_text(words, everyone=everyone)
    if at > time.time() + SLACK_S:
        raise click.BadParameter("this time is still to come", param_hint="--at")
    from toolkit.records import Event
    from toolkit.store import Store

    with Store.open_existing(database) as store:
        run = _run(store, run_id, at, database)
        host = None if wanted == EVERYONE else _host(store, wanted, run, database)
        name, url = (host.name, host.url) if host else (None, None)
        store.add_event(Event(run=run_id, name=name, url=url, at=at, kind="mark", text=text))
    say(_told(host, at, text, run), err=True)


def _host_and_text(words: "Sequence[str]", *, everyone: bool) -> tuple[str, str]:
    """Whom it concerns and what happened; the quotes around the text may be forgotten."""
    wanted, text = (EVERYONE, words) if everyone else ("".join(words[:1]), words[1:])
    said = " ".join(text).strip()
    if not said:
        raise click.UsageError(
            'say which host and what happened, e.g., `toolkit mark alice "swapped to GPTQ"`'
        )
    if not said.isprintable():
        raise click.UsageError("the text holds a control character; write it in one plain line")
    return wanted, said


def _run(store: "Store", run_id: str | None, at: float, database: Path) -> "Run | None":
    """The run that it belongs to: the named one, else the newest blast that was on then."""
    if run_id is None:
        return next((run for run in store.runs(verb="blast") if _was_on(run, at)), None)
    run = store.run(run_id)
    if run is None:
        raise ToolkitError(
            f"`{database}` has no run `{run_id}`", "`toolkit runs` lists what there is"
        )
    if at < run.started_at:
        raise ToolkitError(
            f"the run `{run_id}` began only at {clock(run.started_at)}",
            f"Give a later time than {clock(at)} with `--at`, or another run",
        )
    return run


def _was_on(run: "Run", at: float) -> bool:
    return run.started_at <= at <= (run.ended_at or at)


def _host(store: "Store", wanted: str, run: "Run | None", database: Path) -> "Host":
    """The host of this name or URL: of two of one name the one in the run, else the last met."""
    hosts = store.hosts()
    found = [host for host in hosts if wanted in (host.name, host.url)]
    if not found:
        raise _unknown(wanted, [host.name for host in hosts], database)
    in_run = {(host.name, host.url) for host in store.hosts_of(run.id).values()} if run else set()
    return next((host for host in found if (host.name, host.url) in in_run), found[0])


def _unknown(wanted: str, names: "Sequence[str]", database: Path) -> ToolkitError:
    near = difflib.get_close_matches(wanted, dict.fromkeys(names), n=3, cutoff=0.6)
    listed = ", ".join(sorted(set(names))) or "none yet"
    hint = f"Did you mean {' or '.join(f'`{name}`' for name in near)}?" if near else ""
    return ToolkitError(
        f"`{database}` knows no host `{wanted}`",
        hint or f"Known hosts: {listed}. `-` instead of a name marks all of them",
    )


def _told(host: "Host | None", at: float, text: str, run: "Run | None") -> str:
    who = host.name if host else "all hosts"
    where = f"run {run.id}" if run else "no blast was on then, so no board will show it"
    return f"Marked {who} at {clock(at)}: {text} ({where})"
