"""What is known of one host over one interval, and how each source tells it. It judges nothing.

No network, no store, no clock: times come with what is read. Each source (pages of `/metrics`, timed requests, the seconds of a
blast, counters, verdicts, prompts) fills in what it knows; None is unknown, and diagnose.py says what would tell it. Where a server tells histograms
there are percentiles; of a stored sighting only sums are left, and so means.
"""

import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from operator import itemgetter
from statistics import fmean, median
from typing import Any

from toolkit.metrics.dialects import EngineNumbers, read_cache, read_numbers
from toolkit.metrics.names import HISTOGRAMS, PEERS, VLLM, VLLM_PREFIXES
from toolkit.metrics.parser import Histogram, MetricsPage
from toolkit.profiles import Profile
from toolkit.records import Ledger, Reading, RequestRecord, Sighting
from toolkit.stats import Sketch
from toolkit.tuning.cells import Cell, cell_of_requests, summed
from toolkit.tuning.figures import ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Facts of one host. The names are what `catalog/bottlenecks.toml` asks for."""

    # --- how long, how much
    interval_s: float | None = None
    watched_s: float | None = None
    """How long was looked, where the load was there for a part of it alone: all else is of that part."""
    short_load_s: float | None = None
    """How long the load was there, where that is too short to judge by: all else is of all looks."""
    requests: float | None = None
    """That ended in the interval."""
    output_tokens_per_s: float | None = None

    # --- gauges, over the looks
    running_mean: float | None = None
    running_min: float | None = None
    running_max: float | None = None
    waiting_mean: float | None = None
    waiting_share: float | None = None
    """Share of looks at which at least one request waited."""
    at_ceiling_share: float | None = None
    """Share of looks at which requests waited while as many ran as ever did."""
    idle_share: float | None = None
    """Share of looks at which nothing ran and nothing waited."""
    kv_cache_usage_max: float | None = None
    kv_cache_with_one_more: float | None = None
    """What the largest use would be with another request of the same size."""

    # --- counters, between the first look and the last
    preemptions_per_request: float | None = None
    prefix_hit_ratio: float | None = None
    api_cpu_cores: float | None = None
    """CPU time of the process that answers `/metrics`, per second: 1 is a whole core."""

    # --- settings
    prefix_caching: bool | None = None
    max_model_len: float | None = None
    gpu_memory_utilization: float | None = None

    # --- latencies as the server tells them
    ttft_p50_ms: float | None = None
    ttft_p95_ms: float | None = None
    ttft_mean_ms: float | None = None
    ttft_p95_over_p50: float | None = None
    """The server's, else the client's."""
    queue_mean_ms: float | None = None
    queue_share: float | None = None
    """Of the mean TTFT."""
    tpot_p50_ms: float | None = None
    """The server's, else the client's."""
    gap_p50_ms: float | None = None
    """Between two tokens of a request."""
    gap_stretch: float | None = None
    """Mean gap / median gap: above 1 where tokens stand still now and then."""
    first_over_later: float | None = None
    """TTFT of the third of the first requests (see first_rank) / median TTFT later."""
    first_excess_ms: float | None = None
    """The same two, their difference."""
    first_over_row: float | None = None
    """TTFT of the third of the first requests / (median TTFT later x requests at once): see beginning."""

    # --- as the client timed it
    client_ttft_p50_ms: float | None = None
    client_ttft_p95_ms: float | None = None
    client_e2e_p50_ms: float | None = None
    client_over_engine_ttft: float | None = None
    error_share: float | None = None
    refused_share: float | None = None
    """Of all requests, those whose connection was refused, reset or never came about."""
    client_limited: bool | None = None
    """The measuring machine could not keep up."""
    truncated: bool | None = None
    """Answers end before they are complete, and count as good."""
    response_cache: bool | None = None

    # --- requests
    prompt_tokens_mean: float | None = None
    prompt_tokens_p95: float | None = None
    longest_request_tokens: float | None = None
    """Prompt and answer of the longest in a hundred."""
    model_len_factor: float | None = None
    """`max_model_len` / `longest_request_tokens`."""
    repeat_share: float | None = None
    """Share of requests that were asked before, word for word."""
    shared_prefix_share: float | None = None
    """Share of prompt tokens that stand in whole blocks at the beginning of an earlier prompt, too."""
    prefix_hits_of_possible: float | None = None
    """`prefix_hit_ratio` / `shared_prefix_share`."""
    chained: bool | None = None
    """Each user's next call needs the answer before."""
    structured_failure_share: float | None = None
    """Of answers that had to be JSON, those that were not."""

    # --- the GPU
    gpu_busy_share: float | None = None
    gpu_throttled: bool | None = None
    weights_share: float | None = None
    """Of the GPU's memory."""


