"""What the command line of `toolkit plan` said."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The command line of one plan, fields named as its options."""

    model: str | None
    gpu: str | None
    tensor_parallel: int
    pipeline_parallel: int
    quantization: tuple[str, ...]
    kv_cache_dtype: str
    vllm: str | None
    tokens: float | None
    prompt_tokens: float | None
    output_tokens: float | None
    longest: int | None
    workload: str | None
    run: tuple[str, ...]
    seconds_per_request: float | None
    calls: tuple[float, ...]
    idle: float | None
    target_rps: float | None
    gpu_hour: float | None
    api_price: tuple[float, float] | None
    host: str | None
    kv_only: bool
    batch: int | None
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    gpu_memory_utilization: float | None
    block_size: int | None
    prefix_caching: bool
    spec_tokens: int
    weights: int | None
    overhead: int | None
    names: bool
    as_json: bool
    database: Path
    insecure: bool
    ca: str | None
