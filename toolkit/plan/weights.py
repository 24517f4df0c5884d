"""A model's parameters, counted from its shape, module by module, and the bytes of its weights.

In a quantization, as published or as they lie on disk, over all GPUs and on the fullest one.
"""

from dataclasses import dataclass, replace

from toolkit.plan.model_config import KvHeads, Latent, Layer, Recurrent, Shape
from toolkit.plan.quantization import KNOWN, Quantization, quantization


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """How many, by what they are: of a model, or of one of its layers."""

    embedding: int = 0
    head: int = 0
    """The output's own matrix; 0 where it is the embedding's."""
    attention: int
    """Its projections: what is quantized of it."""
    copied: int
    """Of `attention`: what every GPU holds whole under tensor parallelism."""
    mlp: int
    """Of layers without experts, and of shared experts."""
    experts: int
    """Those that a router picks from."""
    idle: int
    """Of `experts`: those that one token leaves out."""
    rest: int
    """Norms, biases, routers, convolutions: they stay in 16 bit."""
    other: int = 0
    """Beside the text model: an image encoder."""
    drafts: int = 0
    """Of multi-token prediction; not in `total`, as they are loaded only on demand."""

    @property
    def total(self) -> int:
        """All that is loaded without speculation."""
        text = self.embedding + self.head + self.attention + self.mlp + self.experts + self.rest
        return text + self.other

    @property
    def active(self) -> int:
        """What one token of text goes through; the embedding counts, as in the `A3B` of model names."""
        return self.total - self.idle - self.other


def parameters(shape: Shape) -> Parameters:
    """Count them."""
    layers = [layer_parameters(layer, shape.hidden) for layer in shape.layers]
    names = ("attention", "copied", "mlp", "experts", "idle", "rest")
    sums = {name: sum(getattr(one, name) for one in layers) for name in names}
    sums["rest"] += shape.hidden
    matrix, drafts = shape.vocab * shape.hidden, 0
    if layers:
        # each a layer like the last, and a matrix that joins a token's embedding with what the model made of it
        joined = 2 * shape.hidden * shape.hidden + 3 * shape.hidden
        drafts = shape.drafts * (layers[-1].total + joined)
    return Parameters(
        embedding=matrix,
        head=0 if shape.tied else matrix,
        other=shape.other,
        drafts=drafts,
        **sums,
    )


def layer_parameters(layer: Layer, hidden: int) -> Parameters:
    """Count one layer's."""
    one, copied = layer.attention, 0
    if isinstance(one, KvHeads):
        queries = one.heads * one.head_dim * (2 if one.gated else 1)
        keys_and_values = one.kv_heads * (one.head_dim + one.value_dim)
        projections = hidden * (queries + keys_and_values + one.heads * one.value_dim)
        vectors = one.biases + one.head_norms
    elif isinstance(one, Latent):
        queries, rank = one.heads * (one.nope_dim + one.rope_dim), one.query_rank
        into = hidden * queries if rank is None else (hidden + queries) * rank
        down = hidden * (one.rank + one.rope_dim)
        up = one.rank * one.heads * (one.nope_dim + one.value_dim)
        projections = into + down + up + one.heads * one.value_dim * hidden
        vectors = one.rank + (rank or 0)
        # MLA's way down is not divided: each GPU makes the whole latent vector
        copied = down + hidden * (rank or 0)
    else:
        # queries, keys, values and a gate for these; two numbers a head for decay and step; a convolution over the first three
        keys, values = one.key_heads * one.key_dim, one.value_heads * one.value_dim
        projections = hidden * (2 * keys + 2 * values) + values * hidden
        vectors = hidden * 2 * one.value_heads
        vectors += (2 * keys + values) * one.kernel + 2 * one.value_heads + one.value_dim

    mlp = layer.mlp
    network = mlp.matrices * hidden * mlp.width
    router = hidden * mlp.experts + hidden * mlp.shared_gated
    return Parameters(
        attention=projections,
        copied=copied,
        mlp=mlp.matrices * hidden * mlp.shared_width if mlp.experts else network,
        experts=mlp.experts * network,
        idle=(mlp.experts - min(mlp.experts, mlp.experts_used)) * network,
        rest=layer.norms + vectors + router + mlp.biases,
    )


def weights_bytes(
    shape: Shape,
    named: str | None = None,
    *,
    tp: int = 1,
    pp: int = 1,
    on_disk: int | None = None,
) -> int:
    """Bytes on the fullest GPU of tp x pp: of one GPU all of them.

    `on_disk`, what the files hold, goes before any count where they are in that quantization. Tensor parallelism divides
    projections, embeddings and experts; norms and routers are copied, and so are KV heads once there are more GPUs than
    those. Pipeline parallelism cuts between layers; the first GPU has the embedding, the last the output.
    """
    if on_disk is not None and is_as_on_disk(shape, named):
        part = weights_bytes(shape, named, tp=tp, pp=pp) / weights_bytes(shape, named)
        return round(on_disk * part)

    stored, counted = as_stored(shape, named), parameters(shape)
    # of one weight: in 16 bit, or the model's own 32; in the quantization; and of attention, which may stay in 16 bit
    quantized = stored.weight_bytes
    kept = quantized if stored.bits > 8 else max(2, shape.element_bytes)
    projection = kept if stored.attention_kept else quantized
    of_stages = []
    for numbers in stages(len(shape.layers), pp):
        total = 0.0
        for layer in (shape.layers[index] for index in numbers):
            one, heads = layer_parameters(layer, shape.hidden), layer.attention
            of_mlp = kept if stored.attention_kept and one.experts else quantized
            total += (one.experts * quantized + one.mlp * of_mlp) / tp + one.rest * kept
            if isinstance(heads, KvHeads) and tp > heads.kv_heads:
                # what a GPU has beyond its part
                width = heads.head_dim + heads.value_dim
                total += shape.hidden * width * (1 - heads.kv_heads / tp) * projection
            total += ((one.attention - one.copied) / tp + one.copied) * projection
        of_stages.append(total)
    of_stages[0] += kept * (counted.embedding / tp + counted.other)
    # an output that reuses the embedding's matrix is a copy of it on another GPU
    head = counted.head or (counted.embedding if pp > 1 else 0)
    of_stages[-1] += kept * (head / tp + shape.hidden)
    return round(max(of_stages))


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
    is_hybrid = any(isinstance(layer.attention, Recurrent) for layer in shape.layers)
    return replace(found, attention_kept=True) if is_hybrid and found.bits == 4 else found


def is_as_on_disk(shape: Shape, named: str | None) -> bool:
    """Whether the files' bytes are what this quantization takes: None and their own name mean that they are."""
    return (
        named is None
        or quantization(named).name == as_stored(shape, None).name
        or ({quantization(named).bits, as_stored(shape, None).bits} == {16})
    )


def stages(layers: int, pp: int) -> tuple[range, ...]:
    """The layers of each of `pp` stages of a pipeline, in order, as vLLM 0.32 cuts them.

    Equal parts; what is left over goes one each to the stages before the last, backwards: the first and the last have the
    embeddings already. 30 layers on 4: 7, 8, 8, 7.
    """
    sizes = [layers // pp] * pp
    for place in range(layers % pp):
        # of two stages the first: there is no middle
        sizes[-2 - place] += 1
    ends = [sum(sizes[: rank + 1]) for rank in range(pp)]
    return tuple(range(end - size, end) for size, end in zip(sizes, ends, strict=True))
