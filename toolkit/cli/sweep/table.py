"""How `toolkit sweep` shows what it found, and what it would do: tables for people, or JSON lines."""

from collections.abc import Sequence
from dataclasses import asdict

from rich.text import Text

from toolkit.cli.output import print_json, say
from toolkit.cli.sweep.plan import impossible_in
from toolkit.report.tables import Column, screen
from toolkit.tuning.figures import figure, meant, metric
from toolkit.tuning.sweep import estimate_s
from toolkit.tuning.sweep_file import SweepPlan, foreseen
from toolkit.tuning.sweep_table import (
    Moved,
    SweepRow,
    by_stage,
    difference,
    known_of,
    lever,
    progression,
)
from toolkit.units import span


def print_objects(plan: SweepPlan, rows: Sequence[SweepRow], levers: Sequence[Moved]) -> None:
    """An object for each configuration, and a last one about all of them."""
    for row in rows:
        print_json(asdict(row))
    name = plan.look_at[0]
    lines = [progression(stage, name) for stage in by_stage(rows)]
    summary = {
        "sweep": plan.name,
        "metric": name,
        "progression": [line for line in lines if line],
        "levers": [asdict(one) for one in levers],
    }
    print_json({"summary": summary})


def print_table(plan: SweepPlan, rows: Sequence[SweepRow], levers: Sequence[Moved]) -> None:
    """A table for each stage, and a sentence for each lever."""
    console = screen()
    names = known_of(plan.look_at, rows)
    columns = [
        Column(title="configuration", widest=40),
        Column(title="blocks", right=True, spare=1),
    ]
    for place, name in enumerate(names):
        spare = 2 * place
        columns.append(Column(title=meant(name).title, right=True, spare=spare))
        columns.append(Column(title="against the first", spare=spare and spare + 1))
    columns.append(Column(title="what became of it", widest=60))
    for mine in by_stage(rows):
        cells: list[list[str | Text]] = []
        for row in mine:
            cells.append([row.name, str(row.blocks)])
            for name in names:
                compared = row.of(name)
                cells[-1].append(figure(name, row.figures.get(name)))
                cells[-1].append(difference(compared) if compared else "")
            cells[-1].append(row.became)
        console.table(columns, cells)
        line = progression(mine, plan.look_at[0])
        if line:
            console.print(Text(f"\n{line}"))
        console.print()
    for one in levers:
        console.print(Text(lever(one, plan.look_at[0])))
    for note in dict.fromkeys(f"{row.name}: {note}" for row in rows for note in row.notes):
        say(f"Note: {note}", err=True)


def print_steps(plan: SweepPlan, *, sim: bool, as_json: bool) -> None:
    """What would be done: each configuration with what serves it, the load, and the time that all takes."""
    impossible = impossible_in(plan, sim=sim)
    stages = foreseen(plan)
    if as_json:
        for one in (one for stage in stages for one in stage):
            print_json(
                {
                    "name": one.name,
                    "stage": one.stage,
                    "lever": one.lever,
                    "value": one.value,
                    "served_by": one.serving.kind(sim=sim),
                    "skipped": impossible(one),
                    "serving": asdict(one.serving),
                }
            )
        return

    console = screen()
    if plan.summary:
        console.print(Text(plan.summary))
    columns = [
        Column(title="configuration"),
        Column(title="served by", widest=110),
        Column(title="skipped, as"),
    ]
    for number, stage in enumerate(stages):
        if number and plan.configurations:
            console.print(
                f"\nThen around the best of them ({stages[0][0].name} stands for it here):"
            )
        rows = []
        for one in stage:
            serving, kind = one.serving, one.serving.kind(sim=sim)
            if kind == "sim":
                words = [f"{name}={value}" for name, value in serving.settings]
                words = ["toolkit sim serve --personality", serving.sim or "", *words]
            elif kind == "url":
                words = [serving.url or ""]
            else:
                words = ["toolkit serve", serving.model or "--tiny"]
                for name, value in serving.flags:
                    if isinstance(value, bool):
                        words.append(f"--{name}" if value else f"--no-{name}")
                    else:
                        words.append(f"--{name} {value}")
            rows.append([one.name, " ".join(words), impossible(one) or ""])
        console.table(columns, rows)

    load = plan.load
    blocks = f"{plan.blocks} interleaved blocks" if plan.blocks > 1 else "one block"
    users = f"{load.users} user{'s' * (load.users != 1)}"
    rate = f" at {load.rate:g} request{'s' * (load.rate != 1)} a second" if load.rate else ""
    lines = [
        (
            f"\nEach in {blocks}: served anew, warmed, then loaded by {users}{rate} for {span(load.duration_s)} "
            f"with the prompts of `{plan.profile}`; the first {load.settle_s:g} s do not count."
        )
    ]
    if plan.asking:
        lines.append(f"After each load {plan.asking.requests} requests for JSON.")
    takes_s = [estimate_s(plan, stage, sim=sim) for stage in stages]
    known_s = [each for each in takes_s if each is not None]
    if len(known_s) == len(takes_s):
        lines.append(f"That takes about {span(sum(known_s))}, beside the warm-ups.")
    else:
        count = sum(map(len, stages)) * plan.blocks
        lines.append(
            f"That is {span(count * load.duration_s)} of load, and {count} starts whose length nobody knows yet: "
            'say it in the file, e.g., `start = "3m"` below [load].'
        )
    names = [found.title for name in plan.look_at if (found := metric(name))]
    lines.append(f"Look at: {', '.join(names)}.")
    for line in lines:
        console.print(Text(line))
