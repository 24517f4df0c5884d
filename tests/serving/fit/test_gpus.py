"""GPUs through the real pynvml and a stand-in for NVIDIA's library: what it says was written by hand."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.fake_nvml import A100, environment, machine, needs_gcc, write

from toolkit.serving.fit.facts import Gpu, GpuProcess, Gpus, Slice
from toolkit.serving.fit.gpus import on_the_bus

pytestmark = needs_gcc

FACTS: dict[str, Any] = {"Gpu": Gpu, "GpuProcess": GpuProcess, "Gpus": Gpus, "Slice": Slice}


def told(folder: Path, call: str = "gpus()", **more: str) -> Any:
    """What a process of its own learns: a process loads NVIDIA's library once, with its own environment."""
    code = f"from toolkit.serving.fit.gpus import *; print(repr({call}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(folder, **more),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return eval(done.stdout, dict(FACTS))


def test_two_gpus_tell_who_they_are_and_how_they_do(tmp_path: Path) -> None:
    hot = A100 | {
        "uuid": "GPU-bbbbbbbb-0000-1111-2222-333333333333",
        "persistence": 0,
        "sm": 930,
        "busy": 87,
        "temperature": 91,
        "reasons": "0x44",  # 0x40 heat told by the hardware, 0x4 the power cap
        "ecc": 3,
        "rows_pending": 1,
    }
    found = told(machine(tmp_path / "two", A100, hot))
    assert (found.driver, found.cuda, found.error) == ("580.65.06", (13, 0), None)
    first, second = found.gpus
    assert first == Gpu(
        index=0,
        name="NVIDIA A100-SXM4-80GB",
        uuid="GPU-aaaaaaaa-0000-1111-2222-333333333333",
        total_bytes=85_899_345_920,  # 80 x 2^30
        free_bytes=85_899_345_920,
        processes=(),
        persistence=True,
        sm_mhz=1410,
        sm_max_mhz=1410,
        busy_share=0.0,
        limits=(),
        temperature_c=34,
        compute_mode=0,
        mig=False,
        ecc_errors=0,
        pages_pending=False,
    )
    assert (second.persistence, second.sm_mhz, second.busy_share) == (False, 930, 0.87)
    assert (second.limits, second.temperature_c) == (("power cap", "heat (hardware)"), 91)
    assert (second.ecc_errors, second.pages_pending) == (3, True)


def test_a_process_on_a_gpu_is_named_with_what_it_holds(tmp_path: Path) -> None:
    held = A100 | {"processes": f"{os.getpid()} {30 * 2**30}"}
    (gpu,) = told(machine(tmp_path / "held", held)).gpus
    (process,) = gpu.processes
    assert (process.pid, process.used_bytes) == (os.getpid(), 32_212_254_720)  # 30 x 2^30
    assert "python" in process.command
    assert gpu.free_bytes == 53_687_091_200  # 50 x 2^30


def test_the_slices_of_a_divided_gpu_are_told_and_empty_places_are_not(tmp_path: Path) -> None:
    part = {"name": "NVIDIA A100-SXM4-80GB MIG 3g.40gb", "total": 40 * 2**30}
    divided = A100 | {
        "mig": 1,
        "slices": 7,  # so many places there are; two are taken
        "slice0": part | {"uuid": "MIG-1111"},
        "slice4": part | {"uuid": "MIG-2222"},
    }
    (gpu,) = told(machine(tmp_path / "mig", divided)).gpus
    assert gpu.mig
    assert [(each.uuid, each.free_bytes) for each in gpu.slices] == [
        ("MIG-1111", 42_949_672_960),
        ("MIG-2222", 42_949_672_960),
    ]


def test_what_a_gpu_does_not_tell_is_unknown(tmp_path: Path) -> None:
    shy = {"name": "NVIDIA GB10"}  # its memory is the machine's: NVML tells none
    (gpu,) = told(machine(tmp_path / "shy", shy)).gpus
    assert gpu.name == "NVIDIA GB10"
    unknown = (gpu.uuid, gpu.total_bytes, gpu.free_bytes, gpu.persistence, gpu.sm_mhz, gpu.limits)
    assert unknown == (None,) * 6
    assert (gpu.mig, gpu.ecc_errors, gpu.pages_pending, gpu.busy_share) == (None,) * 4


def test_a_gpu_that_fell_off_the_bus_does_not_hide_the_other(tmp_path: Path) -> None:
    lost = {"refusal": 15}  # NVML_ERROR_GPU_IS_LOST
    first, second = told(machine(tmp_path / "lost", lost, A100)).gpus
    assert first.error == "GPU is lost"
    assert (second.index, second.error, second.sm_mhz) == (1, None, 1410)


def test_a_driver_that_is_not_loaded_is_a_fact(tmp_path: Path) -> None:
    write(tmp_path / "none", {"refusal": 9})  # NVML_ERROR_DRIVER_NOT_LOADED
    found = told(tmp_path / "none")
    assert (found.error, found.gpus) == ("Driver Not Loaded", ())


def test_without_the_library_there_are_no_gpus(tmp_path: Path) -> None:
    found = told(tmp_path / "nothing", LD_LIBRARY_PATH=str(tmp_path))
    assert (found.error, found.gpus, found.driver) == ("NVML Shared Library Not Found", (), None)


def test_what_the_engine_will_inherit_is_told(tmp_path: Path) -> None:
    folder = machine(tmp_path / "one", A100)
    assert told(folder).visible is None
    assert told(folder, CUDA_VISIBLE_DEVICES="").visible == ""
    assert told(folder, "gpus('1')", CUDA_VISIBLE_DEVICES="0").visible == "1"


def test_persistence_is_switched_on_and_a_refusal_told(tmp_path: Path) -> None:
    folder = machine(tmp_path / "one", A100 | {"persistence": 0})
    assert told(folder, "(keep_awake(0), gpus().gpus[0].persistence)") == (None, True)
    assert told(machine(tmp_path / "lost", {"refusal": 15}), "keep_awake(0)") == "GPU is lost"


def test_graphics_devices_on_the_bus_are_counted_whatever_the_driver_does(tmp_path: Path) -> None:
    devices = {
        "0000:00:02.0": ("0x8086", "0x030000"),  # another maker's display
        "0000:17:00.0": ("0x10de", "0x030200"),  # a compute card
        "0000:17:00.1": ("0x10de", "0x040300"),  # the sound of a card
        "0000:65:00.0": ("0x10de", "0x030000"),  # a card with a display
    }
    for name, (vendor, kind) in devices.items():
        write(tmp_path / name, {"vendor": vendor, "class": kind})
    assert on_the_bus(tmp_path) == 2
    assert on_the_bus(tmp_path / "none") is None
