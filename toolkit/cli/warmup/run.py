"""What `toolkit warmup` does once its command line is read: all hosts at once, each by itself, then the figures."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import click
import uvloop

from toolkit.cli.catalog import profile_from
from toolkit.cli.inputs import (
    allow_open_files,
    hosts_from,
    keys_for,
    occupy_standard_files,
    tls_for,
)
from toolkit.cli.waiting import waiting_for
from toolkit.cli.warmup.options import MOST_AT_ONCE, Options
from toolkit.cli.warmup.show import show
from toolkit.errors import ToolkitError
from toolkit.records import Host
from toolkit.serving.stack import WarmSetting
from toolkit.serving.warm.warm import Target, Warming
from toolkit.serving.warm.warm_rounds import doubling
from toolkit.serving.warm.warm_seen import Workload, workload
from toolkit.store import Store

WORKED, NOBODY_ANSWERED, INTERRUPTED = 0, 1, 130
SEEN_VERBS = ("capture", "proxy")
HINTED_RUNS = 5
KEEP_TEXTS = "Texts are kept by, e.g., `toolkit capture --store-prompts`; or name a profile: `--profile contest`"


def run_warmup(options: Options) -> int:
    """Warm every host up; the exit code."""
    hosts = hosts_from(options.hosts)
    if options.log is not None and len(hosts) > 1:
        raise click.UsageError("--log is one server's; name one host with it")
    base = _target(options, hosts[0])
    keys = keys_for(hosts)
    warmings = [
        Warming(
            replace(base, host=host, key=keys.get(host.name)),
            setting_of(options),
            _sayer(host, hosts),
        )
        for host in hosts
    ]
    with waiting_for("Warming up"):
        stopped = _run(warmings)
    told = [each.told() for each in warmings]
    show(told, as_json=options.as_json)
    if stopped:
        return INTERRUPTED
    return WORKED if any(each.measure for each in told) else NOBODY_ANSWERED


def setting_of(options: Options) -> WarmSetting:
    """What the command line asks for."""
    return WarmSetting(
        concurrency=options.concurrency or doubling(options.max_num_seqs or MOST_AT_ONCE),
        profile=options.profile,
        max_tokens=options.max_tokens,
        stream=options.stream,
        structured=options.structured,
        long_prompts=options.long,
        tolerance=options.tolerance,
        rounds=options.rounds,
        limit_s=options.limit,
    )


def _target(options: Options, host: Host) -> Target:
    """What all hosts have in common."""
    seen = _seen(options) if options.seen else None
    profile = seen.profile if seen else None
    if options.profile:
        profile = profile_from(options.profile)
    return Target(
        host=host,
        tls=tls_for(insecure=options.insecure, ca=options.ca),
        model=options.model,
        max_num_seqs=options.max_num_seqs,
        profile=profile,
        exact=seen.exact if seen else (),
        log=options.log,
    )


def _seen(options: Options) -> Workload:
    """The requests of a capture or a proxy. Raises ToolkitError where no text was kept."""
    with Store.open_readonly(options.database) as store:
        runs = [run for verb in SEEN_VERBS for run in store.runs(verb=verb)]
        runs.sort(key=lambda run: -run.started_at)
        chosen = [run for run in runs if options.run in (None, run.id)]
        if not chosen:
            known = ", ".join(f"`{run.id}`" for run in runs[:HINTED_RUNS]) or "none yet"
            what = f"no capture `{options.run}`" if options.run else "no capture"
            raise ToolkitError(f"`{options.database}` holds {what}", f"Its newest: {known}")
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
    """Run all; tell whether somebody stopped them."""

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
