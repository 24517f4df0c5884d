"""Whether a host cuts its answers short: one token takes no time, and looks like a complete answer.

A short answer alone is no offence: `Singapore.` is a good one. What accuses are contradictions: within the answer,
among the answers, with the server's own counters, or with what other hosts say to the same prompts.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from toolkit.bench.counters import Account
from toolkit.bench.evidence import middle, of, share, usage
from toolkit.bench.verdicts.case import Case, Found
from toolkit.records import Ledger, RequestRecord
from toolkit.units import counted, whole

LEAST_ANSWERS = 2
LEAST_SHARE = 0.05
"""One answer in twenty, and two of them: a single odd answer explains no host's speed."""
NEARLY_ALL = 0.8
"""A host that cuts does so always; a fifth may be short of themselves or belong to prompts of another kind."""
ASKED_LESS = 0.9
"""The engine was asked for less than this share of our tokens."""
MANY_TOKENS = 16
"""Who asks for so many may call one token cut."""
LONG_TOKENS = 64
"""Peers that say so much show that a prompt calls for it, whatever a terser model says."""
TENTH = 0.1
"""A model may be terse, but not ten times terser than its peers."""
LEAST_SLOTS = 4
"""Prompts to compare with peers."""
LEAST_LENGTHS = 4
"""Texts of so many lengths in characters cannot all have their natural end at the same token."""
KEPT_BACK = 2.0
"""The engine made twice what the answers hold."""


def truncated_output(case: Case) -> Found | None:
    """Accuse a host that ends answers before their end."""
    answers, ledger, account = case.generated, case.ledger, case.account
    contradictions = [
        *_from_answers(answers, ledger),
        *_from_counters(answers, ledger, account),
        *_from_peers(case),
        *_all_alike(answers),
    ]
    if not contradictions:
        return None
    sure = len({kind for kind, _ in contradictions}) > 1
    return "high" if sure else "medium", [clause for _, clause in contradictions]


def why_unseen(case: Case) -> str | None:
    """Nearly all answers are one token long, and nothing tells whether that is all there was to say."""
    wanted = [record for record in case.generated if record.max_tokens > 1]
    is_counted = case.ledger.asked_tokens is not None or case.ledger.finished_stop is not None
    if not _are_tiny(wanted, 1) or is_counted:
        return None
    if len(_compared(case)) >= LEAST_SLOTS:
        return None
    return "answers of one token, and nobody to compare them with"


def _are_enough(some: Sequence[RequestRecord], all_: Sequence[RequestRecord]) -> bool:
    return len(some) >= LEAST_ANSWERS and share(len(some), len(all_)) >= LEAST_SHARE


def _are_tiny(answers: Sequence[RequestRecord], tokens: int) -> bool:
    tiny = [s for s in answers if s.output_tokens is not None and s.output_tokens <= tokens]
    return len(tiny) >= LEAST_ANSWERS and share(len(tiny), len(answers)) >= NEARLY_ALL


# --- what the answers say against themselves ---------------------------------------------------------


def _from_answers(answers: Sequence[RequestRecord], ledger: Ledger) -> Iterator[tuple[str, str]]:
    # fewer tokens than asked for, and not because the model's length was full; its last position is not always filled
    limits = _limits(ledger)
    under = [
        record
        for record in answers
        if (said := usage(record)) is not None and said < record.max_tokens
        if not limits
        or (
            record.prompt_tokens is not None
            and all(record.prompt_tokens + said < limit - 1 for limit in limits)
        )
    ]
    unstoppable = [record for record in under if record.ignore_eos]
    by_length = [
        record for record in under if record.finish_reason == "length" and not record.ignore_eos
    ]
    if unstoppable:
        asked = sum(bool(record.ignore_eos) for record in answers)
        clause = f"{of(len(unstoppable), asked, 'answers')} ended {_early(unstoppable)} though told to ignore the end of text"
        yield "answer", clause
    if _are_enough(by_length, answers):
        clause = (
            f"{of(len(by_length), len(answers), 'answers')} ended by `length` {_early(by_length)}"
        )
        yield "answer", clause


def _all_alike(answers: Sequence[RequestRecord]) -> Iterator[tuple[str, str]]:
    """Unlike texts that all stop at the same number of tokens: a limit ends them, whatever they claim."""
    said = Counter(usage(record) for record in answers if record.finish_reason == "stop")
    length, times = said.most_common(1)[0] if said else (None, 0)
    if length is None or length < MANY_TOKENS or share(times, len(answers)) < NEARLY_ALL:
        return
    chars = {
        record.text_chars for record in answers if usage(record) == length and record.text_chars
    }
    if len(chars) >= LEAST_LENGTHS:
        stops = of(times, len(answers), "answers")
        yield "alike", f"{stops} stop at exactly {whole(length)} tokens, though their texts differ"


def _early(answers: Sequence[RequestRecord]) -> str:
    said, asked = middle(map(usage, answers)), middle(record.max_tokens for record in answers)
    return f"after {whole(said or 0)} of {whole(asked or 0)} tokens"


