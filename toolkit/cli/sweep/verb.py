"""`toolkit sweep`: configurations served, warmed and loaded one after the other, and what each lever moved."""

import json
import os
import secrets
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.exit_codes import FAILED, INTERRUPTED
from toolkit.cli.help_page import Command, advanced
from toolkit.cli.inputs import text_of
from toolkit.cli.options import DURATION, PROFILE, SWEEP, database_option, run_word
from toolkit.cli.output import to_stderr, writing
from toolkit.cli.places import command_on
from toolkit.cli.waiting import waiting_for
from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from toolkit.records import Run
    from toolkit.store import Store
    from toolkit.tuning.sweep_file import SweepPlan

NEWEST = "newest"


@click.command(
    "sweep", cls=Command, short_help="Try configurations, and measure what each setting changes."
)
@click.argument("sweep", required=False, metavar="[SWEEP]", type=SWEEP)
@click.option("--sim", is_flag=True, help="Serve the simulator's stand-ins: no GPU, no model.")
@click.option(
    "--dry-run", is_flag=True, help="Show what would be run, with the commands; run nothing."
)
@click.option("--list", "recipes", is_flag=True, help="Name the recipes of the catalog.")
@click.option(
    "--resume",
    is_flag=False,
    flag_value=NEWEST,
    metavar="[RUN]",
    type=run_word("sweep"),
    help="Go on with a sweep that was cut off.  [default: the newest]",
)
@click.option(
    "--show",
    metavar="RUN",
    type=run_word("sweep"),
    help="Print the table of a sweep again; run nothing.",
)
@advanced(
    "--blocks", type=click.IntRange(1, 100), help="Repetitions of each.  [default: the sweep's]"
)
@advanced("--duration", type=DURATION, help="Length of each load.  [default: the sweep's]")
@advanced("--users", type=click.IntRange(min=1), help="Users of each load.  [default: the sweep's]")
@advanced(
    "--profile",
    metavar="NAME|FILE",
    type=PROFILE,
    help="Prompts.  [default: the sweep's]",
)
@click.option(
    "--chart",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the chart to this .png or .svg file.",
)
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), help="Write table and plots."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object per configuration, and a summary.",
)
@database_option
def command(
    sweep: str | None,
    sim: bool,
    dry_run: bool,
    recipes: bool,
    resume: str | None,
    show: str | None,
    blocks: int | None,
    duration: float | None,
    users: int | None,
    profile: str | None,
    chart: Path | None,
    html: Path | None,
    as_json: bool,
    database: Path,
) -> None:
    """Try configurations one after the other: each is served, warmed up, loaded from outside with the
    evaluator's own profile, and recorded. Models come first, then one setting at a time around the best
    of them, or a grid. SWEEP is a file, or a recipe's name.

    \b
      toolkit sweep --list                    the recipes
      toolkit sweep quantizations --dry-run   what would be run, and for how long
      toolkit sweep quantizations --sim --duration 20s
          simulated, on any laptop
      toolkit sweep mine.toml --chart sweep.png --html sweep.html
    \f
    \b
      toolkit sweep --resume                  go on after a crash or Ctrl-C
      toolkit sweep --show 3f9c2a7b1d04       the table of a sweep that was run

    Blocks are interleaved (A B C, A B C), so that drift over time does not count as a difference. A sweep of your own is TOML: a [base], [[configurations]] and [[levers]] that change it, a [load];
    `python -m pydoc toolkit.tuning.sweep_file` prints a whole one.
    """
    wanted = [each for each in (sweep, resume, show, recipes or None) if each is not None]
    is_changed = sim or any(each is not None for each in (blocks, duration, users, profile))
    if not wanted:
        raise click.UsageError("name a sweep: a file, or a recipe of `toolkit sweep --list`")
    if len(wanted) > 1:
        raise click.UsageError(
            "a SWEEP to run, --resume, --show and --list are four things; choose one"
        )
    if sweep is None and is_changed:
        raise click.UsageError(
            "--blocks, --duration, --users, --profile and --sim are for a new sweep"
        )
    if dry_run and sweep is None:
        raise click.UsageError("--dry-run is for a new sweep")
    if chart is not None and chart.suffix.lower() not in (".png", ".svg"):
        raise click.UsageError("--chart writes a PNG or an SVG; call it, e.g., `sweep.png`")

    from toolkit.cli.catalog import shelf
    from toolkit.cli.sweep.table import print_objects, print_recipes, print_steps, print_table
    from toolkit.tuning.sweep_file import read_sweep

    own = shelf("sweeps")
    if recipes:
        plans = [read_sweep(file.read_text("utf-8"), name) for name, file in own.items()]
        print_recipes(plans, as_json=as_json)
        return
    settings: dict[str, Any] = {}
    if sweep is not None:
        hint = f"Recipes: {', '.join(own)}; or name a file, e.g., `mine.toml`"
        settings = {
            "sweep": sweep,
            "text": own[sweep].read_text("utf-8") if sweep in own else text_of(sweep, hint),
            "sim": sim,
            "blocks": blocks,
            "duration_s": duration,
            "users": users,
            # a file is named so that it is found from elsewhere, too
            "profile": str(Path(profile).resolve())
            if profile and Path(profile).is_file()
            else profile,
        }
        plan = _planned(settings)
        _refuse(plan, sim=sim)
        if dry_run:
            print_steps(plan, sim=sim, as_json=as_json)
            return

    from toolkit.cli.children import PARENT_DEATH, TOOLKIT
    from toolkit.cli.signals import signals_raise
    from toolkit.cli.sweep.plan import impossible_in
    from toolkit.records import Run
    from toolkit.store import Store
    from toolkit.tuning.sweep import VERB, Sweep, Tools, begin
    from toolkit.tuning.sweep_table import moved, table

    # begun, resumed or only shown: what is known so far
    opened = Store.open_readonly if show else Store.open_existing if resume else Store.open
    with opened(database) as store:
        if sweep is not None:
            settings["summary"] = plan.summary
            run = Run(
                id=secrets.token_hex(6),
                verb=VERB,
                started_at=time.time(),
                settings=json.dumps(settings),
            )
            begin(store, run)
            to_stderr(f"Sweep `{run.id}` begins: {plan.summary or plan.name}")
        else:
            run = _run_of(store, show or resume or NEWEST, database)
            try:
                # as its first start had it: the file may have changed since
                plan, sim = _planned(run.plan), bool(run.plan["sim"])
            except LookupError as error:
                raise ToolkitError(
                    f"the settings of sweep `{run.id}` are not as the toolkit writes them",
                    "Begin a new one",
                ) from error

        def show_step(what: str) -> None:
            waiting.what = what

        tools = Tools(
            command=(sys.executable, str(PARENT_DEATH), str(os.getpid()), *TOOLKIT),
            # its own files lie beside the database
            folder=database.resolve().parent / "sweeps" / run.id,
            database=database.resolve(),
            impossible=impossible_in(plan, sim=sim),
            say=to_stderr,
            show_step=show_step,
            sim=sim,
        )
        measuring = Sweep(plan, store, run.id, tools)
        if resume:
            what = "goes on" if run.ended_at is None else "is over; nothing is left to do"
            click.echo(f"Sweep `{run.id}` {what}", err=True)
        if not show and run.ended_at is None:
            try:
                # SIGTERM and a closed terminal end it as Ctrl-C does
                with (
                    signals_raise(lambda _: KeyboardInterrupt()),
                    waiting_for("Measuring") as waiting,
                ):
                    measuring.run()
            except KeyboardInterrupt:
                go_on = command_on(database, "sweep", "--resume", run.id)
                see = command_on(database, "sweep", "--show", run.id)
                click.echo(
                    f"Stopped; go on with `{go_on}`, see what there is with `{see}`", err=True
                )
                sys.exit(INTERRUPTED)
        found = measuring.known()

    rows, levers = table(found, plan.look_at), moved(found, plan.look_at[0])
    print_rows = print_objects if as_json else print_table
    print_rows(plan, rows, levers)
    if chart:
        from toolkit.tuning.sweep_chart import draw

        with writing("Chart", chart, "--chart"), waiting_for("Drawing"):
            draw(plan, rows, chart)
    if html:
        from toolkit.tuning.pages import sweep_page

        with writing("Page", html, "--html"):
            html.write_text(sweep_page(plan, rows, levers), encoding="utf-8")
    if not any(row.status == "measured" for row in rows):
        sys.exit(FAILED)