NAMES = frozenset(field.name for field in fields(Evidence))
RATIOS = (
    ("model_len_factor", "max_model_len", "longest_request_tokens"),
    ("prefix_hits_of_possible", "prefix_hit_ratio", "shared_prefix_share"),
    ("ttft_p95_over_p50", "client_ttft_p95_ms", "client_ttft_p50_ms"),
    ("ttft_p95_over_p50", "ttft_p95_ms", "ttft_p50_ms"),
    ("client_over_engine_ttft", "client_ttft_p50_ms", "ttft_p50_ms"),
    ("queue_share", "queue_mean_ms", "ttft_mean_ms"),
)
"""Facts that follow from two others, the upper and the lower one; of two rows of one fact the later goes first."""


def merged(found: Iterable[Evidence]) -> Evidence:
    """Of each fact what the first one says that knows it; what follows from several is worked out anew."""
    known: dict[str, Any] = {}
    for each in found:
        for name in NAMES:
            if (value := getattr(each, name)) is not None:
                known.setdefault(name, value)
    for name, above, below in RATIOS:
        if above in known and known.get(below):
            known[name] = known[above] / known[below]
    return Evidence(**known)


# --- was it cold? -------------------------------------------------------------------------------------

LEAST_FIRST = 3
"""Answers at the beginning, and later ones, to compare the two."""


def _first_rank(at_once: float, answers: float) -> float:
    """Which of so many first answers, sorted by TTFT, tells how long the server itself kept the first requests waiting.

    Clients that come all at once wait for each other, on a warm server, too: for a slot, or until the prompts before theirs are
    read. But hardly the third in that row. On a cold server all of the row wait for the compiler. The row is as long as requests
    were in flight at once; of more answers the others came later and were quicker. So it is the third of 64 of 64 at once, and
    of 8 at once the 27th of 32.
    """
    return max(LEAST_FIRST, answers - max(at_once, LEAST_FIRST) + LEAST_FIRST)


def _beginning(before_ms: float, after_ms: float, at_once: float) -> Evidence:
    """The third of the first requests against the median of later ones; the time of none is nothing to compare with.

    One step may read all prompts of the row together, and then the third waits for all of them. That takes at most as long as if
    each was read alone, as later ones are: so many times a later one's TTFT the row itself explains.
    """
    if after_ms <= 0:
        return Evidence()
    return Evidence(
        first_over_later=before_ms / after_ms,
        first_excess_ms=before_ms - after_ms,
        first_over_row=before_ms / (after_ms * max(1.0, at_once)),
    )


# --- pages of /metrics, some seconds apart ---------------------------------------------------------------

