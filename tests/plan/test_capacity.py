"""Requests in memory, by the second and by users: the worked numbers of published articles, and what must hold for all numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.plan.capacity import (
    blocks,
    busy_with,
    chain,
    headroom,
    held,
    held_by_bytes,
    users_for,
)

SOME = st.integers(min_value=1, max_value=10**6)


def test_20_gb_hold_52_sequences_of_the_27b_example() -> None:
    token = 2 * 32 * 128 * 42 * 2
    assert token == 688_128
    assert token * 550 == 378_470_400  # 378 MB
    # 20e9 / 378,470,400 = 52.8
    assert held_by_bytes(80e9 - 54e9 - 6e9, token * 550) == 52


def test_blocks_of_16_cost_the_27b_example_one_sequence() -> None:
    # a block: 16 * 688,128 = 11,010,048 bytes; 20e9 / that = 1816.5; 550 / 16 = 34.4, so 35; (1816 - 1) / 35 = 51.9
    assert held(20_000_000_000 // 11_010_048, blocks(550, 16)) == 51


@pytest.mark.parametrize("count", [0, 1])
def test_a_pool_of_nothing_but_the_reserved_block_holds_nothing(count: int) -> None:
    assert held(count, 1) == 0


def test_a_full_last_block_is_not_counted_twice() -> None:
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
    assert found.calls == 4
    assert found.busy_s == pytest.approx(1.0)
    assert found.busy_share == pytest.approx(0.7)
    # 1 - 0.3 ** 2 = 0.91 is under 0.95, 1 - 0.3 ** 3 = 0.973 is not
    assert found.users_busy == 3
    # 52 calls under way on average: 52 / 0.7 = 74.3
    assert found.users_full == 75
    # 52 at once, each with 1.0 s of calls to be served
    assert found.requests_per_s == pytest.approx(52.0)


def test_calls_without_a_pause_need_one_user() -> None:
    found = chain((0.5, 0.5), 0.0, at_once=8)
    assert (found.busy_share, found.users_busy, found.users_full) == (1.0, 1, 8)


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
    assert found.tested_rps == (20.0, 30.0)
    assert found.under_way == 50.0
    # 20 / 10.4 = 1.92 and 30 / 10.4 = 2.88
    assert found.engines == (2, 3)
    assert found.factor == pytest.approx(1.04)


def test_a_server_that_does_exactly_twice_the_target_is_enough_for_twice() -> None:
    assert headroom(0.1, None, 0.2).engines == (1, 2)


@pytest.mark.parametrize("rps", [None, 0.0])
def test_without_a_rate_nobody_says_how_many_servers(rps: float | None) -> None:
    assert headroom(10.0, 5.0, rps).engines is None
