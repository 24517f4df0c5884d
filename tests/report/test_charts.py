from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.report.charts import (
    Scale,
    area,
    linear_ticks,
    log_scale,
    log_ticks,
    time_ticks,
    trace,
    word,
)


def test_a_linear_scale_is_even_and_clips_at_its_ends() -> None:
    scale = Scale(10.0, 30.0)
    assert [scale.at(value) for value in (0.0, 10.0, 20.0, 30.0, 99.0)] == [0.0, 0.0, 0.5, 1.0, 1.0]


def test_a_logarithmic_scale_gives_each_decade_the_same_room() -> None:
    scale = Scale(1.0, 1000.0, logarithmic=True)
    assert [scale.at(value) for value in (1.0, 10.0, 100.0, 1000.0)] == pytest.approx(
        [0, 1 / 3, 2 / 3, 1]
    )


def test_a_scale_without_length_puts_everything_in_the_middle() -> None:
    assert Scale(5.0, 5.0).at(5.0) == 0.5


def test_a_logarithmic_axis_holds_all_values_and_some_room() -> None:
    scale = log_scale([2.0, 0.0, 200.0], room=2.0)
    assert (scale.low, scale.high) == (1.0, 400.0)
    assert 0 < scale.at(2.0) < scale.at(200.0) < 1


@pytest.mark.parametrize(
    ("high", "ticks"),
    [
        (0.0, [0.0]),
        (10.0, [0, 2, 4, 6, 8, 10]),
        (0.12, [0, 0.025, 0.05, 0.075, 0.1]),
        (43.0, [0, 10, 20, 30, 40]),
    ],
)
def test_a_linear_axis_has_round_values(high: float, ticks: list[float]) -> None:
    assert linear_ticks(high) == pytest.approx(ticks)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.9, 60.0, [1, 2, 5, 10, 20, 50]),
        (0.9, 4000.0, [1, 10, 100, 1000]),
        # less than a decade: even steps
        (1400.0, 3600.0, [1500, 2000, 2500, 3000, 3500]),
    ],
)
def test_a_logarithmic_axis_has_round_values_that_do_not_crowd(
    low: float, high: float, ticks: list[float]
) -> None:
    assert log_ticks(Scale(low, high, logarithmic=True)) == pytest.approx(ticks)


@given(st.floats(0.01, 1e6), st.floats(1.0001, 1e6))
def test_ticks_of_any_logarithmic_axis_stand_on_it_in_order(low: float, times: float) -> None:
    scale = Scale(low, low * times, logarithmic=True)
    found = log_ticks(scale, most=5)
    assert found == sorted(found)
    assert len(found) <= 5
    assert all(low * (1 - 1e-9) <= value <= scale.high * (1 + 1e-9) for value in found)


@given(st.integers(1_600_000_000, 1_900_000_000), st.integers(1, 200_000))
def test_times_on_an_axis_are_round_and_few(begin: int, length: int) -> None:
    found = time_ticks(begin, begin + length, most=6)
    assert len(found) <= 7
    assert all(begin <= at <= begin + length for at, _ in found)
    steps = {round(after[0] - at[0]) for at, after in pairwise(found)}
    assert len(steps) <= 1


def test_a_line_has_a_gap_where_nothing_is_known_and_a_dot_where_one_value_stands_alone() -> None:
    points = [(0.0, 0.0), (0.1, 0.5), None, (0.5, 1.0), None]
    assert trace(points) == "M0.0 1000.0L100.0 500.0M500.0 0.0h0"


def test_a_level_line_needs_only_its_ends_even_beside_a_gap() -> None:
    level = [(x / 10, 0.5) for x in range(5)]
    assert trace(level) == "M0.0 500.0L400.0 500.0"
    assert trace([*level, None, *level]) == "M0.0 500.0L400.0 500.0M0.0 500.0L400.0 500.0"


def test_the_ground_below_a_line_reaches_the_foot() -> None:
    assert area([(0.2, 1.0), (0.4, 0.5)]) == "M200.0 0.0L400.0 500.0L400.0 1000L200.0 1000Z"
    assert area([]) == ""


def test_a_word_stands_at_its_place_by_per_cent() -> None:
    assert word("a", x=0.25, y=0.9, class_="tick") == (
        '<span class="tick" style="left:25.00%;top:10.00%">a</span>'
    )
