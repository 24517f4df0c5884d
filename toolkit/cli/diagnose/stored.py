"""What `toolkit diagnose` knows without looking: a stored run's hosts, a capture's requests, a startup log, a model on a GPU."""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit.cli.catalog import profile_from
from toolkit.cli.inputs import open_input
from toolkit.cli.named_run import measured_hosts, run_of, verdicts_of
from toolkit.cli.places import command_on
from toolkit.cli.waiting import waiting_for
from toolkit.errors import ToolkitError
from toolkit.plan.catalog import gpu_of, model_of
from toolkit.plan.weights import weights_bytes
from toolkit.records import Run
from toolkit.serving.startup_log import Startup
from toolkit.store import Store
from toolkit.tuning.compare import side_of
from toolkit.tuning.evidence import (
    Evidence,
    evidence_of_ledger,
    evidence_of_profile,
    evidence_of_samples,
    evidence_of_seconds,
    evidence_of_shots,
    evidence_of_verdicts,
    merged,
    sample_of_sighting,
)

SWEPT = re.compile(r"sweep ([0-9a-f]{12}): ")
"""How a sweep labels the runs of its loads."""
SLACK_S = 2.0
"""Sightings so long before and after a run still belong to it."""
MOST_LOG_BYTES = 16 * 2**20
"""A start is told in its first kilobytes; what follows are requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What is known of one host, before it is judged."""

    name: str
    url: str
    evidence: Evidence
    run: str | None = None
    error: str | None = None
    """Why nothing could be seen."""


def hosts_of_run(target: str, database: Path) -> list[HostFacts]:
    """What is stored of the hosts of RUN or RUN:HOST. Raises ToolkitError where there is none."""
    run_id, _, wanted = target.partition(":")
    with waiting_for("Reading"), Store.open_readonly(database) as store:
        run = run_of(store, run_id, database)
        known = measured_hosts(store, run)
        if not known or (wanted and wanted not in known):
            raise ToolkitError(
                f"`{wanted or run.id}` is nothing that run `{run.id}` of `{run.verb}` measured",
                f"Its hosts: {', '.join(known)}"
                if known
                else "Take a run of `bench` or `blast`; `toolkit runs` lists them",
            )
        urls = {host.name: host.url for host in store.hosts_of(run.id).values()}
        urls = urls or {shot.name: shot.url for shot in store.shots(run.id)}
        verdicts = verdicts_of(store, run, everything=True)
        codes = {name: [one.code for one in found] for (name, _), found in verdicts.items()}
        return [
            HostFacts(
                name=name,
                url=urls.get(name, ""),
                run=run.id,
                evidence=_evidence(store, run, name, codes.get(name, ())),
            )
            for name in ([wanted] if wanted else known)
        ]


def _evidence(store: Store, run: Run, name: str, codes: Sequence[str]) -> Evidence:
    """Of one host: requests or seconds, counters, verdicts, sightings, profile."""
    if run.verb == "bench":
        told = merged(
            (
                evidence_of_shots(store.shots(run.id, name=name)),
                *(evidence_of_ledger(each) for each in store.ledgers(run.id) if each.name == name),
            )
        )
    else:
        cells = [cell for _, cell in sorted(side_of(store, run, name).cells.items())]
        told = evidence_of_seconds(cells, store.tallies(run.id, name=name, kind="ranked"))
    found = [told, evidence_of_verdicts(codes, client_ok=run.client_ok)]

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
    plan = run.plan
    profile = plan.get("profile")
    if isinstance(profile, str) and (run.verb != "bench" or plan.get("sameness") == "repeat"):
        with contextlib.suppress(
            ToolkitError
        ):  # the file of then is gone: what was asked is unknown
            found.append(evidence_of_profile(profile_from(profile), told.requests or 0.0))

    # a closed loop knows how many requests were under way
    at_once = plan.get("concurrency")
    is_closed = run.verb == "bench" and plan.get("rate") is None
    if is_closed and isinstance(at_once, int) and told.requests:
        found.append(Evidence(running_max=float(at_once)))
    return merged(found)


def evidence_of_capture(word: str, database: Path) -> Evidence:
    """What captured requests have in common. Raises ToolkitError where there is no such capture."""
    from toolkit.workload import columns, summarise

    with waiting_for("Reading"), Store.open_readonly(database) as store:
        newest = store.runs(verb="capture", limit=1)
        if word == "newest" and not newest:
            raise ToolkitError(f"`{database}` holds no capture yet", "`toolkit capture` makes one")
        run = newest[0] if word == "newest" else run_of(store, word, database)
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
    facts = startup.facts
    share = None
    if facts.weights_gib is not None and facts.gpu_total_gib:
        share = facts.weights_gib / facts.gpu_total_gib
    found = Evidence(
        weights_share=share,
        gpu_memory_utilization=facts.utilization,
        max_model_len=facts.max_model_len,
        kv_cache_tokens=facts.kv_tokens,
    )
    if found == Evidence():
        raise ToolkitError(
            f"`{path}` tells nothing of a start of vLLM",
            "Name the log from its first line on; `toolkit serve` keeps one for each engine in its folder",
        )
    return found


def evidence_of_model(model: str, gpu: str) -> Evidence:
    """How much of one GPU the weights take, as `toolkit plan` reckons them. Raises ToolkitError for what it does not know."""
    known = model_of(model)
    weights = weights_bytes(known.shape, None, on_disk=known.on_disk)
    return Evidence(weights_share=weights / gpu_of(gpu).memory_bytes)
