"""How requests ended, and how long an answer they asked for: what a ledger is made from."""

import pytest
from support.metrics_pages import numbers, text_of


@pytest.mark.parametrize(
    ("page", "ended"),
    [
        # by grep: request_success_total
        (
            "recorded/after_load",
            {"abort": 0, "error": 0, "length": 1022, "repetition": 0, "stop": 0},
        ),
        ("written/vllm_v0_0.6.6", {"abort": 1, "length": 29, "stop": 70}),
        ("written/vllm_v1_dp4_0.22", {"abort": 0, "length": 4, "stop": 12}),  # 4 * 1, 4 * 3
        ("written/vllm_rust_0.33", {"error": 1, "stop": 19}),  # 15 + 4
        ("written/trtllm", {"length": 5, "stop": 150}),
    ],
)
def test_ended_requests_are_told_by_reason_over_all_engines(
    page: str, ended: dict[str, float]
) -> None:
    found = numbers(text_of(page))
    assert found.finished_by_reason == tuple(sorted(ended.items()))
    assert found.requests_total == sum(ended.values())


@pytest.mark.parametrize("page", ["sglang_0.5.23", "tgi_3.3.7", "llama_cpp", "litellm_1.109"])
def test_an_engine_without_reasons_tells_none(page: str) -> None:
    found = numbers(text_of(f"written/{page}"))
    assert found.finished_by_reason == ()
    assert found.asked_tokens is None


def test_what_was_asked_for_is_told_by_sum_and_count() -> None:
    found = numbers(text_of("recorded/after_load")).asked_tokens
    assert found is not None
    assert (found.sum, found.count) == (108878, 1022)  # by grep


def test_what_was_asked_for_is_summed_over_engines() -> None:
    asked = "vllm:request_params_max_tokens"
    found = numbers(
        'vllm:num_requests_running{engine="0"} 0\n'
        f'{asked}_sum{{engine="0"}} 300\n{asked}_count{{engine="0"}} 3\n'
        f'{asked}_sum{{engine="1"}} 50\n{asked}_count{{engine="1"}} 2\n'
    ).asked_tokens
    assert found is not None
    assert (found.sum, found.count, found.mean()) == (350, 5, 70)


def test_a_reason_whose_count_is_unknown_is_not_told() -> None:
    ended = "vllm:request_success_total"
    found = numbers(
        f'{ended}{{finished_reason="stop"}} 2\n{ended}{{finished_reason="length"}} NaN\n'
        f'{ended}{{finished_reason="abort"}} -1\n'
    )
    assert found.finished_by_reason == (("stop", 2),)


def test_a_counter_without_reasons_has_a_sum_only() -> None:
    found = numbers("vllm:request_success_total 7\n")
    assert (found.requests_total, found.finished_by_reason) == (7, ())
