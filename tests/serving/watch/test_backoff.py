"""How long a watchdog waits before it starts an engine again, and when it gives up."""

from toolkit.serving.watch.backoff import Backoff


def backoff(**changes: float) -> Backoff:
    settings = {"first_s": 2.0, "most_s": 60.0, "restarts": 100, "within_s": 600.0} | changes
    return Backoff(**settings)


def test_waits_double_up_to_the_cap() -> None:
    one = backoff()
    assert [one.next(float(at)) for at in range(8)] == [2, 4, 8, 16, 32, 60, 60, 60]


def test_a_cap_below_the_first_wait_is_the_first_wait() -> None:
    assert backoff(first_s=5.0, most_s=1.0).next(0.0) == 5.0


def test_a_hundred_thousand_crashes_overflow_nothing() -> None:
    one = backoff(restarts=10**9)
    for at in range(2000):
        last = one.next(float(at))
    assert last == 60.0


def test_the_waits_begin_anew_after_a_stretch_of_being_well_as_long_as_the_cap() -> None:
    one = backoff()
    assert (one.next(0), one.next(10)) == (2, 4)
    one.came_back(20)
    assert one.next(20 + 59) == 8, "a second too few"
    one.came_back(100)
    assert one.next(100 + 60) == 2


def test_coming_back_a_long_time_ago_counts_once() -> None:
    one = backoff()
    one.came_back(0)
    assert (one.next(100), one.next(300)) == (2, 4), "it never came back between these two"


def test_too_many_within_the_window_are_a_crash_loop() -> None:
    one = backoff(restarts=3)
    assert [one.next(at) is None for at in (0, 100, 200, 300)] == [False, False, False, True]
    assert one.refusal() == "3 restarts within 600 s: a crash loop"


def test_a_stretch_of_being_well_does_not_hide_a_crash_loop() -> None:
    one = backoff(restarts=2)
    for at in (0, 200):
        assert one.next(at) is not None
        one.came_back(at + 10)
    assert one.next(400) is None


def test_what_left_the_window_counts_no_more() -> None:
    one = backoff(restarts=2, within_s=600)
    one.next(0)
    one.next(300)
    assert one.next(599) is None
    # at 600 the one at 0 is out, and the refused one at 599 was none
    assert one.next(600) is not None
    assert one.next(601) is None


def test_no_restart_at_all_may_be_wanted() -> None:
    one = backoff(restarts=0)
    assert one.next(0) is None
    assert one.refusal() == "no restart is allowed", "nothing was restarted: that is no loop"