def _limits(ledger: Ledger) -> set[int]:
    served = (*ledger.models_before, *ledger.models_after)
    return {model.max_model_len for model in served if model.max_model_len is not None}


# --- what the server's counters say against the answers ------------------------------------------------


def _from_counters(
    answers: Sequence[RequestRecord], ledger: Ledger, account: Account
) -> Iterator[tuple[str, str]]:
    # the engine was asked for fewer tokens than we asked the front for, and answers reached that limit; others' requests
    # only add to the sum, so a sum below ours is no accident
    asked, requests = ledger.asked_tokens, ledger.asked_requests
    if asked is not None and requests and answers and requests >= len(answers):
        # what we asked for, lowered as vLLM does to what the prompt leaves of the model's length
        room, ours = min(_limits(ledger), default=None), 0
        for record in answers:
            left = None
            if room is not None and record.prompt_tokens is not None:
                left = room - record.prompt_tokens
            ours += record.max_tokens if left is None else max(0, min(record.max_tokens, left))
        mean = asked / requests
        # others' larger requests lift the mean, but not one token to it
        at_limit = [each for each in answers if (each.output_tokens or 0) >= ASKED_LESS * mean]
        reached = _are_enough(at_limit, answers) or _are_tiny(answers, 2)
        if asked < ASKED_LESS * ours and reached:
            clause = (
                f"the engine was asked for {counted(round(mean), 'token')} per request where we asked"
                f" for {whole(ours / len(answers))} (means)"
            )
            yield "asked", clause

    # the server ended requests by `length` whose answers claim that the model stopped; where it counted others' requests,
    # too, those may have ended by `length`, while answers of ours were not counted
    stopped, limited, ended = ledger.finished_stop, ledger.finished_length, account.requests
    is_ours = len(answers) <= (ended or 0) <= len(answers) + account.broken
    if stopped is not None and limited is not None and (is_ours or _are_tiny(answers, 2)):
        claims = Counter(record.finish_reason for record in answers)
        # a broken request may have ended by `length` unseen
        lied = min(claims["stop"] - stopped, limited - claims["length"] - account.broken)
        if lied >= LEAST_ANSWERS and share(lied, len(answers)) >= LEAST_SHARE:
            clause = (
                f"{of(lied, claims['stop'], 'answers')} say `stop` where the server counted `length`:"
                " the limit ended them"
            )
            yield "reasons", clause

    made = account.generation_tokens
    if made is None or ended is None:
        return
    # the engine wrote whole answers of which the front passed on next to nothing
    is_whole = ended == account.answers and not account.broken
    if is_whole and made >= KEPT_BACK * account.tokens and _are_tiny(answers, 2):
        clause = (
            f"the server made {whole(made)} tokens for as many requests as we sent,"
            f" and the answers hold {whole(account.tokens)}"
        )
        yield "kept", clause
    # the engine made the tokens, but was told to stop before it finished: vLLM counts no such request
    unfinished = len(answers) - ended
    are_enough = unfinished >= LEAST_ANSWERS and share(unfinished, len(answers)) >= LEAST_SHARE
    if made >= account.tokens_most and are_enough:
        clause = (
            f"{of(unfinished, len(answers), 'answers')} claim to be complete where the server"
            " finished no request, though it made all their tokens"
        )
        yield "broken", clause


# --- what peers say to the same prompts ------------------------------------------------------------------


def _from_peers(case: Case) -> Iterator[tuple[str, str]]:
    compared = _compared(case)
    short = []
    for record, those in compared:
        # one token is too short beside anybody; else by the text that was delivered, or by what was claimed
        said, chars = record.output_tokens or 0, middle(each.text_chars for each in those)
        is_short = said <= TENTH * (middle(each.output_tokens for each in those) or 0)
        if record.text_chars is not None and chars:
            is_short = record.text_chars <= TENTH * chars
        if said <= 1 or is_short:
            short.append((record, those))
    if len(compared) < LEAST_SLOTS or share(len(short), len(compared)) < NEARLY_ALL:
        return
    mine = middle(record.output_tokens for record, _ in short)
    theirs = middle(middle(record.output_tokens for record in those) for _, those in short)
    clause = (
        f"{of(len(short), len(compared), 'answers')} hold {counted(round(mine or 0), 'token')} (median)"
        f" where other hosts say {whole(theirs or 0)} to the same prompts"
    )
    yield "peers", clause


def _compared(case: Case) -> list[tuple[RequestRecord, list[RequestRecord]]]:
    """Our answers beside those of peers to the same prompts, where these call for long ones."""
    found = []
    for record, theirs in case.beside_peers:
        those = [each for each in theirs if each.output_tokens is not None]
        # most peers say much, or were stopped only by the limit
        going_on = sum(
            (each.output_tokens or 0)
            >= (MANY_TOKENS if each.finish_reason == "length" else LONG_TOKENS)
            for each in those
        )
        if record.output_tokens is not None and 2 * going_on > len(those):
            found.append((record, those))
    return found
