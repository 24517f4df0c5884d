"""The `/metrics` page of a vLLM: a recorded one, line by line, with the numbers of what this server did. No clock.

`pages/v1.txt` is recorded from vLLM 0.32.0. No recording of the other two was to be had: `v0.txt` has the families of 0.7.3,
`rust.txt` what the Rust front end of 0.33 keeps of V1, both by their sources and with zeros for numbers.
"""

import functools
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import NamedTuple

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.utils import floatToGoString

from toolkit.sim.engine import EngineCore, EngineRequest, StepResult
from toolkit.sim.presets import Dialect, Setup

CONTENT_TYPES: dict[Dialect, str] = {
    "v0": "text/plain; version=0.0.4; charset=utf-8",
    "v1": "text/plain; version=1.0.0; charset=utf-8",
    "rust": "application/openmetrics-text; version=1.0.0; charset=utf-8",
}

UNCOUNTED = ("/metrics", "/health", "/load", "/ping", "/version", "/server_info")
"""Handlers that vLLM leaves out of `http_*`."""

_SERVED = ("engine", "model_name", "handler", "method", "status")
"""Labels that say whose series it is; what remains says which of that one's."""

_CONFIG = (
    *("block_size", "cache_dtype", "effective_attention_block_size", "enable_prefix_caching"),
    *("gpu_memory_utilization", "kv_cache_max_concurrency", "kv_cache_memory_bytes"),
    *("kv_cache_size_tokens", "num_gpu_blocks"),
)
"""Labels of `vllm:cache_config_info` with a value of this server's own."""

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_TOKEN_BUCKET = re.compile(r"vllm:request_\w+_tokens_bucket\{.*le=\"([^\"]+)\"")
"""Of the histograms whose buckets end at the model's length."""

_PROCESS = CollectorRegistry()
GCCollector(_PROCESS)
PlatformCollector(_PROCESS)
ProcessCollector(registry=_PROCESS)


class Family(NamedTuple):
    """One family of a recorded page."""

    name: str
    head: str
    """Its HELP and TYPE lines."""
    lines: dict[str, str]
    """By a series without the labels in `_SERVED`, e.g., `vllm:request_success_total{finished_reason="stop"}`: what is written
    before its number, with places for those labels."""

    @property
    def buckets(self) -> list[str]:
        """The edges of a histogram, as they are written."""
        return re.findall(r'_bucket\{le="([^"]+)"\}', " ".join(self.lines))


@functools.cache
def families(dialect: Dialect, max_model_len: int) -> tuple[Family, ...]:
    """Read what a recorded page has of vLLM and its HTTP server, for a model of this length."""
    text = resources.files(__package__).joinpath("pages", f"{dialect}.txt").read_text("utf-8")
    found = []
    for block in re.split(r"^(?=# HELP |# EOF)", text, flags=re.MULTILINE):
        if block.startswith(("# HELP vllm:", "# HELP http_")):
            head, samples = block.splitlines(keepends=True)[:2], block.splitlines()[2:]
            lines: dict[str, str] = {}
            for sample in _with_token_buckets(samples, max_model_len):
                series = sample.rpartition(" ")[0]
                labels = [each[0] for each in _LABEL.finditer(series) if each[1] not in _SERVED]
                name = series.partition("{")[0]
                key = f"{name}{{{','.join(labels)}}}" if labels else name
                lines.setdefault(
                    name if name.endswith("_info") else key, _LABEL.sub(_place, series)
                )
            found.append(Family(head[0].split()[2], "".join(head), lines))
    return tuple(found)


def _with_token_buckets(samples: Sequence[str], max_model_len: int) -> Iterator[str]:
    """1, 2, 5, 10, 20, 50 ... up to the model's length: the last finite bucket hints at it."""
    for sample in samples:
        bucket = _TOKEN_BUCKET.match(sample)
        if bucket is None or bucket[1] == "+Inf":
            yield sample
        elif bucket[1] == "1.0":
            for decade in range(len(str(max_model_len))):
                for edge in (10**decade, 2 * 10**decade, 5 * 10**decade):
                    if edge <= max_model_len:
                        yield sample.replace('le="1.0"', f'le="{_number(edge)}"')


def _place(label: re.Match[str]) -> str:
    """Keep a label as recorded, or leave its place for a value of this server's own."""
    name = label[1]
    return f'{name}="%({name})s"' if name in _SERVED + _CONFIG else label[0].replace("%", "%%")


def _number(value: float) -> str:
    written: str = floatToGoString(value)  # type: ignore[no-untyped-call] # not theirs
    return written


