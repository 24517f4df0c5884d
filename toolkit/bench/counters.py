"""What a host's own counters moved by during a run, and what our requests can have moved them by.

Two readings of its `/metrics` page -> a Ledger; a ledger and the records -> an Account. Sums and differences only:
what a difference means is for the verdicts to say. No network, no clock.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any, Literal

from toolkit.metrics.dialects import EngineNumbers
from toolkit.records import START_SLACK_S, Ledger, RequestRecord

NEVER_ARRIVED = frozenset({"connect", "tls", "not_sent"})
"""Kinds of errors after which no host has seen a request."""
ONE_A_REQUEST = 1
"""Engines differ in whether the first or the end-of-text token is counted: a difference in tokens alone must be larger."""

Count = Callable[[EngineNumbers], float | None]
"""One counter of a page: a number that never falls while the process lives."""


def with_counters(
    known: Ledger,
    before: EngineNumbers | None,
    after: EngineNumbers | None,
    seen: Sequence[EngineNumbers] = (),
) -> Ledger:
    """Add to a ledger what the pages before and after the load say, and those `seen` during it.

    It gets no sum when either page is missing or when the process started anew in between.
    """
    restarted, queue_mean_ms = None, None
    sums: dict[str, Any] = {}
    if before is not None and after is not None:
        restarted = has_restarted((before, *seen, after))
        if not restarted:
            sums = {field: _moved(count, before, after) for field, count in _SUMS.items()}
            total_s, queued = _moved(_queue_s, before, after), _moved(_queued, before, after)
            if total_s is not None and queued:
                # several engines' seconds may be added up in another order: a sum that stood still moves by 1e-16
                queue_mean_ms = 1000 * max(0.0, total_s) / queued
    return replace(
        known,
        restarted=restarted,
        **sums,
        queue_mean_ms=queue_mean_ms,
        running_before=before.running if before else None,
        waiting_before=before.waiting if before else None,
        waiting_max=max((each.waiting for each in seen if each.waiting is not None), default=None),
    )


def has_restarted(pages: Sequence[EngineNumbers]) -> bool:
    """Whether another process wrote a later page: by its engine, its start time, or a counter that fell.

    Pages read during a load may tell a few numbers only; each counter is followed through those that have it.
    """
    if len({page.engine for page in pages}) > 1:
        return True
    starts = [page.started_at for page in pages if page.started_at is not None]
    if any(abs(later - earlier) > START_SLACK_S for earlier, later in pairwise(starts)):
        return True
    for count in (*_SUMS.values(), _queued):
        values = [value for page in pages if (value := count(page)) is not None]
        if any(later < earlier for earlier, later in pairwise(values)):
            return True
    return False


def _moved(count: Count, before: EngineNumbers, after: EngineNumbers) -> float | None:
    """Subtract; a series that is new on a page that counts began at 0.

    vLLM's Rust front end and TGI show some counters with their first request only.
    """
    now, then = count(after), count(before)
    if then is None and any(each(before) is not None for each in _SUMS.values()):
        then = 0.0
    return None if now is None or then is None else now - then


def _ended(reason: str) -> Count:
    """Requests that ended for one reason: 0 where the page tells reasons, but not this one yet."""
    return lambda page: (
        dict(page.finished_by_reason).get(reason, 0.0) if page.finished_by_reason else None
    )


def _of_histogram(name: str, part: Literal["sum", "count"]) -> Count:
    return lambda page: getattr(getattr(page, name), part, None)


_queue_s, _queued = _of_histogram("queue", "sum"), _of_histogram("queue", "count")
_SUMS: Mapping[str, Count] = {
    "requests": attrgetter("requests_total"),
    "prompt_tokens": attrgetter("prompt_tokens_total"),
    "generation_tokens": attrgetter("generation_tokens_total"),
    "finished_length": _ended("length"),
    "finished_stop": _ended("stop"),
    "asked_tokens": _of_histogram("asked_tokens", "sum"),
    "asked_requests": _of_histogram("asked_tokens", "count"),
    "prefix_queries": attrgetter("prefix_queries_total"),
    "prefix_hits": attrgetter("prefix_hits_total"),
    "preemptions": attrgetter("preemptions_total"),
}
"""Field of Ledger -> the counter whose difference it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What our requests at one host can have moved its counters by, warm-up included, and what did move.

    Exact where every answer told its usage and none broke: then both bounds are equal, and on a host that
    nobody else uses the counters are equal to them (recorded: 1,022 requests and 108,878 tokens, asked and counted).
    """

    answers: int
    """Requests answered whole: each of them was counted once, if an engine answered."""
    broken: int
    """Requests that arrived and were not answered whole: counted or not, nobody can tell."""
    tokens: float
    """Of the answers, by their usage; at least so many where an answer told none."""
    tokens_most: float
    """And with all that the host may have generated for nobody."""
    requests: float | None
    """What the host counted. None: it does not say."""
    generation_tokens: float | None

    @property
    def missing_requests(self) -> float | None:
        """Answers that no counter knows; at least so many, as others' requests fill the gap."""
        return None if self.requests is None else max(0.0, self.answers - self.requests)

    @property
    def missing_tokens(self) -> float | None:
        """Tokens that were answered and not counted; at least so many."""
        counted = self.generation_tokens
        return None if counted is None else max(0.0, self.tokens - counted)

    @property
    def surplus_requests(self) -> float | None:
        """Requests beyond all of ours, whatever became of them."""
        return None if self.requests is None else self.requests - self.answers - self.broken

    @property
    def surplus_tokens(self) -> float | None:
        """Tokens beyond all that ours can have made."""
        counted = self.generation_tokens
        return None if counted is None else counted - self.tokens_most

    @property
    def agrees(self) -> bool:
        """Whether our requests alone explain all that was counted."""
        if self.generation_tokens is None:
            return False
        tokens = self.tokens <= self.generation_tokens <= self.tokens_most
        most = self.answers + self.broken
        return tokens and (self.requests is None or self.answers <= self.requests <= most)


def account(records: Iterable[RequestRecord], ledger: Ledger) -> Account:
    """Add up a host's records beside its ledger."""
    arrived = [
        record
        for record in records
        if record.sent_at is not None and record.error_kind not in NEVER_ARRIVED
    ]
    answers = [record for record in arrived if record.ok]
    broken = [record for record in arrived if not record.ok]
    tokens_most = sum(record.max_tokens for record in broken)
    for record in answers:
        is_known = record.output_tokens is not None and not record.output_tokens_estimated
        least = least_tokens(record)
        tokens_most += least if is_known else max(record.max_tokens, least)
    return Account(
        answers=len(answers),
        broken=len(broken),
        tokens=sum(map(least_tokens, answers)),
        tokens_most=tokens_most,
        requests=ledger.requests,
        generation_tokens=ledger.generation_tokens,
    )


def least_tokens(record: RequestRecord) -> int:
    """Tokens that an answer must have cost; a chunk holds at least one."""
    if record.output_tokens is not None:
        return record.output_tokens
    return 1 if record.text_chars else 0
