"""An engine with more GPUs than a node: a group of pods that find each other, of which one answers."""

from typing import Any

import kubernetes_validate
import pytest
from support.deployed import expanded, site, templates
from support.kubernetes_objects import BIG, VERSIONS, objects, one, refused, validate

from toolkit.deploy.kubernetes import kit
from toolkit.proxy.settings_file import read


def group() -> Any:
    made = objects(kit(site(BIG), templates(), gpus_per_node=8))
    return one("LeaderWorkerSet", "contest-qwen", made)["spec"]["leaderWorkerTemplate"]


def test_an_engine_with_more_gpus_than_a_node_spans_nodes() -> None:
    found = group()
    assert (found["size"], found["restartPolicy"]) == (2, "RecreateGroupOnPodRestart")
    for role in ("leader", "worker"):
        (container,) = found[f"{role}Template"]["spec"]["containers"]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}


def test_each_node_knows_its_rank_and_the_leader_and_only_the_leader_answers() -> None:
    def words(role: str) -> list[str]:
        (container,) = group()[f"{role}Template"]["spec"]["containers"]
        variables = {"LWS_LEADER_ADDRESS": "big-0.big", "NODE_RANK": "1"}
        own = {each["name"] for each in container["env"]} | {"LWS_LEADER_ADDRESS"}
        known = {name: value for name, value in variables.items() if name in own}
        return [expanded(word, known) for word in container["args"]]

    joint = ["--master-addr", "big-0.big", "--master-port", "29501"]
    assert words("leader")[-8:] == ["--nnodes", "2", "--node-rank", "0", *joint]
    assert words("worker")[-9:] == ["--nnodes", "2", "--node-rank", "1", *joint, "--headless"]
    (worker,) = group()["workerTemplate"]["spec"]["containers"]
    assert not {"ports", "startupProbe", "livenessProbe", "readinessProbe"} & set(worker)


def test_a_worker_stays_until_its_leader_has_answered_what_is_under_way() -> None:
    spec = group()["workerTemplate"]["spec"]
    (worker,) = spec["containers"]
    # 15 s until nobody asks the leader any more, 30 s for what it still answers
    assert worker["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "45"]
    assert spec["terminationGracePeriodSeconds"] > 45


def test_a_group_s_service_leaves_its_name_to_the_one_by_which_workers_find_their_leader() -> None:
    # LeaderWorkerSet makes a headless Service with its own name, and none where there is one of that name
    made = objects(kit(site(BIG), templates(), gpus_per_node=8))
    services = [each["metadata"]["name"] for each in made if each["kind"] == "Service"]
    assert services == ["contest-qwen-leader", "contest-proxy"]
    text = one("ConfigMap", "contest-proxy", made)["data"]["proxy.toml"]
    assert [each.url for each in read(text, "p").upstreams] == ["http://contest-qwen-leader:8001"]
    bare = kit(site("proxy = false\n" + BIG), templates(), gpus_per_node=8)
    assert "kubectl port-forward service/contest-qwen-leader 8001" in bare.next_steps


def test_an_engine_called_as_a_group_s_service_does_not_take_its_place() -> None:
    # the second fits on one node
    text = BIG + '[[engine]]\nname = "qwen-leader"\nmodel = "M"\nport = 8003\n'
    made = objects(kit(site(text), templates(), gpus_per_node=8))
    selectors = {
        each["metadata"]["name"]: each["spec"]["selector"]["app.kubernetes.io/instance"]
        for each in made
        if each["kind"] == "Service"
    }
    assert selectors == {
        "contest-qwen-leader-2": "contest-qwen",
        "contest-qwen-leader": "contest-qwen-leader",
        "contest-proxy": "contest-proxy",
    }


def test_a_groups_service_asks_its_leader_and_its_claim_is_for_many() -> None:
    made = objects(kit(site(BIG), templates(), gpus_per_node=8))
    assert one("Service", "contest-qwen-leader", made)["spec"]["selector"]["role"] == "leader"
    claim = one("PersistentVolumeClaim", "contest-qwen", made)
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    (rule,) = one("NetworkPolicy", "contest-qwen", made)["spec"]["ingress"]
    assert "ports" not in rule
    (source,) = rule["from"]
    assert source["podSelector"]["matchLabels"] == {"app.kubernetes.io/instance": "contest-qwen"}


def test_what_fits_on_one_node_stays_there() -> None:
    made = objects(kit(site(BIG), templates(), gpus_per_node=16))
    assert one("Deployment", "contest-qwen", made)


def test_nodes_that_would_have_unlike_numbers_of_gpus_are_refused() -> None:
    assert "16 GPUs, and nodes have 6" in refused(site(BIG), gpus_per_node=6).message
    assert "less than 1" in refused(site(BIG), gpus_per_node=0).message


def test_an_old_image_and_copies_of_a_model_span_no_nodes() -> None:
    old = site(BIG, image="vllm/vllm-openai:v0.11.0")
    assert "0.11.0" in refused(old, gpus_per_node=8).message
    copies = site(BIG + "data-parallel-size = 2\n")
    assert "copies" in refused(copies, gpus_per_node=8).message


@pytest.mark.parametrize(
    ("path", "right", "wrong"),
    [
        (("spec",), "leaderWorkerTemplate", "leaderworkerTemplate"),
        (("spec", "leaderWorkerTemplate"), "restartPolicy", "restart"),
        (("spec", "leaderWorkerTemplate", "leaderTemplate", "metadata"), "labels", "label"),
        (("spec", "rolloutStrategy", "rollingUpdateConfiguration"), "maxSurge", "surge"),
        (("spec", "leaderWorkerTemplate", "workerTemplate", "spec"), "containers", "container"),
    ],
)
def test_a_misspelt_key_of_a_group_is_seen(path: tuple[str, ...], right: str, wrong: str) -> None:
    made = objects(kit(site(BIG), templates(), gpus_per_node=8))
    found = one("LeaderWorkerSet", "contest-qwen", made)
    place = found
    for step in path:
        place = place[step]
    place[wrong] = place.pop(right)
    with pytest.raises((kubernetes_validate.ValidationError, AssertionError)):
        validate(found, VERSIONS[-1])
