"""compose.yaml and what Kubernetes is given: each engine on its GPUs, patient while it loads, closed to all but the proxy, no key in any file."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from contract.harness.deploys import TWO, Deployed, deploy_each
from contract.harness.programs import run

ONE = '[[engine]]\nname = "qwen"\nmodel = "Qwen/Q"\nport = 8001\n'
BIG = ONE + "[engine.flags]\ntensor-parallel-size = 16\n"
SIM = '[[engine]]\nname = "s"\nkind = "sim"\nmodel = "fast"\nport = 8001\nkey_env = "QWEN_KEY"\n'
BARE = "proxy = false\n"
DISK = ONE.replace("Qwen/Q", "/srv/models/q") + (
    'env = { HF_HOME = "/data/hf", VLLM_CACHE_ROOT = "/cache/x" }\n'
    '[engine.flags]\nchat-template = "/srv/t.jinja"\nshutdown-timeout = 5\n'
)
OPTIONS = ("--gpus-per-node", "8", "--replicas", "3", "--toolkit-image", "r.example.com/t:1")
CASES = {
    "compose": ("compose", TWO),
    "open": ("compose", TWO, "--listen", "0.0.0.0"),
    "bare": ("compose", BARE + ONE, "--listen", "::1"),
    "one": ("compose", ONE + "[engine.flags]\ntensor-parallel-size = 4\n"),
    "disk": ("compose", DISK),
    "sim": ("compose", SIM),
    "names": ("compose", ONE.replace("qwen", "proxy") + 'gpus = "MIG-f1e2"\n'),
    "loose": ("compose", ONE + ONE.replace("qwen", "b").replace("8001", "8003")),
    "old": ("compose", ONE, "--image", "vllm/vllm-openai:v0.12.0"),
    "oldest": ("compose", ONE, "--image", "vllm/vllm-openai:v0.9.2"),
    "beside": ("compose", ONE.replace("Qwen/Q", "./q")),
    "k8s": ("k8s", TWO),
    "k8s-one": ("k8s", ONE),
    "k8s-open": ("k8s", BARE + ONE, "--listen", "0.0.0.0"),
    "k8s-sim": ("k8s", SIM, "--toolkit-image", "r.example.com/t:1"),
    "big": ("k8s", BIG, *OPTIONS, "--prometheus", "http://mimir:8080/prometheus/"),
    "odd": ("k8s", BIG.replace("16", "12"), "--gpus-per-node", "8"),
    "copies": ("k8s", BIG + "data-parallel-size = 2\n", "--gpus-per-node", "8"),
    "old-nodes": ("k8s", BIG, "--gpus-per-node", "8", "--image", "vllm/vllm-openai:v0.31.0"),
    "k8s-disk": ("k8s", DISK),
    "tiny": ("k8s", '[[engine]]\nkind = "tiny"\nport = 8001\n'),
    "cuda": ("compose", ONE + '[engine.env]\nCUDA_VISIBLE_DEVICES = "3"\n'),
    "loopback": ("k8s", ONE + '[proxy]\n[[proxy.upstream]]\nurl = "http://127.0.0.1:9"\n'),
    "not-prometheus": ("k8s", ONE, "--prometheus", "http://me:pw@prom:9090"),
    "no-port": ("k8s", ONE + "[proxy]\nport = 0\n"),
}
SECRETS = {
    name: f"s3cret-{name.lower()}" for name in ("QWEN_KEY", "RED_KEY", "CACHE_REDIS", "HF_TOKEN")
}
INSTANCE = "app.kubernetes.io/instance"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Deployed]:
    return deploy_each(tmp_path_factory.mktemp("containers"), CASES, SECRETS)


def services(found: Deployed) -> dict[str, Any]:
    assert found.code == 0, found.err
    read: dict[str, Any] = found.document("compose.yaml")["services"]
    return read


def pod(found: Deployed, name: str) -> tuple[Any, Any]:
    """The spec of a Deployment's pods, and their only container."""
    spec = found.object("Deployment", name)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    return spec, container


def scaling(found: Deployed) -> list[Any]:
    return [each for each in found.objects() if each["kind"] == "ScaledObject"]


# --- Compose ------------------------------------------------------------------------------------------


