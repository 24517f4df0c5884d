"""`toolkit warmup`: ask each server until it is warm, and say what its first clients would have waited."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli import suggestions
from toolkit.cli.exit_codes import FAILED, INTERRUPTED
from toolkit.cli.help_page import Command, advanced
from toolkit.cli.inputs import (
    allow_open_files,
    hosts_from,
    keys_for,
    occupy_standard_files,
    tls_for,
)
from toolkit.cli.options import DURATION, LEVELS, database_option, tls_options
from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toolkit.records import Host
    from toolkit.serving.seen_requests import SeenWorkload
    from toolkit.serving.warmup import Warmed

MOST_AT_ONCE = 64
"""The highest concurrency where nobody says what the engine runs at once."""
LEGEND = (
    "cold: median of the first round at that load; warm: of the last one. TTFT: send to the first chunk with a token. The row of a host"
    " is the lowest load, which was asked first: the same at every start."
)
KINDS = {"structured": " structured", "long": " long"}


@click.command(
    "warmup", cls=Command, short_help="Ask servers until they are warm; cold against warm."
)
@click.argument("hosts", nargs=-1, metavar="[HOSTS]...", shell_complete=suggestions.file)
@advanced(
    "--concurrency",
    type=LEVELS,
    default=(),
    metavar="1,2,4,...",
    help=f"Requests at once, one level after the other.  [default: doubling to {MOST_AT_ONCE}]",
)
@click.option(
    "--max-num-seqs",
    type=click.IntRange(1, 4096),
    help="What the engine runs at once; the levels end there.",
)
@click.option(
    "--profile",
    metavar="NAME|FILE",
    shell_complete=suggestions.profile,
    help="Whose prompts: of the catalog, or a file (.toml, .jsonl, else one prompt a line).  [default: plain ones]",
)
@click.option(
    "--seen",
    is_flag=True,
    help="Prompts that clients sent, from the database, where texts were kept.",
)
@advanced(
    "--run",
    metavar="RUN",
    shell_complete=suggestions.run("capture"),
    help="With --seen: of this capture.  [default: the newest]",
)
@advanced("--stream/--no-stream", default=None, help="Stream all, or none.  [default: both]")
@advanced("--structured", is_flag=True, help="Also answers that must be JSON.")
@advanced(
    "--long", "long_prompts", is_flag=True, help="Also prompts of up to nine tenths of what fits."
)
@advanced(
    "--max-tokens",
    type=click.IntRange(1, 1_000_000),
    default=32,
    show_default=True,
    help="Per answer, but for the clients' own requests.",
)
@advanced(
    "--tolerance",
    type=click.FloatRange(0.01, 1.0),
    default=0.2,
    show_default=True,
    help="Two rounds agree when they differ by less than this share.",
)
@advanced(
    "--rounds",
    type=click.IntRange(1, 1000),
    default=8,
    show_default=True,
    help="Most, of the highest concurrency.",
)
@click.option(
    "--limit",
    "limit_s",
    type=DURATION,
    default="10m",
    show_default=True,
    help="For all of it: a cold server may take minutes for its first answer.",
)
@advanced(
    "--log",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="vLLM's log: what it compiled, and what only in the probe.",
)
@advanced(
    "--model", metavar="NAME", help="Ask for this model.  [default: what each host lists or serves]"
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a host.")
@database_option
@tls_options
def command(
    *,
    hosts: tuple[str, ...],
    concurrency: tuple[int, ...],
    max_num_seqs: int | None,
    profile: str | None,
    seen: bool,
    run: str | None,
    log: Path | None,
    model: str | None,
    as_json: bool,
    database: Path,
    insecure: bool,
    ca: str | None,
    **setting: Any,
) -> None:
    """Ask servers until they are warm: 1, 2, 4 ... requests at once, streams and whole answers, with prompts that no cache knows;
    the highest until two rounds agree; then each once more. It prints what a client waits cold and warm, and their ratio. Last come
    the clients' own requests, so that prefix and response caches hold them. HOSTS are files (`-` for standard input) or URLs.

    \b
      toolkit warmup 127.0.0.1:8000 --profile contest
      toolkit warmup hosts.txt --max-num-seqs 256 --limit 15m
    \f
    \b
      toolkit warmup 127.0.0.1:8000 --structured --long --log vllm.log
      toolkit warmup 127.0.0.1:8000 --seen
          what the last capture or proxy saw, from the database
      toolkit warmup hosts.txt --json
    """
    if seen and profile:
        raise click.UsageError("--seen and --profile are two sources of prompts; choose one")
    if run and not seen:
        raise click.UsageError("--run goes with --seen")
    if any(level < 1 for level in concurrency):
        raise click.UsageError("--concurrency: a level is at least 1")

    import asyncio

    import uvloop

    from toolkit.cli.catalog import profile_from
    from toolkit.cli.output import print_json
    from toolkit.cli.waiting import waiting_for
    from toolkit.serving.stack import WarmSetting
    from toolkit.serving.warmup import Warming, doubling

    found = hosts_from(hosts)
    if log is not None and len(found) > 1:
        raise click.UsageError("--log is one server's; name one host with it")
    clients = _clients_requests(database, run) if seen else None
    keys, tls = keys_for(found), tls_for(insecure=insecure, ca=ca)
    # `setting`: fields of WarmSetting
    warm = WarmSetting(
        concurrency=concurrency or doubling(max_num_seqs or MOST_AT_ONCE),
        profile=profile,
        **setting,
    )
    prompts = profile_from(profile) if profile else clients.profile if clients else None

    def warming(host: "Host") -> Warming:
        head = f"{host.name}: " if len(found) > 1 else ""
        return Warming(
            host=host,
            setting=warm,
            key=keys.get(host.name),
            tls=tls,
            model=model,
            max_num_seqs=max_num_seqs,
            profile=prompts,
            exact=clients.exact if clients else (),
            log=log,
            say=lambda sentence: click.echo(f"{head}{sentence}", err=True),
        )

    warmings = [warming(host) for host in found]

    async def warm_all() -> None:
        async with asyncio.TaskGroup() as tasks:
            for each in warmings:
                tasks.create_task(each.run())

    allow_open_files()
    occupy_standard_files()
    is_stopped = False
    with waiting_for("Warming up"):
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(warm_all())
        except (KeyboardInterrupt, asyncio.CancelledError):
            is_stopped = True

    results = [each.found for each in warmings]
    if as_json:
        for each in results:
            print_json(asdict(each))
    else:
        _print_tables(results)
    if is_stopped:
        sys.exit(INTERRUPTED)
    if not any(each.measure for each in results):
        sys.exit(FAILED)


def _clients_requests(database: Path, run: str | None) -> "SeenWorkload":
    """The requests of a capture or a proxy. Raises ToolkitError where no text was kept."""
    from toolkit.cli.named_run import newest_runs
    from toolkit.serving.seen_requests import workload
    from toolkit.store import Store

    with Store.open_readonly(database) as store:
        runs = [each for verb in ("capture", "proxy") for each in store.runs(verb=verb)]
        runs.sort(key=lambda each: -each.started_at)
        chosen = next((each.id for each in runs if run in (None, each.id)), None)
        if chosen is None:
            known = (
                ", ".join(f"`{each.id}`" for each in newest_runs(store, "capture", "proxy"))
                or "none yet"
            )
            what = f"no capture `{run}`" if run else "no capture"
            raise ToolkitError(f"`{database}` holds {what}", f"Its newest: {known}")
        asked = (seen.asked for seen in store.seen(chosen))
        found = workload((one for one in asked if one is not None), f"seen-{chosen}")
    if found.profile is None:
        raise ToolkitError(
            f"no chat's text was kept in capture `{chosen}`",
            "Texts are kept by, e.g., `toolkit capture --store-prompts`; or name a profile: `--profile contest`",
        )
    if found.left_out:
        click.echo(
            f"Note: of {found.left_out} different requests not everything was kept; they seed no response cache",
            err=True,
        )
    return found


def _print_tables(results: "Sequence[Warmed]") -> None:
    """A row for each host, of one host a row for each load; on stderr what a person should know beside the figures."""
    from toolkit.report.tables import Column, screen
    from toolkit.units import DASH, counted, latency

    def times(value: float | None) -> str:
        """`407x`, `2.7x`."""
        if value is None:
            return DASH
        return f"{value:,.0f}x" if value >= 10 else f"{value:.2g}x"

    columns = [
        Column(title="host", widest=40),
        Column(title="at once", right=True),
        Column(title="cold", right=True),
        Column(title="warm", right=True),
        Column(title="ratio", right=True),
        Column(title="requests", right=True, spare=2),
        Column(title="errors", right=True, spare=1),
        Column(title="seeded", right=True, spare=3),
        Column(title="state", widest=60),
    ]
    rows = []
    for found in results:
        is_streamed = found.measure == "ttft"
        settled = counted(sum(each.phase == "settle" for each in found.rounds), "round")
        state = f"warm after {settled} at the top{'' if is_streamed else ' (E2E)'}"
        rows.append(
            [
                found.name,
                DASH if found.concurrency is None else str(found.concurrency),
                latency(found.cold_ttft_ms if is_streamed else found.cold_e2e_ms),
                latency(found.warm_ttft_ms if is_streamed else found.warm_e2e_ms),
                times(found.ratio),
                f"{found.requests:,}",
                f"{found.errors:,}",
                f"{found.seeded:,}",
                found.error or state,
            ]
        )
    console = screen()
    console.table(columns, rows)

    if len(results) == 1 and results[0].levels:
        word = "TTFT" if results[0].measure == "ttft" else "E2E"
        columns = [
            Column(title="at once"),
            Column(title=f"cold {word}", right=True),
            Column(title=f"warm {word}", right=True),
            Column(title="ratio", right=True),
        ]
        rows = [
            [
                f"{each.concurrency}{KINDS.get(each.kind, '')}",
                latency(each.cold_ms),
                latency(each.warm_ms),
                times(each.ratio),
            ]
            for each in results[0].levels
        ]
        console.table(columns, rows)
    console.print(LEGEND, style="dim")

    for found in results:
        for one in found.rounds:
            if one.ok < one.requests:
                where = f"{one.concurrency} at once{KINDS.get(one.kind, '')} ({one.phase})"
                many = f"{one.requests - one.ok} of {one.requests} failed: {one.error}"
                click.echo(f"{found.name}: {where}: {many}", err=True)
        if late := found.late_compilations:
            why = f"{len(late)} compiled as late as in the probe: {late[0]}"
            click.echo(f"{found.name}: {why}", err=True)
