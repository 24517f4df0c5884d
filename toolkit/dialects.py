"""Metrics page -> EngineNumbers: one vocabulary for vLLM's dialects, its peers and its router.

Pure: a page in, a record out. The names stand in `dialect_names`; here is what they mean.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from toolkit.dialect_names import (
    MODEL_LABELS,
    NO_MODEL,
    NOT_SETTINGS,
    PEERS,
    PROXY_BUILD,
    PROXY_BYPASSES,
    PROXY_CACHEABLE,
    PROXY_OFF,
    PROXY_REQUESTS,
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
from toolkit.promtext import Histogram, Page, Sample

LARGEST_EXACT = 2**53
"""A float counts no further one by one."""
GIB = 2**30

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


def read_cache(page: Page) -> CacheNumbers | None:
    """Read what `toolkit proxy` adds to the page of the engine behind it; None where there is none."""
    if not page.samples(PROXY_BUILD):
        return None
    by = {kind: page.total(PROXY_REQUESTS, cache=kind) or 0.0 for kind in PROXY_CACHEABLE}
    return CacheNumbers(
        off=page.total(PROXY_BYPASSES, reason=PROXY_OFF) or 0.0,
        cacheable=sum(by.values()),
        hits=by["hit"],
        coalesced=by["coalesced"],
    )


def read_numbers(page: Page, content_type: str = "") -> EngineNumbers | None:
    """Read a page in whichever dialect it is written; None when it is no known engine's.

    `content_type` is the answer's header: of vLLM's front ends Rust alone serves OpenMetrics.
    """
    if _is_router(page):
        return _common("production-stack-router", ROUTER, page)
    for prefix in VLLM_PREFIXES:
        names = _respelled(VLLM, prefix)
        if _speaks(page, names):
            numbers = _cache_config(page, names["config"][0], _common("vllm", names, page))
            return replace(numbers, dialect=_dialect(page, prefix, content_type))
    for engine, names in PEERS:
        if _speaks(page, names):
            return _peculiar(page, _common(engine, names, page))
    return None


def _is_router(page: Page) -> bool:
    """production-stack's router re-exports vLLM's names per `server`; an engine says `engine`."""
    running = page.samples("vllm:num_requests_running")
    if any(sample.label("engine") or sample.label("model_name") for sample in running):
        return False
    return any(page.samples(name) for name in ROUTER_ONLY) or any(
        s.label("server") for s in running
    )


def _respelled(names: Names, prefix: str) -> Names:
    return {
        field: tuple(name.replace("vllm:", prefix) for name in tries)
        for field, tries in names.items()
    }


def _speaks(page: Page, names: Names) -> bool:
    tries = [name for them in names.values() for name in them]
    # a name alone proves nothing: the line may be damaged
    return any(page.samples(name) or page.samples(f"{name}_count") for name in tries)


def _dialect(page: Page, prefix: str, content_type: str) -> str:
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


def _common(engine: str, names: Names, page: Page) -> EngineNumbers:
    """Read what all engines have in common, by this engine's names."""
    queries = _sum(page, names.get("prefix_queries_total", ()))
    hits = _sum(page, names.get("prefix_hits_total", ()))
    both = queries is not None and hits is not None
    return EngineNumbers(
        engine=engine,
        dialect=engine,
        models=_models(page, names),
        engines=_engines(page, names),
        num_gpu_blocks=_whole(_sum(page, names.get("num_gpu_blocks", ()))),
        block_size=_whole(_largest(page, names.get("block_size", ()))),
        kv_cache_tokens=_whole(_sum(page, names.get("kv_cache_tokens", ()))),
        max_model_len=_whole(_largest(page, names.get("max_model_len", ()))),
        running=_sum(page, names.get("running", ())),
        waiting=_sum(page, names.get("waiting", ())),
        kv_cache_usage=_share(page, names.get("kv_cache_usage", ())),
        # one without the other says nothing, and would hide the gauge
        prefix_queries_total=queries if both else None,
        prefix_hits_total=hits if both else None,
        prefix_hit_ratio=_share(page, names.get("prefix_hit_ratio", ())),
        preemptions_total=_sum(page, names.get("preemptions_total", ())),
        prompt_tokens_total=_sum(page, names.get("prompt_tokens_total", ())),
        generation_tokens_total=_sum(page, names.get("generation_tokens_total", ())),
        requests_total=_sum(page, names.get("requests_total", ())),
        finished_by_reason=_by_reason(page, names.get("requests_total", ())),
        asked_tokens=_sum_and_count(page, names.get("asked_tokens", ())),
        ttft=_histogram(page, names.get("ttft", ())),
        queue=_histogram(page, names.get("queue", ())),
        started_at=_largest(page, ("process_start_time_seconds",)) or None,
    )


