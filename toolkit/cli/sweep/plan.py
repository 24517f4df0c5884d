"""What the planner says against a configuration of a sweep, before minutes are spent on its start.

It skips only what it knows not to fit. A model that the catalog does not know, or a flag that it cannot read, is tried.
"""

from collections.abc import Callable

from toolkit.errors import ToolkitError
from toolkit.plan.catalog import gpu_of, model_of
from toolkit.plan.engine import EngineSettings, PlanQuestion
from toolkit.plan.planner import plan
from toolkit.tuning.sweep_file import Configuration, SweepPlan

WHOLE = {
    "max-model-len": "max_model_len",
    "max-num-seqs": "max_num_seqs",
    "max-num-batched-tokens": "max_num_batched_tokens",
    "tensor-parallel-size": "tp",
    "pipeline-parallel-size": "pp",
    "block-size": "block_size",
}
"""Flags of vLLM that are whole numbers, and how the planner calls them."""


def impossible_in(swept: SweepPlan, *, sim: bool) -> Callable[[Configuration], str | None]:
    """Why a configuration cannot fit the sweep's GPU; None: nothing is known against it.

    Raises ToolkitError for a GPU that nobody knows.
    """
    if swept.machine.gpu is None or sim:
        return lambda _: None
    gpu = gpu_of(swept.machine.gpu)

    def impossible(one: Configuration) -> str | None:
        serving, flags = one.serving, dict(one.serving.flags)
        word = swept.machine.model or serving.model
        if not word or serving.tiny:
            return None
        given: dict[str, object] = {"tp": swept.machine.gpus}
        try:
            given |= {name: int(flags[flag]) for flag, name in WHOLE.items() if flag in flags}
            if "gpu-memory-utilization" in flags:
                given["gpu_memory_utilization"] = float(flags["gpu-memory-utilization"])
            if "kv-cache-dtype" in flags:
                given["kv_cache_dtype"] = str(flags["kv-cache-dtype"])
            if flags.get("enable-prefix-caching") is False or "no-enable-prefix-caching" in flags:
                given["prefix_caching"] = False
            settings = EngineSettings(**given)  # type: ignore[arg-type]
            known = model_of(word)
            asked = PlanQuestion(
                shape=known.shape,
                gpu=gpu,
                on_disk=None if serving.quantization else known.on_disk,
                settings=settings,
            )
            found = plan(asked, serving.quantization)
        except (ToolkitError, ValueError):
            return None
        if found.fits:
            return None
        longest = settings.max_model_len
        length = f"max-model-len {longest:,}" if longest else "one request"
        return (
            f"{found.weights_gib:.1f} GiB of weights ({found.quantization}) leave {found.kv_budget_gib:.1f} GiB "
            f"for the KV cache on {found.gpus} x {found.gpu}, too little for {length}"
        )

    return impossible
