"""A container's limits, read from trees as the kernel lays them out: version 2, version 1, and both at once."""

from pathlib import Path

import pytest

from toolkit.serving.fit.cgroups import Limits, limits

TWO = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
ONE = """31 23 0:27 / /sys/fs/cgroup/memory rw shared:10 - cgroup cgroup rw,memory
32 23 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:11 - cgroup cgroup rw,cpu,cpuacct
"""
GIB = 2**30


def tree(root: Path, group: str, mounts: str, files: dict[str, str]) -> Path:
    told = {"proc/self/cgroup": group, "proc/self/mountinfo": mounts}
    for name, text in (
        told | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    ).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_version_2_tells_memory_and_cores(tmp_path: Path) -> None:
    files = {
        "a/memory.max": f"{8 * GIB}\n",
        "a/memory.current": f"{5 * GIB}\n",
        "a/memory.stat": f"anon 100\ninactive_file {2 * GIB}\n",  # files' pages that may go
        "a/cpu.max": "250000 100000\n",
    }
    found = limits(tree(tmp_path, "0::/a\n", TWO, files))
    assert found == Limits(memory_bytes=8 * GIB, memory_used_bytes=3 * GIB, cores=2.5)


def test_version_1_tells_memory_and_cores(tmp_path: Path) -> None:
    files = {
        "memory/d/x/memory.limit_in_bytes": f"{8 * GIB}\n",
        "memory/d/x/memory.usage_in_bytes": f"{5 * GIB}\n",
        "memory/d/x/memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB}\n",
        "cpu,cpuacct/d/x/cpu.cfs_quota_us": "150000\n",
        "cpu,cpuacct/d/x/cpu.cfs_period_us": "100000\n",
    }
    group = "4:memory:/d/x\n2:cpu,cpuacct:/d/x\n1:name=systemd:/d/x\n"
    found = limits(tree(tmp_path, group, ONE, files))
    assert found == Limits(memory_bytes=8 * GIB, memory_used_bytes=4 * GIB, cores=1.5)


def test_no_limit_is_none(tmp_path: Path) -> None:
    files = {"a/memory.max": "max\n", "a/memory.current": "1\n", "a/cpu.max": "max 100000\n"}
    assert limits(tree(tmp_path / "two", "0::/a\n", TWO, files)) == Limits()
    files = {
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/memory.usage_in_bytes": "1\n",
        "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    }
    found = limits(tree(tmp_path / "one", "4:memory:/\n2:cpu,cpuacct:/\n", ONE, files))
    assert found == Limits()


def test_the_tightest_of_all_levels_holds(tmp_path: Path) -> None:
    files = {
        "pod/memory.max": f"{4 * GIB}\n",
        "pod/memory.current": f"{3 * GIB}\n",
        "pod/cpu.max": "400000 100000\n",
        "pod/box/memory.max": f"{3 * GIB}\n",
        "pod/box/memory.current": f"{GIB}\n",
        "pod/box/cpu.max": "300000 100000\n",
    }
    found = limits(tree(tmp_path, "0::/pod/box\n", TWO, files))
    # the pod has 1 GiB left, the box 2
    assert (found.memory_bytes, found.memory_used_bytes, found.cores) == (4 * GIB, 3 * GIB, 3.0)


@pytest.mark.parametrize("group", ["0::/\n", "0::/../../elsewhere\n", "0::/not/here\n"])
def test_a_container_that_sees_its_own_group_as_the_top_reads_the_top(
    tmp_path: Path, group: str
) -> None:
    files = {"memory.max": f"{2 * GIB}\n", "memory.current": f"{GIB}\n"}
    assert limits(tree(tmp_path, group, TWO, files)).memory_bytes == 2 * GIB


def test_a_group_that_is_mounted_as_the_top_is_found_below_its_own_name(tmp_path: Path) -> None:
    """Docker with version 1: the process is in /docker/ab, and /docker/ab is what is mounted."""
    mounts = "31 23 0:27 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    files = {
        "memory/memory.limit_in_bytes": f"{GIB}\n",
        "memory/memory.usage_in_bytes": "4096\n",
    }
    assert limits(tree(tmp_path, "4:memory:/docker/ab\n", mounts, files)).memory_bytes == GIB


def test_version_2_beside_version_1_does_not_hide_it(tmp_path: Path) -> None:
    both = ONE + "33 23 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    files = {
        "memory/a/memory.limit_in_bytes": f"{GIB}\n",
        "memory/a/memory.usage_in_bytes": "0\n",
        "unified/cgroup.procs": "",
    }
    assert limits(tree(tmp_path, "4:memory:/a\n0::/\n", both, files)).memory_bytes == GIB


def test_what_cannot_be_read_is_no_limit_and_no_crash(tmp_path: Path) -> None:
    assert limits(tmp_path) == Limits()
    torn = {"a/memory.max": "eight gigabytes\n", "a/cpu.max": "1 2 3\n"}
    assert limits(tree(tmp_path, "0::/a\ntorn line\n", TWO + "short\n", torn)) == Limits()
