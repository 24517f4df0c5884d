"""A plan for the terminal, or as JSON lines: what fits in each quantization, then the flags and what they rest on."""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from rich.text import Text

from toolkit.cli.output import print_json
from toolkit.cli.plan.answer import PlanAnswer
from toolkit.cli.plan.measured import MeasuredRuns
from toolkit.cli.plan.options import PlanOptions
from toolkit.cli.plan.words import (
    block_words,
    chain_words,
    cost_words,
    enough_words,
    host_words,
    memory_words,
    money,
    rate_words,
)
from toolkit.plan.advice import tokens_words
from toolkit.plan.memory import GRAPHS_COUNT_FROM
from toolkit.plan.planner import PlanQuestion, best, gains
from toolkit.plan.result import Plan
from toolkit.records import Sighting
from toolkit.report.tables import Column, Screen, screen
from toolkit.units import UNKNOWN, digits

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
