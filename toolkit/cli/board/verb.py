"""`toolkit board`: who leads a blast over a rolling window, now or at any moment of the past."""

import math
import os
import re
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from toolkit.board.standings import RANK_BY, Board, RankBy, csv_of, json_rows
from toolkit.cli.help_page import Group, advanced
from toolkit.cli.options import (
    DURATION,
    FILE,
    LONGEST_WINDOW_S,
    MOMENT,
    database_option,
    run_word,
)
from toolkit.cli.output import print_json, say, to_stderr
from toolkit.cli.places import command_on
from toolkit.errors import ToolkitError
from toolkit.records import Event, Run
from toolkit.units import clock, spoken

if TYPE_CHECKING:
    from collections.abc import Callable

    from toolkit.board.feed import Feed
    from toolkit.store import Store

INTERVAL_S = 2.0
BUSY_S = 1.0
"""How long a look of --watch waits for a database that is busy."""
CSV_COLUMNS = (
    "rank name url score rps output_tokens_per_s ttft_p50_ms ttft_p95_ms p50_ms p95_ms error_rate ok errors"
    " hit_share hit_share_inferred tied rank_change rank_change_5m tainted_s left_out window_s at verdicts"
).split()

EXAMPLES = """
Rank the hosts of a blast over a rolling window, from what `toolkit blast` stores: the newest one,
as it stands now or stood at any moment. Tied hosts share a rank; verdicts say what explains the
figures.

\b
  toolkit board
  toolkit board --watch --rank-by p95
  toolkit board --at 14:32 --window 5m --honest
\f
\b
  toolkit board --json | jq .name
  toolkit board --serve   the leaderboard as a page, until Ctrl-C
  toolkit board --publish DIR
      as files for any web server, until the run is over; then with its replay
  toolkit board freeze
      the public board stops here, for whoever may not see the database
  toolkit board reveal    and shows everything again

--honest excludes hosts that cut answers short, claim tokens that were not generated or let another engine
answer, and hosts that could not be judged.
"""

run_option = advanced(
    "--run",
    "run_id",
    metavar="RUN",
    type=run_word("blast"),
    help="Of this run.  [default: the newest blast]",
)


