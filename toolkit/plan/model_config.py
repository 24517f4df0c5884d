"""A model's config.json -> its Shape: its layers in order, and what stands around them, as far as memory goes.

What the config leaves open is taken for the dearer, and noted; nothing is guessed but what transformers itself would. No
file and no network: the config is a mapping that somebody has read. All figures are of the whole model, before tensor
parallel divides them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.plan.quantization import Quantization, stored_as

Config = Mapping[str, Any]

TEXT_PARTS = ("text_config", "llm_config", "language_config")
"""Where multimodal models keep what says their text model's sizes."""
LARGEST = 2**32
"""No size in a config is larger; beyond it somebody wrote nonsense."""
MOST_LAYERS = 10_000
FETCH_AGAIN = "Its config was edited or damaged: fetch it again"
GEMMA3 = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
}
"""gemma-3's published configs leave out what equals transformers' defaults (5.19): the 4B has no head counts."""

PLAIN_MLP = frozenset("gpt2 opt gpt_neox gpt_bigcode falcon bloom mpt phi starcoder2 gptj".split())
"""Model types whose MLP has no gate: two matrices."""
FOUR_NORMS = frozenset("gemma2 gemma3 gemma3_text".split())
"""A norm before and one after attention and MLP; all others have only those before."""
TIED = frozenset("gemma gemma2 gemma3 gemma3_text gpt2 opt bloom falcon".split())
"""What transformers assumes for them where the config does not say `tie_word_embeddings`."""
HEAD_NORMS = frozenset(
    "qwen3 qwen3_moe qwen3_next qwen3_5 qwen3_5_moe qwen3_vl qwen3_vl_moe gemma3 gemma3_text".split()
)
"""Queries and keys are normed, each head with the same vector."""
QKV_BIASES = frozenset("qwen2 qwen2_moe qwen2_vl qwen2_5_vl".split())
"""Biases that no field of the config names."""
GATED_ATTENTION = frozenset("qwen3_next qwen3_5 qwen3_5_moe".split())
ONE_SHARED_EXPERT = frozenset("qwen2_moe qwen3_next qwen3_5_moe".split())
NOT_COUNTED = {
    "num_kv_shared_layers": "some of its layers share others' KV cache: priced as if each had its own",
    "index_topk": "its attention is sparse: the index's own cache is not counted",
    "is_encoder_decoder": "an encoder-decoder: what its encoder and cross-attention take is not counted",
    "hybrid_override_pattern": "its layers are of kinds that are not read: all priced as full attention",
    "attn_layer_period": "its layers are of kinds that are not read: all priced as full attention",
    "kv_cache_scheme": "its files have scales for a KV cache in fp8, which vLLM's `auto` then takes: price `fp8`",
    "kv_cache_quant_algo": "its files have scales for a KV cache in fp8, which vLLM's `auto` then takes: price `fp8`",
}
"""What a config may say and we don't price, by the field that says it."""
FOUR_BYTES = frozenset({"float32", "float"})

FULL = frozenset({"full_attention", "attention", "full", "global_attention"})
SLIDING = frozenset({"sliding_attention", "sliding_window", "local_attention", "sliding"})
LINEAR = frozenset({"linear_attention", "linear"})

FULL_EVERY = 4
"""`full_attention_interval` where a hybrid does not say (Qwen3-Next, Qwen3.5)."""
STATE = 0
"""Instead of a window: the layer keeps a state, whatever the length."""
PATTERNS = {"gemma2": 2, "gpt_oss": 2, "gemma3": 6, "cohere2": 4}
"""Every so-manieth layer is full and those between have a window, where the config does not say; gpt-oss and gemma-2 begin
with a window, too."""


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


def shape_of(config: Config, name: str) -> Shape:
    """Read a config.json. Raises ToolkitError, naming the field that is missing or makes no sense."""
    fields = Fields(_text_part(config), name)
    family = family_of(config)
    windows = _layer_windows(fields, family)
    hidden = fields.hidden()
    other = _beside_the_text(config, fields, hidden)
    layers = tuple(
        Layer(
            attention=_attention(fields, family, window),
            mlp=_mlp(fields, family, index),
            norms=hidden * (4 if family in FOUR_NORMS else 2),
        )
        for index, window in enumerate(windows)
    )
    vocab = fields.count("vocab_size")
    nested = config.get("quantization_config")
    quantized = nested if isinstance(nested, dict) else {}
    for field, text in NOT_COUNTED.items():
        if fields.value(field) or config.get(field) or quantized.get(field):
            fields.note(text)
    tied = config.get("tie_word_embeddings", fields.value("tie_word_embeddings"))
    dtype = fields.value("torch_dtype", "dtype") or config.get("torch_dtype") or config.get("dtype")
    return Shape(
        name=name,
        hidden=hidden,
        vocab=vocab,
        max_positions=fields.maybe("max_position_embeddings", "n_positions", "max_seq_len"),
        layers=layers,
        tied=family in TIED if tied is None else bool(tied),
        element_bytes=_bytes_of(dtype),
        other=other,
        drafts=fields.maybe("mtp_num_hidden_layers", "num_nextn_predict_layers") or 0,
        quantization=stored_as(
            fields.value("quantization_config") or config.get("quantization_config")
        ),
        notes=tuple(fields.notes),
    )


