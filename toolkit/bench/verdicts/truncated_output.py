"""Whether a host cuts its answers short: one token takes no time, and looks like a complete answer.

A short answer alone is no offence: `Singapore.` is a good one. What accuses are contradictions: within the answer,
among the answers, with the server's own counters, or with what other hosts say to the same prompts.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from toolkit.bench.counters import Account
from toolkit.bench.evidence import NOT_TWINS, middle, of, sentence, share, usage
from toolkit.bench.verdicts.case import Case
from toolkit.records import Ledger, RequestRecord, Verdict
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


def truncated_output(case: Case) -> Verdict | None:
    """Accuse a host that ends answers before their end."""
    answers, ledger, account = case.generated, case.ledger, case.account
    contradictions = [
        *_from_answers(answers, ledger),
        ("asked", _asked_for_less(answers, ledger)),
        ("reasons", _other_reasons(answers, ledger, account)),
        ("kept", _kept_back(answers, account)),
        ("broken", _broken_off(answers, account)),
        ("peers", _short_beside_peers(answers, case.peers)),
        ("alike", _all_alike(answers)),
    ]
    said = [(kind, clause) for kind, clause in contradictions if clause]
    if not said:
        return None
    sure = len({kind for kind, _ in said}) > 1
    return Verdict(
        code="truncated_output",
        confidence="high" if sure else "medium",
        evidence=sentence(clause for _, clause in said),
    )


def why_unseen(case: Case) -> str | None:
    """Nearly all answers are one token long, and nothing tells whether that is all there was to say."""
    wanted = [record for record in case.generated if record.max_tokens > 1]
    is_counted = case.ledger.asked_tokens is not None or case.ledger.finished_stop is not None
    if not _are_tiny(wanted, 1) or is_counted:
        return None
    if len(_compared(case.generated, case.peers)) >= LEAST_SLOTS:
        return None
    return "answers of one token, and nobody to compare them with"


def _are_enough(some: Sequence[RequestRecord], all_: Sequence[RequestRecord]) -> bool:
    return len(some) >= LEAST_ANSWERS and share(len(some), len(all_)) >= LEAST_SHARE


def _are_tiny(answers: Sequence[RequestRecord], tokens: int) -> bool:
    tiny = [s for s in answers if s.output_tokens is not None and s.output_tokens <= tokens]
    return len(tiny) >= LEAST_ANSWERS and share(len(tiny), len(answers)) >= NEARLY_ALL


# --- what the answers say against themselves ---------------------------------------------------------


def _from_answers(answers: Sequence[RequestRecord], ledger: Ledger) -> Iterator[tuple[str, str]]:
    under = [record for record in answers if _is_under(record, ledger)]
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


def _all_alike(answers: Sequence[RequestRecord]) -> str | None:
    """Unlike texts that all stop at the same number of tokens: a limit ends them, whatever they claim."""
    said = Counter(usage(record) for record in answers if record.finish_reason == "stop")
    length, times = said.most_common(1)[0] if said else (None, 0)
    if length is None or length < MANY_TOKENS or share(times, len(answers)) < NEARLY_ALL:
        return None
    chars = {
        record.text_chars for record in answers if usage(record) == length and record.text_chars
    }
    if len(chars) < LEAST_LENGTHS:
        return None
    return f"{of(times, len(answers), 'answers')} stop at exactly {whole(length)} tokens, though their texts differ"


def _early(answers: Sequence[RequestRecord]) -> str:
    said, asked = middle(map(usage, answers)), middle(record.max_tokens for record in answers)
    return f"after {whole(said or 0)} of {whole(asked or 0)} tokens"


def _is_under(record: RequestRecord, ledger: Ledger) -> bool:
    """Whether an answer holds fewer tokens than asked for, and not because the model's length was full."""
    said = usage(record)
    if said is None or said >= record.max_tokens:
        return False
    limits = _limits(ledger)
    if not limits:
        return True
    # the last position is not always filled
    return record.prompt_tokens is not None and all(
        record.prompt_tokens + said < limit - 1 for limit in limits
    )


def _limits(ledger: Ledger) -> set[int]:
    served = (*ledger.models_before, *ledger.models_after)
    return {model.max_model_len for model in served if model.max_model_len is not None}


# --- what the server's counters say against the answers ------------------------------------------------


def _asked_for_less(answers: Sequence[RequestRecord], ledger: Ledger) -> str | None:
    """The engine was asked for fewer tokens than we asked the front for, and answers reached that limit.

    Others' requests only add to the sum, so a sum below ours is no accident.
    """
    asked, requests = ledger.asked_tokens, ledger.asked_requests
    if asked is None or not requests or not answers or requests < len(answers):
        return None
    # what we asked for, lowered as vLLM does to what the prompt leaves of the model's length
    room, ours = min(_limits(ledger), default=None), 0
    for record in answers:
        left = None if room is None or record.prompt_tokens is None else room - record.prompt_tokens
        ours += record.max_tokens if left is None else max(0, min(record.max_tokens, left))
    mean = asked / requests
    at_limit = [record for record in answers if (record.output_tokens or 0) >= ASKED_LESS * mean]
    # others' larger requests lift the mean, but not one token to it
    reached = _are_enough(at_limit, answers) or _are_tiny(answers, 2)
    if asked >= ASKED_LESS * ours or not reached:
        return None
    return (
        f"the engine was asked for {whole(mean)} of the {whole(ours / len(answers))} tokens"
        " a request that we asked for (means)"
    )


