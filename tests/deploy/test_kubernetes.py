"""Kubernetes objects: valid by Kubernetes' own schemas, patient while loading, closed to all but the proxy, without a secret."""

import copy
import tomllib
from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest
from support.deployed import HOSTILE, IMAGE, expanded, site, templates, text_of
from support.kubernetes_objects import (
    BIG,
    ONE,
    SIM,
    VERSIONS,
    objects,
    one,
    pod,
    refused,
    usual,
    validate,
)

from toolkit.deploy.kubernetes import kit
from toolkit.deploy.kubernetes_parts import literal
from toolkit.proxy.settings_file import read

OWN = ["--allowed-media-domains", "nowhere.invalid", "--shutdown-timeout", "30"]
"""What every engine is given beside its own flags."""


@pytest.mark.parametrize(
    ("text", "more"),
    [(BIG, {"gpus_per_node": 8}), (SIM, {}), ("proxy = false\n" + ONE, {})],
    ids=["two nodes", "simulated", "without a proxy"],
)
def test_every_object_is_valid_by_its_own_schema(text: str, more: dict[str, Any]) -> None:
    for each in objects(kit(site(text), templates(), **more)):
        validate(each, VERSIONS[-1])


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_of_two_engines_and_a_proxy_is_valid_in_old_and_new_clusters(
    version: str,
) -> None:
    for each in usual():
        validate(each, version)


@pytest.mark.parametrize(
    ("kind", "name", "path", "right", "wrong"),
    [
        ("Deployment", "contest-qwen", ("spec",), "strategy", "stratagy"),
        (
            "Deployment",
            "contest-qwen",
            ("spec", "template", "spec", "containers", 0),
            "startupProbe",
            "startUpProbe",
        ),
        (
            "Deployment",
            "contest-qwen",
            ("spec", "template", "spec", "containers", 0, "startupProbe"),
            "failureThreshold",
            "failuresThreshold",
        ),
        ("Service", "contest-qwen", ("spec", "ports", 0), "targetPort", "target"),
        ("NetworkPolicy", "contest-engines", ("spec",), "podSelector", "selector"),
        ("PodDisruptionBudget", "contest-engines", ("spec",), "maxUnavailable", "maxUnavailabel"),
        ("HorizontalPodAutoscaler", "contest-qwen", ("spec",), "maxReplicas", "maxReplicaCount"),
        ("ScaledObject", "contest-qwen", ("spec",), "maxReplicaCount", "maxReplicas"),
        ("ScaledObject", "contest-qwen", ("spec", "fallback"), "failureThreshold", "failures"),
        ("ScaledObject", "contest-qwen", ("spec", "triggers", 0), "metadata", "meta"),
    ],
)
def test_a_misspelt_key_is_seen(
    kind: str, name: str, path: tuple[Any, ...], right: str, wrong: str
) -> None:
    found = copy.deepcopy(one(kind, name))
    place = found
    for step in path:
        place = place[step]
    place[wrong] = place.pop(right)
    with pytest.raises((kubernetes_validate.ValidationError, AssertionError)):
        validate(found, VERSIONS[-1])


def test_a_startup_probe_waits_as_long_as_loading_may_take() -> None:
    _, container = pod(one("Deployment", "contest-qwen"))
    probe = container["startupProbe"]
    # `ready` is 20 minutes
    assert probe["failureThreshold"] * probe["periodSeconds"] == 1200
    assert one("Deployment", "contest-qwen")["spec"]["progressDeadlineSeconds"] > 1200


