"""`toolkit board --serve` and `--publish`: the board as a page, served by a process of its own or kept as files."""

import sys
from contextlib import suppress
from pathlib import Path

import click

from toolkit.cli.output import to_stderr


def publish(
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


def serve_page(
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