COUNTERS = ("prefix_queries_total", "prefix_hits_total")
SPELLED = {
    what: [name for names in (VLLM, *dict(PEERS).values()) for name in names.get(what, ())]
    for what in (*HISTOGRAMS, *COUNTERS)
}
"""What -> all engines' names for it, the newest first."""
LEAST_IDLE, LEAST_BUSY = 2, 3
"""Samples in a row at an end, from which on the load was not there yet, or has ended; and under load: of fewer a share says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSample:
    """One look at one host."""

    at_s: float
    """By a clock that never jumps; of stored looks the wall clock."""
    numbers: EngineNumbers
    """Totals count since the process began, as histograms do."""
    cpu_s: float | None = None
    response_cache: bool | None = None
    histograms: Mapping[str, Histogram] = field(default_factory=dict)

    @property
    def in_flight(self) -> float:
        """Requests that run or wait."""
        return (self.numbers.running or 0.0) + (self.numbers.waiting or 0.0)

    def histogram_since(self, earlier: "LoadSample", name: str) -> Histogram | None:
        """What a histogram took in since an earlier look; None: nothing, or it is not known."""
        then, now = earlier.histograms.get(name), self.histograms.get(name)
        if now is None or earlier is self:
            return None
        found = now if then is None else now.since(then)
        return found if found is not None and found.count > 0 else None


def sample_of_page(
    page: MetricsPage, *, at_s: float, max_model_len: int | None = None, content_type: str = ""
) -> LoadSample | None:
    """Read a metrics page; None where it is no engine's."""
    numbers = read_numbers(page, content_type)
    if numbers is None:
        return None
    cache = read_cache(page)
    return LoadSample(
        at_s=at_s,
        numbers=replace(numbers, max_model_len=max_model_len or numbers.max_model_len),
        # vLLM's first generation computed in the process that answers: its CPU says nothing of the front
        cpu_s=None if numbers.dialect == "v0" else page.total("process_cpu_seconds_total"),
        response_cache=None if cache is None else cache.off == 0 and cache.cacheable > 0,
        histograms=_histograms(page.histogram),
    )


def sample_of_sighting(sighting: Sighting, readings: Sequence[Reading]) -> LoadSample | None:
    """Read a stored look; None where the host was not up."""
    if sighting.engine is None or sighting.running is None:
        return None
    totals: dict[str, float] = {}
    for reading in readings:
        totals[reading.name] = totals.get(reading.name, 0.0) + reading.value

    def sums_only(name: str) -> Histogram | None:
        count = totals.get(f"{name}_count")
        if count is None:
            return None
        return Histogram(edges=(), counts=(), sum=totals.get(f"{name}_sum"), count=count)

    numbers: dict[str, Any] = {
        each.name: getattr(sighting, each.name)
        for each in fields(EngineNumbers)
        if hasattr(sighting, each.name)
    }
    for counter in COUNTERS:
        numbers[counter] = next((totals[name] for name in SPELLED[counter] if name in totals), None)
    return LoadSample(
        at_s=sighting.at,
        numbers=EngineNumbers(**numbers),
        response_cache=any(found.code == "response_cache" for found in sighting.findings) or None,
        histograms=_histograms(sums_only),
    )


def _histograms(look_up: Callable[[str], Histogram | None]) -> dict[str, Histogram]:
    found: dict[str, Histogram] = {}
    for what in HISTOGRAMS:
        spelled = (
            each.replace("vllm:", prefix) for each in SPELLED[what] for prefix in VLLM_PREFIXES
        )
        if first := next((each for name in spelled if (each := look_up(name))), None):
            found[what] = first
    return found


def evidence_of_samples(samples: Sequence[LoadSample]) -> Evidence:
    """What the looks say, in their order; of a process that began anew only what came since."""
    start = 0
    for place, (before, now) in enumerate(pairwise(samples), start=1):
        began = _moved(before, now, "started_at")
        is_another = began is not None and abs(began) > 1
        totals = (
            _moved(before, now, each) or 0.0
            for each in ("requests_total", "generation_tokens_total")
        )
        if is_another or min(totals) < 0:
            start = place
    every = samples[start:]
    if not every:
        return Evidence()

    seen, busy = _under_load(every)
    extent = Evidence()
    if 0 < len(busy) < LEAST_BUSY and len(seen) < len(every):
        extent = Evidence(short_load_s=seen[-1].at_s - seen[0].at_s)
        seen = busy = every
    elif len(seen) < len(every):
        extent = Evidence(watched_s=every[-1].at_s - every[0].at_s)

    last = every[-1]
    lengths = (each.numbers.max_model_len for each in every)
    settings = Evidence(
        prefix_caching=last.numbers.prefix_caching,
        max_model_len=next((length for length in lengths if length), None),
        gpu_memory_utilization=last.numbers.gpu_memory_utilization,
        response_cache=last.response_cache,
    )
    sources = (
        extent,
        settings,
        _gauges(busy),
        _rates(seen[0], seen[-1]),
        _latencies(seen),
        _first_answers(seen),
    )
    return merged(sources)