def _planned(settings: "Mapping[str, Any]") -> "SweepPlan":
    """The plan of a sweep's settings, as its run keeps them. Raises LookupError where one is missing."""
    from toolkit.tuning.sweep_file import read_sweep

    changes = {key: settings[key] for key in ("blocks", "duration_s", "users", "profile")}
    return read_sweep(str(settings["text"]), str(settings["sweep"]), **changes)


def _refuse(plan: "SweepPlan", *, sim: bool) -> None:
    """What can be known before anything starts. Raises ToolkitError."""
    from toolkit.cli.catalog import profile_from
    from toolkit.profiles import read_profile
    from toolkit.tuning.sweep_file import foreseen

    for one in (one for stage in foreseen(plan) for one in stage):
        if one.serving.kind(sim=sim) is None:
            what = "no simulated stand-in (`sim`)" if sim else "neither `model`, `url` nor `sim`"
            raise ToolkitError(
                f"`{plan.name}`: `{one.name}` names {what}",
                "Run it without `--sim`" if sim else "Say in [base] what is served",
            )
        word = one.serving.profile or plan.profile
        own = dict(plan.profiles).get(word)
        profile = profile_from(word) if own is None else read_profile(own, word, "toml")
        if profile.phases:
            raise ToolkitError(
                f"the phases of `{profile.name}` say how many users there are and how long",
                "A sweep's load says that itself; take a profile without phases",
            )


def _run_of(store: "Store", word: str, database: Path) -> "Run":
    """The sweep of this id, or the newest one that is not over."""
    from toolkit.cli.named_run import chosen_run
    from toolkit.tuning.sweep import VERB

    if word != NEWEST:
        return chosen_run(store, word, database, VERB)
    for run in store.runs(verb=VERB):
        if run.ended_at is None:
            return run
    raise ToolkitError(
        f"`{database}` has no sweep that was cut off",
        f"`{command_on(database, 'runs', '--verb', VERB)}` lists those that there are",
    )