@click.group(
    "board",
    cls=Group,
    help=EXAMPLES,
    short_help="Rank the hosts of a blast over a rolling window.",
    invoke_without_command=True,
)
@click.option("--watch", is_flag=True, help="Redraw every 2 s.")
@advanced(
    "--count", type=click.IntRange(min=1), help="End --watch or --publish after this many updates."
)
@click.option("--at", type=MOMENT, help='As it was at that time: `14:32`, `"5m ago"`.')
@click.option(
    "--window", type=DURATION, default="15m", show_default=True, help="Length of the window."
)
@click.option(
    "--rank-by",
    type=click.Choice(RANK_BY),
    default="rps",
    show_default=True,
    help="Metric to rank by.",
)
@click.option("--honest", is_flag=True, help="Exclude hosts flagged for cheating.")
@advanced(
    "--skip-limited",
    is_flag=True,
    help="Leave out seconds in which the load generator was the limit, for all hosts.",
)
@run_option
@advanced("--all", "everything", is_flag=True, help="Ignore a freeze, as the board's owner.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per host.")
@advanced("--csv", "as_csv", is_flag=True, help="Print CSV: a header, and a line per host.")
@click.option(
    "--serve",
    is_flag=True,
    help="Serve the leaderboard as a page.",
)
@advanced(
    "--publish",
    "publish_into",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep it in DIR as files for any web server.",
)
@advanced(
    "--port",
    type=click.IntRange(1, 65535),
    help="With --serve.  [default: 8501, or a free one]",
)
@advanced(
    "--host", metavar="ADDRESS", help="With --serve: where viewers are taken.  [default: 127.0.0.1]"
)
@advanced("--title", metavar="TEXT", help="What the page is called: with --serve or --publish.")
@advanced("--logo", type=FILE, help="A PNG, JPEG or SVG file beside the title.")
@database_option
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    watch: bool,
    count: int | None,
    at: float | None,
    window: float,
    rank_by: RankBy,
    honest: bool,
    skip_limited: bool,
    run_id: str | None,
    everything: bool,
    as_json: bool,
    as_csv: bool,
    serve: bool,
    publish_into: Path | None,
    port: int | None,
    host: str | None,
    title: str | None,
    logo: str | None,
    database: Path,
) -> None:
    """Show the board (the help text is EXAMPLES)."""
    if context.invoked_subcommand is not None:
        # `--db FILE freeze` would freeze the board of another file: freeze has a --db of its own
        given = map(context.get_parameter_source, context.params)
        if ParameterSource.COMMANDLINE in given:
            raise click.UsageError(f"options go after `{context.invoked_subcommand}`")
        return
    for is_so, message in (
        (as_json and as_csv, "--json and --csv are two; choose one"),
        (watch and as_csv, "--csv is one table; leave --watch out, or take --json"),
        (watch and at is not None, "--at is one moment; leave --watch out"),
        (
            count is not None and not (watch or publish_into),
            "--count goes with --watch or --publish",
        ),
        (window > LONGEST_WINDOW_S, "--window is a day at most"),
        (port is not None and not serve, "--port goes with --serve"),
        (host is not None and not serve, "--host goes with --serve"),
        (
            title is not None and not (serve or publish_into),
            "--title goes with --serve or --publish",
        ),
        (logo is not None and not (serve or publish_into), "--logo goes with --serve or --publish"),
        (serve and watch, "--serve is a page; leave --watch out"),
        (serve and as_json, "--serve is a page; leave --json out"),
        (serve and as_csv, "--serve is a page; leave --csv out"),
        (serve and everything, "--serve is a page; leave --all out"),
        (publish_into and serve, "--publish writes files; leave --serve out"),
        (publish_into and watch, "--publish follows the run; leave --watch out"),
        (publish_into and at is not None, "--publish follows the run; leave --at out"),
        (publish_into and as_json, "--publish writes standings.json, too; leave --json out"),
        (publish_into and as_csv, "--publish writes files; leave --csv out"),
        (publish_into and everything, "what is published stops at a freeze; leave --all out"),
    ):
        if is_so:
            raise click.UsageError(message)

    window_s = max(1, round(window))
    # the last second that had ended then
    at_s = None if at is None else math.ceil(at) - 1
    if serve or publish_into:
        # in the words of the page's own links (leaderboard_page/address.py)
        asked = {
            "rank": rank_by if rank_by != "rps" else None,
            # always, as the page's usual one is the run's own and the board's is not
            "window": f"{window_s}s",
            "honest": 1 if honest else None,
            "skip_limited": 1 if skip_limited else None,
            "run": run_id,
            "t": at_s,
        }
        query = {key: str(value) for key, value in asked.items() if value is not None}
        if logo is not None:
            from toolkit.report.logo import data_address

            data_address(logo)  # refused here, where somebody reads why
        brand = {"title": title or "Leaderboard", "logo": logo and str(Path(logo).absolute())}
        if publish_into:
            _publish(database, publish_into, query, count, brand)
        else:
            words = [f"--{name}={value}" for name, value in brand.items() if value is not None]
            _serve_page(database, port, host, query, words)
        return

    def ranked(feed: "Feed") -> Board:
        return feed.board(
            window_s=window_s,
            at_s=at_s,
            rank_by=rank_by,
            honest=honest,
            skip_limited=skip_limited,
        )

    if watch:
        live_feed = _LiveFeed(database, run_id, everything=everything)
        _watch(live_feed, ranked, count=count, as_json=as_json)
        return

    from toolkit.board.feed import Feed
    from toolkit.cli.waiting import waiting_for
    from toolkit.store import Store

    with waiting_for("Reading"), Store.open_readonly(database) as store:
        run = _run_of(store, run_id, database, at, as_json=as_json)
        feed = Feed(store, run, everything=everything)
        board, events = ranked(feed), feed.events()
    if as_json:
        print_json_board(board)
    elif as_csv:
        click.echo(csv_of(board, CSV_COLUMNS), nl=False)
    else:
        from toolkit.cli.board.table import print_board

        print_board(board, events, now=time.time() if at is None else None)


@command.command("freeze", short_help="Freeze the public board at a moment.")
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
        run = _run_of(store, run_id, database, at)
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