def _under_load(every: Sequence[LoadSample]) -> tuple[Sequence[LoadSample], Sequence[LoadSample]]:
    """Of looks before, while and after requests came: those between which counters moved, and those under load.

    A load that ends, or begins, in the midst would else be judged by idle looks, too, and by those at which its last requests
    were answered and no other came: at such an end the load lasts as long as half of the most requests were in flight. All
    looks where there are no idle ones at either end.
    """
    in_flight = [each.in_flight for each in every]
    if not any(in_flight):
        return every, every
    full = [count > 0 and 2 * count >= max(in_flight) for count in in_flight]
    # as each look knows of the time since the one before; some servers count our own looks as requests, but not as tokens
    active = [count > 0 for count in in_flight]
    for place, (before, now) in enumerate(pairwise(every), start=1):
        moved = _moved(before, now, "generation_tokens_total")
        if moved is None:
            moved = _moved(before, now, "requests_total")
        active[place] = active[place] or bool(moved)
    first, last = active.index(True), len(every) - active[::-1].index(True)
    low, high = full.index(True), len(every) - full[::-1].index(True)
    if first < LEAST_IDLE:
        first = low = 0
    if len(every) - last < LEAST_IDLE:
        last = high = len(every)
    return every[max(0, first - 1) : last], every[low:high]


def _moved(first: LoadSample, last: LoadSample, counter: str) -> float | None:
    """By how much a number moved; None where one of the looks does not know it."""
    before, now = (getattr(each.numbers, counter) for each in (first, last))
    return None if before is None or now is None else now - before


def _gauges(busy: Sequence[LoadSample]) -> Evidence:
    """What the gauges were over the looks under load."""
    both = [
        (each.numbers.running, each.numbers.waiting)
        for each in busy
        if each.numbers.running is not None and each.numbers.waiting is not None
    ]
    if not both:
        return Evidence()
    usage = max(
        (n for each in busy if (n := each.numbers.kv_cache_usage) is not None), default=None
    )
    most = max(running for running, _ in both)
    return Evidence(
        running_mean=fmean(running for running, _ in both),
        running_min=min(running for running, _ in both),
        running_max=most,
        waiting_mean=fmean(waiting for _, waiting in both),
        waiting_share=fmean(waiting >= 1 for _, waiting in both),
        at_ceiling_share=fmean(waiting >= 1 and running == most for running, waiting in both),
        idle_share=fmean(running == waiting == 0 for running, waiting in both),
        kv_cache_usage_max=usage,
        kv_cache_with_one_more=usage * (most + 1) / most if usage is not None and most else None,
    )


def _rates(first: LoadSample, last: LoadSample) -> Evidence:
    """What the counters moved by; of one that fell nothing is known."""
    seconds = last.at_s - first.at_s
    if seconds <= 0:
        return Evidence()
    names = ("requests", "generation_tokens", "preemptions", "prefix_queries", "prefix_hits")
    moves = [_moved(first, last, f"{name}_total") for name in names]
    if first.cpu_s is not None and last.cpu_s is not None:
        moves.append(last.cpu_s - first.cpu_s)
    rises = [each if each is not None and each >= 0 else None for each in moves]
    requests, generated, preemptions, queries, hits, *cpu = rises
    return Evidence(
        interval_s=seconds,
        requests=requests,
        output_tokens_per_s=ratio(generated, seconds),
        # of no request that ended in the interval, each one that was preempted counts
        preemptions_per_request=ratio(preemptions, None if requests is None else max(1, requests)),
        prefix_hit_ratio=ratio(hits, queries),
        api_cpu_cores=ratio(cpu[0], seconds) if cpu else None,
    )


