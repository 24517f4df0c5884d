"""A report's figures in words, the same for the terminal and for HTML. It reckons nothing."""

from collections.abc import Mapping, Sequence

from toolkit.units import (
    UNKNOWN,
    counted,
    digits,
    milliseconds,
    rate,
    round_span,
    share,
    span,
    tick,
)
from toolkit.workload.forecast import HitCell
from toolkit.workload.lengths import LengthSpread
from toolkit.workload.levers import Code, Lever
from toolkit.workload.mixes import Parameter
from toolkit.workload.summary import Workload

LEVER_NAMES: dict[Code, str] = {
    "response_cache": "response cache",
    "single_flight": "single-flight",
    "prefix_cache": "prefix cache",
    "max_model_len": "max_model_len",
    "max_tokens": "max_tokens",
    "batching": "batching",
    "quantization": "quantization",
}

LOSSES = {
    "kernel_drops": "frames that the kernel dropped",
    "app_drops": "requests dropped for want of room",
    "gaps": "holes in connections",
    "truncated": "frames cut by the capture (use -s 0)",
    "encrypted": "connections that speak TLS",
    "unparsed": "stretches that were no HTTP/1",
}
"""Classes of a capture's losses, in the words for one report."""

Figure = tuple[str, str, str]
"""Name, value, and what explains it; the last may be empty."""


def figures(report: Workload) -> list[Figure]:
    """What arrived, one figure a row."""
    rows = [
        ("requests", f"{report.requests:,}", _beside(report)),
        _unique(report),
        _tops(report),
        _variety(report),
        _to_come(report),
        _cache_size(report),
        _prefixes(report),
        ("streamed", share(report.stream_share), ""),
        _arrivals(report),
        _under_way(report),
        ("prompt tokens", *_spread(report.lengths.prompt_tokens)),
        ("output tokens", *_spread(report.lengths.output_tokens)),
        *(
            _parameter(one)
            for one in report.mix.parameters
            if one.name not in {"stream", "messages"}
        ),
        _clients(report),
        _answers(report),
        _model_length(report),
    ]
    return [row for row in rows if row[1]]


def _beside(report: Workload) -> str:
    told = [
        (report.other, "that ask no model"),
        (report.refused, "refused and left out"),
        (report.damaged, "damaged"),
    ]
    return ", ".join(f"{count:,} {what}" for count, what in told if count)


def _unique(report: Workload) -> Figure:
    if report.unique_prompts is None:
        return "unique", UNKNOWN, "nothing tells which requests are alike"
    told = [
        (report.unique_canonical, "as a cache sees them"),
        (report.unique_exact, "byte for byte"),
    ]
    return (
        "unique",
        counted(report.unique_prompts, "prompt"),
        ", ".join(f"{count:,} {what}" for count, what in told if count is not None),
    )


def _tops(report: Workload) -> Figure:
    told = [(name, share(value)) for name, value in report.top_share.items() if value is not None]
    if not told:
        return "most frequent prompt", "", ""
    (_, first), *more = told
    # what is asked by the top 10 as well as by the top 100 needs no second word
    news = [one for before, one in zip(told, more, strict=False) if one[1] != before[1]]
    return (
        "most frequent prompt",
        f"{first} of requests",
        ", ".join(f"top {name}: {value}" for name, value in news),
    )


def _variety(report: Workload) -> Figure:
    if report.entropy_bits is None:
        return "entropy", "", ""
    found = report.distribution
    told = (
        []
        if found.effective_prompts is None
        else [f"as much as {_count(found.effective_prompts)} equally frequent prompts have"]
    )
    if found.zipf is not None:
        law = {"zipf": "Zipf", "unknown": "Zipf or not is unknown"}.get(
            found.zipf.shape, "not Zipf"
        )
        told.append(f"{law}: {found.zipf.why}")
    return "entropy", f"{report.entropy_bits:.2f} bits", "; ".join(told)


