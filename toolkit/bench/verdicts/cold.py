"""Whether a host's first requests waited for a start: compilation, graphs, a replica that was never asked.

Times are compared within one host only, and every rule asks for a ratio and for an absolute difference, so that a
busy machine on either side is no accusation.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from toolkit.bench.evidence import LEAST_LATER, first_wave, middle, of, share
from toolkit.bench.verdicts.response_cache import INSTANT_MS
from toolkit.records import Shot, Verdict
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


def cold(shots: Sequence[Shot], replayed: Collection[Shot]) -> Verdict | None:
    """Tell of a host whose first requests were far slower than the rest: it was never warmed up."""
    own = [shot for shot in _new(shots) if shot not in replayed]
    first = first_wave(own)
    later = [shot for shot in own if shot.ok and shot.kind == "unique" and shot not in first]
    return (
        _colder_than_later(first, later)
        or _colder_than_its_pace(first, shots, replayed)
        or _colder_in_part(first, later)
    )


def _colder_than_later(first: Collection[Shot], later: Sequence[Shot]) -> Verdict | None:
    # streams first: their time to the first token is free of all later steps
    fastest = _fastest_beside_later((shot for shot in first if shot.stream), later)
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


def _colder_in_part(first: Collection[Shot], later: Sequence[Shot]) -> Verdict | None:
    """A part of the first wave waited as no later request did: one of several replicas, or some batch sizes, were cold."""
    waited: list[float] = []
    usuals: list[float] = []
    for shot in first:
        took = _latency_ms(shot)
        alike = [
            known
            for other in later
            if _is_as_much_work(other, shot) and (known := _latency_ms(other)) is not None
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


def may_be_cold(shots: Sequence[Shot], replayed: Collection[Shot]) -> bool:
    """Whether the first wave stood still, and nothing after it shows that this host can be quick."""
    first = first_wave([shot for shot in _new(shots) if shot not in replayed])
    stall = _stall(first)
    return stall is not None and stall.pace >= INSTANT_MS  # else it streams when all is written


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stall:
    """A first wave that took far longer than its prompts can."""

    fastest: Shot
    waited: float
    reading: float
    """All its prompts, at the pace of writing."""
    pace: float


def _stall(first: Collection[Shot]) -> _Stall | None:
    """No engine reads a token more slowly than it writes one."""
    streams = [s for s in first if s.stream and s.ok and s.ttft_ms is not None]
    pace = middle(map(_pace_ms, streams))
    prompts = [shot.prompt_tokens for shot in first]
    if not streams or not pace or None in prompts:
        return None
    fastest = min(streams, key=lambda shot: shot.ttft_ms or 0.0)
    waited = fastest.ttft_ms or 0.0
    reading = pace * sum(tokens or 0 for tokens in prompts)
    if waited < FAR_SLOWER * reading or waited < EXCESS_MS:
        return None
    return _Stall(fastest=fastest, waited=waited, reading=reading, pace=pace)


def _colder_than_its_pace(
    first: Collection[Shot], shots: Sequence[Shot], replayed: Collection[Shot]
) -> Verdict | None:
    """A first wave that stood still: a run too short to become warm has no later ones.

    That some later request was let in at once shows that it is no gateway's constant delay.
    """
    stall = _stall(first)
    if stall is None:
        return None
    rest = [s for s in shots if s.stream and s.ok and s not in first and s not in replayed]
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


def _fastest_of(first: Collection[Shot]) -> str:
    return "the first request" if len(first) == 1 else f"the fastest of the first {len(first)}"


def _pace_ms(shot: Shot) -> float | None:
    """The usual time a token: of the gaps, as a stall in between would lift the mean.

    Where most chunks came with others in one read, their gaps are 0 and only the mean tells.
    """
    gap = Sketch.from_bytes(shot.itl).quantile(0.5) if shot.itl else None
    return gap or shot.tpot_ms


def _fastest_beside_later(
    first: Iterable[Shot], later: Sequence[Shot]
) -> tuple[float, float] | None:
    """What the fastest of the first took that has its like later, and what those take."""
    timed = [(took, shot) for shot in first if (took := _latency_ms(shot)) is not None]
    for took, shot in sorted(timed, key=lambda each: each[0]):
        usual = _usual_ms(shot, later)
        if usual is not None:
            return took, usual
    return None


def has_later(shots: Iterable[Shot]) -> bool:
    """Whether any new request was answered that was sent after the first answers."""
    own = _new(shots)
    first = first_wave(own)
    return sum(s.ok and s.kind == "unique" and s not in first for s in own) >= LEAST_LATER


def _new(shots: Iterable[Shot]) -> list[Shot]:
    """Requests whose prompt nobody sent before: the others may be fast for a reason of their own."""
    return [shot for shot in shots if shot.kind in ("unique", "warmup")]


def _latency_ms(shot: Shot) -> float | None:
    """To the first token of a stream, to the end of a whole answer, to the giving up on none."""
    if not shot.ok:
        return shot.took_ms
    return shot.ttft_ms if shot.stream else shot.e2e_ms


def _usual_ms(shot: Shot, later: Iterable[Shot]) -> float | None:
    """The median of later answers that were at least as much work."""
    alike = [_latency_ms(other) for other in later if _is_as_much_work(other, shot)]
    return middle(alike) if len(alike) >= LEAST_LATER else None


def _is_as_much_work(other: Shot, shot: Shot) -> bool:
    if other.stream != shot.stream or not _is_as_many(other.prompt_tokens, shot.prompt_tokens):
        return False
    return other.stream or _is_as_many(other.output_tokens, shot.output_tokens)


def _is_as_many(theirs: int | None, ours: int | None) -> bool:
    return theirs is None or ours is None or theirs >= SIMILAR * ours
