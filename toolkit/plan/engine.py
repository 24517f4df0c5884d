"""What is asked of a plan: which GPU, which vLLM, started how. Plain records."""

import re
from dataclasses import dataclass

Version = tuple[int, ...]
"""E.g., (0, 17, 1)."""
NEWEST: Version = (0, 33, 0)


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
    """How the engine is started. None: as recommended."""

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


PLAIN = EngineSettings()


def version_of(text: str | None) -> Version | None:
    """Read `0.17.1`, `v0.17.1rc2` or `0.32.0+cpu`; None for what is no version."""
    found = re.match(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?!\d)", text or "")
    return tuple(int(part) for part in found.groups() if part is not None) if found else None
