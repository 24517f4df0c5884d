"""`toolkit board --watch`: the board of the newest blast, drawn anew; it outlives whatever happens to the database."""

import time
from contextlib import suppress
from typing import NamedTuple

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from toolkit.board.feed import Feed
from toolkit.board.standings import Board
from toolkit.cli.board.options import BoardOptions
from toolkit.cli.board.read import run_of
from toolkit.cli.board.show import print_json_board
from toolkit.cli.board.table import picture
from toolkit.cli.waiting import waiting_for
from toolkit.errors import ToolkitError
from toolkit.records import Event
from toolkit.report.tables import screen
from toolkit.store import Store

INTERVAL_S = 2.0
BUSY_S = 1.0
"""How long a look waits for a database that is busy."""


class View(NamedTuple):
    """What there is to show: the last board that could be read, and why there is no newer one."""

    board: Board | None
    events: list[Event]
    error: ToolkitError | None
    is_new: bool


class Watched:
    """The newest blast of a file that may be missing, busy, replaced, or get another blast."""

    def __init__(self, options: BoardOptions) -> None:
        self._options = options
        self._store: Store | None = None
        self._feed: Feed | None = None
        self._file: tuple[int, int] | None = None
        self._board: Board | None = None
        self._events: list[Event] = []

    def look(self) -> View:
        """Read what there is now."""
        before, error = self._board, None
        try:
            self._read()
        except ToolkitError as refused:
            error = refused
        return View(self._board, self._events, error, self._board != before)

    def close(self) -> None:
        """Let go of the file."""
        if self._store:
            self._store.close()
        self._store = self._feed = None

    def _read(self) -> None:
        path = self._options.database
        file = None
        with suppress(OSError):
            found = path.stat()
            file = (found.st_dev, found.st_ino)
        if file != self._file:  # another file of that name: what was read is not its
            self.close()
            self._file = file
        if self._store is None:
            self._store = Store.open_readonly(path, BUSY_S)
        run = run_of(self._store, self._options.run, path)
        if self._feed is None or self._feed.run.id != run.id:
            self._feed = Feed(self._store, run, everything=self._options.everything)
        self._feed.refresh()
        board = self._options.board(self._feed)
        self._board, self._events = board, self._feed.events()


def watch(options: BoardOptions) -> None:
    """Show the board until Ctrl-C, or `--count` times."""
    watched = Watched(options)
    console = screen()
    can_redraw = console.is_terminal and not console.is_dumb_terminal and not options.as_json
    live = Live(console=console, auto_refresh=False) if can_redraw else None
    try:
        with waiting_for("Reading"):
            first = watched.look()
        if live:
            live.start()
        _draw_on(watched, first, options, console, live)
    except KeyboardInterrupt:
        pass
    finally:
        if live:
            live.stop()
        watched.close()


def _draw_on(
    watched: Watched, view: View, options: BoardOptions, console: Console, live: Live | None
) -> None:
    """Draw what was seen first, then look again and again."""
    drawn, said = 0, ""
    while options.count is None or drawn < options.count:
        if drawn:
            time.sleep(INTERVAL_S)
            view = watched.look()
        if live:
            live.update(_whole(view, console), refresh=True)
        else:
            # into a pipe only what is new, so that a blast that ended does not fill it
            if view.error and view.error.message != said:
                click.echo(_line(view).plain, err=True)
            said = view.error.message if view.error else ""
            _print(view, options, console)
        drawn += 1


def _whole(view: View, console: Console) -> Group:
    parts: list[object] = []
    if view.board:
        parts.append(picture(view.board, console, events=view.events, now=time.time()))
    if view.error:
        parts.append(_line(view))
    return Group(*parts)  # type: ignore[arg-type]


def _line(view: View) -> Text:
    """Why there is nothing newer, in one line."""
    assert view.error
    shown = "; this is what was there before" if view.board else f". {view.error.hint}"
    return Text(f"{view.error.message}{shown}", style="bold red")


def _print(view: View, options: BoardOptions, console: Console) -> None:
    if view.error or view.board is None or not view.is_new:
        return
    if options.as_json:
        print_json_board(view.board)
    else:
        console.print(picture(view.board, console, events=view.events, now=time.time()))
        console.print()
