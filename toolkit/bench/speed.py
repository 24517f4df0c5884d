"""What else explains a host's figures: it was cold, it was full, or it failed fast.

Times are compared within one host only, and every rule asks for a ratio and for an absolute difference, so that a
busy machine on either side is no accusation.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from toolkit.bench.evidence import ended_at, middle, of, sentence, share
from toolkit.bench.ladder import Rung, knee
from toolkit.bench.replays import INSTANT_MS
from toolkit.records import Confidence, Ledger, Shot, Verdict
from toolkit.stats import Sketch
from toolkit.units import counted, spoken_ms, whole

FAR_SLOWER = 5.0
"""The first answers against later ones; a first wave whose prompts are read together takes about twice as long."""
EXCESS_MS = 500.0
"""And by so much, so that no hiccup of either machine is an accusation."""
LEAST_LATER = 3
LEAST_QUICK = 2
LEAST_WAITED, LEAST_WAITED_SHARE = 2, 0.2
"""Of a first wave: one that waited alone may have met a hiccup."""
UNLIKE_LATER = 2.0
"""And at least twice as long as any later one: where some wait at all times, as in a queue, that is no start."""
SIMILAR = 0.8
"""Answers to compare with have at least so much of the tokens, prompt and answer: more work would not be sooner."""

LEAST_PLANNED = 12
"""Requests of an open loop, for thirds of at least four."""
GROWS = 1.3
"""From third to third. A loop that starts on an idle host slows down at first, and then no more."""
DOUBLED = 2.0
QUEUE_SHARE = 0.2
"""Of an answer's time in the server's queue; everybody waits for the next step to begin, which is a trifle."""
QUEUE_STEPS = 2.0
"""A request that comes while a step runs waits for its end, on any host, and a slow step of others' prompts besides."""
MOSTLY_QUEUE = 0.6
"""Answers of one token take a step or two, so that a wait of one is half their time."""
STEADY = 0.5
"""Half of what a steady queue would show: it stands all the time, and serves a first wave in turns."""
REDONE = 0.05
"""Preemptions per request: work that was thrown away and done twice."""

LEAST_FAILURES = 2
LEAST_FAILED = 0.05
"""Two failures, and one request in twenty: less than that moves no median."""
SOONER = 0.5
"""A failure in half the time of an answer, or a token in half the usual time."""


# --- cold ---------------------------------------------------------------------------------------------------


def cold(shots: Sequence[Shot], replayed: Collection[Shot]) -> Verdict | None:
    """Tell of a host whose first requests were far slower than the rest: it was never warmed up."""
    own = [shot for shot in _new(shots) if shot not in replayed]
    first = _first_wave(own)
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
    first = _first_wave([shot for shot in _new(shots) if shot not in replayed])
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
    quick = [s for s in quick if (_pace_ms(s) or 0.0) >= SOONER * stall.pace]
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
    first = _first_wave(own)
    return sum(s.ok and s.kind == "unique" and s not in first for s in own) >= LEAST_LATER


def _new(shots: Iterable[Shot]) -> list[Shot]:
    """Requests whose prompt nobody sent before: the others may be fast for a reason of their own."""
    return [shot for shot in shots if shot.kind in ("unique", "warmup")]


def _first_wave(shots: Sequence[Shot]) -> frozenset[Shot]:
    """What was sent before anything came back; a timeout is an answer's time, too, an error is none."""
    timed = [shot for shot in shots if shot.ok or shot.error_kind == "timeout"]
    ends = [ended for shot in timed if (ended := ended_at(shot)) is not None]
    first_end = min(ends, default=0.0)
    return frozenset(s for s in timed if s.sent_at is not None and s.sent_at < first_end)


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


# --- saturated ------------------------------------------------------------------------------------------------


def saturated(
    shots: Sequence[Shot],
    ledger: Ledger,
    rungs: Sequence[Rung],
    replayed: Collection[Shot],
    *,
    was_cold: bool,
) -> Verdict | None:
    """Tell of a host that had more to do than it could: more load made it slower and nothing else."""
    own = [shot for shot in shots if shot not in replayed]
    clauses = [
        *_by_ladder(rungs),
        *_by_falling_behind(own),
        *_by_queue(own, ledger, was_cold=was_cold),
        *_by_preemptions(own, ledger),
    ]
    if not clauses:
        return None
    confidence: Confidence = "high" if len(clauses) > 1 else "medium"
    return Verdict(code="saturated", confidence=confidence, evidence=sentence(clauses))


def _by_ladder(rungs: Sequence[Rung]) -> Iterator[str]:
    level = knee(rungs)
    if level is None:
        return
    top = max(rungs, key=lambda rung: rung.concurrency)
    at = next(rung for rung in rungs if rung.concurrency == level)
    yield (
        f"beyond {level} requests at once it answers no more a second ({at.rps or 0:.2f},"
        f" with {top.concurrency} {top.rps or 0:.2f}) and takes longer"
        f" ({spoken_ms(at.e2e_p50_ms or 0)}, then {spoken_ms(top.e2e_p50_ms or 0)})"
    )


