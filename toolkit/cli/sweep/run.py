"""What `toolkit sweep` does once its command line is read: check, run or go on, show."""

import json
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from types import FrameType
from typing import Any

import click

from toolkit.cli.exit_codes import FAILED, INTERRUPTED, WORKED
from toolkit.cli.output import print_json
from toolkit.cli.places import command_on
from toolkit.cli.sweep.options import NEWEST, SweepOptions
from toolkit.cli.sweep.tools import tools_for
from toolkit.cli.waiting import waiting_for
from toolkit.errors import ToolkitError
from toolkit.records import Run
from toolkit.store import Store
from toolkit.tuning.figures import METRICS, metric
from toolkit.tuning.sweep import VERB, Kept, Sweep
from toolkit.tuning.sweep_file import SweepPlan, foreseen, read_sweep


def run_sweep(options: SweepOptions) -> int:
    """Do what the command line asks; the exit code."""
    if options.recipes:
        return _list(as_json=options.as_json)
    if options.show:
        with Store.open_readonly(options.database) as store:
            run = _run_of(store, options.show, options.database)
            return _tell(*_read_back(store, run, options), options)
    if options.resume:
        with Store.open_existing(options.database) as store:
            run = _run_of(store, options.resume, options.database)
            return _go_on(store, run, options)
    text, name = _text(options.sweep or "")
    plan = _changed(read_sweep(text, name), **_changes(options))
    _refuse(plan, sim=options.sim)
    if options.dry_run:
        from toolkit.cli.sweep.show import show_steps

        show_steps(plan, options)
        return WORKED
    with Store.open(options.database) as store:
        return _begin(store, plan, text, options)


# --- recipes and files ------------------------------------------------------------------------------


def _shelf() -> dict[str, str]:
    folder = files("toolkit") / "catalog" / "sweeps"
    entries = [entry for entry in folder.iterdir() if entry.name.endswith(".toml")]
    return {entry.name.removesuffix(".toml"): entry.read_text("utf-8") for entry in entries}


def _list(*, as_json: bool) -> int:
    found = {name: read_sweep(text, name) for name, text in sorted(_shelf().items())}
    if as_json:
        for name, plan in found.items():
            print_json({"name": name, "summary": plan.summary, "look_at": plan.look_at})
        return WORKED
    from toolkit.report.tables import Column, screen

    rows = [[name, plan.summary] for name, plan in found.items()]
    screen().table([Column(title="recipe"), Column(title="what it tries")], rows)
    return WORKED


def _text(word: str) -> tuple[str, str]:
    shelf = _shelf()
    if word in shelf:
        return shelf[word], word
    hint = f"Recipes: {', '.join(sorted(shelf))}; or name a file, e.g., `mine.toml`"
    try:
        return Path(word).read_bytes().decode(), word
    except UnicodeDecodeError as error:
        raise ToolkitError(f"`{word}` is not UTF-8 text", hint) from error
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or "no reason given").lower()
        raise ToolkitError(f"`{word}` cannot be read: {reason}", hint) from error


def _changed(
    plan: SweepPlan,
    *,
    blocks: int | None,
    duration_s: float | None,
    users: int | None,
    profile: str | None,
) -> SweepPlan:
    """What the command line says goes before the file."""
    load = plan.load
    if duration_s is not None:
        load = replace(load, duration_s=duration_s, settle_s=min(load.settle_s, duration_s / 5))
    if users is not None:
        load = replace(load, users=users)
    plan = replace(plan, load=load, blocks=blocks or plan.blocks)
    if profile is not None:
        plan = replace(plan, profile=profile)
    return plan


def _refuse(plan: SweepPlan, *, sim: bool) -> None:
    """What can be known before anything starts. Raises ToolkitError."""
    for name in plan.look_at:
        if metric(name) is None:
            raise ToolkitError(
                f"`{plan.name}`: `look_at` names no figure: `{name}`",
                f"Figures are {', '.join(METRICS)}",
            )
    for one in (one for stage in foreseen(plan) for one in stage):
        if one.serving.kind(sim=sim) is None:
            what = "no simulated stand-in (`sim`)" if sim else "neither `model`, `url` nor `sim`"
            raise ToolkitError(
                f"`{plan.name}`: `{one.name}` names {what}",
                "Run it without `--sim`" if sim else "Say in [base] what is served",
            )
        _refuse_profile(plan, one.serving.profile)


