"""What `toolkit diagnose` sees of hosts while it looks at them: their pages, again and again, and this machine's GPUs."""

import asyncio
import contextlib
import ssl
from collections.abc import Sequence
from urllib.parse import urlsplit

import click

from toolkit.cli.diagnose.stored import HostFacts
from toolkit.cli.inputs import keys_for
from toolkit.cli.waiting import waiting_for
from toolkit.hosts import is_loopback
from toolkit.records import Host
from toolkit.scout.answers import Scrape
from toolkit.scout.look import Crowd, QuietMoments, Scout, follow
from toolkit.scout.sighting import examine, sight
from toolkit.tuning.evidence import Evidence, evidence_of_samples, merged, sample_of_page

EVERY_S = 1.0
LEAST_LOOKS = 5


def look_at(
    hosts: Sequence[Host], *, interval_s: float, timeout_s: float, tls: ssl.SSLContext
) -> tuple[list[HostFacts], bool]:
    """Look at all hosts side by side for the interval; with it whether somebody stopped that."""
    every_s = min(EVERY_S, interval_s / (LEAST_LOOKS - 1))
    looks = round(interval_s / every_s) + 1
    keys, quiet, crowd = keys_for(hosts), QuietMoments(), Crowd()
    found: dict[str, list[Scrape]] = {host.name: [] for host in hosts}

    async def keep(look: Scrape) -> None:
        found[look.host.name].append(look)

    async def look_side_by_side() -> None:
        async with contextlib.AsyncExitStack() as stack:
            scouts = [Scout(host, tls, keys.get(host.name), timeout_s, quiet) for host in hosts]
            for scout in scouts:
                stack.push_async_callback(scout.aclose)
            await asyncio.gather(*(follow(scout, looks, every_s, keep, crowd) for scout in scouts))

    what = hosts[0].url if len(hosts) == 1 else f"{len(hosts)} hosts"
    click.echo(f"Looking at {what} for {interval_s:g} s", err=True)
    stopped = False
    try:
        with waiting_for("Looking"):
            asyncio.run(look_side_by_side())
    except KeyboardInterrupt:
        click.echo("Stopped: judged by what was seen", err=True)
        stopped = True

    here = {host.name for host in hosts if is_loopback(urlsplit(host.url).hostname or "")}
    gpu = _gpu_here() if here else Evidence()
    seen = []
    for host in hosts:
        samples = []
        for look in found[host.name]:
            evidence = examine(look)
            if evidence.page is None or evidence.metrics.answered_at is None:
                continue
            sample = sample_of_page(
                evidence.page,
                at_s=evidence.metrics.answered_at,
                wall_s=look.at,
                max_model_len=sight(evidence).max_model_len,
                content_type=evidence.metrics.content_type,
            )
            if sample is not None:
                samples.append(sample)
        error = None
        if len(samples) < 2:
            last = found[host.name][-1:]
            error = sight(examine(last[0])).error if last else "it was not looked at"
            error = error or "its `/metrics` was no engine's, or came only once"
        known = [evidence_of_samples(samples), *([gpu] if host.name in here else [])]
        seen.append(HostFacts(name=host.name, url=host.url, evidence=merged(known), error=error))
    return seen, stopped


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
    throttled = None
    if busiest.limits is not None:
        throttled = any(limit in HELD_DOWN for limit in busiest.limits)
    return Evidence(
        gpu_busy_share=busiest.busy_share,
        gpu_throttled=throttled,
        gpu_memory_used_share=used,
    )
