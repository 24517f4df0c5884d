"""What `toolkit serve status|restart|swap|reload|stop` do: give the order, show what is told, ask what is to be asked."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from toolkit.board.impact import PlannedRestart, decision, explained, planned
from toolkit.cli.impact import RPS
from toolkit.cli.output import print_json
from toolkit.cli.places import SERVE_FOLDER
from toolkit.cli.serve.flags import flags_told
from toolkit.cli.serve.status import print_table
from toolkit.cli.stack_read import preset_flags, stack_text
from toolkit.cli.waiting import waiting_for
from toolkit.errors import ToolkitError
from toolkit.serving.control import give, is_served
from toolkit.serving.stack import read
from toolkit.units import span

LOOK_S = 0.1
LONGEST_END_S = 300.0
"""A drain, then SIGTERM and SIGKILL for each engine's family; what takes longer waits in the kernel."""


def show_status(folder: Path, *, as_json: bool) -> None:
    """All engines of a running stack."""
    told = _given(folder, {"order": "status"})
    shared = {key: told[key] for key in ("hit_ratio", "requests_per_s", "admin_url")}
    if as_json:
        for engine in told["engines"]:
            print_json(engine | shared | {"proxy_url": told["url"], "serve_pid": told["pid"]})
        return
    print_table(told)


def order_restart(folder: Path, engine: str | None, *, yes: bool) -> None:
    """One engine anew."""
    told = _given(folder, {"order": "restart", "engine": engine, "yes": yes})
    click.echo(f"{told['name']} is {told['state']} again at {told['url']}", err=True)


def order_swap(folder: Path, options: Mapping[str, Any]) -> None:
    """Another engine in the place of one."""
    changes: dict[str, Any] = {
        key: options[key] for key in ("model", "preset", "served_name") if options[key] is not None
    }
    if changes.get("model", "").startswith(("./", "../")):
        # serve may run in another folder than we do
        changes["model"] = str(Path(changes["model"]).resolve())
    if options["flags"]:
        changes["flags"] = flags_told(options["flags"])
    if not changes:
        raise click.UsageError("say what to swap to: --model, --preset, --set or --served-name")
    order: dict[str, Any] = {
        "order": "swap",
        "engine": options["engine"],
        "changes": changes,
        "in_place": options["in_place"],
        "yes": options["yes"],
    }
    told = _given(folder, order)
    if "ask" in told:
        if not _agrees(told["ask"], options):
            raise ToolkitError("nothing was swapped", "Say --yes to do it in any case")
        told = _given(folder, order | {"agreed": True})
    click.echo(
        f"{told['name']} is swapped: {told['model'] or told['kind']}, at {told['url']}", err=True
    )


def order_reload(file: str | None, folder: Path | None) -> None:
    """The file's settings of the proxy; a file that is named here only says where its serve runs."""
    if folder is None and file is not None:
        folder = Path(read(stack_text(Path(file)), file, preset_flags).folder)
    _given(folder or Path(SERVE_FOLDER), {"order": "reload"})
    click.echo("The proxy goes on with the settings of the file", err=True)


def order_stop(folder: Path) -> None:
    """All of it; back when nothing is left."""
    told = _given(folder, {"order": "stop"})
    click.echo(f"Serve (pid {told['pid']}) finishes what is under way", err=True)
    give_up_at = time.monotonic() + LONGEST_END_S
    with waiting_for("Ending"):
        while is_served(folder):
            if time.monotonic() > give_up_at:
                raise ToolkitError(
                    f"serve (pid {told['pid']}) has not ended after {LONGEST_END_S:.0f} s",
                    f"`kill -9 {told['pid']}` ends it; each engine's reaper then ends the engine",
                )
            time.sleep(LOOK_S)
    click.echo("All ended", err=True)


def _given(folder: Path, order: Mapping[str, Any]) -> dict[str, Any]:
    with waiting_for("Waiting for serve"):
        try:
            return give(folder, order, lambda line: click.echo(line, err=True))
        except KeyboardInterrupt:
            if order["order"] != "status":
                click.echo(
                    "Serve goes on with it; `toolkit serve status` tells how it is", err=True
                )
            raise


def _agrees(question: Mapping[str, Any], costs: Mapping[str, Any]) -> bool:
    """Say what the downtime costs, and ask."""
    click.echo(f"There will be a gap: {question['why']}.", err=True)
    down_s = question.get("downtime_s")
    if down_s is None:
        click.echo("How long nobody knows: the engine's last start was not timed.", err=True)
    else:
        rps, gain = question.get("rps") or RPS, costs.get("gain") or 1.0
        change = PlannedRestart(
            downtime_s=down_s, window_s=costs["window"], rps=rps, error_rps=rps, gain=gain
        )
        impact = planned(change)
        what = f"At {rps:.3g} requests/s" if question.get("rps") else f"If {rps:g} requests/s came"
        click.echo(f"Its last start and warm-up took {span(down_s)}. {what}:", err=True)
        for line in [*explained(impact), decision(impact, None)]:
            click.echo(f"  {line}", err=True)
        click.echo("  Stored answers are given meanwhile; all others fail.", err=True)
    return click.confirm("Swap?", default=False, err=True)
