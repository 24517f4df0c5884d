"""`--run`: what a stored run measured: lengths of a capture, a bench or a blast, and how long one request took."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from toolkit.cli.plan.options import PlanOptions
from toolkit.errors import ToolkitError
from toolkit.records import Run, Shot, Sums, Tally
from toolkit.stats import Sketch, merged

if TYPE_CHECKING:
    from toolkit.store import Store

Value = TypeVar("Value")
VERBS = ("capture", "bench", "blast")
HINTED_RUNS = 5
POINTS = 200
"""Quantiles that a mean is taken over: a sketch is exact to 1 %, and this is finer."""


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


def measured(options: PlanOptions) -> MeasuredRuns:
    """Read all runs that `--run` names."""
    if not options.run:
        return MeasuredRuns()
    from toolkit.cli.waiting import waiting_for
    from toolkit.store import Store

    with waiting_for("Reading"), Store.open_readonly(options.database) as store:
        found = [_of_run(store, run_of(store, id_, options), options) for id_ in options.run]
    return MeasuredRuns(
        seconds=_first(one.seconds for one in found),
        prompt_tokens=_first(one.prompt_tokens for one in found),
        output_tokens=_first(one.output_tokens for one in found),
        report=_first(one.report for one in found),
        told=tuple(word for one in found for word in one.told),
        notes=tuple(note for one in found for note in one.notes),
    )


def run_of(store: "Store", run_id: str, options: PlanOptions) -> Run:
    """The stored run of this id. Raises ToolkitError."""
    run = store.run(run_id)
    if run is not None and run.verb in VERBS:
        return run
    newest = [one for verb in VERBS for one in store.runs(verb=verb, limit=HINTED_RUNS)]
    newest.sort(key=lambda one: -one.started_at)
    known = ", ".join(f"`{one.id}` ({one.verb})" for one in newest[:HINTED_RUNS]) or "none yet"
    what = f"`{options.database}` has no run `{run_id}`"
    if run is not None:
        what = f"run `{run_id}` is of `{run.verb}`, which measures no requests"
    raise ToolkitError(what, f"Newest runs: {known}")


def _of_run(store: "Store", run: Run, options: PlanOptions) -> MeasuredRuns:
    if run.verb == "capture":
        return _capture(store, run)
    return _bench(store, run, options) if run.verb == "bench" else _blast(store, run, options)


def _capture(store: "Store", run: Run) -> MeasuredRuns:
    from dataclasses import asdict

    from toolkit.workload.columns import columns
    from toolkit.workload.summary import summarise

    report = asdict(summarise(columns(store.seen(run.id))))
    return MeasuredRuns(report=report, told=(f"capture `{run.id}`",))


def _bench(store: "Store", run: Run, options: PlanOptions) -> MeasuredRuns:
    shots = [
        one
        for one in store.shots(run.id)
        if one.ok and one.kind != "warmup" and one.e2e_ms is not None
    ]
    name = _only(sorted({one.name for one in shots}), run, options)
    own = [one for one in shots if one.name == name]
    most = max((one.concurrency or 0 for one in own), default=0)
    # a ladder's highest step is the nearest to a server that is full
    highest = [one for one in own if (one.concurrency or 0) == most]
    # what was sent before may come from a cache
    kept = [one for one in highest if one.kind == "unique"] or highest
    at = f", {most} at once" if most else ""
    return MeasuredRuns(
        seconds=_mean([(one.e2e_ms or 0.0) / 1000 for one in kept]),
        prompt_tokens=_told(kept, "prompt_tokens"),
        output_tokens=_told(kept, "output_tokens"),
        told=(f"bench `{run.id}` of {name}{at}",),
        notes=_of_load(most),
    )


def _of_load(most: int) -> tuple[str, ...]:
    if not most:
        return ()
    return (
        f"the time of a request was measured with {most} at once: with more at once each takes longer",
    )


def _told(shots: Iterable[Shot], name: str) -> float | None:
    return _mean([value for one in shots if (value := getattr(one, name)) is not None])


def _blast(store: "Store", run: Run, options: PlanOptions) -> MeasuredRuns:
    sums = {key: one for key, one in store.tally_sums(run.id).items() if key[2] == "ranked"}
    name = _only(sorted({host for (host, _, _), one in sums.items() if one.ok}), run, options)
    total = next(one for (host, _, _), one in sums.items() if host == name and one.ok)
    parts: list[Tally] = store.tallies(run.id, name=name, kind="ranked")
    sketch = Sketch.from_bytes(merged(one.e2e for one in parts if one.e2e))
    return MeasuredRuns(
        seconds=mean_s(sketch),
        prompt_tokens=total.prompt_tokens / total.ok if total.prompt_tokens else None,
        output_tokens=total.output_tokens / total.ok if total.output_tokens else None,
        told=(f"blast `{run.id}` of {name}",),
        notes=_of_hits(total),
    )


def mean_s(sketch: Sketch) -> float | None:
    """The mean of what a sketch holds, in seconds, from its quantiles; None of an empty one."""
    if not sketch.count:
        return None
    values = [sketch.quantile((place + 0.5) / POINTS) or 0.0 for place in range(POINTS)]
    return sum(values) / POINTS / 1000


def _of_hits(total: Sums) -> tuple[str, ...]:
    hits = total.cache_hits + total.cache_inferred
    if not hits:
        return ()
    return (
        f"{hits / total.ok:.0%} of that blast's answers came from a response cache: their times are not the engine's",
    )


def _only(names: list[str], run: Run, options: PlanOptions) -> str:
    """The one host whose times count. Raises ToolkitError where it is not clear which."""
    if options.host in names:
        return options.host or ""
    if len(names) == 1:
        return names[0]
    if not names:
        raise ToolkitError(f"run `{run.id}` has no request that was answered", "Choose another run")
    raise ToolkitError(
        f"run `{run.id}` measured {len(names)} hosts: {', '.join(names)}",
        f"Say which one: `--host {names[0]}`",
    )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _first(values: Iterable[Value | None]) -> Value | None:
    return next((value for value in values if value is not None), None)
