"""Numbers and strangers' words, as a screen shows them."""

import time

import pytest

from toolkit.safe_text import printable
from toolkit.units import (
    UNKNOWN,
    clock,
    counted,
    digits,
    file_size,
    latency,
    milliseconds,
    per_second,
    percent,
    rate,
    round_span,
    share,
    short,
    size,
    span,
    spoken,
    spoken_ms,
    stopwatch,
    tick,
    tick_ms,
    whole,
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
    ("number", "words"),
    [
        (5.3164, "5.32"),
        (0.0, "0"),
        (99.96, "100"),
        (182.4, "182"),
        (1280.0, "1,280"),
        (1e6, "1,000,000"),
    ],
)
def test_figures_have_three_digits_and_no_exponent(number: float, words: str) -> None:
    assert short(number) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (0.5, "0.5 s"),
        (9.96, "10.0 s"),
        (45.4, "45 s"),
        (59.7, "1 min"),
        (250, "4 min 10 s"),
        (1200, "20 min"),
        (3599.6, "1 h"),
        (3900, "1 h 5 min"),
        (7170, "2 h"),  # 119.5 minutes
        (7140, "1 h 59 min"),
    ],
)
def test_durations_are_spoken_as_people_do(seconds: float, words: str) -> None:
    assert spoken(seconds) == words


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


def test_a_terminals_table_has_one_unit_a_column_and_a_hyphen_for_what_is_unknown():
    assert [latency(ms) for ms in (0.854, 42.34, 219.4, 3379.2, 89_000, 1e300, None)] == [
        "0.854 ms",
        "42.3 ms",
        "219 ms",
        "3,379 ms",
        "89.0 s",
        "1e+297 s",
        "-",
    ]
    assert [percent(0.2273), percent(0.2273, 1), percent(None)] == ["23%", "22.7%", "-"]
    assert [per_second(0.42), per_second(999.94), per_second(1234.5)] == ["0.4", "999.9", "1,234"]
    assert [whole(1022.4), whole(1e300), whole(None)] == ["1,022", "1e+300", "-"]


@pytest.mark.parametrize(
    ("ms", "told"),
    [(3.24, "3.2 ms"), (6, "6.0 ms"), (48.4, "48 ms"), (3378, "3,378 ms"), (89_000, "89.0 s")],
)
def test_a_latency_in_a_sentence_has_the_digits_that_matter(ms: float, told: str) -> None:
    assert spoken_ms(ms) == told


def test_bytes_of_memory_double_and_bytes_of_files_do_not():
    assert [size(512), size(64 * 2**20), size(1.5 * 2**30)] == ["512 B", "64 MiB", "1.5 GiB"]
    assert [file_size(48_000), file_size(340e6), file_size(1.2e9)] == ["48 kB", "340 MB", "1.2 GB"]


def test_one_thing_has_no_s():
    assert [counted(0, "run"), counted(1, "run"), counted(1000, "run")] == [
        "0 runs",
        "1 run",
        "1,000 runs",
    ]


def test_a_moment_of_another_day_has_its_date(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        noon = 1_750_075_200.0  # 2025-06-16: 20,255.5 days since 1970
        assert clock(noon - 3600, noon) == "11:00:00"
        assert clock(noon - 86_400, noon) == "2025-06-15 12:00:00"
        assert clock(1e300, noon) == clock(float("nan"), noon) == "?"
    time.tzset()


def test_what_would_act_on_a_terminal_becomes_a_question_mark():
    assert printable("\x1b[31mred\n") == "?[31mred?"
    assert printable("Qwen3 \N{EN DASH} größer") == "Qwen3 \N{EN DASH} größer"


@pytest.mark.parametrize(
    ("seconds", "word"),
    [
        (1.0, "1 s"),
        (60.0, "1 min"),
        (90.0, "90 s"),
        (600.0, "10 min"),
        (3600.0, "1 h"),
        (86400.0, "1 d"),
    ],
)
def test_round_times_are_short(seconds: float, word: str) -> None:
    assert round_span(seconds) == word