@command.command("reveal", short_help="Show everything again.")
@click.option(
    "--every",
    type=DURATION,
    default="4s",
    show_default=True,
    help="Uncover a place that often.",
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
@advanced("--top", type=click.IntRange(min=1), help="Cover only so many places.  [default: all]")
@advanced("--window", type=DURATION, help="How far it looks back.  [default: as the page]")
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
    if window is not None and window > LONGEST_WINDOW_S:
        raise click.UsageError("--window is a day at most")
    with Store.open_existing(database) as store:
        run = _run_of(store, run_id, database)
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


def _run_of(
    store: "Store",
    run_id: str | None,
    database: Path,
    at: float | None = None,
    *,
    as_json: bool = False,
) -> Run:
    """The run that is named, else the newest blast, or the newest that had begun by a moment.

    Raises ToolkitError when there is none, and says what else there is, with `as_json` as an object, too.
    """
    from toolkit.cli.named_run import chosen_run

    if run_id is None and not store.runs(verb="blast", limit=1):
        from toolkit.board.inventory import inventory

        there = inventory(store)
        if as_json:
            print_json(asdict(there) | {"next": command_on(database, *there.next_step)})
        if there.words:
            raise ToolkitError(
                f"`{database}` holds no blast yet, only {there.words}",
                f"`{command_on(database, *there.next_step)}` comes next. `{command_on(database, 'board', '--serve')}` shows "
                "what is there as a page, which turns into the leaderboard once a blast begins",
            )
    run = chosen_run(store, run_id, database, "blast")
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


def _frozen_at_s(store: "Store", run: Run) -> int | None:
    from toolkit.board.standings import frozen_at_s

    return frozen_at_s(event for _, event in store.events(run.id))


def print_json_board(board: Board) -> None:
    """Print one object a host; those left out come last, without rank."""
    for row in json_rows(board):
        print_json(row)


class _LiveFeed:
    """The feed of the newest blast of a file that may be missing, busy, replaced, or get another blast."""

    def __init__(self, database: Path, run_id: str | None, *, everything: bool) -> None:
        self._database, self._run_id, self._everything = database, run_id, everything
        self.store: Store | None = None
        self._feed: Feed | None = None
        self._file: tuple[int, int] | None = None

    def refreshed(self) -> "Feed":
        """Read what is new. Raises ToolkitError."""
        from toolkit.board.feed import Feed
        from toolkit.store import Store

        found = None
        with suppress(OSError):
            stat = self._database.stat()
            found = (stat.st_dev, stat.st_ino)
        if found != self._file:  # another file of that name: what was read is not its
            if self.store:
                self.store.close()
            self.store, self._feed, self._file = None, None, found
        if self.store is None:
            self.store = Store.open_readonly(self._database, BUSY_S)
        run = _run_of(self.store, self._run_id, self._database)
        if self._feed is None or self._feed.run.id != run.id:
            self._feed = Feed(self.store, run, everything=self._everything)
        self._feed.refresh()
        return self._feed


def _watch(
    live_feed: _LiveFeed, ranked: "Callable[[Feed], Board]", *, count: int | None, as_json: bool
) -> None:
    """Draw the board until Ctrl-C, or `count` times; it outlives whatever happens to the database."""
    from rich.console import Group, RenderableType
    from rich.live import Live
    from rich.text import Text

    from toolkit.cli.board.table import picture
    from toolkit.cli.waiting import waiting_for
    from toolkit.report.tables import screen

    console = screen()
    can_redraw = console.is_terminal and not console.is_dumb_terminal and not as_json
    live = Live(console=console, auto_refresh=False) if can_redraw else None
    board: Board | None = None
    events: list[Event] = []
    drawn, said = 0, ""
    try:
        while count is None or drawn < count:
            if drawn:
                time.sleep(INTERVAL_S)
            before, message, trouble = board, "", ""
            try:
                with waiting_for("Reading", shown=not drawn):
                    feed = live_feed.refreshed()
                    board, events = ranked(feed), feed.events()
            except ToolkitError as error:
                message = error.message
                shown = "; this is what was there before" if board else f". {error.hint}"
                trouble = f"{message}{shown}"
            drawing: list[RenderableType] = []
            if board:
                drawing.append(picture(board, console, events=events, now=time.time()))
            if live:
                if trouble:
                    drawing.append(Text(trouble, style="bold red"))
                live.start()
                live.update(Group(*drawing), refresh=True)
            # into a pipe only what is new, so that a blast that ended does not fill it
            elif trouble:
                if message != said:
                    click.echo(trouble, err=True)
            elif board and board != before:
                if as_json:
                    print_json_board(board)
                else:
                    console.print(*drawing, Text(), sep="\n")
            said = message
            drawn += 1
    except KeyboardInterrupt:
        pass
    finally:
        if live:
            live.stop()
        if live_feed.store:
            live_feed.store.close()


def _publish(
    database: Path,
    folder: Path,
    query: dict[str, str],
    count: int | None,
    brand: dict[str, str | None],
) -> None:
    """Keep the leaderboard in a folder until the run is over; the file to open is the only line on standard output."""
    import signal
    import threading

    from toolkit.cli.leaderboard import page_module
    from toolkit.cli.signals import END_SIGNALS
    from toolkit.cli.waiting import waiting_for

    stop = threading.Event()

    def end(*_: object) -> None:
        if stop.is_set():  # a second one is in a hurry
            raise KeyboardInterrupt
        stop.set()

    def begun() -> None:
        to_stderr(f"The leaderboard is kept in `{folder}` until the run is over; Ctrl-C ends it")
        click.echo(folder / "index.html")

    before = {number: signal.signal(number, end) for number in END_SIGNALS}
    try:
        with waiting_for("Publishing", endless=True):
            page_module("publish").publish(
                database.absolute(),
                folder,
                query,
                brand=page_module("branding").branding(**brand),
                stop=stop,
                begun=begun,
                say=to_stderr,
                count=count,
            )
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _serve_page(
    database: Path, port: int | None, host: str | None, query: dict[str, str], words: list[str]
) -> None:
    """Serve the leaderboard in a process of its own until Ctrl-C; its link is the only line on standard output."""
    import signal
    import tempfile
    from urllib.parse import urlencode

    from toolkit.cli.children import LOOPBACK, refuse_dead
    from toolkit.cli.leaderboard import page_file, page_log, page_port, page_url, served

    page_file()
    host = host or LOOPBACK
    port = page_port(port, host)
    # a service manager's way to say what a person says with Ctrl-C
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    click.echo("The leaderboard starts, which takes some seconds ...", err=True)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="toolkit-board-") as name,
            served(database.absolute(), port, Path(name), host, words) as process,
            suppress(KeyboardInterrupt),  # in here: whoever reads the link may press at once
        ):
            click.echo("Ctrl-C ends it", err=True)
            click.echo(f"{page_url(port, host)}/?{urlencode(query)}")
            process.wait()
            refuse_dead(process, "the leaderboard", page_log(Path(name)))
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
