"""Metrics page -> EngineNumbers: one vocabulary for vLLM's dialects, its peers and its router.

Pure: a page in, a record out. The names stand in names.py; here is what they mean.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolkit.metrics.names import (
    MODEL_LABELS,
    NO_MODEL,
    NOT_SETTINGS,
    PEERS,
    REASON_LABEL,
    REPEATING_LABELS,
    ROUTER,
    ROUTER_ONLY,
    TRTLLM,
    VLLM,
    VLLM_PREFIXES,
    VLLM_V0_ONLY,
    Names,
)
from toolkit.metrics.parser import STARTED, Histogram, Labels, MetricsPage, Sample, finite
from toolkit.units import GIB

LARGEST_EXACT = 2**53
"""A float counts no further one by one."""

Identity = tuple[str, str]
"""Ray worker and engine; empty where a page has no such label."""
Config = Mapping[str, str]
"""The labels of one `cache_config_info` series, as Python's `str` wrote them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineNumbers:
    """What an engine says about itself, in the words of `Sighting`; None where it says nothing."""

    engine: str
    dialect: str
    """`v0`, `v1` or `rust` for vLLM, else the engine's name."""
    models: tuple[str, ...] = ()
    engines: int | None = None
    """Data-parallel engines (or Ray replicas) on this page; None when no label tells."""
    gpu_memory_utilization: float | None = None
    cache_dtype: str | None = None
    block_size: int | None = None
    num_gpu_blocks: int | None = None
    """Of all engines together."""
    swap_space_gib: float | None = None
    kv_cache_tokens: int | None = None
    kv_cache_max_concurrency: float | None = None
    prefix_caching: bool | None = None
    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None
    """Share of KV blocks in use, 0 to 1, mean over engines."""
    prefix_queries_total: float | None = None
    """Tokens; blocks for vLLM before 0.9.2 and TensorRT-LLM. Only hits / queries compares."""
    prefix_hits_total: float | None = None
    prefix_hit_ratio: float | None = None
    """The engine's own gauge, over a window of its choice; for engines without the two counters."""
    preemptions_total: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    requests_total: float | None = None
    """Requests that ended, whatever the reason."""
    finished_by_reason: tuple[tuple[str, float], ...] = ()
    """The same by the engine's own reason, e.g., `length` or `stop`, sorted; empty where it tells none."""
    asked_tokens: Histogram | None = None
    """`max_tokens` of the requests that ended, as the engine was asked; sum and count only."""
    ttft: Histogram | None = None
    """Seconds from arrival to the first token."""
    queue: Histogram | None = None
    """Seconds from arrival to the first scheduling."""
    started_at: float | None = None
    """Seconds since 1970 by the host's clock."""
    max_model_len: int | None = None
    """None for vLLM: the last bucket of its length histograms hints at it, but is rounded down."""
    settings: tuple[tuple[str, str], ...] = ()
    """Chosen configuration, sorted; nothing measured and nothing that counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheNumbers:
    """What our own proxy in front of an engine says of its response cache, since it started."""

    off: float
    """Requests that could have been cacheable, were the cache not off."""
    cacheable: float
    """Requests for which the cache was asked."""
    hits: float
    coalesced: float
    """They shared a call upstream with an equal request."""


def read_cache(page: MetricsPage) -> CacheNumbers | None:
    """Read what `toolkit proxy` adds to the page of the engine behind it; None where there is none."""
    if not page.samples("toolkit_proxy_build_info"):
        return None
    hits, coalesced, misses = (
        page.total("toolkit_proxy_requests_total", cache=kind) or 0.0
        for kind in ("hit", "coalesced", "miss")
    )
    return CacheNumbers(
        off=page.total("toolkit_proxy_bypasses_total", reason="off") or 0.0,
        cacheable=hits + coalesced + misses,
        hits=hits,
        coalesced=coalesced,
    )


def read_numbers(page: MetricsPage, content_type: str = "") -> EngineNumbers | None:
    """Read a page in whichever dialect it is written; None when it is no known engine's.

    `content_type` is the answer's header: of vLLM's front ends Rust alone serves OpenMetrics.
    """
    if _is_router(page):
        return _common("production-stack-router", ROUTER, page)
    for prefix in VLLM_PREFIXES:
        names = {
            field: tuple(name.replace("vllm:", prefix) for name in tries)
            for field, tries in VLLM.items()
        }
        if _speaks(page, names):
            numbers = _cache_config(page, names["config"][0], _common("vllm", names, page))
            return replace(numbers, dialect=_dialect(page, prefix, content_type))
    for engine, peer in PEERS:
        if _speaks(page, peer):
            return _peculiar(page, _common(engine, peer, page))
    return None


def _is_router(page: MetricsPage) -> bool:
    """production-stack's router re-exports vLLM's names per `server`; an engine says `engine`."""
    running = page.samples("vllm:num_requests_running")
    if any(sample.label("engine") or sample.label("model_name") for sample in running):
        return False
    return any(page.samples(name) for name in ROUTER_ONLY) or any(
        s.label("server") for s in running
    )


def _speaks(page: MetricsPage, names: Names) -> bool:
    tries = [name for them in names.values() for name in them]
    # a name alone proves nothing: the line may be damaged
    return any(page.samples(name) or page.samples(f"{name}_count") for name in tries)


def _dialect(page: MetricsPage, prefix: str, content_type: str) -> str:
    config = page.samples(f"{prefix}cache_config_info")
    if not config and (page.openmetrics or "openmetrics" in content_type.lower()):
        return "rust"  # it alone serves OpenMetrics, and it has no cache_config_info
    if any(page.samples(prefix + name) for name in VLLM_V0_ONLY):
        return "v0"
    if page.samples(f"{prefix}num_requests_running"):
        return "v1"
    # V0 before its first report has a configuration only, and no engine label on it
    old = any(sample.label("swap_space_bytes") and not sample.label("engine") for sample in config)
    return "v0" if old else "v1"


def _common(engine: str, names: Names, page: MetricsPage) -> EngineNumbers:
    """Read what all engines have in common, by this engine's names."""
    found: dict[str, Any] = {"models": _models(page, names), "engines": _engines(page, names)}
    found |= {field: read(page, names.get(field, ())) for field, read in READERS.items()}
    if found["prefix_queries_total"] is None or found["prefix_hits_total"] is None:
        # one without the other says nothing, and would hide the gauge
        found["prefix_queries_total"] = found["prefix_hits_total"] = None
    return EngineNumbers(
        engine=engine,
        dialect=engine,
        finished_by_reason=_by_reason(page, names.get("requests_total", ())),
        started_at=_largest(page, (STARTED,)) or None,
        **found,
    )


