"""`toolkit preflight`: say whether this machine is fit to serve, and how to make it so."""

import sys
from pathlib import Path
from typing import Any

import click

from toolkit.cli import suggestions
from toolkit.cli.options import SIZE

EXAMPLES = """
Look at everything that serving stumbles over, before it does: open files, disk, memory and
/dev/shm, ports, the kernel's limits for connections, GPUs, vLLM and the CUDA it was built for,
cores and clock. Each line says what was found and why it matters; below stand the commands
that fix it, to be pasted. Nothing is changed without --fix, and nobody else is contacted.

\b
  toolkit preflight
  toolkit preflight --model Qwen/Qwen2.5-7B-Instruct --port 8000 --port 8001 \\
      --users 500
  toolkit preflight --model ./my-model --cpu
  toolkit preflight --model Qwen2.5-7B --quantization fp8 --tp 2
  toolkit preflight --fix
  toolkit preflight --json

--fix does only what needs no risk: more open files for what it starts, files of killed servers
in /dev/shm, GPUs that stay awake (as root). It says what it did and what it left to you.

Exits with 1 when a check fails; a machine with warnings serves.
"""


@click.command("preflight", help=EXAMPLES, short_help="Say whether this machine is fit to serve.")
@click.option(
    "--model",
    metavar="MODEL",
    shell_complete=suggestions.model,
    help="What will be served: its weights need room.",
)
@click.option(
    "--port",
    "ports",
    type=click.IntRange(1, 65_535),
    multiple=True,
    default=(8000,),
    show_default="8000",
    help="To be listened on; may be repeated.",
)
@click.option(
    "--host",
    metavar="ADDRESS",
    default="0.0.0.0",  # noqa: S104 (asked about, not bound)
    show_default=True,
    help="Where clients will be taken.",
)
@click.option(
    "--users",
    "--for",
    type=click.IntRange(1, 100_000),
    default=256,
    show_default=True,
    metavar="N",
    help="Clients at the same time.",
)
@click.option("--weights", type=SIZE, help="Size of the model's files, where it is not known.")
@click.option(
    "--quantization",
    metavar="NAME",
    shell_complete=suggestions.quantization,
    help="As in `toolkit plan`: fp8, awq ...",
)
@click.option(
    "--tp",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="GPUs that share the weights.",
)
@click.option(
    "--disk",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where models go.  [default: HF's cache]",
)
@click.option(
    "--vllm",
    metavar="COMMAND",
    default="vllm",
    show_default=True,
    help="The command that starts vLLM.",
)
@click.option("--cpu", is_flag=True, help="It will be served by the CPU.")
@click.option("--sim", is_flag=True, help="The simulator will serve: neither GPU nor vLLM.")
@click.option("--fix", is_flag=True, help="Do what needs no risk, then look again.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a check.")
def command(*, fix: bool, as_json: bool, **options: Any) -> None:
    """Look at this machine (the help text is EXAMPLES)."""
    from toolkit.cli.preflight.run import needs_of, show

    found = show(needs_of(**options), fix=fix, as_json=as_json)
    if any(each.status == "fail" for each in found):
        sys.exit(1)