def _by_falling_behind(shots: Iterable[Shot]) -> Iterator[str]:
    """Latencies from the planned send that grow from third to third of an open loop."""
    planned = sorted(
        (shot for shot in shots if shot.concurrency is None and shot.kind != "warmup"),
        key=lambda shot: shot.planned_at,
    )
    waits = [wait for shot in planned if (wait := _waited_ms(shot)) is not None]
    third = len(waits) // 3
    if len(waits) < LEAST_PLANNED:
        return
    parts = (waits[:third], waits[third:-third], waits[-third:])
    start, mid, end = (middle(part) or 0.0 for part in parts)
    grows = mid >= GROWS * start and end >= GROWS * mid
    if grows and end >= DOUBLED * start and end - start >= EXCESS_MS:
        yield (
            f"answers fell ever further behind the plan, from {spoken_ms(start)} in the first third"
            f" to {spoken_ms(end)} in the last (medians)"
        )


def _waited_ms(shot: Shot) -> float | None:
    """How long a client would have waited; errors other than timeouts end early and say nothing of a queue."""
    if shot.ok:
        return shot.e2e_ms
    return shot.took_ms if shot.error_kind == "timeout" else None


def _by_queue(shots: Sequence[Shot], ledger: Ledger, *, was_cold: bool) -> Iterator[str]:
    """The server's own queue; while a host is cold everything waits, and that is not for want of room."""
    waits = [shot.e2e_ms for shot in shots if shot.ok and shot.e2e_ms is not None]
    queued = ledger.queue_mean_ms
    if was_cold or not waits or queued is None or not ledger.waiting_max:
        return
    mean = sum(waits) / len(waits)
    # a few that stood behind a stall lift the mean above what most answers took
    if share(queued, mean) < QUEUE_SHARE or queued > (middle(waits) or 0.0):
        return
    step = middle(
        s.e2e_ms / s.output_tokens for s in shots if s.ok and s.e2e_ms and s.output_tokens
    )
    if queued < QUEUE_STEPS * (step or 0.0) and share(queued, mean) < MOSTLY_QUEUE:
        return
    steady = _steady_share(shots, queued)
    if steady is not None and steady < QUEUE_SHARE:
        return
    if _is_for_want_of_room(shots, share(queued, mean), ledger.waiting_max):
        yield (
            f"requests waited {spoken_ms(queued)} of their {spoken_ms(mean)} in the server's queue"
            f" (means), {whole(ledger.waiting_max)} of them at once"
        )


def _steady_share(shots: Sequence[Shot], queued: float) -> float | None:
    """How much of the later answers' time the queue can be; None without any.

    Prompts that come all at once are read one after the other on any host: what the first wave took longer than
    later answers is no more than that.
    """
    wave = _first_wave(shots)
    took = [(shot, shot.e2e_ms) for shot in shots if shot.ok and shot.e2e_ms is not None]
    later = [e2e_ms for shot, e2e_ms in took if shot not in wave]
    if len(later) < LEAST_LATER:
        return None
    usual = middle(later) or 0.0
    burst = sum(max(0.0, e2e_ms - usual) for shot, e2e_ms in took if shot in wave)
    return share(max(0.0, queued * len(took) - burst), sum(later))


def _is_for_want_of_room(shots: Sequence[Shot], waited: float, waiting_max: float) -> bool:
    """Whether a queue is that of a full host, and not of one that stood still for a while.

    A full host always has about as many waiting, and of a first wave it serves some at once and the others after
    them. Where more wait than we ever sent at once, or in an open loop, the queue is not ours alone to reckon with.
    """
    widest = max(shot.concurrency or 0 for shot in shots)
    room = widest - waiting_max
    wave = _first_wave(shots)
    if not widest and 2 * len(wave) > len(shots):
        return False  # most of a plan was sent before the first answer: that may be a cold start
    if room <= 0:
        return True
    first = [shot.e2e_ms for shot in wave if shot.ok and shot.e2e_ms]
    in_turns = not first or max(first) / min(first) >= STEADY * widest / room
    # by Little's law so many of ours wait on average
    return in_turns and waited * widest >= STEADY * waiting_max


def _by_preemptions(shots: Iterable[Shot], ledger: Ledger) -> Iterator[str]:
    sent = sum(shot.sent_at is not None for shot in shots)
    if ledger.preemptions and ledger.preemptions >= max(1.0, REDONE * sent):
        preemptions = counted(round(ledger.preemptions), "preemption")
        yield f"{preemptions}: its KV cache ran out and work was done twice"


# --- fast failures ----------------------------------------------------------------------------------------------


def fast_failures(shots: Iterable[Shot], replayed: Collection[Shot]) -> Verdict | None:
    """Accuse a host that fails sooner than it answers; one that answers nothing is dead, not fast."""
    measured = [shot for shot in shots if shot.kind != "warmup" and shot.sent_at is not None]
    usual = middle(shot.took_ms for shot in measured if shot.ok and shot not in replayed)
    if usual is None:
        usual = middle(shot.took_ms for shot in measured if shot.ok)
    if usual is None:
        return None
    fast = [
        shot
        for shot in measured
        if not shot.ok and shot.took_ms is not None and shot.took_ms <= SOONER * usual
    ]
    if len(fast) < LEAST_FAILURES or share(len(fast), len(measured)) < LEAST_FAILED:
        return None
    failed = middle(shot.took_ms for shot in fast) or 0.0
    kinds = ", ".join(f"`{kind}`" for kind in sorted({shot.error_kind or "?" for shot in fast}))
    return Verdict(
        code="fast_failures",
        confidence="high",
        evidence=f"{of(len(fast), len(measured), 'requests')} failed ({kinds}) after"
        f" {spoken_ms(failed)} where answers take {spoken_ms(usual)} (medians)",
    )
