"""A plan for the terminal: what fits in each quantization, then the flags and what they rest on; and the catalog's names."""

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace

import click
from rich.text import Text

from toolkit.cli.output import print_json
from toolkit.cli.plan.measured import MeasuredRuns
from toolkit.errors import ToolkitError
from toolkit.plan.advice import tokens_words
from toolkit.plan.capacity import BUSY, SPARE, Chain, Cost, Headroom, busy_with
from toolkit.plan.catalog import gpu_of, table
from toolkit.plan.checkup import Checkup, Deviation, checkup, checkup_of_model, sane
from toolkit.plan.engine import GRAPHS_COUNT_FROM, PLAIN, EngineSettings, PlanQuestion
from toolkit.plan.kv_cache import bytes_per_request, bytes_per_token
from toolkit.plan.model_config import shape_of
from toolkit.plan.model_files import KnownModel
from toolkit.plan.planner import Plan, best, gains
from toolkit.plan.weights import as_stored, parameters, weights_bytes
from toolkit.records import Sighting
from toolkit.report.tables import Column, screen
from toolkit.units import DASH, GIB, UNKNOWN, counted, digits, share

WIDEST_LINE = 118
"""Longer lines of text are hard to read back from their end to the next one's beginning."""
COLUMNS = (
    Column("quantization", lambda plan: plan.quantization),
    Column("weights GiB", lambda plan: f"{plan.weights_gib:.1f}", right=True),
    Column(
        "KV cache GiB",
        lambda plan: f"{plan.kv_budget_gib:.1f}" if plan.fits else "does not fit",
        right=True,
    ),
    Column(
        "KV tokens",
        lambda plan: f"{plan.kv_cache_tokens:,}" if plan.fits else UNKNOWN,
        right=True,
        spare=2,
    ),
    Column(
        "at once", lambda plan: f"{plan.max_concurrency:,}" if plan.fits else UNKNOWN, right=True
    ),
)
RATE = Column("requests/s", lambda plan: figure(plan.requests_per_s, digits), right=True, spare=1)
COST = Column(
    "cost of a million tokens",
    lambda plan: figure(plan.cost_per_million_tokens, money),
    right=True,
    spare=3,
)
MODELS = (
    Column("model", lambda row: row["model"]),
    Column("parameters", lambda row: f"{row['parameters']:,}", right=True),
    Column("active parameters", lambda row: f"{row['active_parameters']:,}", right=True, spare=2),
    Column("KV bytes a token", lambda row: f"{row['kv_bytes_per_token']:,}", right=True),
    Column(
        "state per request",
        lambda row: (
            f"{row['state_bytes_per_request']:,}" if row["state_bytes_per_request"] else DASH
        ),
        right=True,
        spare=1,
    ),
)
GPUS = (
    Column("GPU", lambda row: row["gpu"]),
    Column("memory GiB", lambda row: f"{row['memory_gib']:.2f}", right=True),
    Column("GB/s", lambda row: f"{row['bandwidth_gb_s']:,}", right=True, spare=1),
)


def figure(value: float | None, words: Callable[[float], str]) -> str:
    """A figure in words, where there is one."""
    return UNKNOWN if value is None else words(value)


def money(value: float) -> str:
    """In the currency of the prices given: `0.097`, `2.00`."""
    return f"{value:,.2f}" if value >= 1 or value == 0 else f"{value:.2g}"


@dataclass(slots=True, kw_only=True)
class PlanAnswer:
    """One plan and what follows from it beside its flags. None: not asked for, or not known."""

    plan: Plan
    cost: Cost | None = None
    chain: Chain | None = None
    headroom: Headroom | None = None
    checkup: Checkup | None = None
    deviation: Deviation | None = None
    serve: str | None = None
    """The command that starts vLLM so; None: it does not fit."""


