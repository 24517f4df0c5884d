"""Bytes of the KV cache, and how vLLM cuts it into blocks: groups of layers, bytes of a block, blocks of a request. Version 0.32's rules.

All groups draw blocks from one pool. A block is one page for each layer of one group, so groups have equally many layers, and
pages are made equally large. Sources: `v1/core/kv_cache_utils.py`, `v1/kv_cache_interface.py`, `platforms/interface.py`.
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
    kinds = [layer.attention for layer in shape.layers]
    growing = [one for one in kinds if not (isinstance(one, KvHeads) and one.window is not None)]
    return sum(token_bytes(one, shape, settings) for one in growing) * settings.tp


def bytes_per_request(shape: Shape, settings: EngineSettings, tokens: float | None = None) -> int:
    """Bytes over all GPUs that a request takes beside that: one state a layer, and windows of so many tokens, None: full ones."""
    total = 0
    for one in (layer.attention for layer in shape.layers):
        if isinstance(one, Recurrent):
            total += state_bytes(one, shape, settings)
        elif isinstance(one, KvHeads) and one.window is not None:
            held = one.window if tokens is None else min(one.window, tokens)
            total += round(token_bytes(one, shape, settings) * held)
    return total * settings.tp


def token_bytes(one: Attention, shape: Shape, settings: EngineSettings) -> int:
    """Bytes of one token in one layer on one GPU. 0: the layer keeps a state instead. Raises ToolkitError."""
    if isinstance(one, Recurrent):
        return 0
    dtype = settings.kv_cache_dtype
    if isinstance(one, Latent) and dtype in PACKED_LATENT_BYTES:
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
    if isinstance(one, Latent):
        # not divided by the number of GPUs: each holds it whole
        return round(element * (one.rank + one.rope_dim))
    content = element * (one.head_dim + one.value_dim) + 2 * SCALE_BYTES.get(dtype, 0)
    # at least one KV head on each GPU, so that more GPUs than heads hold copies
    return round(max(1, one.kv_heads // settings.tp) * content)


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
    """Layers that share one table of blocks."""

    kind: Kind
    layers: tuple[int, ...]
    """Their numbers."""
    block_size: int
    """Tokens; of a state 0: one holds all of them."""
    page_bytes: int
    """Of one of its layers, on one GPU; of a single group of unlike layers the mean."""
    most_blocks: int | None = None
    """A request never holds more, however long; None: one that grows with it."""
    kept_blocks: int | None = None
    """The same once its prompt is read: a window frees what it has passed."""

    def held(self, tokens: int, most: int | None) -> int:
        """Blocks that so many tokens take, up to a limit; states take all of theirs at once."""
        if self.kind == "linear":
            return most or 0
        needed = -(-tokens // self.block_size)
        return needed if most is None else min(needed, most)


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
        """Blocks that must be free before vLLM admits a request of so many tokens: windows with what is in flight."""
        return sum(group.held(tokens, group.most_blocks) for group in self.groups)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that a request of so many tokens, prompt and answer, holds at its end."""
        return sum(group.held(tokens, group.kept_blocks) for group in self.groups)

    @property
    def longest_blocks(self) -> int:
        """Blocks that vLLM reckons with for a request of `max_model_len`: of a window always the most that it may hold."""
        return sum(
            group.most_blocks or group.held(self.max_model_len, None) for group in self.groups
        )

    def blocks_in(self, kv_bytes: int) -> int:
        """Blocks that so many bytes of one GPU make: `num_gpu_blocks`. One of them is reserved, and holds nothing."""
        return max(0, kv_bytes) // self.bytes_per_block

    def fits_longest(self, blocks: int) -> bool:
        """Whether one request of `max_model_len` fits: vLLM refuses to start where not."""
        return self.longest_blocks <= blocks - 1

    def reported_concurrency(self, blocks: int) -> float:
        """As in vLLM's `Maximum concurrency for L tokens per request`, which counts the reserved block in."""
        return blocks / max(1, self.longest_blocks)

    def reported_tokens(self, blocks: int, version: Version) -> int:
        """As in vLLM's `KV cache size: N tokens`: what that many requests of `max_model_len` add up to.

        Before 0.24 of several groups: the tokens of blocks dealt out evenly. gemma-3-27b on an H100 with 0.19: 15,999 blocks
        for 7 groups are 2,285 x 16 = 36,560.
        """
        sizes = [group.block_size for group in self.groups if group.block_size]
        if version < TOKENS_BY_REQUESTS_FROM and len(self.groups) > 1 and sizes:
            return blocks // len(self.groups) * min(sizes)
        return int(self.reported_concurrency(blocks) * self.max_model_len)


