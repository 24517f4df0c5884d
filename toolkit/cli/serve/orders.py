"""`toolkit serve status|restart|swap|reload|stop`: orders to a serve that runs, given through its folder, and what it answers."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from toolkit.cli.help_page import Command, advanced, option
from toolkit.cli.options import DURATION, FILE, PRESET, json_option
from toolkit.cli.output import print_json
from toolkit.cli.places import SERVE_FOLDER
from toolkit.cli.waiting import waiting_for
from toolkit.errors import ToolkitError
from toolkit.units import DASH, latency, share, span, whole

LOOK_S = 0.1
LONGEST_END_S = 300.0
"""A drain, then SIGTERM and SIGKILL for each engine's family; what takes longer waits in the kernel."""

folder_option = advanced(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"Logs, control socket, and state after a crash.  [default: {SERVE_FOLDER}]",
)
flags_option = click.option(
    "--set",
    "flags",
    multiple=True,
    metavar="FLAG=VALUE",
    help="A flag of `vllm serve`, e.g., `max-model-len=4096`; may be repeated.",
)
yes_option = click.option(
    "--yes", is_flag=True, help="Do not ask for confirmation, even during a blast."
)


def give(folder: Path | None, order: Mapping[str, Any]) -> dict[str, Any]:
    """Give an order to the serve of this folder; its answer. What it says meanwhile is shown."""
    from toolkit.serving import control

    with waiting_for("Waiting for serve"):
        try:
            return control.give(
                folder or Path(SERVE_FOLDER), order, lambda line: click.echo(line, err=True)
            )
        except KeyboardInterrupt:
            if order["order"] != "status":
                click.echo(
                    "Serve goes on with it; `toolkit serve status` shows how it is", err=True
                )
            raise


@click.command(
    "status", cls=Command, short_help="Each engine's state, port, restarts, TTFT cold and warm."
)
@folder_option
@json_option("engine")
def status(folder: Path | None, as_json: bool) -> None:
    """Tell how each engine of a running stack is, and how often the proxy's cache hits.

    \b
      toolkit serve status
      toolkit serve status --json
    """
    stack = give(folder, {"order": "status"})
    if as_json:
        shared = {key: stack[key] for key in ("hit_ratio", "requests_per_s", "admin_url")}
        for engine in stack["engines"]:
            print_json(engine | shared | {"proxy_url": stack["url"], "serve_pid": stack["pid"]})
        return

    from toolkit.report.tables import Column, screen

    console = screen()
    columns = [
        Column("engine", lambda engine: engine["name"]),
        Column("state", lambda engine: engine["state"]),
        Column("for", lambda engine: span(max(0.0, time.time() - engine["since"])), right=True),
        Column(
            "model",
            lambda engine: engine["model"] or engine["kind"],
            spare=2,
            widest=40,
            narrowest=16,
        ),
        Column("port", lambda engine: str(engine["port"]), right=True),
        Column("pid", lambda engine: str(engine["pid"] or DASH), right=True, spare=1),
        Column("restarts", lambda engine: str(engine["restarts"]), right=True),
        Column("KV tokens", lambda engine: whole(engine["kv_cache_tokens"]), right=True, spare=3),
        Column("cold TTFT", lambda engine: latency(engine["cold_ttft_ms"]), right=True, spare=4),
        Column("warm TTFT", lambda engine: latency(engine["warm_ttft_ms"]), right=True),
    ]
    console.records(columns, stack["engines"])
    console.print()
    for engine in stack["engines"]:
        if engine["why"]:
            why = f"{engine['state']}: {engine['why']} (its log: {engine['log']})"
            click.echo(f"{engine['name']} is {why}")
    serve = f"(serve is pid {stack['pid']})"
    if not stack["open"]:
        click.echo(f"Not open yet {serve}")
    elif stack["admin_url"] is None:
        click.echo(f"No proxy: clients ask {stack['url']} {serve}")
    else:
        ratio, rate = stack["hit_ratio"], stack["requests_per_s"]
        lately = "no requests in the last minute"
        if rate:
            hits = "" if ratio is None else f", {share(ratio)} of the cacheable ones hits"
            lately = f"{rate:,.3g} requests/s in the last minute{hits}"
        click.echo(f"Proxy: {stack['url']}, {lately}; admin {stack['admin_url']} {serve}")


@click.command(
    "restart", cls=Command, short_help="Restart one engine; the cache goes on answering."
)
@click.argument("engine", required=False)
@folder_option
@yes_option
def restart(engine: str | None, folder: Path | None, yes: bool) -> None:
    """Restart ENGINE, or the only one: what is under way is finished first, and it is warm before it is asked again.

    \b
      toolkit serve restart
      toolkit serve restart red --yes
    """
    answer = give(folder, {"order": "restart", "engine": engine, "yes": yes})
    click.echo(f"{answer['name']} is {answer['state']} again at {answer['url']}", err=True)


