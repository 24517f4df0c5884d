"""config.json -> Shape: the fields that are absent, zero, nested, cancelled or nonsense."""

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.shapes import TINY, config, shape, tiny

from toolkit.errors import ToolkitError
from toolkit.plan.engine import EngineSettings
from toolkit.plan.kv_cache import layout
from toolkit.plan.model_config import KvHeads, Latent, Recurrent, Shape, shape_of
from toolkit.plan.weights import parameters

FULL, WINDOW = "full_attention", "sliding_attention"
NEXT = "Qwen3-Next-80B-A3B-Instruct"


def heads(model: Shape) -> list[KvHeads]:
    return [layer.attention for layer in model.layers if isinstance(layer.attention, KvHeads)]


@pytest.mark.parametrize(
    ("fields", "kv_heads", "head_dim"),
    [
        # without a head_dim, or with one of 0, it is hidden / heads
        ({"head_dim": None}, 2, 32),
        ({"head_dim": 0}, 2, 32),
        ({"head_dim": 64}, 2, 64),
        # without KV heads there are as many as query heads; one with multi-query
        ({"num_key_value_heads": None}, 4, 32),
        ({"num_key_value_heads": None, "multi_query": True}, 1, 32),
    ],
)
def test_heads_are_as_transformers_takes_them(
    fields: dict[str, Any], kv_heads: int, head_dim: int
) -> None:
    found = heads(tiny(**fields))
    assert {(one.kv_heads, one.head_dim) for one in found} == {(kv_heads, head_dim)}


def test_mla_is_known_by_its_rank_though_head_dim_is_0() -> None:
    model = shape_of(config("DeepSeek-V2-Lite") | {"head_dim": 0}, "x")
    assert all(isinstance(layer.attention, Latent) for layer in model.layers)


def test_full_layers_may_have_heads_of_their_own() -> None:
    # gemma-4: wider and fewer than in layers with a window
    model = tiny(
        sliding_window=64,
        layer_types=[WINDOW] * 3 + [FULL],
        global_head_dim=64,
        num_global_key_value_heads=1,
    )
    assert [(one.kv_heads, one.head_dim) for one in heads(model)] == [(2, 32)] * 3 + [(1, 64)]


QWEN2 = {"model_type": "qwen2", "max_window_layers": 1}


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        (QWEN2 | {"use_sliding_window": False}, [None] * 4),
        # where it is on, the first layers are full (transformers' Qwen2Config)
        (QWEN2 | {"use_sliding_window": True}, [None, 64, 64, 64]),
        # a window alone is every layer's
        ({"model_type": "mistral"}, [64] * 4),
        # layer types go before the family's pattern, and so does a stated one
        ({"model_type": "gemma2", "layer_types": [FULL, WINDOW, WINDOW, FULL]}, [None, 64, 64, None]),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 2}, [64, None, 64, None]),
        ({"model_type": "gemma2", "num_hidden_layers": 6}, [64, None] * 3),
        ({"model_type": "gpt_oss"}, [64, None] * 2),
        ({"model_type": "gemma3_text", "num_hidden_layers": 13}, ([64] * 5 + [None]) * 2 + [64]),
    ],
)  # fmt: skip
def test_each_layer_has_its_window(fields: dict[str, Any], windows: list[int | None]) -> None:
    assert [one.window for one in heads(tiny(sliding_window=64, **fields))] == windows


def test_a_hybrid_without_layer_types_is_full_in_every_fourth() -> None:
    model = shape(NEXT)
    full = [i for i, layer in enumerate(model.layers) if not isinstance(layer.attention, Recurrent)]
    assert full == list(range(3, 48, 4))
    without = config(NEXT)
    del without["full_attention_interval"]
    assert shape_of(without, model.name) == model


def test_a_nested_text_config_is_read_and_the_outer_one_ties() -> None:
    inner = {**TINY, "model_type": "qwen3_text", "num_hidden_layers": 3}
    model = shape_of({"text_config": inner, "tie_word_embeddings": True}, "nested")
    assert (len(model.layers), model.tied) == (3, True)
    assert heads(model)[0].head_norms == 2 * 32


