"""What `toolkit preflight --json` says of machines that are made up: GPUs by a stand-in for NVIDIA's library, the rest in namespaces."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from contract.harness.nvml import A100, environment, machine, needs_gcc
from contract.harness.planted import TOOLKIT, needs_unshare, rows

GIB = 2**30


def checks(text: str) -> dict[str, dict[str, Any]]:
    return {row["check"]: row for row in map(json.loads, text.splitlines())}


def preflight(*words: object, env: Mapping[str, str] | None = None) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [TOOLKIT, "preflight", "--json", "--port", "9", *map(str, words)],
        env=None if env is None else dict(env),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    found = checks(done.stdout)
    # one check fails, the command fails
    failed = any(each["status"] == "fail" for each in found.values())
    assert done.returncode == int(failed), done.stderr
    return found


def inside(script: str, folder: Path, *words: str, pids: bool = False) -> dict[str, dict[str, Any]]:
    """In a mount namespace of its own, after a script of the shell."""
    more = ("--pid", "--fork", "--mount-proc") if pids else ()
    out, file = folder / "out", folder / "script"
    file.write_text(f'exec 3>"{out}"\n{script}\n"$TOOLKIT" preflight --json "$@" >&3 || true\n')
    done = subprocess.run(
        ["unshare", "--mount", *more, "bash", file, *words],
        env=os.environ | {"TMPDIR": str(folder), "TOOLKIT": TOOLKIT},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return rows(out)


# --- GPUs ---------------------------------------------------------------------------------------------------


@needs_gcc
def test_a_healthy_gpu_has_nothing_to_fix(tmp_path: Path) -> None:
    found = preflight(env=environment(machine(tmp_path, A100)))
    gpu = {name: each for name, each in found.items() if name.startswith("gpu")}
    assert set(gpu) == {"gpu", "gpu_0_memory", "gpu_0_persistence", "gpu_0_clocks", "gpu_0_ecc"}
    assert {(each["status"], each["fix"]) for each in gpu.values()} == {("ok", None)}
    assert gpu["gpu"]["why"] == (
        "1 x NVIDIA A100-SXM4-80GB; driver 580.65.06, runs CUDA up to 13.0"
    )


@needs_gcc
def test_broken_memory_wants_a_reset_and_a_lost_gpu_hides_no_other(tmp_path: Path) -> None:
    broken, counted, lost = A100 | {"rows_pending": 1}, A100 | {"ecc": 3}, {"refusal": 15}
    found = preflight(env=environment(machine(tmp_path, broken, counted, lost, A100)))
    states = {name: found[name]["status"] for name in ("gpu_0_ecc", "gpu_1_ecc", "gpu_3_ecc")}
    assert states == {"gpu_0_ecc": "fail", "gpu_1_ecc": "warn", "gpu_3_ecc": "ok"}
    assert found["gpu_0_ecc"]["fix"].endswith("nvidia-smi -i 0 --gpu-reset")
    assert "counted 3 uncorrected" in found["gpu_1_ecc"]["why"]
    assert found["gpu_2"]["why"] == "GPU 2 does not answer: GPU is lost"
    assert not [name for name in found if name.startswith("gpu_2_")]


@needs_gcc
def test_what_a_gpu_does_not_tell_is_unknown_and_no_fault(tmp_path: Path) -> None:
    # its memory is the machine's: NVML tells none
    found = preflight(env=environment(machine(tmp_path, {"name": "NVIDIA GB10"})))
    for name in ("memory", "persistence", "clocks"):
        assert found[f"gpu_0_{name}"]["status"] == "warn"
        assert found[f"gpu_0_{name}"]["why"].startswith("unknown: ")
    assert "gpu_0_ecc" not in found


@needs_gcc
@pytest.mark.parametrize(
    ("visible", "seen"),
    [("1,0", {0, 1}), ("1", {1}), (" 1 ", {1}), ("0,7,1", {0}), ("GPU-bb", {1}), ("MIG-2", {1})],
)
def test_the_gpus_that_the_variable_leaves_are_judged(
    tmp_path: Path, visible: str, seen: set[int]
) -> None:
    part = {"name": "MIG 3g.40gb", "total": 40 * GIB}
    second = A100 | {
        "uuid": "GPU-bbbb",
        "mig": 1,
        "slices": 7,
        "slice0": part | {"uuid": "MIG-1"},
        "slice4": part | {"uuid": "MIG-2"},
    }
    found = preflight(
        env=environment(machine(tmp_path, A100, second), CUDA_VISIBLE_DEVICES=visible)
    )
    # CUDA, too, stops at the first word that names none
    judged = {int(name.split("_")[1]) for name in found if name.startswith("gpu_")}
    assert judged == seen
    slices = {name for name in found if "_slice_" in name}
    # a whole GPU by its name: all of its slices
    wanted = {1} if visible.startswith("MIG") else {0, 1} if 1 in seen else set()
    assert slices == {f"gpu_1_slice_{number}_memory" for number in wanted}


@needs_gcc
def test_a_slice_is_judged_by_its_own_memory_and_a_neighbour_is_named(tmp_path: Path) -> None:
    full = {"name": "MIG 3g.40gb", "uuid": "MIG-2", "total": 40 * GIB}
    full |= {"processes": f"{os.getpid()} {39 * GIB}"}
    divided = A100 | {"mig": 1, "slices": 2, "slice0": full | {"processes": None}, "slice1": full}
    env = environment(machine(tmp_path, divided))
    # without the variable every slice counts
    found = preflight(env=env)
    assert found["gpu_0_mig"]["status"] == "ok"
    free, taken = found["gpu_0_slice_0_memory"], found["gpu_0_slice_1_memory"]
    assert (free["status"], taken["status"]) == ("ok", "fail")
    assert taken["fix"] == f"kill {os.getpid()}"
    assert f"(pid {os.getpid()}, 39 GiB) holds the rest" in taken["why"]
    assert "vLLM asks for 36.8 GiB" in taken["why"]  # 0.92 x 40


@needs_gcc
def test_a_small_neighbour_is_doubtful(tmp_path: Path) -> None:
    small = A100 | {"processes": f"{os.getpid()} {GIB}"}
    found = preflight(env=environment(machine(tmp_path, small)))["gpu_0_memory"]
    assert (found["status"], found["fix"]) == ("warn", f"kill {os.getpid()}")
    assert "both slow each other" in found["why"]


@needs_gcc
@pytest.mark.parametrize(
    ("changes", "status", "told"),
    [
        ({"sm": 1395}, "ok", "1,395 of 1,410 MHz"),  # one step of 15 MHz below
        ({"sm": 1200, "busy": 90, "reasons": "0x4"}, "warn", "under load (power cap)"),
        ({"reasons": "0x20"}, "warn", "held down by heat (software)"),
        ({"reasons": "0x2"}, "ok", "1,410 of 1,410 MHz"),  # clocks set by somebody: the cure
    ],
)
def test_a_clock_that_drifts_or_is_held_down_is_doubtful(
    tmp_path: Path, changes: dict[str, Any], status: str, told: str
) -> None:
    found = preflight(env=environment(machine(tmp_path, A100 | changes)))["gpu_0_clocks"]
    assert found["status"] == status
    assert told in found["why"]


@needs_gcc
def test_weights_are_shared_by_gpus_and_sent_to_the_planner_where_they_are_too_large(
    tmp_path: Path,
) -> None:
    env = environment(machine(tmp_path / "nvml", A100, A100)) | {"HF_HUB_CACHE": str(tmp_path)}
    weights = ("--model", "x/big", "--weights", f"{2 * 74}GiB")
    # vLLM may use 73.6 of 80 GiB; two GPUs take half each
    found = preflight(*weights, "--tp", 2, env=env)["gpu_0_memory"]
    assert (found["status"], found["fix"]) == ("fail", "toolkit plan x/big")
    found = preflight("--model", "x/big", "--weights", f"{2 * 73}GiB", "--tp", 2, env=env)
    assert found["gpu_0_memory"]["status"] == "ok"


def test_without_a_gpu_no_command_is_said_to_mend_it(tmp_path: Path) -> None:
    nothing = dict(os.environ) | {"LD_LIBRARY_PATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    found = preflight(env=nothing)["gpu"]
    assert found["status"] == "fail"
    # with NVIDIA's hardware on the bus the way out is a driver's
    assert found["fix"] is None or "on the PCI bus" in found["why"]
    assert preflight("--sim", env=nothing)["gpu"]["status"] == "ok"


@needs_gcc
def test_a_gpu_that_sleeps_is_woken_by_fix_and_its_clock_is_left(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        # CI runs as root, and fails on a skip
        pytest.skip("switches persistence on, which root may: run it as root")
    folder = machine(tmp_path / "nvml", A100 | {"persistence": 0, "sm": 345})
    found = preflight("--fix", env=environment(folder))
    assert found["gpu_0_persistence"]["status"] == "ok"
    assert found["gpu_0_persistence"]["repair"] == "GPU 0 stays awake now"
    assert found["gpu_0_clocks"]["status"] == "warn"
    assert found["gpu_0_clocks"]["fixed"] is False
    assert found["gpu_0_clocks"]["repair"] == "left to you: nvidia-smi -i 0 -lgc 1410,1410"


# --- the installed vLLM ---------------------------------------------------------------------------------------


def installed(folder: Path, torch: str, vllm: str | None = "0.32.0") -> str:
    """An environment as pip writes it; its Python is this one with one more folder."""
    packages = folder / "packages"
    for name, version in (("vllm", vllm), ("torch", "2.13.0")):
        if version:
            about = packages / f"{name}-{version}.dist-info" / "METADATA"
            about.parent.mkdir(parents=True)
            about.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (packages / "torch").mkdir()
    (packages / "torch/__init__.py").write_text("raise SystemExit('it was imported')\n")
    (packages / "torch/version.py").write_text(torch)
    (folder / "bin").mkdir()
    python, script = folder / "bin" / "python", folder / "bin" / "vllm"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}" exec "{sys.executable}" "$@"\n')
    script.write_text(f"#!{python}\nraise SystemExit('it was started')\n")
    for file in (python, script):
        file.chmod(0o755)
    return str(script)


@needs_gcc
@pytest.mark.parametrize(
    ("torch", "status"),
    [
        ("cuda = '13.0'\n", "ok"),
        ("cuda = '12.8'\n", "ok"),
        ("cuda = '13.1'\n", "warn"),  # within a major version what is compiled runs, but no PTX
        ("cuda = '14.0'\n", "fail"),
        ("cuda = None\n", "fail"),  # a build for the CPU
        ("cuda = 'new'\n", "warn"),
        ("raise ValueError('odd')\n", "warn"),
    ],
)
def test_the_cuda_of_the_build_is_compared_with_the_drivers(
    tmp_path: Path, torch: str, status: str
) -> None:
    script = installed(tmp_path, torch)
    found = preflight("--vllm", script, env=environment(machine(tmp_path / "nvml", A100)))
    assert found["vllm"]["why"] == f"vLLM 0.32.0 with PyTorch 2.13.0 at `{script}`"
    assert (found["vllm"]["status"], found["vllm_cuda"]["status"]) == ("ok", status)
    python = tmp_path / "bin" / "python"
    wanted = f"--python {python} --torch-backend=auto --reinstall vllm"
    is_named = wanted in (found["vllm_cuda"]["fix"] or "")
    assert is_named == (status == "fail" or "13.1" in torch)


def test_a_build_for_the_cpu_serves_without_a_gpu_slowly(tmp_path: Path) -> None:
    nothing = dict(os.environ) | {"LD_LIBRARY_PATH": str(tmp_path)}
    script = installed(tmp_path, "cuda = None\n")
    found = preflight("--vllm", script, env=nothing)["gpu"]
    if "on the PCI bus" in found["why"]:
        # such hardware cannot be taken out for a test; CI has none, and fails on a skip
        pytest.skip("this machine has NVIDIA's hardware and hides its library")
    assert found["status"] == "warn"
    assert "built for the CPU" in found["why"]


def test_a_vllm_that_is_broken_or_no_script_is_told_as_that(tmp_path: Path) -> None:
    script = installed(tmp_path / "bare", "cuda = None\n", vllm=None)
    found = preflight("--cpu", "--vllm", script)["vllm"]
    assert (found["status"], "its Python has no package `vllm`" in found["why"]) == ("fail", True)
    (tmp_path / "bare" / "bin" / "python").write_text("#!/bin/sh\necho broken >&2; exit 3\n")
    found = preflight("--cpu", "--vllm", script)["vllm"]
    assert (found["status"], "failed: broken" in found["why"]) == ("fail", True)
    found = preflight("--cpu", "--vllm", "/bin/true")["vllm"]
    assert (found["status"], found["why"].startswith("unknown: ")) == ("warn", True)


# --- disks ------------------------------------------------------------------------------------------------------


def test_what_is_in_the_cache_already_is_not_asked_for_again(tmp_path: Path) -> None:
    blob = tmp_path / "models--me--mine" / "blobs" / "w"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"x" * 2**20)
    words = ("--cpu", "--model", "me/mine", "--disk", tmp_path)
    # a mebibyte is there
    assert "3 MiB of weights are to come" in preflight(*words, "--weights", "4MiB")["disk"]["why"]
    assert "of weights" not in preflight(*words, "--weights", "1MiB")["disk"]["why"]
    assert (
        "of weights" in preflight("--cpu", "--weights", "1MiB", "--disk", tmp_path)["disk"]["why"]
    )
    # a folder needs no room; the CPU needs memory for it
    found = preflight("--cpu", "--model", tmp_path, "--weights", "1000000GiB")
    assert "of weights" not in found["disk"]["why"]
    assert found["memory"]["status"] == "fail"
    assert preflight("--sim")["memory"]["why"].endswith("; 2 GiB are needed")


def test_the_weights_of_a_known_model_are_the_planners(tmp_path: Path) -> None:
    words = ("--cpu", "--model", "Qwen2.5-7B-Instruct", "--disk", tmp_path)
    # 7,615,616,512 parameters of 2 bytes each
    assert "14.2 GiB of weights are to come" in preflight(*words)["disk"]["why"]
    done = subprocess.run(
        [TOOLKIT, "preflight", "--cpu", "--model", "nobody/knows"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "The size of `nobody/knows` is not known" in done.stderr


@needs_unshare
def test_a_disk_without_room_for_another_file_is_full_whatever_is_free(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    script = f'mount -t tmpfs -o size=1g,nr_inodes=500 tmpfs "{disk}"'
    found = inside(script, tmp_path, "--sim", "--disk", str(disk / "hub"))["disk"]
    assert found["status"] == "fail"
    assert "more files fit" in found["why"]
    assert "never names the disk" in found["why"]
    assert found["fix"] == f"du -xhd2 {disk} | sort -h | tail -20"


@needs_unshare
def test_a_model_that_is_there_may_lie_where_nobody_writes(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    script = f'mount -t tmpfs -o size=64m tmpfs "{disk}"; mount -o remount,ro "{disk}"'
    script += f'; export HF_HUB_CACHE="{disk}/hub"'
    assert inside(script, tmp_path, "--sim")["disk"]["status"] == "ok"
    cache = f'{script}; export VLLM_CACHE_ROOT="{disk}/vllm"'
    found = inside(cache, tmp_path, "--cpu")
    assert (found["disk"]["status"], found["disk"]["fix"]) == (
        "fail",
        f"mount -o remount,rw {disk}",
    )


# --- ports ------------------------------------------------------------------------------------------------------

LOADING = """
import socket
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
input()
"""
SECRETIVE = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
input()
"""


