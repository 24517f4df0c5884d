"""`toolkit demo`: the whole job in small on this machine, with no GPU and no network."""

import sys
from typing import Any

import click

from toolkit.cli.demo.options import DemoOptions

SECONDS = 60
LEAST_SECONDS, MOST_SECONDS = 12, 3600

EXAMPLES = """
Play a contest on this machine: seven simulated servers, each of another kind, are scouted, benched
and blasted; one of them restarts in the middle; then the story is told and the leaderboard served.
Each step shows the command that does it for your own hosts. Nothing but this machine is contacted,
and nothing is kept unless you say --keep.

\b
  toolkit demo
  toolkit demo --no-page              end with the story
  toolkit demo --seconds 300 --keep   a longer blast, whose database stays
  toolkit demo --real
      with a real vLLM on this machine's CPU among the hosts
"""


@click.command(
    "demo", help=EXAMPLES, short_help="The whole job in small, on this machine, without a GPU."
)
@click.option(
    "--seconds",
    type=click.IntRange(LEAST_SECONDS, MOST_SECONDS),
    default=SECONDS,
    show_default=True,
    help="Of blast.",
)
@click.option(
    "--page/--no-page",
    default=True,
    help="Serve the leaderboard at the end: on a terminal until Ctrl-C, else only to see that it answers.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="Of the leaderboard.  [default: 8501, or a free one]",
)
@click.option("--real", is_flag=True, help="Put a real vLLM on the CPU among the hosts.")
@click.option("--keep", is_flag=True, help="Leave the folder with hosts file and database behind.")
def command(**options: Any) -> None:
    """Play the demo (the help text is EXAMPLES)."""
    chosen = DemoOptions(**options)
    if chosen.port is not None and not chosen.page:
        raise click.UsageError("--port is the leaderboard's, and --no-page serves none")
    from toolkit.cli.demo.run import run_demo

    sys.exit(run_demo(chosen))
