"""Looks at a host's `/metrics`, some seconds apart -> Evidence. No network, no clock: times come with the looks.

Where a server tells histograms there are percentiles; of a stored sighting only sums are left, and so means.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from toolkit.metrics.dialects import read_cache, read_numbers
from toolkit.metrics.names import PEERS, VLLM, VLLM_PREFIXES
from toolkit.metrics.parser import Histogram, MetricsPage
from toolkit.records import Reading, Sighting
from toolkit.tuning.evidence import LEAST_FIRST, Evidence, beginning, first_rank, merged

HISTOGRAMS: Mapping[str, tuple[str, ...]] = {
    "ttft": (*VLLM["ttft"], *(name for _, names in PEERS for name in names.get("ttft", ()))),
    "queue": (*VLLM["queue"], *(name for _, names in PEERS for name in names.get("queue", ()))),
    "gap": (
        "vllm:inter_token_latency_seconds",
        "vllm:time_per_output_token_seconds",
        "sglang:inter_token_latency_seconds",
        "tgi_request_mean_time_per_token_duration",
    ),
    "tpot": ("vllm:request_time_per_output_token_seconds",),
    "prompt": ("vllm:request_prompt_tokens", "tgi_request_input_length"),
    "output": ("vllm:request_generation_tokens", "tgi_request_generated_tokens"),
}
"""What -> names to try, the newest first."""
COUNTERS: Mapping[str, tuple[str, ...]] = {
    name: (*VLLM.get(name, ()), *(each for _, names in PEERS for each in names.get(name, ())))
    for name in ("prefix_queries_total", "prefix_hits_total")
}
CPU = "process_cpu_seconds_total"
LEAST_IDLE, LEAST_BUSY = 2, 3
"""Looks in a row at an end, from which on the load was not there yet, or has ended; and under load: of fewer a share says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSample:
    """One look at one host."""

    at_s: float
    """By a clock that never jumps; of stored looks the wall clock."""
    wall_s: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None
    requests: float | None = None
    """Since the process began, as all that follows."""
    preemptions: float | None = None
    generated: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    cpu_s: float | None = None
    started_at: float | None = None
    prefix_caching: bool | None = None
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_tokens: int | None = None
    response_cache: bool | None = None
    histograms: Mapping[str, Histogram] = field(default_factory=dict)


def glance_of_page(
    page: MetricsPage,
    *,
    at_s: float,
    wall_s: float | None = None,
    max_model_len: int | None = None,
    content_type: str = "",
) -> LoadSample | None:
    """Read a metrics page; None where it is no engine's."""
    numbers = read_numbers(page, content_type)
    if numbers is None:
        return None
    cache = read_cache(page)
    # vLLM's first generation computed in the process that answers: its CPU says nothing of the front
    cpu_s = None if numbers.dialect == "v0" else page.total(CPU)
    return LoadSample(
        at_s=at_s,
        wall_s=wall_s,
        running=numbers.running,
        waiting=numbers.waiting,
        kv_cache_usage=numbers.kv_cache_usage,
        requests=numbers.requests_total,
        preemptions=numbers.preemptions_total,
        generated=numbers.generation_tokens_total,
        prefix_queries=numbers.prefix_queries_total,
        prefix_hits=numbers.prefix_hits_total,
        cpu_s=cpu_s,
        started_at=numbers.started_at,
        prefix_caching=numbers.prefix_caching,
        max_model_len=max_model_len or numbers.max_model_len,
        gpu_memory_utilization=numbers.gpu_memory_utilization,
        kv_cache_tokens=numbers.kv_cache_tokens,
        response_cache=None if cache is None else cache.off == 0 and cache.cacheable > 0,
        histograms=_histograms(page.histogram),
    )


def glance_of_sighting(sighting: Sighting, readings: Sequence[Reading]) -> LoadSample | None:
    """Read a stored look; None where the host was not up."""
    if sighting.engine is None or sighting.running is None:
        return None
    totals: dict[str, float] = {}
    for reading in readings:
        totals[reading.name] = totals.get(reading.name, 0.0) + reading.value
    return LoadSample(
        at_s=sighting.at,
        wall_s=sighting.at,
        running=sighting.running,
        waiting=sighting.waiting,
        kv_cache_usage=sighting.kv_cache_usage,
        requests=sighting.requests_total,
        preemptions=sighting.preemptions_total,
        generated=sighting.generation_tokens_total,
        prefix_queries=_first(totals, COUNTERS["prefix_queries_total"]),
        prefix_hits=_first(totals, COUNTERS["prefix_hits_total"]),
        started_at=sighting.started_at,
        prefix_caching=sighting.prefix_caching,
        max_model_len=sighting.max_model_len,
        gpu_memory_utilization=sighting.gpu_memory_utilization,
        kv_cache_tokens=sighting.kv_cache_tokens,
        response_cache=any(found.code == "response_cache" for found in sighting.findings) or None,
        histograms=_histograms(lambda name: _sums_only(totals, name)),
    )


