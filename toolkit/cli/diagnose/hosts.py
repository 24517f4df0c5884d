"""What is known of hosts, for `toolkit diagnose` to judge: of servers that are looked at now, again and again, or of a stored run.

Beside it what a capture, a startup log, or a model on a GPU tells.
"""

import asyncio
import contextlib
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import click

from toolkit.cli.catalog import profile_from
from toolkit.cli.inputs import keys_for, open_input
from toolkit.cli.named_run import chosen_run, measured_hosts, verdicts_of
from toolkit.cli.places import command_on
from toolkit.cli.waiting import waiting_for
from toolkit.errors import ToolkitError
from toolkit.hosts import is_loopback
from toolkit.plan.catalog import gpu_of, model_of
from toolkit.plan.weights import weights_bytes
from toolkit.records import Host, Run
from toolkit.scout.pages import Scrape
from toolkit.scout.scrape import Pacing, Scout
from toolkit.scout.sighting import describe, examine
from toolkit.scout.watch import follow
from toolkit.serving.startup_log import Startup
from toolkit.store import Store
from toolkit.tuning.compare import side_of
from toolkit.tuning.evidence import (
    Evidence,
    evidence_of_ledger,
    evidence_of_profile,
    evidence_of_requests,
    evidence_of_samples,
    evidence_of_seconds,
    evidence_of_verdicts,
    merged,
    sample_of_page,
    sample_of_sighting,
)

EVERY_S = 1.0
LEAST_LOOKS = 5
SWEPT = re.compile(r"sweep ([0-9a-f]{12}): ")
"""How a sweep labels the runs of its loads."""
SLACK_S = 2.0
"""Sightings so long before and after a run still belong to it."""
MOST_LOG_BYTES = 16 * 2**20
"""A start stands in its first kilobytes; what follows are requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What is known of one host, before it is judged."""

    name: str
    url: str
    evidence: Evidence
    run: str | None = None
    error: str | None = None
    """Why nothing could be seen."""


# --- looked at now ----------------------------------------------------------------------------------------


def look_at(
    hosts: Sequence[Host], *, interval_s: float, timeout_s: float, tls: ssl.SSLContext
) -> tuple[list[HostFacts], bool]:
    """Look at all hosts side by side for the interval; with it whether somebody stopped that."""
    every_s = min(EVERY_S, interval_s / (LEAST_LOOKS - 1))
    looks = round(interval_s / every_s) + 1
    keys, pacing = keys_for(hosts), Pacing()
    found: dict[str, list[Scrape]] = {host.name: [] for host in hosts}

    async def keep(scrape: Scrape) -> None:
        found[scrape.host.name].append(scrape)

    async def look_side_by_side() -> None:
        async with contextlib.AsyncExitStack() as stack:
            scouts = [Scout(host, tls, keys.get(host.name), timeout_s, pacing) for host in hosts]
            for scout in scouts:
                stack.push_async_callback(scout.aclose)
            await asyncio.gather(*(follow(scout, looks, every_s, keep) for scout in scouts))

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
    return [
        _seen(host, found[host.name], gpu if host.name in here else Evidence()) for host in hosts
    ], stopped


def _seen(host: Host, scrapes: Sequence[Scrape], gpu: Evidence) -> HostFacts:
    samples, error = [], "it was not scraped"
    for scrape in scrapes:
        pages = examine(scrape)
        snapshot = describe(pages)
        error = snapshot.error or "its `/metrics` was no engine's, or came only once"
        if pages.page is None or pages.metrics.answered_at is None:
            continue
        sample = sample_of_page(
            pages.page,
            at_s=pages.metrics.answered_at,
            max_model_len=snapshot.max_model_len,
            content_type=pages.metrics.content_type,
        )
        if sample is not None:
            samples.append(sample)
    return HostFacts(
        name=host.name,
        url=host.url,
        evidence=merged((evidence_of_samples(samples), gpu)),
        error=error if len(samples) < 2 else None,
    )


def _gpu_here() -> Evidence:
    """What NVML says of this machine's GPUs; which of them a server uses it does not say, so the busiest stands for all."""
    from toolkit.serving.preflight.gpu import HELD_DOWN, gpus

    known = [gpu for gpu in gpus().gpus if gpu.busy_share is not None]
    if not known:
        return Evidence()
    busiest = max(known, key=lambda gpu: gpu.busy_share or 0.0)
    limits = busiest.limits
    return Evidence(
        gpu_busy_share=busiest.busy_share,
        gpu_throttled=None if limits is None else any(limit in HELD_DOWN for limit in limits),
    )


# --- stored -----------------------------------------------------------------------------------------------


