"""How `toolkit sweep` shows what it found, and what it would do: tables for people, or JSON lines."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace

from rich.text import Text

from toolkit.cli.output import print_json, say
from toolkit.cli.sweep.plan import impossible_in
from toolkit.deploy.site import holds_secret
from toolkit.report.tables import Column, screen
from toolkit.tuning.figures import figure, metric
from toolkit.tuning.sweep import estimate_s
from toolkit.tuning.sweep_file import Configuration, Serving, SweepPlan, foreseen
from toolkit.tuning.sweep_table import (
    Moved,
    SweepRow,
    by_stage,
    difference_in_words,
    known_of,
    lever_in_words,
    progression,
)
from toolkit.units import span


def print_objects(plan: SweepPlan, rows: Sequence[SweepRow], levers: Sequence[Moved]) -> None:
    """An object for each configuration, and a last one about all of them."""
    for row in rows:
        print_json(row.as_json())
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
        columns.append(Column(title=metric(name).title, right=True, spare=spare))
        columns.append(
            Column(title=f"{metric(name).title} against the first", spare=spare and spare + 1)
        )
    columns.append(Column(title="what became of it", widest=60))
    for stage in by_stage(rows):
        cells: list[list[str | Text]] = []
        for row in stage:
            pairs = [
                (figure(name, row.figure(name)), difference_in_words(row.of(name)))
                for name in names
            ]
            words = [word for pair in pairs for word in pair]
            cells.append([row.name, str(len(row.blocks)), *words, row.became])
        console.table(columns, cells)
        line = progression(stage, plan.look_at[0])
        if line:
            console.print(Text(f"\n{line}"))
        console.print()
    for one in levers:
        console.print(Text(lever_in_words(one, plan.look_at[0])))
    for note in dict.fromkeys(f"{row.name}: {note}" for row in rows for note in row.notes):
        say(f"Note: {note}", err=True)


def print_recipes(plans: Sequence[SweepPlan], *, as_json: bool) -> None:
    """The catalog's."""
    if as_json:
        for plan in plans:
            print_json({"name": plan.name, "summary": plan.summary, "look_at": plan.look_at})
        return
    columns = [Column(title="recipe"), Column(title="what it tries")]
    screen().table(columns, [[plan.name, plan.summary] for plan in plans])


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
                    "command": _command(one, sim=sim),
                    "skipped": impossible(one),
                    "serving": asdict(replace(one.serving, env=_shown_env(one.serving))),
                }
            )
        return

    console = screen()
    if plan.summary:
        console.print(Text(plan.summary))
    for number, stage in enumerate(stages):
        if number and plan.configurations:
            console.print(
                f"\nThen around the best of them ({stages[0][0].name} is shown in its place):"
            )
        for one in stage:
            reason = impossible(one)
            skipped = f"  skipped: {reason}" if reason else ""
            console.print(Text.assemble("\n", (one.name, "bold"), skipped))
            # whole, however long: folded it could not be pasted
            command = _command(one, sim=sim) or f"served at {one.serving.url}"
            console.print(Text(f"  {command}"), soft_wrap=True)

    load = plan.load
    lines = [
        (
            f"\nEach in {plan.blocks_in_words}: served anew, warmed, then loaded by {plan.users_in_words} for "
            f"{span(load.duration_s)} with the prompts of `{plan.profile}`; the first {load.settle_s:g} s do not count."
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
            f"That is {span(count * load.duration_s)} of load, and {count} starts of unknown length: "
            'say it in the file, e.g., `start = "3m"` below [load].'
        )
    if any(one.serving.kind(sim=sim) == "serve" for stage in stages for one in stage):
        lines.append(
            "Pasted by itself, each command serves behind the proxy; the sweep serves without it, because its cache would answer for every configuration."
        )
    lines.append(f"Look at: {', '.join(metric(name).title for name in plan.look_at)}.")
    for line in lines:
        console.print(Text(line))


def _command(one: Configuration, *, sim: bool) -> str | None:
    """The command that serves it, to be pasted; None: somebody else serves it."""
    serving, kind = one.serving, one.serving.kind(sim=sim)
    if kind == "url":
        return None
    if kind == "sim":
        words = ["toolkit", "sim", "serve", "--personality", serving.sim or ""]
        pairs: Sequence[tuple[str, str | bool]] = serving.settings
    else:
        words = ["toolkit", "serve", serving.model or "--tiny"]
        for name in ("served_name", "gpus", "vllm"):
            if (value := getattr(serving, name)) is not None:
                option = "served-model-name" if name == "served_name" else name
                words += [f"--{option}", value]
        pairs = serving.flags
    for name, value in pairs:
        text = str(value).lower() if isinstance(value, bool) else value
        words += ["--set", f"{name}={text}"]
    before = [
        # the shell's own stands for a secret
        f'{name}="${name}"' if holds_secret(name, value) else f"{name}={shlex.quote(value)}"
        for name, value in serving.env
        if kind == "serve"
    ]
    return " ".join([*before, shlex.join(words)])


def _shown_env(serving: Serving) -> tuple[tuple[str, str], ...]:
    """Its variables, with `$NAME` for the value of a secret."""
    return tuple(
        (name, f"${name}" if holds_secret(name, value) else value) for name, value in serving.env
    )