def _histograms(look_up: Callable[[str], Histogram | None]) -> dict[str, Histogram]:
    found: dict[str, Histogram] = {}
    for what, names in HISTOGRAMS.items():
        spelled = (name.replace("vllm:", prefix) for name in names for prefix in VLLM_PREFIXES)
        told = next((each for name in spelled if (each := look_up(name))), None)
        if told is not None:
            found[what] = told
    return found


def _first(totals: Mapping[str, float], names: Iterable[str]) -> float | None:
    return next((totals[name] for name in names if name in totals), None)


def _sums_only(totals: Mapping[str, float], name: str) -> Histogram | None:
    count = totals.get(f"{name}_count")
    if count is None:
        return None
    return Histogram(edges=(), counts=(), sum=totals.get(f"{name}_sum"), count=count)


# --- what several looks say together -----------------------------------------------------------------


def evidence_of(glances: Sequence[LoadSample]) -> Evidence:
    """What the looks say, in their order; of a process that began anew only what came since."""
    every = _of_one_life(glances)
    if not every:
        return Evidence()
    seen, busy = _under_load(every)
    extent = Evidence()
    if 0 < len(busy) < LEAST_BUSY and len(seen) < len(every):
        extent = Evidence(short_load_s=seen[-1].at_s - seen[0].at_s)
        seen = busy = every
    elif len(seen) < len(every):
        extent = Evidence(watched_s=every[-1].at_s - every[0].at_s)
    first, last = seen[0], seen[-1]
    return merged(
        (
            extent,
            _gauges(busy),
            _settings(every),
            _between(first, last),
            _latencies(first, last),
            _beginning(seen),
        )
    )


def _under_load(every: Sequence[LoadSample]) -> tuple[Sequence[LoadSample], Sequence[LoadSample]]:
    """Of looks before, while and after requests came: those between which counters moved, and those under load.

    A load that ends, or begins, in the midst would else be judged by idle looks, too, and by those at which its last requests
    were answered and no other came: at such an end the load lasts as long as half of the most requests were under way. All
    looks where there are no idle ones at either end.
    """
    under_way = [(each.running or 0.0) + (each.waiting or 0.0) for each in every]
    busy = [count > 0 for count in under_way]
    full = [count > 0 and 2 * count >= max(under_way) for count in under_way]
    # as each look tells it of the time since the one before
    active = [
        busy[place] or (place > 0 and _computed(every[place - 1], each))
        for place, each in enumerate(every)
    ]
    if not any(busy):
        return every, every
    first, last = active.index(True), len(every) - active[::-1].index(True)
    low, high = full.index(True), len(every) - full[::-1].index(True)
    if first < LEAST_IDLE:
        first = low = 0
    if len(every) - last < LEAST_IDLE:
        last = high = len(every)
    return every[max(0, first - 1) : last], every[low:high]


def _computed(before: LoadSample, now: LoadSample) -> bool:
    """Whether requests were under way between two looks; some servers count our own looks as requests, but not as tokens."""
    moved = _moved(before.generated, now.generated)
    return bool(_moved(before.requests, now.requests) if moved is None else moved)


def _of_one_life(glances: Sequence[LoadSample]) -> Sequence[LoadSample]:
    start = 0
    for place in range(1, len(glances)):
        before, now = glances[place - 1], glances[place]
        if _is_another(before.started_at, now.started_at) or _fell(before, now):
            start = place
    return glances[start:]


def _is_another(before: float | None, now: float | None) -> bool:
    return before is not None and now is not None and abs(now - before) > 1


def _fell(before: LoadSample, now: LoadSample) -> bool:
    pairs = ((before.requests, now.requests), (before.generated, now.generated))
    return any(then is not None and late is not None and late < then for then, late in pairs)


def _gauges(seen: Sequence[LoadSample]) -> Evidence:
    both = [
        (each.running, each.waiting)
        for each in seen
        if each.running is not None and each.waiting is not None
    ]
    usage = [each.kv_cache_usage for each in seen if each.kv_cache_usage is not None]
    if not both:
        return Evidence(looks=len(seen))
    most = max(running for running, _ in both)
    return Evidence(
        looks=len(seen),
        running_mean=fmean(running for running, _ in both),
        running_min=min(running for running, _ in both),
        running_max=most,
        waiting_mean=fmean(waiting for _, waiting in both),
        waiting_share=fmean(waiting >= 1 for _, waiting in both),
        at_ceiling_share=fmean(waiting >= 1 and running == most for running, waiting in both),
        idle_share=fmean(running == waiting == 0 for running, waiting in both),
        kv_cache_usage_max=max(usage, default=None),
        kv_cache_with_one_more=max(usage) * (most + 1) / most if usage and most else None,
        kv_cache_usage_mean=fmean(usage) if usage else None,
    )


