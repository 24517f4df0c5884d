"""One GPU's memory under one choice of flags: vLLM's budget before it is started, and the KV cache that it leaves for requests.

Weights are known; context, activations and graphs are estimates until a server has told: see each one's docstring. It chooses
nothing.
"""

import math
from dataclasses import dataclass

from toolkit.plan.engine import NEWEST, EngineSettings, Gpu, Version
from toolkit.plan.kv_cache import (
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
from toolkit.plan.model_config import Shape
from toolkit.units import GIB

MIB = 2**20

GRAPHS_COUNT_FROM: Version = (0, 20)
"""From here on vLLM takes the graphs' memory out of the KV cache's; before, they lived in what utilization leaves over."""

LEANER_FROM: Version = (0, 17)
"""From here on the dummy run's peak is less than half of what it was: Qwen3-14B 5.64 GiB in 0.16, 2.23 GiB in 0.17."""
LOGIT_BYTES = 15
"""Of one logit at the sampler's peak. It fits what vLLM 0.19 told on an H100 with 1024 sequences and 8192 tokens (public:
llm-d-planner, accuracy_report.md): Llama-3.1-8B 1.89 GiB, Qwen2.5-7B 2.21, gemma-2 3.62 to 3.66, phi-4 1.52; to 5 %."""
LOGIT_BYTES_BEFORE = 39
"""The same of Qwen3-14B in 0.16."""
GRAPHS_POOL = 250 * MIB
"""What the first of them takes."""
CONTEXT_OF_MANY_GIB = 2.1
"""Non-torch memory of each GPU where several share a layer; one alone has 0.13, from 0.18 on 0.25 (same source)."""
ASYNCHRONOUS_FROM = (0, 14)
"""vLLM schedules the next batch before the last one is done: one more is in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """One GPU's memory, in bytes."""

    total: int
    requested: int
    """ceil(total x gpu-memory-utilization): all that vLLM may use."""
    weights: int
    context: int
    """CUDA's own, and what GPUs talk to each other with."""
    activations: int
    graphs: int
    """Subtracted only from version 0.20 on; before, it has to fit into what is not requested."""
    kv: int
    """What is left; below 0: the weights do not fit."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySetting:
    """The settings that the budget depends on."""

    utilization: float | None = None
    """None: vLLM's default, 0.92 from 0.20 on, 0.9 before."""
    batched_tokens: int = 2048
    max_num_seqs: int = 256
    tp: int = 1
    eager: bool = False
    """`--enforce-eager`: no graphs."""
    spec_tokens: int = 0
    version: Version = NEWEST
    kv_bytes: int | None = None
    """`--kv-cache-memory-bytes`: goes before all else."""
    overhead_bytes: int | None = None
    """Somebody's own figure for context, activations and graphs together."""


def budget(total: int, weights: int, shape: Shape, setting: MemorySetting) -> Budget:
    """Divide one GPU's bytes; `weights` are those of one GPU.

    ceil(80 GiB x 0.92) - weights - context - activations - graphs is the KV cache's.
    """
    requested = math.ceil(total * utilization_of(setting))
    if setting.overhead_bytes is not None:
        # all of somebody's own figure counts as activations
        context, activations, graphs = 0, setting.overhead_bytes, 0
    else:
        context, activations = context_bytes(setting), activation_bytes(shape, setting)
        graphs = 0 if setting.eager else graph_bytes(shape, setting)
    counted = setting.version >= GRAPHS_COUNT_FROM
    left = requested - weights - context - activations - graphs * counted
    notes = []
    if setting.overhead_bytes is None:
        notes.append(
            "activations, graphs and CUDA's context are estimates: a server's log tells the real ones"
        )
    if not counted and graphs > total - requested:
        notes.append(
            "graphs need more than utilization leaves over, and this version does not count them: lower it"
        )
    if setting.kv_bytes is not None:
        notes.append("--kv-cache-memory-bytes goes before utilization")
    return Budget(
        total=total,
        requested=requested,
        weights=weights,
        context=context,
        activations=activations,
        graphs=graphs,
        kv=left if setting.kv_bytes is None else setting.kv_bytes,
        notes=tuple(notes),
    )


def utilization_of(setting: MemorySetting) -> float:
    """As asked for, else the version's default."""
    if setting.utilization is not None:
        return setting.utilization
    return 0.92 if setting.version >= GRAPHS_COUNT_FROM else 0.9


def context_bytes(setting: MemorySetting) -> int:
    """What vLLM's log calls non-torch memory."""
    if setting.tp > 1:
        return round(CONTEXT_OF_MANY_GIB * GIB)
    return round((0.25 if setting.version >= (0, 18) else 0.13) * GIB)


def activation_bytes(shape: Shape, setting: MemorySetting) -> int:
    """The peak of vLLM's dummy run: an estimate from shapes.

    What goes from layer to layer, and the larger of what one layer makes of `max-num-batched-tokens` tokens and what the
    sampler makes of the logits of `max-num-seqs` requests; experts' workspace stays beside both. Not divided by GPUs but for
    layers' widths: each has all the logits.
    """
    tokens = setting.batched_tokens * 2
    # elements that one layer makes of a token on one GPU beside what comes in, and that experts' kernels reserve for it
    inside = workspace = 0
    for mlp in (layer.mlp for layer in shape.layers):
        width = mlp.width // setting.tp
        of_one = 0 if mlp.experts else 3 * mlp.width // setting.tp
        inside = max(inside, 3 * shape.hidden + of_one)
        used = min(mlp.experts, mlp.experts_used)
        workspace = max(workspace, used * (max(2 * width, shape.hidden) + width))
    requests = min(setting.max_num_seqs, setting.batched_tokens)
    of_logit = LOGIT_BYTES if setting.version >= LEANER_FROM else LOGIT_BYTES_BEFORE
    logits = requests * shape.vocab * of_logit
    return tokens * (shape.hidden + workspace) + max(tokens * inside, logits)


def graph_bytes(shape: Shape, setting: MemorySetting) -> int:
    """Memory of the captured graphs: an estimate from 51 sizes on an H100 with vLLM 0.19 (the same source).

    gemma-3-27b told 1.05 GiB for 62 layers, gemma-2-27b 1.13 for 46, Llama-3.1-8B 0.84 for 32; this says 1.27, 1.01 and 0.78.
    """
    return GRAPHS_POOL + captured_sizes(setting) * len(shape.layers) * MIB // 3


def captured_sizes(setting: MemorySetting) -> int:
    """How many batch sizes vLLM captures by default: 1, 2, 4, then in steps of 8 to 248, and of 16 beyond.

    256 sequences: 51 sizes up to 512.
    """
    per_sequence = 1 + setting.spec_tokens
    most = min(2 * setting.max_num_seqs * per_sequence, 512, setting.batched_tokens)
    sizes = {1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)}
    sizes |= {setting.max_num_seqs, setting.batched_tokens}
    return len([size for size in sizes if size <= most])


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
