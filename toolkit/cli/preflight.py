"""`toolkit preflight`: say whether this machine is fit to serve, and how to make it so."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.cli.help_page import Command, advanced
from toolkit.cli.options import MODEL, QUANTIZATION, SIZE, json_option
from toolkit.cli.output import print_json
from toolkit.errors import ToolkitError
from toolkit.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toolkit.plan.model_files import KnownModel
    from toolkit.serving.preflight.check import Check, Needs

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command("preflight", cls=Command, short_help="Say whether this machine is fit to serve.")
@click.option("--model", type=MODEL, help="Model to be served: checks room for its weights.")
@click.option(
    "--port",
    "ports",
    type=click.IntRange(1, 65_535),
    multiple=True,
    default=(8000,),
    help="Port to listen on; may be repeated.",
)
@advanced(
    "--host",
    metavar="ADDRESS",
    default="0.0.0.0",  # noqa: S104 (asked about, not bound)
    help="Address to listen on.",
)
@click.option(
    "--users",
    "--for",
    type=click.IntRange(1, 100_000),
    default=256,
    help="Simultaneous clients.",
)
@advanced("--weights", type=SIZE, help="Size of the model's files, where it is not known.")
@advanced("--quantization", type=QUANTIZATION, help="As in `toolkit plan`: fp8, awq ...")
@advanced(
    "-tp",
    "--tensor-parallel-size",
    "--tp",
    "tp",
    type=click.IntRange(1),
    default=1,
    help="GPUs that share the weights.",
)
@advanced(
    "--disk",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory for models.  [default: Hugging Face's cache]",
)
@advanced("--vllm", metavar="COMMAND", default="vllm", help="The command that starts vLLM.")
@click.option("--cpu", is_flag=True, help="Serve on the CPU.")
@click.option("--sim", is_flag=True, help="Serve with the simulator: neither GPU nor vLLM.")
@click.option("--fix", is_flag=True, help="Apply the safe fixes, then check again.")
@json_option("check")
def command(
    *,
    model: str | None,
    ports: tuple[int, ...],
    host: str,
    users: int,
    weights: int | None,
    quantization: str | None,
    tp: int,
    disk: Path | None,
    vllm: str,
    cpu: bool,
    sim: bool,
    fix: bool,
    as_json: bool,
) -> None:
    """Check what serving may fail on, before it does: open files, disk, memory and
    /dev/shm, ports, the kernel's limits for connections, GPUs, vLLM and the CUDA it was built for,
    cores and clock. Each line says what was found and why it matters; below it are the
    commands to paste that fix it. Nothing is changed without --fix, and no other machine is contacted.

    \b
      toolkit preflight
      toolkit preflight --model Qwen/Qwen2.5-7B-Instruct --port 8000 --port 8001 \\
          --users 500
    \f
    \b
      toolkit preflight --model ./my-model --cpu
      toolkit preflight --model Qwen2.5-7B --quantization fp8 -tp 2
      toolkit preflight --fix
      toolkit preflight --json

    --fix does only what is safe: more open files for what it starts, files of killed servers
    in /dev/shm, GPUs that stay awake (as root). It says what it did and what it left to you.

    Exits with 1 when a check fails; a machine with warnings serves.
    """
    from toolkit.cli.waiting import waiting_for
    from toolkit.serving.preflight.check import Needs
    from toolkit.serving.preflight.checks import checks
    from toolkit.serving.preflight.disk import with_weights

    needs = Needs(
        model=model,
        ports=ports,
        host=host,
        users=users,
        disk_path=None if disk is None else str(disk),
        gpu=not (cpu or sim),
        vllm=None if sim else vllm,
    )
    if sim:
        # it downloads nothing, unless somebody rehearses a model's download
        needs = replace(needs, disk_bytes=weights if weights or model or disk else 0)
    elif weights:
        needs = with_weights(needs, weights, of_gpu=-(-weights // tp))
    elif model is not None:
        from toolkit.plan.catalog import model_of

        try:
            known = model_of(model)
        except ToolkitError as error:
            reason = f"({error.message}): give it by --weights"
            click.echo(f"The size of `{model}` is not known {reason}", err=True)
        else:
            needs = with_model(needs, known, quantization, tp)

    with waiting_for("Looking"):
        found = checks(needs)
    repairs: dict[str, tuple[bool, str]] = {}
    """By the check's name: whether it was mended, and what was done."""
    if fix:
        with waiting_for("Fixing"):
            for check in found:
                if check.status != "ok" and check.repair is not None:
                    repairs[check.check] = check.repair()
                elif check.status != "ok":
                    hint = f"left to you: {check.fix}" if check.fix else None
                    repairs[check.check] = (False, hint or "no command helps from here")
            # the shell's limit of open files stays as it is, whatever this process lifts for itself
            found = (found[0], *checks(needs)[1:])

    if as_json:
        for check in found:
            row = {name: getattr(check, name) for name in ("check", "status", "why", "fix")}
            if check.check in repairs:
                row["fixed"], row["repair"] = repairs[check.check]
            print_json(row)
    else:
        _print_table(found, model or "a model", users)
    for name, (is_done, text) in repairs.items():
        click.echo(f"{'Fixed' if is_done else 'Not fixed'}: {name}: {text}", err=True)
    if any(check.status == "fail" for check in found):
        sys.exit(1)


def with_model(needs: "Needs", known: "KnownModel", quantization: str | None, tp: int) -> "Needs":
    """With the room that a model's weights take. Raises ToolkitError for a quantization that the planner does not know."""
    from toolkit.plan.weights import weights_bytes
    from toolkit.serving.preflight.disk import with_weights

    return with_weights(
        needs,
        weights_bytes(known.shape, quantization, on_disk=known.on_disk),
        of_gpu=weights_bytes(known.shape, quantization, tp=tp, on_disk=known.on_disk),
    )


def _print_table(found: "Sequence[Check]", what: str, users: int) -> None:
    """What was found, and below it the commands that mend it."""
    from rich.text import Text

    from toolkit.report.tables import Column, screen

    console = screen()
    columns = [
        Column("", lambda check: Text(check.status, style=COLOURS[check.status])),
        Column("check", lambda check: check.check),
        Column("what was found, and why it matters", lambda check: check.why),
    ]
    console.records(columns, found)
    console.print()
    # commands stand alone on their lines, whole, so that they can be pasted
    fixes: dict[str, list[str]] = {}
    for check in found:
        if check.status != "ok" and check.fix:
            fixes.setdefault(check.fix, []).append(check.check)
    if fixes:
        click.echo("To fix it, paste:\n")
        for line, names in fixes.items():
            click.echo(f"  # {', '.join(names)}\n  {line}")
        click.echo()
    ok, warned, failed = (sum(each.status == state for each in found) for state in COLOURS)
    fit = f"not fit to serve {what}" if failed else f"fit to serve {what} to {users:,} users"
    click.echo(f"{ok} ok, {counted(warned, 'warning')}, {failed} failed: {fit}.")
