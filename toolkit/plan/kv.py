"""Bytes of the KV cache: one token in one layer, all layers, and what a request keeps whatever its length.

The formulas are vLLM's, version 0.32. It knows nothing of blocks: layout.py does.
"""

from toolkit.errors import ToolkitError
from toolkit.plan.shape import Attention, KvHeads, Latent, Recurrent, Shape

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


def bytes_per_token(shape: Shape, kv_dtype: str = "auto", tp: int = 1) -> int:
    """Bytes that one more token adds on one GPU of `tp`: over the layers that keep every token.

    Qwen2.5-7B: 28 layers x 2 (key and value) x 4 KV heads x 128 x 2 bytes = 57,344.
    """
    attentions = (layer.attention for layer in shape.layers)
    kept = [one for one in attentions if keeps_every_token(one)]
    return sum(layer_bytes(one, shape.element_bytes, kv_dtype, tp) for one in kept)


def keeps_every_token(attention: Attention) -> bool:
    """Whether its part of the cache grows with each token, without end."""
    return isinstance(attention, Latent) or (
        isinstance(attention, KvHeads) and attention.window is None
    )


def layer_bytes(attention: Attention, element_bytes: int, kv_dtype: str, tp: int) -> int:
    """Bytes of one token in one layer on one GPU. 0: the layer keeps a state instead."""
    if isinstance(attention, Recurrent):
        return 0
    if isinstance(attention, Latent):
        return _latent_bytes(attention, element_bytes, kv_dtype)
    one = _element(element_bytes, kv_dtype)
    content = one * (attention.head_dim + attention.value_dim) + 2 * SCALE_BYTES.get(kv_dtype, 0)
    return round(kv_heads_of_rank(attention, tp) * content)


def kv_heads_of_rank(attention: KvHeads, tp: int) -> int:
    """KV heads on one of `tp` GPUs: at least one, so that more GPUs than heads hold copies."""
    return max(1, attention.kv_heads // tp)


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


def _latent_bytes(latent: Latent, element_bytes: int, kv_dtype: str) -> int:
    """Not divided by the number of GPUs: each holds it whole."""
    if kv_dtype in PACKED_LATENT_BYTES:
        return PACKED_LATENT_BYTES[kv_dtype]
    return round(_element(element_bytes, kv_dtype) * (latent.rank + latent.rope_dim))


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
