"""A worker's clock, as the master sees it."""

import pytest

from toolkit.blast.placing import MOST_MESSAGES, Placing


def shift(*ways: float, worker: str = "w") -> int:
    """The shift after messages that came so many seconds after they left, by two clocks."""
    placing = Placing()
    for number, way in enumerate(ways):
        placing.note(worker, 1000.0 + number, 1000.0 + number + way)
    return placing.shift_s("w")


def test_a_clock_within_a_second_stays_as_it_is() -> None:
    assert shift(0.002, 0.001) == 0
    assert shift(0.99) == 0
    assert shift(-0.99) == 0


@pytest.mark.parametrize(("way", "seconds"), [(3.2, 3), (-7.6, -8), (3600.1, 3600), (1.2, 1)])
def test_a_clock_that_is_off_is_shifted_by_whole_seconds(way: float, seconds: int) -> None:
    assert shift(way) == seconds


def test_one_slow_message_is_no_offset() -> None:
    assert shift(0.001, 5.0, 9.0) == 0


def test_a_first_message_that_was_slow_is_forgiven_by_the_next() -> None:
    assert shift(5.0) == 5
    assert shift(5.0, 0.001) == 0


def test_a_shift_does_not_flap_with_the_way() -> None:
    assert shift(3.4, 3.6, 3.3, 3.7) == 3
    assert shift(*[3.4] * MOST_MESSAGES, *[3.7] * MOST_MESSAGES) == 3


def test_a_clock_that_was_set_meanwhile_is_followed() -> None:
    assert shift(*[0.0] * 50, *[60.0] * MOST_MESSAGES) == 60
    assert shift(*[60.0] * 50, 0.0) == 0


def test_each_worker_has_a_clock_of_its_own() -> None:
    assert shift(50.0, worker="other") == 0
