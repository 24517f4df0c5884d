"""Preflight where a test from outside cannot build the machine: control groups, other users, containers, odd sockets."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from toolkit.serving.preflight import check, disk, kernel, port, shared_memory, vllm
from toolkit.serving.preflight.check import Check, Needs

GIB = 2**30


@pytest.fixture(autouse=True)
def root_of_no_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests, wherever."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(check, "container", lambda: None)


def in_container(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(check, "container", lambda: kind)


# --- a container's limits -------------------------------------------------------------------------------------

TWO = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
ONE = """31 23 0:27 / /sys/fs/cgroup/memory rw shared:10 - cgroup cgroup rw,memory
32 23 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:11 - cgroup cgroup rw,cpu,cpuacct
"""


def tree(root: Path, group: str, mounts: str, files: dict[str, str]) -> Path:
    texts = {"proc/self/cgroup": group, "proc/self/mountinfo": mounts}
    texts |= {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("group", "mounts", "files", "memory", "cores"),
    [
        (  # version 2; files' pages may go
            "0::/a\n",
            TWO,
            {
                "a/memory.max": f"{8 * GIB}\n",
                "a/memory.current": f"{5 * GIB}\n",
                "a/memory.stat": f"anon 100\ninactive_file {2 * GIB}\n",
                "a/cpu.max": "250000 100000\n",
            },
            (8 * GIB, 3 * GIB),
            2.5,
        ),
        (  # version 1
            "4:memory:/d/x\n2:cpu,cpuacct:/d/x\n1:name=systemd:/d/x\n",
            ONE,
            {
                "memory/d/x/memory.limit_in_bytes": f"{8 * GIB}\n",
                "memory/d/x/memory.usage_in_bytes": f"{5 * GIB}\n",
                "memory/d/x/memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB}\n",
                "cpu,cpuacct/d/x/cpu.cfs_quota_us": "150000\n",
                "cpu,cpuacct/d/x/cpu.cfs_period_us": "100000\n",
            },
            (8 * GIB, 4 * GIB),
            1.5,
        ),
        (  # no limit in version 2, and none in version 1
            "0::/a\n",
            TWO,
            {"a/memory.max": "max\n", "a/memory.current": "1\n", "a/cpu.max": "max 100000\n"},
            (None, 0),
            None,
        ),
        (
            "4:memory:/\n2:cpu,cpuacct:/\n",
            ONE,
            {
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
                "memory/memory.usage_in_bytes": "1\n",
                "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            (None, 0),
            None,
        ),
        (  # the tightest of all levels: the pod has 1 GiB left, the box 2
            "0::/pod/box\n",
            TWO,
            {
                "pod/memory.max": f"{4 * GIB}\n",
                "pod/memory.current": f"{3 * GIB}\n",
                "pod/cpu.max": "400000 100000\n",
                "pod/box/memory.max": f"{3 * GIB}\n",
                "pod/box/memory.current": f"{GIB}\n",
                "pod/box/cpu.max": "300000 100000\n",
            },
            (4 * GIB, 3 * GIB),
            3.0,
        ),
        (  # a container that sees its own group as the top
            "0::/../../elsewhere\n",
            TWO,
            {"memory.max": f"{2 * GIB}\n", "memory.current": f"{GIB}\n"},
            (2 * GIB, GIB),
            None,
        ),
        (  # Docker with version 1: the process is in /docker/ab, and /docker/ab is what is mounted
            "4:memory:/docker/ab\n",
            "31 23 0:27 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
            {
                "memory/memory.limit_in_bytes": f"{GIB}\n",
                "memory/memory.usage_in_bytes": "4096\n",
            },
            (GIB, 4096),
            None,
        ),
        (  # version 2 beside version 1 does not hide it
            "4:memory:/a\n0::/\n",
            ONE + "33 23 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
            {
                "memory/a/memory.limit_in_bytes": f"{GIB}\n",
                "memory/a/memory.usage_in_bytes": "0\n",
                "unified/cgroup.procs": "",
            },
            (GIB, 0),
            None,
        ),
        (  # torn files are no limit and no crash
            "0::/a\ntorn line\n",
            TWO + "short\n",
            {"a/memory.max": "eight gigabytes\n", "a/cpu.max": "1 2 3\n"},
            (None, 0),
            None,
        ),
    ],
)
def test_a_containers_limits_are_read_as_the_kernel_lays_them_out(
    tmp_path: Path,
    group: str,
    mounts: str,
    files: dict[str, str],
    memory: tuple[int | None, int],
    cores: float | None,
) -> None:
    root = tree(tmp_path, group, mounts, files)
    assert kernel.memory_limit(root) == memory
    assert kernel.core_limit(root) == cores


# --- shared memory --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "status"),
    [(2 * GIB, "ok"), (2 * GIB - 4096, "warn"), (GIB // 2, "warn"), (GIB // 2 - 4096, "fail")],
)
def test_dev_shm_wants_room_for_one_server_and_more_for_several_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, status: str
) -> None:
    room = SimpleNamespace(f_bavail=free // 4096, f_frsize=4096, f_blocks=GIB)
    monkeypatch.setattr(os, "statvfs", lambda _: room)
    found = next(shared_memory.checks(tmp_path))
    assert found.status == status
    if status != "ok":
        assert found.fix == f"mount -o remount,size=50% {tmp_path}"
        in_container(monkeypatch, "docker")
        monkeypatch.setattr(shared_memory, "may", lambda _: False)
        assert next(shared_memory.checks(tmp_path)).fix == "docker run --ipc=host"


# --- disks ----------------------------------------------------------------------------------------------------


def test_a_folder_is_counted_as_du_counts_it(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/one").write_bytes(b"x" * 3 * 2**20)
    (tmp_path / "a/two").write_bytes(b"x" * 2**20)
    (tmp_path / "a/again").hardlink_to(tmp_path / "a/two")  # one file with two names
    (tmp_path / "a/link").symlink_to(tmp_path / "a/two")
    with (tmp_path / "a/hole").open("wb") as sparse:
        sparse.truncate(100 * 2**20)  # takes no room
    command = ["du", "-sB1", tmp_path / "a"]
    du = int(subprocess.run(command, capture_output=True, check=True).stdout.split()[0])
    folders = 2 * (tmp_path / "a").stat().st_blocks * 512  # du counts them, too
    assert disk.measured(tmp_path / "a") == (du - folders, True)
    assert disk.measured(tmp_path / "a", 0.0) == (0, False)


# --- ports ----------------------------------------------------------------------------------------------------


@contextmanager
def listening(address: str = "127.0.0.1", *options: int) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as server:
        for option in options:
            server.setsockopt(socket.SOL_SOCKET, option, 1)
        server.bind((address, 0))
        server.listen()
        yield server


def test_a_server_that_forked_is_ended_with_all_who_share_its_socket() -> None:
    with listening() as server:
        number = server.getsockname()[1]
        code = "import sys; print('there', flush=True); sys.stdin.read()"
        child = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[server.fileno()],
        )
        try:
            assert child.stdout is not None
            child.stdout.readline()
            found = next(port.checks(Needs(ports=(number,))))
        finally:
            child.kill()
            child.communicate(timeout=60)
    pids = sorted((os.getpid(), child.pid))
    assert found.fix == f"kill {pids[0]} {pids[1]}"


@pytest.mark.parametrize("reuse", [True, False])
def test_connections_that_just_ended_take_a_port_only_of_a_server_that_did_not_allow_it(
    reuse: bool,
) -> None:
    options = (socket.SO_REUSEADDR,) if reuse else ()
    with listening("127.0.0.1", *options) as server:
        number = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", number)) as client:
            accepted, _ = server.accept()
            accepted.close()  # who closes first keeps the port in TIME_WAIT
            assert client.recv(1) == b""
    found = port.probe(number, "127.0.0.1")
    wanted = (None, False) if reuse else ("EADDRINUSE", True)
    assert (found.refusal, found.is_ending) == wanted
    if not reuse:
        row = next(port.checks(Needs(ports=(number,), host="127.0.0.1")))
        assert (row.status, row.fix) == ("fail", "sleep 60")


def test_a_holder_whose_process_may_not_be_seen_stays_without_a_name(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    row = "   0: B80D01200000000067452301EFCDAB89:1F40 0:0 0A 0:0 00:0 0  1000 0 4242 1\n"
    (tmp_path / "net/tcp6").write_text(f"  sl  local_address ...\n{row}\n   1: torn\n")
    found = port.probe(8000, "127.0.0.1", tmp_path)  # 0x1F40 is 8000
    assert found.holders == (port.Holder(address="2001:db8::123:4567:89ab:cdef"),)
    assert not found.is_known


def judged(monkeypatch: pytest.MonkeyPatch, found: port.Port, host: str = "0.0.0.0") -> Check:
    monkeypatch.setattr(port, "probe", lambda *_: found)
    return next(port.checks(Needs(ports=(9,), host=host)))


@pytest.mark.parametrize(
    ("host", "address", "fix"),
    [
        ("127.0.0.1", "127.0.0.1", "kill 41"),
        ("127.0.0.1", "0.0.0.0", "kill 41"),
        ("127.0.0.1", "::", "kill 41"),  # an IPv6 socket on all addresses takes IPv4, too
        ("::1", "::1", "kill 41"),
        ("localhost", "127.0.0.1", "kill 41"),
        ("0.0.0.0", "127.0.0.1", "kill 41 99"),  # everybody is in the way
    ],
)
def test_of_several_servers_on_a_port_only_those_in_the_way_are_ended(
    monkeypatch: pytest.MonkeyPatch, host: str, address: str, fix: str
) -> None:
    holders = (
        port.Holder(address=address, pids=(41,), command="x"),
        port.Holder(address="10.0.0.4", pids=(99,), command="y"),
    )
    found = judged(monkeypatch, port.Port(refusal="EADDRINUSE", holders=holders), host)
    assert (found.status, found.fix) == ("fail", fix)


def test_process_1_is_never_ended_and_an_unseen_one_is_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for pids in ((1,), ()):
        holder = port.Holder(address="0.0.0.0", pids=pids)
        found = judged(monkeypatch, port.Port(refusal="EADDRINUSE", holders=(holder,)))
        assert found.fix == "sudo ss -ltnp 'sport = :9'"
    assert "a process of another user or container on 0.0.0.0 (IPv4)" in found.why
    low = judged(monkeypatch, port.Port(refusal="EACCES"))
    assert low.fix == "sudo sysctl -w net.ipv4.ip_unprivileged_port_start=9"
    unknown = judged(monkeypatch, port.Port(is_known=False))
    assert (unknown.status, "unknown" in unknown.why) == ("warn", True)


# --- GPUs and vLLM ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#!/opt/v/bin/python3.12\n", ["/opt/v/bin/python3.12"]),
        ("#!/usr/bin/env python3\n", ["/usr/bin/env", "python3"]),
        ("#!/bin/sh\n'''exec' '/a long/bin/python' \"$0\" \"$@\"\n", ["/a long/bin/python"]),
        ("#!/bin/bash\nexec docker run vllm\n", []),
        ("\x7fELF", []),
    ],
)
def test_a_scripts_python_is_read_from_its_first_lines(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    (tmp_path / "vllm").write_text(text)
    assert vllm.python_of(tmp_path / "vllm") == words
    assert vllm.python_of(tmp_path / "none") == []
