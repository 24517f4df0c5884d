"""Blocks: sizes, groups and requests, against vLLM's own figures and arithmetic by hand."""

import pytest
from support.shapes import GIB, shape, tiny

from toolkit.errors import ToolkitError
from toolkit.plan.capacity import held
from toolkit.plan.engine import EngineSettings
from toolkit.plan.kv_cache import (
    Layout,
    blocks_for,
    blocks_in,
    blocks_to_begin,
    fits_longest,
    layout,
    reported_concurrency,
    reported_tokens,
)
from toolkit.plan.model_config import Shape


def lay(name: str, **fields: object) -> Layout:
    return layout(shape(name), EngineSettings(max_model_len=8192, **fields))  # type: ignore[arg-type]


def at_once(laid: Layout, blocks: int, tokens: int) -> int:
    return held(blocks, blocks_for(laid, tokens), blocks_to_begin(laid, tokens))


def mixed(*kinds: str, **fields: object) -> Shape:
    """Layers named by their first letters: full, sliding (64 tokens)."""
    names = {"f": "full_attention", "s": "sliding_attention"}
    return tiny(
        num_hidden_layers=len(kinds),
        layer_types=[names[kind] for kind in kinds],
        sliding_window=64,
        **fields,
    )


def test_a_plain_models_block_is_16_tokens_of_all_layers() -> None:
    laid = lay("Qwen2.5-7B-Instruct")
    assert (laid.block_size, laid.bytes_per_block) == (16, 16 * 57_344)
    assert [len(group.layers) for group in laid.groups] == [28]


def test_the_gauntlets_661_blocks_hold_38_requests() -> None:
    # 271 tokens are 17 blocks of 16; one of 661 is reserved: 660 // 17
    laid = lay("Qwen2.5-7B-Instruct")
    assert blocks_for(laid, 271) == 17
    assert at_once(laid, 661, 271) == 38
    # 37 times 17 blocks hold 36 only, as one of them is reserved
    assert at_once(laid, 37 * 17, 271) == 36


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (16, 1), (17, 2), (8192, 512)])
def test_a_requests_last_block_counts_whole(tokens: int, blocks: int) -> None:
    assert blocks_for(lay("Qwen2.5-7B-Instruct"), tokens) == blocks


def test_a_block_size_that_is_asked_for_is_taken() -> None:
    laid = lay("Qwen2.5-7B-Instruct", block_size=32)
    assert (laid.block_size, laid.bytes_per_block) == (32, 32 * 57_344)


def test_bytes_make_whole_blocks_and_none_below_zero() -> None:
    laid = lay("Qwen2.5-7B-Instruct")
    assert blocks_in(laid, 10 * laid.bytes_per_block - 1) == 9
    assert blocks_in(laid, -1) == 0
    assert at_once(laid, 0, 271) == 0


def test_mla_has_blocks_of_64() -> None:
    laid = lay("DeepSeek-V2-Lite")
    assert (laid.block_size, laid.bytes_per_block) == (64, 64 * 31_104)


def test_the_gauntlets_model_has_blocks_of_1056_tokens() -> None:
    # 2,146,304 bytes of state / 2,048 bytes a token = 1,048 -> 66 x 16 = 1,056; 10 layers of 1,056 x 2,048 bytes
    laid = lay("Qwen3.5-35B-A3B")
    assert (laid.block_size, laid.bytes_per_block) == (1056, 21_626_880)
    assert [(group.kind, len(group.layers)) for group in laid.groups] == [
        ("linear", 10),
        ("linear", 10),
        ("linear", 10),
        ("full", 10),
    ]
    # vLLM's log of that model: "Padding mamba page size by 0.76%"
    assert round((1056 * 2048 / 2_146_304 - 1) * 100, 2) == 0.76
    assert {group.page_bytes for group in laid.groups} == {1056 * 2048}
    # a states' group holds no tokens, but two states
    assert (laid.groups[0].block_size, laid.groups[0].full_blocks) == (0, 2)
    # vLLM's own test of the smallest
    assert lay("Qwen3.5-0.8B").block_size == 544


def test_a_hybrids_request_keeps_states_beside_its_tokens() -> None:
    # 3 groups of states and ceil(2000 / 1056) = 2 blocks of tokens; with prefix caching 2 states each
    assert blocks_for(lay("Qwen3.5-35B-A3B", prefix_caching=False), 2000) == 3 + 2
    assert blocks_for(lay("Qwen3.5-35B-A3B"), 2000) == 6 + 2
    assert lay("Qwen3.5-35B-A3B").has_states
    assert not lay("Qwen2.5-7B-Instruct").has_states
    # one speculated token: a further state in each group
    assert blocks_for(lay("Qwen3.5-35B-A3B", spec_tokens=1), 100) == 9 + 1


def test_fp8_doubles_the_tokens_of_a_block_that_must_hold_a_state() -> None:
    # 2,146,304 / 1,024 = 2,096 = 131 x 16
    assert lay("Qwen3.5-35B-A3B", kv_cache_dtype="fp8").block_size == 2096