def _settings(seen: Sequence[LoadSample]) -> Evidence:
    last = seen[-1]
    lived = last.wall_s is not None and last.started_at is not None
    return Evidence(
        uptime_s=(last.wall_s or 0.0) - (last.started_at or 0.0) if lived else None,
        prefix_caching=last.prefix_caching,
        max_model_len=next((each.max_model_len for each in seen if each.max_model_len), None),
        gpu_memory_utilization=last.gpu_memory_utilization,
        kv_cache_tokens=last.kv_cache_tokens,
        response_cache=last.response_cache,
    )


def _between(first: LoadSample, last: LoadSample) -> Evidence:
    seconds = last.at_s - first.at_s
    if seconds <= 0:
        return Evidence()
    requests = _moved(first.requests, last.requests)
    generated = _moved(first.generated, last.generated)
    preemptions = _moved(first.preemptions, last.preemptions)
    queries = _moved(first.prefix_queries, last.prefix_queries)
    hits = _moved(first.prefix_hits, last.prefix_hits)
    cpu_s = _moved(first.cpu_s, last.cpu_s)
    return Evidence(
        interval_s=seconds,
        requests=requests,
        requests_per_s=None if requests is None else requests / seconds,
        output_tokens_per_s=None if generated is None else generated / seconds,
        # of no request that ended in the interval, each one that was preempted counts
        preemptions_per_request=None
        if preemptions is None or requests is None
        else preemptions / max(1.0, requests),
        prefix_hit_ratio=hits / queries if hits is not None and queries else None,
        api_cpu_cores=None if cpu_s is None else cpu_s / seconds,
    )


def _moved(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None or now < before else now - before


def _latencies(first: LoadSample, last: LoadSample) -> Evidence:
    found = {name: _since(first, last, name) for name in HISTOGRAMS}
    gap, prompt, output = found["gap"], found["prompt"], found["output"]
    gap_ms, usual_ms = _mean_ms(gap), _quantile(gap, 0.5, 1000)
    prompt_most, output_most = _quantile(prompt, 0.99), _quantile(output, 0.99)
    return Evidence(
        ttft_p50_ms=_quantile(found["ttft"], 0.5, 1000),
        ttft_p95_ms=_quantile(found["ttft"], 0.95, 1000),
        ttft_mean_ms=_mean_ms(found["ttft"]),
        queue_mean_ms=_mean_ms(found["queue"]),
        tpot_p50_ms=_quantile(found["tpot"], 0.5, 1000) or _mean_ms(found["tpot"]),
        gap_p50_ms=usual_ms,
        gap_stretch=gap_ms / usual_ms if gap_ms is not None and usual_ms else None,
        prompt_tokens_mean=prompt.mean() if prompt else None,
        prompt_tokens_p95=_quantile(prompt, 0.95),
        output_tokens_mean=output.mean() if output else None,
        longest_request_tokens=None
        if prompt_most is None or output_most is None
        else prompt_most + output_most,
    )


def _since(first: LoadSample, last: LoadSample, name: str) -> Histogram | None:
    now = last.histograms.get(name)
    then = first.histograms.get(name)
    if now is None or first is last:
        return None
    found = now if then is None else now.since(then)
    return found if found is not None and found.count > 0 else None


def _mean_ms(histogram: Histogram | None) -> float | None:
    mean = histogram.mean() if histogram else None
    return None if mean is None else mean * 1000


def _quantile(histogram: Histogram | None, share: float, times: float = 1.0) -> float | None:
    """A quantile; of the first bucket its upper edge, of the last its lower one."""
    if histogram is None:
        return None
    told = histogram.quantile(share)
    value = next((each for each in (told.value, told.below, told.above) if each is not None), None)
    return None if value is None else value * times


def _beginning(seen: Sequence[LoadSample]) -> Evidence:
    """Compare the first answers of the interval with the later ones, where there are enough of both."""
    for place in range(1, len(seen) - 1):
        early = _since(seen[0], seen[place], "ttft")
        if early is None or early.count < LEAST_FIRST:
            continue
        late = _since(seen[place], seen[-1], "ttft")
        at_once = _most_at_once(seen[: place + 1])
        before, after = _first_ms(early, at_once), _quantile(late, 0.5, 1000)
        if late is None or late.count < LEAST_FIRST or before is None or after is None:
            return Evidence()
        return beginning(before, after, at_once)
    return Evidence()


def _most_at_once(seen: Iterable[LoadSample]) -> float:
    return max((each.running or 0.0) + (each.waiting or 0.0) for each in seen)


def _first_ms(early: Histogram, at_once: float) -> float | None:
    """How long the third of the first requests waited: its bucket's upper edge, and no longer than these waited on average."""
    rank = first_rank(at_once, early.count)
    told = zip(early.edges, early.counts, strict=True)
    edge = next((edge for edge, count in told if count >= rank), None)
    if edge is None or early.sum is None:
        return None
    return 1000 * min(edge, early.sum / (early.count - rank + LEAST_FIRST))
