"""`toolkit workload`: what the captured requests have in common, and which levers follow from it."""

from pathlib import Path
from typing import Any

import click

from toolkit.cli import suggestions
from toolkit.cli.options import DURATION, MOMENT, database_option

EXAMPLES = """
What clients really send: how many requests are unique, how they repeat, what a response cache would
answer, how long a model's context must be, and which lever saves the most GPU work. It reads the
newest capture of the database, or files: JSON lines of `toolkit capture`, the proxy's or an nginx log,
request bodies one a line, and the public traces of Azure, BurstGPT and Mooncake.

\b
  toolkit capture data/sample.pcap && toolkit workload
  toolkit workload --from requests.jsonl --latency 2s
  toolkit workload --since "15m ago" --max-model-len 8192
  toolkit workload --html report.html   one file with plots, to send around
  toolkit workload --profile mine.toml
      then: toolkit blast hosts.txt --profile mine.toml
  toolkit workload --export mooncake > trace.jsonl for other tools to replay
"""


@click.command(
    "workload", help=EXAMPLES, short_help="What the captured requests have in common; which levers."
)
@click.option(
    "--from",
    "sources",
    metavar="FILE",
    shell_complete=suggestions.file,
    multiple=True,
    help="Read a file instead of the database, `-` for standard input; may be repeated.",
)
@click.option(
    "--run",
    metavar="RUN",
    shell_complete=suggestions.run("capture"),
    help="Of this capture.  [default: the newest]",
)
@click.option("--since", type=MOMENT, help='Requests from then on: `14:32`, `"15m ago"`.')
@click.option("--until", type=MOMENT, help="Requests before then.")
@click.option(
    "--latency",
    type=DURATION,
    help="How long an answer takes, where none were followed; tells hits from requests that join.",
)
@click.option(
    "--max-model-len",
    type=click.IntRange(min=1),
    help="What the servers run with now.  [default: what scout last saw]",
)
@click.option(
    "--model-limit", type=click.IntRange(min=1), help="The longest that the model can take."
)
@click.option(
    "--max-num-seqs", type=click.IntRange(min=1), help="What the servers run with now, to compare."
)
@click.option(
    "--policy",
    type=click.Choice(["all", "declared"]),
    default="all",
    show_default=True,
    help="What a cache may answer: all, or only requests with temperature 0 or a seed.",
)
@click.option(
    "--ttl", type=DURATION, multiple=True, help="Of the cache; may be repeated.  [default: a few]"
)
@click.option(
    "--size",
    type=click.IntRange(min=1),
    multiple=True,
    help="Answers that the cache holds; may be repeated.  [default: a few]",
)
@click.option("--show-clients", is_flag=True, help="Keep the addresses that a log tells, unhashed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), help="Write the report with plots."
)
@click.option(
    "--profile",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a blast profile that repeats itself as these requests do.",
)
@click.option(
    "--export",
    type=click.Choice(["mooncake", "burstgpt"]),
    help="Print the requests in a public trace's form instead of the report.",
)
@database_option
def command(**options: Any) -> None:
    """Report on a workload (the help text is EXAMPLES)."""
    if options["sources"] and options["run"]:
        raise click.UsageError("--from and --run are two sources; choose one")
    if options["export"] and (options["as_json"] or options["html"] or options["profile"]):
        raise click.UsageError("--export prints a trace; leave --json, --html and --profile out")
    from toolkit.cli.workload.run import run

    run(**options)
