"""NVIDIA's library and nvidia-smi, made of a folder of small files, so that the real pynvml talks to something.

What the fake GPUs say is written by hand in the tests: `{"driver": ..., "gpu0": {"name": ..., "slice0": {...}}}`.
"""

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

needs_gcc = pytest.mark.skipif(
    shutil.which("gcc") is None, reason="needs a C compiler: apt-get install gcc libc6-dev"
)

SMI = """#!/bin/sh
# nvidia-smi as far as it is pasted: -i N and one of -pm, -lgc, -mig, -c
[ "$1" = -i ] && [ $# -eq 4 ] || { echo "fake nvidia-smi: $*" >&2; exit 2; }
gpu=$FAKE_NVML/gpu$2
case $3 in
    -pm) echo "$4" >"$gpu/persistence" ;;
    -lgc) echo "${4#*,}" >"$gpu/sm" ; echo 0 >"$gpu/reasons" ;;
    -mig) echo "$4" >"$gpu/mig" ;;
    -c) echo "$4" >"$gpu/compute_mode" ;;
    *) echo "fake nvidia-smi: $*" >&2; exit 2 ;;
esac
"""

A100: Mapping[str, Any] = {
    # an A100 that nothing is wrong with: 80 GiB, locked at its highest clock
    "name": "NVIDIA A100-SXM4-80GB",
    "uuid": "GPU-aaaaaaaa-0000-1111-2222-333333333333",
    "total": 80 * 2**30,
    "persistence": 1,
    "sm": 1410,
    "sm_max": 1410,
    "busy": 0,
    "reasons": 0,
    "temperature": 34,
    "compute_mode": 0,
    "mig": 0,
    "ecc": 0,
    "rows_pending": 0,
}


@functools.cache
def library() -> Path:
    """Compile the stand-in once a test session; the folder that holds it."""
    folder = Path(tempfile.mkdtemp(prefix="fake-nvml-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source = Path(__file__).parent / "nvml.c"
    out = folder / "libnvidia-ml.so.1"
    warnings = ("-Wall", "-Wextra", "-Werror", "-std=c11", "-D_POSIX_C_SOURCE=200809L")
    subprocess.run(["gcc", "-shared", "-fPIC", *warnings, "-o", out, source], check=True)
    smi = folder / "nvidia-smi"
    smi.write_text(SMI)
    smi.chmod(0o755)
    return folder


def machine(
    folder: Path, *gpus: Mapping[str, Any], driver: str = "580.65.06", cuda: int = 13_000
) -> Path:
    """Write a machine with these GPUs."""
    told: dict[str, Any] = {"driver": driver, "cuda": cuda, "count": len(gpus)}
    write(folder, told | {f"gpu{index}": gpu for index, gpu in enumerate(gpus)})
    return folder


def write(folder: Path, told: Mapping[str, Any]) -> None:
    """One file a value; None: no file, which the library answers with `not supported`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in told.items():
        if isinstance(value, Mapping):
            write(folder / name, value)
        elif value is not None:
            (folder / name).write_text(f"{value}\n")


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a process that sees this machine; CUDA_VISIBLE_DEVICES is not inherited."""
    plain = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    home = str(library())
    path = f"{home}:{plain.get('PATH', '')}"
    return plain | {"FAKE_NVML": str(folder), "LD_LIBRARY_PATH": home, "PATH": path} | more
