"""Whether a host's first requests waited for a start: compilation, graphs, a replica that was never asked.

Times are compared within one host only, and every rule asks for a ratio and for an absolute difference, so that a
busy machine on either side is no accusation.
"""

from collections.abc import Collection, Iterable
from statistics import median

from toolkit.bench.evidence import LEAST_LATER, first_wave, middle, of, share
from toolkit.bench.verdicts.case import Case, Found
from toolkit.bench.verdicts.replays import INSTANT_MS
from toolkit.records import RequestRecord
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


def cold(case: Case) -> Found | None:
    """Tell of a host whose first requests were far slower than the rest: it was never warmed up."""
    replayed = case.replays.records
    own = [record for record in _new(case.records) if record not in replayed]
    first = first_wave(own)
    later = [
        record for record in own if record.ok and record.kind == "unique" and record not in first
    ]
    fastest = "the first request" if len(first) == 1 else f"the fastest of the first {len(first)}"
    # of a wave of n prompts that are read together the last waits n times as long
    far = max(FAR_SLOWER, len(first))

    # what each of the first took, with the later answers that were at least as much work
    timed: list[tuple[float, bool, list[float]]] = []
    for record in first:
        alike = [
            known
            for other in later
            if other.stream == record.stream
            and _is_as_many(other.prompt_tokens, record.prompt_tokens)
            and (other.stream or _is_as_many(other.output_tokens, record.output_tokens))
            and (known := _latency_ms(other)) is not None
        ]
        if (took := _latency_ms(record)) is not None and len(alike) >= LEAST_LATER:
            timed.append((took, record.stream, alike))

    # even the fastest waited; streams first: their time to the first token is free of all later steps
    if timed:
        took, _, alike = min(timed, key=lambda each: (not each[1], each[0]))
        usual = median(alike)
        if took >= far * usual and took - usual >= EXCESS_MS:
            clause = f"{fastest} took {spoken_ms(took)}, later ones {spoken_ms(usual)} (median)"
            return "low" if len(first) == 1 else "medium", [clause]

    # a first wave that stood still: a run too short to become warm has no later ones; that some later request was let in
    # at once shows that it is no gateway's constant delay
    if standstill := _standstill(first):
        stalled, reading_ms, pace = standstill
        waited = stalled.ttft_ms or 0.0
        quick = [
            record
            for record in case.records
            if record.stream and record.ok and record not in first and record not in replayed
            if record.ttft_ms is not None and FAR_SLOWER * record.ttft_ms <= waited
            # as long, and written by the engine, not by a cache that nobody has found out
            if _is_as_many(record.output_tokens, stalled.output_tokens)
            and (_pace_ms(record) or 0.0) >= HALF_PACE * pace
        ]
        if len(quick) >= LEAST_QUICK:
            clause = (
                f"{fastest} took {spoken_ms(waited)} to its first token, where reading all their"
                f" prompts takes {spoken_ms(reading_ms)} even at the pace of writing"
            )
            return "low" if len(first) == 1 else "medium", [clause]

    # a part of the first wave waited as no later request did: one of several replicas, or some batch sizes, were cold
    some = [
        (took, usual)
        for took, _, alike in timed
        if took >= far * (usual := median(alike)) and took - usual >= EXCESS_MS
        if took >= UNLIKE_LATER * max(alike)
    ]
    if len(some) < LEAST_WAITED or share(len(some), len(first)) < LEAST_WAITED_SHARE:
        return None
    least, usual = min(took for took, _ in some), median(usual for _, usual in some)
    clause = (
        f"{of(len(some), len(first), 'requests')} of the first wave took {spoken_ms(least)} or more,"
        f" later ones {spoken_ms(usual)} (median)"
    )
    return "medium", [clause]


def why_unseen(case: Case) -> str | None:
    """What the first answers could be held against is missing."""
    new = _new(case.records)
    wave = first_wave(new)
    # new requests that were answered and had been sent after the first answers
    later = sum(s.ok and s.kind == "unique" and s not in wave for s in new)
    if later < LEAST_LATER:
        return "no new request followed the first answers"
    standstill = _standstill(first_wave([s for s in new if s not in case.replays.records]))
    if standstill is None or standstill[2] < INSTANT_MS:  # it streams when all is written
        return None
    return "the first answers stood still, and too few later ones show that this has an end"


def _standstill(first: Collection[RequestRecord]) -> tuple[RequestRecord, float, float] | None:
    """Of a first wave that took far longer than its prompts can: the fastest, how long all prompts take, and the pace.

    No engine reads a token more slowly than it writes one; so prompts take no longer than at the pace of writing.
    """
    streams = [s for s in first if s.stream and s.ok and s.ttft_ms is not None]
    pace = middle(map(_pace_ms, streams))
    prompts = [record.prompt_tokens for record in first]
    if not streams or not pace or None in prompts:
        return None
    fastest = min(streams, key=lambda record: record.ttft_ms or 0.0)
    waited = fastest.ttft_ms or 0.0
    reading_ms = pace * sum(tokens or 0 for tokens in prompts)
    if waited < FAR_SLOWER * reading_ms or waited < EXCESS_MS:
        return None
    return fastest, reading_ms, pace


def _pace_ms(record: RequestRecord) -> float | None:
    """The usual time a token: of the gaps, as a stall in between would lift the mean.

    Where most chunks came with others in one read, their gaps are 0 and only the mean tells.
    """
    gap = Sketch.from_bytes(record.itl).quantile(0.5) if record.itl else None
    return gap or record.tpot_ms


def _new(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Requests whose prompt nobody sent before: the others may be fast for a reason of their own."""
    return [record for record in records if record.kind in ("unique", "warmup")]


def _latency_ms(record: RequestRecord) -> float | None:
    """To the first token of a stream, to the end of a whole answer, to the giving up on none."""
    if not record.ok:
        return record.took_ms
    return record.ttft_ms if record.stream else record.e2e_ms


def _is_as_many(theirs: int | None, ours: int | None) -> bool:
    return theirs is None or ours is None or theirs >= SIMILAR * ours
