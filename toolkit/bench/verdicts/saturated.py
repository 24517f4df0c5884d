"""Whether a host had more to do than it could: more load made it slower and nothing else.

Times are compared within one host only, and every rule asks for a ratio and for an absolute difference, so that a
busy machine on either side is no accusation.
"""

from collections.abc import Iterable, Iterator, Sequence

from toolkit.bench.evidence import LEAST_LATER, first_wave, middle, share
from toolkit.bench.summary import HostSummary, knee
from toolkit.bench.verdicts.case import Case, Found
from toolkit.records import Ledger, RequestRecord
from toolkit.units import counted, spoken_ms, whole

EXCESS_MS = 500.0
"""How much later the last third's answers must come, so that no hiccup of either machine is an accusation."""
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


def saturated(case: Case) -> Found | None:
    """Tell of a host that had more to do than it could: more load made it slower and nothing else."""
    ledger = case.ledger
    own = [record for record in case.records if record not in case.replays.records]
    clauses = [
        *_by_levels(case.levels),
        *_by_falling_behind(own),
        *_by_queue(own, ledger, was_cold="cold" in case.accused),
    ]
    sent = sum(record.sent_at is not None for record in own)
    if ledger.preemptions and ledger.preemptions >= max(1.0, REDONE * sent):
        preemptions = counted(round(ledger.preemptions), "preemption")
        clauses.append(f"{preemptions}: its KV cache ran out and work was done twice")
    if not clauses:
        return None
    return "high" if len(clauses) > 1 else "medium", clauses


def why_unseen(case: Case) -> str | None:
    """Neither a queue's counters nor a sweep or an open loop shows what more load would do."""
    is_open_loop = any(record.concurrency is None for record in case.records)
    if case.ledger.queue_mean_ms is not None or is_open_loop or len(case.levels) > 1:
        return None
    return case.no_counters


def _by_levels(levels: Sequence[HostSummary]) -> Iterator[str]:
    knee_at = knee(levels)
    if knee_at is None:
        return
    top = max(levels, key=lambda level: level.concurrency or 0)
    at = next(level for level in levels if level.concurrency == knee_at)
    yield (
        f"beyond {knee_at} requests at once it answers no more a second ({at.rps or 0:.2f},"
        f" with {top.concurrency} {top.rps or 0:.2f}) and takes longer"
        f" ({spoken_ms(at.e2e_p50_ms or 0)}, then {spoken_ms(top.e2e_p50_ms or 0)})"
    )


def _by_falling_behind(records: Iterable[RequestRecord]) -> Iterator[str]:
    """Latencies from the planned send that grow from third to third of an open loop."""
    planned = sorted(
        (record for record in records if record.concurrency is None and record.kind != "warmup"),
        key=lambda record: record.planned_at,
    )
    # how long a client would have waited; errors other than timeouts end early and say nothing of a queue
    waits = [
        wait
        for record in planned
        if record.ok or record.error_kind == "timeout"
        if (wait := record.e2e_ms if record.ok else record.took_ms) is not None
    ]
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


def _by_queue(records: Sequence[RequestRecord], ledger: Ledger, *, was_cold: bool) -> Iterator[str]:
    """The server's own queue; while a host is cold everything waits, and that is not for want of room."""
    waits = [record.e2e_ms for record in records if record.ok and record.e2e_ms is not None]
    queued = ledger.queue_mean_ms
    if was_cold or not waits or queued is None or not ledger.waiting_max:
        return
    mean = sum(waits) / len(waits)
    # a few that stood behind a stall lift the mean above what most answers took
    if share(queued, mean) < QUEUE_SHARE or queued > (middle(waits) or 0.0):
        return
    step = middle(
        s.e2e_ms / s.output_tokens for s in records if s.ok and s.e2e_ms and s.output_tokens
    )
    if queued < QUEUE_STEPS * (step or 0.0) and share(queued, mean) < MOSTLY_QUEUE:
        return

    # how much of the later answers' time the queue can be: prompts that come all at once are read one after the other on
    # any host, and what the first wave took longer than later answers is no more than that
    wave = first_wave(records)
    later = [s.e2e_ms for s in records if s.ok and s.e2e_ms is not None and s not in wave]
    if len(later) >= LEAST_LATER:
        usual = middle(later) or 0.0
        first = [s.e2e_ms for s in wave if s.ok and s.e2e_ms is not None]
        burst = sum(max(0.0, e2e_ms - usual) for e2e_ms in first)
        if share(max(0.0, queued * len(waits) - burst), sum(later)) < QUEUE_SHARE:
            return

    # whether a queue is that of a full host, and not of one that stood still for a while: a full host always has about as
    # many waiting, and of a first wave it serves some at once and the others after them. Where more wait than we ever sent
    # at once, or in an open loop, the queue is not ours alone to reckon with
    widest = max(record.concurrency or 0 for record in records)
    if not widest and 2 * len(wave) > len(records):
        return  # most of a plan was sent before the first answer: that may be a cold start
    room = widest - ledger.waiting_max
    if room > 0:
        turns = [record.e2e_ms for record in wave if record.ok and record.e2e_ms]
        if turns and max(turns) / min(turns) < STEADY * widest / room:
            return
        # by Little's law so many of ours wait on average
        if share(queued, mean) * widest < STEADY * ledger.waiting_max:
            return
    yield (
        f"requests waited {spoken_ms(queued)} of their {spoken_ms(mean)} in the server's queue"
        f" (means), {whole(ledger.waiting_max)} of them at once"
    )