def _to_come(report: Workload) -> Figure:
    if report.forecast is None or report.forecast.chance.ratio is None:
        return "repeats to come", "", ""
    chance = report.forecast.chance
    told = f"of further requests ask what came before; {share(chance.repeats_ratio)} did so far"
    low, high = share(chance.low), share(chance.high)
    # where no prompt came only once, chance has nothing to vary: an interval of no width would only look like a proof
    if low != high:
        told = f"{told}; 95 % sure: {low} to {high}"
    return "repeats to come", share(chance.ratio), told


def _cache_size(report: Workload) -> Figure:
    found = report.forecast
    if found is None or found.recommended_size is None:
        return "cache size", "", ""
    told = "answers that a response cache should hold"
    endless = _endless_ratio(found.canonical)
    if endless is not None:
        keys = (("bytes", found.exact), ("the prompt alone", found.prompt))
        others = [(name, _endless_ratio(cells)) for name, cells in keys]
        told += f"; without end it answers {share(endless)}"
        told += "".join(f", keyed by {key} {share(end)}" for key, end in others if end is not None)
    return "cache size", f"{found.recommended_size:,}", told


def _endless_ratio(cells: Sequence[HitCell]) -> float | None:
    """What a cache without end or time to live answers, joined requests included."""
    cell = next((one for one in cells if one.size is None and one.ttl_s is None), None)
    return None if cell is None or cell.hit_ratio is None else answered(cell)


def answered(cell: HitCell) -> float:
    """Share of requests that no engine has to compute: from memory, or by joining one under way."""
    return min(1.0, (cell.hit_ratio or 0.0) + (cell.coalesced_ratio or 0.0))


def _prefixes(report: Workload) -> Figure:
    found = report.prefixes
    if report.prefix_share is None:
        return "shared prefixes", "", ""
    told = ["of prompt tokens, the ceiling of a prefix cache"]
    if found.estimated:
        told.append("an estimate from bytes")
    told += [
        f"{share(cell.share)} with {cell.tokens:,.0f} tokens of KV cache"
        for cell in found.by_capacity
    ]
    if found.by_volume:
        first = found.by_volume[0]
        told.append(f"the largest: {_count(first.tokens)} tokens of {first.requests:,} requests")
    return "shared prefixes", share(report.prefix_share), "; ".join(told)


def _arrivals(report: Workload) -> Figure:
    found = report.arrivals
    if found.requests_per_s is None:
        return "rate", UNKNOWN, found.why
    told = [f"over {span(found.duration_s)}"]
    if found.peak_requests_per_s is not None:
        told.append(f"up to {found.peak_requests_per_s:,} in a second")
    if found.burstiness is not None:
        words = {
            "burstier": "burstier than Poisson",
            "smoother": "smoother than Poisson",
            "poisson": "as Poisson",
        }
        told.append(f"{words.get(found.burstiness, found.burstiness)} ({found.why})")
    return "rate", f"{rate(found.requests_per_s)} /s", ", ".join(told)


def _under_way(report: Workload) -> Figure:
    found = report.concurrency
    if found.basis is None:
        return "under way at once", UNKNOWN, found.why
    if found.p50 is None:
        return "under way at once", f"{_count(found.mean)} on average", found.why
    return (
        "under way at once",
        f"{found.p50:,}",
        f"median of arrivals; p99 {_count(found.p99)}; {found.why}",
    )


def _spread(found: LengthSpread | None) -> tuple[str, str]:
    if found is None:
        return UNKNOWN, ""
    told = [
        f"{name} {_count(value)}"
        for name, value in (("p90", found.p90), ("p99", found.p99), ("longest", found.max))
        if value is not None
    ]
    # so many answers were cut off that nobody knows what half of them would have come to
    middle = "median" if found.p50 is not None else "median unknown"
    if found.censored:
        told.append(f"{found.censored:,} cut off by their limit")
    return f"{_count(found.p50)}", f"{middle}; {', '.join(told)}; mean {_count(found.mean)}"


