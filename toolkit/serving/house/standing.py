"""Where each engine of a stack stands, as status tells it; and which of its words could change an answer. It asks nobody."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from toolkit.serving.stack import EngineSetting

State = Literal["waiting", "starting", "warming", "up", "draining", "restarting", "down", "ended"]
"""waiting: for another engine on its GPU to be up. restarting: it fell, and is on its way back. down: nobody tries any more."""

SAME_ANSWERS = frozenset(
    """
    gpu-memory-utilization kv-cache-memory-bytes num-gpu-blocks-override block-size swap-space cpu-offload-gb
    kv-offloading-size kv-offloading-backend
    max-num-seqs max-num-batched-tokens max-num-partial-prefills max-num-queued-reqs max-num-queued-tokens
    enable-prefix-caching prefix-caching-hash-algo enable-chunked-prefill async-scheduling scheduling-policy
    performance-mode stream-interval api-server-count shutdown-timeout
    enforce-eager optimization-level compilation-config cudagraph-capture-sizes max-cudagraph-capture-size
    tensor-parallel-size pipeline-parallel-size data-parallel-size enable-expert-parallel
    distributed-executor-backend
    enable-log-requests disable-log-stats disable-uvicorn-access-log kv-cache-metrics uvicorn-log-level
    """.split()
)
"""Flags of how fast and how much at once. Rounding may differ by them as it does by the batch that a request falls into, on one
engine with one set of flags; nobody calls that another answer. What is not listed here counts as another model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One engine now; the keys of `toolkit serve status --json`."""

    name: str
    state: State
    why: str | None = None
    """Why it is down or restarting."""
    kind: str
    model: str
    served_name: str | None = None
    """What clients call the model, as far as that is known."""
    preset: str | None = None
    team: str | None = None
    gpus: str | None = None
    url: str
    port: int
    pid: int | None = None
    since: float
    """When it came into this state, wall clock, seconds since 1970."""
    restarts: int = 0
    """Since serve began, those by order included."""
    ready_s: float | None = None
    """From its last launch to /health."""
    kv_cache_tokens: int | None = None
    cold_ttft_ms: float | None = None
    warm_ttft_ms: float | None = None
    log: str


def answers_alike(one: EngineSetting, other: EngineSetting) -> bool:
    """Whether two settings give the same answers, so that what was stored of one may be given for the other."""
    return meaning(one) == meaning(other)


def meaning(setting: EngineSetting) -> str:
    """All of a setting that an answer depends on, as one word that tells nothing: variables may hold secrets."""
    flags = sorted((name, value) for name, value in setting.flags if name not in SAME_ANSWERS)
    parts = (
        setting.kind,
        setting.model,
        setting.served_name,
        flags,
        sorted(setting.env),
        setting.vllm,
    )
    return sha256(repr(parts).encode()).hexdigest()
