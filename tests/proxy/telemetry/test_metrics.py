"""The page for Prometheus: read again by two parsers, whole or as clients may see it."""

from prometheus_client.parser import text_string_to_metric_families

from toolkit.metrics.parser import read_page
from toolkit.proxy.telemetry.metrics import (
    CacheGauge,
    Counters,
    Gauges,
    LastMinute,
    Served,
    page,
)

QUIET = LastMinute().indicators()
GAUGES = Gauges(
    version="0.1.0",
    started_at=1_700_000_000.0,
    connections=12,
    busy=3,
    slots=2,
    queued={"red": 4, "blue": 1},
    layers=(CacheGauge(layer="memory", entries=10, size_bytes=1000),),
    page_ages_s={"http://10.0.0.4:8000": 0.5},
    epochs={"qwen": 3},
)
VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="qwen"} 5.0
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="qwen"} 1234.0
"""


def counted() -> Counters:
    counters = Counters()
    counters.take(Served(ts=0.0, team="red", model="qwen", status=200, cache="miss", ttft_ms=150))
    counters.tally("blue", "qwen", "chat/completions", stream=False).hit(0.00001, 100, 3, 7)
    return counters


def families(text: str) -> list[str]:
    return [family.name for family in text_string_to_metric_families(text)]


def test_a_proxy_behind_a_proxy_does_not_spoil_our_figures() -> None:
    behind = page(counted(), GAUGES, QUIET, VLLM).decode()
    text = page(Counters(), Gauges(connections=1), QUIET, behind).decode()
    names = families(text)
    assert len(names) == len(set(names))
    found = read_page(text)
    assert found.total("toolkit_proxy_connections") == 1
    assert found.total("toolkit_proxy_requests_total") is None
    assert found.total("vllm:num_requests_running") == 5


def test_a_hostile_name_stays_within_its_label() -> None:
    counters = Counters()
    name = 'x"} 1\nvllm:num_requests_running 99\n\ud800\\'
    counters.take(Served(ts=0.0, team="", model=name, status=200, cache="miss"))
    found = read_page(page(counters, Gauges(epochs={name: 1}), QUIET).decode())
    assert not found.samples("vllm:num_requests_running")
    assert found.total("toolkit_proxy_requests_total") == 1
    assert found.bad_lines == 0