def _latencies(seen: Sequence[LoadSample]) -> Evidence:
    """What the histograms took in from the first look to the last."""
    found = {name: seen[-1].histogram_since(seen[0], name) for name in HISTOGRAMS}
    ttft, gap, tpot, prompt = (found[name] for name in ("ttft", "gap", "tpot", "prompt"))
    usual_ms = _quantile(gap, 0.5, 1000)
    longest = [_quantile(found[name], 0.99) for name in ("prompt", "output")]
    return Evidence(
        ttft_p50_ms=_quantile(ttft, 0.5, 1000),
        ttft_p95_ms=_quantile(ttft, 0.95, 1000),
        ttft_mean_ms=_mean_ms(ttft),
        queue_mean_ms=_mean_ms(found["queue"]),
        tpot_p50_ms=_quantile(tpot, 0.5, 1000) or _mean_ms(tpot),
        gap_p50_ms=usual_ms,
        gap_stretch=ratio(_mean_ms(gap), usual_ms),
        prompt_tokens_mean=prompt.mean() if prompt else None,
        prompt_tokens_p95=_quantile(prompt, 0.95),
        longest_request_tokens=None if None in longest else sum(each or 0.0 for each in longest),
    )


def _first_answers(seen: Sequence[LoadSample]) -> Evidence:
    """How long the first answers took against the later ones: up to the first look that knows of enough."""
    for place in range(1, len(seen) - 1):
        early = seen[place].histogram_since(seen[0], "ttft")
        if early is None or early.count < LEAST_FIRST:
            continue
        late = seen[-1].histogram_since(seen[place], "ttft")
        after_ms = _quantile(late, 0.5, 1000)
        at_once = max(each.in_flight for each in seen[: place + 1])
        rank = _first_rank(at_once, early.count)
        buckets = zip(early.edges, early.counts, strict=True)
        edge_s = next((edge for edge, count in buckets if count >= rank), None)
        if late is None or late.count < LEAST_FIRST or after_ms is None:
            break
        if edge_s is None or early.sum is None:
            break
        # the bucket's upper edge, and no longer than these waited on average
        before_s = min(edge_s, early.sum / (early.count - rank + LEAST_FIRST))
        return _beginning(1000 * before_s, after_ms, at_once)
    return Evidence()


def _mean_ms(histogram: Histogram | None) -> float | None:
    mean = histogram.mean() if histogram else None
    return None if mean is None else mean * 1000


def _quantile(histogram: Histogram | None, share: float, times: float = 1.0) -> float | None:
    """A quantile; of the first bucket its upper edge, of the last its lower one."""
    if histogram is None:
        return None
    found = histogram.quantile(share)
    known = (each for each in (found.value, found.below, found.above) if each is not None)
    value = next(known, None)
    return None if value is None else value * times


# --- as the client saw it ------------------------------------------------------------------------------

REFUSED = frozenset({"connect"})
"""Kinds of errors of connections that never came about."""
FIRST_SHARE = 0.1
"""Of a blast's seconds, that count as its beginning; the last half is what they are compared with."""


def _as_timed(whole: Cell) -> Evidence:
    return Evidence(
        requests=whole.ended,
        client_ttft_p50_ms=whole.figure("ttft_p50_ms"),
        client_ttft_p95_ms=whole.figure("ttft_p95_ms"),
        client_e2e_p50_ms=whole.figure("e2e_p50_ms"),
        tpot_p50_ms=whole.figure("tpot_p50_ms"),
        error_share=whole.figure("error_rate"),
        refused_share=ratio(sum(whole.error_kinds[kind] for kind in REFUSED), whole.ended),
    )


