"""Which answers came from memory instead of the engine.

A prefix cache is legal and saves the reading of the prompt only; a response cache saves the writing, too. So an
answer is called replayed when the time of its tokens has vanished, when it bears an earlier answer's `id`, or when
the host says so in a header. One that merely came sooner proves nothing until the server's own counters lack its
tokens. Answers with another text than before were not replayed, however fast.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from toolkit.bench.counters import Account, least_tokens
from toolkit.bench.evidence import (
    decode_ms_per_token,
    middle,
    over_at,
    served_ms,
    share,
)
from toolkit.protocol.cache_status import says_bypass, says_hit
from toolkit.records import RequestRecord

LEAST_SHARE = 0.3
"""Of the repeated requests: a cache that takes fewer explains little of a host's speed."""
LEAST_COUNTED_SHARE = 0.1
"""The same where the server's counters confirm it, request by request."""
LEAST_REPLAYS = 2
"""One fast answer is luck, unless the counters lack it."""
FAR_SOONER = 0.25
"""A whole answer in a quarter of the first one's time. An idle engine is about twice as fast as one with a full batch
(17 against 36 ms a step in the simulator's slowest model)."""
SOONER = 0.5
"""Enough where the tokens' own time has vanished."""
VANISHED = 0.1
"""A tenth of the usual time a token: memory takes microseconds for one, no engine a tenth of its own step."""
LEAST_TOKENS = 8
"""Fewer tokens may share one chunk or one read, and then no time lies between them."""
VISIBLE_SHARE = 0.2
"""Of an answer's time must lie between its tokens, or nothing can vanish: after a prompt of 8,000 tokens, 16 tokens of
answer are a trifle, and some servers stream only when all is written."""
INSTANT_MS = 0.1
"""A token, of a whole answer's time: ten thousand tokens a second for one request. The contest's cache took 5 ms for
256; its servers wrote one in 14 ms or more."""
TELLING_MS = 5.0
"""Below this, our own delay of a millisecond or two is as large as the difference."""
COVERED = 0.8
"""So much of the replayed tokens must be missing from the counters; others' requests may hide the rest."""
EXPLAINED = 1.1
"""And if nothing else speaks of replays, hardly more may be missing than was repeated."""

