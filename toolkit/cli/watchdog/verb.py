"""`toolkit watchdog`: restart a server that makes no progress, and warm it up before anybody is told that it is back."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from toolkit.cli import suggestions
from toolkit.cli.options import DURATION, database_option

F = TypeVar("F", bound=Callable[..., Any])
EXAMPLES = """
Start COMMAND, warm its server up, and watch it: when it ends, refuses connections, or has requests under way while nothing that it
counts moves and a token that it is asked for does not come, its whole family is ended, started again, and warmed up. A busy server
is never restarted. Without COMMAND it only watches and tells. Events are printed, and kept for the leaderboard.

\b
  toolkit watchdog --url 127.0.0.1:8000 -- vllm serve MODEL --port 8000
  toolkit watchdog --url 127.0.0.1:8000 --name alice -- sh serve.sh
  toolkit watchdog --url 127.0.0.1:8000 --json
      one object an event; 1 when it ended in trouble
  toolkit watchdog --url 127.0.0.1:8000 --until-trouble; echo "in trouble"
"""


def duration(option: str, name: str, default: str, help: str) -> Callable[[F], F]:  # noqa: A002 (click's own word)
    """An option that is a time; `name`: of the parameter, as GuardSetting has it."""
    return click.option(option, name, type=DURATION, default=default, show_default=True, help=help)


@click.command(
    "watchdog", help=EXAMPLES, short_help="Restart a server that makes no progress, and warm it up."
)
@click.argument("command", nargs=-1, metavar="[-- COMMAND...]")
@click.option("--url", required=True, metavar="URL", help="Of the engine itself, not of its proxy.")
@click.option(
    "--name",
    metavar="NAME",
    help="How events call it: as in the hosts file.  [default: from the URL]",
)
@click.option(
    "--api-key-env",
    metavar="VAR",
    shell_complete=suggestions.variable,
    help="The variable that holds its key.",
)
@click.option("--model", metavar="NAME", help="Ask for this model.  [default: what it serves]")
@duration("--look", "look_s", "1s", "Between two looks.")
@duration(
    "--stuck",
    "stuck_s",
    "30s",
    "Requests run and nothing that it counts moved for so long: it is asked for a token.",
)
@duration(
    "--answer",
    "answer_s",
    "30s",
    "For that token to come; longer where it compiles for longer in the midst of serving.",
)
@duration("--idle", "ask_s", "60s", "One that has nothing to do is asked for a token so often.")
@duration("--refused", "refused_s", "5s", "Connections were refused for so long.")
@duration(
    "--backoff",
    "backoff_s",
    "2s",
    "Before the first restart; twice as long before each that follows.",
)
@duration("--backoff-most", "backoff_most_s", "60s", "The longest of these waits.")
@click.option(
    "--restarts",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="So many within --within; one more is a crash loop, and it stays down.",
)
@duration("--within", "restarts_s", "10m", "See --restarts.")
@duration("--stop-within", "stop_s", "10s", "SIGTERM to SIGKILL.")
@duration("--ready", "ready_s", "30m", "Longest wait for /health.")
@click.option(
    "--warm/--no-warm", default=True, help="Warm it up after each start.  [default: warm]"
)
@click.option(
    "--profile",
    metavar="NAME|FILE",
    shell_complete=suggestions.profile,
    help="Whose prompts, as `toolkit warmup` has it.",
)
@click.option("--max-num-seqs", type=click.IntRange(1, 4096), help="Highest concurrency of it.")
@duration("--warm-limit", "warm_limit", "10m", "For all of it.")
@click.option(
    "--log",
    metavar="FILE",
    shell_complete=suggestions.file,
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("data/watchdog.log"),
    show_default=True,
    help="What COMMAND says.",
)
@click.option("--until-trouble", is_flag=True, help="Without COMMAND: end at the first trouble.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object an event.")
@database_option
@click.option("--no-store", is_flag=True, help="Keep nothing.")
def command(**options: Any) -> None:
    """Watch a server (the help text is EXAMPLES)."""
    if options["until_trouble"] and options["command"]:
        raise click.UsageError("--until-trouble goes without a command: with one it is restarted")
    from toolkit.cli.watchdog.run import run_watchdog

    sys.exit(run_watchdog(**options))
