"""`toolkit plan`: what fits into a GPU's memory, how many requests that is, and which flags follow."""

from dataclasses import fields
from typing import Any

import click

from toolkit.cli import suggestions
from toolkit.cli.options import DURATION, SIZE, Price, database_option, tls_options
from toolkit.cli.plan.options import PlanOptions

LARGEST = 1e9
EXAMPLES = """
Say before anything is started what fits: weights, KV cache, requests at once, in each quantization,
and which of vLLM's flags follow from it, each with its reason. MODEL is a model of the catalog, a
config.json or a folder with one. No GPU and no network are needed, and no model hub is ever asked.

\b
  toolkit plan --list   models and GPUs of the catalog
  toolkit plan qwen2.5-7b --gpu a100-80gb --prompt-tokens 500 \\
      --output-tokens 50
  toolkit workload --json | toolkit plan qwen3.5-35b-a3b --gpu a100-80gb \\
      --workload -
  toolkit plan ./my-model --gpu 24GiB --tokens 550 --seconds-per-request 5s \\
      --target-rps 10
  toolkit plan qwen2.5-7b --gpu l4 --run 4f0c9a2b7d1e --gpu-hour 1.20 \\
      --api-price 0.15/0.60
  toolkit plan qwen2.5-7b --gpu l4 --tokens 300 \\
      --calls 300ms,300ms,300ms,100ms --idle 430ms
  toolkit plan qwen2.5-7b --kv-only --tokens 8192 --batch 64
  toolkit plan qwen3.5-35b-a3b --gpu a100-80gb --tokens 271 \\
      --host http://10.0.0.4:8000

What an engine needs beside weights and KV cache is an estimate: with --host you see how far it was
from what a server reports. Time and price are never guessed: tell them, or measure them first.
"""


class DurationList(click.ParamType[tuple[float, ...]]):
    """Durations with commas between them; the value is in seconds."""

    name = "durations"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        """Read `300ms,300ms,100ms`."""
        if isinstance(value, tuple):
            return value
        return tuple(DURATION.convert(word.strip(), param, ctx) for word in str(value).split(","))


COUNT = click.IntRange(min=1)
TOKENS = click.FloatRange(min=1)
AMOUNT = click.FloatRange(min=0, min_open=True)