def test_compose_writes_services_image_settings_and_an_example_of_keys(
    made: dict[str, Deployed],
) -> None:
    assert [Path(line).relative_to("out").as_posix() for line in made["compose"].out.split()] == [
        *("compose.yaml", ".env.example", "proxy/Dockerfile"),
        *("proxy/constraints.txt", "proxy/wheels/README.txt", "proxy/proxy.toml"),
    ]
    lines = made["compose"].text(".env.example").splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["QWEN_KEY=", "RED_KEY="]
    assert "# CACHE_REDIS=" in lines


def test_an_engine_runs_vllm_on_its_own_gpus_with_the_flags_of_the_stack(
    made: dict[str, Deployed],
) -> None:
    def gpus(found: Deployed, name: str) -> Any:
        return services(found)[name]["deploy"]["resources"]["reservations"]["devices"]

    usual = {"driver": "nvidia", "capabilities": ["gpu"]}
    assert gpus(made["compose"], "qwen") == [usual | {"device_ids": ["0", "1"]}]
    assert gpus(made["compose"], "coder-7b") == [usual | {"device_ids": ["2"]}]
    assert gpus(made["one"], "qwen") == [usual | {"count": 4}]
    assert gpus(made["names"], "proxy-2") == [usual | {"device_ids": ["MIG-f1e2"]}]
    qwen, coder = services(made["compose"])["qwen"], services(made["compose"])["coder-7b"]
    assert qwen["entrypoint"] == ["vllm", "serve"]
    assert qwen["command"] == [
        *("Qwen/Qwen2.5-7B-Instruct", "--host", "0.0.0.0", "--port", "8001"),
        *("--tensor-parallel-size", "2", "--max-num-seqs", "64"),
        *("--allowed-media-domains", "nowhere.invalid", "--shutdown-timeout", "45"),
    ]
    # Docker Compose reads `$$` as `$`
    assert coder["command"][5:7] == ["--served-model-name", 'a$$b "} or vector(9)\\']
    assert "WORD=$$(HOME) $${HOME} 50%" in coder["environment"]
    assert (qwen["shm_size"], coder["shm_size"]) == ("4gb", "2gb")


def test_answers_under_way_are_finished_and_loading_takes_as_long_as_the_stack_says(
    made: dict[str, Deployed],
) -> None:
    usual = services(made["compose"])
    # the proxy's drain is 45 s, and 30 s are left to end
    assert [usual[each]["stop_grace_period"] for each in ("qwen", "proxy")] == ["75s", "75s"]
    assert usual["qwen"]["healthcheck"]["start_period"] == "1200s"
    assert "http://127.0.0.1:8001/health" in usual["qwen"]["healthcheck"]["test"][-1]
    compile(usual["qwen"]["healthcheck"]["test"][-1], "healthcheck", "exec")
    assert usual["proxy"]["depends_on"] == {
        name: {"condition": "service_healthy"} for name in ("qwen", "coder-7b", "redis")
    }
    own = services(made["disk"])["qwen"]
    assert (own["command"].count("--shutdown-timeout"), own["stop_grace_period"]) == (1, "35s")
    old = services(made["old"])["qwen"]
    assert ("--shutdown-timeout" in old["command"], old["stop_grace_period"]) == (False, "30s")
    assert "--allowed-media-domains" in old["command"]
    assert "--allowed-media-domains" not in services(made["oldest"])["qwen"]["command"]
    assert made["old"].err.count("`vllm/vllm-openai:v0.12.0` was not asked for its flags") == 1


def test_only_the_proxy_is_bound_to_what_is_asked_for(made: dict[str, Deployed]) -> None:
    def addresses(name: str) -> dict[str, str]:
        found = services(made[name]).items()
        return {name: each["ports"][0]["host_ip"] for name, each in found if "ports" in each}

    assert set(addresses("compose").values()) == {"127.0.0.1"}
    engines = {"qwen": "127.0.0.1", "coder-7b": "127.0.0.1"}
    assert addresses("open") == {"proxy": "0.0.0.0", **engines}
    assert addresses("bare") == {"qwen": "::1"}
    assert "toolkit warmup http://[::1]:8001" in made["bare"].steps