def _count(value: float | None) -> str:
    """A number of tokens or the like: no decimals where it is whole."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value == round(value) else digits(value)


def _parameter(found: Parameter) -> Figure:
    first, *more = found.values
    told = [f"{_value(one.value)}: {share(one.share)}" for one in more]
    if found.rest:
        told.append(f"{found.different - len(found.values):,} more: {found.rest:,} requests")
    return (
        found.name,
        f"{_value(first.value)}",
        ", ".join([f"{share(first.share)} of requests", *told]),
    )


def _value(value: object) -> str:
    if value is None:
        return "not set"
    return tick(value) if isinstance(value, float) else str(value)


def _clients(report: Workload) -> Figure:
    found = report.clients
    if not found.clients:
        return "clients", "", ""
    told = (
        []
        if found.top_share is None or found.clients == 1
        else [f"the busiest sent {share(found.top[0].share)}"]
    )
    if found.shared_share is not None and found.clients > 1:
        told.append(f"{share(found.shared_share)} of requests bear a prompt of several clients")
    return "clients", f"{found.clients:,}", ", ".join(told)


def _answers(report: Workload) -> Figure:
    found = report.answers
    if not found.statuses and found.latency_ms is None:
        return "answers", UNKNOWN, ""
    told = [] if found.latency_ms is None else ["median latency"]
    told += [f"HTTP {status}: {count:,}" for status, count in found.statuses.items()]
    if found.ttft_ms is not None:
        told.append(
            f"TTFT p50 {milliseconds(found.ttft_ms.p50)}, p99 {milliseconds(found.ttft_ms.p99)}"
        )
    if found.cache_told:
        told.append(
            f"{share(found.cache_hit_ratio)} from a cache, {share(found.cache_coalesced_ratio)} joined"
        )
    value = "" if found.latency_ms is None else milliseconds(found.latency_ms.p50)
    return "answers", value or f"{sum(found.statuses.values()):,}", "; ".join(told)


def _model_length(report: Workload) -> Figure:
    found = report.model_length
    if found.recommended is None:
        return "max_model_len", UNKNOWN, found.why
    more = "" if found.current is None else f"; {found.current:,} is set now"
    told = f"recommended: {found.why}, {100 * found.margin:.0f} % more, rounded up"
    if found.wanted != found.recommended:
        told = f"recommended: all that the model takes; {found.wanted:,} would leave room"
    return "max_model_len", f"{found.recommended:,}", f"{told}{more}"


def lever_number(lever: Lever) -> str:
    """A lever's own figure with what it is of; empty where it has none."""
    if lever.number is None:
        return ""
    if lever.what.startswith("share"):
        return f"{share(lever.number)}: {lever.what}"
    return f"{lever.number:,.3g} {lever.what}"


def losses_told(losses: Mapping[str, int]) -> list[str]:
    """What a capture lost, a sentence a class; none where nothing was."""
    return [f"{losses[name]:,} {what}" for name, what in LOSSES.items() if losses.get(name)]


def curve_title(curve: Sequence[HitCell]) -> str:
    """What a hit curve's shares are of."""
    if any(cell.coalesced_ratio is not None for cell in curve):
        return "What a response cache answers: from memory + by joining one under way"
    return "What a response cache and single-flight answer together"


def cell_words(cell: HitCell) -> str:
    """A cell of the curve: both shares where they can be told apart."""
    if cell.coalesced_ratio is None:
        return share(cell.hit_ratio)
    return f"{share(cell.hit_ratio)} + {share(cell.coalesced_ratio)}"


def size_words(size: int | None) -> str:
    """`1k` for 1,000 and for 1,024, as people call limits of either kind."""
    if size is None:
        return "all"
    for unit in (1000, 1024):
        if size >= unit and size % unit == 0:
            return f"{size // unit}k"
    return f"{size}"


def ttl_words(ttl_s: float | None) -> str:
    """A time to live."""
    return "kept for ever" if ttl_s is None else f"kept {round_span(ttl_s)}"
