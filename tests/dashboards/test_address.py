from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leaderboard_page.address import USUAL, Address, parsed, query

from toolkit.board.standings import RANK_BY

FULL = Address(
    rank="p95",
    window_s=600,
    top=7,
    honest=True,
    compare=("alice", "bob"),
    host="carol",
    t=1_750_000_000,
    run="0123456789ab",
    theme="light",
    kiosk=True,
)


def test_every_setting_is_written_in_short_and_only_what_differs() -> None:
    assert query(USUAL) == {}
    assert parsed({}) == USUAL
    assert query(Address(honest=True)) == {"honest": "1"}
    assert query(FULL) == {
        "rank": "p95",
        "window": "10m",
        "top": "7",
        "honest": "1",
        "cmp": "alice,bob",
        "host": "carol",
        "t": "1750000000",
        "run": "0123456789ab",
        "theme": "light",
        "kiosk": "1",
    }


@given(
    st.builds(
        Address,
        rank=st.sampled_from(RANK_BY),
        window_s=st.none() | st.integers(1, 86_400),
        top=st.none() | st.integers(1, 200),
        honest=st.booleans(),
        compare=st.lists(
            st.text(min_size=1).filter(lambda name: name == name.strip()), max_size=4, unique=True
        ).map(tuple),
        host=st.none() | st.just("a,b %2C"),
        t=st.none() | st.integers(1, 2**31),
        theme=st.sampled_from([None, "light", "dark"]),
        kiosk=st.booleans(),
    )
)
def test_what_is_written_is_read_back(address: Address) -> None:
    assert parsed(query(address)) == address


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"rank": "charm"}, {}),
        ({"rank": "P95"}, {}),
        ({"window": "15m"}, {"window_s": 900}),
        ({"window": "900"}, {"window_s": 900}),
        ({"window": "2h"}, {"window_s": 7200}),
        ({"window": "0"}, {}),
        ({"window": "-5m"}, {}),
        ({"window": "25h"}, {}),
        ({"window": "soon"}, {}),
        ({"top": "0"}, {}),
        ({"top": "999"}, {}),
        ({"top": "1e3"}, {}),
        ({"t": "12.5"}, {}),
        ({"t": "9" * 40}, {}),
        ({"honest": "true"}, {"honest": True}),
        ({"honest": "0"}, {}),
        ({"theme": "pink"}, {}),
        ({"cmp": "a,,a, b ,c,d,e"}, {"compare": ("a", "b", "c", "d")}),
        ({"cmp": ","}, {}),
        ({"host": "  "}, {}),
        ({"unheard_of": "1"}, {}),
    ],
)
def test_a_value_that_nobody_can_use_is_left_out(
    written: dict[str, str], expected: dict[str, Any]
) -> None:
    assert parsed(written) == Address(**expected)


def test_a_kiosk_shows_ten_hosts_and_a_page_twenty_unless_the_link_says_so() -> None:
    assert [Address().rows, Address(kiosk=True).rows, Address(kiosk=True, top=5).rows] == [
        20,
        10,
        5,
    ]