class Histogram:
    """Counts per bucket, kept plainly; the page adds them up. Without buckets it is a count and a sum."""

    __slots__ = ("_edges", "buckets", "counts", "created_s", "total")

    def __init__(self, buckets: Sequence[str], created_s: float) -> None:
        self.buckets = buckets
        self.counts = [0] * max(1, len(buckets))
        self.total = 0.0
        self.created_s = created_s
        self._edges = [float(each) for each in buckets[:-1]]

    def observe(self, value: float) -> None:
        """Count a value; an edge belongs to the bucket it ends."""
        self.counts[bisect_left(self._edges, value)] += 1
        self.total += value

    def values(self, name: str) -> dict[str, float]:
        """Its numbers by the names that they have on the page."""
        count = sum(self.counts)
        numbers = {f"{name}_count": count, f"{name}_sum": self.total, f"{name}_total": count}
        numbers[f"{name}_created"] = self.created_s
        so_far = 0
        for le, inside in zip(self.buckets, self.counts, strict=False):
            so_far += inside
            numbers[f'{name}_bucket{{le="{le}"}}'] = so_far
        return numbers


class EngineMetrics:
    """What one engine core did so far; cheap enough for every token."""

    def __init__(self, dialect: Dialect, max_model_len: int, created_s: float) -> None:
        self.created_s = created_s
        """Wall clock of the process's start: what every `_created` series says."""
        self.histograms = {
            each.name: Histogram(each.buckets, created_s)
            for each in families(dialect, max_model_len)
            if each.buckets and each.name.startswith("vllm:")
        }
        gaps = "time_per_output_token" if dialect == "v0" else "inter_token_latency"
        self._gaps = self.histograms[f"vllm:{gaps}_seconds"]
        self._ended: Counter[str] = Counter()

    def count(self, engine: EngineCore, results: Sequence[StepResult]) -> None:
        """Count one finished engine step."""
        self.histograms["vllm:iteration_tokens_total"].observe(engine.iteration_tokens)
        for each in results:
            if each.waited_s is not None and each.output_tokens == 1:
                self.histograms["vllm:time_to_first_token_seconds"].observe(each.waited_s)
            elif each.waited_s is not None:
                self._gaps.observe(each.waited_s)
            if each.reason:
                self._ended[each.reason] += 1
                for name, value in observations(each.request).items():
                    if name in self.histograms:
                        self.histograms[name].observe(value)

    def values(self, engine: EngineCore) -> dict[str, float]:
        """All numbers of now but 0, by series."""
        queries, hits = engine.prefix_queries_total, engine.prefix_hits_total
        prompt, cached = engine.prompt_tokens_total, engine.prompt_tokens_cached_total
        hit_rate = (hits / queries if queries else 0) if engine.config.prefix_caching else -1
        numbers = {
            "vllm:num_requests_running": engine.running,
            "vllm:num_requests_waiting": engine.waiting,
            'vllm:num_requests_waiting_by_reason{reason="capacity"}': engine.waiting,
            'vllm:engine_sleep_state{sleep_state="awake"}': 1,
            "vllm:kv_cache_usage_perc": engine.kv_usage,
            "vllm:gpu_cache_usage_perc": engine.kv_usage,
            "vllm:prefix_cache_queries_total": queries,
            "vllm:prefix_cache_hits_total": hits,
            "vllm:gpu_prefix_cache_hit_rate": hit_rate,
            "vllm:cpu_prefix_cache_hit_rate": -1,
            "vllm:num_preemptions_total": engine.preemptions_total,
            "vllm:prompt_tokens_total": prompt,
            'vllm:prompt_tokens_by_source_total{source="local_compute"}': prompt - cached,
            'vllm:prompt_tokens_by_source_total{source="local_cache_hit"}': cached,
            "vllm:prompt_tokens_cached_total": cached,
            'vllm:prompt_tokens_cached_by_source_total{source="device"}': hits,
            "vllm:generation_tokens_total": engine.generation_tokens_total,
            "vllm:tokens_total": prompt + engine.generation_tokens_total,
            "vllm:cache_config_info": 1,
        }
        for reason, count in self._ended.items():
            numbers[f'vllm:request_success_total{{finished_reason="{reason}"}}'] = count
        for name, histogram in self.histograms.items():
            numbers |= histogram.values(name)
        return numbers


def observations(ended: EngineRequest) -> dict[str, float]:
    """What vLLM observes when a request ends, by histogram of either version; what never happened takes no time."""
    end = ended.ended_at or 0.0
    scheduled = end if ended.scheduled_at is None else ended.scheduled_at
    first = end if ended.first_token_at is None else ended.first_token_at
    last = end if ended.last_token_at is None else ended.last_token_at
    tokens = ended.output_tokens
    return {
        "vllm:request_prompt_tokens": len(ended.prompt_ids),
        # recomputation after a preemption is not in it
        "vllm:request_prefill_kv_computed_tokens": len(ended.prompt_ids) - ended.cached_tokens,
        "vllm:request_generation_tokens": tokens,
        "vllm:request_max_num_generation_tokens": tokens,  # of n answers the longest, whatever its help says
        "vllm:request_params_max_tokens": ended.max_tokens,
        "vllm:request_params_n": 1,
        "vllm:request_num_preemptions": ended.preemptions,
        "vllm:e2e_request_latency_seconds": last - ended.arrived_at,
        "vllm:request_queue_time_seconds": scheduled - ended.arrived_at,
        "vllm:time_in_queue_requests": scheduled - ended.arrived_at,  # seconds, whatever its name
        "vllm:request_prefill_time_seconds": first - scheduled,
        "vllm:request_decode_time_seconds": last - first,
        "vllm:request_inference_time_seconds": last - scheduled,
        # zero for a single token, as vLLM has it
        "vllm:request_time_per_output_token_seconds": (last - first) / max(1, tokens - 1),
    }


