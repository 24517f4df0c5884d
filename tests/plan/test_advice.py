"""Each flag's value and reason, by hand."""

from typing import Any

import pytest
from support.shapes import GIB, tiny

from toolkit.plan.advice import (
    defaults,
    gpu_memory_utilization,
    max_model_len,
    max_num_batched_tokens,
    max_num_seqs,
    with_room,
)
from toolkit.plan.capacity import RequestLengths
from toolkit.plan.engine import EngineSettings, Gpu, PlanQuestion
from toolkit.workload.lengths import rounded_up


def gpu(memory_bytes: float, **fields: Any) -> Gpu:
    return Gpu(name="some", memory_bytes=round(memory_bytes), **fields)


def asked(
    gib: float = 24, most: int | None = None, rps: float | None = None, **lengths: Any
) -> PlanQuestion:
    """On 24 GiB vLLM itself takes 256 sequences and 2,048 tokens a step, on 80 GiB 1,024 and 8,192. A request takes 5 s."""
    return PlanQuestion(
        shape=tiny(max_position_embeddings=most),
        gpu=gpu(gib * GIB),
        load=RequestLengths(**lengths),
        target_rps=rps,
        seconds_per_request=5.0,
    )


def test_271_tokens_make_a_limit_of_512() -> None:
    # 271 * 1.15 = 311.7, up to the next multiple of 256
    for told in ({"longest": 271}, {"request_tokens": 270.5}):
        advice = max_model_len(asked(most=262_144, **told))
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
    advice = max_model_len(asked(most=8192, longest=8192))
    assert advice.value == "8192"
    assert "would want 9,472" in advice.why


def test_what_the_workload_recommends_is_taken() -> None:
    assert max_model_len(asked(longest=271, max_model_len=768)).value == "768"


def test_memory_says_how_many_sequences() -> None:
    advice = max_num_seqs(asked(request_tokens=550), 52)
    assert advice.value == "52"
    assert "memory holds so many requests of 550 tokens" in advice.why
    assert max_num_seqs(asked(request_tokens=550), 0).value == "1"


def test_a_target_rate_asks_for_three_times_its_requests_under_way() -> None:
    # 10 a second of 5 s are 50; 3 * 50
    question = asked(request_tokens=550, rps=10.0)
    advice = max_num_seqs(question, 400)
    assert advice.value == "150"
    assert "50.0 requests under way" in advice.why
    # memory holds less than that
    assert max_num_seqs(question, 52).value == "52"


def test_no_more_sequences_than_graphs_are_captured_for() -> None:
    small, large = (max_num_seqs(asked(gib, request_tokens=9), 3000) for gib in (24, 80))
    assert (small.value, large.value) == ("512", "1024")
    assert "without CUDA graphs" in small.why
    assert "vLLM itself takes no more" in large.why


def test_sequences_of_unknown_length_are_no_more_than_states_in_memory() -> None:
    for states, value in ((None, "1024"), (2000, "1024"), (33, "33"), (0, "1")):
        assert max_num_seqs(asked(80), states).value == value
    assert "may not even start" in max_num_seqs(asked(80), 33).why


@pytest.mark.parametrize(
    ("gib", "prompt", "seqs", "limit", "value"),
    [
        # all prompts that may come at once: 58 x 500
        (80, 500, 58, 8192, "29000"),
        # short ones leave the step as vLLM has it: 52 x 15 = 780
        (24, 15, 52, 8192, "2048"),
        # it is bounded, less on a small GPU, and holds a token of each sequence
        (80, 4000, 512, 8192, "32768"),
        (24, 200, 512, 8192, "8192"),
        (24, 0.1, 4096, 8192, "4096"),
        (80, None, 52, 8192, "8192"),
        # no longer than all requests together, 3 x 512: vLLM warns of more
        (24, None, 3, 512, "1536"),
        (24, 200, 3, 512, "1536"),
        (24, 4000, 3, 512, "1536"),
        (24, 200, 3, 4096, "2048"),
    ],
)
def test_a_steps_tokens_are_the_prompts_that_may_come_at_once(
    gib: int, prompt: float | None, seqs: int, limit: int, value: str
) -> None:
    assert max_num_batched_tokens(asked(gib, prompt_tokens=prompt), seqs, limit).value == value


