"""What a host's own counters moved by during a run, and what our requests can have moved them by.

Two readings of its `/metrics` page -> a Ledger; a ledger and the records -> an Account. Sums and differences only:
what a difference means is for the verdicts to say. No network, no clock.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from toolkit.metrics.dialects import EngineNumbers
from toolkit.records import START_SLACK_S, Ledger, RequestRecord

NEVER_ARRIVED = frozenset({"connect", "tls", "not_sent"})
"""Kinds of errors after which no host has seen a request."""
ONE_A_REQUEST = 1
"""Engines differ in whether the first or the end-of-text token is counted: a difference in tokens alone must be larger."""
QUEUE = ("queue_s", "queued")
"""Seconds in the server's queue, and how many requests spent them."""


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
            began, ended = _counts(before), _counts(after)
            # a series that is new on a page that counts began at 0: vLLM's Rust front end and TGI show some counters with
            # their first request only
            is_counting = any(began[key] is not None for key in began.keys() - QUEUE)
            sums = {
                key: value - (began[key] or 0.0)
                for key, value in ended.items()
                if value is not None and (is_counting or began[key] is not None)
            }
            queue_s, queued = (sums.pop(key, None) for key in QUEUE)
            if queue_s is not None and queued:
                # several engines' seconds may be added up in another order: a sum that stood still moves by 1e-16
                queue_mean_ms = 1000 * max(0.0, queue_s) / queued
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
    highest: dict[str, float] = {}
    for counts in map(_counts, pages):
        for key, value in counts.items():
            if value is not None and key != "queue_s":
                if value < highest.get(key, value):
                    return True
                highest[key] = value
    return False


def _counts(page: EngineNumbers) -> dict[str, float | None]:
    """Field of Ledger -> its counter, a number that never falls while the process lives; and QUEUE's."""
    reasons, asked, queue = dict(page.finished_by_reason), page.asked_tokens, page.queue
    return {
        "requests": page.requests_total,
        "prompt_tokens": page.prompt_tokens_total,
        "generation_tokens": page.generation_tokens_total,
        # 0 where the page tells reasons, but not this one yet
        "finished_length": reasons.get("length", 0.0) if reasons else None,
        "finished_stop": reasons.get("stop", 0.0) if reasons else None,
        "asked_tokens": asked.sum if asked else None,
        "asked_requests": asked.count if asked else None,
        "prefix_queries": page.prefix_queries_total,
        "prefix_hits": page.prefix_hits_total,
        "preemptions": page.preemptions_total,
        "queue_s": queue.sum if queue else None,
        "queued": queue.count if queue else None,
    }


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
