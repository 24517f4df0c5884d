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


def heads(model: Shape) -> list[KvHeads]:
    return [layer.attention for layer in model.layers if isinstance(layer.attention, KvHeads)]


def windows(model: Shape) -> list[int | None]:
    return [one.window for one in heads(model)]


@pytest.mark.parametrize("absent", [None, 0])
def test_without_a_head_dim_it_is_hidden_by_heads(absent: int | None) -> None:
    model = shape_of({**TINY, "head_dim": absent}, "tiny")
    assert {one.head_dim for one in heads(model)} == {32}


def test_a_head_dim_that_is_given_goes_before_hidden_by_heads() -> None:
    # Qwen3-30B-A3B: 2048 / 32 would be 64
    assert {one.head_dim for one in heads(shape("Qwen3-30B-A3B"))} == {128}


def test_mla_is_known_by_its_rank_though_head_dim_is_0() -> None:
    model = shape_of(config("DeepSeek-V2-Lite") | {"head_dim": 0}, "x")
    assert all(isinstance(layer.attention, Latent) for layer in model.layers)


def test_without_kv_heads_there_are_as_many_as_query_heads() -> None:
    assert {one.kv_heads for one in heads(tiny(num_key_value_heads=None))} == {4}


def test_multi_query_means_one_kv_head() -> None:
    model = tiny(num_key_value_heads=None, multi_query=True)
    assert {one.kv_heads for one in heads(model)} == {1}


def test_use_sliding_window_false_cancels_the_window() -> None:
    with_window = {"sliding_window": 64, "max_window_layers": 1, "model_type": "qwen2"}
    assert windows(tiny(**with_window, use_sliding_window=False)) == [None] * 4
    # where it is on, the first layers are full (transformers' Qwen2Config)
    assert windows(tiny(**with_window, use_sliding_window=True)) == [None, 64, 64, 64]


def test_a_window_alone_is_every_layers() -> None:
    assert windows(tiny(model_type="mistral", sliding_window=64)) == [64] * 4


def test_layer_types_go_before_the_familys_pattern() -> None:
    kinds = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    model = tiny(model_type="gemma2", layer_types=kinds, sliding_window=64)
    assert windows(model) == [None, 64, 64, None]


@pytest.mark.parametrize(
    ("family", "layers", "full"),
    [("gemma2", 6, [1, 3, 5]), ("gpt_oss", 4, [1, 3]), ("gemma3_text", 13, [5, 11])],
)
def test_without_layer_types_the_familys_pattern_holds(
    family: str, layers: int, full: list[int]
) -> None:
    model = tiny(model_type=family, num_hidden_layers=layers, sliding_window=64)
    found = windows(model)
    assert [index for index, window in enumerate(found) if window is None] == full


def test_a_stated_pattern_goes_before_the_familys() -> None:
    model = tiny(model_type="gemma3_text", sliding_window=64, sliding_window_pattern=2)
    assert windows(model) == [64, None, 64, None]


def test_a_hybrid_without_layer_types_is_full_in_every_fourth() -> None:
    model = shape("Qwen3-Next-80B-A3B-Instruct")
    full = [i for i, layer in enumerate(model.layers) if not isinstance(layer.attention, Recurrent)]
    assert full == list(range(3, 48, 4))
    without = {
        key: value
        for key, value in config("Qwen3-Next-80B-A3B-Instruct").items()
        if key != "full_attention_interval"
    }
    assert shape_of(without, model.name) == model


def test_a_nested_text_config_is_read_and_the_outer_one_ties() -> None:
    inner = {**TINY, "model_type": "qwen3_text", "num_hidden_layers": 3}
    model = shape_of({"text_config": inner, "tie_word_embeddings": True}, "nested")
    assert len(model.layers) == 3
    assert model.tied
    assert heads(model)[0].head_norms == 2 * 32


def test_an_unknown_kind_of_layer_is_priced_as_full_and_told() -> None:
    kinds = ["full_attention", "sparse_moon", "sparse_moon", "full_attention"]
    model = tiny(layer_types=kinds)
    assert windows(model) == [None] * 4
    assert model.notes == ("layers of kind `sparse_moon` are not known: priced as full attention",)


def test_a_window_kind_without_a_window_is_priced_as_full_and_told() -> None:
    model = tiny(layer_types=["sliding_attention"] * 4)
    assert windows(model) == [None] * 4
    assert len(model.notes) == 1
    assert "sliding_window" in model.notes[0]


def test_what_gemma_3s_config_leaves_out_is_taken_and_told() -> None:
    model = shape("gemma-3-27b-it")
    assert model.vocab == 262_208
    assert any("vocab_size" in note for note in model.notes)


