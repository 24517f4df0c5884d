"""All facts of a run -> one result a host: figures, verdicts, a sweep's rungs, and who cannot be told apart. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from toolkit.bench.contrast import tied
from toolkit.bench.counters import account
from toolkit.bench.goodput import GoodputLimits
from toolkit.bench.ladder import Rung, best_level, knee, ladder
from toolkit.bench.plan import BenchPlan
from toolkit.bench.summary import HostSummary, summary
from toolkit.bench.verdicts.judgement import verdicts
from toolkit.bench.verdicts.same_engine import own_share, same_engine, shared_engines
from toolkit.metrics.dialects import EngineNumbers
from toolkit.records import Host, Ledger, Shot


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One host's line. In a sweep the summary is that of one level: the best, else the knee, else the fastest."""

    summary: HostSummary
    rungs: tuple[Rung, ...] = ()
    best_concurrency: int | None = None
    """The largest that meets the goodput limits; None without limits, or when none does."""
    knee_concurrency: int | None = None
    """Beyond it more requests at once gain nothing."""


NOTHING_OVER = "no request was over when the bench ended"
"""Some may have been under way, when it was stopped."""

Facts = tuple[Host, Sequence[Shot], Ledger]
"""What one lane measured."""
NO_PAGES: Mapping[str, EngineNumbers | None] = {}


def results(
    lanes: Sequence[Facts],
    *,
    plan: BenchPlan,
    run: str,
    client_ok: bool,
    limits: GoodputLimits | None,
    pages: Mapping[str, EngineNumbers | None] = NO_PAGES,
) -> list[Result]:
    """Summarise and judge every host, in the order given; `pages` are their `/metrics` before the load, by name."""
    shots = {host.name: of_host for host, of_host, _ in lanes}
    served = {host.name: ledger.models_after or ledger.models_before for host, _, ledger in lanes}
    shared = shared_engines(
        {host.name: account(of_host, ledger) for host, of_host, ledger in lanes},
        {host.name: ledger for host, _, ledger in lanes},
        pages,
    )
    ties = tied(shots)
    told = []
    for host, of_host, ledger in lanes:
        rungs = ladder(of_host, limits=limits) if plan.levels else ()
        peers = {name: theirs for name, theirs in shots.items() if name != host.name}
        of_engine = {
            name: shots[name] for name in shots if name in (host.name, *shared.get(host.name, ()))
        }
        is_shared = len(of_engine) > 1
        judged = verdicts(
            of_host,
            own_share(host.name, of_engine, ledger) if is_shared else ledger,
            host=host,
            peers=peers,
            # another address of this engine is no rival, and would agree with it
            rivals={name: models for name, models in served.items() if name not in of_engine},
            rungs=rungs,
            is_shared=is_shared,
        )
        if is_shared:
            judged = (*judged, same_engine(host.name, of_engine))
        shown = _shown_level(rungs)
        concurrency = None if plan.rate else (shown or plan.concurrency)
        figures = summary(
            of_host if shown is None else [s for s in of_host if s.concurrency == shown],
            name=host.name,
            url=host.url,
            run=run,
            ledger=ledger,
            client_ok=client_ok,
            limits=limits,
            verdicts=judged,
            concurrency=concurrency,
            rate=plan.rate,
        )
        told.append(
            Result(
                summary=replace(
                    figures,
                    tied_with=ties.get(host.name, ()),
                    error=figures.error if figures.requests else NOTHING_OVER,
                ),
                rungs=rungs,
                best_concurrency=best_level(rungs),
                knee_concurrency=knee(rungs),
            )
        )
    return told


def _shown_level(rungs: Sequence[Rung]) -> int | None:
    """The level whose figures stand for a sweep: the best, else the knee, else the one with most throughput."""
    if not rungs:
        return None
    fastest = max(rungs, key=lambda step: (step.rps or 0.0, -step.concurrency))
    return best_level(rungs) or knee(rungs) or fastest.concurrency
