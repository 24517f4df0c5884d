"""When would vLLM have said each token? A model of V1's continuous batching, in time the caller gives.

Token budget, chunked prefill, KV blocks, prefix cache, queue and preemption by vLLM's rules; only the
seconds are invented. It reads no clock, opens nothing, and never sleeps: the caller plans a step, waits
its `duration_s`, finishes it, and repeats until `plan` returns None.
"""

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
    """One engine iteration: how long it takes and what it computes."""

    started_at: float
    duration_s: float
    sequences: int
    """Requests in the batch."""
    prefill_tokens: int
    """Tokens of prompts, and of preempted requests that are computed again."""
    decode_tokens: int
    """Requests that get just their next token."""


class Engine:
    """One engine core. Submit and abort at any time; one step at a time is planned and finished."""

    preemptions_total: int
    """Counted when they happen. A real server shows them when the request speaks again."""
    prefix_queries_total: int
    """Tokens looked up, once a request, at its first scheduling."""
    prefix_hits_total: int
    prompt_tokens_total: int
    """Tokens of prompts whose first token is out, cached ones included."""
    prompt_tokens_cached_total: int
    """The part of them that came from the prefix cache."""
    generation_tokens_total: int
    steps_total: int
    iteration_tokens: int
    """What `vllm:iteration_tokens_total` observes for the last finished step: prompts completed plus
    tokens said (0.32.0's rule: a recomputed token counts nowhere)."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config

    @property
    def running(self) -> int:
        """Requests in the execution batch."""
        raise NotImplementedError

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        raise NotImplementedError

    @property
    def kv_usage(self) -> float:
        """Share of usable KV blocks that running requests hold, 0 to 1; merely cached blocks are free."""
        raise NotImplementedError

    def submit(self, request: EngineRequest) -> None:
        """Queue a request. Raises ValueError on an id that is alive, or nothing to read or to say."""
        raise NotImplementedError

    def abort(self, request_id: str, now: float) -> Finished | None:
        """Drop a request wherever it is; None if it is not here (any more)."""
        raise NotImplementedError

    def plan(self, now: float) -> Step | None:
        """Schedule one iteration; None when there is nothing to do until the next submit.

        Raises RuntimeError while a planned step is unfinished.
        """
        raise NotImplementedError

    def finish(self, step: Step, now: float) -> list[Progress]:
        """End the planned step: every request in it that is fully computed says one token."""
        raise NotImplementedError