def _peculiar(page: Page, numbers: EngineNumbers) -> EngineNumbers:
    """Add what one engine alone spells its own way."""
    if numbers.engine == "sglang":
        chosen = {"context_len": numbers.max_model_len, "page_size": numbers.block_size}
        settings = tuple((key, str(value)) for key, value in chosen.items() if value is not None)
        return replace(numbers, settings=settings)
    if numbers.engine == "tgi":
        failed = _sum(page, ("tgi_request_failure",))
        ended = [count for count in (numbers.requests_total, failed) if count is not None]
        return replace(
            numbers,
            # either counter appears with its first request
            requests_total=sum(ended) if ended else None,
            kv_cache_usage=_tgi_usage(page, numbers.kv_cache_tokens),
        )
    if numbers.engine == "litellm" and numbers.requests_total is None:
        return replace(numbers, requests_total=0.0)  # its counters appear with the first request
    if numbers.engine == "trtllm":
        hits = _sum(page, TRTLLM["prefix_hits_total"])
        misses = _sum(page, ("trtllm_kv_cache_missed_blocks_total",))
        if hits is not None and misses is not None:
            return replace(numbers, prefix_hits_total=hits, prefix_queries_total=hits + misses)
    return numbers


def _tgi_usage(page: Page, most: int | None) -> float | None:
    """TGI reserves a batch's final length at its start, so this is what is spoken for."""
    reserved = _sum(page, ("tgi_batch_current_max_tokens",))
    return reserved / most if reserved is not None and most and reserved <= most else None


def _cache_config(page: Page, name: str, numbers: EngineNumbers) -> EngineNumbers:
    """Add what vLLM's `cache_config_info` tells in its labels; Rust has none."""
    configs = {_identity(sample): dict(sample.labels) for sample in page.samples(name)}
    if not configs:
        return numbers
    config = next(iter(configs.values()))  # data-parallel engines share their flags
    blocks = _blocks(configs)
    return replace(
        numbers,
        gpu_memory_utilization=_number(config, "gpu_memory_utilization"),
        cache_dtype=_text(config, "cache_dtype"),
        block_size=_whole(_number(config, "block_size")),
        num_gpu_blocks=sum(max(counts) for counts in blocks) or None,
        swap_space_gib=_swap_space_gib(config),
        kv_cache_tokens=_kv_cache_tokens(configs.values(), blocks),
        kv_cache_max_concurrency=_sum_of_all(
            _number(each, "kv_cache_max_concurrency") for each in configs.values()
        ),
        prefix_caching={"True": True, "False": False}.get(config.get("enable_prefix_caching", "")),
        settings=_settings(configs.values()),
    )


def _identity(sample: Sample) -> Identity:
    return sample.label("WorkerId"), sample.label("engine") or sample.label("dp_rank")


def _blocks(configs: Mapping[Identity, Config]) -> list[set[int]]:
    """Gather each Ray worker's block counts; one count a worker when all is well.

    vLLM sums the blocks of its data-parallel engines and repeats the sum on every engine's series.
    """
    counts: dict[str, set[int]] = {}
    for (worker, _), config in configs.items():
        count = _whole(_number(config, "num_gpu_blocks"))
        if count is not None:
            counts.setdefault(worker, set()).add(count)
    return list(counts.values())


