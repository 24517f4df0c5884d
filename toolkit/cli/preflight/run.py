"""What `toolkit preflight` asks of the machine, and how it shows what was found: a table and commands to paste, or JSON."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from toolkit.cli.output import print_json
from toolkit.cli.waiting import waiting_for
from toolkit.errors import ToolkitError
from toolkit.serving.preflight.check import Check, Needs
from toolkit.serving.preflight.checks import checks
from toolkit.serving.preflight.disk import expanded, hub, measured
from toolkit.units import counted

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def needs_of(
    *,
    weights: int | None,
    quantization: str | None,
    tp: int,
    disk: Path | None,
    cpu: bool,
    sim: bool,
    vllm: str,
    **plain: Any,
) -> Needs:
    """The needs of one model on this machine; `plain`: the fields of Needs that are options, too."""
    needs = Needs(
        disk_path=None if disk is None else str(disk),
        gpu=not (cpu or sim),
        vllm=None if sim else vllm,
        **plain,
    )
    if sim:
        # it downloads nothing, unless somebody rehearses a model's download
        rehearsed = weights or needs.model or disk
        return replace(needs, disk_bytes=weights if rehearsed else 0)
    return with_weights(needs, weights=weights, quantization=quantization, tp=tp)


def with_weights(
    needs: Needs, *, weights: int | None = None, quantization: str | None = None, tp: int = 1
) -> Needs:
    """Add what the model's weights want of disk, GPU and memory; a model that nobody knows wants only the floor."""
    of_gpu = -(-weights // tp) if weights else None
    if not weights and needs.model is not None:
        from toolkit.plan.catalog import model_of
        from toolkit.plan.weights import weights_bytes, weights_of_gpu

        try:
            known = model_of(needs.model)
        except ToolkitError as error:
            reason = f"({error.message}): give it by --weights"
            click.echo(f"The size of `{needs.model}` is not known {reason}", err=True)
            return needs
        shape, on_disk = known.shape, known.on_disk
        weights = weights_bytes(shape, quantization, on_disk=on_disk)
        of_gpu = weights_of_gpu(shape, quantization, tp=tp, on_disk=on_disk)
    if not weights:
        return needs

    # what is on the disk already: a folder of its own, or the model's part of the Hugging Face cache
    model = needs.model or ""
    to_come = weights
    if model and os.path.isdir(model):  # noqa: PTH112 (Path's own raises behind another user's folder)
        to_come = 0
    elif model:
        cache = expanded(needs.disk_path) if needs.disk_path else hub()
        to_come -= measured(cache / ("models--" + model.replace("/", "--")))[0]
    return replace(
        needs,
        disk_bytes=max(0, to_come),
        gpu_bytes=of_gpu if needs.gpu else None,
        memory_bytes=needs.memory_bytes if needs.gpu else weights,
    )


def show(needs: Needs, *, fix: bool, as_json: bool) -> tuple[Check, ...]:
    """Look, mend if asked, and print what was found."""
    with waiting_for("Looking"):
        found = checks(needs)
    repairs: dict[str, tuple[bool, str]] = {}
    if fix:
        with waiting_for("Fixing"):
            repairs = {each.check: _repaired(each) for each in found if each.status != "ok"}
            again = checks(needs)
        # the shell's limit of open files stays as it is, whatever this process lifts for itself
        found = (found[0], *again[1:])
    if as_json:
        for each in found:
            row = {name: getattr(each, name) for name in ("check", "status", "why", "fix")}
            if each.check in repairs:
                row["fixed"], row["repair"] = repairs[each.check]
            print_json(row)
    else:
        _print_table(found, needs)
    for name, (is_done, text) in repairs.items():
        click.echo(f"{'Fixed' if is_done else 'Not fixed'}: {name}: {text}", err=True)
    return found


def _repaired(check: Check) -> tuple[bool, str]:
    if check.repair is not None:
        return check.repair()
    return False, f"left to you: {check.fix}" if check.fix else "no command helps from here"


def _print_table(found: tuple[Check, ...], needs: Needs) -> None:
    from rich.text import Text

    from toolkit.report.tables import Column, screen

    columns = (
        Column(title=""),
        Column(title="check"),
        Column(title="what was found, and why it matters"),
    )
    rows = [
        (Text(check.status, style=COLOURS[check.status]), check.check, check.why) for check in found
    ]
    console = screen()
    console.table(columns, rows)
    console.print()
    # commands stand alone on their lines, whole, so that they can be pasted
    commands: dict[str, list[str]] = {}
    for check in found:
        if check.status != "ok" and check.fix:
            commands.setdefault(check.fix, []).append(check.check)
    if commands:
        click.echo("To fix it, paste:\n")
        for fix, names in commands.items():
            click.echo(f"  # {', '.join(names)}\n  {fix}")
        click.echo()
    click.echo(conclusion(found, needs))


def conclusion(found: tuple[Check, ...], needs: Needs) -> str:
    """One sentence at the end."""
    counts = {state: sum(check.status == state for check in found) for state in COLOURS}
    warnings = counted(counts["warn"], "warning")
    said = f"{counts['ok']} ok, {warnings}, {counts['fail']} failed"
    what = needs.model or "a model"
    if counts["fail"]:
        return f"{said}: not fit to serve {what}."
    return f"{said}: fit to serve {what} to {needs.users:,} users."
