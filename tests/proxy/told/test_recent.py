"""The indicators of the last minute, by hand."""

import pytest

from toolkit.proxy.exchange import Served
from toolkit.proxy.told.counters import Counters
from toolkit.proxy.told.recent import Recent


def take(counters: Counters, times: int, **told: object) -> None:
    for _ in range(times):
        counters.take(Served(ts=0.0, **{"model": "m", "status": 200, **told}))  # type: ignore[arg-type]


def test_before_anything_happened_nothing_is_known() -> None:
    recent = Recent()
    assert recent.indicators().window_s == 0
    recent.look(0.0, Counters())
    recent.look(1.0, Counters())
    found = recent.indicators()
    assert (found.window_s, found.hit_ratio, found.error_rate, found.ttft_p50_s) == (
        1,
        None,
        None,
        None,
    )
    assert found.requests_per_s == 0


def test_hits_are_of_the_cacheable_and_errors_of_what_was_neither_rejected_nor_left() -> None:
    recent, counters = Recent(), Counters()
    take(counters, 50, cache="miss", status=500)  # before the first look: not of this minute
    recent.look(100.0, counters)
    counters.tally("", "m", "chat/completions", stream=False).hits += 6
    take(counters, 1, cache="coalesced")
    take(counters, 1, cache="miss")
    take(counters, 2, cache="miss", status=429, rejected="queue_full")
    take(counters, 3, bypass="off")
    take(counters, 1, bypass="off", status=502)
    take(counters, 4, bypass="off", left=True)
    recent.look(110.0, counters)
    found = recent.indicators()
    # 18 requests: 6 + 1 + 1 + 2 were cacheable
    assert found.requests_per_s == pytest.approx(1.8)
    assert found.hit_ratio == pytest.approx(0.6)
    assert found.coalesced_ratio == pytest.approx(0.1)
    # 18 - 2 rejected - 4 left = 12, one of them failed
    assert found.error_rate == pytest.approx(1 / 12)
    assert found.rejections_per_s == pytest.approx(0.2)


def test_quantiles_are_prometheus_estimates_from_the_buckets() -> None:
    recent, counters = Recent(), Counters()
    recent.look(0.0, counters)
    take(counters, 10, cache="miss", ttft_ms=150, queue_ms=0.01)
    recent.look(5.0, counters)
    found = recent.indicators()
    # all ten in (0.1, 0.2]: rank 5 of 10, 0.1 + 0.1 * 5 / 10; rank 9.5: 0.195
    assert found.ttft_p50_s == pytest.approx(0.15)
    assert found.ttft_p95_s == pytest.approx(0.195)
    # in the first bucket nothing is known but its edge
    assert found.queue_p95_s == 0.00005
    assert found.tpot_p50_s is None


def test_what_is_older_than_a_minute_is_forgotten() -> None:
    recent, counters = Recent(), Counters()
    recent.look(0.0, counters)
    take(counters, 10, cache="miss", status=500)
    for second in range(1, 62):
        recent.look(float(second), counters)
    found = recent.indicators()
    assert found.window_s == 60
    assert found.error_rate is None


def test_looks_that_come_rarely_still_span_the_minute() -> None:
    recent, counters = Recent(), Counters()
    recent.look(0.0, counters)
    take(counters, 10, cache="hit")
    recent.look(50.0, counters)
    recent.look(100.0, counters)
    # with a look at 0, 50 and 100, the last minute began somewhere before 50
    assert recent.indicators().window_s == 100
    assert recent.indicators().hit_ratio == 1


def test_a_worker_that_began_anew_gives_no_negative_rates() -> None:
    recent, counters = Recent(), Counters()
    take(counters, 10, cache="hit")
    recent.look(0.0, counters)
    again = Counters()
    take(again, 2, cache="hit")
    recent.look(1.0, again)
    assert recent.indicators().requests_per_s is None
    take(again, 4, cache="hit")
    recent.look(3.0, again)
    assert recent.indicators().requests_per_s == 2
