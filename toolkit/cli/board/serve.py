"""`toolkit board --serve`: the leaderboard page in a process of its own, until Ctrl-C."""

import contextlib
import signal
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlencode

import click

from toolkit.cli.board.options import BoardOptions
from toolkit.cli.demo.children import LOOPBACK, refuse_dead
from toolkit.cli.demo.page import page_file, page_log, page_port, page_url, served


def serve_page(options: BoardOptions) -> None:
    """Serve it, and print its link once it answers: the only line on standard output."""
    page_file()
    host = options.host or LOOPBACK
    port = page_port(options.port, host)
    # a service manager's way to say what a person says with Ctrl-C
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    click.echo("The leaderboard starts, which takes some seconds ...", err=True)
    try:
        with tempfile.TemporaryDirectory(prefix="toolkit-board-") as word:
            _serve(options, port, host, Path(word))
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


def _serve(options: BoardOptions, port: int, host: str, folder: Path) -> None:
    with (
        served(options.database.absolute(), port, folder, host) as process,
        contextlib.suppress(KeyboardInterrupt),  # in here: whoever reads the link may press at once
    ):
        click.echo("Ctrl-C ends it", err=True)
        click.echo(link(options, page_url(port, host)))
        process.wait()
        refuse_dead(process, "the leaderboard", page_log(folder))


def link(options: BoardOptions, url: str) -> str:
    """The page as the options ask for it, in the words of its own links (leaderboard_page/address.py)."""
    told = {
        "rank": options.rank_by if options.rank_by != "rps" else None,
        # told always, as the page's usual one is the run's own and the board's is not
        "window": f"{max(1, round(options.window))}s",
        "honest": 1 if options.honest else None,
        "run": options.run,
        "t": options.at_s,
    }
    query = urlencode({key: value for key, value in told.items() if value is not None})
    return f"{url}/?{query}"
