"""Parameters and bytes of weights, against the same models built by transformers, published files, vLLM's logs and by hand."""

from typing import Any

import pytest
from support.shapes import GIB, config, shape, tiny

from toolkit.plan.model_config import shape_of
from toolkit.plan.quantization import KNOWN
from toolkit.plan.weights import as_stored, parameters, stages, weights_bytes

QWEN, HYBRID = "Qwen2.5-7B-Instruct", "Qwen3.5-35B-A3B"
TOTAL = 7_615_616_512
"""Of Qwen2.5-7B-Instruct."""

MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    # queries in two steps
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
}


@pytest.mark.parametrize(
    # Built by transformers 5.19 on torch's meta device (`AutoModelForCausalLM.from_config`, `AutoModelForImageTextToText` where
    # there is an encoder), and every element of `parameters()` counted: another program on the same numbers.
    ("model", "expected"),
    [
        ("Qwen2.5-0.5B-Instruct", 494_032_768),
        (QWEN, TOTAL),
        ("Qwen2.5-72B-Instruct", 72_706_203_648),
        ("Qwen3-8B", 8_190_735_360),
        ("Qwen3-30B-A3B", 30_532_122_624),
        ("Qwen3-Next-80B-A3B-Instruct", 79_674_391_296),
        (HYBRID, 35_107_181_936),
        ("DeepSeek-V2-Lite", 15_706_484_224),
        ("Llama-3.1-8B-Instruct", 8_030_261_248),
        ("Llama-3.3-70B-Instruct", 70_553_706_496),
        ("Mistral-7B-Instruct-v0.3", 7_248_023_552),
        ("gemma-2-9b-it", 9_241_705_984),
        ("gemma-2-27b-it", 27_227_128_320),
        ("gemma-3-27b-it", 27_432_406_640),
        ("gpt-oss-20b", 20_914_757_184),
        # 852,985,920 with an image encoder of 100,592,896, which the catalog's entry does not name
        ("Qwen3.5-0.8B", 852_985_920 - 100_592_896),
        (MIXTRAL, 46_702_792_704),
        (DEEPSEEK_V3, 671_026_404_352),
    ],
)
def test_the_count_is_transformers_own(model: str | dict[str, Any], expected: int) -> None:
    built = shape(model) if isinstance(model, str) else shape_of(model, "inline")
    assert parameters(built).total == expected


def test_the_parts_are_what_they_are_called() -> None:
    counted = parameters(shape(QWEN))
    # by transformers' own modules: embedding, lm_head, self_attn, mlp, norms
    biases = 28 * (28 + 4 + 4) * 128
    assert counted.embedding == counted.head == 544_997_376
    assert counted.attention + biases == 822_212_608
    assert counted.mlp == 5_703_204_864
    assert counted.rest == 204_288 + biases
    assert counted.active == counted.total
    # tied, the output costs nothing; without a gate an MLP has two matrices
    assert [parameters(tiny(tie_word_embeddings=tied)).head for tied in (True, False)] == [
        0,
        2048 * 128,
    ]
    assert parameters(tiny()).mlp == 4 * 3 * 128 * 256
    assert parameters(tiny(model_type="opt")).mlp == 4 * 2 * 128 * 256


@pytest.mark.parametrize(
    ("name", "billions"),
    # model cards: 3.3 B and 2.4 B active; A3B
    [("Qwen3-30B-A3B", 3.35), ("DeepSeek-V2-Lite", 2.66), (HYBRID, 3.45)],
)
def test_a_token_uses_the_experts_that_it_is_routed_to(name: str, billions: float) -> None:
    assert round(parameters(shape(name)).active / 1e9, 2) == billions
    more = parameters(tiny(model_type="qwen3_moe", num_experts=4, num_experts_per_tok=8))
    assert (more.idle, more.active) == (0, more.total)