def hosts_of_run(target: str, database: Path) -> list[HostFacts]:
    """What is stored of the hosts of RUN or RUN:HOST. Raises ToolkitError where there is none."""
    run_id, _, wanted = target.partition(":")
    with waiting_for("Reading"), Store.open_readonly(database) as store:
        run = chosen_run(store, run_id, database)
        known = measured_hosts(store, run)
        if not known or (wanted and wanted not in known):
            raise ToolkitError(
                f"`{wanted or run.id}` is nothing that run `{run.id}` of `{run.verb}` measured",
                f"Its hosts: {', '.join(known)}"
                if known
                else "Take a run of `bench` or `blast`; `toolkit runs` lists them",
            )
        urls = {host.name: host.url for host in store.hosts_of(run.id).values()}
        urls = urls or {each.name: each.url for each in store.shots(run.id)}
        verdicts = verdicts_of(store, run, everything=True)
        codes = {name: [one.code for one in found] for (name, _), found in verdicts.items()}
        facts = []
        for name in [wanted] if wanted else known:
            evidence = _stored_evidence(store, run, name, codes.get(name, ()))
            facts.append(
                HostFacts(name=name, url=urls.get(name, ""), run=run.id, evidence=evidence)
            )
        return facts


def _stored_evidence(store: Store, run: Run, name: str, codes: Sequence[str]) -> Evidence:
    """Of one host: requests or seconds, counters, verdicts, sightings, profile."""
    is_bench, plan = run.verb == "bench", run.plan
    if is_bench:
        found = [evidence_of_requests(store.shots(run.id, name=name))]
        found += [evidence_of_ledger(each) for each in store.ledgers(run.id) if each.name == name]
    else:
        cells = [cell for _, cell in sorted(side_of(store, run, name).cells.items())]
        found = [evidence_of_seconds(cells)]
    requests = found[0].requests
    found.append(evidence_of_verdicts(codes, client_ok=run.client_ok))

    # of a load that a sweep made, what came of the requests for JSON that it sent after it
    for _, event in store.events(run.id):
        swept = SWEPT.match(event.text) if event.kind == "config" else None
        cells_of_sweep = (store.capture(swept[1]) or {}).get("cells", {}) if swept else {}
        for cell in cells_of_sweep.values():
            if cell.get("run") == run.id:
                share = cell.get("figures", {}).get("invalid_json_ratio")
                found.append(Evidence(structured_failure_share=share))

    # what scout saw of it meanwhile
    last = run.ended_at if run.ended_at is not None else store.last_second(run.id)
    if last is not None:
        seen = store.sightings_between(run.started_at - SLACK_S, last + SLACK_S, names=[name])
        samples = [sample_of_sighting(each, store.readings(each)) for each in seen]
        found.append(evidence_of_samples([sample for sample in samples if sample is not None]))

    # what its prompts have in common; a bench marks them, so that they share nothing, unless it repeats them
    profile = plan.get("profile")
    if isinstance(profile, str) and (not is_bench or plan.get("sameness") == "repeat"):
        # the file of then may be gone: what was sent is unknown
        with contextlib.suppress(ToolkitError):
            found.append(evidence_of_profile(profile_from(profile), requests or 0.0))

    # a closed loop knows how many requests were in flight
    at_once = plan.get("concurrency")
    if is_bench and plan.get("rate") is None and isinstance(at_once, int) and requests:
        found.append(Evidence(running_max=float(at_once)))
    return merged(found)


def evidence_of_capture(word: str, database: Path) -> Evidence:
    """What captured requests have in common. Raises ToolkitError where there is no such capture."""
    from toolkit.workload import columns, summarise

    with waiting_for("Reading"), Store.open_readonly(database) as store:
        verbs = ("capture",) if word == "newest" else ()
        run = chosen_run(store, None if word == "newest" else word, database, *verbs)
        report = summarise(columns(store.seen(run.id)))
    if not report.requests:
        raise ToolkitError(
            f"run `{run.id}` of `{run.verb}` holds no requests",
            f"Name a capture; `{command_on(database, 'runs')}` lists them",
        )
    unique, longest = report.unique_canonical, report.model_length.longest
    return Evidence(
        repeat_share=None if unique is None else 1 - unique / report.requests,
        shared_prefix_share=report.prefix_share,
        longest_request_tokens=None if longest is None else float(longest),
    )


def evidence_of_log(path: Path) -> Evidence:
    """What vLLM says of itself while it starts. Each worker speaks of its own GPU. Raises ToolkitError."""
    startup = Startup()
    with open_input(str(path), "Name vLLM's log") as file:
        text = file.read(MOST_LOG_BYTES).decode(errors="replace")
    for line in text.splitlines():
        startup.feed(line)
    facts, share = startup.facts, None
    if facts.weights_gib is not None and facts.gpu_total_gib:
        share = facts.weights_gib / facts.gpu_total_gib
    found = Evidence(
        weights_share=share,
        gpu_memory_utilization=facts.utilization,
        max_model_len=facts.max_model_len,
    )
    if found == Evidence() and facts.kv_tokens is None:
        raise ToolkitError(
            f"`{path}` holds no log of a start of vLLM",
            "Name the log from its first line on; `toolkit serve` keeps one for each engine in its folder",
        )
    return found


def evidence_of_model(model: str, gpu: str) -> Evidence:
    """How much of one GPU the weights take, as `toolkit plan` reckons them. Raises ToolkitError for what it does not know."""
    known = model_of(model)
    weights = weights_bytes(known.shape, None, on_disk=known.on_disk)
    return Evidence(weights_share=weights / gpu_of(gpu).memory_bytes)
