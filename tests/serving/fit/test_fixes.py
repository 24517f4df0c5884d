"""What `--fix` does and leaves: only what needs no risk, and each of it is told."""

import mmap
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.serving.fit.facts import Facts, Folder, SharedMemory
from toolkit.serving.fit.fixes import Repair, repairs
from toolkit.serving.fit.needs import Needs
from toolkit.serving.outcome import bad, doubtful, good


def left(*paths: Path) -> Facts:
    folders = tuple(Folder(path=str(path), used_bytes=4096) for path in paths)
    return Facts(shared=SharedMemory(total_bytes=1, free_bytes=1, leftovers=folders))


LEFT = doubtful("shm_leftovers", "files", "rm ...")


def test_leftovers_go_and_one_that_somebody_took_meanwhile_stays(folder: Path) -> None:
    dead, taken = folder / "psm_dead", folder / "psm_taken"
    for path in (dead, taken):
        path.write_bytes(b"x" * 4096)
    with taken.open("r+b") as file:
        held = mmap.mmap(file.fileno(), 4096)
    (done,) = repairs([LEFT], left(dead, taken), Needs())
    assert done == Repair(
        check="shm_leftovers",
        done=False,
        text="removed 1 file that no process held; 1 could not be removed",
    )
    assert not dead.exists()
    assert taken.exists()
    held.close()
    (done,) = repairs([LEFT], left(taken), Needs())
    assert (done.done, done.text) == (True, "removed 1 file that no process held")


def test_what_works_is_not_touched_and_what_is_risky_is_left_with_its_command() -> None:
    found = [
        good("disk", "fine"),
        bad("port_8000", "taken", "kill 7"),
        doubtful("cpu", "few cores"),
        doubtful("tcp_tw_reuse", "off", "sysctl -w net.ipv4.tcp_tw_reuse=1"),
    ]
    assert repairs(found, Facts(root=True), Needs()) == (
        Repair(check="port_8000", done=False, text="left to you: kill 7"),
        Repair(check="cpu", done=False, text="left: no command helps from here"),
        Repair(
            check="tcp_tw_reuse",
            done=False,
            text="left to you: sysctl -w net.ipv4.tcp_tw_reuse=1",
        ),
    )


def test_a_plain_user_leaves_the_gpus_as_they_are() -> None:
    asleep = doubtful("gpu_0_persistence", "sleeps", "sudo nvidia-smi -i 0 -pm 1")
    (done,) = repairs([asleep], Facts(root=False), Needs())
    assert (done.done, done.text) == (False, "left to you: sudo nvidia-smi -i 0 -pm 1")


@pytest.mark.parametrize(
    ("limits", "wanted", "soft", "done"),
    [
        ("512:4096", 1000, 4096, True),  # up to the hard limit: files that are free cost nothing
        ("512:1024", 2000, 1024, False),
        ("4096:4096", 1000, 4096, True),
    ],
)
def test_the_limit_of_open_files_is_lifted_for_what_is_started(
    limits: str, wanted: int, soft: int, done: bool
) -> None:
    code = (
        "import resource, subprocess; from toolkit.serving.fit.fixes import lifted;"
        f" print(lifted({wanted}).done, flush=True); subprocess.run(['sh', '-c', 'ulimit -Sn'])"
    )
    told = subprocess.run(
        ["prlimit", f"--nofile={limits}", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert told.stdout.split() == [str(done), str(soft)]
