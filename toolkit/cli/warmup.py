"""`toolkit warmup`: ask each server until it is warm, and say what its first clients would have waited."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.exit_codes import FAILED, INTERRUPTED
from toolkit.cli.help_page import Command, advanced
from toolkit.cli.inputs import (
    allow_open_files,
    hosts_from,
    keys_for,
    occupy_standard_files,
    tls_for,
)
from toolkit.cli.options import (
    DURATION,
    LEVELS,
    PROFILE,
    database_option,
    hosts_argument,
    json_option,
    run_word,
    tls_options,
)
from toolkit.cli.output import to_stderr
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
    "warmup", cls=Command, short_help="Send requests until servers are warm; compare cold and warm."
)
@hosts_argument
@advanced(
    "--sweep-concurrency",
    "concurrency",
    aliases=["--concurrency"],
    type=LEVELS,
    default=(),
    metavar="1,2,4,...",
    show_default=False,
    help=f"Requests at once, one level after the other.  [default: doubling to {MOST_AT_ONCE}]",
)
@click.option(
    "--max-num-seqs",
    type=click.IntRange(1, 4096),
    help="What the engine runs at once; the levels end there.",
)
@click.option(
    "--profile",
    type=PROFILE,
    help="Whose prompts: of the catalog, or a file (.toml, .jsonl, .json, else one prompt a line).  [default: plain ones]",
)
@click.option(
    "--seen",
    is_flag=True,
    help="Use the prompts that clients sent, from the database, where texts were kept.",
)
@advanced(
    "--run",
    metavar="RUN",
    type=run_word("capture", "proxy"),
    help="With --seen: the capture that holds them.  [default: the newest]",
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
    help="Most tokens per answer, except of the clients' own requests.",
)
@advanced(
    "--tolerance",
    type=click.FloatRange(0.01, 1.0),
    default=0.2,
    help="Two rounds agree when they differ by less than this share.",
)
@advanced(
    "--rounds",
    type=click.IntRange(1, 1000),
    default=8,
    help="Most rounds at the highest concurrency.",
)
@click.option(
    "--limit",
    "limit_s",
    type=DURATION,
    default="10m",
    help="Time limit of the whole warm-up: a cold server may take minutes for its first answer.",
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
@json_option("host")
@database_option
@tls_options
def command(
    *,
    hosts: tuple[str, ...],
    listed_in: str | None,
    only: tuple[str, ...],
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
    the clients' own requests, so that prefix and response caches hold them. HOSTS are names of hosts.txt, files (`-`: standard input) or URLs.

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
    # `setting`: fields of WarmSetting
    if seen and profile:
        raise click.UsageError("--seen and --profile are two sources of prompts; choose one")
    if run and not seen:
        raise click.UsageError("--run goes with --seen")
    if any(level < 1 for level in concurrency):
        raise click.UsageError("--sweep-concurrency: a level is at least 1")

    import asyncio

    import uvloop

    from toolkit.cli.catalog import profile_from
    from toolkit.cli.output import print_json
    from toolkit.cli.waiting import waiting_for
    from toolkit.serving.stack import WarmSetting
    from toolkit.serving.warmup import Warming, doubling

    found = hosts_from(hosts, listed_in, only)
    if log is not None and len(found) > 1:
        raise click.UsageError("--log is one server's; name one host with it")
    clients = _clients_requests(database, run) if seen else None
    keys, tls = keys_for(found), tls_for(insecure=insecure, ca=ca)
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
            say=lambda sentence: to_stderr(f"{head}{sentence}"),
        )

    warmings = [warming(host) for host in found]

    async def warm_up(one: Warming) -> None:
        found = await one.run()
        waiting.done(found.name, found.sentence())

    async def warm_all() -> None:
        async with asyncio.TaskGroup() as tasks:
            for each in warmings:
                tasks.create_task(warm_up(each))

    allow_open_files()
    occupy_standard_files()
    is_stopped = False
    with waiting_for("Warming up", [host.name for host in found]) as waiting:
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


def _clients_requests(database: Path, run_id: str | None) -> "SeenWorkload":
    """The requests of a capture or a proxy. Raises ToolkitError where no text was kept."""
    from toolkit.cli.named_run import chosen_run
    from toolkit.serving.seen_requests import workload
    from toolkit.store import Store

    with Store.open_readonly(database) as store:
        run = chosen_run(store, run_id, database, "capture", "proxy")
        asked = (seen.asked for seen in store.seen(run.id))
        found = workload((one for one in asked if one is not None), f"seen-{run.id}")
    if found.profile is None:
        raise ToolkitError(
            f"no chat's text was kept in {run.verb} `{run.id}`",
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

    def state(found: "Warmed") -> str:
        settled = counted(sum(each.phase == "settle" for each in found.rounds), "round")
        by = "" if found.measure == "ttft" else " (E2E)"
        return found.error or f"warm after {settled} at the top{by}"

    console = screen()
    columns = [
        Column("host", lambda found: found.name, widest=40, narrowest=16),
        Column("at once", lambda found: str(found.concurrency or DASH), right=True),
        Column(
            "cold",
            lambda found: latency(
                found.cold_ttft_ms if found.measure == "ttft" else found.cold_e2e_ms
            ),
            right=True,
        ),
        Column(
            "warm",
            lambda found: latency(
                found.warm_ttft_ms if found.measure == "ttft" else found.warm_e2e_ms
            ),
            right=True,
        ),
        Column("ratio", lambda found: times(found.ratio), right=True),
        Column("requests", lambda found: f"{found.requests:,}", right=True, spare=2),
        Column("errors", lambda found: f"{found.errors:,}", right=True, spare=1),
        Column("seeded", lambda found: f"{found.seeded:,}", right=True, spare=3),
        Column("state", state, widest=60, narrowest=24),
    ]
    console.records(columns, results)
    if len(results) == 1 and results[0].levels:
        word = "TTFT" if results[0].measure == "ttft" else "E2E"
        of_levels = [
            Column("at once", lambda level: f"{level.concurrency}{KINDS.get(level.kind, '')}"),
            Column(f"cold {word}", lambda level: latency(level.cold_ms), right=True),
            Column(f"warm {word}", lambda level: latency(level.warm_ms), right=True),
            Column("ratio", lambda level: times(level.ratio), right=True),
        ]
        console.print()
        console.records(of_levels, results[0].levels)
    console.print(LEGEND, style="dim")

    for found in results:
        for one in found.rounds:
            if one.ok < one.requests:
                where = f"{one.concurrency} at once{KINDS.get(one.kind, '')} ({one.phase})"
                many = f"{one.requests - one.ok} of {one.requests} failed: {one.error}"
                to_stderr(f"{found.name}: {where}: {many}")
        if late := found.late_compilations:
            why = f"{len(late)} compiled as late as in the probe: {late[0]}"
            to_stderr(f"{found.name}: {why}")
