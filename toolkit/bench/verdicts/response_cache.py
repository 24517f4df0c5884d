"""Whether a host answers from memory: a response cache is fast without serving anything."""

from toolkit.bench.evidence import middle, of, quoted, sentence, share
from toolkit.bench.verdicts.case import Case, Found
from toolkit.bench.verdicts.replays import LEAST_SHARE, LEAST_TOKENS, Sign
from toolkit.protocol.cache_status import says_hit
from toolkit.units import spoken_ms, whole

_DOUBTFUL: frozenset[Sign] = frozenset({"half", "text"})
"""The same text in half the time: a slow replay looks so, and so does a first answer that came in a busy moment."""


def response_cache(case: Case) -> Found | None:
    """Accuse a host that answers repeated requests from memory."""
    replays = case.replays
    if not replays.taken:
        return None
    requests = "requests with new prompts" if replays.of_unique else "repeated requests"
    charge = f"{of(len(replays.taken), replays.considered, requests)} were answered from memory"
    clauses = []
    first_ms = middle(pair.first.e2e_ms for pair in replays.taken)
    again_ms = middle(pair.again.e2e_ms for pair in replays.taken)
    if first_ms is not None and again_ms is not None and "time" in replays.kinds:
        clauses.append(
            f"they took {spoken_ms(again_ms)} where the first answers took {spoken_ms(first_ms)} (medians)"
        )
    if "id" in replays.kinds:
        clauses.append("they carry the ids of earlier answers")
    if "header" in replays.kinds:
        headers = (pair.again.cache_status or "" for pair in replays.taken)
        clauses.append(f"a header says {quoted(next(filter(says_hit, headers)))}")
    if replays.header_hits:
        ratio = share(replays.header_hits, replays.headers)
        answers = whole(replays.headers)
        clauses.append(f"by its header the hit ratio is {ratio:.2f} of {answers} answers")
    if "counters" in replays.kinds:
        clauses.append(
            f"the server's counters lack {whole(replays.missing_tokens or 0)} tokens, and these"
            f" answers hold {whole(replays.tokens)}"
        )
    if replays.contradicted:
        clauses.append("yet its counters hold all tokens")
    sure = len(replays.kinds) > 1 and not replays.contradicted
    return "high" if sure else "medium", [f"{charge}: {sentence(clauses)}"]


def why_unseen(case: Case) -> str | None:
    """Why a response cache may have stayed unseen; None where it would have shown."""
    replays = case.replays
    if not replays.pairs:
        return "no request was answered twice"
    if case.account.missing_tokens is not None:
        return None  # the tokens of replayed answers would be missing from the counters
    if not any(
        pair.again.stream and (pair.again.output_tokens or 0) >= LEAST_TOKENS
        for pair in replays.pairs
    ):
        return "without counters and long streams a prefix cache looks the same"
    doubtful = sum(pair.signs >= _DOUBTFUL for pair in replays.pairs)
    if share(doubtful, len(replays.pairs)) >= LEAST_SHARE:
        return "equal answers came in half the time, and no counters tell a slow replay from a quiet moment"
    return None