def print_plans(
    answers: Sequence[PlanAnswer], asked: PlanQuestion, runs: MeasuredRuns, host: str | None
) -> None:
    """Print all plans, and of the one to advise for all that follows; `host`: the server that they are compared with."""
    console = screen()
    width = max(40, min(console.width, WIDEST_LINE))

    def say(text: str, indent: str = "", then: str = "") -> None:
        for line in textwrap.wrap(
            text, width, initial_indent=indent, subsequent_indent=then or indent,
            break_long_words=False, break_on_hyphens=False,
        ):  # fmt: skip
            console.print(Text(line), soft_wrap=True)

    def title(text: str) -> None:
        console.print()
        console.print(Text(text, style="bold"))

    def part(name: str, lines: Iterable[str]) -> None:
        for number, line in enumerate(lines):
            if number == 0:
                title(name)
            say(line)

    plans = [one.plan for one in answers]
    chosen = best(plans)
    answer = next(one for one in answers if one.plan is chosen)
    load, version = asked.load, ".".join(map(str, asked.settings.version))
    count = f"{chosen.gpus} x " if chosen.gpus > 1 else ""
    lengths = tokens_words(chosen.request_tokens)
    if load.prompt_tokens is not None and load.output_tokens is not None:
        prompt, output = (
            tokens_words(tokens).removesuffix(" tokens")
            for tokens in (load.prompt_tokens, load.output_tokens)
        )
        lengths += f" ({prompt} of prompt, {output} of answer)"
    sources = dict.fromkeys(filter(None, (load.source, *runs.sources)))
    source = f"; {', '.join(sources)}" if sources else ""
    say(
        f"{chosen.model} on {count}{chosen.gpu} with {chosen.memory_gib:.1f} GiB, vLLM {version}; requests of {lengths}{source}"
    )
    console.print()

    # without the columns of which nothing is known
    columns = [*COLUMNS]
    columns += [RATE] if any(one.requests_per_s is not None for one in plans) else []
    columns += [COST] if any(one.cost_per_million_tokens is not None for one in plans) else []
    console.records(columns, plans)
    if gain := gains(plans):
        say(f"{gain}.")

    more = " (for another: --quantization NAME)" if len(plans) > 1 else ""
    title(f"Flags for {chosen.quantization}{more}")
    if not chosen.fits:
        say("None: it does not fit; the notes say what would help")
    else:
        for flag in chosen.advice:
            console.print(Text(f"--{flag.flag} {flag.value}"))
            say(flag.why, indent="    ")
        graphs_counted = asked.settings.version >= GRAPHS_COUNT_FROM
        part("Memory", _memory_lines(chosen, graphs_counted=graphs_counted))
    if answer.headroom:
        part("Rate", _rate_lines(answer.headroom, answers))
    if answer.chain:
        part("Users", _chain_lines(answer.chain))
    if answer.cost:
        part("Cost", _cost_lines(answer.cost))
    if host is not None:
        part("The server", _host_lines(answers, host))

    title("Methodology")
    for note in (*chosen.notes, *runs.notes):
        say(f"- {note}", then="  ")
    for other in plans:
        # what is alike for all stands above; `--json` has each one's own
        for note in () if other.fits else other.notes:
            if other is not chosen and note not in chosen.notes:
                say(f"- {other.quantization}: {note}", then="  ")

    if answer.serve is not None:
        title(f"Serve it in {chosen.quantization}")
        # whole, however long: folded it could not be pasted
        console.print(Text(answer.serve), soft_wrap=True)


def _memory_lines(one: Plan, *, graphs_counted: bool) -> Iterator[str]:
    """Where one engine's memory goes, and its KV cache in blocks."""
    may_use = one.memory_gib * one.gpu_memory_utilization
    parts = (
        (one.weights_gib, "weights"),
        (one.context_gib, "CUDA"),
        # a context of nothing: one figure was given for all three
        (one.activation_gib, "activations" if one.context_gib else "beside, as set"),
        (one.graph_gib if graphs_counted else 0.0, "graphs"),
        (one.kv_budget_gib, "KV cache"),
    )
    words = ", ".join(f"{gib:.1f} {name}" for gib, name in parts if gib >= 0.05)
    beside = "" if graphs_counted else f"; {one.graph_gib:.1f} for graphs come on top"
    yield f"{may_use:.1f} of {one.memory_gib:.1f} GiB: {words}{beside}"
    first, each = one.blocks_to_begin, one.blocks_per_request
    begin = f" ({first:,} to begin, as windows hold more while a prompt is read)"
    yield (
        f"{one.num_gpu_blocks:,} blocks of {one.block_size:,} tokens, {each:,} for each request"
        f" of {one.request_tokens:,.0f} tokens{begin if first > each else ''}, one reserved"
    )


