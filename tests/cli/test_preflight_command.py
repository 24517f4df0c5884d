"""`toolkit preflight` at the command line: what is printed where, its exit code, and `--fix`."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.fake_nvml import A100, environment, machine, needs_gcc
from support.planted import TOOLKIT, needs_unshare

from toolkit.cli import main
from toolkit.cli.preflight.needs import with_weights
from toolkit.cli.preflight.show import conclusion
from toolkit.serving.fit.needs import Needs
from toolkit.serving.outcome import bad, doubtful, good


def run(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TOOLKIT, "preflight", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=env,
    )


def checks(text: str) -> dict[str, dict[str, Any]]:
    return {row["check"]: row for row in map(json.loads, text.splitlines())}


def test_json_is_one_object_a_check_with_the_fixed_keys() -> None:
    done = run("--json", "--sim")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) > 10
    assert all(list(row) == ["check", "status", "why", "fix"] for row in rows)
    assert {row["status"] for row in rows} <= {"ok", "warn", "fail"}
    assert done.returncode == int(any(row["status"] == "fail" for row in rows))
    assert done.stderr == ""


@needs_gcc
def test_a_failing_check_is_exit_1_and_its_command_stands_alone_on_a_line(tmp_path: Path) -> None:
    folder = machine(tmp_path / "nvml", A100)
    done = run(
        "--port", "27000", env=environment(folder, CUDA_VISIBLE_DEVICES="-1", PATH="/usr/bin:/bin")
    )
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[lines.index("  # gpu") + 1] == "  unset CUDA_VISIBLE_DEVICES"
    install = (
        "  python3 -m venv vllm-env && vllm-env/bin/pip install vllm"
        ' && export PATH="$PWD/vllm-env/bin:$PATH"'
    )
    assert lines[lines.index("  # vllm") + 1] == install
    assert lines[-1].endswith("not fit to serve a model.")


def test_the_last_line_counts_and_concludes() -> None:
    found = (good("a", "x"), good("b", "x"), doubtful("c", "x"))
    assert conclusion(found, Needs(users=1500)) == (
        "2 ok, 1 doubtful, 0 failed: fit to serve a model to 1,500 users."
    )
    assert conclusion((*found, bad("d", "x")), Needs(model="m")) == (
        "2 ok, 1 doubtful, 1 failed: not fit to serve m."
    )


@needs_unshare
def test_fix_tidies_tells_and_looks_again(tmp_path: Path) -> None:
    script = """
        mount -t tmpfs -o size=8g tmpfs /dev/shm
        echo x >/dev/shm/psm_dead; echo x >/dev/shm/mine
        ulimit -Sn 512
        "$0" preflight --sim --json --fix >"$1/out" 2>"$1/told" || true
        ls /dev/shm >"$1/left"; ulimit -Sn >"$1/limit"
    """
    subprocess.run(
        ["unshare", "--mount", "bash", "-ec", script, TOOLKIT, tmp_path], timeout=60, check=True
    )
    found = checks((tmp_path / "out").read_text())
    assert found["shm_leftovers"] == {
        "check": "shm_leftovers",
        "status": "ok",
        "why": "no killed server left files in `/dev/shm`",
        "fix": None,
        "fixed": True,
        "repair": "removed 1 file that no process held",
    }
    assert (tmp_path / "left").read_text() == "mine\n"
    # this process lifted its own limit, and the shell's is still what the shell has
    assert found["open_files"]["fixed"]
    assert found["open_files"]["status"] == "fail"
    assert (tmp_path / "limit").read_text() == "512\n"
    told = (tmp_path / "told").read_text()
    assert "Fixed: shm_leftovers: removed 1 file that no process held" in told
    assert "Fixed: open_files: " in told


@needs_gcc
@pytest.mark.skipif(
    os.geteuid() != 0, reason="switches persistence on, which root may: run it as root"
)
def test_fix_keeps_gpus_awake_and_leaves_their_clocks(tmp_path: Path) -> None:
    folder = machine(tmp_path / "nvml", A100 | {"persistence": 0, "sm": 345})
    done = run("--json", "--fix", env=environment(folder))
    found = checks(done.stdout)
    assert found["gpu_0_persistence"]["status"] == "ok"
    assert "Fixed: gpu_0_persistence: GPU 0 stays awake now" in done.stderr
    assert found["gpu_0_clocks"]["status"] == "warn"
    assert "Not fixed: gpu_0_clocks: left to you: nvidia-smi -i 0 -lgc 1410,1410" in done.stderr


def test_the_weights_of_a_known_model_want_room_on_disk_and_gpu(tmp_path: Path) -> None:
    needs = Needs(model="Qwen2.5-7B-Instruct", disk_path=str(tmp_path))
    found = with_weights(needs)
    # 7,615,616,512 parameters of 2 bytes each, as transformers counts them
    assert (found.disk_bytes, found.gpu_bytes) == (15_231_233_024, 15_231_233_024)
    assert found.memory_bytes is None


def test_what_is_in_the_cache_already_is_not_asked_for_again(tmp_path: Path) -> None:
    blob = tmp_path / "models--me--mine" / "blobs" / "w"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"x" * 4096)
    needs = Needs(model="me/mine", disk_path=str(tmp_path))
    assert with_weights(needs, weights=10_000).disk_bytes == 5_904  # 10,000 - 4,096
    assert with_weights(needs, weights=4_000).disk_bytes == 0


def test_a_directory_needs_no_room_on_disk_and_the_cpu_needs_memory(tmp_path: Path) -> None:
    needs = Needs(model=str(tmp_path), gpu=False)
    found = with_weights(needs, weights=3_000)
    assert (found.disk_bytes, found.gpu_bytes, found.memory_bytes) == (0, None, 3_000)


def test_several_gpus_share_the_weights() -> None:
    assert with_weights(Needs(model="x/y"), weights=3_001, tp=2).gpu_bytes == 1_501  # rounded up


def test_a_model_that_nobody_knows_is_told_and_the_rest_is_looked_at() -> None:
    done = run("--json", "--model", "nobody/knows-this", "--port", "27001")
    assert "The size of `nobody/knows-this` is not known" in done.stderr
    assert "disk" in checks(done.stdout)


def test_without_a_gpu_the_way_out_is_a_command_that_the_toolkit_knows(tmp_path: Path) -> None:
    nothing = dict(os.environ) | {"LD_LIBRARY_PATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    found = checks(run("--json", "--port", "27003", env=nothing).stdout)["gpu"]
    if found["fix"] is None or not found["fix"].startswith("toolkit "):
        # with such hardware the way out is a driver's, no command of the toolkit: nothing to be run here
        pytest.skip("for a machine without NVIDIA hardware; test_gpus.py has the others")
    assert found["status"] == "fail"
    words = found["fix"].split()
    done = subprocess.run(
        [TOOLKIT, *words[1:], "--check"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    # and for what it serves, no GPU is missed
    assert checks(run("--json", "--sim", env=nothing).stdout)["gpu"]["status"] == "ok"


def test_a_wrong_port_is_a_wrong_command_line() -> None:
    assert CliRunner().invoke(main, ["preflight", "--port", "70000"]).exit_code == 2


def test_it_runs_from_a_plain_checkout_with_few_packages() -> None:
    """Only click, rich and NVIDIA's binding: a GPU machine that is at hand for an hour has no more."""
    import sys

    code = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        heavy = 'aiohttp httpx httptools locust numpy orjson prometheus_client scapy sqlite_utils streamlit uvloop'\n"
        "        if name.partition('.')[0] in heavy.split(): raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "sys.argv = ['toolkit', 'preflight', '--sim', '--port', '27002']\n"
        "import runpy; runpy.run_module('toolkit.cli', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode in {0, 1}
    assert done.stderr == ""
    assert "port 27002 is free" in done.stdout