def _kv_cache_tokens(configs: Iterable[Config], blocks: list[set[int]]) -> int | None:
    """Sum the label each engine has since 0.24.0, else multiply where blocks hold nothing but tokens.

    No null block is subtracted, like in vLLM's own log: 128 blocks of 32 are recorded as 4096.
    """
    configs = list(configs)
    sizes = [_whole(_number(config, "kv_cache_size_tokens")) for config in configs]
    if any(size is not None for size in sizes):
        return _whole(_sum_of_all(sizes))
    block_size = _whole(_number(configs[0], "block_size"))
    # engines that disagree have not summed their blocks: nobody knows whose they are
    agreed = all(len(counts) == 1 for counts in blocks)
    if block_size is None or not agreed or _is_hybrid(configs[0], block_size):
        return None
    return block_size * sum(max(counts) for counts in blocks) or None


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


def _swap_space_gib(config: Config) -> float | None:
    gib, size = _number(config, "swap_space"), _number(config, "swap_space_bytes")
    return gib if gib is not None or size is None else size / GIB


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


def _models(page: Page, names: Names) -> tuple[str, ...]:
    for field in ("running", "models", "requests_total", "generation_tokens_total"):
        for name in names.get(field, ()):
            for label in MODEL_LABELS:
                if found := page.label_values(name, label):
                    return found
    return ()


def _engines(page: Page, names: Names) -> int | None:
    tries = [name for field in ("running", "config") for name in names.get(field, ())]
    found = {_identity(sample) for name in tries for sample in page.samples(name)}
    return len(found - {("", "")}) or None


def _values(page: Page, name: str) -> list[float]:
    """Return one value per engine and kind; -1, NaN and Inf stand for unknown and are left out."""
    # LiteLLM counts whoever looks at its pages, too, and its own calls for /health: those ask for no model
    samples = tuple(s for s in page.samples(name) if NO_MODEL not in s.labels)
    # SGLang with priorities has one series each and their sum with an empty label
    return _amounts(tuple(s for s in samples if not s.label("priority")) or samples)


def _amounts(samples: Iterable[Sample]) -> list[float]:
    best: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in samples:
        if 0 <= sample.value < math.inf:
            key = tuple(pair for pair in sample.labels if pair[0] not in REPEATING_LABELS)
            best[key] = max(sample.value, best.get(key, 0.0))
    return list(best.values())


def _by_reason(page: Page, names: Iterable[str]) -> tuple[tuple[str, float], ...]:
    """Sum the counter of ended requests per reason; series without one, e.g., of a gateway, are left out."""
    samples = next((page.samples(name) for name in names if _values(page, name)), ())
    by_reason: dict[str, list[Sample]] = {}
    for sample in samples:
        if reason := sample.label(REASON_LABEL):
            by_reason.setdefault(reason, []).append(sample)
    sums = {reason: _sum_of_all(_amounts(those) or [None]) for reason, those in by_reason.items()}
    return tuple(sorted((reason, total) for reason, total in sums.items() if total is not None))


def _first(page: Page, names: Iterable[str]) -> list[float]:
    return next((values for name in names if (values := _values(page, name))), [])


def _sum(page: Page, names: Iterable[str]) -> float | None:
    return _sum_of_all(_first(page, names) or [None])


def _largest(page: Page, names: Iterable[str]) -> float | None:
    return max(_first(page, names), default=None)


def _share(page: Page, names: Iterable[str]) -> float | None:
    values = _first(page, names)
    mean = sum(values) / len(values) if values else math.inf
    return mean if mean <= 1 else None


def _histogram(page: Page, names: Iterable[str]) -> Histogram | None:
    return next((found for name in names if (found := page.histogram(name))), None)


def _sum_and_count(page: Page, names: Iterable[str]) -> Histogram | None:
    """A histogram's mean alone: vLLM's ten buckets of `max_tokens` would cost 13 % more per page."""
    for name in names:
        count, total = _sum(page, [f"{name}_count"]), _sum(page, [f"{name}_sum"])
        if count is not None:
            return Histogram(edges=(), counts=(), sum=total, count=count)
    return None


def _sum_of_all(values: Iterable[float | None]) -> float | None:
    """Sum when nothing is missing: three engines of four would be a wrong number."""
    known = list(values)
    total = math.inf if None in known else sum(value for value in known if value is not None)
    return total if total < math.inf else None


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
    exact = value is not None and 0 <= value <= LARGEST_EXACT and value == int(value)
    return int(value) if value is not None and exact else None