def _rate_lines(found: Headroom, answers: Sequence[PlanAnswer]) -> Iterator[str]:
    """What a target rate asks for; where the plan does not leave peaks their room, the first quantization that does."""
    low, high = found.tested_rps
    yield (
        f"Target {digits(found.target_rps)} requests/s: try it with {digits(low)} to {digits(high)}, two to three times the peak"
    )
    if found.under_way is not None:
        yield f"At the target {digits(found.under_way)} requests are under way at once"
    if found.factor is None:
        yield "How long a request takes is not known (--seconds-per-request or --run), so nor is whether it is enough"
    elif found.engines is None:
        yield "It does not fit, so it answers none"
    else:
        low, high = found.engines
        many = f"{low}" if low == high else f"{low} to {high}"
        words = f"One such server does {digits(found.factor)} times the target: "
        if found.factor > SPARE[1]:
            yield words + "enough, and more than peaks ask for"
        elif found.factor >= SPARE[0]:
            yield words + "enough"
        else:
            yield f"{words}{many} of them leave peaks their room"
    if (found.factor or 0.0) >= SPARE[0]:
        return
    for one in answers:
        factor = one.headroom.factor if one.headroom else None
        if one.plan.fits and factor is not None and factor >= SPARE[0]:
            name = one.plan.quantization
            yield f"{name} on the same machine does {digits(factor)} times the target: --quantization {name} shows its flags"
            return


def _chain_lines(found: Chain) -> Iterator[str]:
    """What calls that follow each other mean."""
    yield (
        f"{found.calls} calls of {digits(found.busy_s)} s in {digits(found.total_s)} s a request: one user keeps the GPU busy for"
        f" {share(found.busy_share)} of the time"
    )
    busy = share(busy_with(found.users_busy, found.busy_share))
    yield (f"{found.users_busy} users at once keep it busy for {busy} (at least {BUSY:.0%})")
    yield (
        f"{found.users_full:,} users fill its memory with calls, and have {digits(found.requests_per_s)} requests a second answered"
        " if calls still take as long"
    )


def _cost_lines(found: Cost) -> Iterator[str]:
    """What an hour buys."""
    if found.per_million_tokens is None:
        yield f"{money(found.hour)} an hour; what a token costs needs measured seconds (--seconds-per-request or --run)"
    else:
        yield (
            f"{money(found.hour)} an hour at full load: {money(found.per_million_tokens)} for a million tokens, prompts and answers"
            f" together; {money(found.per_thousand_requests or 0.0)} for 1,000 requests"
        )
    if found.api_per_million_tokens is not None:
        yield (
            f"The API: {money(found.api_per_million_tokens)} for a million tokens of the same mix;"
            f" {money(found.api_per_thousand_requests or 0.0)} for 1,000 requests"
        )
    if found.even_rps is not None:
        words = f"The GPU is cheaper from {digits(found.even_rps)} requests a second on, around the clock"
        if found.even_share is not None and found.even_share > 1:
            words += ": more than it can answer, so it never is"
        elif found.even_share is not None:
            words += f": {share(found.even_share)} of what it can answer"
        yield words


def _host_lines(answers: Sequence[PlanAnswer], name: str) -> Iterator[str]:
    """What a server's own figures mean, and which of the plans comes nearest to them."""
    first = next((one.checkup for one in answers if one.checkup), None)
    if first is None:
        return
    yield f"{name}: {first.text}"
    yield from first.notes
    deviations = [(one.plan.quantization, one.deviation) for one in answers if one.deviation]
    for quantization, found in deviations:
        yield f"{quantization}: {found.text}"
    if len(deviations) > 1:
        # those whose estimate is no further off than the best one's; quantizations of one size are alike
        least = min(abs(found.share) for _, found in deviations)
        nearest = (name for name, found in deviations if abs(found.share) == least)
        yield f"Nearest: {' and '.join(nearest)}"


def print_row(**known: object) -> None:
    """One JSON object with the keys of a plan and of what stands beside one; what only a GPU and a model say is null."""
    beside = ("costs", "chain", "headroom", "checkup", "deviation", "serve", "host")
    row: dict[str, object] = dict.fromkeys((*(field.name for field in fields(Plan)), *beside))
    print_json(row | {"flags": {}, "advice": []} | known)


