"""Rules over GPUs: presence, room, sleep, clocks, errors, slices; and which of them the engine will see."""

from dataclasses import replace
from typing import Any

import pytest

from toolkit.serving.fit.facts import Engine, Facts, Gpu, GpuProcess, Gpus, Slice
from toolkit.serving.fit.gpu_checks import checks, visible
from toolkit.serving.fit.needs import Needs
from toolkit.serving.outcome import Check

GIB = 2**30
GPU = Gpu(
    index=0,
    name="NVIDIA A100-SXM4-80GB",
    uuid="GPU-aaaa",
    total_bytes=80 * GIB,
    free_bytes=80 * GIB,
    processes=(),
    persistence=True,
    sm_mhz=1410,
    sm_max_mhz=1410,
    busy_share=0.0,
    limits=(),
    mig=False,
    ecc_errors=0,
    pages_pending=False,
    compute_mode=0,
)
SECOND = replace(GPU, index=1, uuid="GPU-bbbb")
NEIGHBOUR = GpuProcess(pid=77, used_bytes=40 * GIB, command="VLLM::EngineCore")


def judged(facts: Facts, needs: Needs | None = None) -> dict[str, Check]:
    return {check.check: check for check in checks(facts, needs or Needs())}


def with_gpu(**changes: Any) -> Facts:
    return Facts(
        root=True, gpus=Gpus(driver="580.65.06", cuda=(13, 0), gpus=(replace(GPU, **changes),))
    )


def test_a_healthy_gpu_has_nothing_to_fix() -> None:
    found = judged(with_gpu())
    assert set(found) == {"gpu", "gpu_0_memory", "gpu_0_persistence", "gpu_0_clocks", "gpu_0_ecc"}
    assert {check.status for check in found.values()} == {"ok"}


def test_a_gpu_is_not_missed_where_none_is_asked_for() -> None:
    found = judged(Facts(gpus=Gpus(error="NVML Shared Library Not Found")), Needs(gpu=False))
    assert [check.status for check in found.values()] == ["ok"]


@pytest.mark.parametrize(
    ("facts", "fix"),
    [
        (
            Facts(gpus=Gpus(error="NVML Shared Library Not Found", on_the_bus=0)),
            "toolkit serve --sim gptq-int4",
        ),
        (Facts(gpus=Gpus(error="NVML Shared Library Not Found")), "toolkit serve --sim gptq-int4"),
        (
            Facts(gpus=Gpus(error="NVML Shared Library Not Found", on_the_bus=4)),
            "sudo apt-get install -y nvidia-driver",
        ),
        (
            Facts(
                gpus=Gpus(error="NVML Shared Library Not Found", on_the_bus=4), container="docker"
            ),
            "docker run --gpus all --ipc=host",
        ),
        (Facts(gpus=Gpus(error="Driver Not Loaded", on_the_bus=1)), "sudo modprobe nvidia"),
        (
            Facts(gpus=Gpus(error="RM has detected an NVML/RM version mismatch.", on_the_bus=1)),
            "sudo reboot",
        ),
    ],
)
def test_no_gpu_fails_with_the_way_out_that_fits_the_reason(facts: Facts, fix: str) -> None:
    found = judged(facts)
    assert set(found) == {"gpu"}
    assert (found["gpu"].status, found["gpu"].fix) == ("fail", fix)
    assert (facts.gpus.error or "") in found["gpu"].why


def test_a_vllm_that_was_built_for_the_cpu_serves_without_a_gpu() -> None:
    engine = Engine(command="vllm", path="/v/bin/vllm", version="0.32.0+cpu", torch="2.13.0+cpu")
    facts = Facts(gpus=Gpus(error="NVML Shared Library Not Found"), engine=engine)
    assert judged(facts)["gpu"].status == "warn"
    built = replace(facts, engine=replace(engine, cuda="12.8"))
    assert judged(built)["gpu"].status == "fail"


def test_without_nvidias_binding_nobody_knows() -> None:
    found = judged(Facts(gpus=Gpus(error="`nvidia-ml-py` is missing: No module named 'pynvml'")))
    assert (found["gpu"].status, found["gpu"].fix) == ("warn", "pip install nvidia-ml-py")


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (None, [0, 1]),
        ("0,1", [0, 1]),
        ("1", [1]),
        ("1,0", [1, 0]),
        (" 1 , 0 ", [1, 0]),
        ("0,0", [0]),
        ("0,7,1", [0]),  # CUDA stops at the first that is not there
        ("", []),
        ("-1", []),
        ("GPU-bb", [1]),
        ("GPU-xx", []),
        ("MIG-2", [1]),
        ("NoDevFiles", []),
    ],
)
def test_the_engine_sees_the_gpus_that_its_variable_leaves(
    words: str | None, seen: list[int]
) -> None:
    sliced = replace(
        SECOND, mig=True, slices=(Slice(uuid="MIG-1", name="a"), Slice(uuid="MIG-2", name="b"))
    )
    found = visible(Gpus(gpus=(GPU, sliced), visible=words))
    assert [gpu.index for gpu in found] == seen


def test_hidden_gpus_are_told_and_only_the_shells_own_variable_is_unset() -> None:
    facts = Facts(gpus=Gpus(gpus=(GPU, SECOND), visible="-1"))
    found = judged(facts)["gpu"]
    assert (found.status, found.fix) == ("fail", "unset CUDA_VISIBLE_DEVICES")
    assert "CUDA_VISIBLE_DEVICES is `-1`, which hides all 2 GPUs" in found.why
    assert judged(facts, Needs(gpus="-1"))["gpu"].fix is None  # a stack file says so