def test_the_first_layers_of_deepseek_are_dense() -> None:
    mlps = [layer.mlp for layer in shape("DeepSeek-V2-Lite").layers]
    assert [bool(mlp.experts) for mlp in mlps] == [False] + [True] * 26
    assert (mlps[0].width, mlps[1].width, mlps[1].shared_width) == (10_944, 1408, 2816)


def test_experts_may_stand_in_every_second_layer() -> None:
    moe = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    model = tiny(model_type="qwen3_moe", decoder_sparse_step=2, mlp_only_layers=[3], **moe)
    # by transformers: where (index + 1) % 2 == 0, and not where the list says so
    assert [layer.mlp.experts for layer in model.layers] == [0, 4, 0, 0]


def test_an_image_encoder_of_unknown_size_is_told() -> None:
    model = shape_of({"text_config": TINY, "vision_config": {"model_type": "clip"}}, "seer")
    assert model.other == 0
    assert "image encoder" in model.notes[0]


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ({"num_kv_shared_layers": 2}, "share"),
        ({"index_topk": 2048}, "index"),
        ({"is_encoder_decoder": True}, "cross-attention"),
        ({"hybrid_override_pattern": "M-M*"}, "not read"),
        ({"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}, "price `fp8`"),
    ],
)
def test_what_memory_hangs_on_and_is_not_priced_is_told(field: dict[str, Any], told: str) -> None:
    (note,) = tiny(**field).notes
    assert told in note
    assert tiny().notes == ()


def test_full_layers_may_have_heads_of_their_own() -> None:
    # gemma-4: wider and fewer than in layers with a window
    model = tiny(
        sliding_window=64,
        layer_types=["sliding_attention"] * 3 + ["full_attention"],
        global_head_dim=64,
        num_global_key_value_heads=1,
    )
    assert [(one.kv_heads, one.head_dim) for one in heads(model)] == [(2, 32)] * 3 + [(1, 64)]


@pytest.mark.parametrize(
    "field", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"]
)
def test_a_missing_size_is_named(field: str) -> None:
    without = {key: value for key, value in TINY.items() if key != field}
    with pytest.raises(ToolkitError, match=f"`tiny` has no `{field}`"):
        shape_of(without, "tiny")


@pytest.mark.parametrize(
    "nonsense", [-1, 2.5, "many", True, [4], 10**30, float("inf"), float("nan"), {"a": 1}]
)
def test_a_size_that_is_none_is_refused_by_name(nonsense: Any) -> None:
    with pytest.raises(ToolkitError, match="`hidden_size` of `tiny`"):
        tiny(hidden_size=nonsense)


@pytest.mark.parametrize("nonsense", [3, 2.5, "all", True, {"a": 1}])
def test_a_list_of_layers_that_is_no_list_is_passed_over(nonsense: Any) -> None:
    model = tiny(model_type="qwen3_moe", num_experts=4, mlp_only_layers=nonsense)
    assert all(layer.mlp.experts == 4 for layer in model.layers)


@pytest.mark.parametrize("nonsense", [3, ["float32"], {"a": 1}])
def test_a_dtype_that_is_no_word_is_taken_for_16_bit(nonsense: Any) -> None:
    hybrid = config("Qwen3-Next-80B-A3B-Instruct") | {"mamba_ssm_dtype": nonsense}
    assert (
        shape_of(hybrid, "x").layers[0].attention
        == shape("Qwen3-Next-80B-A3B-Instruct").layers[0].attention
    )
    assert tiny(torch_dtype=nonsense).element_bytes == 2


def test_layer_types_of_another_length_are_refused() -> None:
    with pytest.raises(ToolkitError, match="2 `layer_types` for 4 layers"):
        tiny(layer_types=["full_attention"] * 2)


def test_a_million_layers_are_refused_before_they_are_made() -> None:
    with pytest.raises(ToolkitError, match="1,000,000 layers"):
        tiny(num_hidden_layers=1_000_000)


def test_heads_that_do_not_divide_hidden_are_refused() -> None:
    with pytest.raises(ToolkitError, match="3 heads"):
        tiny(num_attention_heads=3)


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
    {*TINY, *config("DeepSeek-V2-Lite"), *config("Qwen3-Next-80B-A3B-Instruct"), "layer_types"}
    | {"text_config", "vision_config", "quantization_config", "sliding_window", "head_dim"}
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6))
def test_any_config_becomes_a_shape_or_a_clear_refusal(fields: dict[str, Any]) -> None:
    with contextlib.suppress(ToolkitError):
        model = shape_of(TINY | fields, "any")
        assert parameters(model).total > 0
        assert layout(model, EngineSettings(max_model_len=512)).bytes_per_block > 0