def _refuse_profile(plan: SweepPlan, own: str | None) -> None:
    from toolkit.cli.catalog import profile_from
    from toolkit.profiles import read_profile

    word = own or plan.profile
    text = dict(plan.profiles).get(word)
    found = profile_from(word) if text is None else read_profile(text, word, "toml")
    if found.phases:
        raise ToolkitError(
            f"the phases of `{found.name}` say how many users there are and how long",
            "A sweep's load says that itself; take a profile without phases",
        )


# --- run ---------------------------------------------------------------------------------------------


def _changes(options: SweepOptions) -> dict[str, Any]:
    """What the command line changes in the file's sweep; a file is named so that it is found from elsewhere, too."""
    word = options.profile
    return {
        "blocks": options.blocks,
        "duration_s": options.duration,
        "users": options.users,
        "profile": str(Path(word).resolve()) if word and Path(word).is_file() else word,
    }


def _begin(store: Store, plan: SweepPlan, text: str, options: SweepOptions) -> int:
    run_id = secrets.token_hex(6)
    told = {"sweep": plan.name, "summary": plan.summary, "text": text, "sim": options.sim}
    settings = told | _changes(options)
    run = Run(id=run_id, verb=VERB, started_at=time.time(), settings=json.dumps(settings))
    kept = Kept.begun(store, run)
    click.echo(f"Sweep `{run_id}` begins: {plan.summary or plan.name}", err=True)
    return _drive(plan, kept, options, sim=options.sim)


def _go_on(store: Store, run: Run, options: SweepOptions) -> int:
    plan, sim = _plan_of(run)
    kept = Kept.found(store, run.id)
    if run.ended_at is not None:
        click.echo(f"Sweep `{run.id}` is over; nothing is left to do", err=True)
        return _tell(plan, Sweep(plan, kept, tools_for(options, plan, run.id, sim=sim)), options)
    click.echo(f"Sweep `{run.id}` goes on", err=True)
    return _drive(plan, kept, options, sim=sim)


def _drive(plan: SweepPlan, kept: Kept, options: SweepOptions, *, sim: bool) -> int:
    sweep = Sweep(plan, kept, tools_for(options, plan, kept.run, sim=sim))
    try:
        with _terminated_as_interrupted(), waiting_for("Measuring"):
            sweep.run()
    except KeyboardInterrupt:
        on, see = (
            command_on(options.database, "sweep", option, kept.run)
            for option in ("--resume", "--show")
        )
        click.echo(f"Stopped; go on with `{on}`, see what there is with `{see}`", err=True)
        return INTERRUPTED
    return _tell(plan, sweep, options)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM and a closed terminal end it as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 (signal's signature)
        if number == signal.SIGHUP:
            # of one closed terminal its shell tells and then the kernel: the second would cut off what the first ends
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {
        number: signal.signal(number, interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN  # nohup's
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell(plan: SweepPlan, sweep: Sweep, options: SweepOptions) -> int:
    from toolkit.cli.sweep.show import show

    rows = show(plan, sweep.known(), options)
    return WORKED if any(row.status == "measured" for row in rows) else FAILED


# --- a sweep that was run -----------------------------------------------------------------------------


def _run_of(store: Store, word: str, database: Path) -> Run:
    """The sweep of this id, or the newest one that is not over."""
    known = store.runs(verb=VERB, limit=20)
    if word == NEWEST:
        found = next((run for run in known if run.ended_at is None), None)
        if found is None:
            raise ToolkitError(f"`{database}` has no sweep that was cut off", _hint(known))
        return found
    run = store.run(word)
    if run is None or run.verb != VERB:
        raise ToolkitError(f"`{database}` has no sweep `{word}`", _hint(known))
    return run


def _hint(known: list[Run]) -> str:
    if not known:
        return "It has none at all: `toolkit sweep --list` names recipes to begin with"
    return f"Known sweeps: {', '.join(run.id for run in known[:5])}"


def _plan_of(run: Run) -> tuple[SweepPlan, bool]:
    """The plan as its first start had it: the file may have changed since."""
    try:
        told = json.loads(run.settings)
        text, name = str(told["text"]), str(told["sweep"])
        changes = {key: told[key] for key in ("blocks", "duration_s", "users", "profile")}
        sim = bool(told["sim"])
    except (ValueError, TypeError, LookupError) as error:
        raise ToolkitError(
            f"the settings of sweep `{run.id}` are not as the toolkit writes them",
            "Begin a new one",
        ) from error
    return _changed(read_sweep(text, name), **changes), sim


def _read_back(store: Store, run: Run, options: SweepOptions) -> tuple[SweepPlan, Sweep]:
    plan, sim = _plan_of(run)
    return plan, Sweep(plan, Kept.found(store, run.id), tools_for(options, plan, run.id, sim=sim))