# What vLLM 0.19 told on an H100 for 8,192 tokens and 8,192 batched (logs of llm-d-planner, public)
TOLD = [
    # name, KV dtype, GiB for the cache, tokens told, concurrency told
    ("gemma-3-27b-it", "auto", 19.53, 36_560, 4.46),
    ("gemma-2-27b-it", "auto", 20.59, 58_672, 7.16),
    ("Llama-3.1-8B-Instruct", "auto", 58.11, 476_000, 58.11),
    ("Llama-3.1-8B-Instruct", "fp8", 58.11, 952_032, 116.21),
    ("Qwen2.5-7B-Instruct", "auto", 58.53, 1_096_000, 133.79),
    ("Qwen2.5-7B-Instruct", "fp8", 58.53, 2_192_000, 267.58),
]


@pytest.mark.parametrize(("name", "kv_dtype", "gib", "tokens", "concurrency"), TOLD)
def test_tokens_and_concurrency_are_what_vllm_told_on_a_gpu(
    name: str, kv_dtype: str, gib: float, tokens: int, concurrency: float
) -> None:
    laid = lay(name, kv_cache_dtype=kv_dtype, max_num_batched_tokens=8192)
    # the log rounds GiB to two digits
    least, most = (blocks_in(laid, round((gib + slack) * GIB)) for slack in (-0.005, 0.005))
    assert reported_tokens(laid, least, (0, 19)) <= tokens <= reported_tokens(laid, most, (0, 19))
    assert reported_concurrency(laid, least) - 0.005 <= concurrency
    assert concurrency <= reported_concurrency(laid, most) + 0.005


@pytest.mark.parametrize(
    # a public issue's logs (noonghunna/club-3090, 612 and 652): Qwen3.6-35B-A3B, fp8 KV, prefix caching, 131,072 tokens, RTX 5090
    ("gib", "tokens", "concurrency"),
    [(5.98, 567_978, 4.33), (6.01, 569_878, 4.35)],
)
def test_a_hybrids_tokens_are_what_vllm_0_24_told_on_a_gpu(
    gib: float, tokens: int, concurrency: float
) -> None:
    setting = EngineSettings(
        max_model_len=131_072, kv_cache_dtype="fp8", max_num_batched_tokens=8192
    )
    laid = layout(shape("Qwen3.5-35B-A3B"), setting)
    # 5.98 GiB are 299 blocks of 10 x 2,146,304 bytes; a request has ceil(131,072 / 2,096) + 3 x 2 = 69 of them
    blocks = blocks_in(laid, round(gib * GIB))
    assert reported_tokens(laid, blocks, (0, 24)) == tokens
    assert round(reported_concurrency(laid, blocks), 2) == concurrency


def test_newer_vllm_tells_whole_requests_tokens() -> None:
    # 15,999 blocks; 512 of the full group and 513 of each of six with windows: 3,590 a request
    laid = lay("gemma-3-27b-it", max_num_batched_tokens=8192)
    assert reported_tokens(laid, 15_999) == int(15_999 / 3590 * 8192)
    assert reported_tokens(laid, 15_999, (0, 19)) == 15_999 // 7 * 16


def test_a_window_holds_what_is_in_flight_too() -> None:
    # window 1,024: min(1,023 + 2 x 1,000, 8,192) = 3,023 tokens = 189 blocks, and one more
    laid = lay("gemma-3-27b-it", max_num_batched_tokens=1000)
    assert {group.most_blocks for group in laid.groups if group.kind == "sliding"} == {190}
    # a short request needs no more than its own tokens: 7 groups of 2 blocks
    assert blocks_to_begin(laid, 20) == blocks_for(laid, 20) == 7 * 2
    # one of 8,192 tokens: 512, and 6 x 190
    assert blocks_to_begin(laid, 8192) == 512 + 6 * 190


def test_a_window_frees_what_it_has_passed_once_the_prompt_is_read() -> None:
    # 1,023 tokens and one of each of two batches in flight: 1,025 = 65 blocks, and one more
    laid = lay("gemma-3-27b-it", max_num_batched_tokens=1000)
    assert blocks_for(laid, 8192) == 512 + 6 * 66
    # with 3 speculated tokens 1,023 + 2 x 4 = 1,031: 65 as well; with 8, 1,023 + 2 x 9 = 1,041: 66
    assert blocks_for(lay("gemma-3-27b-it", spec_tokens=3), 8192) == 512 + 6 * 66
    assert blocks_for(lay("gemma-3-27b-it", spec_tokens=8), 8192) == 512 + 6 * 67


def test_the_last_request_with_windows_needs_room_for_its_prompt_too() -> None:
    laid = lay("gemma-3-27b-it", max_num_batched_tokens=1000)
    # 1,652 to begin and 908 at the end: 1 + (5,000 - 1,652) // 908 = 1 + 3
    assert at_once(laid, 5001, 8192) == 4
    assert at_once(laid, 1653, 8192) == 1
    assert at_once(laid, 1652, 8192) == 0


