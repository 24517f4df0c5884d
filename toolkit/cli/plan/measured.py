"""What others tell a plan: a running server (`--host`), stored runs (`--run`), a workload's report (`--workload`)."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from toolkit.cli.inputs import allow_open_files, open_input, tls_for
from toolkit.cli.named_run import measured_hosts, newest_runs
from toolkit.cli.waiting import waiting_for
from toolkit.errors import ToolkitError, reason_of
from toolkit.hosts import one_host
from toolkit.stats import Sketch, merged

if TYPE_CHECKING:
    from toolkit.records import Run, Sighting
    from toolkit.store import Store

Value = TypeVar("Value")
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
    from toolkit.scout.sighting import examine, sight

    allow_open_files()
    host = one_host(url)
    tls = tls_for(insecure=insecure, ca=ca)

    async def look() -> "Sighting":
        scout = Scout(host, tls, None, TIMEOUT_S, Pacing())
        try:
            return sight(examine(await scout.scrape()))
        finally:
            await scout.aclose()

    with waiting_for(f"Looking at {host.url}"):
        seen = asyncio.run(look())
    if seen.status in ("down", "not_an_engine") or seen.engine in GATEWAYS:
        raise ToolkitError(
            f"`{seen.url}` cannot be looked at: {seen.error or 'it is a gateway'}",
            "Give the address of the inference server itself; `toolkit scout` shows what answers there",
        )
    return seen


def remembered(name: str, database: Path, runs: Iterable[str]) -> "Sighting | None":
    """A host as scout last saw it; None: never, but one of these runs measured it. Raises ToolkitError."""
    from toolkit.store import Store

    with Store.open_readonly(database) as store:
        urls = {one.url for one in store.sightings(name)}
        told = [last for url in urls if (last := store.last_telling(name, url))]
        found = [run for each in runs if (run := store.run(each)) is not None]
        is_measured = any(name in measured_hosts(store, run) for run in found)
        known = ", ".join(store.known_names()) or "none yet"
    if told:
        return max(told, key=lambda one: one.at)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRuns:
    """What runs tell; later ones fill what earlier ones left open."""

    seconds: float | None = None
    """Mean E2E of the ok requests."""
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    report: dict[str, Any] | None = None
    """A capture's, as `toolkit workload --json` prints it."""
    told: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def measured(ids: Iterable[str], database: Path, host: str | None) -> MeasuredRuns:
    """Read runs; `host`: whose times count where a run measured several. Raises ToolkitError."""
    from toolkit.store import Store

    found = []
    with waiting_for("Reading"), Store.open_readonly(database) as store:
        for run_id in ids:
            run = store.run(run_id)
            if run is None or run.verb not in VERBS:
                newest = newest_runs(store, *VERBS)
                known = ", ".join(f"`{one.id}` ({one.verb})" for one in newest)
                what = f"`{database}` has no run `{run_id}`"
                if run is not None:
                    what = f"run `{run_id}` is of `{run.verb}`, which measures no requests"
                raise ToolkitError(what, f"Newest runs: {known or 'none yet'}")
            if run.verb == "capture":
                from toolkit.workload import columns, summarise

                report = asdict(summarise(columns(store.seen(run.id))))
                found.append(MeasuredRuns(report=report, told=(f"capture `{run.id}`",)))
            elif run.verb == "bench":
                found.append(_bench(store, run, host))
            else:
                found.append(_blast(store, run, host))
    return MeasuredRuns(
        seconds=_first(one.seconds for one in found),
        prompt_tokens=_first(one.prompt_tokens for one in found),
        output_tokens=_first(one.output_tokens for one in found),
        report=_first(one.report for one in found),
        told=tuple(word for one in found for word in one.told),
        notes=tuple(note for one in found for note in one.notes),
    )


def _bench(store: "Store", run: "Run", host: str | None) -> MeasuredRuns:
    shots = [
        one
        for one in store.shots(run.id)
        if one.ok and one.kind != "warmup" and one.e2e_ms is not None
    ]
    name = _only(sorted({one.name for one in shots}), run, host)
    own = [one for one in shots if one.name == name]
    most = max((one.concurrency or 0 for one in own), default=0)
    # a ladder's highest step is the nearest to a server that is full
    highest = [one for one in own if (one.concurrency or 0) == most]
    # what was sent before may come from a cache
    kept = [one for one in highest if one.kind == "unique"] or highest
    at = ""
    notes: tuple[str, ...] = ()
    if most:
        at = f", {most} at once"
        notes = (
            f"the time of a request was measured with {most} at once: with more at once each takes longer",
        )
    return MeasuredRuns(
        seconds=_mean([(one.e2e_ms or 0.0) / 1000 for one in kept]),
        prompt_tokens=_mean([one.prompt_tokens for one in kept if one.prompt_tokens is not None]),
        output_tokens=_mean([one.output_tokens for one in kept if one.output_tokens is not None]),
        told=(f"bench `{run.id}` of {name}{at}",),
        notes=notes,
    )


def _blast(store: "Store", run: "Run", host: str | None) -> MeasuredRuns:
    sums = {
        name: one
        for (name, _, kind), one in store.tally_sums(run.id).items()
        if kind == "ranked" and one.ok
    }
    name = _only(sorted(sums), run, host)
    total = sums[name]
    parts = store.tallies(run.id, name=name, kind="ranked")
    sketch = Sketch.from_bytes(merged(one.e2e for one in parts if one.e2e))
    seconds = None
    if sketch.count:
        values = [sketch.quantile((place + 0.5) / POINTS) or 0.0 for place in range(POINTS)]
        seconds = sum(values) / POINTS / 1000
    hits = total.cache_hits + total.cache_inferred
    notes: tuple[str, ...] = ()
    if hits:
        notes = (
            f"{hits / total.ok:.0%} of that blast's answers came from a response cache: their times are not the engine's",
        )
    return MeasuredRuns(
        seconds=seconds,
        prompt_tokens=total.prompt_tokens / total.ok if total.prompt_tokens else None,
        output_tokens=total.output_tokens / total.ok if total.output_tokens else None,
        told=(f"blast `{run.id}` of {name}",),
        notes=notes,
    )


def _only(names: list[str], run: "Run", host: str | None) -> str:
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


def _mean(values: "list[float] | list[int]") -> float | None:
    return sum(values) / len(values) if values else None


def _first(values: Iterable[Value | None]) -> Value | None:
    return next((value for value in values if value is not None), None)