@click.command(
    "plan", help=EXAMPLES, short_help="What fits into a GPU, how many requests, which flags."
)
@click.argument("model", required=False, shell_complete=suggestions.model)
@click.option(
    "--gpu",
    metavar="NAME|SIZE",
    shell_complete=suggestions.gpu,
    help="E.g. `a100-80gb`, `l4`, `1g.10gb`, or `80GiB`.",
)
@click.option(
    "-tp",
    "--tensor-parallel-size",
    "tensor_parallel",
    type=COUNT,
    default=1,
    show_default=True,
    help="GPUs that share each layer.",
)
@click.option(
    "-pp",
    "--pipeline-parallel-size",
    "pipeline_parallel",
    type=COUNT,
    default=1,
    show_default=True,
    help="GPUs that share the layers.",
)
@click.option(
    "--quantization",
    metavar="NAME",
    shell_complete=suggestions.quantization,
    multiple=True,
    help="Only this one; may be repeated.  [default: side by side]",
)
@click.option(
    "--kv-cache-dtype",
    default="auto",
    show_default=True,
    metavar="NAME",
    shell_complete=suggestions.cache_dtype,
    help="E.g. `fp8`.",
)
@click.option(
    "--vllm", metavar="VERSION", help="Which vLLM, e.g. `0.17.1`.  [default: the newest known]"
)
@click.option("--tokens", type=TOKENS, help="Prompt and answer of a usual request.")
@click.option("--prompt-tokens", type=TOKENS, help="Of a usual prompt.")
@click.option("--output-tokens", type=TOKENS, help="Of a usual answer.")
@click.option("--longest", type=COUNT, help="Prompt and answer of the longest request.")
@click.option(
    "--workload",
    metavar="FILE",
    shell_complete=suggestions.file,
    help="Lengths as `toolkit workload --json` wrote them.",
)
@click.option(
    "--run",
    metavar="RUN",
    shell_complete=suggestions.run("capture", "bench", "blast"),
    multiple=True,
    help="Lengths of this capture, or lengths and times of this bench or blast; may be repeated.",
)
@click.option("--seconds-per-request", type=DURATION, help="How long one takes, as measured.")
@click.option(
    "--calls",
    type=DurationList(),
    default=(),
    metavar="TIMES",
    help="Of users that make several calls: `300ms,300ms,100ms`.",
)
@click.option("--idle", type=DURATION, help="Between the calls of one user, all together.")
@click.option(
    "--target-rps", type=AMOUNT, help="Requests a second that must be answered at the peak."
)
@click.option("--gpu-hour", type=AMOUNT, metavar="PRICE", help="Of one GPU.")
@click.option(
    "--api-price",
    type=Price(),
    metavar="PRICE",
    help="An API's for a million tokens: `0.15/0.60` for prompt/answer.",
)
@click.option(
    "--host",
    metavar="URL|NAME",
    shell_complete=suggestions.host,
    help="Compare with this server: looked at once, or as scout last saw it.",
)
@click.option("--kv-only", is_flag=True, help="Only the KV cache of --batch requests of --tokens.")
@click.option("--batch", type=COUNT, help="Requests at once, with --kv-only.")
@click.option("--max-model-len", type=COUNT, help="As you set it.  [default: as recommended]")
@click.option("--max-num-seqs", type=COUNT, help="As you set it.  [default: as recommended]")
@click.option(
    "--max-num-batched-tokens", type=COUNT, help="As you set it.  [default: as recommended]"
)
@click.option(
    "--gpu-memory-utilization",
    type=click.FloatRange(0.01, 1.0),
    help="As you set it.  [default: as recommended]",
)
@click.option("--block-size", type=COUNT, help="As you set it.  [default: as vLLM chooses]")
@click.option(
    "--prefix-caching/--no-prefix-caching",
    default=True,
    show_default=True,
    help="With it hybrids keep a second state of each request.",
)
@click.option(
    "--spec-tokens",
    type=click.IntRange(0, 64),
    default=0,
    show_default=True,
    help="Speculated in a step.",
)
@click.option(
    "--weights", type=SIZE, help="Of the model's own files, where they are not here to be measured."
)
@click.option(
    "--overhead",
    type=SIZE,
    help="Of one GPU beside weights and KV cache, as measured.  [default: estimated]",
)
@click.option("--list", "names", is_flag=True, help="Name the models and GPUs of the catalog.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a quantization.")
@database_option
@tls_options
def command(**options: Any) -> None:
    """Plan a server (the help text is EXAMPLES)."""
    chosen = PlanOptions(**options)
    if chosen.names:
        from toolkit.cli.plan.list import show_names

        show_names(as_json=chosen.as_json)
        return
    contradiction = _contradiction(chosen)
    if contradiction:
        raise click.UsageError(contradiction)
    from toolkit.cli.plan.run import run

    run(chosen)


def _contradiction(options: PlanOptions) -> str | None:
    """Say what is missing, or what cannot both be meant."""
    parts = options.prompt_tokens is not None or options.output_tokens is not None
    cases = (
        (options.model is None and options.host is None, "name a MODEL, or a server with --host"),
        (
            options.kv_only and (options.tokens is None or options.batch is None),
            "--kv-only goes with --tokens and --batch",
        ),
        (options.kv_only and options.model is None, "--kv-only goes with a MODEL"),
        (options.batch is not None and not options.kv_only, "--batch goes with --kv-only"),
        (
            options.gpu is None and not options.kv_only and options.host is None,
            "say which GPU: --gpu a100-80gb, or its memory: --gpu 80GiB",
        ),
        (
            options.tokens is not None and parts,
            "--tokens is prompt and answer together; leave it out beside --prompt-tokens and --output-tokens",
        ),
        (
            parts and None in (options.prompt_tokens, options.output_tokens),
            "--prompt-tokens and --output-tokens go together; if you know only the sum, use --tokens",
        ),
        (
            options.workload is not None and (parts or options.tokens is not None),
            "--workload tells the lengths; leave --tokens, --prompt-tokens and --output-tokens out",
        ),
        (options.idle is not None and not options.calls, "--idle goes with --calls"),
        *(
            # NaN passes click's own ranges
            (
                number is not None and not number <= LARGEST,
                f"{name} takes a number up to {LARGEST:,.0f}",
            )
            for name, number in _numbers(options)
        ),
    )
    return next((message for is_so, message in cases if is_so), None)


def _numbers(options: PlanOptions) -> "list[tuple[str, float | None]]":
    return [
        (f"--{name.replace('_', '-')}", value)
        for field in fields(PlanOptions)
        for name, value in [(field.name, getattr(options, field.name))]
        if name not in ("weights", "overhead") and isinstance(value, int | float)
    ]
