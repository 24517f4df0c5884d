"""Each flag's value and reason, by hand."""

import pytest

from toolkit.plan.advice import (
    GIB,
    batched_product,
    defaults,
    gpu_memory_utilization,
    max_model_len,
    max_num_batched_tokens,
    max_num_seqs,
    most_batched,
    unknown_num_seqs,
    with_room,
)
from toolkit.workload.lengths import rounded_up


def test_271_tokens_make_a_limit_of_512() -> None:
    # 271 * 1.15 = 311.7, up to the next multiple of 256
    advice = max_model_len(271, told=None, most=262_144)
    assert (advice.flag, advice.value) == ("max-model-len", "512")
    assert "the longest request is 271 tokens" in advice.why


@pytest.mark.parametrize(("longest", "limit"), [(1, 256), (222, 256), (223, 512), (8192, 9472)])
def test_limits_have_fifteen_percent_of_room_and_are_multiples_of_256(
    longest: int, limit: int
) -> None:
    # 222 * 1.15 = 255.3; 223 * 1.15 = 256.45; 8192 * 1.15 = 9420.8 = 36.8 * 256
    assert with_room(longest) == limit


def test_the_same_longest_request_gets_the_limit_that_a_workloads_report_recommends() -> None:
    assert [n for n in range(1, 40_000) if with_room(n) != rounded_up(n)] == []


def test_no_limit_is_more_than_the_model_was_made_for() -> None:
    advice = max_model_len(8192, told=None, most=8192)
    assert advice.value == "8192"
    assert "would want 9,472" in advice.why


def test_what_the_workload_recommends_is_taken() -> None:
    assert max_model_len(271, told=768, most=None).value == "768"


def test_memory_says_how_many_sequences() -> None:
    advice = max_num_seqs(52, request_tokens=550, default=256)
    assert advice.value == "52"
    assert "memory holds so many requests of 550 tokens" in advice.why


def test_a_target_rate_asks_for_three_times_its_requests_under_way() -> None:
    # 10 a second of 5 s are 50; 3 * 50
    advice = max_num_seqs(400, request_tokens=550, default=256, peak_under_way=50.0)
    assert advice.value == "150"
    assert "50.0 requests under way" in advice.why
    # memory holds less than that
    assert max_num_seqs(52, request_tokens=550, default=256, peak_under_way=50.0).value == "52"


def test_no_more_sequences_than_graphs_are_captured_for() -> None:
    assert max_num_seqs(3000, request_tokens=9, default=256).value == "512"
    assert "without CUDA graphs" in max_num_seqs(3000, request_tokens=9, default=256).why
    assert max_num_seqs(3000, request_tokens=9, default=1024).value == "1024"
    assert "vLLM itself takes no more" in max_num_seqs(3000, request_tokens=9, default=1024).why


def test_58_prompts_of_500_tokens_are_29_000_in_a_step() -> None:
    assert batched_product(58, 500) == 29_000
    advice = max_num_batched_tokens(58, prompt_tokens=500, default=2048)
    assert advice.value == "29000"
    assert "58 requests x 500 tokens of prompt = 29,000" in advice.why


def test_short_prompts_leave_the_step_as_vllm_has_it() -> None:
    # 52 * 15 = 780
    assert max_num_batched_tokens(52, prompt_tokens=15, default=2048).value == "2048"


def test_a_step_is_bounded_and_holds_a_token_of_each_sequence() -> None:
    assert max_num_batched_tokens(512, prompt_tokens=4000, default=2048).value == "32768"
    assert max_num_batched_tokens(4096, prompt_tokens=0.1, default=2048).value == "4096"


def test_a_small_gpu_takes_shorter_steps_than_a_large_one() -> None:
    # 512 x 200 = 102,400 either way
    small, large = (
        max_num_batched_tokens(512, prompt_tokens=200, default=2048, most=most_batched(gib * GIB))
        for gib in (24, 80)
    )
    assert (small.value, large.value) == ("8192", "32768")
    assert "vLLM itself takes 2,048 on this GPU" in large.why


