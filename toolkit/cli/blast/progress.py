"""What `toolkit blast` shows while it runs: live standings on a terminal, a line every ten seconds elsewhere."""

import asyncio
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from toolkit.board.feed import Feed
from toolkit.board.standings import Board
from toolkit.cli.output import to_stderr
from toolkit.errors import ToolkitError
from toolkit.units import counted, spoken_list, stopwatch

if TYPE_CHECKING:
    from rich.live import Live

    from toolkit.store import Store

LIVE_EVERY_S = 2.0
LINE_EVERY_S = 10.0
STARTING = "The load is starting"


class StoredBlast:
    """The run as the load writes it into the store."""

    def __init__(self, store: "Store", run: str, window_s: float) -> None:
        self.begun_at: float | None = None
        """When the load began, or went on, by the wall clock."""
        self.run = run
        self._store, self._window_s = store, window_s
        self._feed: Feed | None = None
        self._earlier = 0
        self._earlier = len(self._beginnings())

    def has_begun(self) -> bool:
        """Whether this load has; what a run that it resumes had before does not count."""
        return bool(self._beginnings())

    def board(self) -> Board | None:
        """The newest standings; None: the run is not in the database. Raises ToolkitError."""
        if self._feed is None:
            run = self._store.run(self.run)
            if run is None:
                return None
            self._feed = Feed(self._store, run, everything=True)
        self._feed.refresh()
        return self._feed.board(window_s=max(1, round(self._window_s)))

    def look(self) -> tuple[Board, float] | None:
        """The newest standings, and for how many seconds the load has been on; None: it is not on yet. Raises ToolkitError."""
        if self.begun_at is None:
            self.begun_at = next(iter(self._beginnings()), None)
        board = None if self.begun_at is None else self.board()
        if board is None or self.begun_at is None:
            return None
        return board, time.time() - self.begun_at

    def _beginnings(self) -> list[float]:
        """Of this load, told apart by their number: a clock that is set back would place a new one before an old one."""
        events = (event for _, event in self._store.events(self.run))
        return [event.at for event in events if event.kind in ("start", "resume")][self._earlier :]


class BlastProgress:
    """Shows the boards that it is given, and sentences in between. All of it goes to standard error."""

    def __init__(self, duration_s: float, users: int) -> None:
        self._duration_s, self._users = duration_s, users
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if sys.stderr is not None and sys.stderr.isatty():
            from rich.live import Live
            from rich.text import Text

            from toolkit.report.tables import side_screen

            self._live = Live(
                Text(STARTING), console=side_screen(), auto_refresh=False, transient=True
            )
            self._live.start()
        return self

    def __exit__(self, *details: object) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def say(self, sentence: str) -> None:
        """Print a line for the user, above what moves; any thread may call it."""
        with suppress(OSError):  # a terminal that is gone ends no load
            if self._live:
                self._live.console.print(sentence, markup=False, highlight=False)
            else:
                to_stderr(sentence)

    async def watch(self, look: Callable[[], tuple[Board, float] | None]) -> None:
        """Show the newest board again and again until cancelled; `look` reads it, in a thread."""
        loop = asyncio.get_running_loop()
        every_s = LIVE_EVERY_S if self._live else LINE_EVERY_S
        with ThreadPoolExecutor(1, "board") as thread:
            while True:
                await asyncio.sleep(every_s)
                try:
                    seen = await loop.run_in_executor(thread, look)
                except ToolkitError:  # a database that is busy now: the next board will do
                    continue
                if self._live:
                    with suppress(OSError):
                        self._draw(self._live, seen)
                else:
                    self.say(STARTING if seen is None else self.line(*seen))

    def _draw(self, live: "Live", seen: tuple[Board, float] | None) -> None:
        from rich.console import Group
        from rich.text import Text

        from toolkit.cli.board.table import board_table

        if seen is None:
            live.update(Text(STARTING), refresh=True)
            return
        # first, as a low screen shows the beginning only
        line = Text(self.line(*seen), style="bold")
        live.update(Group(line, Text(), board_table(seen[0], live.console)), refresh=True)

    def line(self, board: Board, elapsed_s: float) -> str:
        """How far it is, who leads, who does not answer, in one line."""
        parts = [f"{stopwatch(elapsed_s)} of {stopwatch(self._duration_s)}"]
        if elapsed_s >= self._duration_s + 1:
            # requests under way have up to 30 s to be answered, which looks like a load that does not end
            parts = [f"{stopwatch(self._duration_s)} is over, waiting for the last answers"]
        parts.append(counted(self._users, "user"))

        # the best of those in no trouble; tied ones are counted
        well = [one for one in board.standings if one.ok and not one.trouble]
        if well:
            others = sum(one.rank == well[0].rank for one in well) - 1
            lead = f" and {others} more lead" if others else " leads"
            parts.append(f"{well[0].name}{lead} with {well[0].rps:,.1f} requests/s")
        elif any(one.ok for one in board.standings):
            parts.append("no host that answers well")
        else:
            parts.append("no answer yet")

        # who has failed all along, named up to three
        silent = [one.name for one in board.standings if one.errors and not one.ok]
        if silent:
            parts.append(f"no answer from {spoken_list(silent, most=3)}")

        # the share of failures over all hosts
        failed = sum(one.errors for one in board.standings)
        ended = failed + sum(one.ok for one in board.standings)
        parts.append(f"{failed / ended:.1%} errors" if ended else "nothing ended yet")
        if board.limited_s:
            parts.append(f"the load generator was the limit in {board.limited_s:,} s")
        return "; ".join(parts)
