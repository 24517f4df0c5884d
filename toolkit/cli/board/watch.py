"""`toolkit board --watch`: the board again and again, from a file that may change in any way meanwhile."""

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.board.standings import Board, json_rows
from toolkit.cli.board.run import run_of
from toolkit.cli.output import print_json
from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from collections.abc import Callable

    from toolkit.board.feed import Feed
    from toolkit.records import Event
    from toolkit.store import Store

INTERVAL_S = 2.0
BUSY_S = 1.0
"""How long a look waits for a database that is busy."""


class LiveFeed:
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
        run = run_of(self.store, self._run_id, self._database)
        if self._feed is None or self._feed.run.id != run.id:
            self._feed = Feed(self.store, run, everything=self._everything)
        self._feed.refresh()
        return self._feed


def watch_board(
    live_feed: LiveFeed, ranked: "Callable[[Feed], Board]", *, count: int | None, as_json: bool
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
                    for row in json_rows(board):
                        print_json(row)
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
