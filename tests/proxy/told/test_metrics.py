"""The page: read again by two parsers, whole or as clients may see it."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from toolkit.dialects import read_numbers
from toolkit.promtext import read_page
from toolkit.proxy.exchange import Served
from toolkit.proxy.told.counters import Counters
from toolkit.proxy.told.metrics import (
    Gauges,
    LayerGauge,
    UpstreamGauge,
    merged,
    page,
    public,
    together,
)
from toolkit.proxy.told.recent import Indicators

QUIET = Indicators(window_s=0.0)
GAUGES = Gauges(
    version="0.1.0",
    started_at=1_700_000_000.0,
    connections=12,
    busy=3,
    slots=2,
    slot_limit=8,
    queued={"red": 4, "blue": 1},
    layers=(
        LayerGauge(layer="memory", entries=10, size_bytes=1000, limit_bytes=5000, evicted=7),
        LayerGauge(layer="disk", entries=20, size_bytes=3000, limit_bytes=9000),
    ),
    redis_open=False,
    upstreams=(
        UpstreamGauge(
            name="a", state="up", in_flight=2, running=1.0, waiting=0.0, metrics_age_s=0.5
        ),
    ),
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
    counters.take(
        Served(ts=0.0, team="red", model="qwen", endpoint="chat/completions", status=200, cache="miss",
               ttft_ms=150, latency_ms=900, output_tokens=7)
    )  # fmt: skip
    counters.tally("blue", "qwen", "chat/completions", stream=False).hit(0.00001, 100, 3, 7)
    counters.take(
        Served(ts=0.0, team="blue", model="qwen", status=429, cache="miss", rejected="queue_full")
    )
    counters.ask_upstream("http://10.0.0.4:8000")
    counters.note("upstream_left")
    return counters


def families(text: str) -> list[str]:
    return [family.name for family in text_string_to_metric_families(text)]


def test_the_page_reads_without_complaint_and_names_each_family_once() -> None:
    text = page(counted(), GAUGES, QUIET).decode()
    names = families(text)
    assert len(names) == len(set(names))
    assert all(name.startswith("toolkit_proxy_") for name in names)
    found = read_page(text)
    assert len(found.readings()) > 30
    assert (found.bad_lines, found.cut) == (0, False)


def test_every_counter_ends_in_total_and_every_time_is_in_seconds() -> None:
    for family in text_string_to_metric_families(page(counted(), GAUGES, QUIET).decode()):
        if family.type == "counter":
            assert {sample.name for sample in family.samples} <= {family.name + "_total"}
        if family.type == "histogram":
            assert family.name.endswith("_seconds")


def test_the_five_indicators_can_be_computed_from_the_page() -> None:
    found = read_page(page(counted(), GAUGES, QUIET).decode())
    requests = found.total("toolkit_proxy_requests_total")
    hits = found.total("toolkit_proxy_requests_total", cache="hit")
    assert (requests, hits) == (3, 1)
    assert found.total("toolkit_proxy_rejections_total", reason="queue_full", team="blue") == 1
    assert found.total("toolkit_proxy_errors_total") is None  # no error yet: no series
    ttft = found.histogram("toolkit_proxy_ttft_seconds")
    assert ttft is not None
    # one in (0.1, 0.2]: 0.1 + 0.1 * 0.5 / 1
    assert ttft.quantile(0.5).value == pytest.approx(0.15)
    latency = found.histogram("toolkit_proxy_latency_seconds")
    assert latency is not None
    assert (latency.count, latency.sum) == (2, pytest.approx(0.90001))


def test_what_holds_right_now_is_told_by_layer_team_and_upstream() -> None:
    found = read_page(page(counted(), GAUGES, QUIET).decode())
    assert found.total("toolkit_proxy_cache_bytes", layer="disk") == 3000
    assert found.total("toolkit_proxy_cache_evictions_total", layer="memory") == 7
    assert found.total("toolkit_proxy_cache_evictions_total", layer="disk") is None
    assert found.total("toolkit_proxy_queue_length") == 5
    assert found.total("toolkit_proxy_team_queue_length", team="red") == 4
    assert found.total("toolkit_proxy_upstream_state", upstream="a", state="up") == 1
    assert found.total("toolkit_proxy_upstream_state", upstream="a", state="left") == 0
    assert found.total("toolkit_proxy_model_epoch", model="qwen") == 3
    assert found.total("toolkit_proxy_redis_breaker_open") == 0
    assert found.label_values("toolkit_proxy_build_info", "version") == ("0.1.0",)


def test_the_last_minute_stands_there_as_plain_gauges_where_it_is_known() -> None:
    lately = Indicators(
        window_s=60.0, hit_ratio=0.5, error_rate=0.0, ttft_p50_s=0.2, ttft_p95_s=1.5
    )
    found = read_page(page(Counters(), GAUGES, lately).decode())
    assert found.total("toolkit_proxy_last_minute_hit_ratio") == 0.5
    assert found.total("toolkit_proxy_last_minute_error_ratio") == 0
    assert found.total("toolkit_proxy_last_minute_ttft_seconds", quantile="0.95") == 1.5
    assert "toolkit_proxy_last_minute_coalesced_ratio" not in found
    assert "toolkit_proxy_last_minute_tpot_seconds" not in found


def test_clients_see_no_team_no_upstreams_name_and_no_event() -> None:
    text = public(counted(), GAUGES, QUIET)
    samples = "\n".join(line for line in text.splitlines() if line[0] != "#")
    for secret in ('team="', '"red"', '"blue"', "10.0.0.4", 'upstream="a"', "event"):
        assert secret not in samples
        assert secret in page(counted(), GAUGES, QUIET).decode()
    found = read_page(text)
    # the miss of one team and the hit and rejection of the other are summed
    assert found.total("toolkit_proxy_requests_total") == 3
    assert found.total("toolkit_proxy_rejections_total", reason="queue_full") == 1
    assert len(found.samples("toolkit_proxy_output_tokens_total")) == 2


def test_an_upstreams_page_merged_with_ours_is_read_as_both() -> None:
    text = merged(VLLM, public(counted(), GAUGES, QUIET))
    names = families(text)
    assert len(names) == len(set(names))
    found = read_page(text)
    numbers = read_numbers(found, "text/plain")
    assert numbers is not None
    assert (numbers.engine, numbers.running, numbers.prompt_tokens_total) == ("vllm", 5, 1234)
    assert found.total("toolkit_proxy_requests_total", cache="hit") == 1
    assert found.bad_lines == 0


@pytest.mark.parametrize("ending", ["", "# EOF\n", "\n\n"])
def test_a_page_that_ends_otherwise_merges_as_well(ending: str) -> None:
    text = merged(
        VLLM.rstrip("\n") + "\n" * bool(ending) + ending, public(Counters(), GAUGES, QUIET)
    )
    assert text.count("# EOF") == ending.count("# EOF")
    assert text.endswith(ending if "EOF" in ending else "\n")
    assert read_page(text).total("vllm:prompt_tokens_total") == 1234
    assert read_page(text).total("toolkit_proxy_connections") == 12


def test_a_proxy_behind_a_proxy_does_not_spoil_our_figures() -> None:
    behind = merged(VLLM, public(counted(), GAUGES, QUIET))
    text = merged(behind, public(Counters(), Gauges(connections=1), QUIET))
    names = families(text)
    assert len(names) == len(set(names))
    found = read_page(text)
    assert found.total("toolkit_proxy_connections") == 1
    assert found.total("toolkit_proxy_requests_total") is None
    assert found.total("vllm:num_requests_running") == 5


def test_nothing_from_upstream_leaves_our_page_alone() -> None:
    ours = public(counted(), GAUGES, QUIET)
    assert merged("", ours) == ours


def test_a_hostile_name_stays_within_its_label() -> None:
    counters = Counters()
    name = 'x"} 1\nvllm:num_requests_running 99\n\ud800\\'
    counters.take(Served(ts=0.0, team="", model=name, status=200, cache="miss"))
    gauges = Gauges(epochs={name: 1}, upstreams=(UpstreamGauge(name=name, state="up"),))
    found = read_page(page(counters, gauges, QUIET).decode())
    assert "vllm:num_requests_running" not in found
    assert found.total("toolkit_proxy_requests_total") == 1
    assert found.bad_lines == 0


def test_workers_gauges_add_up_but_for_what_they_share() -> None:
    other = Gauges(
        connections=5,
        busy=1,
        log_lines_dropped=2,
        layers=(
            LayerGauge(layer="memory", entries=1, size_bytes=50, limit_bytes=5000),
            LayerGauge(layer="disk", entries=20, size_bytes=3000, limit_bytes=9000),
        ),
    )
    whole = together([GAUGES, other])
    assert (whole.workers, whole.connections, whole.busy, whole.log_lines_dropped) == (2, 17, 4, 2)
    memory, disk = whole.layers
    assert (memory.entries, memory.size_bytes, memory.limit_bytes, memory.evicted) == (
        11,
        1050,
        10000,
        7,
    )
    assert (disk.entries, disk.size_bytes) == (20, 3000)
    assert (whole.slots, whole.queued, whole.epochs) == (2, {"red": 4, "blue": 1}, {"qwen": 3})
