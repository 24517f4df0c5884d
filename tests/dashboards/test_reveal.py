from leaderboard_page.reveal import STEP_S, covered_places, frozen_before

from toolkit.records import Event


def event(at: float, kind: str) -> Event:
    return Event(run="r", at=at, kind=kind)  # type: ignore[arg-type]


def test_a_board_that_was_never_frozen_has_nothing_to_uncover() -> None:
    assert frozen_before([event(1.0, "start"), event(2.0, "reveal")]) is None


def test_a_frozen_board_is_not_uncovered_yet() -> None:
    assert frozen_before([event(10.9, "freeze")]) is None


def test_after_the_reveal_both_moments_are_known() -> None:
    assert frozen_before([event(10.9, "freeze"), event(99.5, "reveal")]) == (10, 99.5)


def test_a_second_freeze_hides_the_reveal_before_it() -> None:
    events = [event(10.0, "freeze"), event(20.0, "reveal"), event(30.0, "freeze")]
    assert frozen_before(events) is None
    assert frozen_before([*events, event(40.0, "reveal")]) == (30, 40.0)


def test_of_two_freezes_the_first_counts_and_the_order_of_writing_does_not() -> None:
    events = [event(50.0, "reveal"), event(20.0, "freeze"), event(10.0, "freeze")]
    assert frozen_before(events) == (10, 50.0)


def test_places_are_uncovered_from_the_last_to_the_first_one_a_step() -> None:
    covered = [list(covered_places(100.0, 100.0 + step * STEP_S, 4)) for step in range(5)]
    assert covered == [[1, 2, 3], [1, 2], [1], [], []]


def test_a_clock_behind_the_reveal_covers_as_at_its_first_moment() -> None:
    assert list(covered_places(100.0, 90.0, 3)) == [1, 2]


def test_without_hosts_there_is_nothing_to_cover() -> None:
    assert list(covered_places(100.0, 100.0, 0)) == []
