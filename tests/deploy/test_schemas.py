"""What `deploy compose` and `deploy k8s` write, by the schemas of those who read it; and no word of a stack means more than itself there."""

import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

import kubernetes_validate
import pytest
from support.deployed import (
    HOSTILE,
    documents,
    expanded,
    hostile,
    interpolated,
    problems,
    site,
    text_of,
)

from toolkit.deploy import compose, kubernetes
from toolkit.deploy.render import Kit

VERSIONS = ("1.31", "1.36")
"""The oldest that has `unhealthyPodEvictionPolicy` for good, and a new one."""
ONE = '[[engine]]\nname = "qwen"\nmodel = "Qwen/Q"\nport = 8001\n'
BIG = ONE + "[engine.flags]\ntensor-parallel-size = 8\npipeline-parallel-size = 2\n"
SIM = '[[engine]]\nname = "s"\nkind = "sim"\nmodel = "fast"\nport = 8001\nkey_env = "QWEN_KEY"\n'
BARE = "proxy = false\n"


def composed(made: Kit) -> Any:
    (document,) = documents(text_of(made, "compose.yaml"))
    return document


def objects(made: Kit) -> list[Any]:
    """All of Kubernetes' own kind or another's; not the values of a chart."""
    files = [x for x in made.files if not x.path.endswith("prometheus-adapter.yaml")]
    return [each for file in files for each in documents(file.text)]


@lru_cache
def usual() -> tuple[Any, ...]:
    """Of support.deployed's STACK, and a group of nodes; nobody changes them."""
    group = kubernetes.kit(site(BIG, name="group"), gpus_per_node=8)
    return (*objects(kubernetes.kit(site())), *objects(group))


def container(found: list[Any], name: str) -> Any:
    (one,) = (x for x in found if x["kind"] == "Deployment" and x["metadata"]["name"] == name)
    (held,) = one["spec"]["template"]["spec"]["containers"]
    return held


def validate(found: Any, version: str) -> None:
    """Raise for what Kubernetes, KEDA or LeaderWorkerSet would not take."""
    if found["kind"] == "ScaledObject":
        assert problems(found, "keda-scaledobject.json") == []
    elif found["kind"] == "LeaderWorkerSet":
        assert problems(found, "leaderworkerset.json") == []
        for role in ("leaderTemplate", "workerTemplate"):
            wrapped = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "a"}}
            wrapped["template"] = found["spec"]["leaderWorkerTemplate"][role]
            kubernetes_validate.validate(wrapped, version, strict=True)
    else:
        kubernetes_validate.validate(found, version, strict=True)


@pytest.mark.parametrize("text", [None, BARE + ONE, SIM])
def test_every_object_and_the_compose_file_are_valid_by_their_own_schemas(text: str | None) -> None:
    found = site() if text is None else site(text)
    assert problems(composed(compose.kit(found)), "compose-spec.json") == []
    for each in usual() if text is None else objects(kubernetes.kit(found)):
        for version in VERSIONS:
            validate(each, version)


def test_hostile_words_are_single_words_and_nothing_else() -> None:
    found = replace(site(ONE + 'gpus = "0"\n'), proxy=None)
    engines = tuple(hostile(found.engines[0], word, number) for number, word in enumerate(HOSTILE))
    evil = replace(found, engines=engines, stack_file=" ".join(HOSTILE))
    document = composed(compose.kit(evil))
    assert problems(document, "compose-spec.json") == []
    services = interpolated(document, {"HOME": "/root"})["services"]
    assert services.pop("weights")["command"] == [f"m{word}" for word in HOSTILE]
    made = objects(kubernetes.kit(evil))
    own = ("--allowed-media-domains", "nowhere.invalid", "--shutdown-timeout", "30")
    known = {"HOME": "/cache", "NAME": "x"}
    for number, word in enumerate(HOSTILE):
        words = ["--served-model-name", word, "--chat-template", word, *own]
        service = services[f"e{number}"]
        assert [service["command"][0], *service["command"][5:]] == [f"m{word}", *words]
        assert service["environment"][-1] == f"WORD={word}"
        pod = container(made, f"contest-e{number}")
        args = [expanded(each, known) for each in pod["args"]]
        assert [args[0], *args[5:]] == [f"m{word}", *words]
        (value,) = (each["value"] for each in pod["env"] if each["name"] == "WORD")
        assert expanded(value, known) == word
    assert {each["kind"] for each in made} <= {each["kind"] for each in usual()}


def test_long_and_like_names_stay_apart() -> None:
    found = site(name="a" * 60)
    # a policy's own has room for more
    names = [
        each["metadata"]["name"].removesuffix(".way-out") for each in objects(kubernetes.kit(found))
    ]
    assert max(map(len, names)) <= 46
    assert len({name for name in names if "a" * 30 in name}) == 4
    # an engine called as a group's Service does not take its place
    text = BIG + ONE.replace('"qwen"', '"qwen-leader"').replace("8001", "8003")
    made = objects(kubernetes.kit(site(text), gpus_per_node=8))
    services = [each["metadata"]["name"] for each in made if each["kind"] == "Service"]
    assert len(set(services)) == len(services)
    assert "contest-qwen-leader" in services


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
    made = kubernetes.kit(site(ONE + twin + big), gpus_per_node=8)
    scaled = documents(text_of(made, "scaling/keda.yaml"))
    asked = [each["spec"]["triggers"][0]["metadata"]["query"] for each in scaled]
    patterns = [re.findall('pod=~"([^"]+)"', query)[0] for query in asked]
    # Prometheus reads a whole label
    fitting = [number for number, one in enumerate(patterns) if re.fullmatch(one, pod)]
    assert fitting == ([] if engine is None else [engine])
