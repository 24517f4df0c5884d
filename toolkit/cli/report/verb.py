"""`toolkit report`: the lab report of a run, with pass criteria and what each rests on."""

from pathlib import Path
from typing import Any

import click

from toolkit.cli import suggestions
from toolkit.cli.options import Price, database_option
from toolkit.cli.report.options import ReportOptions

EXAMPLES = """
Write the lab report of a run: seven criteria (model loading, API compatibility, stability, cost,
observability, boundaries, admission), each met, not met or unknown, with the evidence and what
would settle it, and the run's figures over time. RUN is an id as `toolkit runs` lists it, of a
blast or a bench, or `RUN:HOST` for one host of it.

\b
  toolkit report 3f9c2a7b1d04
  toolkit report 3f9c2a7b1d04 --html report.html
      one file with plots, to send around
  toolkit report 3f9c2a7b1d04:alice --log requests.jsonl --gpu-hour 2.00 \\
      --api-price 0.15/0.60
  toolkit report 3f9c2a7b1d04 --call http://10.0.0.4:8000
      and make one call with OpenAI's client
  toolkit report 3f9c2a7b1d04 --json

Starts, warm-ups and settings are what `toolkit serve` recorded in the same database.
"""


@click.command(
    "report", help=EXAMPLES, short_help="The lab report of a run: criteria, evidence, plots."
)
@click.argument("run", metavar="RUN", shell_complete=suggestions.run("blast", "bench"))
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), help="Write the report with plots."
)
@click.option(
    "--log",
    metavar="FILE",
    shell_complete=suggestions.file,
    help="The request log of `toolkit proxy --log`, `-` for standard input.",
)
@click.option("--call", metavar="URL", help="Make one chat call there with OpenAI's own client.")
@click.option(
    "--call-key-env",
    metavar="VAR",
    shell_complete=suggestions.variable,
    help="The variable that holds the key for --call.",
)
@click.option("--gpu-hour", type=click.FloatRange(min=0), metavar="PRICE", help="Of one GPU.")
@click.option(
    "--gpus", type=click.IntRange(min=1), default=1, show_default=True, help="That served the run."
)
@click.option(
    "--api-price",
    type=Price(),
    metavar="PRICE",
    help="An API's for a million tokens: `0.15/0.60` for prompt/answer.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@database_option
def command(**options: Any) -> None:
    """Report on a run (the help text is EXAMPLES)."""
    chosen = ReportOptions(**options)
    if chosen.call_key_env and not chosen.call:
        raise click.UsageError("--call-key-env goes with --call")
    from toolkit.cli.report.run import run_report

    run_report(chosen)
