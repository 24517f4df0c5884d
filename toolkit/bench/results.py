"""All facts of a run -> one result a host: figures, verdicts, a sweep's levels, and who cannot be told apart. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from toolkit.bench.contrast import tied
from toolkit.bench.counters import account
from toolkit.bench.plan import EMBEDDINGS, BenchPlan
from toolkit.bench.summary import GoodputLimits, HostSummary, best_level, knee, summary
from toolkit.bench.verdicts.case import Case
from toolkit.bench.verdicts.judgement import judgement
from toolkit.bench.verdicts.same_engine import own_share, same_engine, shared_engines
from toolkit.metrics.dialects import EngineNumbers
from toolkit.records import Host, Ledger, RequestRecord, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One host's line. In a sweep the summary is that of one level: the best, else the knee, else the fastest."""

    summary: HostSummary
    levels: tuple[HostSummary, ...] = ()
    """Of a sweep, the lowest concurrency first; verdicts and ties are only in `summary`."""
    best_concurrency: int | None = None
    """The largest that meets the goodput limits; None without limits, or when none does."""
    knee_concurrency: int | None = None
    """Beyond it more requests at once gain nothing."""


NO_TOKENS = (
    Verdict(code="not_judged", confidence="high", evidence="embeddings have no tokens to judge by"),
)
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
        measured = [record for record in of_host if record.kind != "warmup"]
        at_level: dict[int | None, Sequence[RequestRecord]] = {
            None if plan.rate else plan.concurrency: measured
        }
        if plan.levels and measured:
            at_level = {
                level: [record for record in measured if record.concurrency == level]
                for level in sorted({record.concurrency or 0 for record in measured})
            }
        figures = [
            summary(
                some,
                name=host.name,
                url=host.url,
                run=run,
                ledger=ledger,
                client_ok=client_ok,
                limits=limits,
                concurrency=concurrency,
                rate=plan.rate,
            )
            for concurrency, some in at_level.items()
        ]
        levels = tuple(figures) if plan.levels and measured else ()
        best, knee_at = best_level(levels), knee(levels)
        fastest = max(figures, key=lambda one: (one.rps or 0.0, -(one.concurrency or 0)))
        shown = next((one for one in levels if one.concurrency == (best or knee_at)), fastest)

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
            peers={name: theirs for name, theirs in records.items() if name != host.name},
            # another address of this engine is no rival, and would agree with it
            rivals={name: models for name, models in served.items() if name not in of_engine},
            levels=levels,
            is_shared=is_shared,
        )
        verdicts = NO_TOKENS if plan.endpoint == EMBEDDINGS else judgement(case).verdicts
        if is_shared:
            verdicts = (*verdicts, same_engine(host.name, of_engine))
        shown = replace(
            shown,
            verdicts=verdicts,
            tied_with=ties.get(host.name, ()),
            error=shown.error if shown.requests else NOTHING_OVER,
        )
        found.append(
            Result(summary=shown, levels=levels, best_concurrency=best, knee_concurrency=knee_at)
        )
    return found
