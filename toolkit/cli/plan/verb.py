"""`toolkit plan`: what fits into a GPU's memory, how many requests that is, and which flags follow."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from toolkit.cli.help_page import Command, advanced
from toolkit.cli.options import (
    CACHE_DTYPE,
    DURATION,
    FILE,
    GPU,
    HOST,
    MODEL,
    PRICE,
    QUANTIZATION,
    SIZE,
    Written,
    database_option,
    run_word,
    tls_options,
)
from toolkit.cli.output import print_json
from toolkit.errors import ToolkitError
from toolkit.units import seconds_of

LARGEST = 1e9
COUNT = click.IntRange(min=1)
TOKENS = click.FloatRange(min=1)
AMOUNT = click.FloatRange(min=0, min_open=True)


def durations_of(text: str) -> tuple[float, ...] | None:
    """Seconds of `300ms,300ms,100ms`; each is above 0."""
    read = [seconds_of(word.strip()) for word in text.split(",")]
    found = tuple(seconds for seconds in read if seconds)
    return found if len(found) == len(read) else None


DURATIONS = Written(
    "durations", durations_of, "is no list of durations; write e.g. `300ms,300ms,100ms`"
)


@click.command(
    "plan", cls=Command, short_help="What fits into a GPU, how many requests, which flags."
)
@click.argument("model", required=False, type=MODEL)
@click.option(
    "--gpu",
    metavar="NAME|SIZE",
    type=GPU,
    help="GPU or memory: `a100-80gb`, `l4`, `1g.10gb`, `80GiB`.",
)
@advanced(
    "-tp",
    "--tensor-parallel-size",
    "tp",
    type=COUNT,
    default=1,
    show_default=True,
    help="GPUs that share each layer (tensor parallelism).",
)
@advanced(
    "-pp",
    "--pipeline-parallel-size",
    "pp",
    type=COUNT,
    default=1,
    show_default=True,
    help="GPUs that each hold some layers (pipeline parallelism).",
)
@click.option(
    "--quantization",
    metavar="NAME",
    type=QUANTIZATION,
    multiple=True,
    help="Only this quantization; may be repeated.  [default: compare several]",
)
@advanced(
    "--kv-cache-dtype",
    default="auto",
    show_default=True,
    metavar="NAME",
    type=CACHE_DTYPE,
    help="Data type of the KV cache, e.g. `fp8`.",
)
@advanced(
    "--vllm", metavar="VERSION", help="Version of vLLM, e.g. `0.17.1`.  [default: the newest known]"
)
@advanced("--tokens", type=TOKENS, help="Tokens of a typical request, prompt and answer.")
@click.option("--prompt-tokens", type=TOKENS, help="Tokens of a typical prompt.")
@click.option("--output-tokens", type=TOKENS, help="Tokens of a typical answer.")
@advanced("--longest", type=COUNT, help="Tokens of the longest request, prompt and answer.")
@click.option(
    "--workload",
    metavar="FILE",
    type=FILE,
    help="Lengths as `toolkit workload --json` wrote them.",
)
@click.option(
    "--run",
    metavar="RUN",
    type=run_word("capture", "bench", "blast"),
    multiple=True,
    help="Lengths of this capture, or lengths and times of this bench or blast; may be repeated.",
)
@advanced("--seconds-per-request", type=DURATION, help="Measured duration of one request.")
@advanced(
    "--calls",
    type=DURATIONS,
    default=(),
    metavar="TIMES",
    help="Durations of a user's successive calls: `300ms,300ms,100ms`.",
)
@advanced("--idle", type=DURATION, help="Total pause between the calls of one user.")
@advanced("--target-rps", type=AMOUNT, help="Requests per second at the peak.")
@click.option("--gpu-hour", type=AMOUNT, metavar="PRICE", help="Price of one GPU for an hour.")
@advanced(
    "--api-price",
    type=PRICE,
    metavar="PRICE",
    help="An API's price per million tokens: `0.15/0.60` for prompt/answer.",
)
@advanced(
    "--host",
    metavar="URL|NAME",
    type=HOST,
    help="Compare with this server: scraped now, or as scout last saw it.",
)
@advanced("--kv-only", is_flag=True, help="Only the KV cache of --batch requests of --tokens.")
@advanced("--batch", type=COUNT, help="Requests at once, with --kv-only.")
@advanced("--max-model-len", type=COUNT, help="Use this value.  [default: as recommended]")
@advanced("--max-num-seqs", type=COUNT, help="Use this value.  [default: as recommended]")
@advanced(
    "--max-num-batched-tokens",
    type=COUNT,
    help="Use this value.  [default: as recommended]",
)
@advanced(
    "--gpu-memory-utilization",
    type=click.FloatRange(0.01, 1.0),
    help="Use this value.  [default: as recommended]",
)
@advanced("--block-size", type=COUNT, help="Use this value.  [default: as vLLM chooses]")
@advanced(
    "--prefix-caching/--no-prefix-caching",
    default=True,
    show_default=True,
    help="Whether prefixes are cached; hybrid models then keep a second state per request.",
)
@advanced(
    "--spec-tokens",
    type=click.IntRange(0, 64),
    default=0,
    show_default=True,
    help="Tokens speculated per step.",
)
@advanced(
    "--weights", type=SIZE, help="Size of the model's files, where they are not on this machine."
)
@advanced(
    "--overhead",
    "overhead_bytes",
    type=SIZE,
    help="Measured memory of one GPU beside weights and KV cache.  [default: estimated]",
)
@click.option("--list", "names", is_flag=True, help="Name the models and GPUs of the catalog.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per quantization.")
@database_option
@tls_options
def command(
    *,
    model: str | None,
    gpu: str | None,
    quantization: tuple[str, ...],
    vllm: str | None,
    tokens: float | None,
    prompt_tokens: float | None,
    output_tokens: float | None,
    longest: int | None,
    workload: str | None,
    run: tuple[str, ...],
    seconds_per_request: float | None,
    calls: tuple[float, ...],
    idle: float | None,
    target_rps: float | None,
    gpu_hour: float | None,
    api_price: tuple[float, float] | None,
    host: str | None,
    kv_only: bool,
    batch: int | None,
    weights: int | None,
    names: bool,
    as_json: bool,
    database: Path,
    insecure: bool,
    ca: str | None,
    **engine: Any,
) -> None:
    """Calculate what fits before anything is started: weights, KV cache and concurrent requests in each
    quantization, and the vLLM flags that follow, each with its reason. MODEL is a model of the catalog, a
    config.json or a folder with one.

    \b
      toolkit plan --list   models and GPUs of the catalog
      toolkit plan qwen2.5-7b --gpu a100-80gb --prompt-tokens 500 \\
          --output-tokens 50
    \f
    \b
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

    Works without a GPU and without a network. What an engine needs beside weights and KV cache is an estimate;
    --host shows how far it is from what a server reports. Times and prices are never guessed: give them, or measure
    them first.
    """
    # `engine`: what EngineSettings calls the same
    if names:
        from toolkit.cli.plan.table import print_catalog

        print_catalog(as_json=as_json)
        return
    by_parts = prompt_tokens is not None or output_tokens is not None
    for is_wrong, sentence in (
        (model is None and host is None, "name a MODEL, or a server with --host"),
        (kv_only and None in (tokens, batch), "--kv-only goes with --tokens and --batch"),
        (kv_only and model is None, "--kv-only goes with a MODEL"),
        (batch is not None and not kv_only, "--batch goes with --kv-only"),
        (
            gpu is None and not kv_only and host is None,
            "say which GPU: --gpu a100-80gb, or its memory: --gpu 80GiB",
        ),
        (
            tokens is not None and by_parts,
            "--tokens is prompt and answer together; leave it out beside --prompt-tokens and --output-tokens",
        ),
        (
            by_parts and None in (prompt_tokens, output_tokens),
            "--prompt-tokens and --output-tokens go together; if you know only the sum, use --tokens",
        ),
        (
            workload is not None and (by_parts or tokens is not None),
            "--workload has the lengths; leave --tokens, --prompt-tokens and --output-tokens out",
        ),
        (idle is not None and not calls, "--idle goes with --calls"),
    ):
        if is_wrong:
            raise click.UsageError(sentence)
    context = click.get_current_context()
    for option in context.command.params:
        value = context.params.get(option.name or "")
        # NaN passes click's own ranges
        if isinstance(value, int | float) and option.type is not SIZE and not value <= LARGEST:
            raise click.UsageError(f"{option.opts[-1]} takes a number up to {LARGEST:,.0f}")

    from toolkit.cli.plan.measured import (
        MeasuredRuns,
        measured,
        probed,
        remembered,
        workload_report,
    )
    from toolkit.cli.plan.table import PlanAnswer, print_blocks, print_kv_cache, print_plans
    from toolkit.hosts import looks_like_url
    from toolkit.plan.capacity import RequestLengths, chain, cost, headroom, of_workload
    from toolkit.plan.catalog import gpu_of, model_of, served_model
    from toolkit.plan.checkup import compared
    from toolkit.plan.engine import NEWEST, EngineSettings, PlanQuestion, version_of
    from toolkit.plan.planner import serve_command, side_by_side
    from toolkit.plan.weights import as_stored

    version = NEWEST if vllm is None else version_of(vllm)
    if version is None:
        raise ToolkitError(f"`{vllm}` is no version of vLLM", "Write, e.g., `--vllm 0.17.1`")
    settings = EngineSettings(version=version, **engine)
    if kv_only:
        print_kv_cache(model_of(model or ""), settings, tokens or 0.0, batch or 0, as_json=as_json)
        return

    # what a server, runs and a workload report
    seen = None
    if host is not None and looks_like_url(host):
        seen = probed(host, insecure=insecure, ca=ca)
    elif host is not None:
        seen = remembered(host, database, run if model is not None else ())
    runs = measured(run, database, host) if run else MeasuredRuns()
    prompt, answer = prompt_tokens or runs.prompt_tokens, output_tokens or runs.output_tokens
    load = RequestLengths()
    if tokens is not None:
        load = RequestLengths(request_tokens=tokens)
    elif workload is not None:
        load = of_workload(workload_report(workload))
    elif runs.report is not None and not by_parts:
        load = of_workload(runs.report)
    elif prompt is not None and answer is not None:
        load = RequestLengths(
            prompt_tokens=prompt, output_tokens=answer, request_tokens=prompt + answer
        )
    if longest is not None:
        load = replace(load, longest=longest)
    known = None
    if model is not None:
        known = model_of(model)
    elif seen is not None:
        known = served_model(seen.model or "")
    if seen is not None and (known is None or gpu is None):
        # without a GPU or a known model: only what the server's own blocks mean
        print_blocks(seen, known, settings, load.request_tokens, gpu, as_json=as_json)
        return
    if known is None or gpu is None:
        raise ToolkitError("no GPU is named", "Say which: `--gpu a100-80gb`, or `--gpu 80GiB`")

    shape = known.shape
    if weights is not None and len(quantization) == 1:
        # the files are in that one, whatever the catalog's config says
        shape = replace(shape, quantization=as_stored(shape, quantization[0]))
    asked = PlanQuestion(
        shape=shape,
        gpu=gpu_of(gpu),
        on_disk=weights if weights is not None else known.on_disk,
        settings=settings,
        load=load,
        seconds_per_request=seconds_per_request or runs.seconds,
        target_rps=target_rps,
    )
    answers = []
    for plan in side_by_side(asked, quantization):
        notes, serve = (*plan.notes, *known.notes), serve_command(plan, asked, known)
        if plan.fits and serve is None:
            look_for = f"a checkpoint of {plan.model} that is stored in {plan.quantization}"
            notes = (*notes, f"to serve it, look for {look_for}: the catalog knows of none")
        one = PlanAnswer(plan=replace(plan, notes=notes), serve=serve)
        if gpu_hour is not None:
            one.cost = cost(
                gpu_hour,
                api_price,
                gpus=plan.gpus,
                requests_per_s=plan.requests_per_s,
                prompt_tokens=load.prompt_tokens,
                output_tokens=load.output_tokens,
                request_tokens=plan.request_tokens,
            )
            per_million = one.cost.per_million_tokens
            one.plan = replace(one.plan, cost_per_million_tokens=per_million)
        if calls and plan.fits:
            # as many at once as memory holds, and as the engine admits
            at_once = min(plan.max_concurrency, plan.max_num_seqs)
            one.chain = chain(calls, idle or 0.0, at_once)
        if target_rps is not None:
            rate = plan.requests_per_s if plan.fits else 0.0
            one.headroom = headroom(target_rps, asked.seconds_per_request, rate)
        if seen is not None:
            one.checkup, one.deviation = compared(plan, asked, seen)
        answers.append(one)
    seen_name = None if seen is None else seen.name
    if not as_json:
        print_plans(answers, asked, runs, seen_name)
        return
    for one in answers:
        found = asdict(one)
        row = found.pop("plan")
        row["notes"] = [*row["notes"], *runs.notes]
        print_json(row | {"costs": found.pop("cost")} | found | {"host": seen_name})
