"""What one blast of one configuration measured, as figures: from tallies of the seconds that count, canaries and counters.

The first seconds, in which users come, do not count; nor what follows the load's end, when users only wait for their last
answers. An answer that lies partly in the seconds that count is counted by that part of its time: users in step end their
answers in waves, and a window that cuts one wave more than another would differ by it. Measured with 64 simulated users and
answers of 4 s: over 24 windows of 6 s the tokens a second spread by 2.4 %, by the ends of answers alone by 8.5 % (their means
are 0.3 % apart); over 17 windows of 20 s by 0.8 and 2.3 %. No clock, no store.
"""

import math
import re
import struct
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache

from toolkit.records import Event, LoaderSecond, Reading, Shot, Tally
from toolkit.stats import Sketch, merged, nearest_rank
from toolkit.tuning.metrics import OF_PROMPTS

Figures = dict[str, float | None]
"""By a metric's name; None: not known."""
COUNTERS = {
    "spec_drafts": re.compile(r"vllm:spec_decode_num_drafts(_total)?"),
    "spec_drafted": re.compile(r"vllm:spec_decode_num_draft_tokens(_total)?"),
    "spec_accepted": re.compile(r"vllm:spec_decode_num_accepted_tokens(_total)?"),
    "prefix_queries": re.compile(r"vllm:(gpu_)?prefix_cache_queries(_total)?"),
    "prefix_hits": re.compile(r"vllm:(gpu_)?prefix_cache_hits(_total)?"),
    "preemptions": re.compile(r"vllm:num_preemptions(_total)?"),
    "queue_s": re.compile(r"vllm:request_queue_time_seconds_sum"),
    "queued": re.compile(r"vllm:request_queue_time_seconds_count"),
}
"""Sums of a counter's samples are kept under these names."""


# --- the seconds that count ------------------------------------------------------------------------


def counted_seconds(
    loader: Iterable[LoaderSecond],
    events: Sequence[Event],
    *,
    settle_s: float,
    duration_s: float,
    drain_s: float = 0.0,
) -> frozenset[int]:
    """Whole seconds under full load. A run that was cut off and resumed has several stretches of them.

    `drain_s` is taken off the end of a stretch that ended before its time: users waited for their last answers there.
    """
    told = sorted({second.at_s for second in loader})
    begins = sorted(event.at for event in events if event.kind in ("start", "resume"))
    left_s, counted = duration_s, set[int]()
    for place, begin in enumerate(begins):
        following = begins[place + 1] if place + 1 < len(begins) else math.inf
        mine = [at_s for at_s in told if begin - 1 <= at_s < following]
        over = begin + left_s
        if mine and mine[-1] + 1 < over:
            over = mine[-1] + 1 - drain_s
        counted |= {at_s for at_s in mine if at_s >= begin + settle_s and at_s + 1 <= over}
        left_s -= sum(at_s >= begin for at_s in mine)
    return frozenset(counted)


def measured(
    tallies: Iterable[Tally], seconds: Collection[int], shots: Iterable[Shot] = ()
) -> Figures:
    """Figures of the ranked requests that ended in these seconds, and of the canaries sent in them."""
    ranked = [each for each in tallies if each.kind == "ranked"]
    mine = [each for each in ranked if each.at_s in seconds]
    ok, errors = sum(each.ok for each in mine), sum(each.errors for each in mine)
    e2e = Sketch.from_bytes(merged(each.e2e for each in mine))
    ttft = Sketch.from_bytes(merged(each.ttft for each in mine))
    within = _time_within(seconds)
    answers = [(each, _answers_within(each, within)) for each in ranked]
    figures: Figures = {
        "output_tokens_per_s": _rate(
            (part * each.output_tokens / each.ok for each, part in answers if each.ok), seconds
        ),
        "rps": _rate((part for _, part in answers), seconds),
        "ttft_p50_ms": ttft.quantile(0.5),
        "ttft_p95_ms": ttft.quantile(0.95),
        "e2e_p50_ms": e2e.quantile(0.5),
        "e2e_p95_ms": e2e.quantile(0.95),
        "error_rate": errors / (ok + errors) if ok + errors else None,
        "requests": float(ok + errors),
        "seconds": float(len(seconds)),
    }
    return figures | _of_canaries(
        [each for each in shots if each.sent_at is not None and int(each.sent_at) in seconds]
    )


def _rate(parts: Iterable[float], seconds: Collection[int]) -> float | None:
    return math.fsum(parts) / len(seconds) if seconds else None


def _answers_within(tally: Tally, within: Callable[[float], float]) -> float:
    """How many of a second's ok answers lie in the time that counts, by parts; they ended in its middle on average."""
    ended = tally.at_s + 0.5
    whole = Sketch.from_bytes(tally.e2e)
    return math.fsum(
        count * (within(ended) - within(ended - took_s)) / took_s
        for bucket, count in whole.counts.items()
        for took_s in (_bucket_ms(bucket) / 1000,)
    )


@cache
def _bucket_ms(bucket: int) -> float:
    """The latency that a sketch's bucket stands for."""
    return Sketch.from_bytes(struct.pack("<HH", bucket, 1)).quantile(1.0) or 0.0


def _time_within(seconds: Collection[int]) -> Callable[[float], float]:
    """A moment -> how much of the time before it counts."""
    ordered = sorted(seconds)

    def within(moment: float) -> float:
        begun = bisect_right(ordered, moment)
        if not begun:
            return 0.0
        return begun - 1 + min(1.0, moment - ordered[begun - 1])

    return within


def _of_canaries(shots: Sequence[Shot]) -> Figures:
    """By the first word of their prompts' names: `long-2` is one of `long`."""
    unique = [each for each in shots if each.kind == "unique" and each.ok]
    figures: Figures = {"tpot_p50_ms": nearest_rank([each.tpot_ms for each in unique], 0.5)}
    for group in sorted({_group(each.prompt) for each in unique}):
        mine = [each for each in unique if _group(each.prompt) == group]
        for name in OF_PROMPTS:
            field, quantile = name.rsplit("_p", 1)[0] + "_ms", int(name[-5:-3]) / 100
            figures[f"{name}:{group}"] = nearest_rank(
                [getattr(each, field) for each in mine], quantile
            )
    return figures


def _group(prompt: str) -> str:
    return re.split(r"[-_/ ]", prompt, maxsplit=1)[0]


# --- counters ---------------------------------------------------------------------------------------


def counters(readings: Iterable[Reading]) -> dict[str, float]:
    """The sums of those counters that a sweep looks at, under their short names."""
    sums: dict[str, float] = {}
    for reading in readings:
        for name, spelled in COUNTERS.items():
            if spelled.fullmatch(reading.name):
                sums[name] = sums.get(name, 0.0) + reading.value
    return sums


def moved(before: Mapping[str, float], after: Mapping[str, float]) -> Figures:
    """What the counters moved by, as figures; of one that went backwards nothing is known."""
    by = {
        name: after[name] - before[name]
        for name in after
        if name in before and after[name] >= before[name]
    }
    accepted, queue_s = by.get("spec_accepted"), by.get("queue_s")
    drafts = _share(accepted, by.get("spec_drafts"))
    return {
        "prefix_hit_ratio": _share(by.get("prefix_hits"), by.get("prefix_queries")),
        "spec_acceptance_ratio": _share(accepted, by.get("spec_drafted")),
        "spec_mean_length": None if drafts is None else 1 + drafts,
        "spec_drafts": by.get("spec_drafts"),
        "preemptions": by.get("preemptions"),
        "queue_mean_ms": _share(None if queue_s is None else 1000 * queue_s, by.get("queued")),
    }


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