Sign = Literal["time", "sooner", "half", "id", "header", "text"]
"""What one answer shows: `time` its tokens took none, `sooner` it came far sooner, `half` in half the time, `text` it is
the same text."""
_PROOF: frozenset[Sign] = frozenset({"time", "id", "header"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A request, and an equal one sent after the first was answered; both were answered."""

    first: RequestRecord
    again: RequestRecord
    signs: frozenset[Sign] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Replays:
    """What was repeated, and what of it came from memory."""

    pairs: tuple[Pair, ...] = ()
    """All there are to judge, whatever they show."""
    taken: tuple[Pair, ...] = ()
    """Those that came from memory; empty when that is not sure enough to be told."""
    of_unique: bool = False
    """`taken` answer requests that were never sent before: the cache overlooks a part of the prompt."""
    considered: int = 0
    """Out of how many requests these were taken."""
    kinds: tuple[str, ...] = ()
    """Kinds of evidence that speak for it: `time`, `id`, `header`, `counters`."""
    missing_tokens: float | None = None
    """Tokens that the server's counters lack, of all answers."""
    contradicted: bool = False
    """The server counted the tokens all the same."""
    headers: int = 0
    """Answers whose header says whether the cache had them, repeated or not, warm-up included."""
    header_hits: int = 0

    @cached_property
    def records(self) -> frozenset[RequestRecord]:
        """The answers that came from memory; made once, as every answer is looked up in it."""
        return frozenset(pair.again for pair in self.taken)

    @property
    def proven(self) -> tuple[Pair, ...]:
        """Those that show it themselves: even one that the counters hold all the same was not their engine's."""
        return tuple(pair for pair in self.taken if pair.signs & _PROOF)

    @property
    def tokens(self) -> int:
        """Of these answers."""
        return tokens_of(self.taken)


def replays(records: Sequence[RequestRecord], account: Account, rtt_ms: float | None) -> Replays:
    """Judge one host's answers, warm-up included."""
    answers = sorted((record for record in records if record.ok), key=_sent_at)
    equal = repeated(answers)
    usual = _usual(answers, {id(pair.again) for pair in equal}, rtt_ms)
    pairs = tuple(_with_signs(pair, usual, rtt_ms) for pair in equal)
    again = {pair.again for pair in pairs} | {
        record for record in answers if record.kind == "repeat"
    }
    found = _taken(pairs, len(pairs), sum(map(least_tokens, again)), account, rtt_ms)
    if not found.taken:
        # a cache that overlooks the mark in each prompt answers new prompts, too
        news = [record for record in answers if record.kind == "unique"]
        owners = _owners(news)
        blind = [
            _with_signs(Pair(first=first, again=record), usual, rtt_ms)
            for record in news
            if (first := owners.get(record.answer_id, record)) is not record
        ]
        found = _taken(blind, len(news), 0.0, account, rtt_ms)
        found = replace(found, of_unique=bool(found.taken))
    headers = [record.cache_status for record in answers if record.cache_status]
    telling = [header for header in headers if not says_bypass(header)]
    return replace(
        found, pairs=pairs, headers=len(telling), header_hits=sum(map(says_hit, telling))
    )


# --- which requests were repeated -------------------------------------------------------------------


def repeated(answers: Iterable[RequestRecord]) -> list[Pair]:
    """Pair each twin with its unique request, and each repeat with the first answer to the same request."""
    uniques = {record.slot: record for record in answers if record.kind == "unique"}
    pairs = [
        Pair(first=uniques[record.pair], again=record)
        for record in answers
        if record.kind == "twin" and record.pair in uniques
    ]
    asked: dict[tuple[str, int], list[RequestRecord]] = {}
    for record in sorted((record for record in answers if record.kind == "repeat"), key=over_at):
        asked.setdefault((record.prompt, record.max_tokens), []).append(record)
    for them in asked.values():
        # each with the first with its text, else with the first: a cache remembers any of a first wave's answers to a prompt
        first_with: dict[str | None, RequestRecord] = {}
        for record in them:
            first_with.setdefault(record.text_hash, record)
        for record in them:
            for earlier in (first_with[record.text_hash], them[0]):
                if earlier is not record and over_at(earlier) <= _sent_at(record):
                    pairs.append(Pair(first=earlier, again=record))
                    break
    return pairs


def _owners(answers: Iterable[RequestRecord]) -> dict[str | None, RequestRecord]:
    """Id -> the first answer that bore it, of ids that stand for one text.

    Some servers call every answer the same, some number them from 0 to 999.
    """
    owners: dict[str | None, RequestRecord] = {}
    texts: dict[str | None, set[str | None]] = {}
    for record in answers:
        owners.setdefault(record.answer_id, record)
        texts.setdefault(record.answer_id, set()).add(record.text_hash)
    return {
        id_: owners[id_]
        for id_, of_id in texts.items()
        if id_ and len(of_id) == 1 and None not in of_id
    }


def _sent_at(record: RequestRecord) -> float:
    return record.planned_at if record.sent_at is None else record.sent_at


# --- what one answer shows --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Usual:
    """How long this host's engine takes, from requests that no cache can know (medians)."""

    ms_per_token: float | None
    decode_ms_per_token: float | None
    fastest_ms_per_token: float | None
    """Not the median: a whole first wave may have met a cold host."""
    owners: Mapping[str | None, RequestRecord]
    """Id -> the first answer that bore it."""


def _usual(
    answers: Sequence[RequestRecord], again: Collection[int], rtt_ms: float | None
) -> _Usual:
    """Leave out the answers whose `id()` is in `again`."""
    fresh = [
        each for each in answers if each.kind in ("unique", "repeat") and id(each) not in again
    ]
    long = [each for each in fresh if (each.output_tokens or 0) >= LEAST_TOKENS]
    paces = [pace for each in long if (pace := _ms_per_token(each, rtt_ms)) is not None]
    return _Usual(
        ms_per_token=middle(_ms_per_token(each, rtt_ms) for each in fresh),
        decode_ms_per_token=middle(map(decode_ms_per_token, fresh)),
        fastest_ms_per_token=min(paces, default=None),
        owners=_owners(answers),
    )


def _ms_per_token(record: RequestRecord, rtt_ms: float | None) -> float | None:
    served = served_ms(record, rtt_ms)
    return None if served is None or not record.output_tokens else served / record.output_tokens


def _with_signs(pair: Pair, usual: _Usual, rtt_ms: float | None) -> Pair:
    first, again = pair.first, pair.again
    if None not in (first.text_hash, again.text_hash) and first.text_hash != again.text_hash:
        return pair  # it was written anew
    signs: set[Sign] = set()
    tokens, served = again.output_tokens or 0, served_ms(again, rtt_ms)

    # what it would have taken is the less of the first one's time and what is usual for its length: a first answer may
    # have come in a slow moment, and then a usual one looks fast beside it
    expected_ms = served_ms(first, rtt_ms)
    if expected_ms is not None and usual.ms_per_token is not None and tokens:
        expected_ms = min(expected_ms, usual.ms_per_token * tokens)
    if expected_ms is not None and expected_ms >= TELLING_MS and served is not None:
        if served <= FAR_SOONER * expected_ms:
            signs.add("sooner")
        if served <= SOONER * expected_ms:
            signs.add("half")

        # a stream's tokens that came at once where the engine takes its time; without any stream to compare with,
        # reading the prompt is counted as writing
        own = decode_ms_per_token(again)
        known = [decode_ms_per_token(first), usual.decode_ms_per_token]
        engine = min((value for value in known if value is not None), default=usual.ms_per_token)
        if (
            "half" in signs
            and own is not None
            and engine is not None
            and tokens >= LEAST_TOKENS
            and engine * tokens >= VISIBLE_SHARE * expected_ms
            and own <= VANISHED * engine
        ):
            signs.add("time")

        # less than this is no writing, even if a prefix cache saved all the reading: no engine reads a token more slowly
        # than it writes one, so the prompt's part of the time is at most its part of the tokens
        read, pace = again.prompt_tokens, usual.fastest_ms_per_token
        least_ms = 0.0
        if read is not None and pace is not None:
            least_ms = VANISHED * pace * tokens * share(tokens, tokens + read)
        if is_instant(again, rtt_ms) and served <= least_ms:
            signs.add("time")

    if usual.owners.get(again.answer_id, again) is not again:
        signs.add("id")
    if again.cache_status and says_hit(again.cache_status):
        signs.add("header")
    if first.text_hash is not None and first.text_hash == again.text_hash:
        signs.add("text")
    return replace(pair, signs=frozenset(signs))


def is_instant(record: RequestRecord, rtt_ms: float | None) -> bool:
    """Whether an answer of some length was there sooner than any engine writes it."""
    pace = _ms_per_token(record, rtt_ms)
    return pace is not None and pace <= INSTANT_MS and (record.output_tokens or 0) >= LEAST_TOKENS


# --- how many of them, and what the counters say ----------------------------------------------------


def _taken(
    pairs: Sequence[Pair],
    considered: int,
    repeats: float,
    account: Account,
    rtt_ms: float | None,
) -> Replays:
    """Choose the pairs that came from memory: those that the counters lack, else those that are proven."""
    proven = [pair for pair in pairs if pair.signs & _PROOF]
    choices = [proven]
    missing = account.missing_tokens
    if missing is not None and missing <= EXPLAINED * repeats:
        # else another engine answered, repeats among the rest
        same = [pair for pair in pairs if "text" in pair.signs]
        # where nothing was counted, the first answers came from elsewhere, too: from memory, if all came at once;
        # that some came sooner than a first wave in a slow moment tells of no memory then
        instant = sum(is_instant(pair.again, rtt_ms) for pair in same)
        if account.generation_tokens or 2 * instant > len(same):
            choices.append([pair for pair in pairs if pair.signs & (_PROOF | {"sooner"})])
            choices.append(same)
    requests = account.missing_requests
    counted = [
        chosen
        for chosen in choices
        if share(len(chosen), considered) >= LEAST_COUNTED_SHARE
        and (tokens := tokens_of(chosen))
        # the counters lack their tokens, and the requests where they count them
        and (missing is not None and missing >= COVERED * tokens)
        and (requests is None or requests >= COVERED * len(chosen))
    ]
    chosen = min(counted, key=lambda some: abs((missing or 0.0) - tokens_of(some)), default=proven)
    kinds = [
        kind
        for kind, signs in _KINDS.items()
        if 2 * sum(bool(pair.signs & signs) for pair in chosen) > len(chosen)
    ]
    contradicted = False
    if counted:
        kinds.append("counters")
    else:
        # what broken requests may have generated could stand in for the answers
        in_doubt = account.tokens_most - account.tokens
        contradicted = account.agrees and tokens_of(chosen) > in_doubt
        few = len(proven) < LEAST_REPLAYS or share(len(proven), considered) < LEAST_SHARE
        if few or (contradicted and len(kinds) < 2):
            return Replays()
    return Replays(
        taken=tuple(chosen),
        considered=considered,
        kinds=tuple(kinds),
        missing_tokens=missing,
        contradicted=contradicted,
    )


_KINDS: Mapping[str, frozenset[Sign]] = {
    "time": frozenset({"time", "sooner"}),
    "id": frozenset({"id"}),
    "header": frozenset({"header"}),
}


def tokens_of(pairs: Iterable[Pair]) -> int:
    """Tokens of the later answers of these pairs."""
    return sum(least_tokens(pair.again) for pair in pairs)
