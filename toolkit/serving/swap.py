"""What a swap of an engine changes, for whom its stored answers hold, and whether there is room for the new one beside it. It swaps nothing."""

from contextlib import suppress
from hashlib import sha256

import psutil

from toolkit.serving.engine import ManagedEngine
from toolkit.serving.preflight.gpu import gpus, parts
from toolkit.serving.preflight.memory import memory
from toolkit.serving.stack import EngineSetting
from toolkit.units import size

UTILIZATION = 0.92
"""vLLM's own since 0.20 (0.9 before): the higher one, as the lower leaves room in any case."""
SPARE_SHARE = 0.1
"""Of the machine's memory stays free for everybody else, where an engine runs on the CPU."""
SECRET = frozenset({"hf-token", "api-key"})
"""Flags whose values stand in no event: a board shows those to everybody."""
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


def meaning(setting: EngineSetting) -> str:
    """All of a setting that an answer depends on, as one word that tells nothing: variables may hold secrets."""
    flags = sorted((name, value) for name, value in setting.flags if name not in SAME_ANSWERS)
    env = sorted(setting.env)
    parts = (setting.kind, setting.model, setting.served_name, flags, env, setting.vllm)
    return sha256(repr(parts).encode()).hexdigest()


def words(was: EngineSetting, setting: EngineSetting) -> str:
    """What a swap changes, for an event."""
    if was.model != setting.model:
        return f"{was.model or was.kind} -> {setting.model or setting.kind}"
    if was.preset != setting.preset:
        return f"preset {was.preset or 'none'} -> {setting.preset or 'none'}"
    old, new = dict(was.flags), dict(setting.flags)
    changed = ", ".join(
        f"--{name}" if name in SECRET else f"--{name} {old.get(name, '-')} -> {new.get(name, '-')}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    )
    return changed or "the same settings"


def why_no_room(old: ManagedEngine, setting: EngineSetting) -> str | None:
    """Why a new engine cannot run beside the old one; None: it can, as far as anybody knows. It looks at GPUs and memory."""
    if setting.spare_port is None:
        return "the stack has no second port for it, which only a proxy could switch to"
    if setting.kind == "sim":
        return None
    seen = gpus(setting.gpus)
    if setting.kind == "tiny" or not seen.gpus:
        # on the CPU the new one will take about as much as the old one has
        now = memory()
        if old.process is None or now.free_bytes is None or now.total_bytes is None:
            return None
        taken = 0
        for one in old.process.members():
            with suppress(psutil.Error):
                taken += psutil.Process(one.pid).memory_info().rss
        if now.free_bytes - taken < SPARE_SHARE * now.total_bytes:
            return (
                f"the old engine takes {size(taken)} of memory, and {size(now.free_bytes)} are free"
            )
        return None
    wanted = UTILIZATION
    with suppress(ValueError):
        told = dict(setting.flags).get("gpu-memory-utilization", UTILIZATION)
        wanted = min(1.0, max(0.0, float(told)))
    for _, name, part in parts(seen):
        if part.free_bytes is None or part.total_bytes is None:
            continue
        if part.free_bytes < wanted * part.total_bytes:
            return (
                f"{name} has {size(part.free_bytes)} free, and vLLM claims"
                f" {size(wanted * part.total_bytes)} ({wanted:.0%} of it)"
            )
    return None