def test_experts_stand_where_transformers_has_them() -> None:
    mlps = [layer.mlp for layer in shape("DeepSeek-V2-Lite").layers]
    assert [bool(mlp.experts) for mlp in mlps] == [False] + [True] * 26
    assert (mlps[0].width, mlps[1].width, mlps[1].shared_width) == (10_944, 1408, 2816)
    moe = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    model = tiny(model_type="qwen3_moe", decoder_sparse_step=2, mlp_only_layers=[3], **moe)
    # by transformers: where (index + 1) % 2 == 0, and not where the list says so
    assert [layer.mlp.experts for layer in model.layers] == [0, 4, 0, 0]


# --- what is noted ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "noted"),
    [
        ({"layer_types": [FULL, "sparse_moon", "sparse_moon", FULL]},
         "layers of kind `sparse_moon` are not known: priced as full attention"),
        ({"layer_types": [WINDOW] * 4}, "layers with a window, but no `sliding_window`"),
        ({"vision_config": {"model_type": "clip"}}, "image encoder whose size"),
        ({"num_kv_shared_layers": 2}, "share"),
        ({"index_topk": 2048}, "index"),
        ({"is_encoder_decoder": True}, "cross-attention"),
        ({"hybrid_override_pattern": "M-M*"}, "not read"),
        ({"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}, "price `fp8`"),
    ],
)  # fmt: skip
def test_what_memory_hangs_on_and_is_not_priced_is_noted(
    fields: dict[str, Any], noted: str
) -> None:
    model = tiny(**fields)
    (note,) = model.notes
    assert noted in note
    assert model.other == 0
    assert {one.window for one in heads(model)} == {None}
    assert tiny().notes == ()


def test_what_gemma_3s_config_leaves_out_is_taken_and_noted() -> None:
    model = shape("gemma-3-27b-it")
    assert model.vocab == 262_208
    assert any("vocab_size" in note for note in model.notes)


# --- what is refused, or passed over -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *(
            ({field: None}, f"`tiny` has no `{field}`")
            for field in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
        ),
        *(
            ({"hidden_size": nonsense}, "`hidden_size` of `tiny`")
            for nonsense in (-1, 2.5, "many", True, [4], 10**30, float("inf"), float("nan"), {"a": 1})
        ),
        ({"layer_types": [FULL] * 2}, "2 `layer_types` for 4 layers"),
        ({"num_hidden_layers": 1_000_000}, "1,000,000 layers"),
        ({"num_attention_heads": 3}, "3 heads"),
    ],
)  # fmt: skip
def test_a_config_without_sense_is_refused_by_the_fields_name(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ToolkitError, match=message):
        tiny(**fields)


@pytest.mark.parametrize("nonsense", [3, 2.5, "all", True, {"a": 1}])
def test_a_list_or_a_dtype_that_is_none_is_passed_over(nonsense: Any) -> None:
    model = tiny(model_type="qwen3_moe", num_experts=4, mlp_only_layers=nonsense)
    assert all(layer.mlp.experts == 4 for layer in model.layers)
    assert tiny(torch_dtype=nonsense).element_bytes == 2
    hybrid = shape_of(config(NEXT) | {"mamba_ssm_dtype": nonsense}, "x")
    assert hybrid.layers[0].attention == shape(NEXT).layers[0].attention


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 4),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.one_of(st.integers(-1, 3), st.text(max_size=3)), max_size=4),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
FIELDS = sorted(
    {*TINY, *config("DeepSeek-V2-Lite"), *config(NEXT), "layer_types", "text_config"}
    | {"vision_config", "quantization_config", "sliding_window", "head_dim"}
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6))
def test_any_config_becomes_a_shape_or_a_clear_refusal(fields: dict[str, Any]) -> None:
    with contextlib.suppress(ToolkitError):
        model = shape_of(TINY | fields, "any")
        assert parameters(model).total > 0
        assert layout(model, EngineSettings(max_model_len=512)).bytes_per_block > 0
