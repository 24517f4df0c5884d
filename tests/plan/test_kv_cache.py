"""Bytes, blocks, groups and requests of the KV cache, against published figures, vLLM's own and arithmetic by hand."""

from dataclasses import replace

import pytest
from support.shapes import GIB, shape, tiny

from toolkit.errors import ToolkitError
from toolkit.plan.capacity import held
from toolkit.plan.engine import NEWEST, EngineSettings
from toolkit.plan.kv_cache import Layout, bytes_per_request, bytes_per_token, layout
from toolkit.plan.model_config import Shape

QWEN, HYBRID, WINDOWS = "Qwen2.5-7B-Instruct", "Qwen3.5-35B-A3B", "gemma-3-27b-it"


def token(model: Shape, **settings: object) -> int:
    return bytes_per_token(model, EngineSettings(**settings))  # type: ignore[arg-type]


def state(model: Shape, **settings: object) -> int:
    return bytes_per_request(model, EngineSettings(**settings))  # type: ignore[arg-type]


def lay(name: str, **settings: object) -> Layout:
    return layout(shape(name), EngineSettings(max_model_len=8192, **settings))  # type: ignore[arg-type]


def mixed(kinds: str, **fields: object) -> Shape:
    """Layers named by their first letters: full, sliding (64 tokens)."""
    names = {"f": "full_attention", "s": "sliding_attention"}
    layers = [names[kind] for kind in kinds]
    return tiny(num_hidden_layers=len(layers), layer_types=layers, sliding_window=64, **fields)


# --- bytes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    # in 16 bit, over the layers that keep every token, by each published config: layers x 2 x KV heads x head size x 2
    [
        (QWEN, 57_344),
        ("Qwen3-30B-A3B", 98_304),
        (HYBRID, 20_480),
        ("Qwen3-Next-80B-A3B-Instruct", 24_576),
        # MLA: 27 layers x (rank 512 + rope 64) x 2
        ("DeepSeek-V2-Lite", 31_104),
        ("Llama-3.1-8B-Instruct", 131_072),
        ("Llama-3.3-70B-Instruct", 327_680),
        ("gemma-2-27b-it", 188_416),
        (WINDOWS, 81_920),
        # "5 Lessons from Deploying LLMs in Production using vLLM": 2 x 32 x 128 x 42 x 2
        ("example-27b", 688_128),
    ],
)
def test_a_token_takes_what_the_published_sizes_come_to_and_half_in_fp8(
    name: str, expected: int
) -> None:
    assert token(shape(name)) == expected
    assert token(shape(name), kv_cache_dtype="fp8") == expected // 2


def test_a_request_keeps_windows_and_states_beside_its_tokens() -> None:
    # 52 layers of 1,024 tokens x 2 x 16 heads x 128 x 2 bytes; while they fill, as many tokens as it has
    assert state(shape(WINDOWS)) == 52 * 1024 * 8192
    assert bytes_per_request(shape(WINDOWS), EngineSettings(), tokens=100) == 52 * 100 * 8192
    # convolution 49,152 + state 2,097,152 = 2,146,304 in each of 30 layers: the same over all GPUs
    assert state(shape(HYBRID)) == state(shape(HYBRID), tp=2) == 30 * 2_146_304
    # one speculated token more in the convolution: (2 x 16 x 128 + 32 x 128) x 2 bytes
    assert state(shape(HYBRID), spec_tokens=1) == 30 * (2_146_304 + 8192 * 2)
    # Qwen3-Next's config names no dtype of states, so the model's own: 49,152 + 32 x 128 x 128 x 2 in each of 36 layers
    assert state(shape("Qwen3-Next-80B-A3B-Instruct")) == 36 * (49_152 + 1_048_576)
    assert state(shape(QWEN)) == 0


