"""`toolkit bench`: time every host fairly, keep each request, say why it is fast."""

import sys
from pathlib import Path
from typing import Any

import click

from toolkit.cli import suggestions
from toolkit.cli.bench.options import (
    CONCURRENCY,
    MAX_TOKENS,
    MOST_UNDER_WAY,
    REQUESTS,
    BenchOptions,
)
from toolkit.cli.options import DURATION, Levels, database_option, tls_options

MOST_REQUESTS = 1_000_000
"""Per host: more is a slip, and a duration can do it, too."""

EXAMPLES = """
Send timed requests to every host at the same moment, and explain what came back: figures, and
a verdict for each host (a response cache, cut answers, somebody else's load, ...). HOSTS are
files (`-` for standard input) or URLs; without any, the file in TOOLKIT_HOSTS, else hosts.txt.

\b
  toolkit bench hosts.txt          16 requests, 8 at once, each host
  toolkit bench hosts.txt --duration 60s --concurrency 32 --warmup 64
  toolkit bench hosts.txt --rate 4 --duration 2m
      4 a second, whatever answers take
  toolkit bench hosts.txt --goodput ttft:500ms,tpot:50ms \\
      --sweep-concurrency 1,2,4,8,16,32
  toolkit bench hosts.txt --profile contest --mix 50 --repeat
  toolkit bench hosts.txt --json   one object a host

Exits with 1 when no host answered anything, 130 when it was interrupted; what was measured is kept.
"""


@click.command("bench", help=EXAMPLES, short_help="Time every host fairly, and say why it is fast.")
@click.argument("hosts", nargs=-1, metavar="[HOSTS]...", shell_complete=suggestions.file)
@click.option(
    "--requests",
    type=click.IntRange(max=MOST_REQUESTS),
    help=f"Per host.  [default: {REQUESTS}]",
)
@click.option("--concurrency", type=int, help=f"At once, per host.  [default: {CONCURRENCY}]")
@click.option(
    "--duration",
    type=DURATION,
    help="Go on so long instead of counting requests; with both, whichever ends first.",
)
@click.option(
    "--rate",
    type=float,
    help="Requests a second and host, whatever answers take.",
)
@click.option(
    "--arrival",
    type=click.Choice(["poisson", "constant"]),
    help="How --rate spaces them.  [default: poisson]",
)
@click.option(
    "--sweep-concurrency",
    type=Levels(),
    default=(),
    metavar="1,2,4,...",
    help="Run each of these concurrencies; ends with a table, a picture, and the best one.",
)
@click.option("--sequential", is_flag=True, help="One host after the other, not all at once.")
@click.option("--stream/--no-stream", default=None, help="Stream all answers, or none.")
@click.option("--mix", type=click.IntRange(0, 100), metavar="PERCENT", help="Stream so many.")
@click.option("--max-tokens", type=int, help=f"Per answer.  [default: profile, else {MAX_TOKENS}]")
@click.option("--temperature", type=float, help="Sent only when given.")
@click.option("--ignore-eos", is_flag=True, help="Ask vLLM and SGLang for full-length answers.")
@click.option(
    "--profile",
    default="bench",
    show_default=True,
    metavar="NAME|FILE",
    shell_complete=suggestions.profile,
    help="Prompts: of the catalog, or a file (.toml, .jsonl, else one prompt a line).",
)
@click.option("--unique", is_flag=True, help="No prompt twice.")
@click.option(
    "--repeat",
    is_flag=True,
    help="Prompts as they are, again and again. With --unique, or with neither: unique ones, and "
    "a quarter exact twins of earlier ones.",
)
@click.option(
    "--nonce",
    type=click.Choice(["front", "end"]),
    help="Where unique prompts carry their mark: `end` lets prefix caches work.  [default: front]",
)
@click.option(
    "--warmup",
    type=click.IntRange(max=MOST_REQUESTS),
    default=0,
    show_default=True,
    help="Requests before, with other prompts, uncounted.",
)
@click.option("--goodput", metavar="ttft:500ms,tpot:50ms,e2e:10s", help="What a good answer keeps.")
@click.option(
    "--model", metavar="NAME", help="Ask for this model.  [default: what each host lists or serves]"
)
@click.option(
    "--timeout", type=DURATION, default="120s", show_default=True, help="For one request."
)
@click.option(
    "--most-under-way",
    type=int,
    help="With --rate: further requests to that host wait, and their latency counts it.  "
    f"[default: {MOST_UNDER_WAY:,}]",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="For the order of prompts, streams and arrivals.",
)
@click.option(
    "--chart",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where a sweep's picture goes, a PNG.  [default: sweep-RUN.png beside the database]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a host.")
@database_option
@click.option("--no-store", is_flag=True, help="Keep nothing.")
@tls_options
def command(**options: Any) -> None:
    """Bench every host (the help text is EXAMPLES)."""
    chosen = BenchOptions(**options)
    contradiction = _contradiction(chosen)
    if contradiction:
        raise click.UsageError(contradiction)
    from toolkit.cli.bench.run import run_bench

    sys.exit(run_bench(chosen))


def _contradiction(options: BenchOptions) -> str | None:
    """Say which two words cannot both be meant: one of them would be passed over in silence."""
    is_open, chart = options.rate is not None, options.chart
    cases = (
        (
            is_open and options.concurrency is not None,
            "--rate sends whatever is under way; leave --concurrency out, or cap it with --most-under-way",
        ),
        (
            bool(options.sweep_concurrency) and options.concurrency is not None,
            "--sweep-concurrency names the concurrencies; leave --concurrency out",
        ),
        (options.arrival is not None and not is_open, "--arrival goes with --rate"),
        (options.most_under_way is not None and not is_open, "--most-under-way goes with --rate"),
        (
            options.mix is not None and options.stream is not None,
            "--mix says how many stream; leave --stream or --no-stream out",
        ),
        (
            options.nonce is not None and options.repeat and not options.unique,
            "--nonce marks unique prompts; --repeat sends them as they are",
        ),
        (
            chart is not None and not options.sweep_concurrency,
            "--chart goes with --sweep-concurrency",
        ),
        (
            chart is not None and chart.suffix.lower() not in ("", ".png"),
            "--chart writes a PNG; call it, e.g., `sweep.png`",
        ),
    )
    return next((message for is_so, message in cases if is_so), None)