def _peculiar(page: MetricsPage, numbers: EngineNumbers) -> EngineNumbers:
    """Add what one engine alone spells its own way."""
    match numbers.engine:
        case "sglang":
            chosen = {"context_len": numbers.max_model_len, "page_size": numbers.block_size}
            settings = tuple((key, str(each)) for key, each in chosen.items() if each is not None)
            return replace(numbers, settings=settings)
        case "tgi":
            # either counter appears with its first request
            ended = [numbers.requests_total, _sum(page, ("tgi_request_failure",))]
            known = [count for count in ended if count is not None]
            # TGI reserves a batch's final length at its start, so this is what is spoken for
            reserved = _sum(page, ("tgi_batch_current_max_tokens",))
            most = numbers.kv_cache_tokens
            usage = reserved / most if reserved is not None and most else math.inf
            return replace(
                numbers,
                requests_total=sum(known) if known else None,
                kv_cache_usage=usage if usage <= 1 else None,
            )
        case "litellm" if numbers.requests_total is None:
            # its counters appear with the first request
            return replace(numbers, requests_total=0.0)
        case "trtllm":
            hits = _sum(page, TRTLLM["prefix_hits_total"])
            misses = _sum(page, ("trtllm_kv_cache_missed_blocks_total",))
            if hits is not None and misses is not None:
                return replace(numbers, prefix_hits_total=hits, prefix_queries_total=hits + misses)
    return numbers