def test_gpus_divide_kv_heads_down_to_one_and_no_latent_vector() -> None:
    # 4 KV heads: more GPUs than those hold copies
    model, whole = shape(QWEN), 57_344
    assert [token(model, tp=tp) for tp in (1, 2, 4, 7, 14)] == [whole] * 3 + [
        whole * 7 // 4,
        whole * 14 // 4,
    ]
    assert token(shape("DeepSeek-V2-Lite"), tp=8) == 8 * 31_104


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        # 4 layers, 2 KV heads, 32 elements
        ("auto", 4 * 2 * (32 + 32) * 2),
        ("bfloat16", 4 * 2 * (32 + 32) * 2),
        ("fp8_e4m3", 4 * 2 * (32 + 32)),
        # a float32 scale for each key and each value
        ("int8_per_token_head", 4 * 2 * (32 + 4 + 32 + 4)),
        ("int4_per_token_head", 4 * 2 * (16 + 4 + 16 + 4)),
        # 32 / 2 + 32 / 16 for each
        ("nvfp4", 4 * 2 * (18 + 18)),
    ],
)
def test_each_kv_dtype_has_its_elements_and_scales(dtype: str, expected: int) -> None:
    assert token(tiny(), kv_cache_dtype=dtype) == expected


def test_the_models_own_dtype_and_deepseeks_packed_formats() -> None:
    assert token(tiny(torch_dtype="float32")) == 4 * 2 * (32 + 32) * 4
    for dtype, size in (("fp8_ds_mla", 656), ("nvfp4_ds_mla", 352)):
        assert token(shape("DeepSeek-V2-Lite"), kv_cache_dtype=dtype) == 27 * size
    with pytest.raises(ToolkitError, match="`fp7`") as raised:
        token(tiny(), kv_cache_dtype="fp7")
    assert "fp8_e4m3" in raised.value.hint
    with pytest.raises(ToolkitError, match="`fp8_ds_mla` is for models with MLA only"):
        token(tiny(), kv_cache_dtype="fp8_ds_mla")


