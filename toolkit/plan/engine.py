"""What is asked of a plan: which model, GPU and vLLM, started how, for which requests. Plain records."""

import re
from dataclasses import dataclass

from toolkit.plan.capacity import NO_LOAD, RequestLengths
from toolkit.plan.model_config import Shape

Version = tuple[int, ...]
"""E.g., (0, 17, 1)."""
NEWEST: Version = (0, 33, 0)
GRAPHS_COUNT_FROM: Version = (0, 20)
"""From here on vLLM takes the graphs' memory out of the KV cache's; before, they lived in what utilization leaves over."""
ASYNCHRONOUS_FROM: Version = (0, 14)
"""vLLM schedules the next batch before the last one is done: one more is in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, or one slice of one."""

    name: str
    memory_bytes: int
    """What the driver offers to programs."""
    bandwidth_bytes_s: float | None = None
    fp8: bool | None = None
    """Whether it computes in 8-bit floats; None: not known."""
    is_a100: bool = False
    """vLLM's own defaults treat it as a small GPU."""
    is_slice: bool = False
    """Of a GPU cut into parts (MIG): a process sees one slice, so that no engine spans two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How the engine is started. None: as vLLM does by itself; of a plan that is asked for: as recommended."""

    tp: int = 1
    pp: int = 1
    kv_cache_dtype: str = "auto"
    version: Version = NEWEST
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    block_size: int | None = None
    """Tokens; None: as vLLM chooses."""
    prefix_caching: bool = True
    spec_tokens: int = 0
    eager: bool = False
    """Without CUDA graphs."""
    overhead_bytes: int | None = None
    """Of one GPU, beside weights and KV cache; None: estimated."""

    @property
    def gpus(self) -> int:
        """Of the whole engine."""
        return self.tp * self.pp

    @property
    def seqs(self) -> int:
        """`max_num_seqs`, else what vLLM takes on a small GPU."""
        return self.max_num_seqs or 256

    @property
    def batched_tokens(self) -> int:
        """`max_num_batched_tokens`, else what vLLM takes on a small GPU."""
        return self.max_num_batched_tokens or 2048

    @property
    def utilization(self) -> float:
        """As asked for, else the version's default."""
        if self.gpu_memory_utilization is not None:
            return self.gpu_memory_utilization
        return 0.92 if self.version >= GRAPHS_COUNT_FROM else 0.9

    @property
    def batches(self) -> int:
        """In flight at once: one a stage, and with asynchronous scheduling one more."""
        return self.pp + (self.version >= ASYNCHRONOUS_FROM)


PLAIN = EngineSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuestion:
    """One model on one machine, whatever the quantization."""

    shape: Shape
    gpu: Gpu
    on_disk: int | None = None
    """Bytes of the files, in the quantization that the config tells of."""
    settings: EngineSettings = PLAIN
    load: RequestLengths = NO_LOAD
    seconds_per_request: float | None = None
    """As measured."""
    target_rps: float | None = None
    """At the peak."""


def version_of(text: str | None) -> Version | None:
    """Read `0.17.1`, `v0.17.1rc2` or `0.32.0+cpu`; None for what is no version."""
    found = re.match(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?!\d)", text or "")
    return tuple(int(part) for part in found.groups() if part is not None) if found else None
