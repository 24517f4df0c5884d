"""Bytes of the KV cache for each token, against published figures and arithmetic by hand."""

import pytest
from support.shapes import shape, tiny

from toolkit.errors import ToolkitError
from toolkit.plan.kv_cache import bytes_per_token, layer_bytes, state_bytes

# Bytes a token in 16 bit, over the layers that keep every token, by each published config: layers x 2 x KV heads x head
# size x 2; of MLA layers x (rank + rope) x 2, e.g., 27 x (512 + 64) x 2 = 31,104.
FULL_LAYERS = {
    "Qwen2.5-7B-Instruct": 57_344,
    "Qwen3-30B-A3B": 98_304,
    "Qwen3-Coder-30B-A3B-Instruct": 98_304,
    "Qwen3.5-35B-A3B": 20_480,
    "Qwen3-Next-80B-A3B-Instruct": 24_576,
    "DeepSeek-V2-Lite": 31_104,
    "DeepSeek-Coder-V2-Lite-Instruct": 31_104,
    "Llama-3.1-8B-Instruct": 131_072,
    "Llama-3.3-70B-Instruct": 327_680,
    "gemma-2-27b-it": 188_416,
    "gemma-3-27b-it": 81_920,
    # "5 Lessons from Deploying LLMs in Production using vLLM": 2 x 32 x 128 x 42 x 2
    "example-27b": 688_128,
    # 80 layers x 2 x 8 x 128 x 2
    "Qwen2.5-72B-Instruct": 327_680,
}
ALL_AS_FULL = {"gemma-2-27b-it": 376_832, "gemma-3-27b-it": 507_904}


@pytest.mark.parametrize(("name", "expected"), FULL_LAYERS.items())
def test_a_token_takes_what_the_published_sizes_come_to(name: str, expected: int) -> None:
    assert bytes_per_token(shape(name)) == expected


@pytest.mark.parametrize(("name", "expected"), FULL_LAYERS.items())
def test_fp8_halves_it(name: str, expected: int) -> None:
    assert bytes_per_token(shape(name), "fp8") == expected // 2
    assert bytes_per_token(shape(name), "fp8_e5m2") == expected // 2


@pytest.mark.parametrize(("name", "expected"), ALL_AS_FULL.items())
def test_while_its_windows_fill_a_token_is_kept_in_all_layers(name: str, expected: int) -> None:
    model = shape(name)
    each = (layer_bytes(layer.attention, 2, "auto", 1) for layer in model.layers)
    assert sum(each) == expected


def test_tensor_parallelism_divides_kv_heads_down_to_one() -> None:
    # 4 KV heads
    whole = 57_344
    model = shape("Qwen2.5-7B-Instruct")
    shares = [bytes_per_token(model, tp=tp) for tp in (1, 2, 4, 7, 14)]
    assert shares == [whole, whole // 2, whole // 4, whole // 4, whole // 4]


def test_tensor_parallelism_does_not_divide_the_latent_vector() -> None:
    assert bytes_per_token(shape("DeepSeek-V2-Lite"), tp=8) == 31_104


def test_a_state_is_its_convolution_and_its_matrix_and_shrinks_with_gpus() -> None:
    model = shape("Qwen3.5-35B-A3B")
    # convolution 49,152 + state 2,097,152 = 2,146,304 in each of 30 layers: 64.4 MB
    assert state_bytes(model) == 30 * 2_146_304
    assert state_bytes(model, tp=2) == 15 * 2_146_304
    # one speculated token more in the convolution: (2 x 16 x 128 + 32 x 128) x 2 bytes
    assert state_bytes(model, spec_tokens=1) == 30 * (2_146_304 + 8192 * 2)


def test_a_state_is_in_the_models_own_dtype_where_its_config_says_nothing() -> None:
    # Qwen3-Next: 49,152 + 32 x 128 x 128 x 2 in each of 36 layers
    assert state_bytes(shape("Qwen3-Next-80B-A3B-Instruct")) == 36 * (49_152 + 1_048_576)


def test_a_model_without_states_has_none() -> None:
    assert state_bytes(shape("Qwen2.5-7B-Instruct")) == 0


@pytest.mark.parametrize(
    ("kv_dtype", "expected"),
    [
        # 4 layers, 2 KV heads, 32 elements
        ("auto", 4 * 2 * (32 + 32) * 2),
        ("bfloat16", 4 * 2 * (32 + 32) * 2),
        ("fp8_e4m3", 4 * 2 * (32 + 32)),
        # a float32 scale for each key and each value
        ("int8_per_token_head", 4 * 2 * (32 + 4 + 32 + 4)),
        ("fp8_per_token_head", 4 * 2 * (32 + 4 + 32 + 4)),
        ("int4_per_token_head", 4 * 2 * (16 + 4 + 16 + 4)),
        # 32 / 2 + 32 / 16 for each
        ("nvfp4", 4 * 2 * (18 + 18)),
    ],
)
def test_each_kv_dtype_has_its_elements_and_scales(kv_dtype: str, expected: int) -> None:
    assert bytes_per_token(tiny(), kv_dtype) == expected


def test_a_model_in_32_bit_caches_32_bit_unless_told_otherwise() -> None:
    model = tiny(torch_dtype="float32")
    assert bytes_per_token(model) == 4 * 2 * (32 + 32) * 4
    assert bytes_per_token(model, "bfloat16") == 4 * 2 * (32 + 32) * 2


@pytest.mark.parametrize(("kv_dtype", "token"), [("fp8_ds_mla", 656), ("nvfp4_ds_mla", 352)])
def test_deepseeks_packed_formats_have_their_own_size(kv_dtype: str, token: int) -> None:
    assert bytes_per_token(shape("DeepSeek-V2-Lite"), kv_dtype) == 27 * token


def test_an_unknown_kv_dtype_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ToolkitError, match="`fp7`") as raised:
        bytes_per_token(tiny(), "fp7")
    assert "fp8_e4m3" in raised.value.hint


def test_a_packed_format_of_mla_is_refused_for_heads() -> None:
    with pytest.raises(ToolkitError, match="`fp8_ds_mla` is for models with MLA only"):
        bytes_per_token(tiny(), "fp8_ds_mla")
