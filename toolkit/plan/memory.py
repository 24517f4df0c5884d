"""One GPU's memory under one choice of flags: vLLM's budget before it is started, and the KV cache that it leaves for requests.

Weights are known; context, activations and graphs are estimates until a server has told: see each one's docstring. It chooses
nothing.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass, replace

from toolkit.plan.capacity import held
from toolkit.plan.engine import GRAPHS_COUNT_FROM, EngineSettings, Version
from toolkit.plan.kv_cache import Layout, layout
from toolkit.plan.model_config import Shape
from toolkit.units import GIB

MIB = 2**20

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One GPU's memory, in bytes, and the KV cache that the engine has in it."""

    requested: int
    """ceil(all of it x gpu-memory-utilization): what vLLM may use."""
    weights: int
    context: int
    """CUDA's own, and what GPUs talk to each other with."""
    activations: int
    graphs: int
    """Subtracted only from version 0.20 on; before, it has to fit into what is not requested."""
    kv: int
    """What is left; below 0: the weights do not fit."""
    cache: Layout
    notes: tuple[str, ...] = ()

    @property
    def blocks(self) -> int:
        """As vLLM would report them; one is reserved."""
        return self.cache.blocks_in(self.kv)

    @property
    def fits(self) -> bool:
        """Whether the engine would start: the weights, and one request of full length."""
        return self.kv > 0 and self.cache.fits_longest(self.blocks)

    def at_once(self, tokens: float) -> int:
        """Requests of so many tokens in memory."""
        whole = math.ceil(tokens)
        each, begin = self.cache.blocks_for(whole), self.cache.blocks_to_begin(whole)
        return held(self.blocks, each, begin) if self.fits else 0


def memory_of(shape: Shape, gpu_bytes: int, weights: int, settings: EngineSettings) -> Memory:
    """Divide one GPU's bytes; `weights` are those of the fullest GPU.

    ceil(80 GiB x 0.92) - weights - context - activations - graphs is the KV cache's.
    """
    requested = math.ceil(gpu_bytes * settings.utilization)
    counted = settings.version >= GRAPHS_COUNT_FROM
    notes = []
    if settings.overhead_bytes is not None:
        # all of somebody's own figure counts as activations
        context, activations, graphs = 0, settings.overhead_bytes, 0
    else:
        # what vLLM's log calls non-torch memory
        alone_gib = 0.25 if settings.version >= (0, 18) else 0.13
        context = round((CONTEXT_OF_MANY_GIB if settings.tp > 1 else alone_gib) * GIB)
        activations = activation_bytes(shape, settings)
        graphs = graph_bytes(shape, settings)
        notes.append(
            "activations, graphs and CUDA's context are estimates: a server's log tells the real ones"
        )
    if not counted and graphs > gpu_bytes - requested:
        notes.append(
            "graphs need more than utilization leaves over, and this version does not count them: lower it"
        )
    return Memory(
        requested=requested,
        weights=weights,
        context=context,
        activations=activations,
        graphs=graphs,
        kv=requested - weights - context - activations - graphs * counted,
        cache=layout(shape, settings),
        notes=tuple(notes),
    )


def activation_bytes(shape: Shape, settings: EngineSettings) -> int:
    """The peak of vLLM's dummy run: an estimate from shapes.

    What goes from layer to layer, and the larger of what one layer makes of `max-num-batched-tokens` tokens and what the
    sampler makes of the logits of `max-num-seqs` requests; experts' workspace stays beside both. Not divided by GPUs but for
    layers' widths: each has all the logits.
    """
    tokens = settings.batched_tokens * 2
    # elements that one layer makes of a token on one GPU beside what comes in, and that experts' kernels reserve for it
    inside = workspace = 0
    for mlp in (layer.mlp for layer in shape.layers):
        width = mlp.width // settings.tp
        of_one = 0 if mlp.experts else 3 * mlp.width // settings.tp
        inside = max(inside, 3 * shape.hidden + of_one)
        used = min(mlp.experts, mlp.experts_used)
        workspace = max(workspace, used * (max(2 * width, shape.hidden) + width))
    requests = min(settings.seqs, settings.batched_tokens)
    of_logit = LOGIT_BYTES if settings.version >= LEANER_FROM else LOGIT_BYTES_BEFORE
    logits = requests * shape.vocab * of_logit
    return tokens * (shape.hidden + workspace) + max(tokens * inside, logits)


def graph_bytes(shape: Shape, settings: EngineSettings) -> int:
    """Memory of the captured graphs: an estimate from 51 sizes on an H100 with vLLM 0.19 (the same source).

    gemma-3-27b told 1.05 GiB for 62 layers, gemma-2-27b 1.13 for 46, Llama-3.1-8B 0.84 for 32; this says 1.27, 1.01 and 0.78.
    """
    if settings.eager:
        return 0
    # the batch sizes that vLLM captures by default: 1, 2, 4, then in steps of 8 to 248, and of 16 beyond; for 256 sequences 51, up to 512
    seqs, batched = settings.seqs, settings.batched_tokens
    most = min(2 * seqs * (1 + settings.spec_tokens), 512, batched)
    sizes = {1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16), seqs, batched}
    captured = len([size for size in sizes if size <= most])
    return GRAPHS_POOL + captured * len(shape.layers) * MIB // 3


def longest_length(shape: Shape, settings: EngineSettings, kv_bytes: int) -> int:
    """The longest request that these bytes of one GPU hold, as `--max-model-len auto` finds it; 0: none."""

    def is_too_long(length: int) -> bool:
        cache = layout(shape, replace(settings, max_model_len=length))
        return not cache.fits_longest(cache.blocks_in(kv_bytes))

    return bisect_left(range(1, (shape.max_positions or 0) + 1), True, key=is_too_long)
