"""`toolkit board freeze` and `reveal`: where every public view stops, and how it goes on."""

import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from toolkit.board.standings import RANK_BY, RankBy
from toolkit.cli.board.run import run_of, run_option
from toolkit.cli.help_page import Command, advanced
from toolkit.cli.options import DURATION, MOMENT, UP_TO_A_DAY, database_option
from toolkit.cli.output import say
from toolkit.errors import ToolkitError
from toolkit.records import Event, Run
from toolkit.units import clock, spoken

if TYPE_CHECKING:
    from toolkit.board.feed import Feed
    from toolkit.store import Store


@click.command("freeze", cls=Command, short_help="Freeze the public board at a moment.")
@click.option("--at", type=MOMENT, default="now", show_default=True, help="The last moment shown.")
@run_option
@database_option
def freeze(at: float, run_id: str | None, database: Path) -> None:
    """Let every public view of a blast stop at a moment, until it is revealed.

    The blast goes on and is stored; who holds the database sees it with `toolkit board --all`.

    \b
      toolkit board freeze
      toolkit board freeze --at 16:45
    """
    from toolkit.board.feed import Feed
    from toolkit.store import Store

    with Store.open_existing(database) as store:
        run = run_of(store, run_id, database, at)
        feed = Feed(store, run)
        # a later moment would uncover at once what the reveal under way still covers
        reveal = feed.reveal() if _covered(feed) else None
        if reveal is not None and at > reveal.frozen_s:
            at = reveal.frozen_s
            click.echo("The reveal is under way: the freeze before it holds again", err=True)
        frozen_s = _frozen_at_s(store, run)
        if frozen_s is not None and frozen_s <= at:
            raise ToolkitError(
                f"the board of run `{run.id}` is frozen at {clock(frozen_s)} already",
                "`toolkit board reveal` first, to freeze it later than that",
            )
        store.add_event(Event(run=run.id, at=at, kind="freeze"))
    click.echo(f"Frozen: the board of run {run.id} shows nothing past {clock(at)}", err=True)


@click.command("reveal", cls=Command, short_help="Show everything again.")
@click.option(
    "--every",
    type=DURATION,
    default="4s",
    show_default=True,
    help="Uncover the next place after this long.",
)
@click.option(
    "--by-key",
    is_flag=True,
    help="Uncover a place at each press of the presenter's key.",
)
@click.option("--next", "only_next", is_flag=True, help="Uncover one more place, from a script.")
@click.option(
    "--rank-by",
    type=click.Choice(RANK_BY),
    default="rps",
    show_default=True,
    help="Metric to rank by.",
)
@click.option(
    "--honest", is_flag=True, help="Exclude hosts flagged for cheating, and those not judged."
)
@advanced("--top", type=click.IntRange(min=1), help="Cover only this many places.  [default: all]")
@advanced("--window", type=UP_TO_A_DAY, help="Length of the window.  [default: as the page]")
@advanced(
    "--skip-limited",
    is_flag=True,
    help="Leave out seconds in which the load generator was the limit, for all hosts.",
)
@run_option
@database_option
@click.pass_context
def reveal(
    context: click.Context,
    /,
    *,
    every: float,
    by_key: bool,
    only_next: bool,
    rank_by: RankBy,
    honest: bool,
    top: int | None,
    window: float | None,
    skip_limited: bool,
    run_id: str | None,
    database: Path,
) -> None:
    """Lift a freeze: every view shows the whole blast again. Pages uncover it place by place, the last first and the
    winner at the end, all of them the same place at the same time.

    \b
      toolkit board reveal --every 10s
      toolkit board reveal --by-key --rank-by score --honest
          space, Enter, an arrow or a clicker's Page Down uncovers the next
          place, here and on the presenter's page, whose link it prints
      toolkit board reveal --next
    """
    from toolkit.board.feed import Feed
    from toolkit.board.reveal import Terms, hashed, new_secret
    from toolkit.cli.leaderboard import PORT, page_url
    from toolkit.store import Store

    chosen = [
        f"--{name.replace('_', '-')}"
        for name in ("every", "by_key", "rank_by", "honest", "top", "window", "skip_limited")
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    if only_next and chosen:
        raise click.UsageError(f"--next goes on as the reveal began; leave {chosen[0]} out")
    if by_key and "--every" in chosen:
        raise click.UsageError("--every and --by-key are two paces; choose one")
    with Store.open_existing(database) as store:
        run = run_of(store, run_id, database)
        feed = Feed(store, run)
        if only_next:
            _uncover(store, feed)
            return
        if _frozen_at_s(store, run) is None:
            raise ToolkitError(
                f"the board of run `{run.id}` is not frozen",
                "Nothing is to be done; another run is named by `--run`",
            )
        secret = new_secret()
        terms = Terms(
            every_s=None if by_key else every,
            rank_by=rank_by,
            honest=honest,
            skip_limited=skip_limited,
            top=top,
            window_s=None if window is None else max(1, round(window)),
            presenter=hashed(secret) if by_key else None,
        )
        store.add_event(Event(run=run.id, at=time.time(), kind="reveal", text=terms.written()))
        if not by_key:
            click.echo(f"Revealed: the board of run {run.id} shows everything", err=True)
            say(f"Pages uncover a place every {spoken(every)}, the last one first", err=True)
            return
        click.echo(f"Covered: pages of run {run.id} wait for the presenter's key", err=True)
        address = page_url(PORT)
        say(
            f"The presenter's link, with your leaderboard's address in place of {address}:",
            err=True,
        )
        click.echo(f"{address}/?kiosk=1&presenter={secret}")
        say(
            "Space, Enter, an arrow or a clicker's Page Down uncovers the next place there",
            err=True,
        )
        if sys.stdin is not None and sys.stdin.isatty():
            _uncover_by_key(store, feed)


NEXT_KEYS = re.compile(r"[ \r\n]|\x1b[\[O][BC]|\x1b\[6~")
"""Space, Enter, down, right, and Page Down, which is what a clicker sends."""


def _uncover_by_key(store: "Store", feed: "Feed") -> None:
    """Let each press of such a key uncover a place, until none is covered or somebody presses `q`."""
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)  # each key by itself, and none is lost while a place is written
    try:
        click.echo("These keys work here, too; `q` leaves", err=True)
        while _covered(feed):
            keys = os.read(terminal, 64).decode("latin-1")
            for _ in NEXT_KEYS.findall(keys)[: len(_covered(feed))]:
                _uncover(store, feed)
            if not keys or "q" in keys.lower():
                return
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _covered(feed: "Feed") -> range:
    """The places that the reveal under way still covers."""
    feed.refresh()
    reveal = feed.reveal()
    return reveal.covered(time.time(), len(feed.revealed().standings)) if reveal else range(0)


def _uncover(store: "Store", feed: "Feed") -> None:
    """Uncover the next place, and say who stands there. Raises ToolkitError when none is covered."""
    from toolkit.board.summary import figure

    covered = _covered(feed)
    if not covered:
        raise ToolkitError(
            f"no place of run `{feed.run.id}` is covered",
            "`toolkit board freeze`, then `toolkit board reveal --by-key` cover them",
        )
    store.add_event(Event(run=feed.run.id, at=time.time(), kind="uncover"))
    place, board = covered[-1], feed.revealed()
    one = board.standings[place - 1]
    click.echo(f"Place {place}: {one.name}, {figure(one, board.rank_by)}", err=True)


def _frozen_at_s(store: "Store", run: Run) -> int | None:
    from toolkit.board.standings import frozen_at_s

    return frozen_at_s(event for _, event in store.events(run.id))