def test_layers_for_speculation_are_counted_apart() -> None:
    counted = parameters(shape(HYBRID))
    # an attention layer: 2048 x (2 x 16 + 2 + 2 + 16) x 256; 257 experts of 3 x 2048 x 512; router 2048 x 256; the join 2 x 2048^2
    projections = 2048 * 52 * 256 + 257 * 3 * 2048 * 512 + 2048 * 256 + 2 * 2048 * 2048
    assert projections < counted.drafts < projections * 1.0001
    assert counted.total + counted.drafts == pytest.approx(35.95e9, rel=0.001)


# --- bytes ------------------------------------------------------------------------------------------


def test_bytes_follow_the_quantization_and_embeddings_stay_in_16_bit() -> None:
    model = shape(QWEN)
    assert weights_bytes(model) == weights_bytes(model, "fp16") == 2 * TOTAL
    single = shape_of(config(QWEN) | {"torch_dtype": "float32"}, "x")
    assert weights_bytes(single) == 4 * TOTAL
    # by transformers: projections 822,212,608 - biases 129,024 and MLP 5,703,204,864 are quantized, the rest is not
    quantized = 822_212_608 - 129_024 + 5_703_204_864
    kept = TOTAL - quantized
    assert weights_bytes(model, "fp8") == quantized + 2 * kept
    # Qwen2.5-7B-Instruct-AWQ's files have 5.57 GB
    assert weights_bytes(model, "awq") == round(quantized * (0.5 + 2.5 / 128) + 2 * kept)
    assert weights_bytes(model, "awq") == pytest.approx(5.57e9, rel=0.002)


@pytest.mark.parametrize(
    ("name", "drafts", "published_gb", "within"),
    [
        # "What I Learned from a Live LLM Serving Gauntlet" says about 35, 25 and 24.5 GB, which published files and vLLM's log (GiB, without MTP) round differently:
        # FP8 36.6 GB = 34.1 GiB as loaded; 4 bit 24.2 GB in the files, which two recipes of AWQ and GPTQ exceed by little
        ("fp8", False, 35.0, 0.05),
        ("awq", True, 25.0, 0.04),
        ("gptq-int4", True, 24.5, 0.02),
    ],
)
def test_the_gauntlets_model_comes_near_what_its_article_says(
    name: str, drafts: bool, published_gb: float, within: float
) -> None:
    model = shape(HYBRID)
    # the layers for multi-token prediction stay in 16 bit, and are in the files only
    size = weights_bytes(model, name) + 2 * parameters(model).drafts * drafts
    assert size / 1e9 == pytest.approx(published_gb, rel=within)


def test_4_bit_files_of_hybrids_leave_attention_as_it_is() -> None:
    experts, total = 40 * 256 * 3 * 2048 * 512, 35_107_181_936
    assert weights_bytes(shape(HYBRID), "gptq-int4") == round(
        experts * (0.5 + 2.5 / 128) + 2 * (total - experts)
    )
    # of a model that is no hybrid all projections are 4 bit: Qwen3-30B-A3B-GPTQ-Int4's files have 16.9 GB
    assert weights_bytes(shape("Qwen3-30B-A3B"), "gptq-int4") == pytest.approx(16.9e9, rel=0.01)


def test_the_checkpoints_own_quantization_is_the_default() -> None:
    # gpt-oss-20b's files have 13.8 GB
    assert weights_bytes(shape("gpt-oss-20b")) == pytest.approx(13.8e9, rel=0.005)
    model = tiny(quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 32})
    # its own name means its own groups, another name the usual ones
    assert as_stored(model, None).group == as_stored(model, "gptq").group == 32
    assert as_stored(model, "awq") == KNOWN["awq"]


