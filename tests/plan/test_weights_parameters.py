"""Parameters, counted from configs, against the same models built by transformers, and against what their makers publish."""

from typing import Any

import pytest
from support.shapes import shape, tiny

from toolkit.plan.model_config import shape_of
from toolkit.plan.weights import parameters

# Built by transformers 5.19 on torch's meta device (`AutoModelForCausalLM.from_config`, `AutoModelForImageTextToText` where there
# is an encoder), and every element of `parameters()` counted: another program on the same numbers.
BY_TRANSFORMERS = {
    "Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen2.5-72B-Instruct": 72_706_203_648,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-30B-A3B": 30_532_122_624,
    "Qwen3-Next-80B-A3B-Instruct": 79_674_391_296,
    "Qwen3.5-35B-A3B": 35_107_181_936,
    "DeepSeek-V2-Lite": 15_706_484_224,
    "Llama-3.1-8B-Instruct": 8_030_261_248,
    "Llama-3.3-70B-Instruct": 70_553_706_496,
    "Mistral-7B-Instruct-v0.3": 7_248_023_552,
    "gemma-2-9b-it": 9_241_705_984,
    "gemma-2-27b-it": 27_227_128_320,
    "gemma-3-27b-it": 27_432_406_640,
    "gpt-oss-20b": 20_914_757_184,
    # 852,985,920 with an image encoder of 100,592,896, which the catalog's entry does not name
    "Qwen3.5-0.8B": 852_985_920 - 100_592_896,
}

INLINE: dict[str, tuple[dict[str, Any], int]] = {
    "Mixtral-8x7B": (
        {
            "model_type": "mixtral",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 32000,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
        46_702_792_704,
    ),
    "phi-4": (
        {
            "model_type": "phi3",
            "hidden_size": 5120,
            "intermediate_size": 17920,
            "num_hidden_layers": 40,
            "num_attention_heads": 40,
            "num_key_value_heads": 10,
            "vocab_size": 100352,
        },
        14_659_507_200,
    ),
    # queries in two steps
    "DeepSeek-V3": (
        {
            "model_type": "deepseek_v3",
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "moe_intermediate_size": 2048,
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "first_k_dense_replace": 3,
            "vocab_size": 129280,
        },
        671_026_404_352,
    ),
}
"""Further families, counted the same way."""


@pytest.mark.parametrize(("name", "expected"), BY_TRANSFORMERS.items())
def test_the_count_is_transformers_own(name: str, expected: int) -> None:
    assert parameters(shape(name)).total == expected


@pytest.mark.parametrize("name", INLINE)
def test_the_count_is_transformers_own_for_other_families(name: str) -> None:
    config, expected = INLINE[name]
    assert parameters(shape_of(config, name)).total == expected


def test_the_parts_are_what_they_are_called() -> None:
    counted = parameters(shape("Qwen2.5-7B-Instruct"))
    # by transformers' own modules: embedding, lm_head, self_attn, mlp, norms
    assert counted.embedding == counted.head == 544_997_376
    biases = 28 * (28 + 4 + 4) * 128
    assert counted.attention + biases == 822_212_608
    assert counted.mlp == 5_703_204_864
    assert counted.rest == 204_288 + biases
    assert (counted.experts, counted.other, counted.drafts, counted.idle) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("name", "billions"),
    # model cards: 3.3 B and 2.4 B active; A3B
    [("Qwen3-30B-A3B", 3.35), ("DeepSeek-V2-Lite", 2.66), ("Qwen3.5-35B-A3B", 3.45)],
)
def test_a_token_uses_the_experts_that_it_is_routed_to(name: str, billions: float) -> None:
    assert round(parameters(shape(name)).active / 1e9, 2) == billions


def test_all_of_a_dense_model_is_active() -> None:
    counted = parameters(shape("Qwen3-8B"))
    assert counted.active == counted.total


def test_a_tied_output_costs_nothing() -> None:
    assert parameters(tiny(tie_word_embeddings=True)).head == 0
    assert parameters(tiny(tie_word_embeddings=False)).head == 2048 * 128


def test_layers_for_speculation_are_counted_apart() -> None:
    counted = parameters(shape("Qwen3.5-35B-A3B"))
    # an attention layer: 2048 x (2 x 16 + 2 + 2 + 16) x 256; 257 experts of 3 x 2048 x 512; router 2048 x 256; the join 2 x 2048^2
    projections = 2048 * 52 * 256 + 257 * 3 * 2048 * 512 + 2048 * 256 + 2 * 2048 * 2048
    assert projections < counted.drafts < projections * 1.0001
    assert counted.total + counted.drafts == pytest.approx(35.95e9, rel=0.001)


def test_an_mlp_without_a_gate_has_two_matrices() -> None:
    gated, plain = parameters(tiny()), parameters(tiny(model_type="opt", tie_word_embeddings=False))
    assert gated.mlp == 4 * 3 * 128 * 256
    assert plain.mlp == 4 * 2 * 128 * 256


def test_more_experts_used_than_there_are_means_all() -> None:
    counted = parameters(tiny(model_type="qwen3_moe", num_experts=4, num_experts_per_tok=8))
    assert (counted.idle, counted.active) == (0, counted.total)