def test_keys_come_from_the_shell_and_a_missing_one_stops_it(made: dict[str, Deployed]) -> None:
    usual = services(made["compose"])
    missing = ":?set it in the shell or in .env}"
    assert usual["qwen"]["environment"] == [
        *("HF_HOME=/cache/huggingface", "VLLM_CACHE_ROOT=/cache/vllm", "HF_HUB_OFFLINE=1"),
        *("HF_TOKEN", f"VLLM_API_KEY=${{QWEN_KEY{missing}"),
    ]
    assert usual["proxy"]["environment"] == [
        *(f"RED_KEY=${{RED_KEY{missing}", f"QWEN_KEY=${{QWEN_KEY{missing}"),
        "CACHE_REDIS=${CACHE_REDIS:-redis://redis:6379/0}",
    ]
    assert services(made["disk"])["qwen"]["environment"] == [
        *("HF_TOKEN", "HF_HOME=/data/hf", "VLLM_CACHE_ROOT=/cache/x"),
    ]
    for each in made.values():
        texts = [each.text(name) for name in each.files]
        assert not any("s3cret" in text for text in (*texts, each.out, each.err))


def test_weights_are_fetched_by_a_service_of_their_own_or_mounted(
    made: dict[str, Deployed],
) -> None:
    usual = made["compose"].document("compose.yaml")
    assert usual["services"]["weights"]["command"] == [
        *("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-Coder-7B"),
    ]
    assert usual["services"]["qwen"]["networks"] == ["engines"]
    volumes = {"huggingface", "qwen-compiled", "coder-7b-compiled", "proxy-cache"}
    assert set(usual["volumes"]) == volumes
    (mount,) = (x for x in services(made["disk"])["qwen"]["volumes"] if isinstance(x, dict))
    assert (mount["source"], mount["read_only"]) == ("/srv/models/q", True)
    assert "weights" not in services(made["disk"])
    # the model's own directory is mounted, and /cache is a volume
    said = [step.split("`")[1::2] for step in made["disk"].steps if "mount it" in step]
    assert said == [["/srv/t.jinja", "--chat-template", "qwen"], ["/data/hf", "HF_HOME", "qwen"]]


def test_a_simulated_engine_runs_from_the_toolkits_image_with_options_that_there_are(
    made: dict[str, Deployed], tmp_path: Path
) -> None:
    service = services(made["sim"])["s"]
    assert (service["build"], "deploy" in service) == ("./proxy", False)
    toolkit, *words = service["command"]
    assert toolkit == "toolkit"
    assert run(*words, "--help", cwd=tmp_path).returncode == 0
    assert "personality alone" in made["sim"].steps[-1]


def test_an_engine_called_proxy_does_not_take_the_proxys_place(made: dict[str, Deployed]) -> None:
    found = services(made["names"])
    assert set(found) == {"weights", "proxy", "proxy-2"}
    assert found["proxy"]["build"] == "./proxy"
    assert [x["url"] for x in settings(made["names"])["upstream"]] == ["http://proxy-2:8001"]


def settings(found: Deployed) -> dict[str, Any]:
    return tomllib.loads(found.text("proxy/proxy.toml"))


def test_the_proxy_takes_its_settings_which_lead_to_the_services(
    made: dict[str, Deployed], tmp_path: Path
) -> None:
    found = settings(made["compose"])
    assert [(x["name"], x["url"], x.get("key_env")) for x in found["upstream"]] == [
        ("qwen", "http://qwen:8001", "QWEN_KEY"),
        ("coder-7b", "http://coder-7b:8003", None),
    ]
    assert (found["host"], found["admin_host"], found["port"]) == ("0.0.0.0", "127.0.0.1", 8000)
    assert found["cache"] == {
        "epoch": "change",
        "ttl": "10m",
        "redis_env": "CACHE_REDIS",
        "file": "/var/lib/toolkit/proxy-cache.db",
    }
    assert (found["tell"]["log"], found["team"][0]["key_env"]) == ("-", "RED_KEY")
    file = made["compose"].folder / "proxy/proxy.toml"
    checked = run("proxy", "--config", file, "--check", cwd=tmp_path, env=SECRETS)
    assert (checked.returncode, "These settings are good" in checked.stderr) == (0, True)
    proxy = services(made["compose"])["proxy"]
    assert (proxy["read_only"], proxy["cap_drop"]) == (True, ["ALL"])
    mount = proxy["volumes"][0]
    assert (mount["source"], mount["target"]) == ("./proxy/proxy.toml", "/etc/toolkit/proxy.toml")


