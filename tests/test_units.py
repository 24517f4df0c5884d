"""Numbers and strangers' words, as a screen shows them."""

import time
from collections.abc import Callable

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
    ("shown", "value", "text"),
    [
        # a latency has three digits and a unit
        (milliseconds, 0.01, "< 0.01 ms"),
        (milliseconds, 0.854, "0.85 ms"),
        (milliseconds, 2.0, "2.00 ms"),
        (milliseconds, 9.996, "10.0 ms"),
        (milliseconds, 42.34, "42.3 ms"),
        (milliseconds, 999.4, "999 ms"),
        (milliseconds, 999.6, "1.00 s"),
        (milliseconds, 1240.0, "1.24 s"),
        (milliseconds, 99_960.0, "100 s"),
        (milliseconds, 1_100_000.0, "> 1000 s"),
        (milliseconds, None, UNKNOWN),
        # digits never show more than two places
        (digits, 0.0, "0"),
        (digits, 0.004, "0.00"),
        (digits, 0.99, "0.99"),
        (digits, 9.999, "10.0"),
        (digits, 99.96, "100"),
        (digits, 1234.5, "1,234"),
        # a rate has three digits or all of its whole ones
        (rate, None, UNKNOWN),
        (rate, 0.0, "0"),
        (rate, 0.42, "0.42"),
        (rate, 9.994, "9.99"),
        (rate, 9.996, "10.0"),
        (rate, 42.14, "42.1"),
        (rate, 99.96, "100"),
        (rate, 4210.4, "4,210"),
        # a share above nothing is never nothing and one below all never all
        (share, None, UNKNOWN),
        (share, 0.0, "0 %"),
        (share, 0.0004, "< 0.1 %"),
        (share, 0.0005, "0.1 %"),
        (share, 0.214, "21.4 %"),
        (share, 0.9996, "> 99.9 %"),
        (share, 1.0, "100 %"),
        # a span is told in its two largest units
        (span, None, UNKNOWN),
        (span, 0, "0 s"),
        (span, 59.4, "59 s"),
        (span, 59.6, "1 min"),
        (span, 250, "4 min 10 s"),
        (span, 900, "15 min"),
        (span, 3900, "1 h 5 min"),
        (span, 3599.7, "1 h"),
        # figures have three digits and no exponent
        (short, 5.3164, "5.32"),
        (short, 0.0, "0"),
        (short, 99.96, "100"),
        (short, 182.4, "182"),
        (short, 1280.0, "1,280"),
        (short, 1e6, "1,000,000"),
        # durations are spoken as people do
        (spoken, 0, "0 s"),
        (spoken, 0.5, "0.5 s"),
        (spoken, 9.96, "10.0 s"),
        (spoken, 45.4, "45 s"),
        (spoken, 59.7, "1 min"),
        (spoken, 250, "4 min 10 s"),
        (spoken, 1200, "20 min"),
        (spoken, 3599.6, "1 h"),
        (spoken, 3900, "1 h 5 min"),
        (spoken, 7170, "2 h"),  # 119.5 minutes
        (spoken, 7140, "1 h 59 min"),
        # a stopwatch counts whole seconds
        (stopwatch, 0, "0:00"),
        (stopwatch, 425.9, "7:05"),
        (stopwatch, 4025, "1:07:05"),
        (stopwatch, -3, "0:00"),
        # an axis shows no digits that a round value does not have
        (tick, 0.5, "0.5"),
        (tick, 20.0, "20"),
        (tick, 2000.0, "2,000"),
        (tick_ms, 0.1, "0.1 ms"),
        (tick_ms, 500.0, "500 ms"),
        (tick_ms, 1000.0, "1 s"),
        (tick_ms, 2500.0, "2.5 s"),
        # a terminal's table has one unit a column and a hyphen for what is unknown
        (latency, 0.854, "0.854 ms"),
        (latency, 42.34, "42.3 ms"),
        (latency, 219.4, "219 ms"),
        (latency, 3379.2, "3,379 ms"),
        (latency, 89_000, "89.0 s"),
        (latency, 1e300, "1e+297 s"),
        (latency, None, "-"),
        (percent, 0.2273, "23%"),
        (percent, (0.2273, 1), "22.7%"),
        (percent, None, "-"),
        (per_second, 0.42, "0.4"),
        (per_second, 999.94, "999.9"),
        (per_second, 1234.5, "1,234"),
        (whole, 1022.4, "1,022"),
        (whole, 1e300, "1e+300"),
        (whole, None, "-"),
        # a latency in a sentence has the digits that matter
        (spoken_ms, 3.24, "3.2 ms"),
        (spoken_ms, 6, "6.0 ms"),
        (spoken_ms, 48.4, "48 ms"),
        (spoken_ms, 3378, "3,378 ms"),
        (spoken_ms, 89_000, "89.0 s"),
        # bytes of memory double and bytes of files do not
        (size, 512, "512 B"),
        (size, 64 * 2**20, "64 MiB"),
        (size, 1.5 * 2**30, "1.5 GiB"),
        (file_size, 48_000, "48 kB"),
        (file_size, 340e6, "340 MB"),
        (file_size, 1.2e9, "1.2 GB"),
        # one thing has no s
        (counted, (0, "run"), "0 runs"),
        (counted, (1, "run"), "1 run"),
        (counted, (1000, "run"), "1,000 runs"),
        # round times are short
        (round_span, 1.0, "1 s"),
        (round_span, 60.0, "1 min"),
        (round_span, 90.0, "90 s"),
        (round_span, 600.0, "10 min"),
        (round_span, 3600.0, "1 h"),
        (round_span, 86400.0, "1 d"),
    ],
)
def test_a_value_is_shown_as_people_write_it(
    shown: Callable[..., str], value: float | tuple[float, int] | tuple[int, str] | None, text: str
) -> None:
    assert shown(*value if isinstance(value, tuple) else (value,)) == text


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