def test_only_gpus_that_the_engine_will_see_are_judged() -> None:
    broken = replace(GPU, error="GPU is lost")
    facts = Facts(gpus=Gpus(gpus=(broken, SECOND), visible="1"))
    assert {name for name in judged(facts) if name.startswith("gpu_0")} == set()
    assert "gpu_1_memory" in judged(facts)


def test_vllm_asks_for_its_share_of_all_memory_and_ends_where_less_is_free() -> None:
    # 0.92 x 80 = 73.6 GiB
    assert judged(with_gpu(free_bytes=74 * GIB))["gpu_0_memory"].status == "ok"
    short = judged(with_gpu(free_bytes=73 * GIB))["gpu_0_memory"]
    assert (short.status, short.fix) == ("fail", "fuser -v /dev/nvidia*")
    half = judged(with_gpu(free_bytes=40 * GIB), Needs(gpu_memory_utilization=0.46))["gpu_0_memory"]
    assert half.status == "ok"  # 0.46 x 80 = 36.8 GiB


def test_neighbours_on_a_gpu_are_named_and_ended_where_they_can_be_seen() -> None:
    taken = judged(with_gpu(free_bytes=40 * GIB, processes=(NEIGHBOUR,)))["gpu_0_memory"]
    assert (taken.status, taken.fix) == ("fail", "kill 77")
    assert "`VLLM::EngineCore` (pid 77, 40 GiB) holds the rest" in taken.why
    small = GpuProcess(
        pid=78, used_bytes=GIB, command=None
    )  # of another container: here 78 is somebody else
    beside = judged(with_gpu(free_bytes=79 * GIB, processes=(small,)))["gpu_0_memory"]
    assert (beside.status, beside.fix) == ("warn", "fuser -v /dev/nvidia*")


def test_weights_that_are_larger_than_what_vllm_may_use_are_sent_to_the_planner() -> None:
    needs = Needs(gpu_bytes=74 * GIB, model="big")
    found = judged(with_gpu(), needs)["gpu_0_memory"]
    assert (found.status, found.fix) == ("fail", "toolkit plan big")
    assert judged(with_gpu(), replace(needs, gpu_bytes=73 * GIB))["gpu_0_memory"].status == "ok"


@pytest.mark.parametrize(
    ("changes", "status", "told"),
    [
        ({}, "ok", "1,410 of 1,410 MHz"),
        ({"sm_mhz": 1395}, "ok", "1,395"),  # one step below
        ({"sm_mhz": 210}, "warn", "while it idles, so its clock is not locked"),
        (
            {"sm_mhz": 1200, "busy_share": 0.9, "limits": ("power cap",)},
            "warn",
            "under load (power cap)",
        ),
        ({"sm_mhz": 1410, "limits": ("heat (software)",)}, "warn", "held down by heat (software)"),
        ({"sm_mhz": 1410, "limits": ("clocks set by somebody",)}, "ok", "1,410"),
    ],
)
def test_a_clock_that_is_not_locked_or_held_down_is_told(
    changes: dict[str, Any], status: str, told: str
) -> None:
    found = judged(with_gpu(**changes))["gpu_0_clocks"]
    assert found.status == status
    assert told in found.why
    assert found.fix == (None if status == "ok" else "nvidia-smi -i 0 -lgc 1410,1410")


def test_each_gpu_is_locked_at_its_own_highest_clock() -> None:
    facts = replace(with_gpu(sm_mhz=345, sm_max_mhz=1980), root=False)
    assert judged(facts)["gpu_0_clocks"].fix == "sudo nvidia-smi -i 0 -lgc 1980,1980"


def test_broken_memory_waits_for_a_reset() -> None:
    pending = judged(with_gpu(pages_pending=True))["gpu_0_ecc"]
    assert (pending.status, pending.fix) == ("fail", "nvidia-smi -i 0 --gpu-reset")
    counted = judged(with_gpu(ecc_errors=2))["gpu_0_ecc"]
    assert counted.status == "warn"
    assert "gpu_0_ecc" not in judged(with_gpu(ecc_errors=None))  # a card without ECC


def test_a_gpu_that_does_not_answer_says_nothing_else() -> None:
    found = judged(with_gpu(error="GPU is lost"))
    assert set(found) == {"gpu", "gpu_0"}
    assert found["gpu_0"].status == "fail"


def test_what_a_gpu_does_not_tell_is_unknown() -> None:
    shy = with_gpu(total_bytes=None, free_bytes=None, persistence=None, sm_mhz=None)
    found = judged(shy)
    unknown = [found[f"gpu_0_{name}"] for name in ("memory", "persistence", "clocks")]
    assert [check.status for check in unknown] == ["warn"] * 3
    assert all(check.why.startswith("unknown: ") for check in unknown)


def test_each_slice_that_the_engine_may_use_is_judged_by_its_own_memory() -> None:
    slices = (
        Slice(uuid="MIG-1", name="MIG 3g.40gb", total_bytes=40 * GIB, free_bytes=40 * GIB),
        Slice(
            uuid="MIG-2",
            name="MIG 3g.40gb",
            total_bytes=40 * GIB,
            free_bytes=GIB,
            processes=(NEIGHBOUR,),
        ),
    )
    divided = with_gpu(mig=True, slices=slices)
    found = judged(divided)
    assert "gpu_0_memory" not in found
    assert found["gpu_0_slice_0_memory"].status == "ok"
    assert found["gpu_0_slice_1_memory"].status == "fail"
    first = replace(divided, gpus=replace(divided.gpus, visible="MIG-1"))
    assert "gpu_0_slice_1_memory" not in judged(first)


def test_a_divided_gpu_without_slices_fails() -> None:
    found = judged(with_gpu(mig=True))["gpu_0_mig"]
    assert (found.status, found.fix) == ("fail", "nvidia-smi -i 0 -mig 0")