def test_an_image_holds_the_one_wheel_that_lies_there(
    made: dict[str, Deployed], tmp_path: Path
) -> None:
    dockerfile = made["compose"].text("proxy/Dockerfile")
    (step,) = re.findall(r"^RUN (set .*?[^\\])$", dockerfile, re.MULTILINE | re.DOTALL)
    (tmp_path / "pip").write_text('#!/bin/sh\nfor last; do :; done; echo "$last"\n')
    (tmp_path / "pip").chmod(0o755)
    wheel = "llm_serving_toolkit-0.1.0-py3-none-any.whl"
    for wheels, printed in (
        ((wheel,), f"{wheel}[redis]\n"),
        ((), ""),
        ((wheel, f"b{wheel}"), None),
    ):
        place = tmp_path / str(len(wheels))
        place.mkdir()
        for name in ("README.txt", "redis-5.0-py3-none-any.whl", *wheels):
            (place / name.replace(f"b{wheel}", wheel.replace("0.1.0", "0.2.0"))).touch()
        done = subprocess.run(
            ["/bin/sh", "-c", step.replace("/tmp/wheels", str(place))],
            env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode == 0) == bool(printed), done.stderr
        assert done.stdout == (f"{place}/{printed}" if printed else "")
    assert "USER 10001" in dockerfile
    assert "[redis]" not in made["one"].text("proxy/Dockerfile")


# --- Kubernetes ---------------------------------------------------------------------------------------


def test_k8s_writes_a_file_for_each_engine_and_scaling_apart(made: dict[str, Deployed]) -> None:
    assert made["k8s"].files - {".toolkit-deploy.sha256"} == {
        *("engine-contest-qwen.yaml", "engine-contest-coder-7b.yaml", "proxy.yaml"),
        *("network.yaml", "disruption.yaml", "scaling/keda.yaml", "scaling/hpa.yaml"),
        "scaling/prometheus-adapter.yaml",
    }
    assert "proxy.yaml" not in made["k8s-open"].files
    assert any("--listen 0.0.0.0 opens nothing here" in each for each in made["k8s-open"].steps)
    assert not any(each.startswith("scaling/") for each in made["k8s-sim"].files)
    _, sim = pod(made["k8s-sim"], "contest-s")
    assert (sim["image"], sim["command"]) == ("r.example.com/t:1", ["toolkit", "sim"])


