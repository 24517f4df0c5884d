"""`toolkit preflight` at the command line: its table, its last line, and how little it needs."""

import subprocess
import sys
from pathlib import Path

from contract.harness.nvml import A100, environment, machine, needs_gcc
from contract.harness.planted import TOOLKIT

from toolkit.cli.preflight.run import conclusion, with_weights
from toolkit.serving.preflight.check import Needs, fail, ok, warn


def run(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TOOLKIT, "preflight", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=env,
    )


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


@needs_gcc
def test_a_command_that_mends_several_things_stands_once_and_gpus_are_named_by_kind(
    tmp_path: Path,
) -> None:
    folder = machine(tmp_path / "nvml", A100, A100, A100 | {"name": "NVIDIA GB10"})
    words = ("--port", "27000", "--model", "x/big", "--weights", "80GiB")
    done = run(*words, env=environment(folder, COLUMNS="200"))
    lines = done.stdout.splitlines()
    where = lines.index("  # gpu_0_memory, gpu_1_memory, gpu_2_memory")
    assert lines[where + 1] == "  toolkit plan x/big"
    assert lines.count("  toolkit plan x/big") == 1
    assert "2 x NVIDIA A100-SXM4-80GB, 1 x NVIDIA GB10; driver" in done.stdout


def test_the_last_line_counts_and_concludes() -> None:
    found = (ok("a", "x"), ok("b", "x"), warn("c", "x"))
    assert conclusion(found, Needs(users=1500)) == (
        "2 ok, 1 warning, 0 failed: fit to serve a model to 1,500 users."
    )
    assert conclusion((*found, fail("d", "x")), Needs(model="m")) == (
        "2 ok, 1 warning, 1 failed: not fit to serve m."
    )


def test_several_gpus_share_the_weights() -> None:
    assert with_weights(Needs(model="x/y"), weights=3_001, tp=2).gpu_bytes == 1_501  # rounded up


def test_it_runs_from_a_plain_checkout_with_few_packages() -> None:
    """Only click, rich, psutil and NVIDIA's binding: a GPU machine that is at hand for an hour has no more."""
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