def test_a_busy_engine_is_not_killed_for_two_minutes() -> None:
    _, container = pod(one("Deployment", "contest-qwen"))
    probe = container["livenessProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] >= 120
    assert probe["timeoutSeconds"] >= 10
    assert {probe["httpGet"]["path"] for probe in (probe, container["readinessProbe"])} == {
        "/health"
    }


def test_a_new_engine_needs_no_second_gpu() -> None:
    assert one("Deployment", "contest-qwen")["spec"]["strategy"] == {"type": "Recreate"}
    assert one("Deployment", "contest-qwen")["spec"]["replicas"] == 1


def test_gpus_are_counted_as_the_stack_pins_them() -> None:
    for name, count in (("contest-qwen", 2), ("contest-coder-7b", 1)):
        _, container = pod(one("Deployment", name))
        assert container["resources"]["limits"] == {"nvidia.com/gpu": count}


def test_the_grace_is_longer_than_leaving_and_draining() -> None:
    spec, container = pod(one("Deployment", "contest-qwen"))
    leaving = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    at = container["args"].index("--shutdown-timeout")
    drain = int(container["args"][at + 1])
    assert (leaving, drain) == (15, 45)
    assert spec["terminationGracePeriodSeconds"] > leaving + drain
    spec, container = pod(one("Deployment", "contest-proxy"))
    assert spec["terminationGracePeriodSeconds"] > 15 + 45


def test_keys_come_from_the_secret_and_only_the_token_of_hugging_face_may_be_missing() -> None:
    for name, wanted in (
        ("contest-qwen", {"VLLM_API_KEY": ("QWEN_KEY", False), "HF_TOKEN": ("HF_TOKEN", True)}),
        (
            "contest-proxy",
            {key: (key, False) for key in ("QWEN_KEY", "RED_KEY", "CACHE_REDIS")},
        ),
    ):
        _, container = pod(one("Deployment", name))
        refs = {
            each["name"]: each["valueFrom"]["secretKeyRef"]
            for each in container["env"]
            if "valueFrom" in each
        }
        assert {key: (ref["key"], ref["optional"]) for key, ref in refs.items()} == wanted
        assert {ref["name"] for ref in refs.values()} == {"contest-keys"}


def test_no_file_has_a_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QWEN_KEY", "RED_KEY", "CACHE_REDIS", "HF_TOKEN", "VLLM_API_KEY"):
        monkeypatch.setenv(name, f"s3cret-{name.lower()}")
    found = kit(site(), templates())
    assert not any("s3cret" in each.text for each in found.files)
    assert not any("s3cret" in step for step in found.next_steps)
    assert not any(each["kind"] == "Secret" for each in objects(found))


def test_shared_memory_grows_with_the_gpus() -> None:
    spec, _ = pod(one("Deployment", "contest-qwen"))
    (shm,) = (each["emptyDir"] for each in spec["volumes"] if each["name"] == "shm")
    assert shm == {"medium": "Memory", "sizeLimit": "4Gi"}


def test_weights_lie_in_a_claim_of_the_engine_which_is_its_home() -> None:
    spec, container = pod(one("Deployment", "contest-qwen"))
    (claim,) = (each for each in spec["volumes"] if "persistentVolumeClaim" in each)
    assert one("PersistentVolumeClaim", claim["persistentVolumeClaim"]["claimName"])
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == claim["name"])
    home = next(each["value"] for each in container["env"] if each["name"] == "HOME")
    assert mount["mountPath"] == home


def test_nobody_is_root() -> None:
    for name in ("contest-qwen", "contest-coder-7b", "contest-proxy"):
        spec, container = pod(one("Deployment", name))
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        # VLLM_PORT would be a Service's address
        assert spec["enableServiceLinks"] is False


def test_every_selector_finds_the_pods_that_it_means() -> None:
    labels = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"]
        for each in usual()
        if each["kind"] == "Deployment"
    }

    def found(selector: dict[str, str]) -> set[str]:
        return {name for name, own in labels.items() if selector.items() <= own.items()}

    engines = {"contest-qwen", "contest-coder-7b"}
    for each in usual():
        name, spec = each["metadata"]["name"], each.get("spec", {})
        wanted = engines if name == "contest-engines" else {name.removesuffix(".way-out")}
        if each["kind"] == "Service":
            assert found(spec["selector"]) == wanted
        elif each["kind"] in ("Deployment", "PodDisruptionBudget"):
            assert found(spec["selector"]["matchLabels"]) == wanted
        elif each["kind"] == "NetworkPolicy":
            assert found(spec["podSelector"]["matchLabels"]) == wanted


