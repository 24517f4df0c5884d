"""Bytes of the KV cache, and how vLLM cuts it into blocks: groups of layers, bytes of a block, blocks of a request. Version 0.32's rules.

All groups draw blocks from one pool. A block is one page for each layer of one group, so groups have equally many layers, and
pages are made equally large. Sources: `v1/core/kv_cache_utils.py`, `v1/kv_cache_interface.py`, `platforms/interface.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from toolkit.errors import ToolkitError
from toolkit.plan.engine import NEWEST, EngineSettings, Version
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


def bytes_per_token(shape: Shape, kv_dtype: str = "auto", tp: int = 1) -> int:
    """Bytes that one more token adds on one GPU of `tp`: over the layers that keep every token.

    Qwen2.5-7B: 28 layers x 2 (key and value) x 4 KV heads x 128 x 2 bytes = 57,344.
    """
    return sum(
        layer_bytes(one, shape.element_bytes, kv_dtype, tp)
        for one in (layer.attention for layer in shape.layers)
        if not (isinstance(one, KvHeads) and one.window is not None)
    )


def layer_bytes(attention: Attention, element_bytes: int, kv_dtype: str, tp: int) -> int:
    """Bytes of one token in one layer on one GPU. 0: the layer keeps a state instead."""
    if isinstance(attention, Recurrent):
        return 0
    if isinstance(attention, Latent):
        # not divided by the number of GPUs: each holds it whole
        if kv_dtype in PACKED_LATENT_BYTES:
            return PACKED_LATENT_BYTES[kv_dtype]
        return round(_element(element_bytes, kv_dtype) * (attention.rank + attention.rope_dim))
    one = _element(element_bytes, kv_dtype)
    content = one * (attention.head_dim + attention.value_dim) + 2 * SCALE_BYTES.get(kv_dtype, 0)
    # at least one KV head on each GPU, so that more GPUs than heads hold copies
    return round(max(1, attention.kv_heads // tp) * content)


def state_bytes(shape: Shape, tp: int = 1, *, spec_tokens: int = 0) -> int:
    """Bytes that each request keeps on one GPU whatever its length, once: over the layers with a recurrent state.

    `--kv-cache-dtype` does not shrink them.
    """
    return sum(
        layer_state_bytes(layer.attention, shape.element_bytes, tp, spec_tokens)
        for layer in shape.layers
        if isinstance(layer.attention, Recurrent)
    )


def layer_state_bytes(state: Recurrent, element_bytes: int, tp: int, spec_tokens: int = 0) -> int:
    """Bytes of one request's state in one layer on one GPU.

    Qwen3.5-35B-A3B: convolution (2 x 16 x 128 + 32 x 128) x 3 x 2 = 49,152, state 32 x 128 x 128 x 4 = 2,097,152.
    """
    channels = 2 * state.key_heads * state.key_dim + state.value_heads * state.value_dim
    convolution = channels // tp * (state.kernel - 1 + spec_tokens) * element_bytes
    recurrent = state.value_heads // tp * state.value_dim * state.key_dim * state.state_bytes
    return convolution + recurrent


def _element(element_bytes: int, kv_dtype: str) -> float:
    if kv_dtype == "auto":
        return element_bytes
    if kv_dtype in ELEMENT_BYTES:
        return ELEMENT_BYTES[kv_dtype]
    if kv_dtype in PACKED_LATENT_BYTES:
        raise ToolkitError(
            f"the KV cache dtype `{kv_dtype}` is for models with MLA only",
            f"Others: {', '.join(('auto', *ELEMENT_BYTES))}",
        )
    raise ToolkitError(
        f"no KV cache dtype that can be priced is called `{kv_dtype}`",
        f"Known: {', '.join(KV_DTYPES)}",
    )


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
    full_blocks: int
    """Blocks that vLLM reckons with for a request of `max_model_len`."""
    most_blocks: int | None = None
    """A request never holds more, however long; None: one that grows with it."""
    kept_blocks: int | None = None
    """The same once its prompt is read: a window frees what it has passed."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _BlockPart:
    """One layer's part of a block."""

    kind: Kind
    size: int
    block_size: int
    form: tuple[int, ...]
    """What makes layers alike beside their bytes: heads and their width."""
    window: int | None = None


