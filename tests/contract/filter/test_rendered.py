"""What `serve` starts and `deploy` writes: engines that fetch nothing by themselves, no way out, exact versions."""

import json
import re
import stat
import sys
from pathlib import Path
from typing import Any

import yaml
from contract.harness.programs import ROOT, free_port, run

FLAG = "--allowed-media-domains"
NOWHERE = "nowhere.invalid"
"""To vLLM an empty list means every domain."""
STACK = """
[[engine]]
name = "named"
model = "Qwen/Qwen3-8B"
gpus = "0"
port = 8101
[[engine]]
name = "lies-here"
model = "/srv/models/qwen"
gpus = "1"
port = 8103
[engine.flags]
{flags}
[proxy]
port = 8000
admin_port = 8002
media_hosts = {hosts}
"""
VLLM = """#!{python}
import json, sys
if "--help=all" in sys.argv or "--help" in sys.argv:
    print(open({help!r}).read())
elif "serve" in sys.argv:
    json.dump(sys.argv, open({told!r}, "w"))
    sys.exit("no GPU")
else:
    print("0.32.0")
"""
HELP = ROOT / "tests" / "data" / "startup" / "help-0.32.0.txt"


def domains(words: list[str]) -> list[str]:
    """What stands behind the flag; empty where it is not given."""
    if FLAG not in words:
        return []
    behind = words[words.index(FLAG) + 1 :]
    return behind[: next((n for n, word in enumerate(behind) if word.startswith("-")), None)]


def rendered(kind: str, folder: Path, flags: str = "", hosts: str = "[]") -> Path:
    """The folder that `deploy` fills."""
    folder.mkdir()
    stack = STACK.format(flags=flags, hosts=hosts)
    if kind == "k8s":
        stack = stack.replace("/srv/models", "/cache/models")
    (folder / "stack.toml").write_text(stack)
    done = run("deploy", kind, folder / "stack.toml", "--out", folder / "out", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "out"


def composed(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((folder / "compose.yaml").read_text())
    return found


def objects(folder: Path) -> list[dict[str, Any]]:
    return [each for file in folder.glob("*.yaml") for each in yaml.safe_load_all(file.read_text())]


def arguments(each: dict[str, Any]) -> list[str]:
    words: list[str] = each["spec"]["template"]["spec"]["containers"][0]["args"]
    return words


def test_deployed_engines_fetch_from_where_the_settings_let_them_and_their_own_flag_wins(
    tmp_path: Path,
) -> None:
    services = composed(rendered("compose", tmp_path / "plain"))["services"]
    assert domains(services["named"]["command"]) == [NOWHERE]
    assert domains(services["lies-here"]["command"]) == [NOWHERE]
    own = 'allowed_media_domains = "c.example d.example"'
    made = rendered("compose", tmp_path / "own", own, '["a.example", "b.example"]')
    services = composed(made)["services"]
    assert domains(services["named"]["command"]) == ["a.example", "b.example"]
    assert domains(services["lies-here"]["command"]) == ["c.example", "d.example"]
    assert services["lies-here"]["command"].count(FLAG) == 1
    made = objects(rendered("k8s", tmp_path / "anywhere", own, '["*"]'))
    told = [
        domains(arguments(each))
        for each in made
        if each["kind"] == "Deployment" and each["metadata"]["name"].endswith(("named", "here"))
    ]
    assert sorted(told) == [[], ["c.example", "d.example"]]


def test_the_image_of_a_deployment_installs_exact_versions(tmp_path: Path) -> None:
    folder = rendered("compose", tmp_path / "made") / "proxy"
    told = (folder / "constraints.txt").read_text()
    assert told == (ROOT / "constraints.txt").read_text()
    lines = told.splitlines()
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines), lines
    dockerfile = (folder / "Dockerfile").read_text()
    (install,) = re.findall(r"pip install [^\n]*", dockerfile)
    (file,) = re.findall(r"--constraint (\S+)", install)
    copied = re.findall(r"^COPY (.+) (\S+)$", dockerfile, re.MULTILINE)
    assert any(
        "constraints.txt" in names.split() and file == f"{to}constraints.txt"
        for names, to in copied
    )


def test_serve_starts_an_engine_that_fetches_nothing(tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    vllm = tmp_path / "vllm"
    vllm.write_text(VLLM.format(python=sys.executable, help=str(HELP), told=str(told)))
    vllm.chmod(vllm.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "stack.toml").write_text(
        f'[[engine]]\nname = "a"\nmodel = "org/m"\nvllm = "{vllm}"\nport = {free_port()}\n'
        '[proxy]\nport = 0\nadmin_port = 0\nmedia_hosts = ["a.example"]\n'
    )
    done = run("serve", "stack.toml", "--no-preflight", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert told.exists(), done.stdout + done.stderr
    assert domains(json.loads(told.read_text())) == ["a.example"]


def test_deployed_engines_have_no_way_out_but_for_what_they_must_fetch(tmp_path: Path) -> None:
    made = composed(rendered("compose", tmp_path / "compose"))
    services, networks = made["services"], made["networks"]
    closed = {"com.docker.network.bridge.enable_ip_masquerade": "false"}
    assert networks["engines"]["driver_opts"] == closed
    assert services["named"]["networks"] == services["lies-here"]["networks"] == ["engines"]
    assert set(services["proxy"]["networks"]) == {"engines", "default"}
    assert "HF_HUB_OFFLINE=1" in services["named"]["environment"]
    # who fetches takes no requests, and is started by name alone
    weights = services["weights"]
    assert (weights["command"], weights["profiles"]) == (["Qwen/Qwen3-8B"], ["weights"])
    assert (weights["networks"], "ports" in weights) == (["default"], False)
    fetching = composed(rendered("compose", tmp_path / "media", hosts='["a.example"]'))
    assert fetching["services"]["named"]["networks"] == ["engines", "default"]

    made = objects(rendered("k8s", tmp_path / "k8s"))
    policies = {
        each["metadata"]["name"]: each["spec"] for each in made if each["kind"] == "NetworkPolicy"
    }
    (every,) = (each for name, each in policies.items() if name.endswith("engines"))
    assert ("Egress" in every["policyTypes"], every["egress"]) == (True, [])
    ways = {name: each["egress"] for name, each in policies.items() if each.get("egress")}
    assert list(ways) == [name for name in policies if "named" in name]
    (way,) = ways.values()
    blocks = [each["ipBlock"] for each in way[0]["to"]]
    inside = {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "127.0.0.0/8"}
    assert inside <= set(blocks[0]["except"])
    assert {"fc00::/7", "fe80::/10"} <= set(blocks[1]["except"])
    assert way[0]["ports"] == [{"port": 443, "protocol": "TCP"}]

    def unit(folder: str, stack: str) -> str:
        (tmp_path / folder).mkdir()
        file = tmp_path / folder / "stack.toml"
        file.write_text(stack)
        done = run("deploy", "systemd", file, "--out", tmp_path / folder / "out", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        (found,) = (tmp_path / folder / "out").glob("*.service")
        return found.read_text()

    plain = STACK.format(flags="", hosts="[]")
    local = plain.replace("Qwen/Qwen3-8B", "/srv/models/other")
    assert "\nIPAddressDeny=any\n" in unit("local", local)
    # one that fetches its model, and one that is asked by other machines
    assert "\nIPAddressDeny" not in unit("named", plain)
    open_to_all = local.replace("[proxy]", '[proxy]\nhost = "0.0.0.0"')
    assert "\nIPAddressDeny" not in unit("open", open_to_all)
