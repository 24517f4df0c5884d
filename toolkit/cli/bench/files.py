"""What `toolkit bench --csv` and `--html` write: the figures of every host, of a sweep of every level. Text only: the verb writes it."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import asdict

from toolkit.bench.health import Fitness
from toolkit.bench.plan import BenchPlan
from toolkit.bench.random_prompts import read_lengths
from toolkit.bench.results import Result
from toolkit.bench.summary import HostSummary
from toolkit.cli.bench.table import (
    AT_ONCE,
    FIGURES,
    GOOD,
    GOODPUT,
    HOST,
    LEGEND,
    OF_A_LEVEL,
    VERDICTS,
    fastest,
    machine_sentence,
    sweep_sentence,
    why_sentences,
)
from toolkit.report.html import Markup, tag
from toolkit.report.page import document, notes_list, rows_table
from toolkit.report.tables import Column
from toolkit.safe_text import spreadsheet_cell
from toolkit.units import counted, latency, per_second, span

Figure = Callable[[HostSummary], float | None]
BARS: tuple[tuple[str, Figure, Callable[[float | None], str]], ...] = (
    ("E2E p50", lambda one: one.e2e_p50_ms, latency),
    ("Requests/s", lambda one: one.rps, per_second),
)
"""What is drawn: title, figure, and how it is written."""


def csv_text(judged: Sequence[Result]) -> str:
    """A line a host, of a sweep a line a level, with the keys of `--json` as columns; verdicts and errors as words, none a formula."""
    text = io.StringIO()
    rows = []
    for result in judged:
        for one in result.levels or (result.summary,):
            row = asdict(one)
            row["verdicts"] = " ".join(verdict.code for verdict in result.summary.verdicts)
            row["tied_with"] = " ".join(result.summary.tied_with)
            row["error_kinds"] = " ".join(f"{kind}={n}" for kind, n in one.error_kinds.items())
            rows.append({key: spreadsheet_cell(value) for key, value in row.items()})
    table = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def bench_page(judged: Sequence[Result], plan: BenchPlan, fitness: Fitness, profile: str) -> str:
    """The whole page: figures and verdicts, two plots, of a sweep its levels, and what the figures are."""
    hosts = [result.summary for result in judged]
    sweeps = [result for result in judged if result.levels]
    good = [GOOD, GOODPUT] if any(one.good_share is not None for one in hosts) else []
    # in sight on any screen
    columns = [HOST, VERDICTS, *([AT_ONCE] if sweeps else []), *FIGURES.values(), *good]
    first = fastest(hosts)
    prompts = f"the prompts of `{profile}`" if plan.input_len is None else "random prompts"
    if plan.input_len:
        prompts += f" of {read_lengths(plan.input_len)}"
    if plan.tokenizer:
        prompts += f" by `{plan.tokenizer}`"
    if plan.output_len:
        prompts += f", answers of {read_lengths(plan.output_len)}"
    many = "" if plan.requests is None else f"{counted(plan.requests, 'request')} to each host, "
    how = f"{many}{plan.rate:g} a second" if plan.rate else f"{many}{plan.concurrency:,} at once"
    if plan.levels:
        how = f"levels of {', '.join(map(str, plan.levels))} at once"
    if plan.duration_s is not None:
        how += f", for {span(plan.duration_s)}"
    sections = (
        tag("h2", "Figures"),
        _table(columns, hosts),
        [(tag("h2", title), _bars(hosts, of, write)) for title, of, write in BARS],
        [
            (
                tag("h2", f"Levels of {each.summary.name}"),
                _table([AT_ONCE, *(FIGURES[key] for key in OF_A_LEVEL), *good[:1]], each.levels),
                tag("p", sweep_sentence(each)),
            )
            for each in sweeps
        ],
        tag("h2", "Evidence"),
        notes_list(
            [f"{title}: {name}: {why}" for name, title, why in why_sentences(hosts)],
            "Nothing was found that explains a host's speed but its speed.",
        ),
    )
    return document(
        f"Bench of {counted(len(hosts), 'host')}",
        heading=f"Bench of {counted(len(hosts), 'host')}",
        found=first or "No host is fastest for sure",
        about=f"{plan.endpoint}, {prompts}; {how}",
        sections=sections,
        notes=[line for line in (machine_sentence(fitness), LEGEND) if line],
        no_notes="",
    )


def _table(columns: Sequence[Column], records: Sequence[HostSummary]) -> Markup:
    titles = [(column.title, "right" if column.right else None) for column in columns]
    rows = [[str(column.cell(record)) for column in columns] for record in records]
    return rows_table(titles, rows)


def _bars(hosts: Sequence[HostSummary], of: Figure, write: Callable[[float | None], str]) -> Markup:
    """A lying bar a host, with its name and its figure above."""
    longest = max((of(one) or 0.0 for one in hosts), default=0.0) or 1.0
    bars = []
    for one in hosts:
        value = of(one)
        words = tag("span", one.name, class_="name"), tag("span", write(value), class_="what")
        bar = tag("span", style=f"width:{100 * (value or 0.0) / longest:.2f}%")
        bars.append(tag("div", *words, tag("div", bar, class_="rail")))
    return tag("div", bars, class_="bars")