@click.command(
    "swap",
    cls=Command,
    short_help="Put another model, preset or flag in, without a gap where it can.",
)
@click.argument("engine", required=False)
@click.option(
    "--model", metavar="NAME", help="Another model: a name at Hugging Face, or a directory."
)
@click.option(
    "--preset", type=PRESET, help="Another preset; its flags take the place of all others."
)
@flags_option
@option(
    "--served-model-name",
    "served_name",
    aliases=["--served-name"],
    metavar="NAME",
    help="What clients call it from then on.",
)
@click.option("--in-place", is_flag=True, help="Stop the old engine first, even if both would fit.")
@advanced("--window", type=DURATION, default="15m", help="Window of the board, for the cost.")
@advanced("--gain", type=float, help="Throughput after / before, for the cost.")
@folder_option
@yes_option
def swap(
    *,
    engine: str | None,
    flags: tuple[str, ...],
    in_place: bool,
    window: float,
    gain: float | None,
    folder: Path | None,
    yes: bool,
    **words: str | None,
) -> None:
    """Put another model, preset or flag into a running stack. Where there is room the new engine starts
    beside the old one, is warmed, and takes over without a gap; else it says what the downtime costs and
    asks. What is not named stays as it is; the name that clients ask for stays, too.

    \b
      toolkit serve swap --model Qwen/Qwen2.5-7B-Instruct-AWQ --preset latency
      toolkit serve swap red --set max-num-seqs=128
      toolkit serve swap --model ./finetuned --in-place --yes
    """
    # `words`: --model, --preset and --served-model-name, as a stack file has them
    from toolkit.cli.stack_read import flags_of

    changes: dict[str, Any] = {key: word for key, word in words.items() if word is not None}
    if changes.get("model", "").startswith(("./", "../")):
        # serve may run in another folder than we do
        changes["model"] = str(Path(changes["model"]).resolve())
    if flags:
        changes["flags"] = flags_of(flags)
    if not changes:
        raise click.UsageError(
            "say what to swap to: --model, --preset, --set or --served-model-name"
        )
    order: dict[str, Any] = {"order": "swap", "engine": engine, "changes": changes}
    order |= {"in_place": in_place, "yes": yes}
    answer = give(folder, order)
    if "ask" in answer:
        for line in _costs(answer["ask"], window, gain):
            click.echo(line, err=True)
        if not click.confirm("Swap?", default=False, err=True):
            raise ToolkitError("nothing was swapped", "Say --yes to do it in any case")
        answer = give(folder, order | {"agreed": True})
    what = answer["model"] or answer["kind"]
    click.echo(f"{answer['name']} is swapped: {what}, at {answer['url']}", err=True)


def _costs(gap: Mapping[str, Any], window_s: float, gain: float | None) -> list[str]:
    """What the downtime of a swap means on the board."""
    from toolkit.board.impact import decision, explained, planned
    from toolkit.cli.impact import GAIN, RPS

    lines = [f"There will be a gap: {gap['why']}."]
    down_s, known_rps = gap.get("downtime_s"), gap.get("rps")
    if down_s is None:
        return [*lines, "For how long is not known: the engine's last start was not timed."]
    rps = known_rps or RPS
    impact = planned(
        downtime_s=down_s, window_s=window_s, rps=rps, error_rps=rps, gain=gain or GAIN
    )
    load = f"At {rps:.3g} requests/s" if known_rps else f"If {rps:g} requests/s came"
    lines.append(f"Its last start and warm-up took {span(down_s)}. {load}:")
    lines += (f"  {line}" for line in (*explained(impact), decision(impact, None)))
    return [*lines, "  Stored answers are given meanwhile; all others fail."]


@click.command(
    "reload", cls=Command, short_help="Take over changed settings of the proxy; no request is lost."
)
@click.argument("file", required=False, metavar="[STACK.toml]", type=FILE)
@folder_option
def reload(file: str | None, folder: Path | None) -> None:
    """Read the stack's file again, and go on with its [proxy]: times to live, limits, teams and their keys, upstreams.

    No request under way ends for that, and no connection is closed. What only a restart can change is refused, and
    then nothing has changed. STACK.toml only says which serve is meant, by its `folder`.

    \b
      toolkit serve reload
      toolkit serve reload --folder data/serve
      toolkit serve reload /etc/toolkit/prod.toml
    """
    if folder is None and file is not None:
        from toolkit.cli.stack_read import preset_flags, stack_text
        from toolkit.serving.stack import read

        folder = Path(read(stack_text(Path(file)), file, preset_flags).folder)
    give(folder, {"order": "reload"})
    click.echo("The proxy goes on with the settings of the file", err=True)


@click.command("stop", cls=Command, short_help="End a stack in order.")
@folder_option
def stop(folder: Path | None) -> None:
    """Finish what is under way, and end the proxy and every engine; back when all are gone.

    \b
      toolkit serve stop
      toolkit serve stop --folder data/serve
    """
    from toolkit.serving.control import is_served

    pid = give(folder, {"order": "stop"})["pid"]
    click.echo(f"Serve (pid {pid}) finishes what is under way", err=True)
    give_up_at = time.monotonic() + LONGEST_END_S
    with waiting_for("Ending"):
        while is_served(folder or Path(SERVE_FOLDER)):
            if time.monotonic() > give_up_at:
                raise ToolkitError(
                    f"serve (pid {pid}) has not ended after {LONGEST_END_S:.0f} s",
                    f"`kill -9 {pid}` ends it; each engine's reaper then ends the engine",
                )
            time.sleep(LOOK_S)
    click.echo("All ended", err=True)