def test_bytes_on_disk_go_before_counting_where_they_are_in_that_quantization() -> None:
    plain = shape(QWEN)
    awq = shape_of(config(QWEN) | {"quantization_config": {"quant_method": "awq", "bits": 4}}, "x")
    for model, named, counts in (
        *((plain, name, False) for name in (None, "bf16", "fp16", "auto")),
        (plain, "fp8", True),
        (awq, None, False),
        (awq, "awq", False),
        (awq, "bf16", True),
    ):
        expected = weights_bytes(model, named) if counts else 123_456
        assert weights_bytes(model, named, on_disk=123_456) == expected
    # and they are divided like counted ones
    llama = shape("Llama-3.1-8B-Instruct")
    double = 2 * weights_bytes(llama)
    assert weights_bytes(llama, tp=2, on_disk=double) == 2 * weights_bytes(llama, tp=2)


# --- several GPUs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tp", "reported_gib"),
    # what vLLM 0.19 logged as "Model loading took" on an H100 (llm-d-planner, accuracy_report.md, public)
    [
        ("Llama-3.1-8B-Instruct", 1, 14.99),
        ("Llama-3.1-8B-Instruct", 2, 7.51),
        ("Llama-3.1-8B-Instruct", 4, 3.77),
        (QWEN, 1, 14.25),
        (QWEN, 4, 3.55),
        ("gemma-2-27b-it", 1, 50.72),
        ("gemma-3-27b-it", 1, 51.45),
    ],
)
def test_a_gpus_part_is_what_vllm_reported(name: str, tp: int, reported_gib: float) -> None:
    assert weights_bytes(shape(name), tp=tp) / GIB == pytest.approx(reported_gib, rel=0.012)


NORMS = (4 * 2 + 1) * 128 * 2
"""Of the tiny model, in bytes: two a layer and the last one, which every GPU has whole."""


@pytest.mark.parametrize(
    ("tp", "copies"),
    # one key and one value head of 32 each in 4 layers: on 4 GPUs half of them would be a GPU's part, on 8 a quarter
    [(2, 0), (4, 4 * 128 * 2 * 32 * 2 // 2), (8, 4 * 128 * 2 * 32 * 2 * 3 // 4)],
)
def test_gpus_divide_all_but_norms_and_copied_kv_heads(tp: int, copies: int) -> None:
    part = (weights_bytes(tiny()) - NORMS) // tp + NORMS
    assert weights_bytes(tiny(), tp=tp) == part + copies


def test_every_gpu_makes_the_whole_latent_vector() -> None:
    sizes = {"qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
    model = tiny(kv_lora_rank=512, **sizes)
    half, whole = weights_bytes(model, tp=2), weights_bytes(model)
    # not halved: 4 layers' way down to 512 + 64, its norm, two norms, and the last one
    copied = 2 * (4 * (128 * (512 + 64) + 512 + 2 * 128) + 128)
    assert half - copied == (whole - copied) // 2


def test_a_pipelines_fullest_stage_counts() -> None:
    layer = 2 * (128 * (4 + 2 + 2 + 4) * 32 + 3 * 128 * 256 + 2 * 128)
    for tied in (True, False):
        # two layers, the output's matrix, which is a copy where the embedding is reused, and the last norm
        model = tiny(tie_word_embeddings=tied)
        assert weights_bytes(model, pp=2) == 2 * layer + 2 * (2048 * 128 + 128)


@pytest.mark.parametrize(
    ("layers", "pp", "sizes"),
    [
        (32, 4, [8, 8, 8, 8]),
        # vLLM's get_pp_indices: the rest goes backwards from the last but one
        (30, 4, [7, 8, 8, 7]),
        (31, 4, [8, 8, 8, 7]),
        (29, 4, [7, 7, 8, 7]),
        (27, 2, [14, 13]),
    ],
)
def test_the_rest_goes_to_the_stages_before_the_last(
    layers: int, pp: int, sizes: list[int]
) -> None:
    assert [len(stage) for stage in stages(layers, pp)] == sizes
    assert [index for stage in stages(layers, pp) for index in stage] == list(range(layers))
