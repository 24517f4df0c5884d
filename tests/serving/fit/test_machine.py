"""One look at a machine: what stands in the kernel's files, what this process has, and what cannot be read."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from support.planted import TOOLKIT, needs_unshare, rows

from toolkit.serving.fit import kernel
from toolkit.serving.fit.cgroups import Limits
from toolkit.serving.fit.clock import clock
from toolkit.serving.fit.facts import Memory, Network, OpenFiles, Orphan
from toolkit.serving.fit.machine import container, cpu, memory, network, open_files, orphans


def write(root: Path, told: dict[str, str]) -> Path:
    for name, text in told.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def process(root: Path, pid: int, command: str, parent: int, state: str = "S (sleeping)") -> None:
    status = f"Name:\tx\nState:\t{state}\nPPid:\t{parent}\nVmRSS:\t    2048 kB\n"
    write(root, {f"{pid}/cmdline": command.replace(" ", "\0") + "\0", f"{pid}/status": status})


def test_the_kernels_settings_are_read_from_where_they_stand(tmp_path: Path) -> None:
    told = {
        "sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
        "sys/net/ipv4/ip_local_reserved_ports": "8000\n",
        "sys/net/ipv4/tcp_tw_reuse": "2\n",
        "sys/net/core/somaxconn": "4096\n",
        "sys/net/ipv4/tcp_max_syn_backlog": "1024\n",
        "sys/net/ipv4/tcp_syncookies": "1\n",
    }
    assert network(write(tmp_path, told)) == Network(
        ephemeral_low=32_768,
        ephemeral_high=60_999,
        reserved="8000",
        tw_reuse=2,
        somaxconn=4096,
        syn_backlog=1024,
        syncookies=1,
    )
    assert network(tmp_path / "none") == Network()


def test_this_machines_own_settings_can_be_read() -> None:
    """The kernel refuses reads of /proc/sys that are too large; made-up files do not."""
    found = network()
    assert found.ephemeral_low is not None
    assert found.somaxconn == int(Path("/proc/sys/net/core/somaxconn").read_text())


def test_memory_is_the_machines_and_the_limit_the_containers(tmp_path: Path) -> None:
    proc = write(
        tmp_path, {"meminfo": "MemTotal:  2048 kB\nMemFree: 1 kB\nMemAvailable:   1024 kB\n"}
    )
    found = memory(Limits(memory_bytes=500, memory_used_bytes=100), proc)
    assert found == Memory(
        total_bytes=2_097_152, available_bytes=1_048_576, limit_bytes=500, limit_used_bytes=100
    )
    assert memory(Limits(), tmp_path / "none").error is not None


def test_the_limit_of_open_files_is_this_process_own() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    expected = OpenFiles(
        soft=None if soft == endless else soft, hard=None if hard == endless else hard
    )
    assert open_files() == expected


def test_cores_and_their_policies_are_read(tmp_path: Path) -> None:
    told = {
        "cpu0/cpufreq/scaling_governor": "performance\n",
        "cpu1/cpufreq/scaling_governor": "powersave\n",
        "cpu10/cpufreq/scaling_governor": "powersave\n",
        "cpufreq/other": "",
    }
    found = cpu(Limits(cores=1.5), write(tmp_path, told))
    assert found.governors == ("performance", "powersave")
    assert (found.usable, found.quota_cores) == (len(os.sched_getaffinity(0)), 1.5)
    assert (
        cpu(Limits(), tmp_path / "none").governors is None
    )  # unknown; an empty folder scales nothing
    (tmp_path / "empty").mkdir()
    assert cpu(Limits(), tmp_path / "empty").governors == ()


@pytest.mark.parametrize(
    ("mark", "kind"), [(".dockerenv", "docker"), ("run/.containerenv", "podman"), ("etc/os", None)]
)
def test_a_container_is_known_by_its_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str, kind: str | None
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert container(write(tmp_path, {mark: ""})) == kind
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert container(tmp_path) == "kubernetes"


def test_engines_whose_server_was_killed_are_orphans_with_their_workers(tmp_path: Path) -> None:
    process(tmp_path, 1, "/sbin/init", 0)
    process(tmp_path, 30, "/v/bin/python /v/bin/vllm serve m", 1)
    process(tmp_path, 31, "VLLM::EngineCore", 30)
    process(tmp_path, 40, "VLLM::EngineCore", 1)
    process(tmp_path, 41, "VLLM::Worker_TP0", 40)
    process(tmp_path, 42, "VLLM::Worker_TP1", 40, state="Z (zombie)")
    process(tmp_path, 50, "VLLM::EngineCore", 1, state="Z (zombie)")
    process(tmp_path, 60, "/lib/systemd/systemd --user", 1)
    process(tmp_path, 61, "VLLM::EngineCore", 60)
    found = orphans(tmp_path, wait_s=0)
    assert found == (
        Orphan(pid=40, command="VLLM::EngineCore", used_bytes=2_097_152),  # 2,048 kB
        Orphan(pid=41, command="VLLM::Worker_TP0", used_bytes=2_097_152),
        Orphan(pid=61, command="VLLM::EngineCore", used_bytes=2_097_152),
    )


@pytest.mark.parametrize("first", ["python my_server.py", "/v/bin/python3.11 x", "vllm serve m"])
def test_a_container_whose_first_process_is_the_server_has_no_orphans(
    tmp_path: Path, first: str
) -> None:
    process(tmp_path, 1, first, 0)
    process(tmp_path, 7, "VLLM::EngineCore", 1)
    process(tmp_path, 8, "VLLM::Worker", 7)
    assert orphans(tmp_path, wait_s=0) == ()


def test_an_engine_of_a_server_that_just_ends_is_no_orphan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process(tmp_path, 1, "/sbin/init", 0)
    process(tmp_path, 40, "VLLM::EngineCore", 1)
    waited: list[float] = []

    def end(seconds: float) -> None:
        waited.append(seconds)
        (tmp_path / "40/cmdline").unlink()

    monkeypatch.setattr("toolkit.serving.fit.machine.time.sleep", end)
    assert orphans(tmp_path) == ()
    assert len(waited) == 1


def test_a_command_is_told_on_one_line_without_a_terminals_escapes(tmp_path: Path) -> None:
    write(tmp_path, {"9/cmdline": "evil\0\x1b[31mred\nnext\0\0"})
    assert kernel.command(9, tmp_path) == "evil [31mred next"
    write(tmp_path, {"10/cmdline": "", "10/comm": "kworker/0:1\n"})
    assert kernel.command(10, tmp_path) == "kworker/0:1"
    assert kernel.command(11, tmp_path) is None


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("vllm serve m --api-key sk-1 --port 8000", "vllm serve m --api-key *** --port 8000"),
        ("vllm serve m --api-key sk-1 sk-2 --port 1", "vllm serve m --api-key *** *** --port 1"),
        ("x --hf-token=abc=d --n 3", "x --hf-token=*** --n 3"),
        ("x --port 8000 key", "x --port 8000 key"),
    ],
)
def test_a_command_is_told_without_its_keys(tmp_path: Path, arguments: str, told: str) -> None:
    write(tmp_path, {"9/cmdline": arguments.replace(" ", "\0") + "\0"})
    assert kernel.command(9, tmp_path) == told


def test_the_kernel_tells_of_its_clock_without_being_changed() -> None:
    found = clock()
    assert found.synchronised is not None
    assert found.error is None
    assert found.largest_error_ms is not None


@pytest.mark.slow
@needs_unshare
@pytest.mark.parametrize(
    "hidden",
    [
        "mount -t tmpfs tmpfs /proc",  # nothing of the kernel at all
        "mount -t tmpfs tmpfs /sys",
        "mount -t tmpfs tmpfs /dev/shm; umount -l /dev/shm; mount -t tmpfs -o size=4k,nr_inodes=2 tmpfs $TMPDIR",
    ],
)
def test_a_machine_that_hides_everything_is_told_as_unknown_and_never_crashes(
    tmp_path: Path, hidden: str
) -> None:
    out, small = tmp_path / "out", tmp_path / "small"
    small.mkdir()
    script = f'exec 3>"{out}"; {hidden}; "{TOOLKIT}" preflight --json >&3'
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", script],
        env=os.environ | {"TMPDIR": str(small)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in {0, 1}, done.stderr
    assert "Traceback" not in done.stderr
    found = rows(out)
    assert {"open_files", "memory", "port_8000", "somaxconn", "gpu", "clock", "cpu"} <= set(found)
    if "/proc" in hidden:
        unknown = [found[code]["why"] for code in ("memory", "somaxconn", "ephemeral_ports")]
        assert all(why.startswith("unknown: ") for why in unknown)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="changes the user: run it as root")
def test_a_plain_user_gets_commands_that_ask_for_rights(tmp_path: Path) -> None:
    words = ["toolkit", "preflight", "--json", "--sim", "--port", "80"]
    # everything is loaded before the user changes: another user may not reach this Python's files
    code = f"""
import os, sys
from toolkit.cli import main
from toolkit.cli.preflight import verb as preflight
from toolkit.cli.preflight import show as preflight_show
from toolkit.cli import output
from toolkit.serving.fit.machine import look
from toolkit.serving.fit.needs import Needs
look(Needs(vllm=None))
os.setgroups([]), os.setgid(65534), os.setuid(65534)
sys.argv = {words!r}
main()
"""
    env = dict(os.environ) | {"HOME": "/nonexistent"}
    limited = ["prlimit", "--nofile=512:512", sys.executable, "-c", code]
    done = subprocess.run(limited, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    out = tmp_path / "out"
    out.write_text(done.stdout)
    found = rows(out)
    assert found["open_files"]["status"] == "fail"
    assert found["open_files"]["fix"].startswith(("sudo prlimit --pid $$", "docker run --ulimit"))
