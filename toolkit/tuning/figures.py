"""The figures that configurations are compared by: what each is called, how it is defined, and what one blast measured of them.

They come from tallies of the seconds that count, canaries and counters. The first seconds, in which users come, do not count; nor
what follows the load's end, when users only wait for their last answers. An answer that lies partly in the seconds that count is
counted by that part of its time: users in step end their answers in waves, and a window that cuts one wave more than another would
differ by it. Measured with 64 simulated users and answers of 4 s: over 24 windows of 6 s the tokens a second spread by 2.4 %, by
the ends of answers alone by 8.5 % (their means are 0.3 % apart); over 17 windows of 20 s by 0.8 and 2.3 %. No clock, no store.
"""

import math
import re
import struct
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from toolkit.metrics.names import VLLM, Names
from toolkit.metrics.parser import MetricsPage
from toolkit.records import Event, LoaderSecond, RequestRecord, Tally
from toolkit.stats import Sketch, nearest_rank
from toolkit.tuning.cells import cell_of_tallies
from toolkit.units import milliseconds, rate, share

Figures = dict[str, float | None]
"""By a metric's name; None: not known."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure that configurations are compared by."""

    title: str
    definition: str = ""
    more_is_better: bool = False
    is_share: bool = False
    """0 to 1: compared by difference, as a ratio of small shares says little."""


METRICS: dict[str, Metric] = {
    "output_tokens_per_s": Metric(
        "output tokens/s",
        "output tokens of ok answers, by the part of each one's time in the seconds that count / these seconds",
        more_is_better=True,
    ),
    "rps": Metric(
        "RPS",
        "ok requests, by the part of each one's time in the seconds that count / these seconds",
        more_is_better=True,
    ),
    "ttft_p50_ms": Metric("TTFT p50", "first chunk with a token minus send, median of ok streams"),
    "ttft_p95_ms": Metric("TTFT p95", "first chunk with a token minus send, 95th percentile"),
    "e2e_p50_ms": Metric("E2E p50", "last token minus send, median of ok answers"),
    "e2e_p95_ms": Metric("E2E p95", "last token minus send, 95th percentile"),
    "tpot_p50_ms": Metric(
        "TPOT p50", "(E2E - TTFT) / tokens after the first chunk, median of the unique canaries"
    ),
    "error_rate": Metric("error rate", "errors / (ok + errors), timeouts included", is_share=True),
    "prefix_hit_ratio": Metric(
        "prefix hits",
        "prompt tokens found in the engine's prefix cache / looked up, by its counters during the load",
        more_is_better=True,
        is_share=True,
    ),
    "spec_acceptance_ratio": Metric(
        "draft tokens accepted",
        "accepted / drafted tokens, by vllm:spec_decode_* during the load",
        more_is_better=True,
        is_share=True,
    ),
    "spec_mean_length": Metric(
        "tokens a draft",
        "1 + accepted tokens / drafts, by vllm:spec_decode_* during the load",
        more_is_better=True,
    ),
    "preemptions": Metric("preemptions", "by the engine's counter during the load"),
    "queue_mean_ms": Metric(
        "queue", "mean wait inside the engine, by its histogram during the load"
    ),
    "invalid_json_ratio": Metric(
        "invalid JSON",
        "ok answers that are no JSON of the schema / ok answers, of the requests that ask for JSON",
        is_share=True,
    ),
    "json_e2e_p50_ms": Metric(
        "E2E p50 of JSON",
        "whole answer minus send, median of the ok answers to requests that ask for JSON, sent after the load",
    ),
}
OF_PROMPTS = ("ttft_p50_ms", "ttft_p95_ms", "e2e_p50_ms", "e2e_p95_ms", "tpot_p50_ms")
"""May stand as `ttft_p95_ms:short`: of the unique canaries whose prompts' names begin so."""

ENDED = ("ttft_p50_ms", "ttft_p95_ms", "e2e_p50_ms", "e2e_p95_ms", "error_rate")
"""Of the requests that ended in the seconds that count, whole."""


def known_metric(name: str) -> Metric | None:
    """What a metric's name means; None: there is no such metric."""
    plain, _, prompts = name.partition(":")
    found = METRICS.get(plain)
    if found is None or not prompts:
        return found
    if plain not in OF_PROMPTS:
        return None
    definition = f"{found.definition}; of the canaries of prompts `{prompts}...`"
    return Metric(f"{found.title} of `{prompts}`", definition)


def metric(name: str) -> Metric:
    """The same for whoever shows a figure: one that has no definition goes by its bare name."""
    return known_metric(name) or Metric(name)


def figure(name: str, value: float | None) -> str:
    """`3,114`, `219 ms`, `4.5 %`."""
    if name.partition(":")[0].endswith("_ms"):
        return milliseconds(value)
    return share(value) if metric(name).is_share else rate(value)


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
    known = sorted({second.at_s for second in loader})
    begins = sorted(event.at for event in events if event.kind in ("start", "resume"))
    left_s, counted = duration_s, set[int]()
    for place, begin in enumerate(begins):
        following = begins[place + 1] if place + 1 < len(begins) else math.inf
        mine = [at_s for at_s in known if begin - 1 <= at_s < following]
        over = begin + left_s
        if mine and mine[-1] + 1 < over:
            over = mine[-1] + 1 - drain_s
        counted |= {at_s for at_s in mine if at_s >= begin + settle_s and at_s + 1 <= over}
        left_s -= sum(at_s >= begin for at_s in mine)
    return frozenset(counted)


