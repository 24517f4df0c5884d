"""How the engine is started that `toolkit plan` plans for, as its command line tells."""

from toolkit.cli.plan.options import PlanOptions
from toolkit.errors import ToolkitError
from toolkit.plan.engine import NEWEST, EngineSettings, version_of


def settings_of(options: PlanOptions) -> EngineSettings:
    """How the engine is started, as the command line tells it."""
    version = NEWEST if options.vllm is None else version_of(options.vllm)
    if version is None:
        raise ToolkitError(
            f"`{options.vllm}` is no version of vLLM", "Write, e.g., `--vllm 0.17.1`"
        )
    return EngineSettings(
        tp=options.tensor_parallel,
        pp=options.pipeline_parallel,
        kv_cache_dtype=options.kv_cache_dtype,
        version=version,
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        gpu_memory_utilization=options.gpu_memory_utilization,
        block_size=options.block_size,
        prefix_caching=options.prefix_caching,
        spec_tokens=options.spec_tokens,
        overhead_bytes=options.overhead,
    )
