"""Scaling: on metrics that a real vLLM has, one replica at a time, and never to nothing because nobody could be asked."""

import re
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.deployed import ROOT, STACK, documents, site, templates, text_of

from toolkit.deploy.kubernetes import kit
from toolkit.deploy.site import Kit
from toolkit.errors import ToolkitError

PAGE = (ROOT / "tests/data/vllm-0.32.0-cpu/metrics_after_load.txt").read_text()
NAMES = {sample.name for each in text_string_to_metric_families(PAGE) for sample in each.samples}
ONE = '[[engine]]\nname = "qwen"\nmodel = "Qwen/Q"\nport = 8001\n'


def made(text: str = STACK, **more: Any) -> Kit:
    return kit(site(text), templates(), **more)


def scaled(found: Kit) -> list[Any]:
    return documents(text_of(found, "scaling/keda.yaml"))


def queries(found: Kit) -> list[str]:
    return [each["metadata"]["query"] for one in scaled(found) for each in one["spec"]["triggers"]]


def test_every_metric_that_is_asked_for_stands_on_a_real_vllms_page() -> None:
    names = {name for query in queries(made()) for name in re.findall(r"[a-z_]+:[a-z_]+", query)}
    assert names == {"vllm:num_requests_waiting", "vllm:num_requests_running"}
    assert names <= NAMES


def test_an_engine_is_known_by_its_model_and_by_its_pods() -> None:
    # another stack may serve the same model, and be seen by the same Prometheus
    assert queries(made())[:1] == [
        'sum(vllm:num_requests_waiting{model_name="Qwen/Qwen2.5-7B-Instruct",pod=~"contest-qwen-[a-z0-9]+-[a-z0-9]{5}"})'
    ]


@pytest.mark.parametrize(
    ("pod", "engine"),
    [
        # as Kubernetes calls them: Deployment, ReplicaSet, pod; group, number, and of a worker its own
        ("contest-qwen-76f8c9d5b4-x2x9k", 0),
        ("contest-qwen-2-76f8c9d5b4-x2x9k", 1),
        ("contest-qwen-big-0", 2),
        ("contest-qwen-big-11", 2),
        ("contest-qwen-big-0-1", None),
        ("test-contest-qwen-76f8c9d5b4-x2x9k", None),
    ],
)
def test_a_pod_is_one_engine_s_however_alike_their_names_are(pod: str, engine: int | None) -> None:
    twin = ONE.replace('"qwen"', '"qwen-2"').replace("8001", "8003")
    big = ONE.replace('"qwen"', '"qwen-big"').replace("8001", "8005")
    big += "[engine.flags]\ntensor-parallel-size = 16\n"
    found = [
        re.search('pod=~"([^"]+)"', query)[1]  # type: ignore[index]
        for query in queries(made(ONE + twin + big, gpus_per_node=8))[::2]
    ]
    # Prometheus reads a whole label
    fitting = [number for number, one in enumerate(found) if re.fullmatch(one, pod)]
    assert fitting == ([] if engine is None else [engine])


def test_a_models_quotes_do_not_end_the_query() -> None:
    evil = ONE + "served_name = 'a\"} or vector(9)\\'\n"
    assert queries(made(evil))[0] == (
        'sum(vllm:num_requests_waiting{model_name="a\\"} or vector(9)\\\\",pod=~"contest-qwen-[a-z0-9]+-[a-z0-9]{5}"})'
    )


def test_a_replica_more_for_four_that_wait_and_kept_while_half_of_the_slots_are_used() -> None:
    qwen, coder = scaled(made())
    thresholds = [each["metadata"]["threshold"] for each in qwen["spec"]["triggers"]]
    # max-num-seqs is 64
    assert thresholds == ["4", "32"]
    # not told: 256
    assert coder["spec"]["triggers"][1]["metadata"]["threshold"] == "128"


def test_silence_of_prometheus_is_a_failure_and_ends_no_replica() -> None:
    for each in scaled(made()):
        spec = each["spec"]
        assert spec["fallback"]["behavior"] == "currentReplicasIfHigher"
        assert spec["minReplicaCount"] == 1
        for trigger in spec["triggers"]:
            assert trigger["metadata"]["ignoreNullValues"] == "false"
            # a fallback needs it
            assert trigger["metricType"] == "AverageValue"


def test_one_replica_at_a_time_and_none_while_the_last_one_loads() -> None:
    (engine,) = scaled(made(ONE + 'ready = "2m"\n'))
    up = engine["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleUp"]
    assert up["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 120}]
    (engine,) = scaled(made(ONE + 'ready = "2h"\n'))
    up = engine["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleUp"]
    assert up["policies"][0]["periodSeconds"] == 300


def test_the_most_replicas_and_the_place_of_prometheus_can_be_said() -> None:
    found = made(ONE, most=7, prometheus="https://prom.example.com/")
    (engine,) = scaled(found)
    assert engine["spec"]["maxReplicaCount"] == 7
    assert (
        engine["spec"]["triggers"][0]["metadata"]["serverAddress"] == "https://prom.example.com:443"
    )
    (values,) = documents(text_of(found, "scaling/prometheus-adapter.yaml"))
    assert values["prometheus"] == {"url": "https://prom.example.com", "port": 443}


def test_a_prometheus_below_a_path_is_asked_there() -> None:
    found = made(ONE, prometheus="http://mimir:8080/prometheus/")
    (engine,) = scaled(found)
    assert (
        engine["spec"]["triggers"][0]["metadata"]["serverAddress"] == "http://mimir:8080/prometheus"
    )
    (values,) = documents(text_of(found, "scaling/prometheus-adapter.yaml"))
    assert values["prometheus"] == {"url": "http://mimir", "port": 8080, "path": "/prometheus"}


@pytest.mark.parametrize(
    "address",
    ["prom:9090", "http://", "http://h:x", "http://me:pw@prom:9090", "http://prom/?tenant=a"],
)
def test_what_is_no_address_of_a_prometheus_is_refused(address: str) -> None:
    with pytest.raises(ToolkitError, match="no address of a Prometheus"):
        made(ONE, prometheus=address)


def test_a_group_of_nodes_is_scaled_as_a_whole() -> None:
    big = ONE + "[engine.flags]\ntensor-parallel-size = 16\n"
    (engine,) = scaled(made(big, gpus_per_node=8))
    assert engine["spec"]["scaleTargetRef"] == {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "name": "contest-qwen",
    }


def test_the_adapter_renames_what_the_autoscaler_asks_for() -> None:
    found = made()
    (values,) = documents(text_of(found, "scaling/prometheus-adapter.yaml"))
    renamed = {
        each["name"]["as"]: re.match(r"[a-z_:]+", each["seriesQuery"])[0]  # type: ignore[index]
        for each in values["rules"]["custom"]
    }
    for autoscaler in documents(text_of(found, "scaling/hpa.yaml")):
        asked = [each["pods"]["metric"]["name"] for each in autoscaler["spec"]["metrics"]]
        assert asked == list(renamed)
    assert set(renamed.values()) <= NAMES
    for name, rule in zip(renamed.values(), values["rules"]["custom"], strict=True):
        assert re.fullmatch(rule["name"]["matches"], name)


def test_a_proxy_that_keeps_requests_back_is_said_to_hide_them() -> None:
    text = text_of(made(ONE + "[proxy.admission]\nconcurrency = 48\n"), "scaling/keda.yaml")
    assert "lets 48 requests through" in text
    assert "requests through" not in text_of(made(ONE), "scaling/keda.yaml")
