"""A plan for the terminal, or as JSON lines: what fits in each quantization, then the flags and what they rest on."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from rich.text import Text

from toolkit.cli.output import print_json
from toolkit.cli.plan.measured import MeasuredRuns
from toolkit.cli.plan.options import PlanOptions
from toolkit.plan.advice import tokens_words
from toolkit.plan.capacity import BUSY, SPARE, Chain, Cost, Headroom, busy_with
from toolkit.plan.checkup import Checkup, Deviation
from toolkit.plan.memory import GRAPHS_COUNT_FROM
from toolkit.plan.planner import PlanQuestion, best, gains
from toolkit.plan.result import Plan
from toolkit.records import Sighting
from toolkit.report.tables import Column, Screen, screen
from toolkit.units import UNKNOWN, digits, share

WIDEST_LINE = 118
"""Longer lines of text are hard to read back from their end to the next one's beginning."""
COLUMNS = (
    Column(title="quantization"),
    Column(title="weights GiB", right=True),
    Column(title="KV cache GiB", right=True),
    Column(title="KV tokens", right=True, spare=2),
    Column(title="at once", right=True),
    Column(title="requests/s", right=True, spare=1),
    Column(title="cost of a million tokens", right=True, spare=3),
)
ALWAYS = 5
"""Columns that stay though nothing fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer:
    """One plan and what follows from it beside its flags. None: not asked for, or not known."""

    plan: Plan
    cost: Cost | None = None
    chain: Chain | None = None
    headroom: Headroom | None = None
    checkup: Checkup | None = None
    deviation: Deviation | None = None


def show(
    answers: Sequence[PlanAnswer],
    options: PlanOptions,
    asked: PlanQuestion,
    runs: MeasuredRuns,
    seen: Sighting | None,
) -> None:
    """Print all plans."""
    if options.as_json:
        for one in answers:
            print_json(as_object(one, runs, seen))
        return
    _Screen(screen()).show(answers, asked, runs, seen)


def as_object(one: PlanAnswer, runs: MeasuredRuns, seen: Sighting | None) -> dict[str, object]:
    """A plan's keys, and beside them what was asked for."""
    plan = asdict(one.plan)
    plan["notes"] = [*plan["notes"], *runs.notes]
    beside = {
        name: asdict(value) if value is not None else None
        for name, value in (
            ("costs", one.cost),
            ("chain", one.chain),
            ("headroom", one.headroom),
            ("checkup", one.checkup),
            ("deviation", one.deviation),
        )
    }
    return plan | beside | {"host": seen.name if seen else None}


class _Screen:
    """Prints one part after the other."""

    def __init__(self, console: Screen) -> None:
        self._console = console
        self._width = max(40, min(console.width, WIDEST_LINE))

    def show(
        self,
        answers: Sequence[PlanAnswer],
        asked: PlanQuestion,
        runs: MeasuredRuns,
        seen: Sighting | None,
    ) -> None:
        plans = [one.plan for one in answers]
        chosen = best(plans)
        answer = next(one for one in answers if one.plan is chosen)
        self._say(_heading(chosen, asked, runs))
        self._console.print()
        self._table(plans)
        gain = gains(plans)
        if gain:
            self._say(f"{gain}.")
        self._flags(chosen, others=len(plans) > 1)
        if chosen.fits:
            counted = asked.settings.version >= GRAPHS_COUNT_FROM
            told = memory_words(chosen, graphs_counted=counted)
            self._part("Memory", [told, block_words(chosen)])
        if answer.headroom:
            self._part("Rate", [*rate_words(answer.headroom), *enough_words(answers, answer)])
        self._part("Users", chain_words(answer.chain) if answer.chain else [])
        self._part("Cost", cost_words(answer.cost) if answer.cost else [])
        self._part("The server", host_words(answers, seen.name) if seen else [])
        self._notes(plans, chosen, runs)

    def _table(self, plans: Sequence[Plan]) -> None:
        """Without the columns of which nothing is known."""
        rows = [_row(one) for one in plans]
        kept = [
            place
            for place in range(len(COLUMNS))
            if place < ALWAYS or any(row[place] != UNKNOWN for row in rows)
        ]
        columns = [COLUMNS[place] for place in kept]
        cells = [[row[place] for place in kept] for row in rows]
        self._console.table(columns, cells)

    def _say(self, text: str, indent: str = "", then: str = "") -> None:
        for line in textwrap.wrap(
            text, self._width, initial_indent=indent, subsequent_indent=then or indent,
            break_long_words=False, break_on_hyphens=False,
        ):  # fmt: skip
            self._console.print(Text(line), soft_wrap=True)

    def _title(self, text: str) -> None:
        self._console.print()
        self._console.print(Text(text, style="bold"))

    def _part(self, title: str, lines: Iterable[str]) -> None:
        told = list(lines)
        if told:
            self._title(title)
        for line in told:
            self._say(line)

    def _flags(self, chosen: Plan, *, others: bool) -> None:
        more = " (another's: --quantization NAME)" if others else ""
        self._title(f"Flags for {chosen.quantization}{more}")
        if not chosen.fits:
            self._say("None: it does not fit; the notes say what would help")
            return
        for one in chosen.advice:
            self._console.print(Text(f"--{one.flag} {one.value}"))
            self._say(one.why, indent="    ")

    def _notes(self, plans: Sequence[Plan], chosen: Plan, runs: MeasuredRuns) -> None:
        self._title("What this rests on")
        for note in (*chosen.notes, *runs.notes):
            self._say(f"- {note}", then="  ")
        for other in plans:
            # what is alike for all stands above; `--json` has each one's own
            told = () if other.fits else other.notes
            for note in told:
                if other is not chosen and note not in chosen.notes:
                    self._say(f"- {other.quantization}: {note}", then="  ")


