"""When the measuring machine says of itself that it was the limit."""

import pytest

from toolkit.bench.health import fitness

GOOD = {"loop_lag_p99_ms": 20.0, "send_lag_p99_ms": 50.0, "cpu_share": 0.85}
"""Each on its limit, which is still good."""


def test_on_its_limits_it_is_fit() -> None:
    found = fitness(**GOOD)
    assert (found.ok, found.why) == (True, None)
    assert (found.loop_lag_p99_ms, found.send_lag_p99_ms, found.cpu_share) == (20.0, 50.0, 0.85)


@pytest.mark.parametrize(
    ("past", "why"),
    [
        ({"loop_lag_p99_ms": 20.6}, "its event loop was 21 ms late (p99)"),
        ({"send_lag_p99_ms": 51.0}, "requests left 51 ms late (p99)"),
        ({"cpu_share": 0.86}, "it used 86% of a core"),
        (
            {"loop_lag_p99_ms": 30.0, "send_lag_p99_ms": 60.0, "cpu_share": 1.0},
            "its event loop was 30 ms late (p99), requests left 60 ms late (p99), it used 100% of a core",
        ),
    ],
)
def test_past_any_limit_it_is_not_and_says_why(past: dict[str, float], why: str) -> None:
    found = fitness(**GOOD | past)
    assert (found.ok, found.why) == (False, why)


def test_what_is_unknown_accuses_nobody() -> None:
    found = fitness(loop_lag_p99_ms=None, send_lag_p99_ms=None, cpu_share=None)
    assert (found.ok, found.why) == (True, None)