class _Page(NamedTuple):
    """One layer's part of a block. Equal ones may share a group."""

    kind: Kind
    size: int
    block_size: int
    form: tuple[int, ...]
    """What makes layers alike beside their bytes: heads and their width."""
    window: int | None = None


def layout(shape: Shape, settings: EngineSettings) -> Layout:
    """Lay the cache out. Raises ToolkitError when `tp` or `pp` cannot divide the model."""
    refuse_impossible(shape, settings)
    longest = settings.max_model_len or shape.max_positions or UNKNOWN_LENGTH
    kinds = [layer.attention for layer in shape.layers]
    latent = any(isinstance(one, Latent) for one in kinds)
    states = [state_bytes(one, shape, settings) for one in kinds if isinstance(one, Recurrent)]
    tokens = [token_bytes(one, shape, settings) for one in kinds if not isinstance(one, Recurrent)]

    # as asked for; of a hybrid so many tokens more that a layer's page holds a state: of Qwen3.5-35B-A3B
    # 2,146,304 / 2,048 = 1,048 tokens, in steps of 16: 1,056
    block_size = settings.block_size or (MLA_BLOCK_SIZE if latent else BLOCK_SIZE)
    if states and tokens:
        step = max(block_size, MLA_HYBRID_STEP) if latent else block_size
        block_size = step * -(-max(states) // (step * tokens[0]))

    pages = []
    for one in kinds:
        if isinstance(one, Recurrent):
            pages.append(_Page("linear", state_bytes(one, shape, settings), 0, ()))
            continue
        size = token_bytes(one, shape, settings) * block_size
        if isinstance(one, Latent):
            pages.append(_Page("full", size, block_size, (0, one.rank, one.rope_dim)))
        else:
            kind: Kind = "full" if one.window is None else "sliding"
            form = (one.kv_heads, one.head_dim)
            pages.append(_Page(kind, size, block_size, form, one.window))

    # layers that all need the same blocks are one group, however large their pages
    parts = [tuple(range(len(pages)))]
    alike = set(pages) if states else {(page.kind, page.window) for page in pages}
    if len(alike) > 1:
        # smaller pages take more tokens where that comes out even, else they are padded
        largest = max(page.size for page in pages)
        for index, page in enumerate(pages):
            more = 1 if largest % page.size else largest // page.size
            pages[index] = page._replace(size=largest, block_size=page.block_size * more)
        # as many layers in each group as the rarest kind has; or as the commonest has, where that is less than half as
        # many again: 12 with a window and 13 full become 13 and 13
        alike_layers = [
            [index for index, page in enumerate(pages) if page == kind]
            for kind in dict.fromkeys(pages)
        ]
        counts = [len(layers) for layers in alike_layers]
        each = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
        parts = []
        for layers in alike_layers:
            groups = -(-len(layers) // each)
            parts += [tuple(layers[first::groups]) for first in range(groups)]

    found = []
    for part in parts:
        page = pages[part[0]]
        most = kept = None
        if page.kind == "linear":
            # with prefix caching a second state, at the end of the last whole block
            most = kept = (2 if settings.prefix_caching else 1) + settings.spec_tokens
        elif page.window is not None:
            # what it looks back and what is being computed; of one that answers only the tokens of its own next steps; and one
            # block more, as a window seldom begins where a block does
            in_steps = settings.batches * (1 + settings.spec_tokens)
            most, kept = (
                -(-min(page.window - 1 + computed, longest) // page.block_size) + 1
                for computed in (settings.batches * settings.batched_tokens, in_steps)
            )
        group = LayerGroup(
            kind=page.kind,
            layers=part,
            block_size=page.block_size,
            page_bytes=sum(pages[index].size for index in part) // len(part),
            most_blocks=most,
            kept_blocks=kept,
        )
        found.append(group)
    return Layout(
        block_size=block_size,
        # a page for each layer of the fullest group, on the fullest stage
        bytes_per_block=max(
            sum(pages[index].size for index in part if index in stage)
            for stage in stages(len(pages), settings.pp)
            for part in parts
        ),
        groups=tuple(found),
        max_model_len=longest,
        has_states=bool(states),
    )


def refuse_impossible(shape: Shape, settings: EngineSettings) -> None:
    """As vLLM does when it starts."""
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