def measured(
    tallies: Iterable[Tally], seconds: Collection[int], canaries: Iterable[RequestRecord] = ()
) -> Figures:
    """Figures of the ranked requests that ended in these seconds, and of the canaries sent in them."""
    ranked = [each for each in tallies if each.kind == "ranked"]
    whole = cell_of_tallies([one for one in ranked if one.at_s in seconds], float(len(seconds)))
    ordered = sorted(seconds)

    def before(moment: float) -> float:
        """How much of the time before a moment counts."""
        begun = bisect_right(ordered, moment)
        return begun - 1 + min(1.0, moment - ordered[begun - 1]) if begun else 0.0

    requests, tokens = [], []
    for tally in ranked:
        # how many of its ok answers lie in the time that counts, by parts; they ended in its second's middle on average
        ended = tally.at_s + 0.5
        answers = math.fsum(
            count * (before(ended) - before(ended - took_s)) / took_s
            for bucket, count in Sketch.from_bytes(tally.e2e).counts.items()
            for took_s in (_bucket_ms(bucket) / 1000,)
        )
        requests.append(answers)
        if tally.ok:
            tokens.append(answers * tally.output_tokens / tally.ok)
    figures: Figures = {
        "output_tokens_per_s": ratio(math.fsum(tokens), len(seconds)),
        "rps": ratio(math.fsum(requests), len(seconds)),
        **{name: whole.figure(name) for name in ENDED},
        "requests": float(whole.ended),
        "seconds": float(len(seconds)),
    }

    # canaries, by the first word of their prompts' names, too: `long-2` is one of `long`
    groups: dict[str, list[RequestRecord]] = {}
    for each in canaries:
        is_counted = each.sent_at is not None and int(each.sent_at) in seconds
        if is_counted and each.kind == "unique" and each.ok:
            groups.setdefault(re.split(r"[-_/ ]", each.prompt, maxsplit=1)[0], []).append(each)
    # exact, not from a sketch: neighbouring buckets are 2 % apart, and a steady 0.3 % over an edge would look like a sure 2 %
    unique = [each for found in groups.values() for each in found]
    figures["tpot_p50_ms"] = nearest_rank([each.tpot_ms for each in unique], 0.5)
    for name in OF_PROMPTS:
        part, percent = name.removesuffix("_ms").split("_p")
        for group, found in sorted(groups.items()):
            values = [getattr(each, f"{part}_ms") for each in found]
            figures[f"{name}:{group}"] = nearest_rank(values, int(percent) / 100)
    return figures


@cache
def _bucket_ms(bucket: int) -> float:
    """The latency that a sketch's bucket stands for."""
    return Sketch.from_bytes(struct.pack("<HH", bucket, 1)).quantile(1.0) or 0.0


# --- counters ---------------------------------------------------------------------------------------

COUNTERS: Names = {
    "spec_drafts": VLLM["drafts"],
    "spec_drafted": VLLM["drafted"],
    "spec_accepted": VLLM["accepted"],
    "prefix_queries": VLLM["prefix_queries_total"],
    "prefix_hits": VLLM["prefix_hits_total"],
    "preemptions": VLLM["preemptions_total"],
    "queue_s": ("vllm:request_queue_time_seconds_sum",),
    "queued": ("vllm:request_queue_time_seconds_count",),
}
"""Sums of a counter's samples are kept under these names."""


def counters(page: MetricsPage) -> dict[str, float]:
    """Those counters that a sweep looks at, under their short names; the newest name that the page has is the one."""
    found = {}
    for name, spelled in COUNTERS.items():
        totals = (total for each in spelled if (total := page.total(each)) is not None)
        if (total := next(totals, None)) is not None:
            found[name] = total
    return found


def counters_moved(before: Mapping[str, float], after: Mapping[str, float]) -> Figures:
    """What the counters moved by, as figures; of one that went backwards nothing is known."""
    by = {
        name: after[name] - before[name]
        for name in after
        if name in before and after[name] >= before[name]
    }
    accepted, queue_s = by.get("spec_accepted"), by.get("queue_s")
    drafts = ratio(accepted, by.get("spec_drafts"))
    return {
        "prefix_hit_ratio": ratio(by.get("prefix_hits"), by.get("prefix_queries")),
        "spec_acceptance_ratio": ratio(accepted, by.get("spec_drafted")),
        "spec_mean_length": None if drafts is None else 1 + drafts,
        "spec_drafts": by.get("spec_drafts"),
        "preemptions": by.get("preemptions"),
        "queue_mean_ms": ratio(None if queue_s is None else 1000 * queue_s, by.get("queued")),
    }


def ratio(part: float | None, whole: float | None) -> float | None:
    """One over the other; None where one of them is not known, or there is nothing to divide by."""
    return part / whole if part is not None and whole else None
