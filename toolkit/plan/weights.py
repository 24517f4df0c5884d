"""Bytes of a model's weights: in a quantization, as published or as they lie on disk, over all GPUs and on the fullest one."""

from dataclasses import replace

from toolkit.plan.parameters import LayerParameters, Parameters, layer_parameters, parameters
from toolkit.plan.quantization import KNOWN, Quantization, quantization
from toolkit.plan.shape import KvHeads, Layer, Recurrent, Shape
from toolkit.plan.stages import stages


def weights_bytes(
    shape: Shape, named: str | None = None, *, on_disk: int | None = None, drafts: bool = False
) -> int:
    """Bytes over all GPUs. `on_disk`, what the files hold, goes before any count where they are in that quantization.

    `drafts`: with the layers for multi-token prediction, as in the files; vLLM loads them for speculation only.
    """
    stored = as_stored(shape, named)
    if on_disk is not None and is_as_on_disk(shape, named):
        return on_disk
    counted = parameters(shape)
    quantized = _quantized(counted, stored)
    kept = counted.total - quantized + (counted.drafts if drafts else 0)
    return round(quantized * stored.weight_bytes + kept * _kept_bytes(shape, stored))


def weights_of_gpu(
    shape: Shape,
    named: str | None = None,
    *,
    tp: int = 1,
    pp: int = 1,
    on_disk: int | None = None,
) -> int:
    """Bytes on the fullest GPU of tp x pp.

    Tensor parallelism divides projections, embeddings and experts; norms and routers are copied, and so are KV heads once there
    are more GPUs than those. Pipeline parallelism cuts between layers; the first GPU has the embedding, the last the output.
    """
    whole = weights_bytes(shape, named)
    parts = [_stage_bytes(shape, named, rank, tp, pp) for rank in range(pp)]
    scale = 1.0
    if on_disk is not None and is_as_on_disk(shape, named):
        scale = on_disk / whole
    return round(max(parts) * scale)


def as_stored(shape: Shape, named: str | None) -> Quantization:
    """The quantization of this name, else the one that the config tells of, else the weights' own 16 or 32 bit.

    Qwen's own 4-bit files of hybrids leave attention as it is (`-:.*attn.*` in the config of Qwen3.5-27B-GPTQ-Int4): so counted,
    Qwen3.5-35B-A3B comes to 24.2 GB with its MTP layer; "What I Learned from a Live LLM Serving
    Gauntlet" tells of about 24.5 GB for GPTQ-Int4 and 25 for AWQ.
    """
    if named is None:
        own = "fp32" if shape.element_bytes == 4 else "bf16"
        return shape.quantization or KNOWN[own]
    found = quantization(named)
    if shape.quantization is not None and shape.quantization.name == found.name:
        return shape.quantization
    return replace(found, attention_kept=True) if _is_hybrid(shape) and found.bits == 4 else found


def is_as_on_disk(shape: Shape, named: str | None) -> bool:
    """Whether the files' bytes are what this quantization takes: None and their own name mean that they are."""
    return (
        named is None
        or quantization(named).name == as_stored(shape, None).name
        or ({quantization(named).bits, as_stored(shape, None).bits} == {16})
    )


def _is_hybrid(shape: Shape) -> bool:
    return any(isinstance(layer.attention, Recurrent) for layer in shape.layers)


def _quantized(counted: Parameters, stored: Quantization) -> int:
    """How many parameters the quantization covers."""
    if stored.attention_kept:
        return counted.experts or counted.mlp
    return counted.attention + counted.mlp + counted.experts


def _kept_bytes(shape: Shape, stored: Quantization) -> float:
    """Of one weight that is not quantized: 16 bit, or the model's own 32."""
    return stored.weight_bytes if stored.bits > 8 else max(2, shape.element_bytes)


def _stage_bytes(shape: Shape, named: str | None, rank: int, tp: int, pp: int) -> float:
    """Bytes of one GPU of the stage."""
    stored, counted = as_stored(shape, named), parameters(shape)
    kept = _kept_bytes(shape, stored)
    layers = [shape.layers[index] for index in stages(len(shape.layers), pp)[rank]]
    total = sum(
        _layer_bytes(layer_parameters(layer, shape.hidden), stored, kept, tp)
        + _copied_heads(layer, shape.hidden, tp) * _projection_bytes(stored, kept)
        for layer in layers
    )
    if rank == 0:
        total += kept * (counted.embedding / tp + counted.other)
    if rank == pp - 1:
        head = counted.head or (counted.embedding if pp > 1 else 0)
        total += kept * (head / tp + shape.hidden)
    return total


def _layer_bytes(one: LayerParameters, stored: Quantization, kept: float, tp: int) -> float:
    """Bytes of one GPU's part of a layer."""
    of_attention = _projection_bytes(stored, kept)
    of_mlp = kept if stored.attention_kept and one.experts else stored.weight_bytes
    return (
        (one.experts * stored.weight_bytes + one.mlp * of_mlp) / tp
        + ((one.attention - one.copied) / tp + one.copied) * of_attention
        + one.rest * kept
    )


def _projection_bytes(stored: Quantization, kept: float) -> float:
    """Of one weight of attention."""
    return kept if stored.attention_kept else stored.weight_bytes


def _copied_heads(layer: Layer, hidden: int, tp: int) -> float:
    """Parameters that a GPU has beyond its part, where there are more GPUs than KV heads."""
    one = layer.attention
    if not isinstance(one, KvHeads) or tp <= one.kv_heads:
        return 0.0
    return hidden * (one.head_dim + one.value_dim) * (1 - one.kv_heads / tp)
