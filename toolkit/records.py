"""The facts that walk through the house: frozen records with units in their names.

A missing number is None, never 0 or -1. Standard library only; no I/O, no clock.
"""

from dataclasses import dataclass, field
from typing import Literal

Status = Literal["ok", "degraded", "down", "not_an_engine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One server that the user named: a line of hosts.txt or a URL on the command line."""

    name: str
    url: str
    """Base URL without a trailing slash, e.g., `http://10.0.0.4:8000`."""
    team: str | None = None
    model: str | None = None
    """The model the user expects there."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key; the key itself is never kept."""
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something a person should know about a host: a stable code and one sentence."""

    code: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One raw gauge or counter of a `/metrics` page, as the host wrote it."""

    name: str
    labels: tuple[tuple[str, str], ...]
    """Sorted (name, value) pairs."""
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What one look at one host saw. Field names are the keys of `toolkit scout --json`."""

    name: str
    url: str
    at: float
    """Wall clock of the looking machine, seconds since 1970."""
    status: Status
    error: str | None = None
    """Why the status is not `ok`, in one sentence."""
    latency_ms: float | None = None
    """Send to response headers of a small page, asked while the looking machine was idle."""
    engine: str | None = None
    """`vllm`, `sglang`, `tgi`, `llama.cpp`, `trtllm`, `litellm`, `production-stack-router`."""
    dialect: str | None = None
    """How it spells its metrics: `v0`, `v1` or `rust` for vLLM, else the engine's name."""
    version: str | None = None
    model: str | None = None
    """The first served model's name."""
    models: tuple[str, ...] = ()
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    cache_dtype: str | None = None
    block_size: int | None = None
    num_gpu_blocks: int | None = None
    swap_space_gib: float | None = None
    kv_cache_tokens: int | None = None
    """Tokens the whole host can keep, all data-parallel engines together."""
    kv_cache_max_concurrency: float | None = None
    """Requests of full model length that fit, all data-parallel engines together."""
    engines: int | None = None
    """Data-parallel engines behind this one address."""
    prefix_caching: bool | None = None
    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None
    """Share of KV blocks in use, 0 to 1, mean over engines."""
    prefix_hit_ratio: float | None = None
    """Tokens found in the prefix cache / tokens looked up: since start, or between two looks."""
    preemptions_total: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    requests_total: float | None = None
    """Requests that ended, whatever the reason."""
    ttft_p50_ms: float | None = None
    ttft_p50_below_ms: float | None = None
    """Set instead of the quantile when it sits in the first bucket: it is at most this."""
    ttft_p50_above_ms: float | None = None
    """Set instead of the quantile when it sits in the last bucket: it is more than this."""
    ttft_p95_ms: float | None = None
    ttft_p95_below_ms: float | None = None
    ttft_p95_above_ms: float | None = None
    queue_mean_ms: float | None = None
    requests_per_s: float | None = None
    """Requests ended between two looks / seconds between them; only with `--interval`."""
    output_tokens_per_s: float | None = None
    interval_s: float | None = None
    """Seconds between the two looks that the rates and quantiles describe; None: since start."""
    config_hash: str | None = None
    """Equal hashes mean equal settings; measured sizes and counters are left out."""
    started_at: float | None = None
    """When the serving process started, seconds since 1970 by the host's clock."""
    findings: tuple[Finding, ...] = ()
    readings: tuple[Reading, ...] = field(default=(), repr=False)
    """Raw gauges and counters, for the store; never printed by scout."""
