"""What is counted under which labels, and the indicators of the last minute, by hand."""

import pytest

from toolkit.metrics.parser import read_page
from toolkit.proxy.telemetry.metrics import (
    MAX_MODELS,
    Counters,
    Gauges,
    LastMinute,
    Served,
    page,
)


def served(**told: object) -> Served:
    usual: dict[str, object] = {
        "ts": 1_700_000_000.0,
        "team": "red",
        "endpoint": "chat/completions",
        "model": "qwen",
        "status": 200,
        "cache": "miss",
    }
    return Served(**{**usual, **told})  # type: ignore[arg-type]


def test_the_sixty_fifth_model_that_answered_is_other() -> None:
    counters = Counters()
    counters.take(served(model="qwen"))
    for number in range(MAX_MODELS):
        counters.take(served(model=f"m{number}"))
    models = {key[1] for key in counters.counts["requests"]}
    # 64 places: qwen, m0 to m62, and what came then
    assert len(models) == MAX_MODELS + 1
    assert {"qwen", "m62", "other"} <= models
    assert "m63" not in models


def test_more_kinds_of_errors_than_there_can_be_are_other() -> None:
    counters = Counters()
    for number in range(2000):
        counters.take(served(status=None, error_kind=f"kind {number}"))
    assert len(counters.counts["errors"]) == 257
    assert counters.total("errors") == 2000


QUIET = LastMinute().indicators()


def test_a_hostile_name_stays_within_its_label() -> None:
    counters = Counters()
    name = 'x"} 1\nvllm:num_requests_running 99\n\ud800\\'
    counters.take(Served(ts=0.0, team="", model=name, status=200, cache="miss"))
    found = read_page(page(counters, Gauges(epochs={name: 1}), QUIET).decode())
    assert not found.samples("vllm:num_requests_running")
    assert found.total("toolkit_proxy_requests_total") == 1
    assert found.bad_lines == 0


def take(counters: Counters, times: int, **told: object) -> None:
    for _ in range(times):
        counters.take(Served(ts=0.0, **{"model": "m", "status": 200, **told}))  # type: ignore[arg-type]


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
