"""The `/metrics` page of a vLLM in one of its three dialects, from what a Meter added up. No clock, no I/O."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from toolkit.sim.engine import Engine
from toolkit.sim.families import FAMILIES, HTTP_HELP, Dialect, Family
from toolkit.sim.meter import Histogram, HttpMeter, Meter, Tally

CONFIG_HELP = "Information of the LLMEngine CacheConfig"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the page tells of the server besides its numbers."""

    dialect: Dialect
    model: str
    gpu_memory_utilization: float
    cache_dtype: str
    stats: bool = True
    """False: `--disable-log-stats`, no `vllm:` family at all."""


Cores = Sequence[tuple[Engine, Meter]]
"""The data-parallel engines, in the order of their `engine` label."""


def page(served: Served, cores: Cores, http: HttpMeter, process: Iterable[Metric] = ()) -> bytes:
    """Write the page; `process` are the `process_*` and `python_*` families, which only Python shows."""
    registry = CollectorRegistry()
    registry.register(_Page(_families(served, cores, http, process)))
    if served.dialect == "rust":
        written: bytes = generate_openmetrics(registry, ALLOWUTF8)  # type: ignore[no-untyped-call] # not theirs
        return _rust_order(written)
    return generate_latest(registry)


class _Page:
    """Lets prometheus-client write families that are made already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)

    def describe(self) -> list[Metric]:
        """Nothing: the registry need not look for clashes in a page that is written once."""
        return []


def _families(
    served: Served, cores: Cores, http: HttpMeter, process: Iterable[Metric]
) -> Iterator[Metric]:
    if served.dialect != "rust":
        yield from process
    if served.stats:
        for family in FAMILIES[served.dialect]:
            yield _family(family, served, cores)
        if served.dialect != "rust":
            yield _cache_config(served, cores)
    yield from _http(served.dialect, http)


def _family(family: Family, served: Served, cores: Cores) -> Metric:
    metric = _metric(f"vllm:{family.name}", family.help, family.kind, served.dialect)
    created = served.dialect == "v1" and family.kind != "gauge"
    for index, (engine, meter) in enumerate(cores if family.per_engine else cores[:1]):
        labels = {"model_name": served.model}
        if family.per_engine and served.dialect != "v0":
            labels["engine"] = str(index)
        if family.kind == "histogram":
            metric.samples += _histogram(metric.name, labels, meter.histograms[family.source])
            names = [labels]
        else:
            names = _values(metric, family, labels, meter.figures(engine))
        if created:
            metric.samples += [
                Sample(f"{metric.name}_created", each, meter.created_s) for each in names
            ]
    return metric


def _metric(name: str, words: str, kind: str, dialect: Dialect) -> Metric:
    """Make an empty family; Rust's library ends every help text with a full stop."""
    return Metric(name, words.rstrip(". ") + "." if dialect == "rust" else words, kind)


def _values(
    metric: Metric, family: Family, labels: dict[str, str], figures: dict[str, float]
) -> list[dict[str, str]]:
    """Add a counter's or gauge's samples; return their label sets."""
    name = metric.name + ("_total" if family.kind == "counter" else "")
    if family.split is None:
        metric.samples.append(Sample(name, labels, figures[family.source]))
        return [labels]
    further, values = family.split
    named = [(labels | {further: value}, source) for value, source in values]
    metric.samples += [Sample(name, each, figures[source]) for each, source in named]
    return [each for each, _ in named]


def _histogram(name: str, labels: dict[str, str], histogram: Histogram) -> list[Sample]:
    samples = []
    so_far = 0
    for edge, count in zip((*histogram.edges, float("inf")), histogram.counts, strict=True):
        so_far += count
        le: str = floatToGoString(edge)  # type: ignore[no-untyped-call] # not theirs
        samples.append(Sample(f"{name}_bucket", labels | {"le": le}, so_far))
    return [
        *samples,
        Sample(f"{name}_count", labels, so_far),
        Sample(f"{name}_sum", labels, histogram.total),
    ]


def _cache_config(served: Served, cores: Cores) -> Metric:
    metric = _metric("vllm:cache_config_info", CONFIG_HELP, "gauge", served.dialect)
    # vLLM adds the engines' blocks up and tells every engine the sum
    blocks = sum(engine.config.num_gpu_blocks for engine, _ in cores)
    for index, (engine, _) in enumerate(cores):
        if served.dialect == "v0":
            labels = _v0_config(served, engine, blocks)
        else:
            labels = _v1_config(served, engine, blocks) | {"engine": str(index)}
        metric.samples.append(Sample(metric.name, labels, 1))
    return metric


def _v0_config(served: Served, engine: Engine, blocks: int) -> dict[str, str]:
    return {
        "block_size": str(engine.config.block_size),
        "gpu_memory_utilization": str(served.gpu_memory_utilization),
        "swap_space_bytes": str(4 * 2**30),  # --swap-space's default
        "num_gpu_blocks_override": "None",
        "cache_dtype": served.cache_dtype,
        "is_attention_free": "False",
        "sliding_window": "None",
        "enable_prefix_caching": str(engine.config.prefix_caching),
        "cpu_offload_gb": "0",
        "calculate_kv_scales": "False",
        "num_gpu_blocks": str(blocks),
        "num_cpu_blocks": "0",
    }


