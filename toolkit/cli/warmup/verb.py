"""`toolkit warmup`: ask each server until it is warm, and say what its first clients would have waited."""

import sys
from pathlib import Path
from typing import Any

import click

from toolkit.cli import suggestions
from toolkit.cli.options import DURATION, Levels, database_option, tls_options

MOST_AT_ONCE = 64
"""The highest concurrency where nobody says what the engine runs at once."""
EXAMPLES = """
Ask servers until they are warm: 1, 2, 4 ... requests at once, streams and whole answers, with prompts that no cache knows;
the highest until two rounds agree; then each once more. It prints what a client waits cold and warm, and their ratio. Last come
the clients' own requests, so that prefix and response caches hold them. HOSTS are files (`-` for standard input) or URLs.

\b
  toolkit warmup 127.0.0.1:8000 --profile contest
  toolkit warmup hosts.txt --max-num-seqs 256 --limit 15m
  toolkit warmup 127.0.0.1:8000 --structured --long --log vllm.log
  toolkit warmup 127.0.0.1:8000 --seen
      what the last capture or proxy saw, from the database
  toolkit warmup hosts.txt --json
"""


@click.command(
    "warmup", help=EXAMPLES, short_help="Ask servers until they are warm; cold against warm."
)
@click.argument("hosts", nargs=-1, metavar="[HOSTS]...", shell_complete=suggestions.file)
@click.option(
    "--concurrency",
    type=Levels(),
    default=(),
    metavar="1,2,4,...",
    help=f"Requests at once, one level after the other.  [default: doubling to {MOST_AT_ONCE}]",
)
@click.option(
    "--max-num-seqs",
    type=click.IntRange(1, 4096),
    help="What the engine runs at once; the levels end there.",
)
@click.option(
    "--profile",
    metavar="NAME|FILE",
    shell_complete=suggestions.profile,
    help="Whose prompts: of the catalog, or a file (.toml, .jsonl, else one prompt a line).  [default: plain ones]",
)
@click.option(
    "--seen",
    is_flag=True,
    help="Prompts that clients sent, from the database, where texts were kept.",
)
@click.option(
    "--run",
    metavar="RUN",
    shell_complete=suggestions.run("capture"),
    help="With --seen: of this capture.  [default: the newest]",
)
@click.option("--stream/--no-stream", default=None, help="Stream all, or none.  [default: both]")
@click.option("--structured", is_flag=True, help="Also answers that must be JSON.")
@click.option("--long", is_flag=True, help="Also prompts of up to nine tenths of what fits.")
@click.option(
    "--max-tokens",
    type=click.IntRange(1, 1_000_000),
    default=32,
    show_default=True,
    help="Per answer, but for the clients' own requests.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0.01, 1.0),
    default=0.2,
    show_default=True,
    help="Two rounds agree when they differ by less than this share.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 1000),
    default=8,
    show_default=True,
    help="Most, of the highest concurrency.",
)
@click.option(
    "--limit",
    type=DURATION,
    default="10m",
    show_default=True,
    help="For all of it: a cold server may take minutes for its first answer.",
)
@click.option(
    "--log",
    metavar="FILE",
    shell_complete=suggestions.file,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="vLLM's log: what it compiled, and what only in the probe.",
)
@click.option(
    "--model", metavar="NAME", help="Ask for this model.  [default: what each host lists or serves]"
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a host.")
@database_option
@tls_options
def command(**options: Any) -> None:
    """Warm servers up (the help text is EXAMPLES)."""
    if options["seen"] and options["profile"]:
        raise click.UsageError("--seen and --profile are two sources of prompts; choose one")
    if options["run"] and not options["seen"]:
        raise click.UsageError("--run goes with --seen")
    if any(level < 1 for level in options["concurrency"]):
        raise click.UsageError("--concurrency: a level is at least 1")
    from toolkit.cli.warmup.run import run_warmup

    sys.exit(run_warmup(**options))
