"""What `toolkit diagnose` knows of the hosts of a stored run: requests, seconds, counters, verdicts, sightings, profile."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from toolkit.cli.catalog import profile_from
from toolkit.cli.diagnose.options import DiagnoseOptions
from toolkit.cli.diagnose.seen import HostFacts
from toolkit.cli.named_run import measured_hosts, run_of
from toolkit.cli.places import command_on
from toolkit.cli.waiting import waiting_for
from toolkit.errors import ToolkitError
from toolkit.records import Run, Verdict
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


def seen_in_run(options: DiagnoseOptions) -> list[HostFacts]:
    """What is stored of the hosts that the target names. Raises ToolkitError where there is none."""
    run_id, _, name = options.target.partition(":")
    with waiting_for("Reading"), Store.open_readonly(options.database) as store:
        run = run_of(store, run_id, options.database)
        known = measured_hosts(store, run)
        if not known or (name and name not in known):
            raise ToolkitError(
                f"`{name or run.id}` is nothing that run `{run.id}` of `{run.verb}` measured",
                f"Its hosts: {', '.join(known)}"
                if known
                else "Take a run of `bench` or `blast`; `toolkit runs` lists them",
            )
        urls, codes = _urls(store, run), _verdicts(store, run)
        return [
            HostFacts(
                name=each,
                url=urls.get(each, ""),
                run=run.id,
                evidence=_evidence(store, run, each, codes.get(each, ())),
            )
            for each in ([name] if name else known)
        ]


def _urls(store: Store, run: Run) -> dict[str, str]:
    planned = {host.name: host.url for host in store.hosts_of(run.id).values()}
    return planned or {shot.name: shot.url for shot in store.shots(run.id)}


def _evidence(store: Store, run: Run, name: str, codes: Sequence[str]) -> Evidence:
    of_verb = _of_bench if run.verb == "bench" else _of_blast
    told = of_verb(store, run, name)
    requests = told.requests or 0.0
    return merged(
        (
            told,
            evidence_of_verdicts(codes, client_ok=run.client_ok),
            _of_sightings(store, run, name),
            _of_profile(run, requests),
            _of_plan(run, told),
        )
    )


def _of_bench(store: Store, run: Run, name: str) -> Evidence:
    ledgers = [evidence_of_ledger(each) for each in store.ledgers(run.id) if each.name == name]
    return merged((evidence_of_shots(store.shots(run.id, name=name)), *ledgers))


def _of_blast(store: Store, run: Run, name: str) -> Evidence:
    side = side_of(store, run, name)
    cells = [side.cells[place] for place in sorted(side.cells)]
    return merged(
        (
            evidence_of_seconds(cells, store.tallies(run.id, name=name, kind="ranked")),
            _of_sweep(store, run),
        )
    )


def _of_sweep(store: Store, run: Run) -> Evidence:
    """Of a load that a sweep made, what came of the requests for JSON that it sent after it."""
    for _, event in store.events(run.id):
        of_sweep = SWEPT.match(event.text) if event.kind == "config" else None
        told = store.capture(of_sweep[1]) if of_sweep else None
        for cell in (told or {}).get("cells", {}).values():
            if cell.get("run") == run.id:
                share = cell.get("figures", {}).get("invalid_json_ratio")
                return Evidence(structured_failure_share=share)
    return Evidence()


def _verdicts(store: Store, run: Run) -> dict[str, list[str]]:
    """Each host's codes. A bench's are stored; a blast's the board judges whenever somebody looks, once for all hosts."""
    if run.verb == "bench":
        return {name: _codes(found) for (name, _), found in store.verdicts(run.id).items()}
    from toolkit.board.feed import Feed

    feed = Feed(store, run, everything=True)
    feed.refresh()
    end_s = feed.end_s
    if end_s is None:
        return {}
    board = feed.board(window_s=max(1, end_s - feed.start_s + 1))
    return {standing.name: _codes(standing.verdicts) for standing in board.standings}


def _codes(verdicts: Iterable[Verdict]) -> list[str]:
    return [verdict.code for verdict in verdicts]


def _of_sightings(store: Store, run: Run, name: str) -> Evidence:
    """What scout saw of it meanwhile."""
    last = run.ended_at if run.ended_at is not None else store.last_second(run.id)
    if last is None:
        return Evidence()
    seen = store.sightings_between(run.started_at - SLACK_S, last + SLACK_S, names=[name])
    samples = [sample_of_sighting(each, store.readings(each)) for each in seen]
    return evidence_of_samples([sample for sample in samples if sample is not None])


def _of_profile(run: Run, requests: float) -> Evidence:
    """What its prompts have in common. A bench marks its prompts, so that they share nothing, unless it repeats them."""
    settings = run.plan
    word = settings.get("profile")
    if not isinstance(word, str) or (run.verb == "bench" and settings.get("sameness") != "repeat"):
        return Evidence()
    try:
        return evidence_of_profile(profile_from(word), requests)
    except ToolkitError:  # the file of then is gone: what was asked is unknown
        return Evidence()


def _of_plan(run: Run, told: Evidence) -> Evidence:
    """A closed loop knows how many requests were under way."""
    concurrency = run.plan.get("concurrency")
    is_closed = run.verb == "bench" and run.plan.get("rate") is None
    if not is_closed or not isinstance(concurrency, int) or not told.requests:
        return Evidence()
    return Evidence(running_max=float(concurrency))


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
