"""How weights are stored: names, scales, and what a checkpoint's own config says."""

from typing import Any

import pytest

from toolkit.errors import ToolkitError
from toolkit.plan.quantization import KNOWN, QUANTIZATIONS, quantization, stored_as


@pytest.mark.parametrize(
    ("name", "weight_bytes"),
    [
        ("fp32", 4.0),
        ("bf16", 2.0),
        ("fp8", 1.0),
        ("int8", 1.0),
        # a 16-bit scale and a 4-bit zero point for 128 weights
        ("awq", 0.5 + 2.5 / 128),
        ("gptq-int4", 0.5 + 2.5 / 128),
        # a 16-bit scale and an 8-bit zero point for 128 weights
        ("gptq-int8", 1.0 + 3.0 / 128),
        # an 8-bit scale for 16, and for 32
        ("nvfp4", 0.5 + 1 / 16),
        ("mxfp4", 0.5 + 1 / 32),
    ],
)
def test_a_weight_and_its_part_of_a_scale(name: str, weight_bytes: float) -> None:
    assert quantization(name).weight_bytes == weight_bytes


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("AWQ", "awq"),
        ("awq_marlin", "awq"),
        ("gptq", "gptq-int4"),
        ("bfloat16", "bf16"),
        (" fp8 ", "fp8"),
    ],
)
def test_what_vllm_and_people_call_the_same_is_the_same(word: str, name: str) -> None:
    assert quantization(word) == KNOWN[name]


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ToolkitError, match="`q3_k_m`") as raised:
        quantization("q3_k_m")
    assert "gptq-int4" in raised.value.hint


def test_the_names_stand_in_the_order_of_size() -> None:
    assert QUANTIZATIONS[0] == "fp32"
    assert QUANTIZATIONS.index("bf16") < QUANTIZATIONS.index("fp8") < QUANTIZATIONS.index("awq")
    assert set(QUANTIZATIONS) == set(KNOWN)


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}


@pytest.mark.parametrize(
    ("config", "name", "weight_bytes", "attention_kept"),
    [
        (GPTQ, "gptq-int4", 0.5 + 2.5 / 128, False),
        (GPTQ | {"bits": 8}, "gptq-int8", 1 + 3 / 128, False),
        (GPTQ | {"group_size": 32}, "gptq-int4", 0.5 + 2.5 / 32, False),
        # one scale a row
        (GPTQ | {"group_size": -1}, "gptq-int4", 0.5, False),
        # as Qwen writes for hybrids
        (
            GPTQ | {"dynamic": {"-:.*attn.*": {}, "-:.*mtp.*": {}}},
            "gptq-int4",
            0.5 + 2.5 / 128,
            True,
        ),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, "awq", 0.5 + 2.5 / 64, False),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", 1.0, False),
        ({"quant_method": "mxfp4"}, "mxfp4", 0.5 + 1 / 32, True),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", 0.5625, False),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", 1.0, False),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 1.0, False),
    ],
)
def test_a_checkpoints_config_is_read(
    config: dict[str, Any], name: str, weight_bytes: float, attention_kept: bool
) -> None:
    found = stored_as(config)
    assert found is not None
    assert (found.name, found.weight_bytes) == (name, weight_bytes)
    assert found.attention_kept == attention_kept


def compressed(**weights: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": weights}},
    }


@pytest.mark.parametrize(
    ("weights", "name"),
    [
        ({"num_bits": 8, "type": "float"}, "fp8"),
        ({"num_bits": 8, "type": "int"}, "int8"),
        ({"num_bits": 4, "type": "int", "group_size": 128}, "int4"),
        ({"num_bits": 4, "type": "float", "group_size": 16}, "nvfp4"),
    ],
)
def test_compressed_tensors_say_it_by_bits_and_type(weights: dict[str, Any], name: str) -> None:
    found = stored_as(compressed(**weights))
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "config",
    [
        None,
        "fp8",
        [],
        {},
        {"quant_method": "sorcery"},
        {"quant_method": 5},
        {"quant_method": "compressed-tensors"},
        {"quant_method": "compressed-tensors", "config_groups": {"a": None}},
        compressed(num_bits=3),
    ],
)
def test_what_cannot_be_read_is_unknown_and_no_crash(config: object) -> None:
    assert stored_as(config) is None


def test_nvfp4_has_groups_of_16_where_the_file_does_not_say() -> None:
    found = stored_as(compressed(num_bits=4, type="float"))
    assert found is not None
    # half a byte and an 8-bit scale for each 16 weights
    assert (found.name, found.weight_bytes) == ("nvfp4", 0.5 + 1 / 16)


def test_compressed_tensors_that_ignore_attention_keep_it() -> None:
    config = compressed(num_bits=4, type="int", group_size=32)
    kept = stored_as(config | {"ignore": ["lm_head", "re:.*self_attn.*"]})
    plain = stored_as(config | {"ignore": ["lm_head"]})
    assert kept is not None
    assert plain is not None
    assert (kept.attention_kept, plain.attention_kept) == (True, False)
