"""What is known of one host over one interval: the facts that bottlenecks are told by. It judges nothing.

Each source (looks at `/metrics`, timed requests, a workload, a GPU) fills in what it knows; None is unknown, and
diagnose.py says what would tell it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Facts of one host. The names are what `catalog/bottlenecks.toml` asks for."""

    # --- how long, how much
    interval_s: float | None = None
    looks: float | None = None
    """At `/metrics`."""
    watched_s: float | None = None
    """How long was looked, where the load was there for a part of it alone: all else is of that part."""
    short_load_s: float | None = None
    """How long the load was there, where that is too short to judge by: all else is of all looks."""
    uptime_s: float | None = None
    requests: float | None = None
    """That ended in the interval."""
    requests_per_s: float | None = None
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
    kv_cache_usage_mean: float | None = None
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
    kv_cache_tokens: float | None = None

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
    output_tokens_mean: float | None = None
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
    gpu_memory_used_share: float | None = None
    weights_share: float | None = None
    """Of the GPU's memory."""


NAMES = frozenset(field.name for field in fields(Evidence))


LEAST_FIRST = 3
"""Answers at the beginning, and later ones, to compare the two."""


def first_rank(at_once: float, answers: float) -> float:
    """Which of so many first answers, sorted by TTFT, tells how long the server itself kept the first requests waiting.

    Clients that come all at once wait for each other, on a warm server, too: for a slot, or until the prompts before theirs are
    read. But hardly the third in that row. On a cold server all of the row wait for the compiler. The row is as long as requests
    were under way at once; of more answers the others came later and were quicker. So it is the third of 64 of 64 at once, and
    of 8 at once the 27th of 32.
    """
    return max(LEAST_FIRST, answers - max(at_once, LEAST_FIRST) + LEAST_FIRST)


def beginning(before_ms: float, after_ms: float, at_once: float) -> Evidence:
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


def merged(found: Iterable[Evidence]) -> Evidence:
    """Of each fact what the first one says that knows it; what follows from several is worked out anew."""
    known: dict[str, float | bool] = {}
    for each in found:
        for name in NAMES:
            value = getattr(each, name)
            if value is not None:
                known.setdefault(name, value)
    return _derived(known)


def _derived(known: dict[str, float | bool]) -> Evidence:
    ratios = (
        ("model_len_factor", "max_model_len", "longest_request_tokens"),
        ("prefix_hits_of_possible", "prefix_hit_ratio", "shared_prefix_share"),
        ("ttft_p95_over_p50", "client_ttft_p95_ms", "client_ttft_p50_ms"),
        ("ttft_p95_over_p50", "ttft_p95_ms", "ttft_p50_ms"),
        ("client_over_engine_ttft", "client_ttft_p50_ms", "ttft_p50_ms"),
        ("queue_share", "queue_mean_ms", "ttft_mean_ms"),
    )
    for name, above, below in ratios:
        whole = known.get(below)
        if above in known and whole:
            known[name] = known[above] / whole
    return Evidence(**known)  # type: ignore[arg-type]  # a fact's kind is its field's
