"""A missing vLLM: the printed command makes an environment with pip in it, which takes its time (some 10 s)."""

import sys
import zipfile
from pathlib import Path

from contract.harness.nvml import A100, environment, machine, needs_gcc
from contract.harness.planted import pasted


@needs_gcc
def test_a_missing_vllm_is_installed_into_a_folder_of_its_own(tmp_path: Path) -> None:
    """The package that pip finds is a small one by hand; nothing but this machine is asked."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    about = "Metadata-Version: 2.1\nName: vllm\nVersion: 9.9.9\n"
    parts = {
        "vllm/__init__.py": "def main():\n    print('9.9.9')\n",
        "vllm-9.9.9.dist-info/METADATA": about,
        "vllm-9.9.9.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "vllm-9.9.9.dist-info/entry_points.txt": "[console_scripts]\nvllm = vllm:main\n",
    }
    with zipfile.ZipFile(wheels / "vllm-9.9.9-py3-none-any.whl", "w") as wheel:
        for name, text in parts.items():
            wheel.writestr(name, text)
        wheel.writestr("vllm-9.9.9.dist-info/RECORD", "".join(f"{name},,\n" for name in parts))
    folder = machine(tmp_path / "nvml", A100)
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    env = environment(folder, **pip)
    home = str(Path(sys.executable).parent)
    env["PATH"] = ":".join(each for each in env["PATH"].split(":") if each != home)
    found = pasted(tmp_path / "run", "vllm", env=env)
    assert found.before["vllm"]["status"] == "fail"
    assert found.after["vllm"]["status"] == "ok"
    assert f"vLLM 9.9.9 at `{tmp_path}/run/vllm-env/bin/vllm`" in found.after["vllm"]["why"]
    # it has no PyTorch for CUDA, and there is a GPU
    assert found.after["vllm_cuda"]["status"] == "fail"
