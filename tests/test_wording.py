"""Numbers and strangers' words, as a screen shows them."""

import pytest

from toolkit.wording import (
    UNKNOWN,
    digits,
    milliseconds,
    printable,
    rate,
    share,
    span,
    stopwatch,
    tick,
    tick_ms,
)


@pytest.mark.parametrize(
    ("value_ms", "told"),
    [
        (0.01, "< 0.01 ms"),
        (0.854, "0.85 ms"),
        (2.0, "2.00 ms"),
        (9.996, "10.0 ms"),
        (42.34, "42.3 ms"),
        (999.4, "999 ms"),
        (999.6, "1.00 s"),
        (1240.0, "1.24 s"),
        (99_960.0, "100 s"),
        (1_100_000.0, "> 1000 s"),
        (None, UNKNOWN),
    ],
)
def test_a_latency_has_three_digits_and_a_unit(value_ms: float | None, told: str) -> None:
    assert milliseconds(value_ms) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0.0, "0"),
        (0.004, "0.00"),
        (0.99, "0.99"),
        (9.999, "10.0"),
        (99.96, "100"),
        (1234.5, "1,234"),
    ],
)
def test_digits_never_show_more_than_two_places(value: float, told: str) -> None:
    assert digits(value) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, UNKNOWN),
        (0.0, "0"),
        (0.42, "0.42"),
        (9.994, "9.99"),
        (9.996, "10.0"),
        (42.14, "42.1"),
        (99.96, "100"),
        (4210.4, "4,210"),
    ],
)
def test_a_rate_has_three_digits_or_all_of_its_whole_ones(value: float | None, told: str) -> None:
    assert rate(value) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, UNKNOWN),
        (0.0, "0 %"),
        (0.0004, "< 0.1 %"),
        (0.0005, "0.1 %"),
        (0.214, "21.4 %"),
        (0.9996, "> 99.9 %"),
        (1.0, "100 %"),
    ],
)
def test_a_share_above_nothing_is_never_nothing_and_one_below_all_never_all(
    value: float | None, told: str
) -> None:
    assert share(value) == told


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (None, UNKNOWN),
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (250, "4 min 10 s"),
        (900, "15 min"),
        (3900, "1 h 5 min"),
        (3599.7, "1 h"),
    ],
)
def test_a_span_is_told_in_its_two_largest_units(seconds: float | None, told: str) -> None:
    assert span(seconds) == told


@pytest.mark.parametrize(
    ("seconds", "told"), [(0, "0:00"), (425.9, "7:05"), (4025, "1:07:05"), (-3, "0:00")]
)
def test_a_stopwatch_counts_whole_seconds(seconds: float, told: str) -> None:
    assert stopwatch(seconds) == told


def test_an_axis_shows_no_digits_that_a_round_value_does_not_have() -> None:
    assert [tick(0.5), tick(20.0), tick(2000.0)] == ["0.5", "20", "2,000"]
    assert [tick_ms(0.1), tick_ms(500.0), tick_ms(1000.0), tick_ms(2500.0)] == [
        "0.1 ms",
        "500 ms",
        "1 s",
        "2.5 s",
    ]


def test_what_would_act_on_a_terminal_becomes_a_question_mark():
    assert printable("\x1b[31mred\n") == "?[31mred?"
    assert printable("Qwen3 \N{EN DASH} größer") == "Qwen3 \N{EN DASH} größer"