def evidence_of_requests(requests: Iterable[RequestRecord]) -> Evidence:
    """What a bench's requests at one host say."""
    measured = [each for each in requests if each.kind != "warmup"]
    if not measured:
        return Evidence()
    answers = [each for each in measured if each.ok]
    gaps = Sketch()
    for each in answers:
        if each.itl is not None:
            gaps.merge(Sketch.from_bytes(each.itl))
    prompts = [
        (each.prompt_tokens, each.max_tokens) for each in answers if each.prompt_tokens is not None
    ]
    found = Evidence(
        gap_p50_ms=gaps.quantile(0.5),
        prompt_tokens_mean=fmean(tokens for tokens, _ in prompts) if prompts else None,
        prompt_tokens_p95=Sketch.of(tokens for tokens, _ in prompts).quantile(0.95),
        longest_request_tokens=max((sum(both) for both in prompts), default=None),
    )
    # the first wave against the last half
    streams = [
        (each.sent_at, each.ttft_ms, each.concurrency)
        for each in answers
        if each.ttft_ms is not None and each.sent_at is not None
    ]
    streams.sort(key=itemgetter(0))
    wave = max(LEAST_FIRST, streams[0][2] or LEAST_FIRST) if streams else 0
    first = sorted(ttft_ms for _, ttft_ms, _ in streams[:wave])
    late = [ttft_ms for _, ttft_ms, _ in streams[max(wave, len(streams) // 2) :]]
    begun = Evidence()
    if len(late) >= LEAST_FIRST:
        begun = _beginning(first[LEAST_FIRST - 1], median(late), len(first))
    return merged((_as_timed(cell_of_requests(measured, 0.0)), found, begun))


def evidence_of_seconds(cells: Sequence[Cell]) -> Evidence:
    """What a blast's seconds at one host say."""
    whole = summed(cells)
    if not whole.ended:
        return Evidence()
    rates = Evidence(
        interval_s=whole.elapsed_s, output_tokens_per_s=whole.figure("output_tokens_per_s")
    )
    # the first seconds against the last half: of streams where there are any, else of whole answers
    streams = whole.ttft.count > 0
    timed = [each for cell in cells if (each := cell.ttft if streams else cell.e2e).count]
    first, later = timed[: math.ceil(len(timed) * FIRST_SHARE)], timed[len(timed) // 2 :]
    answers = Sketch()
    for each in first:
        answers.merge(each)
    begun = Evidence()
    if min(answers.count, len(first), len(later)) >= LEAST_FIRST:
        # in flight at once, on average (Little's law): by the median answer, as the mean is not kept
        e2e_s = (whole.figure("e2e_p50_ms") or 0.0) / 1000
        at_once = round((whole.figure("rps") or 0.0) * e2e_s)
        before = answers.quantile(min(1.0, _first_rank(at_once, answers.count) / answers.count))
        after = median(each.quantile(0.5) or 0.0 for each in later)
        begun = _beginning(before or 0.0, after, at_once)
    return merged((_as_timed(whole), rates, begun))


def evidence_of_ledger(ledger: Ledger) -> Evidence:
    """What a host's own counters moved by during a bench."""
    return Evidence(
        preemptions_per_request=ratio(ledger.preemptions, ledger.requests),
        prefix_hit_ratio=ratio(ledger.prefix_hits, ledger.prefix_queries),
        queue_mean_ms=ledger.queue_mean_ms,
    )


def evidence_of_verdicts(codes: Collection[str], *, client_ok: bool | None) -> Evidence:
    """What a run's verdicts on a host say; with none at all nobody judged it."""
    is_judged = bool(set(codes) - {"not_judged"})
    return Evidence(
        truncated="truncated_output" in codes if is_judged else None,
        response_cache="response_cache" in codes if is_judged else None,
        client_limited=None if client_ok is None else not client_ok,
    )


BLOCK_CHARS = 64
"""Of text, taken for a KV block of 16 tokens."""


def evidence_of_profile(profile: Profile, requests: float) -> Evidence:
    """What a blast's profile says of so many requests at one host.

    By characters, 64 to a block: how much of a prompt's text an earlier one began with, whole blocks only.
    """
    if requests < 1:
        return Evidence()
    repeats = max(0.0, 1 - len(profile.prompts) / requests) * (1 - profile.unique_share)
    texts = [
        "\n".join(str(each.get("content")) for each in one.messages) for one in profile.prompts
    ]
    # characters in whole blocks: of prompts that come a second time, and of beginnings that an earlier prompt had
    again = sum(len(text) // BLOCK_CHARS for text in texts) * BLOCK_CHARS
    known = 0
    for place, text in enumerate(texts):
        common = [os.path.commonprefix([text, one]) for one in texts[:place]]  # noqa: RUF071 (of texts, no paths)
        known += max(map(len, common), default=0) // BLOCK_CHARS * BLOCK_CHARS
    shared = repeats * again + (1 - repeats) * known
    return Evidence(
        repeat_share=repeats,
        shared_prefix_share=ratio(shared, sum(map(len, texts))) or 0.0,
        chained=any(prompt.then for prompt in profile.prompts),
    )
