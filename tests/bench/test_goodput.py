"""Goodput: limits as the user writes them, and what one request must do to be good."""

from typing import Any

import pytest
from support.shots import answered

from toolkit.bench.goodput import GoodputLimits, is_good, read_limits
from toolkit.errors import ToolkitError
from toolkit.records import RequestRecord

LIMITS = GoodputLimits(ttft_ms=500.0, tpot_ms=50.0, e2e_ms=10_000.0)


def shot(**more: Any) -> RequestRecord:
    """Within all of LIMITS, unless said otherwise."""
    return answered(9_000.0, **{"ttft_ms": 400.0, "tpot_ms": 40.0, **more})


def test_all_three_limits_are_read_in_milliseconds() -> None:
    assert read_limits("ttft:500ms,tpot:50ms,e2e:10s") == LIMITS


@pytest.mark.parametrize(
    ("text", "limit_ms"),
    [
        ("e2e:250us", 0.25),
        ("e2e:1.5ms", 1.5),
        ("e2e:2s", 2000.0),
        ("e2e:2m", 120_000.0),
        (" e2e : 2 s ", 2000.0),
    ],
)
def test_every_unit_is_known(text: str, limit_ms: float) -> None:
    assert read_limits(text) == GoodputLimits(e2e_ms=pytest.approx(limit_ms))


def test_a_name_that_is_not_given_is_no_limit() -> None:
    assert read_limits("tpot:50ms") == GoodputLimits(ttft_ms=None, tpot_ms=50.0, e2e_ms=None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "`` is no limit"),
        ("ttft", "`ttft` is no limit"),
        ("ttft:500", "`ttft:500` is no limit"),
        ("ttft:-5ms", "`ttft:-5ms` is no limit"),
        ("ttft:1e9ms", "`ttft:1e9ms` is no limit"),
        ("ttft:5ms tpot:5ms", "`ttft:5ms tpot:5ms` is no limit"),
        ("ttft:5ms,", "`` is no limit"),
        ("itl:5ms", "unknown limit `itl`"),
        ("TTFT:5ms", "unknown limit `TTFT`"),
        ("ttft:5h", "unknown unit `h` in `ttft:5h`"),
        ("ttft:0ms", "limit `ttft:0ms` lets nothing or everything pass"),
        ("ttft:5ms,ttft:6ms", "limit `ttft` stands twice in `ttft:5ms,ttft:6ms`"),
    ],
)
def test_what_is_no_limit_is_refused_with_a_hint(text: str, message: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        read_limits(text)
    assert caught.value.message == message
    assert caught.value.hint


def test_a_number_too_large_for_a_float_is_refused() -> None:
    with pytest.raises(ToolkitError, match="lets nothing or everything pass"):
        read_limits(f"e2e:{'9' * 400}s")


def test_a_request_within_every_limit_is_good() -> None:
    assert is_good(shot(), LIMITS)


def test_a_limit_itself_is_still_good() -> None:
    assert is_good(shot(ttft_ms=500.0, tpot_ms=50.0, e2e_ms=10_000.0), LIMITS)


@pytest.mark.parametrize("late", [{"ttft_ms": 501.0}, {"tpot_ms": 50.1}, {"e2e_ms": 10_001.0}])
def test_one_limit_passed_is_enough(late: dict[str, float]) -> None:
    assert not is_good(shot(**late), LIMITS)
    assert is_good(shot(**late), GoodputLimits())


def test_a_failure_is_never_good() -> None:
    assert not is_good(shot(ok=False, error_kind="cut"), LIMITS)
    assert not is_good(shot(ok=False, error_kind="cut"), GoodputLimits())


def test_a_whole_answer_is_held_to_its_e2e_only() -> None:
    whole = shot(stream=False, ttft_ms=None, tpot_ms=None)
    assert is_good(whole, LIMITS)
    assert not is_good(shot(stream=False, ttft_ms=None, tpot_ms=None, e2e_ms=10_001.0), LIMITS)


def test_a_stream_with_one_token_meets_every_tpot() -> None:
    assert is_good(shot(tpot_ms=None), LIMITS)


def test_a_whole_body_where_a_stream_was_asked_for_does_not_escape_the_ttft_limit() -> None:
    assert not is_good(shot(ttft_ms=None, tpot_ms=None, e2e_ms=600.0), LIMITS)
    assert is_good(shot(ttft_ms=None, tpot_ms=None, e2e_ms=500.0), LIMITS)


def test_a_stream_without_any_token_meets_no_limit_on_time() -> None:
    silent = shot(ttft_ms=None, tpot_ms=None, e2e_ms=None)
    assert not is_good(silent, GoodputLimits(ttft_ms=500.0))
    assert not is_good(silent, GoodputLimits(e2e_ms=500.0))
    assert is_good(silent, GoodputLimits(tpot_ms=50.0))