class HttpMetrics:
    """What `prometheus_fastapi_instrumentator` counts; a series appears with its first request."""

    def __init__(self, dialect: Dialect, created_s: float) -> None:
        self._buckets = {each.name: each.buckets for each in families(dialect, 1)}
        self._series: dict[str, dict[tuple[str, ...], Histogram]] = {}
        self._get("http_request_duration_highr_seconds", (), created_s)

    def observe(
        self,
        handler: str,
        method: str,
        status: int,
        *,
        request_bytes: int,
        response_bytes: int,
        duration_s: float,
        now_s: float,
    ) -> None:
        """Count one request, at this wall clock. Sizes are what headers say: a stream has none and counts 0."""
        if handler not in UNCOUNTED:
            for name, labels, value in (
                ("http_requests", (handler, method, f"{status // 100}xx"), 1),
                ("http_request_size_bytes", (handler,), request_bytes),
                ("http_response_size_bytes", (handler,), response_bytes),
                ("http_request_duration_highr_seconds", (), duration_s),
                ("http_request_duration_seconds", (handler, method), duration_s),
            ):
                self._get(name, labels, now_s).observe(value)

    def _get(self, name: str, labels: tuple[str, ...], now_s: float) -> Histogram:
        series = self._series.setdefault(name, {})
        if labels not in series:
            series[labels] = Histogram(self._buckets.get(name, ()), now_s)
        return series[labels]

    def values(self, family: str) -> list[tuple[dict[str, str], dict[str, float]]]:
        """The labels and numbers of each series of a family."""
        name = re.sub("_(total|created)$", "", family)
        return [
            (dict(zip(("handler", "method", "status"), labels, strict=False)), each.values(name))
            for labels, each in self._series.get(name, {}).items()
        ]


def page(
    setup: Setup,
    engines: Sequence[tuple[EngineCore, EngineMetrics]],
    http: HttpMetrics,
    process: str = "",
) -> bytes:
    """Write the page of a server and its engines; `process` stands first, as in vLLM, but for Rust."""
    written = [] if setup.dialect == "rust" else [process]
    # vLLM adds the engines' blocks up and gives every engine the sum
    blocks = sum(engine.config.num_gpu_blocks for engine, _ in engines)
    served = [
        (_labels(setup, index, blocks), metrics.values(engine))
        for index, (engine, metrics) in enumerate(engines)
    ]
    for family in families(setup.dialect, setup.max_model_len):
        if family.name.startswith("http_"):
            sources = http.values(family.name)
        elif not setup.stats:
            continue
        elif 'engine="' in next(iter(family.lines.values())):
            sources = served
        else:  # one series for the whole server
            sources = served[:1]
        if sources or not family.name.endswith("_created"):
            written.append(family.head)
        for labels, values in sources:
            for key, line in family.lines.items():
                otherwise = engines[0][1].created_s if "_created" in key else 0.0
                written.append(f"{line % labels} {_number(values.get(key, otherwise))}\n")
    return "".join([*written, "# EOF\n" if setup.dialect == "rust" else ""]).encode()


def _labels(setup: Setup, index: int, blocks: int) -> dict[str, str]:
    """Values of an engine's labels; those of its configuration as Python's `str` writes them."""
    told = {
        "engine": index,
        "model_name": setup.model,
        "block_size": setup.block_size,
        "cache_dtype": setup.cache_dtype,
        "effective_attention_block_size": setup.block_size,
        "enable_prefix_caching": setup.prefix_caching,
        "gpu_memory_utilization": setup.gpu_memory_utilization,
        "kv_cache_max_concurrency": setup.num_gpu_blocks
        / -(-setup.max_model_len // setup.block_size),
        "kv_cache_memory_bytes": None,
        "kv_cache_size_tokens": setup.num_gpu_blocks * setup.block_size,
        "num_gpu_blocks": blocks,
    }
    escapes = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
    return {name: str(value).translate(escapes) for name, value in told.items()}


def process_page(started_s: float, spent_s: float) -> str:
    """This process's own figures, but the start of this server (a restart must show), and the CPU that it plays to use."""
    text = generate_latest(_PROCESS).decode()
    text = re.sub(
        "(?m)^process_start_time_seconds .*", f"process_start_time_seconds {started_s}", text
    )
    return re.sub(
        r"(?m)^process_cpu_seconds_total (.*)",
        lambda found: f"process_cpu_seconds_total {float(found[1]) + spent_s}",
        text,
    )