def _other_reasons(
    answers: Sequence[RequestRecord], ledger: Ledger, account: Account
) -> str | None:
    """The server ended requests by `length` whose answers claim that the model stopped."""
    stopped, limited = ledger.finished_stop, ledger.finished_length
    if stopped is None or limited is None:
        return None
    ours = len(answers) <= (account.requests or 0) <= len(answers) + account.broken
    if not ours and not _are_tiny(answers, 2):
        return None  # somebody else's requests ended by `length`, while answers of ours were not counted
    claims = Counter(record.finish_reason for record in answers)
    short_of_stops = claims["stop"] - stopped
    # a broken request may have ended by `length` unseen
    too_many_limited = limited - claims["length"] - account.broken
    lied = min(short_of_stops, too_many_limited)
    if lied < LEAST_ANSWERS or share(lied, len(answers)) < LEAST_SHARE:
        return None
    return (
        f"{of(lied, claims['stop'], 'answers')} say `stop` where the server counted `length`:"
        " it was the limit that ended them"
    )


def _kept_back(answers: Sequence[RequestRecord], account: Account) -> str | None:
    """The engine wrote whole answers of which the front passed on next to nothing."""
    made = account.generation_tokens
    if made is None or account.requests != account.answers or account.broken:
        return None
    if made < KEPT_BACK * account.tokens or not _are_tiny(answers, 2):
        return None
    return (
        f"the server made {whole(made)} tokens for as many requests as we sent,"
        f" and the answers hold {whole(account.tokens)}"
    )


def _broken_off(answers: Sequence[RequestRecord], account: Account) -> str | None:
    """The engine made the tokens, but was told to stop before it finished: vLLM counts no such request."""
    made, ended = account.generation_tokens, account.requests
    if made is None or ended is None or made < account.tokens_most:
        return None
    unfinished = len(answers) - ended
    if unfinished < LEAST_ANSWERS or share(unfinished, len(answers)) < LEAST_SHARE:
        return None
    return (
        f"{of(unfinished, len(answers), 'answers')} claim to be complete where the server finished no request,"
        " though it made all their tokens"
    )


# --- what peers say to the same prompts ------------------------------------------------------------------


def _short_beside_peers(
    answers: Sequence[RequestRecord], peers: Mapping[str, Sequence[RequestRecord]]
) -> str | None:
    compared = _compared(answers, peers)
    short = [(mine, theirs) for mine, theirs in compared if _is_short_beside(mine, theirs)]
    if len(compared) < LEAST_SLOTS or share(len(short), len(compared)) < NEARLY_ALL:
        return None
    mine = middle(record.output_tokens for record, _ in short)
    theirs = middle(middle(record.output_tokens for record in those) for _, those in short)
    return (
        f"{of(len(short), len(compared), 'answers')} hold {counted(round(mine or 0), 'token')} (median)"
        f" where other hosts say {whole(theirs or 0)} to the same prompts"
    )


def _compared(
    answers: Iterable[RequestRecord], peers: Mapping[str, Sequence[RequestRecord]]
) -> list[tuple[RequestRecord, list[RequestRecord]]]:
    """Our answers beside those of peers to the same prompts, where these call for long ones."""
    theirs: dict[tuple[int, str], list[RequestRecord]] = {}
    for records in peers.values():
        for record in records:
            if record.ok and record.kind in NOT_TWINS and record.output_tokens is not None:
                theirs.setdefault((record.slot, record.prompt), []).append(record)
    return [
        (record, those)
        for record in answers
        if record.kind in NOT_TWINS
        and record.output_tokens is not None
        and (those := theirs.get((record.slot, record.prompt)))
        and _calls_for_more(those)
    ]


def _calls_for_more(those: Sequence[RequestRecord]) -> bool:
    """Whether most peers say much, or were stopped only by the limit."""
    going_on = [
        record
        for record in those
        if (record.output_tokens or 0) >= LONG_TOKENS
        or (record.finish_reason == "length" and (record.output_tokens or 0) >= MANY_TOKENS)
    ]
    return 2 * len(going_on) > len(those)


def _is_short_beside(mine: RequestRecord, theirs: Sequence[RequestRecord]) -> bool:
    """By the text that was delivered, else by what was claimed; one token is too short beside anybody."""
    said = mine.output_tokens or 0
    if said <= 1:
        return True
    chars = middle(record.text_chars for record in theirs)
    if mine.text_chars is not None and chars:
        return mine.text_chars <= TENTH * chars
    tokens = middle(record.output_tokens for record in theirs)
    return said <= TENTH * (tokens or 0)