def _cache_config(page: MetricsPage, name: str, numbers: EngineNumbers) -> EngineNumbers:
    """Add what vLLM's `cache_config_info` tells in its labels; Rust has none."""
    configs = {_identity(sample): dict(sample.labels) for sample in page.samples(name)}
    if not configs:
        return numbers
    config = next(iter(configs.values()))  # data-parallel engines share their flags
    block_size = _whole(_number(config, "block_size"))
    # vLLM sums the blocks of its data-parallel engines and repeats the sum on every engine's series:
    # one count a Ray worker when all is well
    counts: dict[str, set[int]] = {}
    for (worker, _), each in configs.items():
        count = _whole(_number(each, "num_gpu_blocks"))
        if count is not None:
            counts.setdefault(worker, set()).add(count)
    num_gpu_blocks = sum(map(max, counts.values())) or None

    # the label that each engine has since 0.24.0, else a product where blocks hold nothing but tokens;
    # no null block is subtracted, like in vLLM's own log: 128 blocks of 32 are recorded as 4096
    kv_cache_tokens = None
    sizes = [_whole(_number(each, "kv_cache_size_tokens")) for each in configs.values()]
    if any(size is not None for size in sizes):
        kv_cache_tokens = _whole(_sum_if_all(sizes))
    elif (
        block_size
        and num_gpu_blocks
        # engines that disagree have not summed their blocks: nobody knows whose they are
        and all(len(own) == 1 for own in counts.values())
        and not _is_hybrid(config, block_size)
    ):
        kv_cache_tokens = block_size * num_gpu_blocks

    swap_space_bytes = _number(config, "swap_space_bytes")
    swap_space_gib = None if swap_space_bytes is None else swap_space_bytes / GIB
    own_gib = _number(config, "swap_space")
    concurrencies = [_number(each, "kv_cache_max_concurrency") for each in configs.values()]
    return replace(
        numbers,
        gpu_memory_utilization=_number(config, "gpu_memory_utilization"),
        cache_dtype=_text(config, "cache_dtype"),
        block_size=block_size,
        num_gpu_blocks=num_gpu_blocks,
        swap_space_gib=swap_space_gib if own_gib is None else own_gib,
        kv_cache_tokens=kv_cache_tokens,
        kv_cache_max_concurrency=_sum_if_all(concurrencies),
        prefix_caching={"True": True, "False": False}.get(config.get("enable_prefix_caching", "")),
        settings=_settings(configs.values()),
    )


def _identity(sample: Sample) -> Identity:
    return sample.label("WorkerId"), sample.label("engine") or sample.label("dp_rank")


def _is_hybrid(config: Config, block_size: int) -> bool:
    """Whether blocks may hold state-space layers' states instead of tokens.

    Attention kernels take powers of two up to 256; vLLM enlarges a hybrid's blocks until one holds
    a state, to 544 or 1056. Decode context parallelism, which multiplies, cannot be seen.
    """
    mamba = ("mamba_block_size", "mamba_page_size_padded")
    unusual = block_size > 256 or block_size & (block_size - 1) != 0
    return (
        unusual
        or any(_text(config, key) for key in mamba)
        or config.get("mamba_cache_mode", "none") not in ("none", "None")
        or config.get("is_attention_free") == "True"
    )


def _settings(configs: Iterable[Config]) -> tuple[tuple[str, str], ...]:
    """Keep what was chosen; an option that is unset equals one this version does not know."""
    values: dict[str, set[str]] = {}
    for config in configs:
        for key in config:
            value = _text(config, key)
            # Ray's own labels are in capitals: WorkerId, NodeAddress, SessionName
            if value is not None and key not in NOT_SETTINGS and not key[0].isupper():
                values.setdefault(key, set()).add(value)
    return tuple((key, ",".join(sorted(values[key]))) for key in sorted(values))


def _models(page: MetricsPage, names: Names) -> tuple[str, ...]:
    for field in ("running", "models", "requests_total", "generation_tokens_total"):
        for name in names.get(field, ()):
            for label in MODEL_LABELS:
                found = dict.fromkeys(sample.label(label) for sample in page.samples(name))
                if models := tuple(model for model in found if model):
                    return models
    return ()


def _engines(page: MetricsPage, names: Names) -> int | None:
    tries = [name for field in ("running", "config") for name in names.get(field, ())]
    found = {_identity(sample) for name in tries for sample in page.samples(name)}
    return len(found - {("", "")}) or None