def test_no_step_is_longer_than_all_requests_together() -> None:
    # 3 x 512: vLLM warns of more
    for prompt in (None, 200, 4000):
        told = max_num_batched_tokens(3, prompt_tokens=prompt, default=2048, max_model_len=512)
        assert told.value == "1536"
    many = max_num_batched_tokens(3, prompt_tokens=200, default=2048, max_model_len=4096)
    assert many.value == "2048"


def test_sequences_of_unknown_length_are_no_more_than_states_in_memory() -> None:
    assert unknown_num_seqs(1024).value == "1024"
    assert unknown_num_seqs(1024, 2000).value == "1024"
    told = unknown_num_seqs(1024, 33)
    assert told.value == "33"
    assert "may not even start" in told.why
    assert unknown_num_seqs(1024, 0).value == "1"


def test_unknown_prompts_leave_the_step_as_vllm_has_it_and_say_so() -> None:
    advice = max_num_batched_tokens(52, prompt_tokens=None, default=8192)
    assert advice.value == "8192"
    assert "not known" in advice.why


def test_vllm_takes_its_defaults_by_the_gpu_and_by_its_version() -> None:
    assert defaults(80 * GIB, is_a100=True) == (256, 2048)
    assert defaults(79 * GIB, is_a100=False) == (1024, 8192)
    assert defaults(139 * GIB, is_a100=False) == (1024, 8192)
    assert defaults(178 * GIB, is_a100=False) == (1024, 16_384)
    assert defaults(178 * GIB, is_a100=False, version=(0, 17, 1)) == (1024, 8192)
    assert defaults(24 * GIB, is_a100=False) == (256, 2048)
    # each tier begins at its own size, and the largest with a version between 0.27.1 and 0.30
    assert defaults(70 * GIB, is_a100=False) == (1024, 8192)
    assert defaults(70 * GIB - 1, is_a100=False) == (256, 2048)
    assert defaults(160 * GIB, is_a100=False) == (1024, 16_384)
    assert defaults(160 * GIB - 1, is_a100=False) == (1024, 8192)
    assert defaults(178 * GIB, is_a100=False, version=(0, 27, 1)) == (1024, 8192)
    assert defaults(178 * GIB, is_a100=False, version=(0, 30)) == (1024, 16_384)


def test_no_gpu_is_left_less_than_half() -> None:
    # 1 - 1.5 / 2 = 0.25
    assert gpu_memory_utilization(2 * GIB, graph_bytes=0).value == "0.50"


def test_prompts_longer_than_a_step_are_told_to_be_read_in_parts() -> None:
    told, whole = (
        max_num_batched_tokens(4, prompt_tokens=100, default=2048, longest_prompt=longest).why
        for longest in (2049, 2048)
    )
    assert "Prompts of up to 2,049 tokens are read in parts (chunked prefill)" in told
    assert "chunked prefill" not in whole


def test_graphs_that_nobody_counts_must_fit_into_what_is_left() -> None:
    # 1 - (1.5 + 3) / 40 = 0.8875 before 0.20; 1 - 1.5 / 40 = 0.9625, at most 0.95, since
    before = gpu_memory_utilization(40 * GIB, graph_bytes=3 * GIB, version=(0, 17, 1))
    since = gpu_memory_utilization(40 * GIB, graph_bytes=3 * GIB, version=(0, 20))
    assert (before.value, since.value) == ("0.88", "0.95")
    assert "about 3.0 GiB of CUDA graphs, which this version does not count" in before.why
    assert "would take 0.90" in before.why
    assert "would take 0.92" in since.why


def test_a_small_slice_leaves_a_larger_share_to_the_rest() -> None:
    # 1 - 1.5 / 9.5 = 0.842; 1 - 1.5 / 22.03 = 0.932
    assert gpu_memory_utilization(round(9.5 * GIB), graph_bytes=0).value == "0.84"
    assert gpu_memory_utilization(round(22.03 * GIB), graph_bytes=0).value == "0.93"
