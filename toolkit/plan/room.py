"""What one choice of flags leaves for requests: the KV cache of one GPU in bytes and blocks. It chooses nothing."""

import math
from dataclasses import dataclass

from toolkit.plan.asked import EngineSettings, Gpu
from toolkit.plan.budget import Budget, MemorySetting, budget
from toolkit.plan.layout import (
    BATCHED_TOKENS,
    Layout,
    LayoutSetting,
    blocks_for,
    blocks_in,
    blocks_to_begin,
    fits_longest,
    layout,
    requests_at_once,
)
from toolkit.plan.shape import Shape

ASYNCHRONOUS_FROM = (0, 14)
"""vLLM schedules the next batch before the last one is done: one more is in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The KV cache of one engine."""

    budget: Budget
    """Of one GPU."""
    cache: Layout
    blocks: int
    """As vLLM would report them; one is reserved."""

    @property
    def fits(self) -> bool:
        """Whether the engine would start: the weights, and one request of full length."""
        return self.budget.kv > 0 and fits_longest(self.cache, self.blocks)

    def at_once(self, tokens: float) -> int:
        """Requests of so many tokens in memory."""
        return requests_at_once(self.cache, self.blocks, math.ceil(tokens)) if self.fits else 0

    def each(self, tokens: float) -> int:
        """Blocks of one of them, at its end."""
        return blocks_for(self.cache, math.ceil(tokens))

    def to_begin(self, tokens: float) -> int:
        """Blocks that must be free for one of them to begin."""
        return blocks_to_begin(self.cache, math.ceil(tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """The four flags that share memory out."""

    max_model_len: int
    max_num_seqs: int
    batched_tokens: int
    utilization: float


def room(shape: Shape, gpu: Gpu, weights: int, settings: EngineSettings, values: Values) -> Room:
    """Divide one GPU; `weights`: bytes on the fullest one."""
    memory = MemorySetting(
        utilization=values.utilization,
        batched_tokens=values.batched_tokens,
        max_num_seqs=values.max_num_seqs,
        tp=settings.tp,
        eager=settings.eager,
        spec_tokens=settings.spec_tokens,
        version=settings.version,
        overhead_bytes=settings.overhead_bytes,
    )
    spent = budget(gpu.memory_bytes, weights, shape, memory)
    cache = layout(shape, cache_setting(settings, values.max_model_len, values.batched_tokens))
    return Room(budget=spent, cache=cache, blocks=blocks_in(cache, spent.kv))


def cache_setting(
    settings: EngineSettings, max_model_len: int, batched_tokens: int
) -> LayoutSetting:
    """The part of the settings that blocks depend on."""
    return LayoutSetting(
        max_model_len=max_model_len,
        kv_dtype=settings.kv_cache_dtype,
        tp=settings.tp,
        pp=settings.pp,
        block_size=settings.block_size,
        prefix_caching=settings.prefix_caching,
        spec_tokens=settings.spec_tokens,
        batched_tokens=batched_tokens,
        concurrent_batches=None if settings.version >= ASYNCHRONOUS_FROM else settings.pp,
    )


def longest_length(
    shape: Shape, settings: EngineSettings, blocks_of: Room, batched_tokens: int
) -> int:
    """The longest request that these bytes hold, as `--max-model-len auto` finds it; 0: none."""
    low, high = 0, shape.max_positions or 0
    while low < high:
        middle = (low + high + 1) // 2
        cache = layout(shape, cache_setting(settings, middle, batched_tokens))
        if fits_longest(cache, blocks_in(cache, blocks_of.budget.kv)):
            low = middle
        else:
            high = middle - 1
    return low


def blocks_of_request(
    shape: Shape, settings: EngineSettings, max_model_len: int, tokens: float
) -> tuple[int, int, int]:
    """Tokens of a block, and blocks of one request at its end and to begin, of an engine whose memory is not known."""
    batched = settings.max_num_batched_tokens or BATCHED_TOKENS
    cache = layout(shape, cache_setting(settings, max_model_len, batched))
    whole = math.ceil(tokens)
    return cache.block_size, blocks_for(cache, whole), blocks_to_begin(cache, whole)