# --- one field, by the first of its names that tells something ---------------------------------------


def _amounts(page: MetricsPage, names: Iterable[str]) -> dict[Labels, float]:
    """Each engine's and kind's value, of the first name that has one."""
    for name in names:
        # LiteLLM counts whoever looks at its pages, too, and its own calls for /health: those ask for no model
        samples = [each for each in page.samples(name) if NO_MODEL not in each.labels]
        found: dict[Labels, float] = {}
        # SGLang with priorities has one series each and their sum with an empty label
        for sample in [each for each in samples if not each.label("priority")] or samples:
            if sample.is_amount:
                series = tuple(pair for pair in sample.labels if pair[0] not in REPEATING_LABELS)
                found[series] = max(sample.value, found.get(series, 0.0))
        if found:
            return found
    return {}


def _sum(page: MetricsPage, names: Iterable[str]) -> float | None:
    values = _amounts(page, names).values()
    return finite(sum(values)) if values else None


def _whole_sum(page: MetricsPage, names: Iterable[str]) -> int | None:
    return _whole(_sum(page, names))


def _largest(page: MetricsPage, names: Iterable[str]) -> float | None:
    return max(_amounts(page, names).values(), default=None)


def _whole_largest(page: MetricsPage, names: Iterable[str]) -> int | None:
    return _whole(_largest(page, names))


def _share(page: MetricsPage, names: Iterable[str]) -> float | None:
    values = _amounts(page, names).values()
    mean = sum(values) / len(values) if values else math.inf
    return mean if mean <= 1 else None


def _by_reason(page: MetricsPage, names: Iterable[str]) -> tuple[tuple[str, float], ...]:
    """Sum the counter of ended requests per reason; series without one, e.g., of a gateway, are left out."""
    sums: dict[str, float] = {}
    for labels, value in _amounts(page, names).items():
        if reason := dict(labels).get(REASON_LABEL):
            sums[reason] = sums.get(reason, 0.0) + value
    return tuple(sorted((reason, total) for reason, total in sums.items() if total < math.inf))


def _histogram(page: MetricsPage, names: Iterable[str]) -> Histogram | None:
    return next((found for name in names if (found := page.histogram(name))), None)


def _sum_and_count(page: MetricsPage, names: Iterable[str]) -> Histogram | None:
    """A histogram's mean alone: vLLM's ten buckets of `max_tokens` would cost 13 % more per page."""
    for name in names:
        count, total = _sum(page, [f"{name}_count"]), _sum(page, [f"{name}_sum"])
        if count is not None:
            return Histogram(edges=(), counts=(), sum=total, count=count)
    return None


READERS: Mapping[str, Callable[[MetricsPage, Iterable[str]], Any]] = {
    "num_gpu_blocks": _whole_sum,
    "block_size": _whole_largest,
    "kv_cache_tokens": _whole_sum,
    "max_model_len": _whole_largest,
    "running": _sum,
    "waiting": _sum,
    "kv_cache_usage": _share,
    "prefix_queries_total": _sum,
    "prefix_hits_total": _sum,
    "prefix_hit_ratio": _share,
    "preemptions_total": _sum,
    "prompt_tokens_total": _sum,
    "generation_tokens_total": _sum,
    "requests_total": _sum,
    "asked_tokens": _sum_and_count,
    "ttft": _histogram,
    "queue": _histogram,
}
"""Field of EngineNumbers -> how it is read from an engine's names for it."""


def _sum_if_all(values: Sequence[float | None]) -> float | None:
    """Sum when nothing is missing: three engines of four would be a wrong number."""
    known = [value for value in values if value is not None]
    return finite(sum(known)) if len(known) == len(values) else None


def _text(config: Config, key: str) -> str | None:
    value = config.get(key, "")
    return None if value in ("", "None") else value


def _number(config: Config, key: str) -> float | None:
    try:
        value = float(config.get(key, ""))
    except ValueError:
        return None
    return value if 0 <= value < math.inf else None


def _whole(value: float | None) -> int | None:
    is_whole = value is not None and value <= LARGEST_EXACT and value == int(value)
    return int(value) if value is not None and is_whole else None
