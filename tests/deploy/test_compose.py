"""compose.yaml: valid by the specification's own schema, each engine on its GPUs, and no word of a stack means more than itself."""

import copy
import re
import subprocess
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from support.deployed import (
    HOSTILE,
    IMAGE,
    STACK,
    documents,
    hostile,
    interpolated,
    problems,
    site,
    templates,
    text_of,
)

from toolkit.deploy.compose import kit
from toolkit.deploy.site import Site
from toolkit.errors import ToolkitError
from toolkit.proxy.settings_file import read

KEYS = {"QWEN_KEY": "k1", "RED_KEY": "k2"}
ONE = '[[engine]]\nname = "qwen"\nmodel = "Qwen/Q"\nport = 8001\n'


def written(found: Site) -> Any:
    (document,) = documents(text_of(kit(found, templates()), "compose.yaml"))
    return document


def composed(found: Site | None = None) -> Any:
    """As Docker Compose reads it, with the keys set."""
    return interpolated(usual() if found is None else written(found), KEYS)


@lru_cache
def usual() -> Any:
    """Of STACK; nobody changes it."""
    return written(site())


def refused(found: Site) -> ToolkitError:
    with pytest.raises(ToolkitError) as caught:
        kit(found, templates())
    return caught.value


def test_it_is_valid_by_the_compose_specification() -> None:
    assert problems(usual(), "compose-spec.json") == []
    for text in (
        ONE,
        "proxy = false\n" + ONE,
        '[[engine]]\nkind = "sim"\nmodel = "fast"\nport = 8001\n',
        # nothing that wants a volume
        'proxy = false\n[[engine]]\nkind = "sim"\nmodel = "fast"\nport = 8001\n',
    ):
        assert problems(written(site(text)), "compose-spec.json") == []


@pytest.mark.parametrize(
    ("path", "right", "wrong"),
    [
        (("services", "qwen"), "healthcheck", "healtcheck"),
        (("services", "qwen", "healthcheck"), "start_period", "start_periode"),
        (("services", "proxy", "depends_on", "qwen"), "condition", "conditions"),
        (
            ("services", "qwen", "deploy", "resources", "reservations", "devices", 0),
            "device_ids",
            "device_id",
        ),
        (("services", "qwen"), "shm_size", "shmsize"),
        ((), "services", "service"),
    ],
)
def test_a_misspelt_key_is_seen_by_the_schema(
    path: tuple[Any, ...], right: str, wrong: str
) -> None:
    found = copy.deepcopy(usual())
    place = found
    for step in path:
        place = place[step]
    place[wrong] = place.pop(right)
    assert problems(found, "compose-spec.json") != []


