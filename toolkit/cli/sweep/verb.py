"""`toolkit sweep`: configurations served, warmed and loaded one after the other, and what each lever moved."""

import sys
from pathlib import Path
from typing import Any

import click

from toolkit.cli import suggestions
from toolkit.cli.options import DURATION, database_option
from toolkit.cli.sweep.options import NEWEST, SweepOptions

EXAMPLES = """
Try configurations one after the other: each is served, warmed, loaded from outside with the
evaluator's own profile, and recorded. Models come first, then one lever at a time around the best
of them, or a grid. Blocks are interleaved (A B C, A B C), so that drift is no difference. SWEEP is
a file, or a recipe's name.

\b
  toolkit sweep --list                    the recipes
  toolkit sweep quantizations --dry-run   what would be run, and for how long
  toolkit sweep quantizations --sim --duration 20s
      simulated, on any laptop
  toolkit sweep mine.toml --chart sweep.png --html sweep.html
  toolkit sweep --resume                  go on after a crash or Ctrl-C
  toolkit sweep --show 3f9c2a7b1d04       the table of a sweep that was run

A sweep of your own is TOML: a [base], [[configurations]] and [[levers]] that change it, a [load];
`python -m pydoc toolkit.tuning.sweep_file` prints a whole one.
"""


@click.command(
    "sweep", help=EXAMPLES, short_help="Try configurations: how far does each lever move?"
)
@click.argument("sweep", required=False, metavar="[SWEEP]", shell_complete=suggestions.recipe)
@click.option("--sim", is_flag=True, help="Serve the simulator's stand-ins: no GPU, no model.")
@click.option("--dry-run", is_flag=True, help="Show what would be run; run nothing.")
@click.option("--list", "recipes", is_flag=True, help="Name the recipes of the catalog.")
@click.option(
    "--resume",
    is_flag=False,
    flag_value=NEWEST,
    metavar="[RUN]",
    shell_complete=suggestions.run("sweep"),
    help="Go on with a sweep that was cut off.  [default: the newest]",
)
@click.option(
    "--show",
    metavar="RUN",
    shell_complete=suggestions.run("sweep"),
    help="Print the table of a sweep again; run nothing.",
)
@click.option("--blocks", type=click.IntRange(1, 100), help="Repeats.  [default: the sweep's]")
@click.option("--duration", type=DURATION, help="Of each load.  [default: the sweep's]")
@click.option("--users", type=click.IntRange(min=1), help="Of each load.  [default: the sweep's]")
@click.option(
    "--profile",
    metavar="NAME|FILE",
    shell_complete=suggestions.profile,
    help="Prompts.  [default: the sweep's]",
)
@click.option(
    "--chart",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw it into this .png or .svg file.",
)
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), help="Write table and plots."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object a configuration, and one of all."
)
@database_option
def command(**options: Any) -> None:
    """Run a sweep (the help text is EXAMPLES)."""
    chosen = SweepOptions(**options)
    contradiction = _contradiction(chosen)
    if contradiction:
        raise click.UsageError(contradiction)
    from toolkit.cli.sweep.run import run_sweep

    sys.exit(run_sweep(chosen))


def _contradiction(options: SweepOptions) -> str | None:
    """Say what is missing, or what cannot both be meant."""
    others = (options.sweep, options.resume, options.show, options.recipes or None)
    changes = (options.blocks, options.duration, options.users, options.profile)
    is_changed = any(each is not None for each in changes) or options.sim
    cases = (
        (
            all(each is None for each in others),
            "name a sweep: a file, or a recipe of `toolkit sweep --list`",
        ),
        (
            sum(each is not None for each in others) > 1,
            "a SWEEP to run, --resume, --show and --list are four things; choose one",
        ),
        (
            options.sweep is None and is_changed,
            "--blocks, --duration, --users, --profile and --sim are for a new sweep",
        ),
        (options.dry_run and options.sweep is None, "--dry-run is for a new sweep"),
        (
            options.chart is not None and options.chart.suffix.lower() not in (".png", ".svg"),
            "--chart writes a PNG or an SVG; call it, e.g., `sweep.png`",
        ),
    )
    return next((message for is_so, message in cases if is_so), None)