def test_only_the_proxy_and_prometheus_reach_engines() -> None:
    (rule,) = one("NetworkPolicy", "contest-engines")["spec"]["ingress"]
    assert rule["from"] == [
        {"podSelector": {"matchLabels": {"app.kubernetes.io/instance": "contest-proxy"}}},
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
    ]
    assert [each["port"] for each in rule["ports"]] == [8001, 8003]
    (rule,) = one("NetworkPolicy", "contest-proxy")["spec"]["ingress"]
    assert [each["port"] for each in rule["ports"]] == [8000]


def test_the_proxys_settings_lead_to_the_services_and_are_read_by_the_proxy() -> None:
    text = one("ConfigMap", "contest-proxy")["data"]["proxy.toml"]
    settings = read(text, "proxy.toml")
    services = {
        f"http://{each['metadata']['name']}:{each['spec']['ports'][0]['port']}"
        for each in usual()
        if each["kind"] == "Service" and each["metadata"]["name"] != "contest-proxy"
    }
    assert {each.url for each in settings.upstreams} == services
    _, container = pod(one("Deployment", "contest-proxy"))
    assert container["command"][-1] == "/etc/toolkit/proxy.toml"
    assert tomllib.loads(text)["cache"]["ttl"] == "10m"


def test_other_settings_are_another_pod() -> None:
    def mark(text: str) -> str:
        made = one("Deployment", "contest-proxy", objects(kit(site(text), templates())))
        found: str = made["spec"]["template"]["metadata"]["annotations"]["toolkit/settings-sha256"]
        return found

    assert mark(ONE) == mark(ONE)
    assert mark(ONE) != mark(ONE + '[proxy.cache]\nttl = "1m"\n')


def test_there_are_two_proxies_only_with_a_redis_between_them() -> None:
    assert one("Deployment", "contest-proxy")["spec"]["replicas"] == 2
    alone = objects(kit(site(ONE), templates()))
    assert one("Deployment", "contest-proxy", alone)["spec"]["replicas"] == 1
    assert one("PodDisruptionBudget", "contest-proxy", alone)["spec"]["maxUnavailable"] == 1
    assert one("PodDisruptionBudget", "contest-proxy")["spec"]["minAvailable"] == 1


def test_a_proxy_whose_teams_have_keys_is_not_scraped_at_the_clients_port() -> None:
    def annotations(made: Any) -> dict[str, str]:
        found: dict[str, str] = made["spec"]["template"]["metadata"]["annotations"]
        return found

    assert "prometheus.io/scrape" not in annotations(one("Deployment", "contest-proxy"))
    alone = one("Deployment", "contest-proxy", objects(kit(site(ONE), templates())))
    assert annotations(alone)["prometheus.io/port"] == "8000"
    assert annotations(one("Deployment", "contest-qwen"))["prometheus.io/port"] == "8001"


def test_without_a_proxy_nothing_of_it_is_there() -> None:
    paths = [each.path for each in kit(site("proxy = false\n" + ONE), templates()).files]
    assert paths[:2] == ["engine-contest-qwen.yaml", "disruption.yaml"]
    assert "proxy.yaml" not in paths


# --- names and words -------------------------------------------------------------------------------------


def test_a_name_that_is_long_is_cut_so_that_its_pods_have_one() -> None:
    found = kit(site(name="a" * 60), templates())
    # a policy's own has room for more
    names = [each["metadata"]["name"].removesuffix(".way-out") for each in objects(found)]
    assert max(map(len, names)) <= 46
    assert len({name for name in names if "a" * 30 in name}) == 4


def test_an_engine_called_proxy_does_not_take_the_proxys_place() -> None:
    made = objects(kit(site(ONE.replace('"qwen"', '"proxy"')), templates()))
    assert pod(one("Deployment", "contest-proxy", made))[1]["name"] == "proxy"
    assert pod(one("Deployment", "contest-proxy-2", made))[1]["image"] == IMAGE


