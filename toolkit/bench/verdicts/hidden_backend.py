"""Whether a host's engine made what the host answered, by the engine's own counters.

Counting allows no excuses on a host that nobody else uses, so bounds are exact; where a tolerance stands, its reason
stands with it. Broken requests may have cost anything up to their `max_tokens`: they are never held against a host.
"""

from toolkit.bench.counters import ONE_A_REQUEST, least_tokens
from toolkit.bench.evidence import of
from toolkit.bench.verdicts.case import Case, Found
from toolkit.bench.verdicts.inflated_usage import claims_more_than_shown

LEAST_SHARE = 0.05
"""Of the tokens or requests: what is less explains no speed, and an engine's count may trail its last step."""


def hidden_backend(case: Case) -> Found | None:
    """Accuse a host whose engine has not made what it answered."""
    answers, account, found = case.generated, case.account, case.replays
    # where the claims themselves are known to be wrong, tokens alone prove no other engine
    explained = not case.accused.keys().isdisjoint({"truncated_output", "inflated_usage"})
    if account.missing_tokens is None:
        return None
    # a cache that was warm before the run answered the first of the repeats, too
    cached = list(found.records)
    cached += [record for record in answers if record.kind == "repeat" and found.taken]
    missing = account.missing_tokens - sum(map(least_tokens, cached))
    lost = (account.missing_requests or 0.0) - len(cached)
    counted_too = lost >= max(1.0, LEAST_SHARE * account.answers)
    slack = 0.0 if counted_too else ONE_A_REQUEST * account.answers
    if missing <= max(LEAST_SHARE * account.tokens, slack):
        return None
    if not counted_too and (explained or claims_more_than_shown(answers)):
        return None
    # at least so many tokens were delivered, whatever is claimed
    shown = sum(min(least_tokens(s), s.token_chunks or least_tokens(s)) for s in answers)
    if explained and (account.generation_tokens or 0) >= shown:
        # it broke the requests off: they are not counted, but what was shown of them is
        return None
    clause = f"the server's own counters lack {of(missing, account.tokens, 'answered tokens')}"
    if counted_too:
        clause += f" and {of(lost, account.answers, 'answered requests')}"
    # equal answers that were not called replayed; one that merely took half the time is not among them
    doubted = (pair.again for pair in found.pairs if pair.signs - {"half"})
    if missing <= sum(least_tokens(record) for record in doubted if record not in found.records):
        return "low", [f"{clause}, and equal answers to repeated requests may be among them"]
    return "high" if counted_too else "medium", [clause]


def why_unseen(case: Case) -> str | None:
    """No tokens are counted."""
    return case.no_counters if case.ledger.generation_tokens is None else None