def test_an_engine_may_load_as_long_as_the_stack_says_and_is_ended_in_order(
    made: dict[str, Deployed],
) -> None:
    spec, container = pod(made["k8s"], "contest-qwen")
    start, live = container["startupProbe"], container["livenessProbe"]
    assert start["failureThreshold"] * start["periodSeconds"] == 1200
    assert live["failureThreshold"] * live["periodSeconds"] >= 120
    assert live["httpGet"]["path"] == container["readinessProbe"]["httpGet"]["path"] == "/health"
    # 15 s until nobody sends anything new, 45 s to finish, 30 s to end
    assert container["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "15"]
    assert container["args"][-2:] == ["--shutdown-timeout", "45"]
    assert spec["terminationGracePeriodSeconds"] == 90
    assert pod(made["k8s"], "contest-proxy")[0]["terminationGracePeriodSeconds"] == 90
    deployment = made["k8s"].object("Deployment", "contest-qwen")["spec"]
    assert (deployment["strategy"], deployment["replicas"]) == ({"type": "Recreate"}, 1)
    assert deployment["progressDeadlineSeconds"] > 1200


def test_an_engine_has_its_gpus_its_claim_and_no_privileges(made: dict[str, Deployed]) -> None:
    for name, gpus, shm in (("contest-qwen", 2, "4Gi"), ("contest-coder-7b", 1, "2Gi")):
        spec, container = pod(made["k8s"], name)
        assert container["resources"]["limits"] == {"nvidia.com/gpu": gpus}
        volumes = {each.pop("name"): each for each in spec["volumes"]}
        assert volumes["shm"] == {"emptyDir": {"medium": "Memory", "sizeLimit": shm}}
        assert volumes["cache"] == {"persistentVolumeClaim": {"claimName": name}}
        assert made["k8s"].object("PersistentVolumeClaim", name)
    for name in ("contest-qwen", "contest-coder-7b", "contest-proxy"):
        spec, container = pod(made["k8s"], name)
        assert spec["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        # VLLM_PORT would be a Service's address
        assert spec["enableServiceLinks"] is False
    # the kubelet reads `$$` as `$`
    _, coder = pod(made["k8s"], "contest-coder-7b")
    assert coder["args"][5:7] == ["--served-model-name", 'a$$b "} or vector(9)\\']
    assert {"name": "WORD", "value": "$$(HOME) $${HOME} 50%"} in coder["env"]


def test_keys_come_from_the_secret_and_only_hugging_faces_may_be_missing(
    made: dict[str, Deployed],
) -> None:
    for name, wanted in (
        ("contest-qwen", {"VLLM_API_KEY": ("QWEN_KEY", False), "HF_TOKEN": ("HF_TOKEN", True)}),
        ("contest-proxy", {key: (key, False) for key in ("QWEN_KEY", "RED_KEY", "CACHE_REDIS")}),
    ):
        refs = {
            each["name"]: each["valueFrom"]["secretKeyRef"]
            for each in pod(made["k8s"], name)[1]["env"]
            if "valueFrom" in each
        }
        assert {key: (ref["key"], ref["optional"]) for key, ref in refs.items()} == wanted
        assert {ref["name"] for ref in refs.values()} == {"contest-keys"}
    steps = made["k8s"].steps
    assert "QWEN_KEY=..., RED_KEY=..., CACHE_REDIS=..." in steps[0]
    assert "kubectl create secret generic contest-keys --from-env-file=keys.env" in steps
    assert "Secret" not in {each["kind"] for each in made["k8s"].objects()}


def test_only_the_proxy_and_prometheus_reach_engines_and_selectors_find_what_they_mean(
    made: dict[str, Deployed],
) -> None:
    (rule,) = made["k8s"].object("NetworkPolicy", "contest-engines")["spec"]["ingress"]
    assert rule["from"] == [
        {"podSelector": {"matchLabels": {INSTANCE: "contest-proxy"}}},
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
    ]
    assert [each["port"] for each in rule["ports"]] == [8001, 8003]
    (rule,) = made["k8s"].object("NetworkPolicy", "contest-proxy")["spec"]["ingress"]
    assert [each["port"] for each in rule["ports"]] == [8000]
    way_out = made["k8s"].object("NetworkPolicy", "contest-qwen.way-out")["spec"]["egress"]
    assert way_out[0]["ports"] == [{"port": 443, "protocol": "TCP"}]
    labels = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"]
        for each in made["k8s"].objects()
        if each["kind"] == "Deployment"
    }
    for each in made["k8s"].objects():
        name, spec = each["metadata"]["name"], each.get("spec", {})
        selector = spec.get("selector", spec.get("podSelector"))
        if selector is not None:
            wanted = selector.get("matchLabels", selector)
            chosen = {own for own, marks in labels.items() if wanted.items() <= marks.items()}
            engines = {"contest-qwen", "contest-coder-7b"}
            meant = engines if name == "contest-engines" else {name.removesuffix(".way-out")}
            assert chosen == meant, each


def test_there_are_two_proxies_only_with_a_redis_between_them(made: dict[str, Deployed]) -> None:
    def spec(found: Deployed) -> Any:
        return found.object("Deployment", "contest-proxy")["spec"]

    assert (spec(made["k8s"])["replicas"], spec(made["k8s-one"])["replicas"]) == (2, 1)
    budgets = [
        made[name].object("PodDisruptionBudget", "contest-proxy")["spec"]
        for name in ("k8s", "k8s-one")
    ]
    assert (budgets[0]["minAvailable"], budgets[1]["maxUnavailable"]) == (1, 1)
    marks = [spec(made[name])["template"]["metadata"]["annotations"] for name in ("k8s", "k8s-one")]
    # its teams have keys, and the clients' port tells nothing
    assert "prometheus.io/scrape" not in marks[0]
    assert marks[1]["prometheus.io/port"] == "8000"
    assert marks[0]["toolkit/settings-sha256"] != marks[1]["toolkit/settings-sha256"]
    text = made["k8s"].object("ConfigMap", "contest-proxy")["data"]["proxy.toml"]
    assert [each["url"] for each in tomllib.loads(text)["upstream"]] == [
        *("http://contest-qwen:8001", "http://contest-coder-7b:8003"),
    ]


def test_an_engine_with_more_gpus_than_a_node_is_a_group(made: dict[str, Deployed]) -> None:
    group = made["big"].object("LeaderWorkerSet", "contest-qwen")["spec"]["leaderWorkerTemplate"]
    assert group["size"] == 2
    leader, worker = (
        group[role]["spec"]["containers"][0] for role in ("leaderTemplate", "workerTemplate")
    )
    at = ["--master-addr", "$(LWS_LEADER_ADDRESS)", "--master-port", "29501"]
    assert leader["args"][-8:] == ["--nnodes", "2", "--node-rank", "0", *at]
    assert worker["args"][-9:] == [
        "--nnodes",
        "2",
        "--node-rank",
        "$(NODE_RANK)",
        *at,
        "--headless",
    ]
    assert leader["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert ("ports" in leader, "ports" in worker) == (True, False)
    # 15 s, and 30 s in which the leader finishes what is under way
    assert worker["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "45"]
    (service,) = (x for x in made["big"].objects() if x["kind"] == "Service" and "engine" in str(x))
    assert service["metadata"]["name"] == "contest-qwen-leader"
    (scaled,) = scaling(made["big"])
    assert scaled["spec"]["scaleTargetRef"]["kind"] == "LeaderWorkerSet"
    assert scaled["spec"]["maxReplicaCount"] == 3
    asked = scaled["spec"]["triggers"][0]["metadata"]
    assert asked["serverAddress"] == "http://mimir:8080/prometheus"
    assert asked["query"].endswith('pod=~"contest-qwen-[0-9]+"})')


def test_an_engine_is_scaled_on_its_own_requests_that_wait(made: dict[str, Deployed]) -> None:
    qwen, coder = scaling(made["k8s"])
    waiting, running = qwen["spec"]["triggers"]
    pods = 'pod=~"contest-qwen-[a-z0-9]+-[a-z0-9]{5}"'
    model = 'model_name="Qwen/Qwen2.5-7B-Instruct"'
    assert waiting["metadata"]["query"] == f"sum(vllm:num_requests_waiting{{{model},{pods}}})"
    assert running["metadata"]["query"] == f"sum(vllm:num_requests_running{{{model},{pods}}})"
    # half of max-num-seqs, which is 64, and where it is not named 256
    thresholds = [x["metadata"]["threshold"] for x in (waiting, running)]
    assert (thresholds, coder["spec"]["triggers"][1]["metadata"]["threshold"]) == (
        ["4", "32"],
        "128",
    )
    assert (
        'model_name="a$b \\"} or vector(9)\\\\"'
        in coder["spec"]["triggers"][0]["metadata"]["query"]
    )
    assert (qwen["spec"]["minReplicaCount"], qwen["spec"]["maxReplicaCount"]) == (1, 4)
    assert qwen["spec"]["fallback"]["behavior"] == "currentReplicasIfHigher"
    up = qwen["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleUp"]
    assert up["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 300}]
    values = made["k8s"].document("scaling/prometheus-adapter.yaml")
    renamed = [each["name"]["as"] for each in values["rules"]["custom"]]
    assert renamed == ["vllm_num_requests_waiting", "vllm_num_requests_running"]
    for each in made["k8s"].objects():
        if each["kind"] == "HorizontalPodAutoscaler":
            assert [x["pods"]["metric"]["name"] for x in each["spec"]["metrics"]] == renamed
    # a proxy that keeps requests back hides them
    assert "lets 48 requests through" in made["k8s"].text("scaling/keda.yaml")


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("loose", "the engine `qwen` names no GPU", 'Write `gpus = "0"` and so on'),
        ("beside", "lies beside the stack file", "Write its whole path"),
        ("odd", "takes 12 GPUs, and nodes have 8 each", "a multiple of 8"),
        ("copies", "spans nodes with several copies of its model", "an engine of its own"),
        ("old-nodes", "whether vLLM 0.31.0 can is not known", "0.32 or newer"),
        ("k8s-disk", "is a directory of this machine", "write `/cache/NAME`"),
        ("tiny", "has the tiny model", "Name a model of Hugging Face"),
        ("cuda", "sets CUDA_VISIBLE_DEVICES", 'Write `gpus = "2,3"`'),
        ("loopback", "`http://127.0.0.1:9` is this machine", "an address that containers reach"),
        ("not-prometheus", "is no address of a Prometheus", "http://prometheus-operated"),
        ("no-port", "[proxy]: `port` is any free one", "Name one, e.g., 8000"),
    ],
)
def test_what_no_container_can_do_is_refused_and_nothing_written(
    name: str, message: str, hint: str, made: dict[str, Deployed]
) -> None:
    found = made[name]
    assert (found.code, found.folder.exists()) == (1, False)
    error, told = found.err.split("\n\nHint: ")
    assert error.count("Error: ") == 1
    assert message in error
    assert hint in told
