"""All facts of a run -> one result a host: figures, verdicts, a sweep's levels, and who cannot be told apart. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from toolkit.bench.contrast import tied
from toolkit.bench.counters import account
from toolkit.bench.plan import BenchPlan
from toolkit.bench.summary import (
    GoodputLimits,
    HostSummary,
    LevelFigures,
    best_level,
    knee,
    level_figures,
    summary,
)
from toolkit.bench.verdicts.case import Case
from toolkit.bench.verdicts.judgement import judgement
from toolkit.bench.verdicts.same_engine import own_share, same_engine, shared_engines
from toolkit.metrics.dialects import EngineNumbers
from toolkit.records import Host, Ledger, RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One host's line. In a sweep the summary is that of one level: the best, else the knee, else the fastest."""

    summary: HostSummary
    levels: tuple[LevelFigures, ...] = ()
    best_concurrency: int | None = None
    """The largest that meets the goodput limits; None without limits, or when none does."""
    knee_concurrency: int | None = None
    """Beyond it more requests at once gain nothing."""


NOTHING_OVER = "no request was over when the bench ended"
"""Some may have been under way, when it was stopped."""

Facts = tuple[Host, Sequence[RequestRecord], Ledger]
"""What was measured at one host."""
NO_PAGES: Mapping[str, EngineNumbers | None] = {}


def results(
    hosts: Sequence[Facts],
    *,
    plan: BenchPlan,
    run: str,
    client_ok: bool,
    limits: GoodputLimits | None,
    pages: Mapping[str, EngineNumbers | None] = NO_PAGES,
) -> list[Result]:
    """Summarise and judge every host, in the order given; `pages` are their `/metrics` before the load, by name."""
    records = {host.name: of_host for host, of_host, _ in hosts}
    served = {host.name: ledger.models_after or ledger.models_before for host, _, ledger in hosts}
    shared = shared_engines(
        {host.name: account(of_host, ledger) for host, of_host, ledger in hosts},
        {host.name: ledger for host, _, ledger in hosts},
        pages,
    )
    ties = tied(records)
    found = []
    for host, of_host, ledger in hosts:
        levels = level_figures(of_host, limits) if plan.levels else ()
        peers = {name: theirs for name, theirs in records.items() if name != host.name}
        of_engine = {
            name: records[name]
            for name in records
            if name in (host.name, *shared.get(host.name, ()))
        }
        is_shared = len(of_engine) > 1
        case = Case(
            records=of_host,
            ledger=own_share(host.name, of_engine, ledger) if is_shared else ledger,
            host=host,
            peers=peers,
            # another address of this engine is no rival, and would agree with it
            rivals={name: models for name, models in served.items() if name not in of_engine},
            levels=levels,
            is_shared=is_shared,
        )
        judged = judgement(case).verdicts
        if is_shared:
            judged = (*judged, same_engine(host.name, of_engine))
        best, knee_at, shown = best_level(levels), knee(levels), None
        if levels:
            fastest = max(levels, key=lambda level: (level.rps or 0.0, -level.concurrency))
            shown = best or knee_at or fastest.concurrency
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
        found.append(
            Result(
                summary=replace(
                    figures,
                    tied_with=ties.get(host.name, ()),
                    error=figures.error if figures.requests else NOTHING_OVER,
                ),
                levels=levels,
                best_concurrency=best,
                knee_concurrency=knee_at,
            )
        )
    return found