def test_a_steps_tokens_have_their_reason() -> None:
    product = max_num_batched_tokens(asked(80, prompt_tokens=500), 58, 8192)
    assert "58 requests x 500 tokens of prompt = 29,000" in product.why
    assert "vLLM itself takes 8,192 on this GPU" in product.why
    assert "not known" in max_num_batched_tokens(asked(), 52, 8192).why


def test_prompts_longer_than_a_step_are_told_to_be_read_in_parts() -> None:
    told, whole = (
        max_num_batched_tokens(asked(prompt_tokens=100, longest_prompt=longest), 4, 8192).why
        for longest in (2049, 2048)
    )
    assert "Prompts of up to 2,049 tokens are read in parts (chunked prefill)" in told
    assert "chunked prefill" not in whole


@pytest.mark.parametrize(
    ("memory", "fields", "version", "expected"),
    [
        # each tier begins at its own size, and the largest with a version between 0.27.1 and 0.30; an A100 is small
        (24 * GIB, {}, (0, 33), (256, 2048)),
        (70 * GIB - 1, {}, (0, 33), (256, 2048)),
        (70 * GIB, {}, (0, 33), (1024, 8192)),
        (80 * GIB, {"is_a100": True}, (0, 33), (256, 2048)),
        (160 * GIB - 1, {}, (0, 33), (1024, 8192)),
        (160 * GIB, {}, (0, 33), (1024, 16_384)),
        (178 * GIB, {}, (0, 27, 1), (1024, 8192)),
        (178 * GIB, {}, (0, 30), (1024, 16_384)),
    ],
)
def test_vllm_takes_its_defaults_by_the_gpu_and_by_its_version(
    memory: int, fields: dict[str, Any], version: tuple[int, ...], expected: tuple[int, int]
) -> None:
    assert defaults(gpu(memory, **fields), version) == expected


@pytest.mark.parametrize(
    ("gib", "share"),
    # 1 - 1.5 / 9.5 = 0.842; 1 - 1.5 / 22.03 = 0.932; 1 - 1.5 / 40 = 0.9625, at most 0.95; 1 - 1.5 / 2 = 0.25, at least 0.5
    [(9.5, "0.84"), (22.03, "0.93"), (40, "0.95"), (2, "0.50")],
)
def test_a_small_slice_leaves_a_larger_share_to_the_rest(gib: float, share: str) -> None:
    advice = gpu_memory_utilization(asked(gib), 256)
    assert advice.value == share
    assert "would take 0.92" in advice.why


@pytest.mark.parametrize(
    ("spec_tokens", "gib"),
    # of 162 layers 64 sequences' 19 sizes take 250 + 19 x 162 / 3 MiB = 1.25 GiB, with a speculated token 35 sizes 2.09
    [(0, 1.2), (1, 2.1)],
)
def test_graphs_of_speculated_tokens_must_fit_too(spec_tokens: int, gib: float) -> None:
    question = PlanQuestion(
        shape=tiny(num_hidden_layers=162),
        gpu=gpu(40 * GIB),
        settings=EngineSettings(version=(0, 17, 1), spec_tokens=spec_tokens),
    )
    assert f"about {gib} GiB of CUDA graphs" in gpu_memory_utilization(question, 64).why


def test_graphs_that_nobody_counted_before_0_20_must_fit_into_what_is_left() -> None:
    # 51 sizes of 162 layers take 250 + 51 x 162 / 3 MiB = 2.93 GiB: 1 - (1.5 + 2.93) / 40 = 0.889
    question = PlanQuestion(
        shape=tiny(num_hidden_layers=162),
        gpu=gpu(40 * GIB),
        settings=EngineSettings(version=(0, 17, 1)),
    )
    advice = gpu_memory_utilization(question, 256)
    assert advice.value == "0.88"
    assert "about 2.9 GiB of CUDA graphs, which this version does not count" in advice.why
    assert "would take 0.90" in advice.why
