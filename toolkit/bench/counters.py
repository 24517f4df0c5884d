"""What did a host's own counters move by during a run? Two readings of its `/metrics` page -> a Ledger.

Differences and nothing else: whether they fit what was sent is for `integrity` to say. No network, no clock.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter

from toolkit.dialects import EngineNumbers
from toolkit.promtext import Histogram
from toolkit.records import Ledger, ServedModel

START_SLACK_S = 1.0
"""A start time moves by clock corrections; a restart takes longer than this."""

Count = Callable[[EngineNumbers], float | None]
"""One counter of a page: a number that never falls while the process lives."""


def ledger(  # noqa: PLR0913 (a run's every fact about one host, each by its name)
    before: EngineNumbers | None,
    after: EngineNumbers | None,
    *,
    run: str,
    name: str,
    url: str,
    error: str | None = None,
    seen: Sequence[EngineNumbers] = (),
    rtt_ms: float | None = None,
    models_before: tuple[ServedModel, ...] = (),
    models_after: tuple[ServedModel, ...] = (),
) -> Ledger:
    """Make one host's ledger from the pages before and after the load, and those `seen` during it.

    No sum is told when either page is missing or when the process started anew in between.
    """
    restarted = None
    if before is not None and after is not None:
        restarted = has_restarted((before, *seen, after))
    sums: Mapping[str, float | None] = {}
    queue_mean_ms = None
    if before is not None and after is not None and not restarted:
        sums = {field: _moved(count, before, after) for field, count in _SUMS.items()}
        queue_mean_ms = _queue_mean_ms(before, after)
    return Ledger(
        run=run,
        name=name,
        url=url,
        error=error,
        rtt_ms=rtt_ms,
        restarted=restarted,
        **sums,
        queue_mean_ms=queue_mean_ms,
        running_before=before.running if before else None,
        waiting_before=before.waiting if before else None,
        waiting_max=max((each.waiting for each in seen if each.waiting is not None), default=None),
        models_before=models_before,
        models_after=models_after,
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
    return any(_falls(count, pages) for count in (*_SUMS.values(), _queued))


def _falls(count: Count, pages: Iterable[EngineNumbers]) -> bool:
    values = [value for page in pages if (value := count(page)) is not None]
    return any(later < earlier for earlier, later in pairwise(values))


def _moved(count: Count, before: EngineNumbers, after: EngineNumbers) -> float | None:
    """Subtract; a series that is new on a page that counts began at 0.

    vLLM's Rust front end and TGI show some counters with their first request only.
    """
    now, then = count(after), count(before)
    if then is None and any(each(before) is not None for each in _SUMS.values()):
        then = 0.0
    return None if now is None or then is None else now - then


def _queue_mean_ms(before: EngineNumbers, after: EngineNumbers) -> float | None:
    total_s, requests = _moved(_queue_s, before, after), _moved(_queued, before, after)
    # several engines' seconds may be added up in another order: a sum that stood still moves by 1e-16
    return 1000 * max(0.0, total_s) / requests if total_s is not None and requests else None


def _ended(reason: str) -> Count:
    """Requests that ended for one reason: 0 where the page tells reasons, but not this one yet."""

    def count(page: EngineNumbers) -> float | None:
        return dict(page.finished_by_reason).get(reason, 0.0) if page.finished_by_reason else None

    return count


def _asked_tokens(page: EngineNumbers) -> float | None:
    return _sum(page.asked_tokens)


def _asked_requests(page: EngineNumbers) -> float | None:
    return _count(page.asked_tokens)


def _queue_s(page: EngineNumbers) -> float | None:
    return _sum(page.queue)


def _queued(page: EngineNumbers) -> float | None:
    return _count(page.queue)


def _sum(histogram: Histogram | None) -> float | None:
    return histogram.sum if histogram else None


def _count(histogram: Histogram | None) -> float | None:
    return histogram.count if histogram else None


_SUMS: Mapping[str, Count] = {
    "requests": attrgetter("requests_total"),
    "prompt_tokens": attrgetter("prompt_tokens_total"),
    "generation_tokens": attrgetter("generation_tokens_total"),
    "finished_length": _ended("length"),
    "finished_stop": _ended("stop"),
    "asked_tokens": _asked_tokens,
    "asked_requests": _asked_requests,
    "prefix_queries": attrgetter("prefix_queries_total"),
    "prefix_hits": attrgetter("prefix_hits_total"),
    "preemptions": attrgetter("preemptions_total"),
}
"""Field of Ledger -> the counter whose difference it is."""