def layout(shape: Shape, setting: EngineSettings) -> Layout:
    """Lay the cache out. Raises ToolkitError when `tp` or `pp` cannot divide the model."""
    _refuse_impossible(shape, setting)
    longest = setting.max_model_len or shape.max_positions or UNKNOWN_LENGTH
    block_size = _block_size(shape, setting)
    pages = [_page(shape, layer.attention, setting, block_size) for layer in shape.layers]
    # whether all layers need the same blocks: then they are one group, however large their pages
    has_states = any(page.kind == "linear" for page in pages)
    is_uniform = len({(page.kind, page.window) for page in pages}) == 1
    if has_states:
        is_uniform = len(set(pages)) == 1
    parts = [tuple(range(len(pages)))]
    if not is_uniform:
        # smaller pages take more tokens where that comes out even, else they are padded
        largest = max(page.size for page in pages)
        for place, page in enumerate(pages):
            more = 1 if largest % page.size else largest // page.size
            pages[place] = replace(page, size=largest, block_size=page.block_size * more)
        parts = _parts(pages)

    groups = []
    in_steps = setting.batches * (1 + setting.spec_tokens)
    for part in parts:
        page = pages[part[0]]
        most = kept = None
        if page.kind == "linear":
            # with prefix caching a second state, at the end of the last whole block
            most = kept = (2 if setting.prefix_caching else 1) + setting.spec_tokens
        elif page.window is not None:
            # what it looks back and what is being computed; of one that answers only the tokens of its own next steps; and one
            # block more, as a window seldom begins where a block does
            most, kept = (
                -(-min(page.window - 1 + tokens, longest) // page.block_size) + 1
                for tokens in (setting.batches * setting.batched_tokens, in_steps)
            )
        full = -(-longest // page.block_size) if page.block_size else 0
        group = LayerGroup(
            kind=page.kind,
            layers=part,
            block_size=page.block_size,
            page_bytes=sum(pages[index].size for index in part) // len(part),
            full_blocks=full if most is None else most,
            most_blocks=most,
            kept_blocks=kept,
        )
        groups.append(group)

    return Layout(
        block_size=block_size,
        # a page for each layer of the fullest group, on the fullest stage
        bytes_per_block=max(
            sum(pages[index].size for index in part if index in stage)
            for stage in stages(len(pages), setting.pp)
            for part in parts
        ),
        groups=tuple(groups),
        max_model_len=longest,
        has_states=has_states,
    )


def _page(shape: Shape, one: Attention, setting: EngineSettings, block_size: int) -> _BlockPart:
    if isinstance(one, Recurrent):
        state = layer_state_bytes(one, shape.element_bytes, setting.tp, setting.spec_tokens)
        return _BlockPart(kind="linear", size=state, block_size=0, form=())
    token = layer_bytes(one, shape.element_bytes, setting.kv_cache_dtype, setting.tp)
    window = one.window if isinstance(one, KvHeads) else None
    kind: Kind = "full" if window is None else "sliding"
    form = (0, one.rank, one.rope_dim) if isinstance(one, Latent) else (one.kv_heads, one.head_dim)
    size = token * block_size
    return _BlockPart(kind=kind, size=size, block_size=block_size, form=form, window=window)


def _parts(pages: Sequence[_BlockPart]) -> list[tuple[int, ...]]:
    """The groups' layers, by number: as many layers in each as the rarest kind has.

    Or as the commonest has, where that is less than half as many again: 12 with a window and 13 full become 13 and 13.
    """
    kinds = {page: [index for index, one in enumerate(pages) if one == page] for page in pages}
    counts = [len(layers) for layers in kinds.values()]
    each = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    parts: list[tuple[int, ...]] = []
    for layers in kinds.values():
        groups = -(-len(layers) // each)
        parts += [tuple(layers[first::groups]) for first in range(groups)]
    return parts


def _block_size(shape: Shape, setting: EngineSettings) -> int:
    """As asked for; of a hybrid so many tokens more that a layer's page holds a state.

    Qwen3.5-35B-A3B: 2,146,304 / 2,048 = 1,048 tokens, in steps of 16: 1,056.
    """
    kinds = [layer.attention for layer in shape.layers]
    latent = any(isinstance(one, Latent) for one in kinds)
    asked = setting.block_size or (MLA_BLOCK_SIZE if latent else BLOCK_SIZE)
    states = [one for one in kinds if isinstance(one, Recurrent)]
    tokens = [
        layer_bytes(one, shape.element_bytes, setting.kv_cache_dtype, setting.tp)
        for one in kinds
        if not isinstance(one, Recurrent)
    ]
    if not states or not tokens:
        return asked
    state = max(
        layer_state_bytes(one, shape.element_bytes, setting.tp, setting.spec_tokens)
        for one in states
    )
    step = max(asked, MLA_HYBRID_STEP) if latent else asked
    return step * -(-state // (step * tokens[0]))


def _refuse_impossible(shape: Shape, setting: EngineSettings) -> None:
    """As vLLM does when it starts."""
    if setting.pp > len(shape.layers):
        raise ToolkitError(
            f"`{shape.name}` has {len(shape.layers)} layers, too few for {setting.pp} stages",
            "Lower --pipeline-parallel-size",
        )
    divided: list[tuple[int, str]] = []
    for layer in shape.layers:
        one = layer.attention
        if isinstance(one, Recurrent):
            divided += [(one.key_heads, "heads of keys"), (one.value_heads, "heads of values")]
        else:
            divided.append((one.heads, "heads"))
        if isinstance(one, KvHeads):
            divided.append((one.kv_heads, "KV heads"))
        divided.append((layer.mlp.width, "columns of an MLP"))
        divided.append((layer.mlp.shared_width, "columns of a shared expert"))
    for count, what in dict.fromkeys(divided):
        # KV heads may be copied instead
        copied = what == "KV heads" and not setting.tp % count
        if count % setting.tp and not copied:
            raise ToolkitError(
                f"{count} {what} of `{shape.name}` cannot be divided among {setting.tp} GPUs",
                "Choose a --tensor-parallel-size that divides them",
            )


# --- Requests in blocks -------------------------------------------------------------------------------------


def blocks_to_begin(of: Layout, tokens: int) -> int:
    """Blocks that must be free before vLLM admits a request of so many tokens: windows with what is in flight."""
    return sum(_held(group, tokens, group.most_blocks) for group in of.groups)


def blocks_for(of: Layout, tokens: int) -> int:
    """Blocks that a request of so many tokens, prompt and answer, holds at its end."""
    return sum(_held(group, tokens, group.kept_blocks) for group in of.groups)


def blocks_in(of: Layout, kv_bytes: int) -> int:
    """Blocks that so many bytes of one GPU make: `num_gpu_blocks`. One of them is reserved, and holds nothing."""
    return max(0, kv_bytes) // of.bytes_per_block


def reported_concurrency(of: Layout, num_blocks: int) -> float:
    """As in vLLM's `Maximum concurrency for L tokens per request`, which counts the reserved block in."""
    return num_blocks / max(1, sum(group.full_blocks for group in of.groups))


def reported_tokens(of: Layout, num_blocks: int, version: Version = NEWEST) -> int:
    """As in vLLM's `KV cache size: N tokens`: what that many requests of `max_model_len` add up to.

    Before 0.24 of several groups: the tokens of blocks dealt out evenly. gemma-3-27b on an H100 with 0.19: 15,999 blocks for 7
    groups are 2,285 x 16 = 36,560.
    """
    sizes = [group.block_size for group in of.groups if group.block_size]
    if version < TOKENS_BY_REQUESTS_FROM and len(of.groups) > 1 and sizes:
        return num_blocks // len(of.groups) * min(sizes)
    return int(reported_concurrency(of, num_blocks) * of.max_model_len)


def fits_longest(of: Layout, num_blocks: int) -> bool:
    """Whether one request of `max_model_len` fits: vLLM refuses to start where not."""
    return sum(group.full_blocks for group in of.groups) <= num_blocks - 1


def _held(group: LayerGroup, tokens: int, most: int | None) -> int:
    if group.kind == "linear":
        return group.full_blocks
    needed = -(-tokens // group.block_size)
    return needed if most is None else min(needed, most)