def test_hostile_words_are_single_words_and_nothing_else() -> None:
    found = site(ONE)
    variables = tuple((f"W{number}", word) for number, word in enumerate(HOSTILE))
    evil = replace(
        found.engines[0], arguments=tuple(HOSTILE), env=variables, served_name=HOSTILE[0]
    )
    made = objects(kit(replace(found, engines=(evil,), stack_file=HOSTILE[1]), templates()))
    validate(one("Deployment", "contest-qwen", made), VERSIONS[-1])
    _, container = pod(one("Deployment", "contest-qwen", made))
    known = {"HOME": "/cache", "NAME": "x"}
    args = [expanded(each, known) for each in container["args"]]
    assert args[5:] == ["--served-model-name", HOSTILE[0], *HOSTILE, *OWN]
    values = {each["name"]: each.get("value") for each in container["env"]}
    assert [expanded(values[name] or "", known) for name, _ in variables] == HOSTILE
    assert {each["kind"] for each in made} == {each["kind"] for each in usual()}


@pytest.mark.parametrize("word", [HOSTILE[0], HOSTILE[2], HOSTILE[-1]])
def test_a_model_may_be_called_anything(word: str) -> None:
    found = site(ONE)
    evil = replace(found.engines[0], model=word, served_name=word)
    made = objects(kit(replace(found, engines=(evil,)), templates()))
    assert pod(one("Deployment", "contest-qwen", made))[1]["args"][0] == word


@pytest.mark.parametrize("ending", ["\n", "\r", "\x00", "\u2028"])
def test_a_line_that_would_end_early_is_refused(ending: str) -> None:
    found = site(ONE)
    evil = replace(found.engines[0], model=f"m{ending}hostNetwork: true")
    assert "not one line" in refused(replace(found, engines=(evil,))).message


@pytest.mark.parametrize("word", ["$(HOME)", "$$(HOME)", "$", "$$", "a$b", "$(", "100%"])
def test_a_dollar_of_the_stack_stays_one(word: str) -> None:
    assert expanded(literal(word), {"HOME": "/root"}) == word


def test_a_directory_of_this_machine_is_refused_unless_it_lies_in_the_claim() -> None:
    assert "/srv/q" in refused(site(ONE.replace("Qwen/Q", "/srv/q"))).message
    made = objects(kit(site(ONE.replace("Qwen/Q", "/cache/q")), templates()))
    assert pod(one("Deployment", "contest-qwen", made))[1]["args"][0] == "/cache/q"


def test_a_simulated_engine_needs_no_gpu_and_a_tiny_one_is_refused() -> None:
    found = kit(site(SIM), templates(), toolkit_image="registry.example.com/toolkit:1")
    spec, container = pod(one("Deployment", "contest-s", objects(found)))
    assert container["image"] == "registry.example.com/toolkit:1"
    assert container["command"] == ["toolkit", "sim"]
    assert "limits" not in container["resources"]
    assert "tolerations" not in spec
    assert not any(each.path.startswith("scaling/") for each in found.files)
    assert "tiny" in refused(site('[[engine]]\nname = "t"\nkind = "tiny"\nport = 8001\n')).message


def test_the_next_steps_name_the_secret_and_every_key() -> None:
    steps = kit(site(), templates()).next_steps
    assert "kubectl create secret generic contest-keys --from-env-file=keys.env" in steps
    assert "QWEN_KEY=..., RED_KEY=..., CACHE_REDIS=..." in steps[0]
    assert text_of(kit(site(), templates()), "proxy.yaml")


def test_a_stack_without_keys_is_told_where_a_gated_model_s_token_goes() -> None:
    (token,) = [step for step in kit(site(ONE), templates()).next_steps if "HF_TOKEN" in step]
    assert "kubectl create secret generic contest-keys --from-env-file=keys.env" in token
    sim = kit(site(SIM.replace('key_env = "QWEN_KEY"', "")), templates()).next_steps
    assert not any("secret" in step for step in sim)


def test_an_address_to_listen_on_is_said_to_open_nothing() -> None:
    def said(listen: str) -> bool:
        steps = kit(site(listen=listen), templates()).next_steps
        return any("--listen 0.0.0.0 opens nothing" in step for step in steps)

    assert said("0.0.0.0")
    assert not said("127.0.0.1")
    assert {each["spec"]["type"] for each in usual() if each["kind"] == "Service"} == {"ClusterIP"}
