"""Whether somebody else's requests were on the engine meanwhile, by its own counters.

Counting allows no excuses on a host that nobody else uses, so bounds are exact; where a tolerance stands, its reason
stands with it. Broken requests may have cost anything up to their `max_tokens`: they are never held against a host.
"""

from collections.abc import Iterable

from toolkit.bench.counters import ONE_A_REQUEST, Account
from toolkit.bench.evidence import sentence
from toolkit.bench.verdicts.response_cache import Replays, tokens_of
from toolkit.records import Confidence, Ledger, Verdict
from toolkit.units import whole


def foreign_traffic(
    ledger: Ledger, account: Account, found: Replays, *, truncated: bool
) -> Verdict | None:
    """Tell of load that is not ours: counters that moved by more than all our requests can have caused.

    Replayed answers cannot have moved them, so what the counters lack too little for them, others have filled up.
    """
    ours = () if found.contradicted else found.proven
    requests = _plus(account.surplus_requests, len(ours))
    tokens = _plus(account.surplus_tokens, tokens_of(ours))
    beyond = list(_beyond_ours(account, requests, tokens, truncated=truncated))
    clauses = list(beyond)
    if ledger.running_before and (beyond or not account.agrees):
        # alone it proves nothing: vLLM leaves the gauge as it was when all requests were aborted at once
        clauses.append(f"{whole(ledger.running_before)} requests were under way before we sent any")
    if not clauses:
        return None
    exact = (account.surplus_requests or 0.0) > 0
    # requests that made no token: some engines count what they refuse, too
    idle = account.generation_tokens == account.tokens
    confidence: Confidence = "high" if exact and not idle else "medium"
    if idle or not beyond:
        confidence = "low"
    return Verdict(code="foreign_traffic", confidence=confidence, evidence=sentence(clauses))


def _beyond_ours(
    account: Account, requests: float | None, tokens: float | None, *, truncated: bool
) -> Iterable[str]:
    more = requests is not None and requests > 0
    if more:
        yield (
            f"the server counted {whole(account.requests or 0)} requests, of which at least"
            f" {whole(requests or 0)} cannot be ours"
        )
    sent = account.answers + account.broken
    # an answer that the front cut short was made whole by the engine
    slack = 0 if more else ONE_A_REQUEST * sent
    if tokens is not None and tokens > slack and (more or not truncated):
        yield (
            f"{whole(tokens)} of its {whole(account.generation_tokens or 0)} generated tokens"
            " are beyond what we can have caused"
        )


def _plus(known: float | None, more: float) -> float | None:
    return None if known is None else known + more