def _v1_config(served: Served, engine: Engine, blocks: int) -> dict[str, str]:
    """Every field of CacheConfig is a label, told by Python's `str`."""
    config = engine.config
    blocks_per_request = -(-config.max_model_len // config.block_size)
    unset = (
        "cache_hit_alignment_tokens hash_block_size kv_cache_layout kv_cache_memory_bytes"
        " kv_offloading_size mamba_block_size mamba_page_size_padded num_cpu_blocks"
        " num_gpu_blocks_override prefix_match_unit skip_page_size_padded sliding_window"
    )
    no = (
        "enable_mamba_shared_prefix_checkpoint is_attention_free kv_sharing_fast_prefill"
        " use_kda_recoverssm use_replayssm user_specified_block_size"
    )
    return (
        dict.fromkeys(unset.split(), "None")
        | dict.fromkeys(no.split(), "False")
        | {
            "_block_size_resolved": "True",
            "block_size": str(config.block_size),
            "cache_dtype": served.cache_dtype,
            "effective_attention_block_size": str(config.block_size),
            "enable_prefix_caching": str(config.prefix_caching),
            "gpu_memory_utilization": str(served.gpu_memory_utilization),
            "kv_cache_dtype_skip_layers": "[]",
            "kv_cache_max_concurrency": str(config.num_gpu_blocks / blocks_per_request),
            "kv_cache_size_tokens": str(config.num_gpu_blocks * config.block_size),
            "kv_offloading_backend": "native",
            "mamba_cache_dtype": "auto",
            "mamba_cache_mode": "none",
            "mamba_ssm_cache_dtype": "float32",
            "num_gpu_blocks": str(blocks),
            "prefix_cache_retention_interval": "0",
            "prefix_caching_hash_algo": "sha256",
            "replayssm_buffer_len": "16",
            "swa_bounded_replay": "True",
        }
    )


def _http(dialect: Dialect, http: HttpMeter) -> Iterator[Metric]:
    yield _http_requests(dialect, http)
    if dialect != "rust":
        yield _http_sizes(dialect, "request", http.request_sizes)
        yield _http_sizes(dialect, "response", http.response_sizes)
    highr = _metric("http_request_duration_highr_seconds", HTTP_HELP["highr"], "histogram", dialect)
    highr.samples += _histogram(highr.name, {}, http.highr)
    _created(highr, dialect, [({}, http.created_s)])
    yield highr
    few = _metric("http_request_duration_seconds", HTTP_HELP["few"], "histogram", dialect)
    for (handler, method), (histogram, _) in http.durations.items():
        few.samples += _histogram(few.name, {"handler": handler, "method": method}, histogram)
    named = (({"handler": key[0], "method": key[1]}, at) for key, (_, at) in http.durations.items())
    _created(few, dialect, named)
    yield few


def _http_requests(dialect: Dialect, http: HttpMeter) -> Metric:
    metric = _metric("http_requests", HTTP_HELP["requests"], "counter", dialect)
    named = [
        ({"handler": handler, "method": method, "status": status}, tally)
        for (handler, method, status), tally in http.requests.items()
    ]
    metric.samples += [Sample("http_requests_total", each, tally.count) for each, tally in named]
    _created(metric, dialect, ((each, tally.created_s) for each, tally in named))
    return metric


def _http_sizes(dialect: Dialect, side: str, sizes: dict[str, Tally]) -> Metric:
    metric = _metric(f"http_{side}_size_bytes", HTTP_HELP[f"{side}_size"], "summary", dialect)
    for handler, tally in sizes.items():
        metric.samples.append(Sample(f"{metric.name}_count", {"handler": handler}, tally.count))
        metric.samples.append(Sample(f"{metric.name}_sum", {"handler": handler}, tally.total))
    named = (({"handler": handler}, tally.created_s) for handler, tally in sizes.items())
    _created(metric, dialect, named)
    return metric


def _created(
    metric: Metric, dialect: Dialect, named: Iterable[tuple[dict[str, str], float]]
) -> None:
    """Tell when each series began, which of the dialects only V1 does."""
    if dialect == "v1":
        metric.samples += [Sample(f"{metric.name}_created", labels, at) for labels, at in named]


_LABELS = re.compile(
    rb'\{(engine="[^"]*"),(?:(.*),)?(model_name="(?:[^"\\]|\\.)*")(?:,(.*))?\}(?= )'
)


def _rust_order(text: bytes) -> bytes:
    """Put `model_name` first and `engine` second: prometheus-client can only sort labels."""
    return _LABELS.sub(_model_first, text)


def _model_first(match: re.Match[bytes]) -> bytes:
    engine, before, model, after = match.groups()
    return b"{" + b",".join(part for part in (model, engine, before, after) if part) + b"}"
