"""`toolkit preflight` at the command line: its table, its last line, and how little it needs."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from contract.harness.nvml import A100, environment, machine, needs_gcc
from contract.harness.planted import TOOLKIT

from toolkit.cli import main
from toolkit.serving.preflight.check import Check, fail, ok, warn


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


@pytest.mark.parametrize(
    ("words", "found", "code", "last"),
    [
        (
            ["--users", "1500"],
            (ok("a", "x"), ok("b", "x"), warn("c", "x")),
            0,
            "2 ok, 1 warning, 0 failed: fit to serve a model to 1,500 users.",
        ),
        (
            ["--model", "m", "--weights", "1GiB"],
            (ok("a", "x"), warn("b", "x"), warn("c", "x"), fail("d", "x")),
            1,
            "1 ok, 2 warnings, 1 failed: not fit to serve m.",
        ),
    ],
)
def test_the_last_line_counts_and_concludes(
    words: list[str],
    found: tuple[Check, ...],
    code: int,
    last: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolkit.serving.preflight.checks.checks", lambda _needs: found)
    done = CliRunner().invoke(main, ["preflight", *words])
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (code, last)


def test_an_unknown_quantization_is_refused_with_those_that_are_known() -> None:
    done = run("--cpu", "--model", "Qwen/Qwen2.5-7B-Instruct", "--quantization", "fp88")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: no quantization is called `fp88`\n\nHint: Known: fp32, ")


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