def _text_part(config: Config) -> Config:
    """The part that says the text model's sizes: the config itself, or what a multimodal one nests in it."""
    for key in TEXT_PARTS:
        inner = config.get(key)
        if isinstance(inner, Mapping) and inner:
            return inner
    return config


def family_of(config: Config) -> str:
    """`model_type` of the text model, without the `_text` of nested ones."""
    stated = _text_part(config).get("model_type") or config.get("model_type") or ""
    return str(stated).removesuffix("_text")


class Fields:
    """One config's sizes; `notes` says what was taken for what it leaves out."""

    def __init__(self, config: Config, name: str) -> None:
        self._config = config
        self.name = name
        self.defaults = GEMMA3 if family_of(config) == "gemma3" else {}
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Say it once."""
        if text not in self.notes:
            self.notes.append(text)

    def value(self, *keys: str) -> Any:
        """The first of these fields that is there and not null."""
        found = (self._config.get(key) for key in keys)
        return next((one for one in found if one is not None), None)

    def maybe(self, *keys: str) -> int | None:
        """A whole number that may be missing; null and 0 count as missing. Raises ToolkitError for anything else."""
        value = self.value(*keys)
        if value is None or value is False or value == 0:
            return None
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole or not 0 < value <= LARGEST:
            raise ToolkitError(
                f"`{keys[0]}` of `{self.name}` is {value!r:.60}, which is no size", FETCH_AGAIN
            )
        return int(value)

    def count(self, *keys: str) -> int:
        """A whole number that must be there. Raises ToolkitError."""
        found = self.maybe(*keys)
        if found is not None:
            return found
        for key in keys:
            if key in self.defaults:
                default = self.defaults[key]
                self.note(f"its config has no `{key}`: {default:,} is what transformers takes")
                return default
        raise ToolkitError(
            f"the config of `{self.name}` has no `{keys[0]}`",
            "Name a model's config.json, or the directory that holds it and its weights",
        )

    def hidden(self) -> int:
        """Width of what goes from layer to layer."""
        return self.count("hidden_size", "n_embd", "d_model")

    def width(self) -> int:
        """Of the MLP; four times hidden where the config does not say (GPT-2)."""
        stated = self.maybe("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
        return 4 * self.hidden() if stated is None else stated


def _layer_windows(fields: Fields, family: str) -> list[int | None]:
    """Of each layer how many tokens it looks back, None for all, STATE for one that keeps a state.

    Raises ToolkitError when the config contradicts itself.
    """
    count = fields.count("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    if count > MOST_LAYERS:
        raise ToolkitError(
            f"`{fields.name}` would have {count:,} layers, more than any model has", FETCH_AGAIN
        )
    # `use_sliding_window: false` cancels it (Qwen2.5)
    window = (
        None
        if fields.value("use_sliding_window") is False
        else fields.maybe("sliding_window")
        or (GEMMA3["sliding_window"] if family == "gemma3" else None)
    )
    stated = fields.value("layer_types", "layers_block_type")
    if isinstance(stated, list | tuple):
        if len(stated) != count:
            raise ToolkitError(
                f"a config names {len(stated)} `layer_types` for {count} layers",
                "It was cut, or edited in one place only",
            )
        names = [str(one) for one in stated]
        # a kind that we do not know is priced as full attention, the dearest
        for one in sorted(set(names) - FULL - SLIDING - LINEAR):
            fields.note(f"layers of kind `{one:.40}` are not known: priced as full attention")
        if window is None and SLIDING.intersection(names):
            fields.note("layers with a window, but no `sliding_window`: priced as full attention")
        kinds = dict.fromkeys(SLIDING, window) | dict.fromkeys(LINEAR, STATE)
        return [kinds.get(one) for one in names]

    # without `layer_types`: by the interval or pattern that the family has, every so-manieth layer full
    between: int | None = window
    step = fields.maybe("sliding_window_pattern") or PATTERNS.get(family)
    if fields.maybe("linear_num_value_heads") is not None:
        between, step = STATE, fields.maybe("full_attention_interval") or FULL_EVERY
    if step is not None:
        return [between if (index + 1) % step else None for index in range(count)]
    # Qwen2: the first so many layers are full even where windows are on
    first = min(count, fields.maybe("max_window_layers") or 0) if family.startswith("qwen2") else 0
    return [None] * first + [between] * (count - first)


def _attention(fields: Fields, family: str, window: int | None) -> Attention:
    if window == STATE:
        dtype = fields.value("mamba_ssm_dtype", "torch_dtype", "dtype")
        return Recurrent(
            key_heads=fields.count("linear_num_key_heads"),
            value_heads=fields.count("linear_num_value_heads"),
            key_dim=fields.count("linear_key_head_dim"),
            value_dim=fields.count("linear_value_head_dim"),
            kernel=fields.count("linear_conv_kernel_dim"),
            state_bytes=_bytes_of(dtype),
        )
    hidden = fields.hidden()
    heads = fields.count("num_attention_heads", "n_head", "n_heads")
    if fields.maybe("kv_lora_rank"):
        return Latent(
            heads=heads,
            rank=fields.count("kv_lora_rank"),
            rope_dim=fields.count("qk_rope_head_dim"),
            nope_dim=fields.count("qk_nope_head_dim"),
            value_dim=fields.count("v_head_dim"),
            query_rank=fields.maybe("q_lora_rank"),
        )
    # as many KV heads as query heads where the config does not say; one where it says `multi_query`
    kv_heads = fields.maybe("num_key_value_heads", "n_head_kv", "num_kv_heads")
    if kv_heads is None:
        usual = fields.defaults.get("num_key_value_heads", heads)
        kv_heads = 1 if fields.value("multi_query") is True else usual
    # hidden / heads where the field is absent, null or 0
    head_dim = fields.maybe("head_dim", "kv_channels", "attention_head_dim")
    if head_dim is None:
        head_dim = fields.defaults.get("head_dim", hidden // heads)
        if "head_dim" not in fields.defaults and hidden % heads:
            raise ToolkitError(
                f"`{fields.name}` has {heads} heads, which do not divide its hidden size {hidden}",
                "Give `head_dim` in its config",
            )
    if window is None:
        # gemma-4: full layers have fewer and wider KV heads than those with a window
        head_dim = fields.maybe("global_head_dim") or head_dim
        kv_heads = fields.maybe("num_global_key_value_heads") or kv_heads
    # of queries, keys and values; of the output, too, where the config names them
    biases = (heads + 2 * kv_heads) * head_dim
    if fields.value("attention_bias"):
        biases += hidden + (heads if family == "gpt_oss" else 0)
    elif family not in QKV_BIASES:
        biases = 0
    return KvHeads(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=head_dim,
        window=window,
        biases=biases,
        head_norms=2 * head_dim * (family in HEAD_NORMS or bool(fields.value("use_qk_norm"))),
        gated=family in GATED_ATTENTION and fields.value("attn_output_gate") is not False,
    )


def _mlp(fields: Fields, family: str, index: int) -> Mlp:
    experts = fields.maybe("num_experts", "n_routed_experts", "num_local_experts") or 0
    if experts:
        # some models begin dense, some have experts in every second layer
        dense, step = fields.value("mlp_only_layers"), fields.maybe("decoder_sparse_step")
        is_dense = isinstance(dense, list | tuple) and index in dense
        if is_dense or index < (fields.maybe("first_k_dense_replace") or 0):
            experts = 0
        elif step is not None:
            experts = 0 if (index + 1) % step else experts
        elif index % (fields.maybe("moe_layer_freq") or 1):
            experts = 0
    if not experts:
        return Mlp(width=fields.width(), matrices=2 if family in PLAIN_MLP else 3)
    width = fields.maybe("moe_intermediate_size") or fields.width()
    shared = fields.maybe("shared_expert_intermediate_size") or 0
    shared += width * (fields.maybe("n_shared_experts") or 0)
    return Mlp(
        width=width,
        experts=experts,
        experts_used=fields.maybe("num_experts_per_tok", "num_experts_per_token") or 1,
        shared_width=shared,
        shared_gated=bool(shared) and family in ONE_SHARED_EXPERT,
        # gpt-oss: of each expert's projections, and of the router
        biases=experts * (2 * width + fields.hidden() + 1) * (family == "gpt_oss"),
    )


def _bytes_of(dtype: object) -> int:
    """All that weights are published in, but for 32 bit, has two bytes, or is quantized and says so elsewhere."""
    return 4 if str(dtype) in FOUR_BYTES else 2


def _beside_the_text(config: Config, text: Fields, hidden: int) -> int:
    """Parameters of an image encoder by its sizes. Audio is not counted."""
    vision = config.get("vision_config")
    if not isinstance(vision, dict) or not vision:
        return 0
    fields = Fields(vision, f"{text.name}'s vision_config")
    width, depth = fields.maybe("hidden_size"), fields.maybe("depth", "num_hidden_layers")
    inner = fields.maybe("intermediate_size")
    if width is None or depth is None or inner is None:
        text.note("it has an image encoder whose size its config does not say: not counted")
        return 0
    block = 4 * width * width + 2 * width * inner + inner + 9 * width

    # patches and their positions -> the encoder
    patch, image = fields.maybe("patch_size") or 0, fields.maybe("image_size") or 0
    frames = fields.maybe("temporal_patch_size") or 1
    channels = fields.maybe("in_channels", "num_channels") or 3
    by_image = (image // patch) ** 2 if patch else 0
    positions = fields.maybe("num_position_embeddings") or by_image
    into = (channels * frames * patch * patch + 1 + positions) * width

    # the encoder -> the text model: one projection (gemma-3), or 2 x 2 patches merged into one token (Qwen)
    merge = fields.maybe("spatial_merge_size")
    out_of = width * hidden + 3 * width
    if merge is not None:
        merged = merge * merge * width
        out = fields.maybe("out_hidden_size") or hidden
        out_of = 2 * width + merged * (merged + 1) + (merged + 1) * out
    return depth * block + into + out_of
