"""`toolkit deploy compose` and `k8s` as they are typed: which files, which options, and what is said of an image that nobody asked."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from support.deployed import STACK

from toolkit.cli import main

BIG = (
    '[[engine]]\nname = "big"\nmodel = "org/big"\nport = 8001\n'
    "[engine.flags]\ntensor-parallel-size = 8\npipeline-parallel-size = 2\n"
)


@pytest.fixture
def stack(tmp_path: Path) -> Path:
    path = tmp_path / "contest.toml"
    path.write_text(STACK)
    return path


def deploy(kind: str, stack: Path, *words: str) -> Result:
    out = str(stack.parent / "out")
    return CliRunner().invoke(main, ["deploy", kind, str(stack), "--out", out, *words])


def written(stack: Path) -> dict[str, str]:
    out = stack.parent / "out"
    files = (each for each in out.rglob("*") if each.is_file())
    return {str(each.relative_to(out)): each.read_text() for each in files}


def test_compose_writes_services_image_settings_and_an_example_of_env(stack: Path) -> None:
    result = deploy("compose", stack, "--json")
    assert result.exit_code == 0, result.output
    places = [json.loads(line)["path"] for line in result.stdout.splitlines()]
    names = [str(Path(each).relative_to(stack.parent / "out")) for each in places]
    assert names == [
        *("compose.yaml", ".env.example", "proxy/Dockerfile"),
        *("proxy/constraints.txt", "proxy/wheels/README.txt", "proxy/proxy.toml"),
    ]
    assert "docker compose up" in result.stderr


def test_k8s_writes_a_file_for_each_engine_and_scaling_apart(stack: Path) -> None:
    result = deploy("k8s", stack)
    assert result.exit_code == 0, result.output
    assert {
        *("engine-contest-qwen.yaml", "engine-contest-coder-7b.yaml", "proxy.yaml"),
        *("network.yaml", "disruption.yaml", "scaling/keda.yaml", "scaling/hpa.yaml"),
        "scaling/prometheus-adapter.yaml",
    } < set(written(stack))


@pytest.mark.parametrize("kind", ["compose", "k8s"])
def test_no_key_of_the_environment_is_written_or_said(
    kind: str, stack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("QWEN_KEY", "RED_KEY", "CACHE_REDIS", "HF_TOKEN", "VLLM_API_KEY"):
        monkeypatch.setenv(name, f"s3cret-{name.lower()}")
    result = deploy(kind, stack)
    assert result.exit_code == 0
    assert "s3cret" not in result.output
    assert not any("s3cret" in text for text in written(stack).values())


def test_an_engine_that_is_too_large_for_a_node_spans_several(stack: Path) -> None:
    stack.write_text(BIG)
    options = ("--gpus-per-node", "8", "--replicas", "3", "--prometheus", "http://prom:9090")
    assert deploy("k8s", stack, *options, "--toolkit-image", "r.example.com/t:1").exit_code == 0
    files = written(stack)
    assert "kind: LeaderWorkerSet" in files["engine-contest-big.yaml"]
    assert "maxReplicaCount: 3" in files["scaling/keda.yaml"]
    assert "http://prom:9090" in files["scaling/keda.yaml"]
    assert '"r.example.com/t:1"' in files["proxy.yaml"]


@pytest.mark.parametrize(
    ("kind", "words", "said"),
    [
        ("compose", ["--gpus-per-node", "8"], "--gpus-per-node is for k8s, not compose"),
        ("nginx", ["--toolkit-image", "x"], "--toolkit-image is for compose and k8s, not nginx"),
        ("systemd", ["--replicas", "2"], "--replicas is for k8s, not systemd"),
        ("k8s", ["--gpus-per-node", "0"], "0 is not in the range"),
    ],
)
def test_an_option_of_another_kind_is_a_wrong_command_line(
    kind: str, words: list[str], said: str, stack: Path
) -> None:
    result = deploy(kind, stack, *words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not (stack.parent / "out").exists()


def test_another_image_is_named_and_said_not_to_have_been_asked_once(stack: Path) -> None:
    image = "vllm/vllm-openai:v0.31.0"
    result = deploy("compose", stack, "--image", image)
    assert result.stderr.count(f"`{image}` was not asked for its flags") == 1
    assert f'image: "{image}"' in written(stack)["compose.yaml"]


def test_a_flag_that_the_image_does_not_have_writes_nothing(stack: Path) -> None:
    stack.write_text(BIG + "max-num-sequences = 64\n")
    result = deploy("k8s", stack)
    assert result.exit_code == 1
    assert "Did you mean `max-num-seqs`?" in result.stderr
    assert not (stack.parent / "out").exists()


def test_an_old_flag_is_translated_and_said_so(stack: Path) -> None:
    stack.write_text(BIG + "disable-log-requests = true\n")
    result = deploy("compose", stack)
    assert result.exit_code == 0, result.output
    assert "--no-enable-log-requests" in written(stack)["compose.yaml"]
    assert "the other way round" in result.stderr


def test_the_proxy_takes_the_settings_that_are_written(
    stack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert deploy("compose", stack).exit_code == 0
    config = str(stack.parent / "out/proxy/proxy.toml")
    for name in ("QWEN_KEY", "RED_KEY"):
        monkeypatch.setenv(name, "k-1")
    monkeypatch.setenv("CACHE_REDIS", "redis://redis:6379/0")
    result = CliRunner().invoke(main, ["proxy", "--config", config, "--check"])
    assert result.exit_code == 0, result.output
    assert "These settings are good" in result.stderr
    monkeypatch.delenv("QWEN_KEY")
    result = CliRunner().invoke(main, ["proxy", "--config", config, "--check"])
    assert "QWEN_KEY" in result.stderr


def test_a_simulated_engines_command_has_only_options_that_the_simulator_takes(
    stack: Path,
) -> None:
    stack.write_text(
        '[[engine]]\nname = "s"\nkind = "sim"\nmodel = "gptq-int4"\nserved_name = "m"\n'
        'port = 8001\nkey_env = "QWEN_KEY"\n'
    )
    assert deploy("compose", stack).exit_code == 0
    found = yaml.safe_load(written(stack)["compose.yaml"])
    toolkit, *words = found["services"]["s"]["command"]
    assert toolkit == "toolkit"
    # click refuses an unknown option before it shows its help
    result = CliRunner().invoke(main, [*words, "--help"])
    assert result.exit_code == 0, result.output
    assert CliRunner().invoke(main, [*words, "--no-such", "--help"]).exit_code == 2
