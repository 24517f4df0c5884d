"""How weights are stored: names, scales, and what a checkpoint's own config says."""

from typing import Any

import pytest

from toolkit.errors import ToolkitError
from toolkit.plan.quantization import KNOWN, QUANTIZATIONS, quantization, stored_as

INT4 = 0.5 + 2.5 / 128
"""A 16-bit scale and a 4-bit zero point for 128 weights."""
NVFP4 = 0.5 + 1 / 16
"""An 8-bit scale for 16."""


@pytest.mark.parametrize(
    ("word", "name", "weight_bytes"),
    [
        ("fp32", "fp32", 4.0),
        ("bfloat16", "bf16", 2.0),
        (" fp8 ", "fp8", 1.0),
        ("int8", "int8", 1.0),
        ("AWQ", "awq", INT4),
        ("awq_marlin", "awq", INT4),
        ("gptq", "gptq-int4", INT4),
        # a 16-bit scale and an 8-bit zero point for 128 weights
        ("gptq-int8", "gptq-int8", 1.0 + 3.0 / 128),
        ("nvfp4", "nvfp4", NVFP4),
        ("mxfp4", "mxfp4", 0.5 + 1 / 32),
    ],
)
def test_a_name_and_a_weight_with_its_part_of_a_scale(
    word: str, name: str, weight_bytes: float
) -> None:
    found = quantization(word)
    assert found == KNOWN[name]
    assert found.weight_bytes == weight_bytes


def test_the_known_names_stand_in_the_order_of_size_and_others_are_refused() -> None:
    assert QUANTIZATIONS[0] == "fp32"
    assert QUANTIZATIONS.index("bf16") < QUANTIZATIONS.index("fp8") < QUANTIZATIONS.index("awq")
    assert set(QUANTIZATIONS) == set(KNOWN)
    with pytest.raises(ToolkitError, match="`q3_k_m`") as raised:
        quantization("q3_k_m")
    assert "gptq-int4" in raised.value.hint


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}


def compressed(ignore: list[str], **weights: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": weights}},
        "ignore": ignore,
    }


@pytest.mark.parametrize(
    ("config", "name", "weight_bytes", "attention_kept"),
    [
        (GPTQ, "gptq-int4", INT4, False),
        (GPTQ | {"bits": 8}, "gptq-int8", 1 + 3 / 128, False),
        (GPTQ | {"group_size": 32}, "gptq-int4", 0.5 + 2.5 / 32, False),
        # one scale a row
        (GPTQ | {"group_size": -1}, "gptq-int4", 0.5, False),
        # as Qwen writes for hybrids
        (GPTQ | {"dynamic": {"-:.*attn.*": {}, "-:.*mtp.*": {}}}, "gptq-int4", INT4, True),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, "awq", 0.5 + 2.5 / 64, False),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", 1.0, False),
        ({"quant_method": "mxfp4"}, "mxfp4", 0.5 + 1 / 32, True),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", NVFP4, False),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", 1.0, False),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 1.0, False),
        (compressed([], num_bits=8, type="float"), "fp8", 1.0, False),
        (compressed([], num_bits=8, type="int"), "int8", 1.0, False),
        (compressed(["lm_head"], num_bits=4, type="int", group_size=128), "int4", INT4, False),
        (
            compressed(["re:.*self_attn.*"], num_bits=4, type="int", group_size=128),
            "int4",
            INT4,
            True,
        ),
        # of 16 where the file does not say
        (compressed([], num_bits=4, type="float"), "nvfp4", NVFP4, False),
    ],
)
def test_a_checkpoints_config_is_read(
    config: dict[str, Any], name: str, weight_bytes: float, attention_kept: bool
) -> None:
    found = stored_as(config)
    assert found is not None
    assert (found.name, found.weight_bytes) == (name, weight_bytes)
    assert found.attention_kept == attention_kept


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
        compressed([], num_bits=3),
    ],
)
def test_what_cannot_be_read_is_unknown_and_no_crash(config: object) -> None:
    assert stored_as(config) is None
