"""What `toolkit warmup` does once its command line is read: all hosts at once, each by itself, then a table or JSON lines."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import uvloop

from toolkit.cli.catalog import profile_from
from toolkit.cli.exit_codes import FAILED, INTERRUPTED, WORKED
from toolkit.cli.inputs import (
    allow_open_files,
    hosts_from,
    keys_for,
    occupy_standard_files,
    tls_for,
)
from toolkit.cli.output import print_json
from toolkit.cli.waiting import waiting_for
from toolkit.cli.warmup.verb import MOST_AT_ONCE
from toolkit.errors import ToolkitError
from toolkit.records import Host
from toolkit.report.tables import Column, screen
from toolkit.serving.seen_requests import SeenWorkload, workload
from toolkit.serving.stack import WarmSetting
from toolkit.serving.warmup import Warmed, Warming, doubling
from toolkit.store import Store
from toolkit.units import DASH, counted, latency

SEEN_VERBS = ("capture", "proxy")
HINTED_RUNS = 5
KEEP_TEXTS = "Texts are kept by, e.g., `toolkit capture --store-prompts`; or name a profile: `--profile contest`"
LEGEND = (
    "cold: median of the first round at that load; warm: of the last one. TTFT: send to the first chunk with a token. The row of a host"
    " is the lowest load, which was asked first: the same at every start."
)
KINDS = {"structured": " structured", "long": " long"}


def run_warmup(
    *,
    hosts: tuple[str, ...],
    concurrency: tuple[int, ...],
    max_num_seqs: int | None,
    profile: str | None,
    seen: bool,
    run: str | None,
    long: bool,
    limit: float,
    log: Path | None,
    model: str | None,
    as_json: bool,
    database: Path,
    insecure: bool,
    ca: str | None,
    **plain: Any,
) -> int:
    """Warm every host up; the exit code. `plain`: the fields of WarmSetting that are options, too."""
    found = hosts_from(hosts)
    if log is not None and len(found) > 1:
        raise click.UsageError("--log is one server's; name one host with it")
    setting = WarmSetting(
        concurrency=concurrency or doubling(max_num_seqs or MOST_AT_ONCE),
        profile=profile,
        long_prompts=long,
        limit_s=limit,
        **plain,
    )
    clients = _seen(database, run) if seen else None
    prompts = clients.profile if clients else None
    keys, tls = keys_for(found), tls_for(insecure=insecure, ca=ca)
    warmings = [
        Warming(
            host=host,
            setting=setting,
            key=keys.get(host.name),
            tls=tls,
            model=model,
            max_num_seqs=max_num_seqs,
            profile=profile_from(profile) if profile else prompts,
            exact=clients.exact if clients else (),
            log=log,
            say=_sayer(host, found),
        )
        for host in found
    ]
    with waiting_for("Warming up"):
        is_stopped = _run(warmings)
    results = [each.found for each in warmings]
    if as_json:
        for each in results:
            print_json(asdict(each))
    else:
        show(results)
    if is_stopped:
        return INTERRUPTED
    return WORKED if any(each.measure for each in results) else FAILED


def _seen(database: Path, run: str | None) -> SeenWorkload:
    """The requests of a capture or a proxy. Raises ToolkitError where no text was kept."""
    with Store.open_readonly(database) as store:
        runs = [each for verb in SEEN_VERBS for each in store.runs(verb=verb)]
        runs.sort(key=lambda each: -each.started_at)
        chosen = [each for each in runs if run in (None, each.id)]
        if not chosen:
            known = ", ".join(f"`{each.id}`" for each in runs[:HINTED_RUNS]) or "none yet"
            what = f"no capture `{run}`" if run else "no capture"
            raise ToolkitError(f"`{database}` holds {what}", f"Its newest: {known}")
        asked = (seen.asked for seen in store.seen(chosen[0].id))
        found = workload((one for one in asked if one is not None), f"seen-{chosen[0].id}")
    if found.profile is None:
        raise ToolkitError(f"no chat's text was kept in capture `{chosen[0].id}`", KEEP_TEXTS)
    if found.left_out:
        click.echo(
            f"Note: of {found.left_out} different requests not everything was kept; they seed no response cache",
            err=True,
        )
    return found


def _sayer(host: Host, hosts: list[Host]) -> Callable[[str], None]:
    head = f"{host.name}: " if len(hosts) > 1 else ""
    return lambda sentence: click.echo(f"{head}{sentence}", err=True)


def _run(warmings: list[Warming]) -> bool:
    """Run all; whether somebody stopped them."""

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            for each in warmings:
                tasks.create_task(each.run())

    allow_open_files()
    occupy_standard_files()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())
    except (KeyboardInterrupt, asyncio.CancelledError):
        return True
    return False


def show(results: Sequence[Warmed]) -> None:
    """A row for each host, of one host a row for each load; on stderr what a person should know beside the figures."""
    figures = [
        Column(title="cold", right=True),
        Column(title="warm", right=True),
        Column(title="ratio", right=True),
    ]
    columns = [
        Column(title="host", widest=40),
        Column(title="at once", right=True),
        *figures,
        Column(title="requests", right=True, spare=2),
        Column(title="errors", right=True, spare=1),
        Column(title="seeded", right=True, spare=3),
        Column(title="state", widest=60),
    ]
    console = screen()
    console.table(columns, [_row(each) for each in results])
    if len(results) == 1 and results[0].levels:
        word = "TTFT" if results[0].measure == "ttft" else "E2E"
        named = [Column(title=f"{title} {word}", right=True) for title in ("cold", "warm")]
        rows = [
            [
                f"{each.concurrency}{KINDS.get(each.kind, '')}",
                latency(each.cold_ms),
                latency(each.warm_ms),
                ratio(each.ratio),
            ]
            for each in results[0].levels
        ]
        console.table([Column(title="at once"), *named, figures[2]], rows)
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


def _row(found: Warmed) -> list[str]:
    is_streamed = found.measure == "ttft"
    settled = sum(each.phase == "settle" for each in found.rounds)
    state = f"warm after {counted(settled, 'round')} at the top{'' if is_streamed else ' (E2E)'}"
    return [
        found.name,
        DASH if found.concurrency is None else str(found.concurrency),
        latency(found.cold_ttft_ms if is_streamed else found.cold_e2e_ms),
        latency(found.warm_ttft_ms if is_streamed else found.warm_e2e_ms),
        ratio(found.ratio),
        f"{found.requests:,}",
        f"{found.errors:,}",
        f"{found.seeded:,}",
        found.error or state,
    ]


def ratio(value: float | None) -> str:
    """`407x`, `2.7x`."""
    if value is None:
        return DASH
    return f"{value:,.0f}x" if value >= 10 else f"{value:.2g}x"