@pytest.mark.parametrize(
    ("version", "pp", "tokens"),
    [((0, 14), 1, 200), ((0, 13), 1, 100), ((0, 14), 2, 300), ((0, 13), 2, 200)],
)
def test_batches_in_flight_follow_scheduling_and_stages(
    version: tuple[int, ...], pp: int, tokens: int
) -> None:
    setting = EngineSettings(max_model_len=4096, max_num_batched_tokens=100, version=version, pp=pp)
    laid = layout(mixed("s", "s", "f", "f"), setting)
    most = {group.most_blocks for group in laid.groups if group.kind == "sliding"}
    assert most == {-(-(63 + tokens) // 16) + 1}


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
    laid = layout(mixed(*kinds), EngineSettings(max_model_len=4096))
    assert [len(group.layers) for group in laid.groups] == groups
    layers = sorted(index for group in laid.groups for index in group.layers)
    assert layers == list(range(len(kinds)))
    # 16 tokens x 2 KV heads x (32 + 32) x 2 bytes, for each layer of the fullest group
    assert laid.bytes_per_block == 16 * 256 * max(groups)


def test_pages_that_do_not_come_out_even_are_padded_and_keep_their_tokens() -> None:
    # full layers: 16 tokens x 2 KV heads x (80 + 80) x 2 bytes = 10,240; windows 16 x 2 x (32 + 32) x 2 = 4,096
    laid = layout(mixed("s", "f", global_head_dim=80), EngineSettings(max_model_len=4096))
    assert [(group.block_size, group.page_bytes) for group in laid.groups] == [(16, 10_240)] * 2
    # twice as large: 32 tokens fill it
    even = layout(mixed("s", "f", global_head_dim=64), EngineSettings(max_model_len=4096))
    assert [(group.block_size, group.page_bytes) for group in even.groups] == [
        (32, 8192),
        (16, 8192),
    ]


def test_a_hybrids_block_is_a_multiple_of_what_is_asked_for() -> None:
    # 36,864 + 1,048,576 bytes of state / 2,048 = 530 tokens: 7 x 80 = 560
    assert lay("Qwen3.5-0.8B", block_size=80).block_size == 560


def test_states_beside_mla_ask_for_blocks_of_128() -> None:
    latent = {"kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32}
    heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 2}
    sizes = {"linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4}
    kinds = ["linear_attention", "full_attention"]
    model = tiny(num_hidden_layers=2, layer_types=kinds, **latent, **heads, **sizes)
    # 192 x 3 x 2 + 2 x 32 x 32 x 2 = 5,248 bytes of state / (64 + 16) x 2 = 33 tokens
    assert layout(model, EngineSettings(max_model_len=4096)).block_size == 128


def test_layers_of_a_group_are_dealt_in_turn_so_that_stages_have_some_of_each() -> None:
    laid = layout(mixed(*"sssfsssf"), EngineSettings(max_model_len=4096))
    assert [group.layers for group in laid.groups] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    # each of two stages has one layer of each group
    halved = layout(mixed(*"sssfsssf"), EngineSettings(max_model_len=4096, pp=2))
    assert halved.bytes_per_block * 2 == laid.bytes_per_block


def test_a_pipelines_fullest_stage_sets_the_bytes_of_a_block() -> None:
    # 28 layers on 3 stages: 9, 10, 9
    laid = lay("Qwen2.5-7B-Instruct", pp=3)
    assert laid.bytes_per_block == 10 * 16 * 2048


def test_tensor_parallelism_shrinks_blocks_and_states() -> None:
    assert lay("Qwen2.5-7B-Instruct", tp=4).bytes_per_block == 16 * 57_344 // 4
    # states halve and so do the tokens' bytes: the block size stays
    assert lay("Qwen3.5-35B-A3B", tp=2).block_size == 1056


def test_what_vllm_refuses_to_start_with_does_not_fit() -> None:
    laid = lay("Qwen2.5-7B-Instruct")
    # 512 blocks for 8,192 tokens, and one is reserved
    assert not fits_longest(laid, 512)
    assert fits_longest(laid, 513)


@pytest.mark.parametrize(
    ("name", "tp", "told"),
    [
        ("Qwen2.5-7B-Instruct", 3, "28 heads"),
        # 28 heads can be divided by 7, 4 KV heads neither divided nor copied evenly
        ("Qwen2.5-7B-Instruct", 7, "4 KV heads"),
        # heads and KV heads can: 28 / 28, and 4 copied to 28; 18,944 / 28 = 676.6
        ("Qwen2.5-7B-Instruct", 28, "18944 columns of an MLP"),
        ("DeepSeek-V2-Lite", 32, "16 heads"),
        ("Qwen3.5-35B-A3B", 32, "16 heads of keys"),
    ],
)
def test_a_division_that_vllm_refuses_is_refused(name: str, tp: int, told: str) -> None:
    with pytest.raises(ToolkitError, match=f"{told} .* among {tp} GPUs"):
        lay(name, tp=tp)


def test_kv_heads_may_be_copied_to_more_gpus_than_there_are() -> None:
    assert lay("Qwen3.5-35B-A3B", tp=8).bytes_per_block > 0


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ToolkitError, match="28 layers, too few for 29 stages"):
        lay("Qwen2.5-7B-Instruct", pp=29)
