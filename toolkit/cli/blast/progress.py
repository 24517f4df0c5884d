"""What `toolkit blast` shows while it runs: live standings on a terminal, a line every ten seconds elsewhere."""

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import click

from toolkit.board.standings import Board, Standing
from toolkit.errors import ToolkitError
from toolkit.units import counted, stopwatch

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

LIVE_EVERY_S = 2.0
LINE_EVERY_S = 10.0

Look = Callable[[], tuple[Board, float] | None]
"""Reads the newest board, and for how many seconds the load has been on; None: it is not on yet."""
STARTING = "The load is starting"


class BlastProgress:
    """Shows the boards that it is given, and sentences in between. All of it goes to standard error."""

    def __init__(self, duration_s: float, users: int) -> None:
        self._duration_s, self._users = duration_s, users
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if sys.stderr is not None and sys.stderr.isatty():
            self._live = _live(STARTING)
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
                click.echo(sentence, err=True)

    async def watch(self, look: Look) -> None:
        """Show the newest board again and again until cancelled; `look` runs in a thread."""
        loop = asyncio.get_running_loop()
        every_s = LIVE_EVERY_S if self._live else LINE_EVERY_S
        with ThreadPoolExecutor(1, "board") as thread:
            while True:
                await asyncio.sleep(every_s)
                try:
                    told = await loop.run_in_executor(thread, look)
                except ToolkitError:  # a database that is busy now: the next board will do
                    continue
                self._show(*told or (None, 0.0))

    def _show(self, board: Board | None, elapsed_s: float) -> None:
        if self._live:
            with suppress(OSError):
                self._live.update(self._page(board, elapsed_s), refresh=True)
        else:
            self.say(STARTING if board is None else self.line(board, elapsed_s))

    def _page(self, board: Board | None, elapsed_s: float) -> "RenderableType":
        from rich.console import Group
        from rich.text import Text

        if board is None:
            return Text(STARTING)
        from toolkit.cli.board.table import board_table

        assert self._live is not None
        line = Text(self.line(board, elapsed_s), style="bold")
        # first, as a low screen shows the beginning only
        return Group(line, Text(), board_table(board, self._live.console))

    def line(self, board: Board, elapsed_s: float) -> str:
        """How far it is, who leads, who does not answer, in one line."""
        parts = [
            f"{stopwatch(elapsed_s)} of {stopwatch(self._duration_s)}",
            counted(self._users, "user"),
            leader(board.standings),
            *silent(board.standings),
            errors(board.standings),
        ]
        if board.limited_s:
            parts.append(f"the load generator was the limit in {board.limited_s:,} s")
        return "; ".join(parts)


def leader(standings: tuple[Standing, ...]) -> str:
    """Who is the best of those in no trouble, and with how many requests a second; tied ones are counted."""
    well = [one for one in standings if one.ok and not one.trouble]
    if not well:
        return "no host that answers well" if any(one.ok for one in standings) else "no answer yet"
    first = [one for one in well if one.rank == well[0].rank]
    others = f" and {len(first) - 1} more lead" if len(first) > 1 else " leads"
    return f"{first[0].name}{others} with {first[0].rps:,.1f} requests/s"


def silent(standings: tuple[Standing, ...]) -> list[str]:
    """Who has failed all along, named up to three."""
    names = [one.name for one in standings if one.errors and not one.ok]
    if not names:
        return []
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return [f"no answer from {', '.join(names[:3])}{more}"]


def errors(standings: tuple[Standing, ...]) -> str:
    """The share of failures over all hosts."""
    failed = sum(one.errors for one in standings)
    ended = failed + sum(one.ok for one in standings)
    return f"{failed / ended:.1%} errors" if ended else "nothing ended yet"


def _live(begin: str) -> "Live":
    from rich.live import Live
    from rich.text import Text

    from toolkit.report.tables import side_screen

    return Live(Text(begin), console=side_screen(), auto_refresh=False, transient=True)
