"""`toolkit board`: who leads a blast over a rolling window, now or at any moment of the past."""

import time
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from toolkit.board.standings import RANK_BY
from toolkit.cli import suggestions
from toolkit.cli.board.options import BoardOptions
from toolkit.cli.options import DURATION, LONGEST_WINDOW_S, MOMENT, database_option

EXAMPLES = """
Rank the hosts of a blast over a rolling window, from what `toolkit blast` stores: the newest one,
as it stands now or stood at any moment. Tied hosts share a rank; verdicts say what explains the
figures; --honest leaves out who cuts answers short, claims tokens, lets another engine answer, or was
not judged.

\b
  toolkit board
  toolkit board --watch --rank-by p95
  toolkit board --at 14:32 --window 5m --honest
  toolkit board --json | jq .name
  toolkit board --serve   the leaderboard as a page, until Ctrl-C
  toolkit board freeze
      the public board stops here, for whoever may not see the database
  toolkit board reveal    and shows everything again
"""


@click.group(
    "board",
    help=EXAMPLES,
    short_help="Who leads a blast, over a rolling window.",
    invoke_without_command=True,
)
@click.option("--watch", is_flag=True, help="Draw it anew every 2 s.")
@click.option("--count", type=click.IntRange(min=1), help="End --watch after so many drawings.")
@click.option(
    "--at", type=MOMENT, help='As it stood then: `14:32`, `"5m ago"`, `2026-11-21T14:32`.'
)
@click.option(
    "--window", type=DURATION, default="15m", show_default=True, help="How far it looks back."
)
@click.option(
    "--rank-by",
    type=click.Choice(RANK_BY),
    default="rps",
    show_default=True,
    help="What decides; the formula is printed.",
)
@click.option("--honest", is_flag=True, help="Leave out who tricks or was not judged, and say why.")
@click.option(
    "--skip-limited",
    is_flag=True,
    help="Leave out seconds in which the load generator was the limit, for all hosts.",
)
@click.option(
    "--run",
    metavar="RUN",
    shell_complete=suggestions.run("blast"),
    help="Of this run.  [default: the newest blast]",
)
@click.option("--all", "everything", is_flag=True, help="See past a freeze, as the board's owner.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a host.")
@click.option("--csv", "as_csv", is_flag=True, help="Print one line a host, below a header.")
@click.option(
    "--serve",
    is_flag=True,
    help="Serve the leaderboard as a page until Ctrl-C, and print its link.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="With --serve.  [default: 8501, or a free one]",
)
@click.option(
    "--host", metavar="ADDRESS", help="With --serve: where viewers are taken.  [default: 127.0.0.1]"
)
@database_option
@click.pass_context
def command(context: click.Context, /, **options: Any) -> None:
    """Show the board (the help text is EXAMPLES)."""
    chosen = BoardOptions(**options)
    if context.invoked_subcommand is not None:
        # `--db FILE freeze` would freeze the board of another file: freeze has a --db of its own
        if any(_is_given(context, name) for name in options):
            raise click.UsageError(f"options go after `{context.invoked_subcommand}`")
        return
    contradiction = _contradiction(chosen)
    if contradiction:
        raise click.UsageError(contradiction)
    if chosen.serve:
        from toolkit.cli.board.serve import serve_page

        serve_page(chosen)
    elif chosen.watch:
        from toolkit.cli.board.watch import watch

        watch(chosen)
    else:
        _show_once(chosen)


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _contradiction(options: BoardOptions) -> str | None:
    cases = (
        (options.as_json and options.as_csv, "--json and --csv are two; choose one"),
        (options.watch and options.as_csv, "--csv is one table; leave --watch out, or take --json"),
        (options.watch and options.at is not None, "--at is one moment; leave --watch out"),
        (options.count is not None and not options.watch, "--count goes with --watch"),
        (options.window > LONGEST_WINDOW_S, "--window is a day at most"),
        (options.port is not None and not options.serve, "--port goes with --serve"),
        (options.host is not None and not options.serve, "--host goes with --serve"),
        *(
            (options.serve and is_so, f"--serve is a page; leave {word} out")
            for word, is_so in (
                ("--watch", options.watch),
                ("--json", options.as_json),
                ("--csv", options.as_csv),
                ("--all", options.everything),
                ("--skip-limited", options.skip_limited),
            )
        ),
    )
    return next((message for is_so, message in cases if is_so), None)


def _show_once(options: BoardOptions) -> None:
    from toolkit.board.feed import Feed
    from toolkit.cli.board.read import run_of
    from toolkit.cli.waiting import waiting_for
    from toolkit.store import Store

    with waiting_for("Reading"), Store.open_readonly(options.database) as store:
        run = run_of(store, options.run, options.database, at=options.at)
        feed = Feed(store, run, everything=options.everything)
        board = options.board(feed)
        events = feed.events()
    if options.as_json:
        from toolkit.cli.board.show import print_json_board

        print_json_board(board)
    elif options.as_csv:
        from toolkit.cli.board.show import print_csv_board

        print_csv_board(board)
    else:
        from toolkit.cli.board.table import print_board

        print_board(board, events, now=time.time() if options.at is None else None)


@command.command("freeze", short_help="Let the public board stop at a moment.")
@click.option("--at", type=MOMENT, default="now", show_default=True, help="The last moment shown.")
@click.option(
    "--run",
    "run_id",
    metavar="RUN",
    shell_complete=suggestions.run("blast"),
    help="Of this run.  [default: the newest blast]",
)
@database_option
def freeze(at: float, run_id: str | None, database: Path) -> None:
    """Let every public view of a blast stop at a moment, until it is revealed.

    The blast goes on and is stored; who holds the database sees it with `toolkit board --all`.

    \b
      toolkit board freeze
      toolkit board freeze --at 16:45
    """  # noqa: D301 (click reads the character itself)
    from toolkit.cli.board.read import freeze_board

    freeze_board(at, run_id, database)


@command.command("reveal", short_help="Show everything again.")
@click.option(
    "--run",
    "run_id",
    metavar="RUN",
    shell_complete=suggestions.run("blast"),
    help="Of this run.  [default: the newest blast]",
)
@database_option
def reveal(run_id: str | None, database: Path) -> None:
    """Lift a freeze: every view shows the whole blast again.

    \b
      toolkit board reveal
    """  # noqa: D301 (click reads the character itself)
    from toolkit.cli.board.read import reveal_board

    reveal_board(run_id, database)
