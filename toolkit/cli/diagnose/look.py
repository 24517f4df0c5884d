"""What `toolkit diagnose` sees of hosts while it looks at them: their pages, again and again, and this machine's GPUs."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

import click

from toolkit.cli.diagnose.options import DiagnoseOptions
from toolkit.cli.diagnose.seen import HostFacts
from toolkit.cli.inputs import allow_open_files, hosts_from, keys_for, tls_for
from toolkit.cli.waiting import waiting_for
from toolkit.records import Host
from toolkit.scout.answers import Scrape
from toolkit.scout.evidence import examine
from toolkit.scout.look import Crowd, QuietMoments, Scout, follow
from toolkit.scout.sighting import sight
from toolkit.tuning.evidence import (
    Evidence,
    LoadSample,
    evidence_of_samples,
    merged,
    sample_of_page,
)

EVERY_S = 1.0
LEAST_LOOKS = 5
HERE = frozenset({"127.0.0.1", "localhost", "::1"})


def seen_now(options: DiagnoseOptions) -> list[HostFacts]:
    """Look at all hosts side by side for the interval."""
    hosts = hosts_from([options.target])
    allow_open_files()
    every_s = min(EVERY_S, options.interval / (LEAST_LOOKS - 1))
    looks = round(options.interval / every_s) + 1
    what = hosts[0].url if len(hosts) == 1 else f"{len(hosts)} hosts"
    click.echo(f"Looking at {what} for {options.interval:g} s", err=True)
    found: dict[str, list[Scrape]] = {host.name: [] for host in hosts}
    stopped = False
    try:
        with waiting_for("Looking"):
            asyncio.run(_look(hosts, options, found, looks, every_s))
    except KeyboardInterrupt:
        click.echo("Stopped: judged by what was seen", err=True)
        stopped = True
    gpu = _gpu_here() if any(_is_here(host) for host in hosts) else Evidence()
    seen = [_seen(host, found[host.name], gpu if _is_here(host) else Evidence()) for host in hosts]
    return [replace(each, stopped=stopped) for each in seen]


async def _look(
    hosts: Sequence[Host],
    options: DiagnoseOptions,
    found: Mapping[str, list[Scrape]],
    looks: int,
    every_s: float,
) -> None:
    tls, keys = tls_for(insecure=options.insecure, ca=options.ca), keys_for(hosts)
    quiet, crowd = QuietMoments(), Crowd()

    async def keep(look: Scrape) -> None:
        found[look.host.name].append(look)

    async with contextlib.AsyncExitStack() as stack:
        scouts = [Scout(host, tls, keys.get(host.name), options.timeout, quiet) for host in hosts]
        for scout in scouts:
            stack.push_async_callback(scout.aclose)
        await asyncio.gather(*(follow(scout, looks, every_s, keep, crowd) for scout in scouts))


def _seen(host: Host, looks: Sequence[Scrape], gpu: Evidence) -> HostFacts:
    samples = [sample for look in looks if (sample := _sample(look)) is not None]
    error = None
    if len(samples) < 2:
        last = sight(examine(looks[-1])).error if looks else "it was not looked at"
        error = last or "its `/metrics` was no engine's, or came only once"
    return HostFacts(
        name=host.name,
        url=host.url,
        evidence=merged((evidence_of_samples(samples), gpu)),
        error=error,
    )


def _sample(look: Scrape) -> LoadSample | None:
    evidence = examine(look)
    page, at_s = evidence.page, evidence.metrics.answered_at
    if page is None or at_s is None:
        return None
    return sample_of_page(
        page,
        at_s=at_s,
        wall_s=look.at,
        max_model_len=sight(evidence).max_model_len,
        content_type=evidence.metrics.content_type,
    )


def _is_here(host: Host) -> bool:
    return urlsplit(host.url).hostname in HERE


def _gpu_here() -> Evidence:
    """What NVML says of this machine's GPUs; which of them a server uses it does not say, so the busiest stands for all."""
    from toolkit.serving.preflight.gpu import HELD_DOWN, gpus

    known = [gpu for gpu in gpus().gpus if gpu.busy_share is not None]
    if not known:
        return Evidence()
    busiest = max(known, key=lambda gpu: gpu.busy_share or 0.0)
    used = None
    if busiest.total_bytes and busiest.free_bytes is not None:
        used = 1 - busiest.free_bytes / busiest.total_bytes
    return Evidence(
        gpu_busy_share=busiest.busy_share,
        gpu_throttled=None
        if busiest.limits is None
        else any(limit in HELD_DOWN for limit in busiest.limits),
        gpu_memory_used_share=used,
    )
