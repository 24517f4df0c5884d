"""Whether a host claims more tokens than it delivered, by chunks, text and counters.

Counting allows no excuses on a host that nobody else uses, so bounds are exact; where a tolerance stands, its reason
stands with it. Broken requests may have cost anything up to their `max_tokens`: they are never held against a host.
"""

from collections.abc import Iterable, Sequence

from toolkit.bench.counters import ONE_A_REQUEST, Account
from toolkit.bench.evidence import middle, share, usage
from toolkit.bench.verdicts.case import Case, Found
from toolkit.bench.verdicts.replays import Replays
from toolkit.records import RequestRecord
from toolkit.units import whole

LEAST_SHARE = 0.05
"""Of the tokens or requests: what is less explains no speed, and an engine's count may trail its last step."""
LEAST_TOKENS = 16
"""An answer of fewer tokens has too little text to judge a claim by."""
CLAIMED_MORE = 0.10
"""A claim that is a tenth too high; MLPerf's audit of output lengths allows as much."""
PER_CHUNK = 1.25
"""Claimed tokens per chunk. Speculative decoding bundles tokens, too, so this proves nothing alone, and beside counters
that lack as much a tenth is enough."""
LEAST_CHARS = 1.0
"""Characters per claimed token: a token stands for a word or a part of one, hardly ever for less than a character."""
BESIDE_PEERS = 0.6
"""Characters per claimed token / the peers': another model's tokenizer makes some difference, but not almost a half."""
LEAST_SLOTS = 4


def inflated_usage(case: Case) -> Found | None:
    """Accuse a host that claims more tokens than it delivered: its tokens a second are not those of others.

    Chunks, text and counters each have an honest way to fall short (bundles, hidden thoughts, another engine), so
    two of them must agree, and counters that hold all that is claimed acquit: but for a host that is known to cut its
    answers, whose engine may have made what the front kept back and claimed all the same.
    """
    answers, account = case.generated, case.account
    ratios = [
        mine / peer
        for record, theirs in case.beside_peers
        if (mine := _chars_per_token(record)) is not None
        and (peer := middle(map(_chars_per_token, theirs)))
    ]
    beside = middle(ratios) if len(ratios) >= LEAST_SLOTS else None
    by_counter = _by_counter(account, case.replays)
    by_chunks = _by_chunks(answers, 1 + CLAIMED_MORE if by_counter else PER_CHUNK)
    clauses = [clause for clause in (by_counter, by_chunks, _by_text(answers, beside)) if clause]
    missing = account.missing_tokens
    # whether peers confirm the claim by as much text
    is_full = beside is not None and beside >= 1 / (1 + CLAIMED_MORE)
    nothing_else = not any(record.token_chunks for record in answers) and not is_full
    counted_all = missing is not None and missing <= LEAST_SHARE * account.tokens
    if not clauses or (
        by_counter is None and "truncated_output" not in case.accused and counted_all
    ):
        return None
    if len(clauses) == 1 and not (by_counter and nothing_else):
        return None
    return "low" if len(clauses) == 1 else "high" if by_counter else "medium", clauses


def why_unseen(case: Case) -> str | None:
    """What a claim could be held against is missing."""
    if all(usage(record) is None for record in case.generated):
        return "no answer tells its usage"
    is_uncounted = case.ledger.generation_tokens is None
    if is_uncounted and not any(record.token_chunks for record in case.generated):
        return "without counters and streams nothing confirms a claim"
    return None


def claims_more_than_shown(answers: Sequence[RequestRecord]) -> bool:
    """Whether chunks or text alone speak against the claims."""
    return _by_chunks(answers) is not None or _by_text(answers) is not None


def _by_counter(account: Account, found: Replays) -> str | None:
    """The server counted every request, but fewer tokens than the answers claim."""
    if account.missing_tokens is None or account.missing_requests is None:
        return None
    fresh = account.answers - len(found.taken)
    lost = account.missing_requests - len(found.taken)
    missing = account.missing_tokens - found.tokens
    if lost > LEAST_SHARE * fresh:
        return None
    if missing <= max(CLAIMED_MORE * account.tokens, ONE_A_REQUEST * fresh):
        return None
    return (
        f"answers claim {whole(account.tokens)} tokens where the server made"
        f" {whole(account.generation_tokens or 0)} for as many requests"
    )


def _by_chunks(answers: Iterable[RequestRecord], per_chunk: float = PER_CHUNK) -> str | None:
    streams = [
        (said, record.token_chunks)
        for record in answers
        if record.token_chunks and (said := usage(record)) is not None and said >= LEAST_TOKENS
    ]
    claimed, chunks = sum(said for said, _ in streams), sum(chunks for _, chunks in streams)
    if not chunks or claimed < per_chunk * chunks:
        return None
    return f"streams claim {whole(claimed)} tokens in {whole(chunks)} chunks"


def _by_text(answers: Iterable[RequestRecord], beside: float | None = None) -> str | None:
    """Too little text for the claim: for any language, or beside the peers' answers to the same prompts."""
    chars = middle(map(_chars_per_token, answers))
    if chars is None:
        return None
    if chars < LEAST_CHARS:
        return f"their text has {chars:.2f} characters a claimed token (median)"
    if beside is None or beside > BESIDE_PEERS:
        return None
    return f"their text has {beside:.0%} of the characters a claimed token that other hosts' has"


def _chars_per_token(record: RequestRecord) -> float | None:
    said = usage(record)
    if said is None or said < LEAST_TOKENS or record.text_chars is None:
        return None
    return share(record.text_chars, said)
