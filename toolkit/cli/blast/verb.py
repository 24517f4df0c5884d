"""`toolkit blast`: the same load on every host at once, for minutes or hours, with the standings live."""

import sys
from typing import Any

import click

from toolkit.blast.pacing import MOST_RATE
from toolkit.cli import suggestions
from toolkit.cli.blast.options import (
    CANARY_PERCENT,
    MOST_TIMEOUT_S,
    PROFILE,
    SCOUT_EVERY_S,
    TIMEOUT_S,
    USERS,
    WINDOW_S,
    BlastOptions,
)
from toolkit.cli.options import DURATION, LONGEST_WINDOW_S, database_option, tls_options

MOST_USERS = 1_000_000
LONGEST_S = 365 * 86_400.0
"""Of a blast: more is a slip."""

EXAMPLES = """
Load every host at once with the same number of users, count every answer, and show who leads.
HOSTS are files (`-` for standard input) or URLs; without any, the file in TOOLKIT_HOSTS, else
hosts.txt. Ctrl-C ends it cleanly; what was counted is kept, and `--resume` goes on.

\b
  toolkit blast hosts.txt --dry-run   who would be sent what; sends nothing
  toolkit blast hosts.txt --duration 2h --users 32
      users are shared out evenly
  toolkit blast hosts.txt --rate 4 --duration 10m
      4 requests a second to each host
  toolkit blast hosts.txt --profile bench --mix 100
      other prompts, all answers streamed
  toolkit blast hosts.txt --resume 3f2a9c01d4e7
      go on with a run that was cut off
  toolkit blast hosts.txt --json      the final standings, one object a host

Watch from elsewhere with `toolkit board --watch` or `toolkit board --serve`. Exits with 1 when nobody
answered anything, 130 when it was interrupted.
"""


@click.command("blast", help=EXAMPLES, short_help="Load every host at once, and watch who leads.")
@click.argument("hosts", nargs=-1, metavar="[HOSTS]...", shell_complete=suggestions.file)
@click.option("--duration", type=DURATION, help="How long.  [default: 15m]")
@click.option(
    "--users",
    type=click.IntRange(1, MOST_USERS),
    help="All together, each with one request under way; rounded up to a multiple of the hosts.  "
    f"[default: {USERS}]",
)
@click.option(
    "--spawn-rate",
    type=click.FloatRange(min=0, min_open=True),
    help="Users started a second, all hosts together.  [default: all at once, up to 100]",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    help="Requests a second and host, whatever answers take; `--users` caps those under way.",
)
@click.option(
    "--profile",
    metavar="NAME|FILE",
    shell_complete=suggestions.profile,
    help="Prompts: of the catalog, or a file (.toml, .jsonl, else one prompt a line).  "
    f"[default: {PROFILE}]",
)
@click.option("--mix", type=click.IntRange(0, 100), metavar="PERCENT", help="Stream so many.")
@click.option(
    "--max-tokens", type=click.IntRange(min=1), help="Per answer.  [default: the profile's]"
)
@click.option(
    "--model", metavar="NAME", help="Ask for this model.  [default: what each host lists or serves]"
)
@click.option(
    "--canaries",
    type=click.FloatRange(0, 100),
    metavar="PERCENT",
    help="Unique prompts and their exact twins, which show who answers from memory; never ranked, "
    f"0 for none.  [default: {CANARY_PERCENT:g}]",
)
@click.option("--timeout", type=DURATION, help=f"For one whole answer.  [default: {TIMEOUT_S:g}s]")
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    help="Processes that make the load, at most a core each.  [default: 1]",
)
@click.option(
    "--window",
    type=DURATION,
    default=f"{WINDOW_S / 60:g}m",
    show_default=True,
    help="What the standings look back on.",
)
@click.option(
    "--resume",
    metavar="RUN",
    shell_complete=suggestions.run("blast"),
    help="Go on with a run; what is not said of its load is as it was.",
)
@click.option("--dry-run", is_flag=True, help="Show who would be sent what; send nothing.")
@click.option("--no-scout", is_flag=True, help="Let scout not look at the hosts beside the load.")
@click.option(
    "--scout-every",
    type=DURATION,
    default=f"{SCOUT_EVERY_S:g}s",
    show_default=True,
    help="How often it looks at each host.",
)
@click.option(
    "--non-neutral",
    is_flag=True,
    help="Run although a host is on this machine; the run is marked as such.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object a host of the final standings."
)
@database_option
@tls_options
def command(**options: Any) -> None:
    """Blast every host (the help text is EXAMPLES)."""
    chosen = BlastOptions(**options)
    refusal = _contradiction(chosen) or _excess(chosen)
    if refusal:
        raise click.UsageError(refusal)
    from toolkit.cli.blast.run import run_blast

    sys.exit(run_blast(chosen))


def _contradiction(options: BlastOptions) -> str | None:
    """Say which two words cannot both be meant: one of them would be passed over in silence."""
    cases = (
        (
            options.dry_run and options.resume is not None,
            "--dry-run shows a new blast; leave --resume out",
        ),
    )
    return next((message for is_so, message in cases if is_so), None)


def _excess(options: BlastOptions) -> str | None:
    """Say which number is past all bounds, endless or `nan`: click's own ranges let such a one through."""
    cases = (
        ("--duration", options.duration, LONGEST_S, "a year"),
        ("--spawn-rate", options.spawn_rate, MOST_USERS, f"{MOST_USERS:,}"),
        ("--rate", options.rate, MOST_RATE, f"{MOST_RATE:,.0f}"),
        ("--canaries", options.canaries, 100, "100"),
        ("--timeout", options.timeout, MOST_TIMEOUT_S, "an hour"),
        ("--window", options.window, LONGEST_WINDOW_S, "a day"),
    )
    return next(
        (
            f"{name} is {words} at most"
            for name, number, most, words in cases
            if number is not None and not number <= most  # `nan` is neither more nor less
        ),
        None,
    )
