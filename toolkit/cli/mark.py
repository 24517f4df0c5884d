"""`toolkit mark`: write down what somebody did to a server, so that the board can show it."""

import difflib
import time
from pathlib import Path

import click

from toolkit.cli.help_page import Command
from toolkit.cli.named_run import chosen_run
from toolkit.cli.options import HOST, MOMENT, database_option, run_word
from toolkit.cli.output import say
from toolkit.errors import ToolkitError
from toolkit.units import clock

SLACK_S = 1.0
"""A moment further ahead than this is a slip."""


@click.command("mark", cls=Command, short_help="Record what was changed on a host.")
@click.argument("words", nargs=-1, metavar="HOST TEXT", type=HOST)
@click.option("--all", "everyone", is_flag=True, help="Mark all hosts; leave HOST out.")
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
    type=run_word(),
    help="Run to mark.  [default: the one that was on then]",
)
@database_option
def command(
    words: tuple[str, ...], everyone: bool, at: float, run_id: str | None, database: Path
) -> None:
    """Write down what happened to a host, so that the leaderboard and its charts show it. HOST is a name or a URL
    that the database knows from a scout, bench or blast.

    \b
      toolkit mark alice "swapped to GPTQ"
      toolkit mark alice "restarted with --max-num-seqs 64" --at 14:32
      toolkit mark --all "lunch break" --at "5m ago"
    """
    if not everyone:
        everyone, wanted, words = words[:1] == ("-",), "".join(words[:1]), words[1:]
    text = " ".join(words).strip()  # the quotes around it may be forgotten
    if not text:
        raise click.UsageError(
            'say which host and what happened, e.g., `toolkit mark alice "swapped to GPTQ"`'
        )
    if not text.isprintable():
        raise click.UsageError("the text holds a control character; write it in one plain line")
    if at > time.time() + SLACK_S:
        raise click.BadParameter("this time is still to come", param_hint="--at")
    from toolkit.records import Event
    from toolkit.store import Store

    with Store.open_existing(database) as store:
        if run_id is None:
            blasts = store.runs(verb="blast")
            run = next((b for b in blasts if b.started_at <= at <= (b.ended_at or at)), None)
        else:
            run = chosen_run(store, run_id, database)
            if at < run.started_at:
                raise ToolkitError(
                    f"the run `{run_id}` began only at {clock(run.started_at)}",
                    f"Give a later time than {clock(at)} with `--at`, or another run",
                )

        host = None
        if not everyone:
            hosts = store.hosts()
            found = [each for each in hosts if wanted in (each.name, each.url)]
            if not found:
                names = sorted({each.name for each in hosts})
                near = difflib.get_close_matches(wanted, names, n=3)
                raise ToolkitError(
                    f"`{database}` knows no host `{wanted}`",
                    f"Did you mean {' or '.join(f'`{name}`' for name in near)}?"
                    if near
                    else f"Known hosts: {', '.join(names) or 'none yet'}. `-` instead of a name marks all of them",
                )
            # of two of one name the one in the run, else the last met
            in_run = store.hosts_of(run.id).values() if run else ()
            known = {(each.name, each.url) for each in in_run}
            host = next((each for each in found if (each.name, each.url) in known), found[0])
        name, url = (host.name, host.url) if host else (None, None)
        store.add_event(Event(run=run_id, name=name, url=url, at=at, kind="mark", text=text))

    where = f"run {run.id}" if run else "no blast was on then, so no board will show it"
    say(f"Marked {name or 'all hosts'} at {clock(at)}: {text} ({where})", err=True)
