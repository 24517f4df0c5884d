"""What the simulated engine is told and what it tells: plain records, no behaviour."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

Reason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What a server was started with, and how long its model takes. Raises ValueError on nonsense."""

    max_model_len: int = 8192
    max_num_seqs: int = 256
    """vLLM's default on an A100."""
    max_num_batched_tokens: int = 2048
    """Tokens one step may compute, prefill and decode together; vLLM's default on an A100."""
    block_size: int = 16
    num_gpu_blocks: int = 1024
    """One of them is vLLM's null block: `num_gpu_blocks - 1` can hold tokens."""
    prefix_caching: bool = True
    step_overhead_s: float = 0.012
    """Every step reads the weights once, however few tokens it computes."""
    prefill_s_per_token: float = 0.0001
    decode_s_per_sequence: float = 0.0001
    cold_s: float = 0.0
    """Added to the first step at each new power-of-two batch size: a CUDA graph is compiled."""
    jitter: float = 0.0
    """Each step takes between `1 - jitter` and `1 + jitter` times its nominal time, evenly spread."""
    time_scale: float = 1.0
    """Multiplies every step's time: 0.1 runs ten times as fast."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, not {getattr(self, name)}")
        if self.num_gpu_blocks < 2:
            raise ValueError("`num_gpu_blocks` must be at least 2: one is the null block")
        for name in _TIMES:
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"`{name}` must not be negative or endless, but is {getattr(self, name)}"
                )
        if self.jitter >= 1:
            raise ValueError(f"`jitter` must be below 1, not {self.jitter}")


_TIMES = (
    "step_overhead_s",
    "prefill_s_per_token",
    "decode_s_per_sequence",
    "cold_s",
    "jitter",
    "time_scale",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One sequence to generate. The caller decides beforehand what the model will say."""

    id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    output_ids: tuple[int, ...]
    """What the model says before it stops of itself; its last token is the one that ends the text."""
    arrived_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How one request went: what vLLM's per-request histograms observe."""

    id: str
    reason: Reason
    error: str | None = None
    """Why, in one sentence, where the reason is `error`."""
    arrived_at: float
    scheduled_at: float | None
    """First time it entered a step: 0.32.0 does not move it when a request is preempted. None: never."""
    first_token_at: float | None
    last_token_at: float | None
    ended_at: float
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens found in the prefix cache when it was first scheduled."""
    output_tokens: int
    max_tokens: int
    preemptions: int

    @property
    def computed_prompt_tokens(self) -> int:
        """`vllm:request_prefill_kv_computed_tokens`: recomputation after a preemption is not in it."""
        return self.prompt_tokens - self.cached_tokens


class Progress(NamedTuple):
    """What a finished step means for one request: a new token, its end, or both."""

    request_id: str
    output_tokens: int
    """Tokens said so far, the new one included: it is `output_ids[output_tokens - 1]`."""
    token_id: int | None
    """None when the request ended without a new token (an error)."""
    first_token: bool
    finished: Finished | None
    """Set when the request ended with this step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One engine iteration: how long it takes and what it computes.

    With no `sequences` it takes no time and only reports requests that can never fit.
    """

    started_at: float
    duration_s: float
    sequences: int
    """Requests in the batch."""
    prefill_tokens: int
    """Tokens of prompts, and of preempted requests that are computed again."""
    decode_tokens: int
    """Requests that get just their next token."""
