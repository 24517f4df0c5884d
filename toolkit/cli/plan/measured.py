"""Where a plan's figures come from: a running server (`--host`), stored runs (`--run`), a workload's report (`--workload`)."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.cli.inputs import allow_open_files, open_input, tls_for
from toolkit.cli.named_run import chosen_run, measured_hosts
from toolkit.cli.waiting import waiting_for
from toolkit.errors import ToolkitError, reason_of
from toolkit.hosts import one_host
from toolkit.stats import Sketch, mean, merged

if TYPE_CHECKING:
    from toolkit.records import Run, Sighting
    from toolkit.store import Store

VERBS = ("capture", "bench", "blast")
POINTS = 200
"""Quantiles that a mean is taken over: a sketch is exact to 1 %, and this is finer."""
TIMEOUT_S = 5.0
LONGEST_REPORT = 64 * 2**20
"""Bytes; a report has some kilobytes."""
HOW = "Make it with `toolkit workload --json > workload.json`"


# --- a running server ---------------------------------------------------------------------------------


def probed(url: str, *, insecure: bool, ca: str | None) -> "Sighting":
    """One look at a server. Raises ToolkitError where no engine answers."""
    import asyncio

    from toolkit.metrics.names import GATEWAYS
    from toolkit.scout.scrape import Pacing, Scout
    from toolkit.scout.sighting import describe, examine

    allow_open_files()
    host = one_host(url)
    tls = tls_for(insecure=insecure, ca=ca)

    async def look() -> "Sighting":
        scout = Scout(host, tls, None, TIMEOUT_S, Pacing())
        try:
            return describe(examine(await scout.scrape()))
        finally:
            await scout.aclose()

    with waiting_for(f"Looking at {host.url}"):
        seen = asyncio.run(look())
    if seen.status in ("down", "not_an_engine") or seen.engine in GATEWAYS:
        raise ToolkitError(
            f"`{seen.url}` cannot be scraped: {seen.error or 'it is a gateway'}",
            "Give the address of the inference server itself; `toolkit scout` shows what answers there",
        )
    return seen


def remembered(name: str, database: Path, runs: Iterable[str]) -> "Sighting | None":
    """A host as scout last saw it; None: never, but one of these runs measured it. Raises ToolkitError."""
    from toolkit.store import Store

    with Store.open_readonly(database) as store:
        urls = {one.url for one in store.sightings(name)}
        seen = [last for url in urls if (last := store.last_telling(name, url))]
        found = [run for each in runs if (run := store.run(each)) is not None]
        is_measured = any(name in measured_hosts(store, run) for run in found)
        known = ", ".join(store.known_names()) or "none yet"
    if seen:
        return max(seen, key=lambda one: one.at)
    if is_measured:
        return None
    raise ToolkitError(
        f"`{database}` has no sighting of `{name}`",
        f"Known hosts: {known}; or give the server's URL, e.g., `--host http://10.0.0.4:8000`",
    )


# --- a workload's report ------------------------------------------------------------------------------


def workload_report(word: str) -> Mapping[str, Any]:
    """What `toolkit workload --json` wrote to a file, or to standard input for `-`. Raises ToolkitError."""
    name = "standard input" if word == "-" else word
    with open_input(word, HOW) as file:
        try:
            report = json.loads(file.read(LONGEST_REPORT))
        except OSError as error:
            raise ToolkitError(f"`{name}` cannot be read: {reason_of(error)}", HOW) from error
        except (ValueError, RecursionError):
            report = None
    if not isinstance(report, dict):
        raise ToolkitError(f"`{name}` is not one JSON object", HOW)
    return report


# --- stored runs --------------------------------------------------------------------------------------


@dataclass(slots=True)
class MeasuredRuns:
    """What runs show; later ones fill what earlier ones left open."""

    seconds: float | None = None
    """Mean E2E of the ok requests."""
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    report: dict[str, Any] | None = None
    """A capture's, as `toolkit workload --json` prints it."""
    sources: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def fill(self, **values: Any) -> None:
        """Take what is not known yet."""
        for name, value in values.items():
            if getattr(self, name) is None:
                setattr(self, name, value)


def measured(ids: Iterable[str], database: Path, host: str | None) -> MeasuredRuns:
    """Read runs; `host`: whose times count where a run measured several. Raises ToolkitError."""
    from toolkit.store import Store

    found = MeasuredRuns()
    with waiting_for("Reading"), Store.open_readonly(database) as store:
        for run_id in ids:
            run = chosen_run(store, run_id, database, *VERBS)
            if run.verb == "capture":
                from toolkit.workload import columns, summarise

                found.fill(report=asdict(summarise(columns(store.seen(run.id)))))
                found.sources.append(f"capture `{run.id}`")
            elif run.verb == "bench":
                add_bench(found, store, run, host)
            else:
                add_blast(found, store, run, host)
    return found


def add_bench(found: MeasuredRuns, store: "Store", run: "Run", host: str | None) -> None:
    """The mean of the unique requests at its highest concurrency level, which is the nearest to a server that is full."""
    shots = [
        one
        for one in store.shots(run.id)
        if one.ok and one.kind != "warmup" and one.e2e_ms is not None
    ]
    name = only_host(sorted({one.name for one in shots}), run, host)
    own = [one for one in shots if one.name == name]
    most = max((one.concurrency or 0 for one in own), default=0)
    highest = [one for one in own if (one.concurrency or 0) == most]
    # what was sent before may come from a cache
    kept = [one for one in highest if one.kind == "unique"] or highest
    found.fill(
        seconds=mean((one.e2e_ms or 0.0) / 1000 for one in kept),
        prompt_tokens=mean(one.prompt_tokens for one in kept),
        output_tokens=mean(one.output_tokens for one in kept),
    )
    at = f", {most} at once" if most else ""
    found.sources.append(f"bench `{run.id}` of {name}{at}")
    if most:
        found.notes.append(
            f"the time of a request was measured with {most} at once: with more at once each takes longer"
        )


def add_blast(found: MeasuredRuns, store: "Store", run: "Run", host: str | None) -> None:
    """The mean of all ranked requests of one host."""
    sums = {
        name: one
        for (name, _, kind), one in store.tally_sums(run.id).items()
        if kind == "ranked" and one.ok
    }
    name = only_host(sorted(sums), run, host)
    total = sums[name]
    parts = store.tallies(run.id, name=name, kind="ranked")
    sketch = Sketch.from_bytes(merged(one.e2e for one in parts if one.e2e))
    if sketch.count:
        places = ((place + 0.5) / POINTS for place in range(POINTS))
        found.fill(seconds=mean((sketch.quantile(place) or 0.0) / 1000 for place in places))
    if total.prompt_tokens:
        found.fill(prompt_tokens=total.prompt_tokens / total.ok)
    if total.output_tokens:
        found.fill(output_tokens=total.output_tokens / total.ok)
    found.sources.append(f"blast `{run.id}` of {name}")
    if hits := total.cache_hits + total.cache_inferred:
        found.notes.append(
            f"{hits / total.ok:.0%} of that blast's answers came from a response cache: their times are not the engine's"
        )


def only_host(names: list[str], run: "Run", host: str | None) -> str:
    """The one host whose times count. Raises ToolkitError where it is not clear which."""
    if host in names:
        return host
    if len(names) == 1:
        return names[0]
    if not names:
        raise ToolkitError(f"run `{run.id}` has no request that was answered", "Choose another run")
    raise ToolkitError(
        f"run `{run.id}` measured {len(names)} hosts: {', '.join(names)}",
        f"Say which one: `--host {names[0]}`",
    )
