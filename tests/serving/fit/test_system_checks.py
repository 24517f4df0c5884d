"""Rules over open files, memory, /dev/shm, cores and clock; the machine that they judge is made up."""

from dataclasses import replace

import pytest

from toolkit.serving.fit.checks import Check, checks, is_fit
from toolkit.serving.fit.facts import (
    Clock,
    Cpu,
    Disk,
    Facts,
    Folder,
    Gpu,
    Gpus,
    Memory,
    Network,
    OpenFiles,
    Orphan,
    Port,
    SharedMemory,
)
from toolkit.serving.fit.needs import Needs, open_files

GIB = 2**30
SIM = Needs(gpu=False, vllm=None)
HEALTHY = Facts(
    root=True,
    open_files=OpenFiles(soft=65_535, hard=65_535),
    disks=(
        Disk(role="models", path="/m", total_bytes=900 * GIB, free_bytes=500 * GIB, writable=True),
    ),
    memory=Memory(total_bytes=64 * GIB, available_bytes=50 * GIB),
    shared=SharedMemory(total_bytes=32 * GIB, free_bytes=32 * GIB),
    ports=(Port(number=8000, reserved=False),),
    network=Network(
        ephemeral_low=32_768,
        ephemeral_high=60_999,
        tw_reuse=2,
        somaxconn=4096,
        syn_backlog=4096,
        syncookies=1,
    ),
    clock=Clock(synchronised=True, largest_error_ms=20.0),
    cpu=Cpu(cores=16, usable=16, governors=("performance",)),
)


def one(code: str, facts: Facts, needs: Needs = SIM) -> Check:
    (found,) = (check for check in checks(facts, needs) if check.check == code)
    return found


def test_a_healthy_machine_has_nothing_to_fix() -> None:
    found = checks(HEALTHY, SIM)
    assert {check.status for check in found} == {"ok"}
    assert {check.fix for check in found} == {None}
    assert is_fit(found)


def test_what_is_unknown_is_said_and_never_ok() -> None:
    found = checks(Facts(), Needs(vllm=None))
    told = {check.check: check for check in found if check.check != "gpu"}
    assert {check.status for check in told.values()} <= {"warn", "fail"}
    doubtful = [check for check in told.values() if check.status == "warn"]
    assert all(check.why.startswith("unknown: ") for check in doubtful)
    assert {"open_files", "memory", "cpu", "clock", "somaxconn"} <= {
        each.check for each in doubtful
    }


def test_users_are_worth_two_files_each() -> None:
    assert open_files(Needs(users=256)) == 1536  # 2 x 256 + 1,024
    assert open_files(Needs(users=256, open_files=99)) == 99


@pytest.mark.parametrize(
    ("facts", "fix"),
    [
        (Facts(open_files=OpenFiles(soft=1024, hard=None)), "ulimit -n 65535"),
        (Facts(open_files=OpenFiles(soft=1024, hard=1_048_576)), "ulimit -n 65535"),
        (Facts(open_files=OpenFiles(soft=1024, hard=20_000)), "ulimit -n 20000"),
        (Facts(open_files=OpenFiles(soft=1024, hard=1024), may_lift=True), "ulimit -n 65535"),
        (
            Facts(open_files=OpenFiles(soft=1024, hard=1024)),
            "sudo prlimit --pid $$ --nofile=65535:65535",
        ),
        (
            # root of a container has no right to lift what the container was started with
            Facts(open_files=OpenFiles(soft=1024, hard=1024), root=True, container="docker"),
            "docker run --ulimit nofile=65535:65535",
        ),
    ],
)
def test_the_limit_of_open_files_is_lifted_as_far_as_this_user_may(facts: Facts, fix: str) -> None:
    found = one("open_files", facts)
    assert (found.status, found.fix) == ("fail", fix)


def test_a_pod_is_told_what_it_lacks_without_a_command() -> None:
    pod = replace(HEALTHY, container="kubernetes", open_files=OpenFiles(soft=1024, hard=1024))
    found = one("open_files", pod)
    assert (found.status, found.fix) == ("fail", None)


def test_more_users_than_65535_files_serve_get_what_they_need() -> None:
    found = one("open_files", HEALTHY, replace(SIM, users=50_000))
    assert found.status == "fail"
    assert found.fix == "prlimit --pid $$ --nofile=101024:101024"  # 2 x 50,000 + 1,024


def test_no_limit_of_open_files_is_fine() -> None:
    assert one("open_files", Facts(open_files=OpenFiles(soft=None, hard=None))).status == "ok"


def test_the_containers_memory_counts_where_it_is_less_than_the_machines() -> None:
    tight = replace(HEALTHY.memory, limit_bytes=4 * GIB, limit_used_bytes=3 * GIB)
    found = one("memory", replace(HEALTHY, memory=tight))
    assert found.status == "fail"
    assert found.why.startswith(
        "1 GiB free of the 4 GiB that this container may use (the machine has 64 GiB)"
    )
    wide = replace(HEALTHY.memory, limit_bytes=100 * GIB, limit_used_bytes=GIB)
    assert one("memory", replace(HEALTHY, memory=wide)).why.startswith("50 GiB free; ")


def test_a_model_that_the_cpu_serves_must_fit_the_memory() -> None:
    assert one("memory", HEALTHY, replace(SIM, memory_bytes=50 * GIB)).status == "ok"
    assert one("memory", HEALTHY, replace(SIM, memory_bytes=50 * GIB + 1)).status == "fail"


