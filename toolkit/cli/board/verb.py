"""`toolkit board`: who leads a blast over a rolling window, now or at any moment of the past."""

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from toolkit.board.standings import RANK_BY, Board, RankBy, csv_of, json_rows
from toolkit.cli.board.freeze_reveal import freeze, reveal
from toolkit.cli.board.run import run_of, run_option
from toolkit.cli.help_page import Group, advanced
from toolkit.cli.options import FILE, MOMENT, UP_TO_A_DAY, database_option
from toolkit.cli.output import print_json

if TYPE_CHECKING:
    from toolkit.board.feed import Feed

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
    "--window", type=UP_TO_A_DAY, default="15m", show_default=True, help="Length of the window."
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
    help="Keep the leaderboard in DIR as files for any web server.",
)
@advanced(
    "--port",
    type=click.IntRange(1, 65535),
    help="Port of the page, with --serve.  [default: 8501, or a free one]",
)
@advanced(
    "--host", metavar="ADDRESS", help="Address to listen on, with --serve.  [default: 127.0.0.1]"
)
@advanced("--title", metavar="TEXT", help="Title of the page, with --serve or --publish.")
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
        from toolkit.cli.board.page import publish, serve_page

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
            publish(database, publish_into, query, count, brand)
        else:
            words = [f"--{name}={value}" for name, value in brand.items() if value is not None]
            serve_page(database, port, host, query, words)
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
        from toolkit.cli.board.watch import LiveFeed, watch_board

        live_feed = LiveFeed(database, run_id, everything=everything)
        watch_board(live_feed, ranked, count=count, as_json=as_json)
        return

    from toolkit.board.feed import Feed
    from toolkit.cli.waiting import waiting_for
    from toolkit.store import Store

    with waiting_for("Reading"), Store.open_readonly(database) as store:
        run = run_of(store, run_id, database, at, as_json=as_json)
        feed = Feed(store, run, everything=everything)
        board, events = ranked(feed), feed.events()
    if as_json:
        for row in json_rows(board):
            print_json(row)
    elif as_csv:
        click.echo(csv_of(board, CSV_COLUMNS), nl=False)
    else:
        from toolkit.cli.board.table import print_board

        print_board(board, events, now=time.time() if at is None else None)


command.add_command(freeze)
command.add_command(reveal)
