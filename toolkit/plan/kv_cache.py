"""How much KV cache a request takes: bytes of a token and of a state, and the blocks that vLLM 0.32 makes of them. No I/O.

A *block* is what vLLM hands out: some tokens (or a state) of all layers of one *group*, a *page* for each. All groups draw from one pool,
so they have equally many layers and equally large pages. Sources: `v1/core/kv_cache_utils.py`, `v1/kv_cache_interface.py`.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from toolkit.errors import ToolkitError
from toolkit.plan.engine import EngineSettings, Version
from toolkit.plan.model_config import Attention, KvHeads, Latent, Recurrent, Shape
from toolkit.plan.weights import stages

ELEMENT_BYTES = {
    "float16": 2.0,
    "bfloat16": 2.0,
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "fp8_inc": 1.0,
    "int8_per_token_head": 1.0,
    "fp8_per_token_head": 1.0,
    "int4_per_token_head": 0.5,
    # half a byte and an 8-bit scale for each 16 elements
    "nvfp4": 0.5 + 1 / 16,
}
"""By `--kv-cache-dtype`; `auto` is the model's own."""
SCALE_BYTES = {name: 4 for name in ELEMENT_BYTES if name.endswith("_per_token_head")}
"""A float32 for each key and each value, beside it."""
PACKED_LATENT_BYTES = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
"""A whole token of one MLA layer, in formats of DeepSeek's own."""
KV_DTYPES = ("auto", *ELEMENT_BYTES, *PACKED_LATENT_BYTES)
BLOCK_SIZE = 16
"""Tokens, where nobody asks for another; vLLM's CPU has 128."""
MLA_BLOCK_SIZE = 64
"""FlashMLA's."""
MLA_HYBRID_STEP = 128
"""Blocks of a model of MLA and states are multiples of it."""
UNKNOWN_LENGTH = 4096
"""Tokens, where neither somebody nor the model tells a limit."""

TOKENS_BY_REQUESTS_FROM: Version = (0, 24)
"""From here on vLLM tells `kv_cache_size_tokens` among its metrics, and reckons it by whole requests."""

Kind = Literal["full", "sliding", "linear"]


# --- Bytes of a token and of a state ---------------------------------------------------------------------


def bytes_per_token(shape: Shape, settings: EngineSettings) -> int:
    """Bytes that one more token adds over all GPUs: in the layers that keep every token.

    Qwen2.5-7B: 28 layers x 2 (key and value) x 4 KV heads x 128 x 2 bytes = 57,344.
    """
    layers = [layer.attention for layer in shape.layers]
    growing = [one for one in layers if not (isinstance(one, KvHeads) and one.window is not None)]
    return sum(token_bytes(one, shape, settings) for one in growing) * settings.tp


def bytes_per_request(shape: Shape, settings: EngineSettings, tokens: float | None = None) -> int:
    """Bytes over all GPUs that do not grow with a request: its states, and its windows, full or with so many tokens in them."""
    total = 0
    for attention in (layer.attention for layer in shape.layers):
        if isinstance(attention, Recurrent):
            total += state_bytes(attention, shape, settings)
        elif isinstance(attention, KvHeads) and attention.window is not None:
            held = attention.window if tokens is None else min(attention.window, tokens)
            total += round(token_bytes(attention, shape, settings) * held)
    return total * settings.tp


