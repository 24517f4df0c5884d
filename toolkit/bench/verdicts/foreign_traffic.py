"""Did the engine work for somebody else during our run? Its counters moved by more than our requests can have caused.

On a host that nobody else uses the counters add up exactly, so one request too many is enough; every tolerance below says
why it is there. A failed request may have cost anything up to its `max_tokens`, which is never held against a host.
"""

from toolkit.bench.counters import ONE_A_REQUEST
from toolkit.bench.verdicts.case import Case, Found
from toolkit.bench.verdicts.replays import tokens_of
from toolkit.units import whole


def foreign_traffic(case: Case) -> Found | None:
    """Report counts beyond ours, and requests that ran before we sent any; None where there is neither."""
    ledger, account, replays = case.ledger, case.account, case.replays
    # on a shared engine the other address may have cut answers short that the engine wrote whole
    is_cut = case.is_shared or "truncated_output" in case.accused
    # an answer replayed from a cache moved no counter: if its count is not missing, somebody else's stands in its place
    replayed = () if replays.contradicted else replays.proven
    requests, tokens = account.surplus_requests, account.surplus_tokens
    if requests is not None:
        requests += len(replayed)
    if tokens is not None:
        tokens += tokens_of(replayed)

    clauses = []
    has_more_requests = requests is not None and requests > 0
    if has_more_requests:
        clauses.append(
            f"the server counted {whole(account.requests or 0)} requests, of which at least"
            f" {whole(requests or 0)} cannot be ours"
        )
    # tokens alone prove less: engines count the first or the last token or not, and an answer that a proxy cut short was
    # written whole by the engine
    tolerated = 0 if has_more_requests else ONE_A_REQUEST * (account.answers + account.broken)
    if tokens is not None and tokens > tolerated and (has_more_requests or not is_cut):
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

    # requests beyond ours that generated nothing: some engines count what they refuse, too
    no_token_beyond = account.generation_tokens == account.tokens
    if no_token_beyond or not is_beyond_ours:
        return "low", clauses
    # without any guess at what was replayed
    return "high" if (account.surplus_requests or 0.0) > 0 else "medium", clauses


def why_unseen(case: Case) -> str | None:
    """Neither requests nor tokens are counted."""
    is_counted = case.ledger.requests is not None or case.ledger.generation_tokens is not None
    return None if is_counted else case.no_counters