def test_each_engine_has_its_own_gpus_and_no_others() -> None:
    services = composed()["services"]
    (devices,) = services["qwen"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices == {"driver": "nvidia", "device_ids": ["0", "1"], "capabilities": ["gpu"]}
    (devices,) = services["coder-7b"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices["device_ids"] == ["2"]


def test_a_slice_of_a_gpu_goes_by_its_uuid() -> None:
    found = composed(site(ONE + 'gpus = "MIG-f1e2"\n'))
    (devices,) = found["services"]["qwen"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices["device_ids"] == ["MIG-f1e2"]


def test_one_engine_that_names_no_gpu_takes_as_many_as_its_flags_say() -> None:
    found = composed(site(ONE + "[engine.flags]\ntensor-parallel-size = 4\n"))
    (devices,) = found["services"]["qwen"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices == {"driver": "nvidia", "count": 4, "capabilities": ["gpu"]}


def test_several_engines_that_name_none_would_share_the_first_and_are_refused() -> None:
    error = refused(site(ONE + '[[engine]]\nname = "b"\nmodel = "B"\nport = 8003\ngpus = "1"\n'))
    assert "`qwen` names no GPU" in error.message


def test_an_engine_runs_vllm_with_the_flags_of_the_stack() -> None:
    qwen = composed()["services"]["qwen"]
    assert qwen["image"] == IMAGE
    assert qwen["entrypoint"] == ["vllm", "serve"]
    assert qwen["command"] == [
        *("Qwen/Qwen2.5-7B-Instruct", "--host", "0.0.0.0", "--port", "8001"),
        *("--tensor-parallel-size", "2", "--max-num-seqs", "64"),
        *("--allowed-media-domains", "nowhere.invalid", "--shutdown-timeout", "45"),
    ]
    assert composed()["services"]["coder-7b"]["command"][5:7] == [
        "--served-model-name",
        "coder",
    ]


def test_what_is_under_way_may_end_before_the_container_is_killed() -> None:
    # the proxy's drain is 45 s, and 30 s are left to end
    services = composed()["services"]
    assert services["qwen"]["stop_grace_period"] == "75s"
    assert services["proxy"]["stop_grace_period"] == "75s"


def test_a_shutdown_timeout_of_the_stack_holds_and_an_old_image_gets_none() -> None:
    own = composed(site(ONE + "[engine.flags]\nshutdown-timeout = 5\n"))["services"]["qwen"]
    assert (own["command"].count("--shutdown-timeout"), own["stop_grace_period"]) == (1, "35s")
    old = composed(site(ONE, image="vllm/vllm-openai:v0.12.0"))["services"]["qwen"]
    assert "--shutdown-timeout" not in old["command"]
    assert old["stop_grace_period"] == "30s"


def test_loading_may_take_as_long_as_the_stack_says() -> None:
    health = composed()["services"]["qwen"]["healthcheck"]
    assert (health["start_period"], health["start_interval"]) == ("1200s", "5s")
    assert "http://127.0.0.1:8001/health" in health["test"][-1]
    compile(health["test"][-1], "healthcheck", "exec")


def test_the_proxy_starts_when_every_engine_answers() -> None:
    waits = composed()["services"]["proxy"]["depends_on"]
    assert waits == {
        name: {"condition": "service_healthy"} for name in ("qwen", "coder-7b", "redis")
    }
    assert all("healthcheck" in composed()["services"][name] for name in waits)


def test_ports_are_bound_to_the_loopback_and_only_the_proxy_to_what_is_asked() -> None:
    def addresses(found: Site) -> dict[str, str]:
        services = composed(found)["services"].items()
        return {name: each["ports"][0]["host_ip"] for name, each in services if "ports" in each}

    assert set(addresses(site()).values()) == {"127.0.0.1"}
    assert addresses(site(listen="0.0.0.0")) == {
        "proxy": "0.0.0.0",
        "qwen": "127.0.0.1",
        "coder-7b": "127.0.0.1",
    }
    assert addresses(site("proxy = false\n" + ONE, listen="::1")) == {"qwen": "::1"}


def test_keys_come_from_the_shell_and_a_missing_one_stops_it() -> None:
    unset = interpolated(usual(), {})["services"]
    assert "VLLM_API_KEY=<QWEN_KEY is not set>" in unset["qwen"]["environment"]
    assert composed()["services"]["qwen"]["environment"][-1] == "VLLM_API_KEY=k1"
    assert composed()["services"]["proxy"]["environment"] == [
        "RED_KEY=k2",
        "QWEN_KEY=k1",
        "CACHE_REDIS=redis://redis:6379/0",
    ]


def test_an_example_of_env_holds_names_alone() -> None:
    lines = text_of(kit(site(), templates()), ".env.example").splitlines()
    names = [line for line in lines if not line.startswith("#")]
    assert names == ["QWEN_KEY=", "RED_KEY="]
    assert "# CACHE_REDIS=" in lines


def test_no_file_has_a_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QWEN_KEY", "RED_KEY", "CACHE_REDIS", "HF_TOKEN", "VLLM_API_KEY"):
        monkeypatch.setenv(name, f"s3cret-{name.lower()}")
    found = kit(site(), templates())
    assert not any("s3cret" in each.text for each in found.files)
    assert not any("s3cret" in step for step in found.next_steps)


def test_weights_and_compiled_kernels_stay_in_volumes() -> None:
    found = composed()
    assert found["services"]["qwen"]["volumes"] == [
        "huggingface:/cache/huggingface",
        "qwen-compiled:/cache/vllm",
    ]
    named = {"huggingface", "qwen-compiled", "coder-7b-compiled", "proxy-cache"}
    assert set(found["volumes"]) == named
    assert "HF_HOME=/cache/huggingface" in found["services"]["qwen"]["environment"]


def test_a_variable_of_the_stack_goes_before_ours() -> None:
    found = composed(site(ONE + '[engine.env]\nHF_HOME = "/other"\n'))
    environment = found["services"]["qwen"]["environment"]
    assert [each for each in environment if each.startswith("HF_HOME")] == ["HF_HOME=/other"]


def test_a_directory_of_weights_is_mounted_where_it_lies_and_can_not_be_written() -> None:
    found = composed(site(ONE.replace("Qwen/Q", "/srv/models/q")))["services"]["qwen"]
    (mount,) = (each for each in found["volumes"] if isinstance(each, dict))
    assert (mount["source"], mount["target"], mount["read_only"]) == (
        *("/srv/models/q", "/srv/models/q"),
        True,
    )
    assert refused(site(ONE.replace("Qwen/Q", "./q"))).hint.startswith("Write its whole path")


def test_there_is_a_redis_only_where_the_stack_names_one() -> None:
    assert "redis" in composed()["services"]
    assert "ports" not in composed()["services"]["redis"]
    assert "redis" not in composed(site(ONE))["services"]
    assert "[redis]" in text_of(kit(site(), templates()), "proxy/Dockerfile")
    assert "[redis]" not in text_of(kit(site(ONE), templates()), "proxy/Dockerfile")


def test_the_proxys_file_leads_to_the_services() -> None:
    settings = read(text_of(kit(site(), templates()), "proxy/proxy.toml"), "proxy.toml")
    services = composed()["services"]
    for upstream in settings.upstreams:
        name, port = re.fullmatch(r"http://([\w-]+):(\d+)", upstream.url).groups()  # type: ignore[union-attr]
        assert services[name]["ports"][0]["target"] == int(port)
    mount = services["proxy"]["volumes"][0]
    assert (mount["source"], mount["target"]) == ("./proxy/proxy.toml", "/etc/toolkit/proxy.toml")
    assert mount["target"] in text_of(kit(site(), templates()), "proxy/Dockerfile")


def test_other_settings_are_another_container() -> None:
    # `docker compose up` leaves one as it is whose mounted file alone has changed
    def proxy(text: str) -> Any:
        return written(site(text))["services"]["proxy"]

    assert proxy(ONE) == proxy(ONE)
    assert proxy(ONE) != proxy(ONE + '[proxy.cache]\nttl = "1m"\n')


def built(folder: Path, *wheels: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The image's only installing step, in a shell, with a pip that tells what it is asked for."""
    dockerfile = text_of(kit(site(), templates()), "proxy/Dockerfile")
    (step,) = re.findall(r"^RUN (set .*?[^\\])$", dockerfile, re.MULTILINE | re.DOTALL)
    place = folder / "wheels"
    place.mkdir()
    for name in ("README.txt", *wheels):
        (place / name).touch()
    pip = folder / "pip"
    pip.write_text('#!/bin/sh\nfor last; do :; done; echo "$last"\n')
    pip.chmod(0o755)
    return subprocess.run(
        ["/bin/sh", "-c", step.replace("/tmp/wheels", str(place))],
        env={"PATH": f"{folder}:/usr/bin:/bin", **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_image_takes_the_wheel_that_lies_there_and_no_stranger_s_of_that_name(
    tmp_path: Path,
) -> None:
    wheel = "llm_serving_toolkit-0.1.0-py3-none-any.whl"
    done = built(tmp_path, wheel, "redis-5.0-py3-none-any.whl")
    assert done.stdout == f"{tmp_path}/wheels/{wheel}[redis]\n"
    assert not (tmp_path / "wheels").exists()


@pytest.mark.parametrize(
    "wheels", [(), ("llm_serving_toolkit-1.whl", "llm_serving_toolkit-2.whl")], ids=["none", "two"]
)
def test_an_image_without_one_wheel_is_not_built(tmp_path: Path, wheels: tuple[str, ...]) -> None:
    done = built(tmp_path, *wheels)
    assert (done.returncode, done.stdout) == (1, "")
    assert "must hold one wheel of the toolkit" in done.stderr


def test_a_version_of_an_index_may_be_named(tmp_path: Path) -> None:
    assert built(tmp_path, TOOLKIT="llm-serving-toolkit==9").stdout == "llm-serving-toolkit==9\n"


def test_engines_called_proxy_and_redis_do_not_take_those_places() -> None:
    text = ONE.replace('"qwen"', '"proxy"') + 'gpus = "0"\n'
    more = '[[engine]]\nname = "redis"\nmodel = "B"\nport = 8003\ngpus = "1"\n'
    services = composed(site(text + more))["services"]
    assert set(services) == {"weights", "proxy", "proxy-2", "redis-2"}
    assert services["proxy"]["build"] == "./proxy"


def test_a_proxy_is_not_root_and_writes_to_its_cache_alone() -> None:
    proxy = composed()["services"]["proxy"]
    assert (proxy["read_only"], proxy["cap_drop"]) == (True, ["ALL"])
    assert "USER 10001" in text_of(kit(site(), templates()), "proxy/Dockerfile")


def test_logs_are_bounded_and_every_service_comes_back() -> None:
    for name, service in composed()["services"].items():
        assert service["logging"]["options"] == {"max-size": "50m", "max-file": "5"}
        # who fetches weights ends by itself
        assert service.get("restart") == (None if name == "weights" else "unless-stopped")


def test_a_simulated_engine_runs_from_the_toolkits_image_and_a_tiny_one_is_refused() -> None:
    text = (
        '[[engine]]\nname = "s"\nkind = "sim"\nmodel = "fast"\nport = 8001\nkey_env = "QWEN_KEY"\n'
    )
    service = composed(site(text))["services"]["s"]
    assert service["build"] == "./proxy"
    assert service["command"][:5] == ["toolkit", "sim", "serve", "--personality", "fast"]
    assert service["environment"] == ["QWEN_KEY=k1"]
    assert "deploy" not in service
    assert "flags" in kit(site(text), templates()).next_steps[-1]
    assert "tiny" in refused(site('[[engine]]\nname = "t"\nkind = "tiny"\nport = 8001\n')).message


def test_gpus_counted_by_a_variable_are_refused() -> None:
    error = refused(site(ONE + '[engine.env]\nCUDA_VISIBLE_DEVICES = "3"\n'))
    assert "gpus" in error.hint


def test_hostile_words_are_single_words_and_nothing_else() -> None:
    found = site(ONE + 'gpus = "0"\n')
    engines = [hostile(found.engines[0], word, number) for number, word in enumerate(HOSTILE)]
    evil = replace(found, engines=tuple(engines), stack_file=" ".join(HOSTILE), proxy=None)
    document = written(evil)
    assert problems(document, "compose-spec.json") == []
    services = interpolated(document, {"HOME": "/root"})["services"]
    assert services.pop("weights")["command"] == [f"m{word}" for word in HOSTILE]
    assert list(services) == [each.name for each in engines]
    plain = composed(replace(found, proxy=None))["services"]["qwen"]
    for word, service in zip(HOSTILE, services.values(), strict=True):
        assert set(service) == set(plain)
        assert service["command"][0] == f"m{word}"
        assert service["command"][5:] == [
            *("--served-model-name", word, "--chat-template", word),
            *("--allowed-media-domains", "nowhere.invalid", "--shutdown-timeout", "30"),
        ]
        assert service["environment"][-1] == f"WORD={word}"


@pytest.mark.parametrize("ending", ["\n", "\r", "\x00", "\u2028", "\x1b[2J"])
def test_a_line_that_would_end_early_is_refused(ending: str) -> None:
    found = site()
    evil = replace(found.engines[0], model=f"m{ending}privileged: true")
    assert "not one line" in refused(replace(found, engines=(evil, *found.engines[1:]))).message
    evil_file = replace(found, stack_file=f"s{ending}x")
    assert "not one line" in refused(evil_file).message


def test_the_next_steps_name_every_key_and_a_way_to_warm() -> None:
    steps = kit(site(), templates()).next_steps
    assert any("QWEN_KEY, RED_KEY" in step for step in steps)
    assert "toolkit warmup http://127.0.0.1:8003" in steps
    assert STACK.count("[[engine]]") == sum("warmup" in step for step in steps)


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("10.0.0.5", "http://10.0.0.5:8001"),
        ("::1", "http://[::1]:8001"),
        ("0.0.0.0", "http://127.0.0.1:8001"),
    ],
)
def test_engines_without_a_proxy_are_warmed_where_they_are_bound(listen: str, url: str) -> None:
    steps = kit(site("proxy = false\n" + ONE, listen=listen), templates()).next_steps
    assert f"toolkit warmup {url}" in steps
    # behind a proxy they are bound to the loopback, whoever reaches the proxy
    behind = kit(site(ONE, listen=listen), templates()).next_steps
    assert "toolkit warmup http://127.0.0.1:8001" in behind


def test_a_file_that_only_this_machine_has_is_told() -> None:
    text = ONE.replace("Qwen/Q", "/srv/models/q") + (
        'env = { HF_HOME = "/data/hf", VLLM_CACHE_ROOT = "/cache/x" }\n'
        '[engine.flags]\nchat-template = "/srv/t.jinja"\ntokenizer = "/srv/models/q/tok"\n'
        'speculative-config = { model = "/srv/draft" }\n'
    )
    said = [step for step in kit(site(text), templates()).next_steps if "mount it" in step]
    # the model's own directory is mounted, and /cache is a volume
    assert [step.split("`")[1::2] for step in said] == [
        ["/srv/t.jinja", "--chat-template", "qwen"],
        ["/srv/draft", "--speculative-config", "qwen"],
        ["/data/hf", "HF_HOME", "qwen"],
    ]
    assert not any("mount it" in step for step in kit(site(), templates()).next_steps)
