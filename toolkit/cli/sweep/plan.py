"""What the planner says against a configuration of a sweep, before minutes are spent on its start.

It skips only what it knows not to fit. A model that the catalog does not know, or a flag that it cannot read, is tried.
"""

from collections.abc import Callable

from toolkit.errors import ToolkitError
from toolkit.plan.catalog import gpu_of, model_of
from toolkit.plan.engine import EngineSettings, Gpu
from toolkit.plan.planner import plan
from toolkit.tuning.sweep_file import Configuration, Serving, SweepPlan

WHOLE = {
    "max-model-len": "max_model_len",
    "max-num-seqs": "max_num_seqs",
    "max-num-batched-tokens": "max_num_batched_tokens",
    "tensor-parallel-size": "tp",
    "pipeline-parallel-size": "pp",
    "block-size": "block_size",
}
"""Flags of vLLM that are whole numbers, and how the planner calls them."""


def impossible_on(swept: SweepPlan) -> Callable[[Configuration], str | None]:
    """Ask the planner whether a configuration fits the sweep's GPU. Raises ToolkitError for a GPU that nobody knows."""
    gpu = gpu_of(swept.machine.gpu or "")

    def impossible(one: Configuration) -> str | None:
        word = swept.machine.model or one.serving.model
        if not word or one.serving.tiny:
            return None
        try:
            return _against(word, gpu, one.serving, swept.machine.gpus)
        except (ToolkitError, ValueError):
            return None

    return impossible


def _against(word: str, gpu: Gpu, serving: Serving, gpus: int) -> str | None:
    known = model_of(word)
    settings = settings_of(serving, gpus)
    found = plan(
        known.shape,
        gpu,
        quantization=serving.quantization,
        on_disk=None if serving.quantization else known.on_disk,
        settings=settings,
    )
    if found.fits:
        return None
    length = (
        f"max-model-len {settings.max_model_len:,}" if settings.max_model_len else "one request"
    )
    return (
        f"{found.weights_gib:.1f} GiB of weights ({found.quantization}) leave {found.kv_budget_gib:.1f} GiB "
        f"for the KV cache on {found.gpus} x {found.gpu}, too little for {length}"
    )


def settings_of(serving: Serving, gpus: int = 1) -> EngineSettings:
    """A configuration's flags in the planner's words. Raises ValueError for one that is no number."""
    flags = dict(serving.flags)
    told: dict[str, object] = {"tp": gpus}
    for flag, name in WHOLE.items():
        if flag in flags:
            told[name] = int(flags[flag])
    if "gpu-memory-utilization" in flags:
        told["gpu_memory_utilization"] = float(flags["gpu-memory-utilization"])
    if "kv-cache-dtype" in flags:
        told["kv_cache_dtype"] = str(flags["kv-cache-dtype"])
    if flags.get("enable-prefix-caching") is False or "no-enable-prefix-caching" in flags:
        told["prefix_caching"] = False
    return EngineSettings(**told)  # type: ignore[arg-type]