def token_bytes(attention: Attention, shape: Shape, settings: EngineSettings) -> int:
    """Bytes of one token in one layer on one GPU; 0 where the layer keeps a state. Raises ToolkitError for an unknown dtype."""
    if isinstance(attention, Recurrent):
        return 0
    dtype = settings.kv_cache_dtype
    if isinstance(attention, Latent) and dtype in PACKED_LATENT_BYTES:
        return PACKED_LATENT_BYTES[dtype]
    element = shape.element_bytes if dtype == "auto" else ELEMENT_BYTES.get(dtype)
    if element is None and dtype in PACKED_LATENT_BYTES:
        raise ToolkitError(
            f"the KV cache dtype `{dtype}` is for models with MLA only",
            f"Others: {', '.join(('auto', *ELEMENT_BYTES))}",
        )
    if element is None:
        raise ToolkitError(
            f"no KV cache dtype that can be priced is called `{dtype}`",
            f"Known: {', '.join(KV_DTYPES)}",
        )
    if isinstance(attention, Latent):
        # not divided by the number of GPUs: each holds it whole
        return round(element * (attention.rank + attention.rope_dim))
    content = element * (attention.head_dim + attention.value_dim) + 2 * SCALE_BYTES.get(dtype, 0)
    # at least one KV head on each GPU, so that more GPUs than heads hold copies
    return round(max(1, attention.kv_heads // settings.tp) * content)


def state_bytes(state: Recurrent, shape: Shape, settings: EngineSettings) -> int:
    """Bytes of one request's state in one layer on one GPU, whatever its length; `--kv-cache-dtype` does not shrink it.

    Qwen3.5-35B-A3B: convolution (2 x 16 x 128 + 32 x 128) x 3 x 2 = 49,152, state 32 x 128 x 128 x 4 = 2,097,152.
    """
    tp, inputs = settings.tp, state.kernel - 1 + settings.spec_tokens
    channels = 2 * state.key_heads * state.key_dim + state.value_heads * state.value_dim
    convolution = channels // tp * inputs * shape.element_bytes
    recurrent = state.value_heads // tp * state.value_dim * state.key_dim * state.state_bytes
    return convolution + recurrent


# --- Blocks -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers that share one block table: vLLM's KV cache group."""

    kind: Kind
    layers: tuple[int, ...]
    """Their numbers."""
    block_size: int
    """Tokens; 0 where a block holds a state."""
    page_bytes: int
    """Of one of its layers, on one GPU; of a single group of unlike layers the mean."""
    max_blocks: int | None = None
    """A request never holds more, however long; None: there is no limit."""
    max_blocks_in_decode: int | None = None
    """The same once its prompt is computed: a window frees what it has passed."""

    def blocks_for(self, tokens: int, limit: int | None) -> int:
        """Blocks that so many tokens take, up to a limit; states take all of theirs at once."""
        if self.kind == "linear":
            return limit or 0
        needed = -(-tokens // self.block_size)
        return needed if limit is None else min(needed, limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One engine's KV cache."""

    block_size: int
    """Tokens, as vLLM reports it: hybrids' are enlarged until a block holds a state."""
    bytes_per_block: int
    """On one GPU; of a pipeline on the fullest stage."""
    groups: tuple[LayerGroup, ...]
    max_model_len: int
    has_states: bool

    def blocks_to_begin(self, tokens: int) -> int:
        """Blocks that must be free before vLLM admits a request of so many tokens: windows at their largest, during prefill."""
        return sum(group.blocks_for(tokens, group.max_blocks) for group in self.groups)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that a request of so many tokens, prompt and answer, holds at its end."""
        return sum(group.blocks_for(tokens, group.max_blocks_in_decode) for group in self.groups)

    @property
    def blocks_for_longest(self) -> int:
        """Blocks that vLLM reckons with for a request of `max_model_len`: of a window always the most that it may hold."""
        return sum(
            group.max_blocks or group.blocks_for(self.max_model_len, None) for group in self.groups
        )

    def blocks_in(self, kv_bytes: int) -> int:
        """Blocks that so many bytes of one GPU make: `num_gpu_blocks`. One of them is reserved, and holds nothing."""
        return max(0, kv_bytes) // self.bytes_per_block

    def fits_longest(self, blocks: int) -> bool:
        """Whether one request of `max_model_len` fits: vLLM refuses to start where not."""
        return self.blocks_for_longest <= blocks - 1

    def reported_concurrency(self, blocks: int) -> float:
        """As in vLLM's `Maximum concurrency for L tokens per request`, which counts the reserved block in."""
        return blocks / max(1, self.blocks_for_longest)

    def reported_tokens(self, blocks: int, version: Version) -> int:
        """As in vLLM's `KV cache size: N tokens`: what that many requests of `max_model_len` add up to.

        Before 0.24 of several groups: the tokens of blocks dealt out evenly. gemma-3-27b on an H100 with 0.19: 15,999 blocks
        for 7 groups are 2,285 x 16 = 36,560.
        """
        sizes = [group.block_size for group in self.groups if group.block_size]
        if version < TOKENS_BY_REQUESTS_FROM and len(self.groups) > 1 and sizes:
            return blocks // len(self.groups) * min(sizes)
        return int(self.reported_concurrency(blocks) * self.max_model_len)


class _LayerSpec(NamedTuple):
    """One layer's part of a block. Layers with equal ones may share a group."""

    kind: Kind
    page_bytes: int
    block_size: int
    dims: tuple[int, ...]
    """Heads and their width: layers that differ in them are unlike even with pages of equal size."""
    window: int | None = None


def layout(shape: Shape, settings: EngineSettings) -> Layout:
    """Lay the cache out as vLLM does. Raises ToolkitError when `tp` or `pp` cannot divide the model."""
    refuse_impossible(shape, settings)
    max_model_len = settings.max_model_len or shape.max_positions or UNKNOWN_LENGTH
    layers = [layer.attention for layer in shape.layers]
    states = [state_bytes(one, shape, settings) for one in layers if isinstance(one, Recurrent)]
    tokens = [token_bytes(one, shape, settings) for one in layers if not isinstance(one, Recurrent)]

    # block size: as asked for; of a hybrid so many tokens more that a layer's page holds a state: of Qwen3.5-35B-A3B
    # 2,146,304 / 2,048 = 1,048 tokens, in steps of 16: 1,056 (`platforms/interface.py`)
    is_mla = any(isinstance(one, Latent) for one in layers)
    block_size = settings.block_size or (MLA_BLOCK_SIZE if is_mla else BLOCK_SIZE)
    if states and tokens:
        step = max(block_size, MLA_HYBRID_STEP) if is_mla else block_size
        block_size = step * -(-max(states) // (step * tokens[0]))

    specs = []
    for one in layers:
        page_bytes = token_bytes(one, shape, settings) * block_size
        if isinstance(one, Recurrent):
            specs.append(_LayerSpec("linear", state_bytes(one, shape, settings), 0, ()))
        elif isinstance(one, Latent):
            specs.append(_LayerSpec("full", page_bytes, block_size, (0, one.rank, one.rope_dim)))
        else:
            kind: Kind = "full" if one.window is None else "sliding"
            dims = (one.kv_heads, one.head_dim)
            specs.append(_LayerSpec(kind, page_bytes, block_size, dims, one.window))

    # groups: layers that all need the same blocks are a single one, however large their pages
    members = [tuple(range(len(specs)))]
    unlike = set(specs) if states else {(spec.kind, spec.window) for spec in specs}
    if len(unlike) > 1:
        # smaller pages take more tokens where that comes out even, else they are padded
        largest = max(spec.page_bytes for spec in specs)
        for index, spec in enumerate(specs):
            times = 1 if largest % spec.page_bytes else largest // spec.page_bytes
            specs[index] = spec._replace(page_bytes=largest, block_size=spec.block_size * times)
        # as many layers in each group as the rarest kind has; or as the commonest has, where that is less than half as
        # many again: 12 with a window and 13 full become 13 and 13
        layers_of: dict[_LayerSpec, list[int]] = {}
        for index, spec in enumerate(specs):
            layers_of.setdefault(spec, []).append(index)
        counts = [len(alike) for alike in layers_of.values()]
        group_size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
        members = []
        for alike in layers_of.values():
            count = -(-len(alike) // group_size)
            members += [tuple(alike[first::count]) for first in range(count)]

    # the most blocks that a request can hold of each group
    groups = []
    for indices in members:
        spec = specs[indices[0]]
        in_prefill = in_decode = None
        if spec.kind == "linear":
            # with prefix caching a second state, at the end of the last whole block
            in_prefill = in_decode = (2 if settings.prefix_caching else 1) + settings.spec_tokens
        elif spec.window is not None:
            # what it looks back and what is being computed, in decode only the tokens of its own next steps; and one block
            # more, as a window seldom begins where a block does
            next_steps = settings.batches * (1 + settings.spec_tokens)
            in_prefill, in_decode = (
                -(-min(spec.window - 1 + computed, max_model_len) // spec.block_size) + 1
                for computed in (settings.batches * settings.batched_tokens, next_steps)
            )
        group = LayerGroup(
            kind=spec.kind,
            layers=indices,
            block_size=spec.block_size,
            page_bytes=sum(specs[index].page_bytes for index in indices) // len(indices),
            max_blocks=in_prefill,
            max_blocks_in_decode=in_decode,
        )
        groups.append(group)

    return Layout(
        block_size=block_size,
        # a page for each layer of the fullest group, on the fullest stage
        bytes_per_block=max(
            sum(specs[index].page_bytes for index in group.layers if index in stage)
            for stage in stages(len(specs), settings.pp)
            for group in groups
        ),
        groups=tuple(groups),
        max_model_len=max_model_len,
        has_states=bool(states),
    )


def refuse_impossible(shape: Shape, settings: EngineSettings) -> None:
    """Raise ToolkitError where vLLM would not start: more stages than layers, or sizes that `tp` does not divide."""
    if settings.pp > len(shape.layers):
        raise ToolkitError(
            f"`{shape.name}` has {len(shape.layers)} layers, too few for {settings.pp} stages",
            "Lower --pipeline-parallel-size",
        )
    for layer in shape.layers:
        one = layer.attention
        if isinstance(one, Recurrent):
            divided = [(one.key_heads, "heads of keys"), (one.value_heads, "heads of values")]
        else:
            divided = [(one.heads, "heads")]
        if isinstance(one, KvHeads) and settings.tp % one.kv_heads:
            # else they may be copied
            divided.append((one.kv_heads, "KV heads"))
        divided.append((layer.mlp.width, "columns of an MLP"))
        divided.append((layer.mlp.shared_width, "columns of a shared expert"))
        for count, what in divided:
            if count % settings.tp:
                raise ToolkitError(
                    f"{count} {what} of `{shape.name}` cannot be divided among {settings.tp} GPUs",
                    "Choose a --tensor-parallel-size that divides them",
                )
