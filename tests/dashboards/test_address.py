from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leaderboard_page.address import (
    USUAL,
    Address,
    link,
    parsed,
    query,
    story_link,
    with_view,
)

from toolkit.board.standings import RANK_BY
from toolkit.report.html import tag

FULL = Address(
    rank="p95",
    window_s=600,
    top=7,
    honest=True,
    skip_limited=True,
    compare=("alice", "bob"),
    host="carol",
    event=1_749_999_990,
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
        "skip_limited": "1",
        "cmp": "alice,bob",
        "host": "carol",
        "event": "1749999990",
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
        skip_limited=st.booleans(),
        host=st.none() | st.just("a,b %2C"),
        event=st.none() | st.integers(1, 2**31),
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
        ({"event": "soon"}, {}),
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


def shown_to(address: Address, href: str) -> str:
    """A link of a part that all viewers share, as one of them gets it."""
    return with_view(str(tag("a", href=href)).encode(), address).decode()


@pytest.mark.parametrize(
    ("href", "address", "expected"),
    [
        (link(host="a b&c"), USUAL, '"?host=a+b%26c"'),
        (link(host="bob"), Address(rank="p95"), '"?rank=p95&amp;host=bob"'),
        # another host takes the panel, and with it the story of the first
        (
            link(host="bob"),
            Address(host="eve", event=7, theme="dark"),
            '"?theme=dark&amp;host=bob"',
        ),
        (
            story_link(7.9, "bob"),
            Address(host="eve", honest=True),
            '"?honest=1&amp;event=7&amp;host=bob"',
        ),
        (story_link(7.9, None), Address(host="eve"), '"?event=7"'),
        (link(rank="p95"), Address(rank="p50", host="eve"), '"?host=eve&amp;rank=p95"'),
        (link(skip_limited=""), Address(skip_limited=True, t=9), '"?t=9&amp;skip_limited="'),
        # the open host's link closes its panel
        (
            link(host="bob"),
            Address(host="bob", rank="p95"),
            '"?rank=p95&amp;host=" aria-current="true"',
        ),
    ],
)
def test_a_link_changes_what_it_says_and_keeps_the_rest_of_a_viewers_view(
    href: str, address: Address, expected: str
) -> None:
    assert shown_to(address, href) == f"<a href={expected}></a>"


def test_a_hosts_name_never_breaks_out_of_a_link() -> None:
    for name in ('"><b>', "?host=x", "\ud800"):
        assert shown_to(Address(rank="p95"), link(host=name)).count("<") == 2


def test_a_kiosk_shows_ten_hosts_and_a_page_twenty_unless_the_link_says_so() -> None:
    assert [Address().rows, Address(kiosk=True).rows, Address(kiosk=True, top=5).rows] == [
        20,
        10,
        5,
    ]
