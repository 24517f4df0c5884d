"""`toolkit serve status|restart|swap|reload|stop`: orders to a serve that runs, given through its folder, and what it answers."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from toolkit.cli import suggestions
from toolkit.cli.help_page import Command, advanced
from toolkit.cli.options import DURATION
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
    help=f"Logs, orders, and what is to be known after a crash.  [default: {SERVE_FOLDER}]",
)
yes_option = click.option(
    "--yes", is_flag=True, help="Do not ask, whatever it costs, and during a blast, too."
)
flags_option = click.option(
    "--set",
    "flags",
    multiple=True,
    metavar="FLAG=VALUE",
    help="A flag of `vllm serve`, e.g., `max-model-len=4096`; may be repeated.",
)


@click.command(
    "status", cls=Command, short_help="Each engine's state, port, restarts, TTFT cold and warm."
)
@folder_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object an engine.")
def status(folder: Path | None, as_json: bool) -> None:
    """Tell how each engine of a running stack is, and how often the proxy's cache hits.

    \b
      toolkit serve status
      toolkit serve status --json
    """
    stack = _give(folder, {"order": "status"})
    if as_json:
        shared = {key: stack[key] for key in ("hit_ratio", "requests_per_s", "admin_url")}
        for engine in stack["engines"]:
            print_json(engine | shared | {"proxy_url": stack["url"], "serve_pid": stack["pid"]})
        return

    from toolkit.report.tables import Column, screen

    columns = (
        Column(title="engine"),
        Column(title="state"),
        Column(title="for", right=True),
        Column(title="model", spare=2, widest=40),
        Column(title="port", right=True),
        Column(title="pid", right=True, spare=1),
        Column(title="restarts", right=True),
        Column(title="KV tokens", right=True, spare=3),
        Column(title="cold TTFT", right=True, spare=4),
        Column(title="warm TTFT", right=True),
    )
    rows = [
        [
            engine["name"],
            engine["state"],
            span(max(0.0, time.time() - engine["since"])),
            engine["model"] or engine["kind"],
            str(engine["port"]),
            DASH if engine["pid"] is None else str(engine["pid"]),
            str(engine["restarts"]),
            whole(engine["kv_cache_tokens"]),
            latency(engine["cold_ttft_ms"]),
            latency(engine["warm_ttft_ms"]),
        ]
        for engine in stack["engines"]
    ]
    console = screen()
    console.table(columns, rows)
    console.print()
    for engine in stack["engines"]:
        if engine["why"]:
            click.echo(
                f"{engine['name']} is {engine['state']}: {engine['why']} (its log: {engine['log']})"
            )
    if not stack["open"]:
        click.echo(f"Not open yet (serve is pid {stack['pid']})")
    elif stack["admin_url"] is None:
        click.echo(f"No proxy: clients ask {stack['url']} (serve is pid {stack['pid']})")
    else:
        ratio, rate = stack["hit_ratio"], stack["requests_per_s"]
        lately = "no requests in the last minute"
        if rate:
            hits = "" if ratio is None else f", {share(ratio)} of the cacheable ones hits"
            lately = f"{rate:,.3g} requests/s in the last minute{hits}"
        click.echo(
            f"Proxy: {stack['url']}, {lately}; admin {stack['admin_url']} (serve is pid {stack['pid']})"
        )


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
    answer = _give(folder, {"order": "restart", "engine": engine, "yes": yes})
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
    "--preset",
    metavar="NAME",
    shell_complete=suggestions.preset,
    help="Another preset; its flags take the place of all others.",
)
@flags_option
@click.option("--served-name", metavar="NAME", help="What clients call it from then on.")
@click.option(
    "--in-place", is_flag=True, help="End the old engine first, though there may be room."
)
@click.option(
    "--window",
    type=DURATION,
    default="15m",
    show_default=True,
    help="That the board looks back, for the costs.",
)
@click.option("--gain", type=float, help="Answered a second after it / before it, for the costs.")
@folder_option
@yes_option
def swap(
    *,
    engine: str | None,
    model: str | None,
    preset: str | None,
    flags: tuple[str, ...],
    served_name: str | None,
    in_place: bool,
    window: float,
    gain: float | None,
    folder: Path | None,
    yes: bool,
) -> None:
    """Put another model, preset or flag into a running stack. Where there is room the new engine starts
    beside the old one, is warmed, and takes over without a gap; else it says what the downtime costs and
    asks. What is not named stays as it is; the name that clients ask for stays, too.

    \b
      toolkit serve swap --model Qwen/Qwen2.5-7B-Instruct-AWQ --preset latency
      toolkit serve swap red --set max-num-seqs=128
      toolkit serve swap --model ./finetuned --in-place --yes
    """
    from toolkit.board.impact import PlannedRestart, decision, explained, planned
    from toolkit.cli.impact import GAIN, RPS
    from toolkit.cli.stack_read import flags_of

    words = {"model": model, "preset": preset, "served_name": served_name}
    changes: dict[str, Any] = {key: word for key, word in words.items() if word is not None}
    if model is not None and model.startswith(("./", "../")):
        # serve may run in another folder than we do
        changes["model"] = str(Path(model).resolve())
    if flags:
        changes["flags"] = flags_of(flags)
    if not changes:
        raise click.UsageError("say what to swap to: --model, --preset, --set or --served-name")
    order: dict[str, Any] = {
        "order": "swap",
        "engine": engine,
        "changes": changes,
        "in_place": in_place,
        "yes": yes,
    }
    answer = _give(folder, order)
    if "ask" in answer:
        question = answer["ask"]
        click.echo(f"There will be a gap: {question['why']}.", err=True)
        down_s, known_rps = question.get("downtime_s"), question.get("rps")
        if down_s is None:
            click.echo("How long nobody knows: the engine's last start was not timed.", err=True)
        else:
            rps = known_rps or RPS
            impact = planned(
                PlannedRestart(
                    downtime_s=down_s, window_s=window, rps=rps, error_rps=rps, gain=gain or GAIN
                )
            )
            what = f"At {rps:.3g} requests/s" if known_rps else f"If {rps:g} requests/s came"
            click.echo(f"Its last start and warm-up took {span(down_s)}. {what}:", err=True)
            for line in [*explained(impact), decision(impact, None)]:
                click.echo(f"  {line}", err=True)
            click.echo("  Stored answers are given meanwhile; all others fail.", err=True)
        if not click.confirm("Swap?", default=False, err=True):
            raise ToolkitError("nothing was swapped", "Say --yes to do it in any case")
        answer = _give(folder, order | {"agreed": True})
    what = answer["model"] or answer["kind"]
    click.echo(f"{answer['name']} is swapped: {what}, at {answer['url']}", err=True)


@click.command(
    "reload", cls=Command, short_help="Take over changed settings of the proxy; no request is lost."
)
@click.argument("file", required=False, metavar="[STACK.toml]", shell_complete=suggestions.file)
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
    _give(folder, {"order": "reload"})
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

    pid = _give(folder, {"order": "stop"})["pid"]
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


def _give(folder: Path | None, order: Mapping[str, Any]) -> dict[str, Any]:
    """Give an order to the serve of this folder; its answer. What it says meanwhile is shown."""
    from toolkit.serving.control import give

    with waiting_for("Waiting for serve"):
        try:
            return give(
                folder or Path(SERVE_FOLDER), order, lambda line: click.echo(line, err=True)
            )
        except KeyboardInterrupt:
            if order["order"] != "status":
                click.echo(
                    "Serve goes on with it; `toolkit serve status` tells how it is", err=True
                )
            raise
