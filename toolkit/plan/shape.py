"""What a model is made of, as far as memory goes: its layers in order, and what stands around them. It computes nothing.

All figures are of the whole model, before tensor parallel divides them.
"""

from dataclasses import dataclass

from toolkit.plan.quantization import Quantization


@dataclass(frozen=True, slots=True, kw_only=True)
class KvHeads:
    """Attention that keeps a key and a value of each token for each KV head: MHA, GQA and MQA."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    """Of one value; nearly always `head_dim`."""
    window: int | None = None
    """Tokens that it looks back; None: all of them."""
    biases: int = 0
    """Parameters in the biases of its projections."""
    head_norms: int = 0
    """Parameters in the norms of queries and keys, and other vectors that stay in 16 bit."""
    gated: bool = False
    """Its queries' projection makes a gate for the output, too, and is twice as wide (Qwen3-Next, Qwen3.5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """MLA: one compressed vector a token and layer, shared by all heads, and held whole by every GPU."""

    heads: int
    rank: int
    """`kv_lora_rank`."""
    rope_dim: int
    nope_dim: int
    value_dim: int
    query_rank: int | None = None
    """`q_lora_rank`; None: queries are projected in one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrent:
    """A gated delta net: a state of constant size for each request, whatever its length."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    """Width of its convolution, whose last inputs are kept as well."""
    state_bytes: int
    """Of one element of the recurrent state: 4 where the config says `mamba_ssm_dtype: float32`."""


Attention = KvHeads | Latent | Recurrent


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """What follows attention in a layer: one network for all tokens, or experts of which a router picks some."""

    width: int
    """`intermediate_size` of the one network, or of one expert."""
    matrices: int = 3
    """Gate, up and down; 2 where there is no gate (GPT-2, OPT, Falcon)."""
    experts: int = 0
    """0: no router, one network."""
    experts_used: int = 0
    """By one token."""
    shared_width: int = 0
    """Of the experts that every token uses, together."""
    shared_gated: bool = False
    """One more vector decides how much of the shared expert is added (Qwen)."""
    biases: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One of the model's layers."""

    attention: Attention
    mlp: Mlp
    norms: int
    """Parameters in its norms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One model."""

    name: str
    hidden: int
    vocab: int
    max_positions: int | None
    layers: tuple[Layer, ...]
    """In the order in which a token meets them: pipeline parallel cuts them there."""
    tied: bool
    """The output reuses the embedding's matrix."""
    element_bytes: int = 2
    """Of one weight before quantization, and of the KV cache by default: 2 for bfloat16 and float16."""
    other: int = 0
    """Parameters beside the text layers that are loaded, too: an image encoder. They stay in 16 bit."""
    drafts: int = 0
    """Layers for multi-token prediction: in the files, loaded only when the server speculates with them."""
    quantization: Quantization | None = None
    """As the config says its weights are stored; None: it says nothing."""
    notes: tuple[str, ...] = ()
    """What the config left open, and what was taken for it."""
