"""Whether a host's first requests waited for a start: compilation, graphs, a replica that was never asked.

Times are compared within one host only, and every rule asks for a ratio and for an absolute difference, so that a
busy machine on either side is no accusation.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from toolkit.bench.evidence import LEAST_LATER, first_wave, middle, of, share
from toolkit.bench.verdicts.case import Case
from toolkit.bench.verdicts.replays import INSTANT_MS
from toolkit.records import RequestRecord, Verdict
from toolkit.stats import Sketch
from toolkit.units import spoken_ms

FAR_SLOWER = 5.0
"""The first answers against later ones; a first wave whose prompts are read together takes about twice as long."""
EXCESS_MS = 500.0
"""And by so much, so that no hiccup of either machine is an accusation."""
LEAST_QUICK = 2
LEAST_WAITED, LEAST_WAITED_SHARE = 2, 0.2
"""Of a first wave: one that waited alone may have met a hiccup."""
UNLIKE_LATER = 2.0
"""And at least twice as long as any later one: where some wait at all times, as in a queue, that is no start."""
SIMILAR = 0.8
"""Answers to compare with have at least so much of the tokens, prompt and answer: more work would not be sooner."""
HALF_PACE = 0.5
"""A token in less than half the usual time is a cache's, not the engine's."""


def cold(case: Case) -> Verdict | None:
    """Tell of a host whose first requests were far slower than the rest: it was never warmed up."""
    replayed = case.replays.records
    own = [record for record in _new(case.records) if record not in replayed]
    first = first_wave(own)
    later = [
        record for record in own if record.ok and record.kind == "unique" and record not in first
    ]
    return (
        _colder_than_later(first, later)
        or _colder_than_its_pace(first, case.records, replayed)
        or _colder_in_part(first, later)
    )


def _colder_than_later(
    first: Collection[RequestRecord], later: Sequence[RequestRecord]
) -> Verdict | None:
    # streams first: their time to the first token is free of all later steps
    fastest = _fastest_beside_later((record for record in first if record.stream), later)
    fastest = fastest or _fastest_beside_later((s for s in first if not s.stream), later)
    if fastest is None:
        return None
    waited, usual = fastest
    # even the fastest: of a wave of n prompts that are read together the last waits n times as long
    if waited < max(FAR_SLOWER, len(first)) * usual or waited - usual < EXCESS_MS:
        return None
    return Verdict(
        code="cold",
        confidence="low" if len(first) == 1 else "medium",
        evidence=f"{_fastest_of(first)} took {spoken_ms(waited)}, later ones {spoken_ms(usual)} (median)",
    )


def _colder_in_part(
    first: Collection[RequestRecord], later: Sequence[RequestRecord]
) -> Verdict | None:
    """A part of the first wave waited as no later request did: one of several replicas, or some batch sizes, were cold."""
    waited: list[float] = []
    usuals: list[float] = []
    for record in first:
        took = _latency_ms(record)
        alike = [
            known
            for other in later
            if _is_as_much_work(other, record) and (known := _latency_ms(other)) is not None
        ]
        usual = middle(alike)
        if took is None or usual is None or len(alike) < LEAST_LATER:
            continue
        far = took >= max(FAR_SLOWER, len(first)) * usual and took - usual >= EXCESS_MS
        if far and took >= UNLIKE_LATER * max(alike):
            waited.append(took)
            usuals.append(usual)
    if len(waited) < LEAST_WAITED or share(len(waited), len(first)) < LEAST_WAITED_SHARE:
        return None
    return Verdict(
        code="cold",
        confidence="medium",
        evidence=f"{of(len(waited), len(first), 'requests')} of the first wave took"
        f" {spoken_ms(min(waited))} or more, later ones {spoken_ms(middle(usuals) or 0.0)} (median)",
    )


def why_unseen(case: Case) -> str | None:
    """What the first answers could be held against is missing."""
    new = _new(case.records)
    wave = first_wave(new)
    # new requests that were answered and had been sent after the first answers
    later = sum(s.ok and s.kind == "unique" and s not in wave for s in new)
    if later < LEAST_LATER:
        return "no new request followed the first answers"
    stall = _stall(first_wave([each for each in new if each not in case.replays.records]))
    if stall is None or stall.pace < INSTANT_MS:  # it streams when all is written
        return None
    return "the first answers stood still, and too few later ones show that this has an end"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stall:
    """A first wave that took far longer than its prompts can."""

    fastest: RequestRecord
    waited: float
    reading: float
    """All its prompts, at the pace of writing."""
    pace: float


def _stall(first: Collection[RequestRecord]) -> _Stall | None:
    """No engine reads a token more slowly than it writes one."""
    streams = [s for s in first if s.stream and s.ok and s.ttft_ms is not None]
    pace = middle(map(_pace_ms, streams))
    prompts = [record.prompt_tokens for record in first]
    if not streams or not pace or None in prompts:
        return None
    fastest = min(streams, key=lambda record: record.ttft_ms or 0.0)
    waited = fastest.ttft_ms or 0.0
    reading = pace * sum(tokens or 0 for tokens in prompts)
    if waited < FAR_SLOWER * reading or waited < EXCESS_MS:
        return None
    return _Stall(fastest=fastest, waited=waited, reading=reading, pace=pace)


def _colder_than_its_pace(
    first: Collection[RequestRecord],
    records: Sequence[RequestRecord],
    replayed: Collection[RequestRecord],
) -> Verdict | None:
    """A first wave that stood still: a run too short to become warm has no later ones.

    That some later request was let in at once shows that it is no gateway's constant delay.
    """
    stall = _stall(first)
    if stall is None:
        return None
    rest = [s for s in records if s.stream and s.ok and s not in first and s not in replayed]
    quick = [s for s in rest if s.ttft_ms is not None and FAR_SLOWER * s.ttft_ms <= stall.waited]
    # as long, and written by the engine, not by a cache that nobody has found out
    quick = [s for s in quick if _is_as_many(s.output_tokens, stall.fastest.output_tokens)]
    quick = [s for s in quick if (_pace_ms(s) or 0.0) >= HALF_PACE * stall.pace]
    if len(quick) < LEAST_QUICK:
        return None
    return Verdict(
        code="cold",
        confidence="medium" if len(first) > 1 else "low",
        evidence=f"{_fastest_of(first)} took {spoken_ms(stall.waited)} to its first token, where reading"
        f" all their prompts takes {spoken_ms(stall.reading)} even at the pace of writing",
    )


def _fastest_of(first: Collection[RequestRecord]) -> str:
    return "the first request" if len(first) == 1 else f"the fastest of the first {len(first)}"


def _pace_ms(record: RequestRecord) -> float | None:
    """The usual time a token: of the gaps, as a stall in between would lift the mean.

    Where most chunks came with others in one read, their gaps are 0 and only the mean tells.
    """
    gap = Sketch.from_bytes(record.itl).quantile(0.5) if record.itl else None
    return gap or record.tpot_ms


def _fastest_beside_later(
    first: Iterable[RequestRecord], later: Sequence[RequestRecord]
) -> tuple[float, float] | None:
    """What the fastest of the first took that has its like later, and what those take."""
    timed = [(took, record) for record in first if (took := _latency_ms(record)) is not None]
    for took, record in sorted(timed, key=lambda each: each[0]):
        usual = _usual_ms(record, later)
        if usual is not None:
            return took, usual
    return None


def _new(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Requests whose prompt nobody sent before: the others may be fast for a reason of their own."""
    return [record for record in records if record.kind in ("unique", "warmup")]


def _latency_ms(record: RequestRecord) -> float | None:
    """To the first token of a stream, to the end of a whole answer, to the giving up on none."""
    if not record.ok:
        return record.took_ms
    return record.ttft_ms if record.stream else record.e2e_ms


def _usual_ms(record: RequestRecord, later: Iterable[RequestRecord]) -> float | None:
    """The median of later answers that were at least as much work."""
    alike = [_latency_ms(other) for other in later if _is_as_much_work(other, record)]
    return middle(alike) if len(alike) >= LEAST_LATER else None


def _is_as_much_work(other: RequestRecord, record: RequestRecord) -> bool:
    if other.stream != record.stream or not _is_as_many(other.prompt_tokens, record.prompt_tokens):
        return False
    return other.stream or _is_as_many(other.output_tokens, record.output_tokens)


def _is_as_many(theirs: int | None, ours: int | None) -> bool:
    return theirs is None or ours is None or theirs >= SIMILAR * ours
