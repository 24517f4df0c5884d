"""Whether somebody else's requests were on the engine meanwhile, by its own counters.

Counting allows no excuses on a host that nobody else uses, so bounds are exact; where a tolerance stands, its reason
stands with it. Broken requests may have cost anything up to their `max_tokens`: they are never held against a host.
"""

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
    requests, tokens = account.surplus_requests, account.surplus_tokens
    if requests is not None:
        requests += len(ours)
    if tokens is not None:
        tokens += tokens_of(ours)
    clauses = []
    has_more_requests = requests is not None and requests > 0
    if has_more_requests:
        clauses.append(
            f"the server counted {whole(account.requests or 0)} requests, of which at least"
            f" {whole(requests or 0)} cannot be ours"
        )
    # an answer that the front cut short was made whole by the engine
    slack = 0 if has_more_requests else ONE_A_REQUEST * (account.answers + account.broken)
    if tokens is not None and tokens > slack and (has_more_requests or not truncated):
        clauses.append(
            f"{whole(tokens)} of its {whole(account.generation_tokens or 0)} generated tokens"
            " are beyond what we can have caused"
        )
    is_beyond_ours = bool(clauses)
    if ledger.running_before and (is_beyond_ours or not account.agrees):
        # alone it proves nothing: vLLM leaves the gauge as it was when all requests were aborted at once
        clauses.append(f"{whole(ledger.running_before)} requests were under way before we sent any")
    if not clauses:
        return None
    exact = (account.surplus_requests or 0.0) > 0
    # requests that made no token: some engines count what they refuse, too
    idle = account.generation_tokens == account.tokens
    confidence: Confidence = "high" if exact and not idle else "medium"
    if idle or not is_beyond_ours:
        confidence = "low"
    return Verdict(code="foreign_traffic", confidence=confidence, evidence=sentence(clauses))
