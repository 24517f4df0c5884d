"""`toolkit diagnose`: which of the known bottlenecks a host has, from its own numbers or from a run."""

import sys
from pathlib import Path
from typing import Any

import click

from toolkit.cli import suggestions
from toolkit.cli.diagnose.options import DiagnoseOptions
from toolkit.cli.options import DURATION, database_option, tls_options

EXAMPLES = """
Say which bottleneck a server has: what was seen, which lever to turn first, what that risks and
which indicator to watch. TARGET is a URL or a hosts file, whose servers are looked at for
--interval while they are under load, or a run of the database (RUN or RUN:HOST), a bench or a
blast with what scout saw beside it.

\b
  toolkit diagnose 10.0.0.4:8000        look for ten seconds
  toolkit diagnose hosts.txt --interval 30s
  toolkit diagnose 3f9c2a7b1d04:alice   what a blast's seconds say
  toolkit diagnose 10.0.0.4:8000 --capture newest
      and what clients send, from a capture
  toolkit diagnose 10.0.0.4:8000 --log vllm.log
      and how large its weights are
  toolkit diagnose 10.0.0.4:8000 --model Qwen/Qwen3-32B --gpu a100-80gb
  toolkit diagnose 10.0.0.4:8000 --json

Only what was seen counts. What nobody could look at is named, with what would tell it. Turn one
lever at a time, and look again: `toolkit compare` tells whether it helped.

\b
With --json there is one object for each bottleneck, with these keys:
  code         a name for programs; `none_found` where there is none,
               `not_known` with a list `unknown` of facts that would decide
               something, `not_seen` for a host that did not answer
  confidence   high, medium or low
  evidence     what was seen, with its figures
  lever        what to turn, the first thing first
  risk         what that may cost
  watch        the indicators that tell whether it helped
  what         the code in words
  source       where the rule comes from: text and place, or the
               thresholds' own
  name, url    whom it is about; run: the stored run, where it is one
"""


@click.command(
    "diagnose", help=EXAMPLES, short_help="Which bottleneck it is, and which lever to turn."
)
@click.argument("target", metavar="TARGET", shell_complete=suggestions.file)
@click.option(
    "--interval", type=DURATION, default="10s", show_default=True, help="How long to look."
)
@click.option(
    "--capture",
    metavar="RUN",
    shell_complete=suggestions.run("capture"),
    help="Judge what clients send by this capture, or by the `newest`.",
)
@click.option(
    "--log",
    type=click.Path(dir_okay=False, path_type=Path),
    help="vLLM's log of TARGET's start: weights, memory, lengths.",
)
@click.option(
    "--model",
    metavar="MODEL",
    shell_complete=suggestions.model,
    help="What TARGET serves, as `toolkit plan` names it.",
)
@click.option(
    "--gpu",
    metavar="NAME|SIZE",
    shell_complete=suggestions.gpu,
    help="And on which GPU: how much of it weights take.",
)
@click.option(
    "--timeout", type=DURATION, default="5s", show_default=True, help="For all pages of one look."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a bottleneck.")
@database_option
@tls_options
def command(**options: Any) -> None:
    """Say which bottleneck it is (the help text is EXAMPLES)."""
    from toolkit.cli.diagnose.cases import cases_of
    from toolkit.cli.diagnose.show import show

    chosen = DiagnoseOptions(**options)
    if (chosen.model is None) != (chosen.gpu is None):
        raise click.UsageError("--model and --gpu go together: weights against memory")
    cases = cases_of(chosen)
    show(cases, as_json=chosen.as_json)
    if any(case.stopped for case in cases):
        sys.exit(130)  # what a shell calls an interrupted command
    if all(case.error for case in cases):
        sys.exit(1)
