"""Requests in memory, by the second and by users, and what they cost: published articles' worked numbers, and what must always hold."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import ToolkitError
from toolkit.plan.capacity import (
    Cost,
    RequestLengths,
    blocks,
    busy_with,
    chain,
    cost,
    headroom,
    held,
    held_by_bytes,
    of_workload,
    users_for,
)

SOME = st.integers(min_value=1, max_value=10**6)


def test_20_gb_hold_52_sequences_of_the_27b_example_and_51_in_blocks_of_16() -> None:
    token = 2 * 32 * 128 * 42 * 2
    assert token * 550 == 378_470_400  # 378 MB
    # 20e9 / 378,470,400 = 52.8
    assert held_by_bytes(80e9 - 54e9 - 6e9, token * 550) == 52
    # a block: 16 * 688,128 = 11,010,048 bytes; 20e9 / that = 1816.5; 550 / 16 = 34.4, so 35; (1816 - 1) / 35 = 51.9
    assert held(20_000_000_000 // 11_010_048, blocks(550, 16)) == 51
    # a full last block is not counted twice
    assert [blocks(tokens, 16) for tokens in (1, 15, 16, 17, 32, 33)] == [1, 1, 1, 2, 2, 3]


@given(SOME, SOME)
def test_requests_that_are_held_have_their_blocks_and_one_more_would_not(
    count: int, each: int
) -> None:
    number = held(count, each)
    assert number * each + 1 <= count or number == 0
    assert (number + 1) * each + 1 > count


def test_calls_of_300_300_300_and_100_ms_keep_the_gpu_busy_for_70_percent_with_one_user() -> None:
    # 1000 ms of calls and 3000/7 ms between them: 1000 / 1428.6 = 0.7
    found = chain((0.3, 0.3, 0.3, 0.1), 3 / 7, at_once=52)
    assert (found.calls, found.busy_s, found.busy_share) == pytest.approx((4, 1.0, 0.7))
    # 1 - 0.3 ** 2 = 0.91 is under 0.95, 1 - 0.3 ** 3 = 0.973 is not; 52 calls under way on average: 52 / 0.7 = 74.3
    assert (found.users_busy, found.users_full) == (3, 75)
    # 52 at once, each with 1.0 s of calls to be served
    assert found.requests_per_s == pytest.approx(52.0)
    without_pause = chain((0.5, 0.5), 0.0, at_once=8)
    assert (without_pause.users_busy, without_pause.users_full) == (1, 8)


@given(
    st.floats(min_value=0.01, max_value=1.0, exclude_max=True),
    st.floats(min_value=0.5, max_value=0.99),
)
def test_so_many_users_are_enough_and_one_less_is_not(share: float, wanted: float) -> None:
    users = users_for(share, wanted)
    assert busy_with(users, share) >= wanted - 1e-6
    assert users == 1 or busy_with(users - 1, share) < wanted + 1e-6


def test_10_requests_a_second_of_5_s_are_50_at_once_and_are_tried_with_20_to_30() -> None:
    found = headroom(10.0, 5.0, 10.4)
    assert (found.tested_rps, found.under_way) == ((20.0, 30.0), 50.0)
    # 20 / 10.4 = 1.92 and 30 / 10.4 = 2.88
    assert found.engines == (2, 3)
    assert found.factor == pytest.approx(1.04)
    # exactly twice the target is enough for twice
    assert headroom(0.1, None, 0.2).engines == (1, 2)
    assert headroom(10.0, 5.0, None).engines is headroom(10.0, 5.0, 0.0).engines is None


# --- costs ------------------------------------------------------------------------------------------


def cost_of(api_price: tuple[float, float] | None = None, **changes: Any) -> Cost:
    usual = {
        "gpus": 1,
        "requests_per_s": 10.4,
        "prompt_tokens": 300.0,
        "output_tokens": 250.0,
        "request_tokens": 550.0,
    }
    return cost(2.0, api_price, **(usual | changes))


def test_a_gpu_at_2_an_hour_costs_10_cents_a_million_tokens_and_two_cost_twice() -> None:
    # 3600 * 10.4 * 550 = 20,592,000 tokens an hour; 37,440 requests
    found = cost_of()
    assert found.per_million_tokens == pytest.approx(2.0 / 20.592)
    assert found.per_thousand_requests == pytest.approx(2.0 / 37.44)
    assert (found.api_per_million_tokens, found.even_rps) == (None, None)
    two = cost_of(gpus=2)
    assert (two.hour, two.per_million_tokens) == (4.0, pytest.approx(4.0 / 20.592))


def test_an_api_is_dearer_from_the_rate_on_at_which_its_bill_is_the_gpu_hour() -> None:
    # a request: 300 * 0.5 + 250 * 1.5 = 525 millionths
    found = cost_of((0.5, 1.5))
    assert found.api_per_thousand_requests == pytest.approx(0.525)
    assert found.api_per_million_tokens == pytest.approx(0.000525 / 550 * 1e6)
    # 2.0 an hour pays for 2.0 / 0.000525 = 3809.5 requests: 1.058 a second, 10.2 % of 10.4
    assert found.even_rps == pytest.approx(2.0 / 0.000525 / 3600)
    assert found.even_share == pytest.approx(0.10175, abs=1e-5)
    # known without a rate, too; what costs nothing is never dearer
    unrated = cost_of((0.5, 1.5), requests_per_s=None)
    assert (unrated.per_million_tokens, unrated.even_share) == (None, None)
    assert unrated.even_rps == found.even_rps
    free = cost_of((0.0, 0.0))
    assert (free.api_per_million_tokens, free.even_rps) == (0.0, None)


def test_one_price_for_all_tokens_needs_no_split_and_two_prices_do() -> None:
    unsplit = {"prompt_tokens": None, "output_tokens": None, "request_tokens": 500.0}
    assert cost_of((0.6, 0.6), **unsplit).api_per_thousand_requests == pytest.approx(0.3)
    assert cost_of((0.5, 1.5), **unsplit).api_per_thousand_requests is None


# --- lengths of a workload's report -----------------------------------------------------------------

REPORT = {
    "source": "capture 38089784cd61",
    "recommended_max_model_len": 512,
    "model_length": {"longest": 270},
    "lengths": {
        "prompt_tokens": {"mean": 11.5, "max": 14.0},
        "prompt_tokens_estimated_share": 0.25,
        "output_tokens": {"mean": 91.0, "max": 256.0},
        "max_tokens": {"mean": 256.0, "max": 256.0},
    },
}


def with_lengths(**lengths: object) -> dict[str, object]:
    return REPORT | {"lengths": {**REPORT["lengths"], **lengths}}  # type: ignore[dict-item]


def test_means_are_the_usual_request_and_the_longest_is_kept() -> None:
    assert of_workload(REPORT) == RequestLengths(
        prompt_tokens=11.5,
        output_tokens=91.0,
        request_tokens=102.5,
        longest=270,
        longest_prompt=14,
        max_model_len=512,
        source="workload of capture 38089784cd61",
        notes=("25% of the prompts' lengths are estimated from their characters",),
    )
    # answers of unknown length count as long as they are allowed to be
    allowed = of_workload(with_lengths(output_tokens=None, prompt_tokens_estimated_share=0.0))
    assert allowed.request_tokens == 267.5
    assert "as long as their max_tokens allow" in allowed.notes[0]
    # without a longest request the longest parts are added: 14 + 256
    assert of_workload(REPORT | {"model_length": {"longest": None}}).longest == 270
    assert of_workload(with_lengths(output_tokens=None) | {"model_length": None}).longest is None


@pytest.mark.parametrize(
    ("report", "missing"),
    [
        ({}, "prompts"),
        (with_lengths(prompt_tokens=None), "prompts"),
        (with_lengths(output_tokens=None, max_tokens=None), "answers"),
        *((with_lengths(prompt_tokens={"mean": mean}), "prompts") for mean in ("11", True, -3)),
        (with_lengths(prompt_tokens={"mean": float("nan")}), "prompts"),
        (with_lengths(prompt_tokens=[]), "prompts"),
    ],
)
def test_lengths_that_are_none_are_refused(report: dict[str, object], missing: str) -> None:
    with pytest.raises(ToolkitError, match=f"how long {missing} are") as refused:
        of_workload(report)
    assert ("`--full`" in refused.value.hint) is (missing == "answers")
