"""What of an outage is still in the window, worked out by hand."""

from toolkit.board.outages import RunSeconds
from toolkit.board.standings import Taint
from toolkit.board.taints import sentence, tainted_s, taints

S = 1_800_000_000


def course(*spells: tuple[int, int, int]) -> RunSeconds:
    """Rows of (seconds, ok a second, errors a second)."""
    ok = [ok for seconds, ok, _ in spells for _ in range(seconds)]
    errors = [bad for seconds, _, bad in spells for _ in range(seconds)]
    return RunSeconds(first_s=S, ok=tuple(ok), errors=tuple(errors))


def test_an_outage_that_is_over_leaves_the_window_second_by_second() -> None:
    # up for 100 s, down for 30 s, up for 70 s; the window is the last 80 s: seconds 120 to 199
    told = course((100, 10, 0), (30, 0, 5), (70, 10, 0))
    (only,) = taints(told, [], at_s=S + 199, window_s=80)
    assert only == Taint(
        restarted=False,
        from_s=S + 100,
        to_s=S + 130,
        in_window_s=10,
        # its last second leaves with the window that ends 80 s after second 130 begins
        clean_in_s=10,
        errors=50,
    )


def test_an_outage_that_lasts_has_no_end() -> None:
    (only,) = taints(course((100, 10, 0), (30, 0, 5)), [], at_s=S + 129, window_s=60)
    assert (only.to_s, only.clean_in_s, only.in_window_s, only.errors) == (None, None, 30, 150)


def test_a_known_restart_needs_no_errors() -> None:
    told = course((100, 10, 0), (4, 0, 0), (20, 10, 0))
    assert taints(told, [], at_s=S + 123, window_s=60) == ()
    (only,) = taints(told, [S + 104.0], at_s=S + 123, window_s=60)
    assert (only.restarted, only.in_window_s) == (True, 4)


def test_what_has_left_the_window_is_gone() -> None:
    told = course((100, 10, 0), (30, 0, 5), (80, 10, 0))
    assert taints(told, [], at_s=S + 209, window_s=80) == ()
    assert taints(told, [], at_s=S + 208, window_s=80)[0].in_window_s == 1


def test_several_outages_add_up() -> None:
    told = course((100, 10, 0), (20, 0, 5), (40, 10, 0), (30, 0, 5), (10, 10, 0))
    found = taints(told, [], at_s=S + 199, window_s=150)
    assert [each.in_window_s for each in found] == [20, 30]
    assert tainted_s(found) == 50
    assert tainted_s(()) is None


def test_the_sentence_says_how_much_and_how_long_it_stays() -> None:
    taint = Taint(restarted=True, from_s=S, to_s=S + 300, in_window_s=250, clean_in_s=250, errors=9)
    assert sentence(taint, "14:32") == (
        "still in the window: 4 min 10 s of the 14:32 restart, clean in 4 min 10 s"
    )
    lasting = Taint(restarted=False, from_s=S, to_s=None, in_window_s=45, clean_in_s=None, errors=9)
    assert sentence(lasting, "14:32") == "still in the window: 45 s of the 14:32 outage, still down"