def _heading(one: Plan, asked: PlanQuestion, runs: MeasuredRuns) -> str:
    count = f"{one.gpus} x " if one.gpus > 1 else ""
    load = asked.load
    lengths = tokens_words(one.request_tokens)
    if load.prompt_tokens is not None and load.output_tokens is not None:
        lengths += (
            f" ({_short(load.prompt_tokens)} of prompt, {_short(load.output_tokens)} of answer)"
        )
    version = ".".join(map(str, asked.settings.version))
    sources = dict.fromkeys(filter(None, (load.told, *runs.told)))
    told = f"; {', '.join(sources)}" if sources else ""
    return f"{one.model} on {count}{one.gpu} with {one.memory_gib or 0:.1f} GiB, vLLM {version}; requests of {lengths}{told}"


def _short(tokens: float) -> str:
    return tokens_words(tokens).removesuffix(" tokens")


def _row(one: Plan) -> list[str]:
    if not one.fits:
        return [one.quantization, f"{one.weights_gib:.1f}", "does not fit", *[UNKNOWN] * 4]
    return [
        one.quantization,
        f"{one.weights_gib:.1f}",
        f"{one.kv_budget_gib:.1f}",
        f"{one.kv_cache_tokens:,}",
        f"{one.max_concurrency:,}",
        UNKNOWN if one.requests_per_s is None else digits(one.requests_per_s),
        UNKNOWN if one.cost_per_million_tokens is None else money(one.cost_per_million_tokens),
    ]


# --- Sentences ----------------------------------------------------------------------------------


def memory_words(one: Plan, *, graphs_counted: bool) -> str:
    """Where one engine's memory goes."""
    may_use = (one.memory_gib or 0.0) * (one.gpu_memory_utilization or 0.0)
    parts = (
        (one.weights_gib, "weights"),
        (one.context_gib or 0.0, "CUDA"),
        # a context of nothing: one figure was told for all three
        (one.activation_gib or 0.0, "activations" if one.context_gib else "beside, as told"),
        (one.graph_gib or 0.0 if graphs_counted else 0.0, "graphs"),
        (one.kv_budget_gib, "KV cache"),
    )
    words = ", ".join(f"{gib:.1f} {name}" for gib, name in parts if gib >= 0.05)
    beside = "" if graphs_counted else f"; {one.graph_gib or 0.0:.1f} for graphs come on top"
    return f"{may_use:.1f} of {one.memory_gib or 0.0:.1f} GiB: {words}{beside}"


def block_words(one: Plan) -> str:
    """Its KV cache in blocks."""
    first, each = one.blocks_to_begin or 0, one.blocks_per_request or 0
    begin = f" ({first:,} to begin, as windows hold more while a prompt is read)"
    return (
        f"{one.num_gpu_blocks or 0:,} blocks of {one.block_size or 0:,} tokens, {each:,} for each request"
        f" of {one.request_tokens:,.0f} tokens{begin if first > each else ''}, one reserved"
    )


def rate_words(found: Headroom) -> Iterator[str]:
    """What a target rate asks for."""
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


def enough_words(answers: Sequence[PlanAnswer], chosen: PlanAnswer) -> Iterator[str]:
    """The first quantization that leaves peaks their room, where the one whose flags are shown does not."""
    if chosen.headroom is None or (chosen.headroom.factor or 0.0) >= SPARE[0]:
        return
    for one in answers:
        factor = one.headroom.factor if one.headroom else None
        if one.plan.fits and factor is not None and factor >= SPARE[0]:
            name = one.plan.quantization
            yield f"{name} on the same machine does {digits(factor)} times the target: --quantization {name} shows its flags"
            return


def chain_words(found: Chain) -> Iterator[str]:
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


def cost_words(found: Cost) -> Iterator[str]:
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


def money(value: float) -> str:
    """In the currency of the prices told: `0.097`, `2.00`."""
    return f"{value:,.2f}" if value >= 1 or value == 0 else f"{value:.2g}"


def host_words(answers: Sequence[PlanAnswer], name: str) -> Iterator[str]:
    """What a server's own figures mean, and which of the plans comes nearest to them."""
    first = next((one.checkup for one in answers if one.checkup), None)
    if first is None:
        return
    yield f"{name}: {first.text}"
    yield from first.notes
    told = [(one.plan.quantization, one.deviation) for one in answers if one.deviation]
    for quantization, found in told:
        yield f"{quantization}: {found.text}"
    if len(told) > 1:
        # those whose estimate is no further off than the best one's; quantizations of one size are alike
        least = min(abs(found.share) for _, found in told)
        nearest = (name for name, found in told if abs(found.share) == least)
        yield f"Nearest: {' and '.join(nearest)}"
