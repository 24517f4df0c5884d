"""What is left over in shared memory: real files, real holders, the kernel's own word."""

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.serving.fit.shared_memory import is_left, remove_left, shared_memory

HOLD = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
held = mmap.mmap(file, 4096)
os.close(file)
print("held", flush=True)
sys.stdin.read()
"""


def a_file(path: Path, pages: int = 1) -> Path:
    path.write_bytes(b"x" * 4096 * pages)
    return path


def test_a_file_that_nobody_holds_is_left_over(folder: Path) -> None:
    path = a_file(folder / "psm_1234", pages=3)
    found = shared_memory(folder)
    assert [(each.path, each.used_bytes) for each in found.leftovers] == [
        (str(path), 12_288)
    ]  # 3 x 4,096
    assert found.unclear == 0


def test_a_file_that_is_open_or_mapped_is_in_use(folder: Path) -> None:
    path = a_file(folder / "psm_1234")
    with path.open("r+b") as file:
        assert is_left(path) is False
        held = mmap.mmap(file.fileno(), 4096)
    assert is_left(path) is False  # closed, and still mapped
    held.close()
    assert is_left(path) is True


def test_a_file_that_another_process_maps_is_in_use_until_that_ends(folder: Path) -> None:
    path = a_file(folder / "psm_1234")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert is_left(path) is False
        assert not remove_left(path)
        assert path.exists()
    finally:
        holder.kill()
        holder.communicate(timeout=20)
    assert remove_left(path)
    assert not path.exists()


def test_other_peoples_files_are_not_looked_at(folder: Path) -> None:
    for name in ("notes.txt", "my_psm_file", "pulse-shm-1", "psm_a b", "psm_\x1b[2J", "psm_"):
        a_file(folder / name)
    assert shared_memory(folder).leftovers == ()


def test_the_biggest_leftover_stands_first(folder: Path) -> None:
    for name, pages in (("sem.mp-a", 1), ("psm_b", 5), ("nccl-c", 2)):
        a_file(folder / name, pages)
    names = [Path(each.path).name for each in shared_memory(folder).leftovers]
    assert names == ["psm_b", "nccl-c", "sem.mp-a"]


def test_a_link_or_a_folder_with_such_a_name_is_never_removed(folder: Path) -> None:
    precious = a_file(folder / "precious")
    (folder / "psm_link").symlink_to(precious)
    (folder / "psm_folder").mkdir()
    found = shared_memory(folder)
    assert found.leftovers == ()
    assert not remove_left(folder / "psm_link")
    assert precious.exists()
    (folder / "psm_folder").rmdir()


def test_a_file_that_is_gone_meanwhile_is_nobodys_trouble(folder: Path) -> None:
    assert is_left(folder / "psm_gone") is False
    assert not remove_left(folder / "psm_gone")


def test_room_is_told_and_a_missing_folder_is_unknown(folder: Path, tmp_path: Path) -> None:
    found = shared_memory(folder)
    room = os.statvfs("/dev/shm")
    assert found.total_bytes == room.f_blocks * room.f_frsize
    assert shared_memory(tmp_path / "none").error is not None
    assert shared_memory(tmp_path / "none").total_bytes is None


@pytest.mark.skipif(os.geteuid() != 0, reason="changes the user: run it as root")
def test_a_plain_user_does_not_judge_another_users_files(folder: Path) -> None:
    path = a_file(folder / "psm_roots")
    path.chmod(0o644)
    folder.chmod(0o755)
    code = f"""
import os
from pathlib import Path
from toolkit.serving.fit.shared_memory import remove_left, shared_memory
os.setgid(65534), os.setuid(65534)
found = shared_memory(Path({str(folder)!r}))
print(len(found.leftovers), found.unclear, remove_left(Path({str(path)!r})))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["0", "1", "False"]
    assert path.exists()