def print_kv_cache(
    known: KnownModel, settings: EngineSettings, tokens: float, batch: int, *, as_json: bool
) -> None:
    """The KV cache of so many requests of one length, without a GPU."""
    shape = known.shape
    each, fixed = bytes_per_token(shape, settings), bytes_per_request(shape, settings)
    kv_gib = (each * tokens + bytes_per_request(shape, settings, tokens)) * batch / GIB
    if as_json:
        print_row(
            model=shape.name,
            gpus=settings.gpus,
            quantization=as_stored(shape, None).name,
            kv_cache_dtype=settings.kv_cache_dtype,
            weights_gib=weights_bytes(shape, on_disk=known.on_disk) / GIB,
            kv_bytes_per_token=each,
            state_bytes_per_request=fixed,
            tokens=tokens,
            batch=batch,
            kv_gib=kv_gib,
            notes=[*known.notes, *shape.notes],
        )
        return
    size = f"{kv_gib:,.2f} GiB" if kv_gib >= 0.1 else f"{kv_gib * 1024:,.2f} MiB"
    length = "1 token" if tokens == 1 else tokens_words(tokens)
    click.echo(f"{shape.name}: {size} for {counted(batch, 'request')} of {length}")
    click.echo(f"{each:,} bytes a token" + (" over all GPUs" if settings.gpus > 1 else ""))
    if fixed:
        click.echo(f"{fixed:,} bytes a request whatever its length: states, and windows once full")
    click.echo("before blocks round each request up: `--gpu` reckons with blocks")


def print_blocks(
    seen: Sighting,
    known: KnownModel | None,
    settings: EngineSettings,
    request_tokens: float | None,
    gpu: str | None,
    *,
    as_json: bool,
) -> None:
    """What a server's own blocks mean for requests, without a GPU or a known model. Raises ToolkitError where not even that is known."""
    tokens = request_tokens or sane(seen.max_model_len)
    if tokens is None:
        raise ToolkitError(
            f"how long requests are is not known, and `{seen.name}` does not report its max_model_len",
            "Give it: `--tokens 550`, or `--workload workload.json`",
        )
    if known is None:
        found = checkup(seen, float(tokens))
    else:
        found = checkup_of_model(seen, known.shape, settings, float(tokens))
    notes = list(found.notes)
    if request_tokens is None:
        notes.append(
            "request lengths were not given, so all are counted as long as its max_model_len: real ones are shorter"
        )
    if known is None:
        notes.append(
            f"the catalog does not know its model, `{seen.model or 'not reported'}`: all layers are taken to keep every token. Name MODEL"
            " to count its states"
        )
    if gpu is None:
        notes.append("name its GPU, e.g., `--gpu a100-80gb`, to see how far the plan is from it")
    if not as_json:
        click.echo(f"{seen.name}: {found.text}")
        for note in notes:
            click.echo(f"- {note}")
        return
    print_row(
        model=seen.model,
        request_tokens=float(tokens),
        num_gpu_blocks=found.num_gpu_blocks,
        block_size=found.block_size,
        blocks_per_request=found.blocks_per_request,
        max_concurrency=found.at_once,
        notes=notes,
        checkup=asdict(replace(found, notes=tuple(notes))),
        host=seen.name,
    )


def print_catalog(*, as_json: bool) -> None:
    """Print the models and the GPUs that the catalog knows by name."""
    models = []
    for name, row in table("models").items():
        shape = shape_of(row["config"], name)
        counted = parameters(shape)
        models.append(
            {
                "model": name,
                "parameters": counted.total,
                "active_parameters": counted.active,
                "kv_bytes_per_token": bytes_per_token(shape, PLAIN),
                "state_bytes_per_request": bytes_per_request(shape, PLAIN),
            }
        )
    gpus = [
        {
            "gpu": name,
            "memory_gib": gpu_of(name).memory_bytes / GIB,
            "bandwidth_gb_s": row["bandwidth_gb_s"],
        }
        for name, row in table("gpus").items()
    ]
    if as_json:
        for one in (*models, *gpus):
            print_json(one)
        return
    console = screen()
    console.records(MODELS, models)
    console.print()
    console.records(GPUS, gpus)
