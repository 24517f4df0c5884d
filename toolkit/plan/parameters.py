"""A model's parameters, counted from its shape, module by module. It knows nothing of how they are stored."""

from dataclasses import dataclass

from toolkit.plan.shape import Attention, KvHeads, Latent, Layer, Mlp, Recurrent, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """How many, by what they are."""

    embedding: int
    head: int
    """The output's own matrix; 0 where it is the embedding's."""
    attention: int
    """Its projections: what is quantized of it."""
    mlp: int
    """Of layers without experts, and of shared experts."""
    experts: int
    """Those that a router picks from."""
    rest: int
    """Norms, biases, routers, convolutions: they stay in 16 bit."""
    other: int
    """Beside the text model: an image encoder."""
    drafts: int
    """Of multi-token prediction; not in `total`, as they are loaded only on demand."""
    idle: int
    """Of `experts`: those that one token leaves out."""

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
    counted = [layer_parameters(layer, shape.hidden) for layer in shape.layers]
    matrix = shape.vocab * shape.hidden
    return Parameters(
        embedding=matrix,
        head=0 if shape.tied else matrix,
        attention=sum(one.attention for one in counted),
        mlp=sum(one.mlp for one in counted),
        experts=sum(one.experts for one in counted),
        rest=sum(one.rest for one in counted) + shape.hidden,
        other=shape.other,
        drafts=_drafts(shape, counted[-1]) if counted else 0,
        idle=sum(one.idle for one in counted),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParameters:
    """Of one layer, as in Parameters."""

    attention: int
    mlp: int
    experts: int
    rest: int
    idle: int
    copied: int
    """Of `attention`: what every GPU holds whole under tensor parallelism."""


def layer_parameters(layer: Layer, hidden: int) -> LayerParameters:
    """Count one layer's."""
    mlp = layer.mlp
    attention, vectors = _attention(layer.attention, hidden)
    one = mlp.matrices * hidden * mlp.width
    shared = mlp.matrices * hidden * mlp.shared_width
    router = hidden * mlp.experts + hidden * mlp.shared_gated
    return LayerParameters(
        attention=attention,
        mlp=shared if mlp.experts else one,
        experts=mlp.experts * one,
        rest=layer.norms + vectors + router + mlp.biases,
        idle=(mlp.experts - _used(mlp)) * one,
        copied=_copied(layer.attention, hidden),
    )


def _used(mlp: Mlp) -> int:
    return min(mlp.experts, mlp.experts_used)


def _attention(attention: Attention, hidden: int) -> tuple[int, int]:
    """Parameters of its projections, and of its vectors."""
    if isinstance(attention, KvHeads):
        return _of_heads(attention, hidden)
    if isinstance(attention, Latent):
        return _of_latent(attention, hidden)
    return _of_recurrent(attention, hidden)


def _of_heads(one: KvHeads, hidden: int) -> tuple[int, int]:
    queries = one.heads * one.head_dim * (2 if one.gated else 1)
    keys_and_values = one.kv_heads * (one.head_dim + one.value_dim)
    out = one.heads * one.value_dim
    return hidden * (queries + keys_and_values + out), one.biases + one.head_norms


def _of_latent(one: Latent, hidden: int) -> tuple[int, int]:
    queries = one.heads * (one.nope_dim + one.rope_dim)
    into = hidden * queries
    if one.query_rank is not None:
        into = hidden * one.query_rank + one.query_rank * queries
    down = hidden * (one.rank + one.rope_dim)
    up = one.rank * one.heads * (one.nope_dim + one.value_dim)
    out = one.heads * one.value_dim * hidden
    return into + down + up + out, one.rank + (one.query_rank or 0)


def _of_recurrent(one: Recurrent, hidden: int) -> tuple[int, int]:
    """Queries, keys, values and a gate for these; two numbers a head for decay and step; a convolution over the first three."""
    keys, values = one.key_heads * one.key_dim, one.value_heads * one.value_dim
    projections = hidden * (2 * keys + 2 * values) + values * hidden
    steps = hidden * 2 * one.value_heads
    vectors = (2 * keys + values) * one.kernel + 2 * one.value_heads + one.value_dim
    return projections, steps + vectors


def _copied(attention: Attention, hidden: int) -> int:
    """MLA's way down is not divided: each GPU makes the whole latent vector."""
    if not isinstance(attention, Latent):
        return 0
    return hidden * (attention.rank + attention.rope_dim + (attention.query_rank or 0))


def _drafts(shape: Shape, last: LayerParameters) -> int:
    """Each a layer like the last, and a matrix that joins a token's embedding with what the model made of it."""
    layer = last.attention + last.mlp + last.experts + last.rest
    join = 2 * shape.hidden * shape.hidden
    return shape.drafts * (layer + join + 3 * shape.hidden)
