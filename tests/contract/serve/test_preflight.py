"""Each planted fault is found, and the command that preflight prints for it works when it is pasted.

The test pastes the very text: preflight's own `fix` goes through the shell in which the fault was planted.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from contract.harness.nvml import A100, environment, machine, needs_gcc
from contract.harness.planted import needs_unshare, pasted, until_gone

MOUNTS = ("unshare", "--mount")
NETWORK = ("unshare", "--mount", "--net")
GIB = 2**30

LISTEN = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = socket.socket(family)
if family == socket.AF_INET6:
    server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(sys.argv[1] == "::1"))
server.bind((sys.argv[1], 0))
if sys.argv[2] == "listen":
    server.listen()
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def a_server(address: str, what: str = "listen") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Another process that holds a port; it ends with this test at the latest."""
    server = subprocess.Popen(
        [sys.executable, "-c", LISTEN, address, what],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        yield server, int(server.stdout.readline())
    finally:
        server.kill()
        server.communicate(timeout=20)


HOLD = """
import mmap, os, sys
file = os.open("/dev/shm/" + sys.argv[1], os.O_CREAT | os.O_RDWR, 0o600)
os.ftruncate(file, 1 << 20)
held = mmap.mmap(file, 1 << 20)
held[:] = b"x" * (1 << 20)
os.close(file)  # the mapping alone holds it
if sys.argv[2] == "die":
    os.kill(os.getpid(), 9)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_low_limit_of_open_files_is_lifted(tmp_path: Path) -> None:
    options = ("--sim", "--users", "500")
    found = pasted(tmp_path, "open_files", *options, plant="ulimit -Sn 1024")
    before, after = found.before["open_files"], found.after["open_files"]
    assert before["status"] == "fail"
    assert "1,024 open files, and 500 users need 2,024" in before["why"]  # 2 x 500 + 1,024
    assert found.fixes[0].startswith("ulimit -n ")
    assert after["status"] == "ok"


@needs_unshare
def test_a_full_disk_is_emptied_of_what_can_be_fetched_again(tmp_path: Path) -> None:
    plant = """
        mkdir "$OUT/disk" && mount -t tmpfs -o size=64m tmpfs "$OUT/disk"
        export HF_HUB_CACHE="$OUT/disk/hub"
        mkdir -p "$HF_HUB_CACHE/models--old--big one/blobs" "$HF_HUB_CACHE/models--me--mine/blobs" "$OUT/disk/notes"
        fallocate -l 20M "$HF_HUB_CACHE/models--old--big one/blobs/weights"
        fallocate -l 30M "$HF_HUB_CACHE/models--me--mine/blobs/weights"
        cat /dev/zero >"$OUT/disk/notes/all" || true
    """
    options = ("--sim", "--model", "me/mine")
    found = pasted(tmp_path, "disk", *options, plant=plant, inside=MOUNTS)
    before, after = found.before["disk"], found.after["disk"]
    assert before["status"] == "fail"
    assert "0 B of 64 MiB free" in before["why"]
    assert "never names the disk" in before["why"]
    # the model that is to be served stays, bigger as it is, and so does what nobody could fetch again
    assert found.fixes == (f"rm -rf -- '{tmp_path}/disk/hub/models--old--big one'",)
    assert after["status"] == "ok"


@needs_unshare
def test_weights_that_do_not_fit_fail_before_they_are_loaded(tmp_path: Path) -> None:
    plant = """
        mkdir "$OUT/disk" && mount -t tmpfs -o size=64m tmpfs "$OUT/disk"
        mkdir -p "$OUT/disk/models--old--one/blobs"
        fallocate -l 30M "$OUT/disk/models--old--one/blobs/weights"
    """
    options = ("--sim", "--weights", "40MiB", "--disk", str(tmp_path / "disk"))
    found = pasted(tmp_path, "disk", *options, plant=plant, inside=MOUNTS)
    assert found.before["disk"]["status"] == "fail"
    assert "34 MiB of 64 MiB free" in found.before["disk"]["why"]
    assert "40 MiB of weights are to come" in found.before["disk"]["why"]
    assert found.after["disk"]["status"] == "ok"


@needs_unshare
def test_a_disk_that_is_mounted_read_only_is_opened(tmp_path: Path) -> None:
    plant = """
        mkdir "$OUT/disk" && mount -t tmpfs -o size=64m tmpfs "$OUT/disk"
        mount -o remount,ro "$OUT/disk"
    """
    options = ("--sim", "--disk", str(tmp_path / "disk" / "hub"))
    found = pasted(tmp_path, "disk", *options, plant=plant, inside=MOUNTS)
    assert found.before["disk"]["status"] == "fail"
    assert "read-only" in found.before["disk"]["why"]
    assert found.after["disk"]["status"] == "ok"


@needs_unshare
def test_a_small_dev_shm_is_made_larger(tmp_path: Path) -> None:
    plant = "mount -t tmpfs -o size=64m tmpfs /dev/shm"  # what Docker gives a container
    found = pasted(tmp_path, "shm", "--sim", plant=plant, inside=MOUNTS)
    assert found.before["shm"]["status"] == "fail"
    assert "64 MiB of 64 MiB free" in found.before["shm"]["why"]
    assert found.fixes == ("mount -o remount,size=50% /dev/shm",)
    assert found.after["shm"]["status"] == "ok"


@needs_unshare
def test_files_of_a_killed_server_are_removed_and_those_in_use_are_not(tmp_path: Path) -> None:
    (tmp_path / "hold.py").write_text(HOLD)
    plant = """
        mount -t tmpfs -o size=8g tmpfs /dev/shm
        coproc alive { "$PYTHON" "$OUT/hold.py" psm_alive live; }
        read -ru "${alive[0]}"
        "$PYTHON" "$OUT/hold.py" psm_dead die || true
        echo precious >/dev/shm/notes.txt
    """
    settle = "[ -e /dev/shm/psm_alive ] && [ -e /dev/shm/notes.txt ]"
    found = pasted(tmp_path, "shm_leftovers", "--sim", plant=plant, settle=settle, inside=MOUNTS)
    before, after = found.before["shm_leftovers"], found.after["shm_leftovers"]
    assert before["status"] == "warn"
    assert "1 file in `/dev/shm` that no process holds any more, 1 MiB" in before["why"]
    assert found.fixes == ("rm -f -- /dev/shm/psm_dead",)
    assert after["status"] == "ok"


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("127.0.0.1", "on 127.0.0.1 (IPv4)"),
        ("::", "on [::] (IPv6)"),  # takes IPv4's connections, too
    ],
)
def test_a_taken_port_names_its_holder_and_is_freed(
    tmp_path: Path, address: str, told: str
) -> None:
    with a_server(address) as (server, port):
        code, options = f"port_{port}", ("--sim", "--port", str(port))
        found = pasted(tmp_path, code, *options, settle=until_gone(server.pid))
        assert found.before[code]["status"] == "fail"
        assert f"(pid {server.pid}) {told}" in found.before[code]["why"]
        assert "-c import socket" in found.before[code]["why"]  # its command
        assert found.fixes == (f"kill {server.pid}",)
        assert server.wait(timeout=20) == -signal.SIGTERM
        # the kernel dealt it out of its range for outgoing connections: that is all that is left to say
        assert found.after[code]["status"] in {"ok", "warn"}
        assert f"port {port} is free" in found.after[code]["why"]


def test_a_server_of_the_other_family_is_told_since_localhost_may_mean_it(tmp_path: Path) -> None:
    with a_server("::1") as (server, port):
        code, options = f"port_{port}", ("--sim", "--host", "127.0.0.1", "--port", str(port))
        found = pasted(tmp_path, code, *options, settle=until_gone(server.pid))
        assert found.before[code]["status"] == "warn"
        assert f"(pid {server.pid}) on [::1] (IPv6) listens on it" in found.before[code]["why"]
        assert server.wait(timeout=20) == -signal.SIGTERM
        assert "listens on it" not in found.after[code]["why"]


@needs_unshare
def test_the_kernels_settings_for_many_connections_are_set_right(tmp_path: Path) -> None:
    # a container's root may find /proc/sys read-only: a second /proc in this namespace is not
    plant = """
        [ -w /proc/sys/net/core/somaxconn ] || mount -t proc proc /proc
        sysctl -qw net.ipv4.tcp_tw_reuse=0 net.core.somaxconn=16 net.ipv4.tcp_max_syn_backlog=16
        sysctl -qw net.ipv4.ip_local_port_range="44990 45010"
    """
    checks = "tcp_tw_reuse somaxconn tcp_max_syn_backlog port_45000 ephemeral_ports"
    found = pasted(tmp_path, checks, "--sim", "--port", "45000", plant=plant, inside=NETWORK)
    before = {code: found.before[code]["status"] for code in checks.split()}
    assert before == {
        "tcp_tw_reuse": "warn",
        "somaxconn": "warn",
        "tcp_max_syn_backlog": "warn",
        "port_45000": "warn",
        "ephemeral_ports": "fail",  # 21 ports for 256 users
    }
    assert all(fix.startswith("sysctl -w net.") for fix in found.fixes)
    assert {found.after[code]["status"] for code in checks.split()} == {"ok"}


@needs_gcc
def test_a_gpu_is_set_right(tmp_path: Path) -> None:
    sleepy = A100 | {"persistence": 0, "sm": 345}
    hot = A100 | {"sm": 700, "busy": 95, "reasons": "0x40", "temperature": 88, "compute_mode": 2}
    folder = machine(tmp_path / "nvml", sleepy, hot)
    checks = "gpu_0_persistence gpu_0_clocks gpu_1_clocks gpu_1_mode"
    found = pasted(tmp_path / "run", checks, env=environment(folder))
    assert [found.before[code]["status"] for code in checks.split()] == ["warn"] * 3 + ["fail"]
    assert "345 of 1,410 MHz while it idles" in found.before["gpu_0_clocks"]["why"]
    assert "88 \N{DEGREE SIGN}C, held down by heat" in found.before["gpu_1_clocks"]["why"]
    assert found.fixes == (
        "nvidia-smi -i 0 -pm 1",
        "nvidia-smi -i 0 -lgc 1410,1410",
        "nvidia-smi -i 1 -lgc 1410,1410",
        "nvidia-smi -i 1 -c 0",
    )
    assert [found.after[code]["status"] for code in checks.split()[:3]] == ["ok"] * 3
    assert "gpu_1_mode" not in found.after  # nothing is left to be said of it


@needs_gcc
def test_a_divided_gpu_without_slices_is_made_whole(tmp_path: Path) -> None:
    folder = machine(tmp_path / "nvml", A100 | {"mig": 1, "slices": 7})
    found = pasted(tmp_path / "run", "gpu_0_mig", env=environment(folder))
    assert found.before["gpu_0_mig"]["status"] == "fail"
    assert "gpu_0_memory" not in found.before
    assert found.fixes == ("nvidia-smi -i 0 -mig 0",)
    assert found.after["gpu_0_memory"]["status"] == "ok"


@needs_gcc
def test_a_process_that_holds_a_gpus_memory_is_named_and_ended(tmp_path: Path) -> None:
    with a_server("127.0.0.1") as (other, _):
        held = A100 | {"processes": f"{other.pid} {30 * GIB}"}
        folder = machine(tmp_path / "nvml", held)
        settle = f"{until_gone(other.pid)}; rm '{folder}/gpu0/processes'"
        found = pasted(tmp_path / "run", "gpu_0_memory", settle=settle, env=environment(folder))
        before = found.before["gpu_0_memory"]
        assert before["status"] == "fail"
        assert f"(pid {other.pid}, 30 GiB) holds the rest" in before["why"]
        assert "vLLM asks for 73.6 GiB" in before["why"]  # 0.92 x 80
        assert found.fixes == (f"kill {other.pid}",)
        assert found.after["gpu_0_memory"]["status"] == "ok"


@needs_gcc
def test_hidden_gpus_are_shown_again(tmp_path: Path) -> None:
    folder = machine(tmp_path / "nvml", A100, A100)
    found = pasted(tmp_path / "run", "gpu", env=environment(folder, CUDA_VISIBLE_DEVICES=""))
    assert found.before["gpu"]["status"] == "fail"
    assert found.fixes == ("unset CUDA_VISIBLE_DEVICES",)
    assert found.after["gpu"]["status"] == "ok"
    told = "2 x NVIDIA A100-SXM4-80GB; driver 580.65.06, runs CUDA up to 13.0"
    assert told in found.after["gpu"]["why"]
