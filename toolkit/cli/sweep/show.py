"""How `toolkit sweep` shows what it found, and what it would do."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.text import Text

from toolkit.cli.output import print_json, say
from toolkit.cli.sweep.options import SweepOptions
from toolkit.errors import ToolkitError
from toolkit.report.tables import Column, screen
from toolkit.tuning.figures import meant, metric
from toolkit.tuning.sweep import estimate_s
from toolkit.tuning.sweep_file import Configuration, SweepPlan, foreseen
from toolkit.tuning.sweep_table import (
    MeasuredConfiguration,
    Moved,
    SweepRow,
    difference,
    figure,
    lever,
    moved,
    progression,
    table,
)
from toolkit.units import span


def show(
    plan: SweepPlan, known: Sequence[MeasuredConfiguration], options: SweepOptions
) -> tuple[SweepRow, ...]:
    """Print the table, or JSON lines, and write what else is asked for; the rows."""
    rows = table(known, plan.look_at)
    levers = moved(known, plan.look_at[0])
    if options.as_json:
        print_objects(plan, rows, levers)
    else:
        _print(plan, rows, levers)
    if options.chart:
        from toolkit.tuning.sweep_chart import draw

        _written(lambda path: draw(plan, rows, path), options.chart, "Chart")
    if options.html:
        from toolkit.tuning.pages import sweep_page

        text = sweep_page(plan, rows, levers)
        _written(lambda path: _write(path, text), options.html, "Page")
    return rows


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _written(write: Callable[[Path], None], path: Path, what: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
    except OSError as error:
        reason = (error.strerror or str(error) or "no reason given").lower()
        raise ToolkitError(f"`{path}` cannot be written: {reason}", "Give another file") from error
    click.echo(f"{what}: {path}", err=True)


def print_objects(plan: SweepPlan, rows: Sequence[SweepRow], levers: Sequence[Moved]) -> None:
    """An object for each configuration, and a last one about all of them."""
    for row in rows:
        told = asdict(row)
        print_json({**told, "compared": [asdict(each) for each in row.compared]})
    name = plan.look_at[0]
    stages = sorted({row.stage for row in rows})
    lines = [progression([row for row in rows if row.stage == stage], name) for stage in stages]
    summary = {
        "sweep": plan.name,
        "metric": name,
        "progression": [line for line in lines if line],
        "levers": [asdict(one) for one in levers],
    }
    print_json({"summary": summary})


def _print(plan: SweepPlan, rows: Sequence[SweepRow], levers: Sequence[Moved]) -> None:
    console = screen()
    names = [
        name for name in plan.look_at if any(row.figures.get(name) is not None for row in rows)
    ]
    for stage in sorted({row.stage for row in rows}):
        mine = [row for row in rows if row.stage == stage]
        columns = [
            Column(title="configuration", widest=40),
            Column(title="blocks", right=True, spare=1),
        ]
        for place, name in enumerate(names):
            spare = 2 * place if place else 0
            columns.append(Column(title=meant(name).title, right=True, spare=spare))
            columns.append(Column(title="against the first", spare=spare and spare + 1))
        columns.append(Column(title="what became of it", spare=0, widest=60))
        console.table(columns, [_cells(row, names) for row in mine])
        line = progression(mine, plan.look_at[0])
        if line:
            console.print(Text(f"\n{line}"))
        console.print()
    for one in levers:
        console.print(Text(lever(one, plan.look_at[0])))
    for note in dict.fromkeys(f"{row.name}: {note}" for row in rows for note in row.notes):
        say(f"Note: {note}", err=True)


def _cells(row: SweepRow, names: Sequence[str]) -> list[str | Text]:
    cells: list[str | Text] = [row.name, str(row.blocks)]
    for name in names:
        compared = row.of(name)
        cells += [figure(name, row.figures.get(name)), difference(compared) if compared else ""]
    return [*cells, row.status if not row.cause else f"{row.status}: {row.cause}"]


# --- what would be done --------------------------------------------------------------------------------


def show_steps(plan: SweepPlan, options: SweepOptions) -> None:
    """Name each configuration with what serves it, the load, and the time that all takes."""
    from toolkit.cli.sweep.tools import impossible_in

    impossible = impossible_in(plan, sim=options.sim)
    stages = foreseen(plan)
    if options.as_json:
        for one in (one for stage in stages for one in stage):
            print_json(
                {
                    "name": one.name,
                    "stage": one.stage,
                    "lever": one.lever,
                    "value": one.value,
                    "served_by": one.serving.kind(sim=options.sim),
                    "skipped": impossible(one),
                    "serving": asdict(one.serving),
                }
            )
        return
    console = screen()
    if plan.summary:
        console.print(Text(plan.summary))
    for number, stage in enumerate(stages):
        if number and plan.configurations:
            console.print(
                f"\nThen around the best of them ({stages[0][0].name} stands for it here):"
            )
        rows: list[list[str | Text]] = [
            [one.name, _served(one.serving.kind(sim=options.sim), one), impossible(one) or ""]
            for one in stage
        ]
        titles = [Column(title="configuration"), Column(title="served by", widest=110)]
        console.table([*titles, Column(title="skipped, as")], rows)
    for line in _load(plan, stages, sim=options.sim):
        console.print(Text(line))


def _served(kind: str | None, one: Configuration) -> str:
    serving = one.serving
    if kind == "sim":
        told = [f"{name}={value}" for name, value in serving.settings]
        return " ".join(["toolkit sim serve --personality", serving.sim or "", *told])
    if kind == "url":
        return serving.url or ""
    flags = [_flag(name, value) for name, value in serving.flags]
    return " ".join(["toolkit serve", serving.model or "--tiny", *flags])


def _flag(name: str, value: str | bool) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name} {value}"


def _load(plan: SweepPlan, stages: Sequence[Sequence[Configuration]], *, sim: bool) -> list[str]:
    load = plan.load
    rate = f" at {load.rate:g} requests a second" if load.rate else ""
    prompts = f"the prompts of `{plan.profile}`"
    told = f"{load.users} users{rate} for {span(load.duration_s)} with {prompts}"
    how = f"served anew, warmed, then loaded by {told}; the first {load.settle_s:g} s do not count."
    blocks = f"{plan.blocks} interleaved blocks" if plan.blocks > 1 else "one block"
    lines = [f"\nEach in {blocks}: {how}"]
    if plan.asking:
        lines.append(f"After each load {plan.asking.requests} requests for JSON.")
    estimate = [estimate_s(plan, stage, sim=sim) for stage in stages]
    if None in estimate:
        count = sum(map(len, stages)) * plan.blocks
        known_s = count * load.duration_s
        lines.append(
            f"That is {span(known_s)} of load, and {count} starts whose length nobody knows yet: "
            'say it in the file, e.g., `start = "3m"` below [load].'
        )
    else:
        lines.append(
            f"That takes about {span(sum(each or 0.0 for each in estimate))}, beside the warm-ups."
        )
    names = [found.title for name in plan.look_at if (found := metric(name))]
    return [*lines, f"Look at: {', '.join(names)}."]
