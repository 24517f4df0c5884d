"""Whether a host answers from memory: a response cache is fast without serving anything."""

from toolkit.bench.evidence import middle, of, quoted, sentence, share
from toolkit.bench.verdicts.case import Case, Found
from toolkit.bench.verdicts.replays import LEAST_SHARE, LEAST_TOKENS, Sign
from toolkit.protocol.cache_status import says_hit
from toolkit.units import spoken_ms, whole

_LIKELY: frozenset[Sign] = frozenset({"half", "text"})


def response_cache(case: Case) -> Found | None:
    """Accuse a host that answers repeated requests from memory."""
    found = case.replays
    if not found.taken:
        return None
    things = "requests with new prompts" if found.of_unique else "repeated requests"
    what = f"{of(len(found.taken), found.considered, things)} were answered from memory"
    clauses = []
    first = middle(pair.first.e2e_ms for pair in found.taken)
    again = middle(pair.again.e2e_ms for pair in found.taken)
    if first is not None and again is not None and "time" in found.kinds:
        clauses.append(
            f"they took {spoken_ms(again)} where the first answers took {spoken_ms(first)} (medians)"
        )
    if "id" in found.kinds:
        clauses.append("they carry the ids of earlier answers")
    if "header" in found.kinds:
        headers = (pair.again.cache_status or "" for pair in found.taken)
        clauses.append(f"a header says {quoted(next(filter(says_hit, headers)))}")
    if found.header_hits:
        ratio = share(found.header_hits, found.headers)
        answers = whole(found.headers)
        clauses.append(f"by its header the hit ratio is {ratio:.2f} of {answers} answers")
    if "counters" in found.kinds:
        clauses.append(
            f"the server's counters lack {whole(found.missing_tokens or 0)} tokens, and these"
            f" answers hold {whole(found.tokens)}"
        )
    if found.contradicted:
        clauses.append("yet its counters hold all tokens")
    sure = len(found.kinds) > 1 and not found.contradicted
    return "high" if sure else "medium", [f"{what}: {sentence(clauses)}"]


def why_unseen(case: Case) -> str | None:
    """Why a response cache may have stayed unseen; None where it would have shown."""
    found = case.replays
    if not found.pairs:
        return "no request was answered twice"
    if case.account.missing_tokens is not None:
        return None
    if not any(
        p.again.stream and (p.again.output_tokens or 0) >= LEAST_TOKENS for p in found.pairs
    ):
        return "without counters and long streams a prefix cache looks the same"
    if share(sum(pair.signs >= _LIKELY for pair in found.pairs), len(found.pairs)) >= LEAST_SHARE:
        return "equal answers came in half the time, and no counters tell a slow replay from a quiet moment"
    return None
