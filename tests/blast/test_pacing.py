"""An open loop's slots: absolute, dealt, and charged when nobody took them."""

import pytest

from toolkit.blast.pacing import HostPace
from toolkit.errors import ToolkitError


def test_slots_are_a_rates_multiples_from_the_start_whoever_takes_them() -> None:
    pace = HostPace(4.0, start_s=100.0)
    assert [pace.claim() for _ in range(5)] == [100.0, 100.25, 100.5, 100.75, 101.0]


def test_slots_do_not_drift() -> None:
    pace = HostPace(3.0, start_s=0.0)
    times = [pace.claim() for _ in range(30_001)]
    assert times[30_000] == 10_000.0


def test_workers_deal_the_slots_among_them_and_none_is_left_out() -> None:
    paces = [HostPace(10.0, start_s=5.0, part=part, parts=3) for part in range(3)]
    assert [paces[1].claim() for _ in range(3)] == [5.1, 5.4, 5.7]
    times = [paces[0].claim() for _ in range(4)] + [paces[2].claim() for _ in range(3)]
    assert sorted(round(10 * (time - 5.0)) for time in times) == [0, 2, 3, 5, 6, 8, 9]


def test_what_nobody_took_in_time_is_given_up_once_and_told() -> None:
    pace = HostPace(2.0, start_s=0.0)
    assert pace.claim() == 0.0
    assert pace.missed(2.0, patience_s=1.0) == [0.5]  # 1.0 is due just a second ago: still in time
    assert pace.missed(2.0, patience_s=1.0) == []
    assert pace.claim() == 1.0
    assert pace.missed(3.1) == [1.5, 2.0, 2.5, 3.0]
    assert pace.claim() == 3.5


def test_a_slot_that_is_not_due_is_not_missed() -> None:
    pace = HostPace(1.0, start_s=10.0)
    assert pace.missed(10.0) == []
    assert pace.missed(3.0) == []
    assert pace.claim() == 10.0


@pytest.mark.parametrize(
    ("now_s", "first"),
    [(0.0, 0.5), (0.5, 0.5), (0.6, 2.5), (2.5, 2.5), (2.51, 4.5)],
)
def test_after_a_rest_nothing_is_made_up_for(now_s: float, first: float) -> None:
    pace = HostPace(2.0, start_s=0.0, part=1, parts=4)  # 0.5, 2.5, 4.5 ...
    pace.go_on_at(now_s)
    assert pace.claim() == first


def test_going_on_never_goes_back() -> None:
    pace = HostPace(1.0, start_s=0.0)
    assert [pace.claim() for _ in range(3)] == [0.0, 1.0, 2.0]
    pace.go_on_at(1.0)
    assert pace.claim() == 3.0


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf"), 100_001.0])
def test_a_rate_that_nobody_can_send_is_refused(rate: float) -> None:
    with pytest.raises(ToolkitError, match="no blast can have a rate of") as caught:
        HostPace(rate, start_s=0.0)
    assert caught.value.hint


@pytest.mark.parametrize(("part", "parts"), [(1, 1), (-1, 2), (0, 0)])
def test_a_part_that_is_none_is_a_mistake_of_the_caller(part: int, parts: int) -> None:
    with pytest.raises(ValueError, match="there is no part"):
        HostPace(1.0, start_s=0.0, part=part, parts=parts)
