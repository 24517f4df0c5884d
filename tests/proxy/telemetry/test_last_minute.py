"""The indicators of the last minute, by hand."""

import pytest

from toolkit.proxy.telemetry.metrics import Counters, LastMinute, Served


def take(counters: Counters, times: int, **told: object) -> None:
    for _ in range(times):
        counters.take(Served(ts=0.0, **{"model": "m", "status": 200, **told}))  # type: ignore[arg-type]


def test_before_anything_happened_nothing_is_known() -> None:
    minute = LastMinute()
    assert minute.indicators()["window_s"] == 0
    minute.sample(0.0, Counters())
    minute.sample(1.0, Counters())
    found = minute.indicators()
    assert (found["window_s"], found["hit_ratio"], found["error_rate"], found["ttft_p50_s"]) == (
        1,
        None,
        None,
        None,
    )
    assert found["requests_per_s"] == 0


def test_quantiles_are_prometheus_estimates_from_the_buckets() -> None:
    minute, counters = LastMinute(), Counters()
    minute.sample(0.0, counters)
    take(counters, 10, cache="miss", ttft_ms=150, queue_ms=0.01)
    minute.sample(5.0, counters)
    found = minute.indicators()
    # all ten in (0.1, 0.2]: rank 5 of 10, 0.1 + 0.1 * 5 / 10; rank 9.5: 0.195
    assert found["ttft_p50_s"] == pytest.approx(0.15)
    assert found["ttft_p95_s"] == pytest.approx(0.195)
    # in the first bucket nothing is known but its edge
    assert found["queue_p95_s"] == 0.00005
    assert found["tpot_p50_s"] is None


def test_what_is_older_than_a_minute_is_forgotten() -> None:
    minute, counters = LastMinute(), Counters()
    minute.sample(0.0, counters)
    take(counters, 10, cache="miss", status=500)
    for second in range(1, 62):
        minute.sample(float(second), counters)
    found = minute.indicators()
    assert found["window_s"] == 60
    assert found["error_rate"] is None


def test_looks_that_come_rarely_still_span_the_minute() -> None:
    minute, counters = LastMinute(), Counters()
    minute.sample(0.0, counters)
    take(counters, 10, cache="hit")
    minute.sample(50.0, counters)
    minute.sample(100.0, counters)
    # with a look at 0, 50 and 100, the last minute began somewhere before 50
    assert minute.indicators()["window_s"] == 100
    assert minute.indicators()["hit_ratio"] == 1


def test_a_worker_that_began_anew_gives_no_negative_rates() -> None:
    minute, counters = LastMinute(), Counters()
    take(counters, 10, cache="hit")
    minute.sample(0.0, counters)
    again = Counters()
    take(again, 2, cache="hit")
    minute.sample(1.0, again)
    assert minute.indicators()["requests_per_s"] is None
    take(again, 4, cache="hit")
    minute.sample(3.0, again)
    assert minute.indicators()["requests_per_s"] == 2