# --- blocks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "block_size", "bytes_per_block"),
    [
        (QWEN, {}, 16, 16 * 57_344),
        (QWEN, {"block_size": 32}, 32, 32 * 57_344),
        (QWEN, {"tp": 4}, 16, 16 * 57_344 // 4),
        # 28 layers on 3 stages: 9, 10, 9
        (QWEN, {"pp": 3}, 16, 10 * 16 * 2048),
        ("DeepSeek-V2-Lite", {}, 64, 64 * 31_104),
        # 2,146,304 bytes of state / 2,048 a token = 1,048 -> 66 x 16 = 1,056; 10 layers of 1,056 x 2,048 bytes
        (HYBRID, {}, 1056, 21_626_880),
        # states halve and so do the tokens' bytes
        (HYBRID, {"tp": 2}, 1056, 21_626_880 // 2),
        # 2,146,304 / 1,024 = 2,096 = 131 x 16
        (HYBRID, {"kv_cache_dtype": "fp8"}, 2096, 10 * 2096 * 1024),
        # vLLM's own test of the smallest; 36,864 + 1,048,576 bytes of state / 2,048 = 530 tokens: 7 x 80 = 560
        ("Qwen3.5-0.8B", {}, 544, 6 * 544 * 2048),
        ("Qwen3.5-0.8B", {"block_size": 80}, 560, 6 * 560 * 2048),
    ],
)
def test_a_block_is_as_large_as_vllms(
    name: str, settings: dict[str, object], block_size: int, bytes_per_block: int
) -> None:
    laid = lay(name, **settings)
    assert (laid.block_size, laid.bytes_per_block) == (block_size, bytes_per_block)


def test_states_beside_mla_ask_for_blocks_of_128() -> None:
    latent = {"kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32}
    heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 2}
    sizes = {"linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4}
    kinds = ["linear_attention", "full_attention"]
    model = tiny(num_hidden_layers=2, layer_types=kinds, **latent, **heads, **sizes)
    # 192 x 3 x 2 + 2 x 32 x 32 x 2 = 5,248 bytes of state / (64 + 16) x 2 = 33 tokens
    assert layout(model, EngineSettings(max_model_len=4096)).block_size == 128


@pytest.mark.parametrize(
    ("kinds", "groups"),
    [
        ("sfsf", [2, 2]),
        # 5 with a window in groups of 2: two and two and one
        ("ssfssfs", [2, 2, 1, 2]),
        # 3 and 4: 4 < 1.5 x 3, so that nothing is split
        ("sfsfsfs", [4, 3]),
        # 2 and 3: 3 is not less than 1.5 x 2
        ("sfsfs", [2, 1, 2]),
        ("ffff", [4]),
        ("ssss", [4]),
    ],
)
def test_groups_have_as_many_layers_as_the_rarest_kind(kinds: str, groups: list[int]) -> None:
    laid = layout(mixed(kinds), EngineSettings(max_model_len=4096))
    assert [len(group.layers) for group in laid.groups] == groups
    layers = sorted(index for group in laid.groups for index in group.layers)
    assert layers == list(range(len(kinds)))
    # 16 tokens x 2 KV heads x (32 + 32) x 2 bytes, for each layer of the fullest group
    assert laid.bytes_per_block == 16 * 256 * max(groups)


def test_layers_of_a_group_are_dealt_in_turn_so_that_stages_have_some_of_each() -> None:
    setting = EngineSettings(max_model_len=4096)
    laid = layout(mixed("sssfsssf"), setting)
    assert [group.layers for group in laid.groups] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    halved = layout(mixed("sssfsssf"), replace(setting, pp=2))
    assert halved.bytes_per_block * 2 == laid.bytes_per_block


@pytest.mark.parametrize(
    ("full_dim", "sizes"),
    [
        # full layers 16 x 2 x (80 + 80) x 2 = 10,240 bytes, windows 4,096: padded, and keep their tokens
        (80, [(16, 10_240), (16, 10_240)]),
        # twice as large: 32 tokens fill it
        (64, [(32, 8192), (16, 8192)]),
    ],
)
def test_smaller_pages_are_filled_where_it_comes_out_even_else_padded(
    full_dim: int, sizes: list[tuple[int, int]]
) -> None:
    laid = layout(mixed("sf", global_head_dim=full_dim), EngineSettings(max_model_len=4096))
    assert [(group.block_size, group.page_bytes) for group in laid.groups] == sizes


# --- requests ---------------------------------------------------------------------------------------


def test_the_gauntlets_661_blocks_hold_38_requests() -> None:
    laid = lay(QWEN)
    assert [laid.blocks_for(tokens) for tokens in (1, 16, 17, 271)] == [1, 1, 2, 17]
    # one of 661 is reserved: 660 // 17
    assert held(661, laid.blocks_for(271), laid.blocks_to_begin(271)) == 38
    assert laid.blocks_in(10 * laid.bytes_per_block - 1) == 9
    assert laid.blocks_in(-1) == 0
    # 512 blocks for 8,192 tokens, and one is reserved
    assert [laid.fits_longest(blocks) for blocks in (512, 513)] == [False, True]


def test_a_hybrids_request_keeps_states_as_blocks() -> None:
    # 3 groups of states and ceil(2000 / 1056) = 2 blocks of tokens; with prefix caching 2 states each
    assert lay(HYBRID, prefix_caching=False).blocks_for(2000) == 3 + 2
    assert lay(HYBRID).blocks_for(2000) == 6 + 2
    # one speculated token: a further state in each group
    assert lay(HYBRID, spec_tokens=1).blocks_for(100) == 9 + 1
    assert [lay(name).has_states for name in (HYBRID, QWEN)] == [True, False]


def test_a_window_holds_what_is_in_flight_until_the_prompt_is_read() -> None:
    # window 1,024: min(1,023 + 2 x 1,000, 8,192) = 3,023 tokens = 189 blocks, and one more, in each of six groups
    laid = lay(WINDOWS, max_num_batched_tokens=1000)
    assert laid.blocks_to_begin(8192) == 512 + 6 * 190
    # then 1,023 tokens and one of each of two batches in flight: 1,025 = 65 blocks, and one more
    assert laid.blocks_for(8192) == 512 + 6 * 66
    # with 3 speculated tokens 1,023 + 2 x 4 = 1,031: 65 as well; with 8, 1,023 + 2 x 9 = 1,041: 66
    assert lay(WINDOWS, spec_tokens=3).blocks_for(8192) == 512 + 6 * 66
    assert lay(WINDOWS, spec_tokens=8).blocks_for(8192) == 512 + 6 * 67
    # a short request needs no more than its own tokens: 7 groups of 2 blocks
    assert laid.blocks_to_begin(20) == laid.blocks_for(20) == 7 * 2
    # 1,652 to begin and 908 at the end: 1 + (5,000 - 1,652) // 908 = 1 + 3
    each, begin = laid.blocks_for(8192), laid.blocks_to_begin(8192)
    assert [held(blocks, each, begin) for blocks in (5001, 1653, 1652)] == [4, 1, 0]


@pytest.mark.parametrize(
    ("version", "pp", "tokens"),
    [((0, 14), 1, 226), ((0, 13), 1, 113), ((0, 14), 2, 339), ((0, 13), 2, 226)],
)
def test_batches_in_flight_follow_scheduling_and_stages(
    version: tuple[int, ...], pp: int, tokens: int
) -> None:
    setting = EngineSettings(max_model_len=4096, max_num_batched_tokens=113, version=version, pp=pp)
    # 256 blocks of the full group, and the window's: 63 + 113 tokens are 11 whole blocks, and one more
    assert layout(mixed("ssff"), setting).blocks_to_begin(4096) == 256 + -(-(63 + tokens) // 16) + 1


# --- what vLLM reports ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype", "gib", "tokens", "concurrency"),
    # vLLM 0.19 on an H100 for 8,192 tokens and 8,192 batched (logs of llm-d-planner, public)
    [
        (WINDOWS, "auto", 19.53, 36_560, 4.46),
        ("gemma-2-27b-it", "auto", 20.59, 58_672, 7.16),
        ("Llama-3.1-8B-Instruct", "auto", 58.11, 476_000, 58.11),
        ("Llama-3.1-8B-Instruct", "fp8", 58.11, 952_032, 116.21),
        (QWEN, "auto", 58.53, 1_096_000, 133.79),
        (QWEN, "fp8", 58.53, 2_192_000, 267.58),
    ],
)
def test_tokens_and_concurrency_are_what_vllm_reported_on_a_gpu(
    name: str, dtype: str, gib: float, tokens: int, concurrency: float
) -> None:
    laid = lay(name, kv_cache_dtype=dtype, max_num_batched_tokens=8192)
    # the log rounds GiB to two digits
    least, most = (laid.blocks_in(round((gib + slack) * GIB)) for slack in (-0.005, 0.005))
    assert laid.reported_tokens(least, (0, 19)) <= tokens <= laid.reported_tokens(most, (0, 19))
    assert laid.reported_concurrency(least) - 0.005 <= concurrency
    assert concurrency <= laid.reported_concurrency(most) + 0.005


@pytest.mark.parametrize(
    # a public issue's logs (noonghunna/club-3090, 612 and 652): Qwen3.6-35B-A3B, fp8 KV, prefix caching, 131,072 tokens, RTX 5090
    ("gib", "tokens", "concurrency"),
    [(5.98, 567_978, 4.33), (6.01, 569_878, 4.35)],
)
def test_a_hybrids_tokens_are_what_vllm_0_24_reported_on_a_gpu(
    gib: float, tokens: int, concurrency: float
) -> None:
    setting = EngineSettings(
        max_model_len=131_072, kv_cache_dtype="fp8", max_num_batched_tokens=8192
    )
    laid = layout(shape(HYBRID), setting)
    # 5.98 GiB are 299 blocks of 10 x 2,146,304 bytes; a request has ceil(131,072 / 2,096) + 3 x 2 = 69 of them
    blocks = laid.blocks_in(round(gib * GIB))
    assert laid.reported_tokens(blocks, (0, 24)) == tokens
    assert round(laid.reported_concurrency(blocks), 2) == concurrency


def test_newer_vllm_reports_whole_requests_tokens() -> None:
    # 15,999 blocks; 512 of the full group and 513 of each of six with windows: 3,590 a request
    laid = lay(WINDOWS, max_num_batched_tokens=8192)
    assert laid.reported_tokens(15_999, NEWEST) == int(15_999 / 3590 * 8192)
    assert laid.reported_tokens(15_999, (0, 19)) == 15_999 // 7 * 16


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (QWEN, {"tp": 3}, "28 heads .* among 3 GPUs"),
        # 28 heads can be divided by 7, 4 KV heads neither divided nor copied evenly
        (QWEN, {"tp": 7}, "4 KV heads .* among 7 GPUs"),
        # heads and KV heads can: 28 / 28, and 4 copied to 28; 18,944 / 28 = 676.6
        (QWEN, {"tp": 28}, "18944 columns of an MLP .* among 28 GPUs"),
        ("DeepSeek-V2-Lite", {"tp": 32}, "16 heads .* among 32 GPUs"),
        (HYBRID, {"tp": 32}, "16 heads of keys .* among 32 GPUs"),
        (QWEN, {"pp": 29}, "28 layers, too few for 29 stages"),
    ],
)
def test_a_division_that_vllm_refuses_is_refused(
    name: str, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ToolkitError, match=message):
        lay(name, **settings)
    assert lay(HYBRID, tp=8).bytes_per_block > 0  # 2 KV heads may be copied