def beside(file: Path, code: str, *words: str) -> dict[str, Any]:
    """What is said of the port of another process."""
    file.write_text(code)
    with subprocess.Popen(
        ["python", file.name, *words],
        executable=sys.executable,
        cwd=file.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        try:
            assert other.stdout is not None
            port = int(other.stdout.readline())
            return preflight("--sim", "--port", port)[f"port_{port}"]
        finally:
            other.kill()


def test_a_server_that_is_bound_and_does_not_listen_yet_takes_its_port(tmp_path: Path) -> None:
    found = beside(tmp_path / "x.py", LOADING)
    assert found["status"] == "fail"
    assert "does not listen yet" in found["why"]


def test_a_holders_keys_are_shown_to_nobody_nor_a_terminals_escapes(tmp_path: Path) -> None:
    words = ("--api-key", "sk-1", "sk-2", "--hf-token=abc", "a\x1b[2J\nb")
    found = beside(tmp_path / "x.py", SECRETIVE, *words)
    assert found["status"] == "fail"
    assert "`python x.py --api-key *** *** --hf-token=*** a [2J b` (pid " in found["why"]


def test_an_address_that_is_not_this_machines_is_refused() -> None:
    found = preflight("--sim", "--host", "192.0.2.1")["port_9"]
    assert found["status"] == "fail"
    assert "`192.0.2.1` cannot be listened on with port 9: EADDRNOTAVAIL" in found["why"]


@needs_unshare
def test_ports_that_the_kernel_lends_out_are_reserved_all_at_once_beside_those_that_are() -> None:
    script = """
        [ -w /proc/sys/net/core/somaxconn ] || mount -t proc proc /proc
        sysctl -qw net.ipv4.ip_local_port_range="30000 60999"
        sysctl -qw net.ipv4.ip_local_reserved_ports=9000-9010
    """
    words = ["--sim", "--port", "40000", "--port", "40001", "--port", "8000"]
    look = f'{script}\n"$0" preflight --json "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "--net", "bash", "-c", look, TOOLKIT, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found = checks(done.stdout)
    wanted = "sysctl -w net.ipv4.ip_local_reserved_ports=9000-9010,40000,40001"
    assert [found[f"port_{port}"]["fix"] for port in (40000, 40001, 8000)] == [wanted, wanted, None]


# --- the machine ------------------------------------------------------------------------------------------------


@needs_unshare
@pytest.mark.parametrize(
    "hidden",
    [
        "mount -t tmpfs tmpfs /proc",  # nothing of the kernel at all
        "mount -t tmpfs tmpfs /sys",
        "umount -l /dev/shm; mount -t tmpfs -o size=4k,nr_inodes=2 tmpfs $TMPDIR",
    ],
)
def test_a_machine_that_hides_everything_is_told_as_unknown_and_never_crashes(
    tmp_path: Path, hidden: str
) -> None:
    found = inside(hidden, tmp_path)
    assert {"open_files", "memory", "port_8000", "somaxconn", "gpu", "clock", "cpu"} <= set(found)
    if "/proc" in hidden:
        unknown = [found[code]["why"] for code in ("memory", "somaxconn", "ephemeral_ports")]
        assert all(why.startswith("unknown: ") for why in unknown)


@needs_unshare
def test_an_engine_whose_server_was_killed_is_an_orphan_with_its_workers(tmp_path: Path) -> None:
    script = """
        # adopted by process 1, which is this shell; the third has a server
        (bash -c '(exec -a VLLM::Worker_TP0 sleep 100) & exec -a VLLM::EngineCore sleep 100' &)
        bash -c '(exec -a VLLM::EngineCore_DP1 sleep 100) & exec -a "vllm serve m" sleep 100' &
        until [ "$(grep -las ^VLLM:: /proc/[0-9]*/cmdline | wc -l)" = 3 ]; do sleep 0.05; done
        until grep -qas "^vllm serve" /proc/[0-9]*/cmdline; do sleep 0.05; done
    """
    found = inside(script, tmp_path, "--sim", pids=True)["orphans"]
    assert found["status"] == "warn"
    assert "2 engine processes without a server: " in found["why"]
    assert "VLLM::EngineCore 100 (" in found["why"]
    assert "VLLM::Worker_TP0 100 (" in found["why"]
    assert len(found["fix"].split()) == len(("kill", "-9", 1, 2))


@needs_unshare
def test_fix_removes_what_nobody_holds_lifts_its_own_limit_and_looks_again(tmp_path: Path) -> None:
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
    found = rows(tmp_path / "out")
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


def test_the_limit_of_open_files_is_lifted_as_far_as_this_user_may() -> None:
    done = subprocess.run(
        ["prlimit", "--nofile=512:2000", TOOLKIT, "preflight", "--sim", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found = checks(done.stdout)["open_files"]
    assert (found["status"], found["fix"]) == ("fail", "ulimit -n 2000")
    assert "512 open files, and 256 users need 1,536" in found["why"]  # 2 x 256 + 1,024