def test_engines_without_a_server_are_named_and_ended() -> None:
    orphans = (
        Orphan(pid=71, command="VLLM::EngineCore", used_bytes=3 * GIB),
        Orphan(pid=72, command="VLLM::Worker", used_bytes=GIB),
    )
    found = one("orphans", replace(HEALTHY, orphans=orphans))
    assert (found.status, found.fix) == ("warn", "kill -9 71 72")
    assert "VLLM::EngineCore (71), VLLM::Worker (72); they hold 4 GiB" in found.why
    assert one("orphans", replace(HEALTHY, orphans=orphans, root=False)).fix == "sudo kill -9 71 72"


@pytest.mark.parametrize(
    ("free", "status"),
    [(2 * GIB, "ok"), (2 * GIB - 1, "warn"), (GIB // 2, "warn"), (GIB // 2 - 1, "fail")],
)
def test_dev_shm_wants_room_for_one_server_and_more_for_several_gpus(
    free: int, status: str
) -> None:
    shared = SharedMemory(total_bytes=4 * GIB, free_bytes=free)
    assert one("shm", replace(HEALTHY, shared=shared)).status == status


def test_dev_shm_is_made_larger_or_tidied_whichever_helps() -> None:
    small = replace(HEALTHY, shared=SharedMemory(total_bytes=GIB // 16, free_bytes=GIB // 16))
    assert one("shm", small).fix == "mount -o remount,size=50% /dev/shm"
    assert one("shm", replace(small, root=False)).fix == "sudo mount -o remount,size=50% /dev/shm"
    assert one("shm", replace(small, container="docker")).fix == "docker run --ipc=host"
    inside = replace(small, container="docker", may_mount=True)
    assert one("shm", inside).fix == "mount -o remount,size=50% /dev/shm"
    left = (Folder(path="/dev/shm/psm_1", used_bytes=3 * GIB),)
    full = replace(HEALTHY, shared=SharedMemory(total_bytes=3 * GIB, free_bytes=0, leftovers=left))
    assert one("shm", full).fix == "rm -f -- /dev/shm/psm_1"


def test_leftovers_are_quoted_for_the_shell_and_many_get_one_word() -> None:
    odd = (Folder(path="/dev/shm/psm_a b;c", used_bytes=4096),)
    shared = replace(HEALTHY.shared, leftovers=odd)
    found = one("shm_leftovers", replace(HEALTHY, shared=shared))
    assert (found.status, found.fix) == ("warn", "rm -f -- '/dev/shm/psm_a b;c'")
    many = tuple(Folder(path=f"/dev/shm/psm_{n}", used_bytes=4096) for n in range(21))
    found = one("shm_leftovers", replace(HEALTHY, shared=replace(shared, leftovers=many)))
    assert found.fix == "toolkit preflight --fix"


def test_files_of_others_are_unknown_to_a_plain_user() -> None:
    shared = replace(HEALTHY.shared, unclear=2)
    found = one("shm_leftovers", replace(HEALTHY, shared=shared, root=False))
    assert (found.status, found.fix) == (
        "warn",
        'sudo "$(command -v toolkit)" preflight',  # sudo knows no virtual environment
    )
    assert found.why.startswith("unknown: 2 files")


@pytest.mark.parametrize(
    ("cpu", "status", "told"),
    [
        (Cpu(cores=16, usable=16, governors=()), "ok", "16 cores may be used"),
        (Cpu(cores=16, usable=3, governors=()), "ok", "3 of 16 cores"),
        (Cpu(cores=16, usable=16, quota_cores=2.5, governors=()), "warn", "2.5 of 16 cores"),
        (Cpu(cores=2, usable=2, governors=()), "warn", "2 cores may be used"),
    ],
)
def test_the_cores_that_may_be_used_count_and_not_those_that_there_are(
    cpu: Cpu, status: str, told: str
) -> None:
    found = one("cpu", replace(HEALTHY, cpu=cpu), Needs(gpu=False))
    assert found.status == status
    assert found.why.startswith(told)


def test_each_gpu_wants_a_core_for_its_worker() -> None:
    four = Gpus(gpus=tuple(Gpu(index=index) for index in range(4)))
    facts = replace(HEALTHY, gpus=four, cpu=Cpu(cores=5, usable=5, governors=()))
    assert "vLLM runs 6 processes" in one("cpu", facts, Needs(vllm=None)).why  # 2 + 4
    assert one("cpu", facts, Needs(vllm=None)).status == "warn"
    # what CUDA_VISIBLE_DEVICES hides has no worker
    hidden = replace(facts, gpus=replace(four, visible="1"))
    assert one("cpu", hidden, Needs(vllm=None)).status == "ok"  # 2 + 1


def test_cores_are_too_few_for_vllm_and_enough_for_the_simulator() -> None:
    facts = replace(HEALTHY, cpu=Cpu(cores=2, usable=2, governors=()))
    assert one("cpu", facts, SIM).status == "ok"
    on_cpu = one("cpu", facts, Needs(gpu=False))
    assert (on_cpu.status, "GPU" in on_cpu.why) == ("warn", False)


def test_a_policy_that_saves_power_is_changed_as_root() -> None:
    slow = replace(
        HEALTHY, root=False, cpu=Cpu(cores=8, usable=8, governors=("performance", "powersave"))
    )
    found = one("cpu_governor", slow)
    assert found.status == "warn"
    assert found.fix == (
        "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
    )


def test_a_clock_that_nobody_keeps_is_set_by_whom_there_is() -> None:
    wrong = replace(HEALTHY, root=False, clock=Clock(synchronised=False, keeper="timedatectl"))
    found = one("clock", wrong)
    assert (found.status, found.fix) == ("warn", "sudo timedatectl set-ntp true")
    nobody = replace(wrong, clock=Clock(synchronised=False))
    assert one("clock", nobody).fix == "sudo apt-get install -y chrony"
    assert one("clock", replace(wrong, container="docker")).fix is None  # it is the host's
