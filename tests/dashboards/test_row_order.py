"""In what order rows stand, from tick to tick."""

from leaderboard_page.row_order import LASTS_S, RowOrder


def shown(order: RowOrder, at_s: int, **ranks: int) -> str:
    in_order = sorted(ranks, key=lambda name: (ranks[name], name))
    return "".join(order.update(at_s, {name: ranks[name] for name in in_order}))


def test_a_row_moves_when_its_new_rank_has_lasted() -> None:
    order = RowOrder()
    assert shown(order, 100, a=1, b=2, c=3) == "abc"
    seen = [shown(order, at_s, a=2, b=1, c=3) for at_s in range(102, 115, 2)]
    # the first tick that is LASTS_S old and had b before a is that of second 102
    assert seen == ["abc"] * 5 + ["bac"] * 2
    assert LASTS_S == 10


def test_a_host_that_comes_and_goes_moves_nobody_and_does_not_stop_others() -> None:
    order = RowOrder()
    shown(order, 100, x=1, z=2, y=3)
    # y is always better than x; z is now before both, now behind both
    seen = [
        shown(order, at_s, x=3 - at_s % 2, z=1 + 2 * (at_s % 2), y=2 - at_s % 2)
        for at_s in range(101, 130)
    ]
    assert seen[0] == "xzy"
    assert seen[-1] in {"zyx", "yzx", "yxz"}
    assert len(set(seen)) == 2


def test_tied_hosts_stay_where_they_stood_and_another_moment_or_other_hosts_begin_anew() -> None:
    order = RowOrder()
    shown(order, 100, b=1, a=2)
    assert [shown(order, at_s, a=1, b=1) for at_s in range(101, 130)] == ["ba"] * 29
    assert shown(order, 99, a=1, b=2) == "ab"
    assert shown(order, 110, a=2, b=1) == "ba"
    assert shown(order, 111, a=2, b=1, c=3) == "bac"
