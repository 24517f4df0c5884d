"""A model's config.json -> its Shape. What the config leaves open is taken for the dearer, and noted.

No file and no network: the config is a mapping that somebody has read.
"""

from toolkit.plan.fields import Config, Fields, family_of, text_part
from toolkit.plan.layer_kinds import LayerKind, layer_kinds
from toolkit.plan.quantization import stored_as
from toolkit.plan.shape import Attention, KvHeads, Latent, Layer, Mlp, Recurrent, Shape

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
"""Biases that no field of the config tells of."""
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


def shape_of(config: Config, name: str) -> Shape:
    """Read a config.json. Raises ToolkitError, naming the field that is missing or makes no sense."""
    fields = Fields(text_part(config), name)
    family = family_of(config)
    kinds, notes = layer_kinds(fields, family)
    hidden = fields.hidden()
    other, told = _beside_the_text(config, name, hidden)
    return Shape(
        name=name,
        hidden=hidden,
        vocab=fields.vocab(),
        max_positions=fields.maybe("max_position_embeddings", "n_positions", "max_seq_len"),
        layers=tuple(
            Layer(
                attention=_attention(fields, family, kind),
                mlp=_mlp(fields, family, index),
                norms=hidden * (4 if family in FOUR_NORMS else 2),
            )
            for index, kind in enumerate(kinds)
        ),
        tied=_is_tied(config, fields, family),
        element_bytes=_element_bytes(config, fields),
        other=other,
        drafts=fields.maybe("mtp_num_hidden_layers", "num_nextn_predict_layers") or 0,
        quantization=stored_as(
            fields.value("quantization_config") or config.get("quantization_config")
        ),
        notes=(*notes, *told, *fields.notes, *_not_counted(config, fields)),
    )


def _attention(fields: Fields, family: str, kind: LayerKind) -> Attention:
    if kind.kind == "linear":
        return _recurrent(fields)
    if fields.maybe("kv_lora_rank"):
        return _latent(fields)
    heads, kv_heads, head_dim = fields.heads(), fields.kv_heads(), fields.head_dim()
    if kind.window is None:
        # gemma-4: full layers have fewer and wider KV heads than those with a window
        head_dim = fields.maybe("global_head_dim") or head_dim
        kv_heads = fields.maybe("num_global_key_value_heads") or kv_heads
    return KvHeads(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=head_dim,
        window=kind.window,
        biases=_attention_biases(fields, family, (heads + 2 * kv_heads) * head_dim),
        head_norms=2 * head_dim * (family in HEAD_NORMS or bool(fields.value("use_qk_norm"))),
        gated=family in GATED_ATTENTION and fields.value("attn_output_gate") is not False,
    )


def _attention_biases(fields: Fields, family: str, of_qkv: int) -> int:
    """Of queries, keys and values; of the output, too, where the config names them."""
    if fields.value("attention_bias"):
        return of_qkv + fields.hidden() + (fields.heads() if family == "gpt_oss" else 0)
    return of_qkv if family in QKV_BIASES else 0


def _latent(fields: Fields) -> Latent:
    return Latent(
        heads=fields.heads(),
        rank=fields.count("kv_lora_rank"),
        rope_dim=fields.count("qk_rope_head_dim"),
        nope_dim=fields.count("qk_nope_head_dim"),
        value_dim=fields.count("v_head_dim"),
        query_rank=fields.maybe("q_lora_rank"),
    )


def _recurrent(fields: Fields) -> Recurrent:
    stated = fields.value("mamba_ssm_dtype")
    return Recurrent(
        key_heads=fields.count("linear_num_key_heads"),
        value_heads=fields.count("linear_num_value_heads"),
        key_dim=fields.count("linear_key_head_dim"),
        value_dim=fields.count("linear_value_head_dim"),
        kernel=fields.count("linear_conv_kernel_dim"),
        state_bytes=_bytes_of(fields.value("torch_dtype", "dtype") if stated is None else stated),
    )


def _mlp(fields: Fields, family: str, index: int) -> Mlp:
    experts = fields.experts()
    if not experts or not _has_experts(fields, index):
        width = fields.width()
        return Mlp(width=width, matrices=2 if family in PLAIN_MLP else 3)
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


def _has_experts(fields: Fields, index: int) -> bool:
    """Whether the layer of this number has experts: some models begin dense, some have them in every second layer."""
    dense = fields.value("mlp_only_layers")
    if isinstance(dense, list | tuple) and index in dense:
        return False
    if index < (fields.maybe("first_k_dense_replace") or 0):
        return False
    step = fields.maybe("decoder_sparse_step")
    if step is not None:
        return (index + 1) % step == 0
    return index % (fields.maybe("moe_layer_freq") or 1) == 0


def _not_counted(config: Config, fields: Fields) -> list[str]:
    """What it says that memory hangs on and we leave out."""
    nested = config.get("quantization_config")
    quantized = nested if isinstance(nested, dict) else {}
    told = [
        text
        for field, text in NOT_COUNTED.items()
        if fields.value(field) or config.get(field) or quantized.get(field)
    ]
    return list(dict.fromkeys(told))


def _is_tied(config: Config, fields: Fields, family: str) -> bool:
    stated = config.get("tie_word_embeddings", fields.value("tie_word_embeddings"))
    return family in TIED if stated is None else bool(stated)


def _element_bytes(config: Config, fields: Fields) -> int:
    outer = config.get("torch_dtype") or config.get("dtype")
    return _bytes_of(fields.value("torch_dtype", "dtype") or outer)


def _bytes_of(dtype: object) -> int:
    """All that weights are published in, but for 32 bit, has two bytes, or is quantized and says so elsewhere."""
    return 4 if str(dtype) in FOUR_BYTES else 2


def _beside_the_text(config: Config, name: str, hidden: int) -> tuple[int, list[str]]:
    """Parameters of an image encoder by its sizes, and what is not known of them. Audio is not counted."""
    vision = config.get("vision_config")
    if not isinstance(vision, dict) or not vision:
        return 0, []
    fields = Fields(vision, f"{name}'s vision_config")
    width, depth = fields.maybe("hidden_size"), fields.maybe("depth", "num_hidden_layers")
    inner = fields.maybe("intermediate_size")
    if width is None or depth is None or inner is None:
        return 0, ["it has an image encoder whose size its config does not tell: not counted"]
    block = 4 * width * width + 2 * width * inner + inner + 9 * width
    return depth * block + _into(fields, width) + _out_of(fields, width, hidden), []


def _into(fields: Fields, width: int) -> int:
    """Patches and their positions -> the encoder."""
    patch, image = fields.maybe("patch_size") or 0, fields.maybe("image_size") or 0
    frames = fields.maybe("temporal_patch_size") or 1
    channels = fields.maybe("in_channels", "num_channels") or 3
    by_image = (image // patch) ** 2 if patch else 0
    positions = fields.maybe("num_position_embeddings") or by_image
    return (channels * frames * patch * patch + 1 + positions) * width


def _out_of(fields: Fields, width: int, hidden: int) -> int:
    """The encoder -> the text model: one projection (gemma-3), or 2 x 2 patches merged into one token (Qwen)."""
    merge = fields.maybe("spatial_merge_size")
    if merge is None:
        return width * hidden + 3 * width
    merged = merge * merge * width
    out = fields.maybe("out_hidden_size") or hidden
    return 2 * width + merged * (merged + 1) + (merged + 1) * out
