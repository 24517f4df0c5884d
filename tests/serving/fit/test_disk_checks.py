"""Rules over disks: when one is full, what would make room, and what is never thrown away."""

from dataclasses import replace

import pytest

from toolkit.serving.fit.disk_checks import check
from toolkit.serving.fit.facts import Disk, Folder
from toolkit.serving.fit.needs import Needs
from toolkit.serving.outcome import Check

GIB = 2**30
DISK = Disk(
    role="models",
    path="/srv/hub",
    mount="/srv",
    total_bytes=1000 * GIB,
    free_bytes=500 * GIB,
    writable=True,
)


def judged(disk: Disk, **needs: object) -> Check:
    return check(disk, Needs(**needs), root=False)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("free", "weights", "status"),
    [
        # the floor of a large disk is 1 GiB, and 10 GiB are to be spare; the weights come on top
        (10 * GIB, None, "ok"),
        (10 * GIB - 1, None, "warn"),
        (GIB, None, "warn"),
        (GIB - 1, None, "fail"),
        (150 * GIB, 140 * GIB, "ok"),
        (150 * GIB - 1, 140 * GIB, "warn"),
        (141 * GIB, 140 * GIB, "warn"),
        (141 * GIB - 1, 140 * GIB, "fail"),
    ],
)
def test_a_disk_takes_the_weights_and_something_beside_them(
    free: int, weights: int | None, status: str
) -> None:
    assert judged(replace(DISK, free_bytes=free), disk_bytes=weights).status == status


def test_a_small_disk_is_judged_by_its_own_size() -> None:
    small = replace(DISK, total_bytes=GIB, free_bytes=GIB // 20 + 1)  # 5 % are spare
    assert judged(small).status == "ok"
    assert judged(replace(small, free_bytes=GIB // 50 + 1)).status == "warn"  # 2 % is the floor
    assert judged(replace(small, free_bytes=GIB // 50)).status == "fail"


def test_weights_go_to_the_models_disk_alone() -> None:
    other = replace(DISK, role="vllm_cache", free_bytes=20 * GIB)
    assert judged(other, disk_bytes=140 * GIB).status == "ok"
    assert judged(other).check == "disk_vllm_cache"


def test_the_biggest_that_can_be_fetched_again_goes_until_it_is_enough() -> None:
    folders = (
        Folder(path="/hub/models--me--mine", used_bytes=60 * GIB),
        Folder(path="/hub/videos", used_bytes=50 * GIB, spare=False),
        Folder(path="/hub/models--a--b", used_bytes=8 * GIB),
        Folder(path="/hub/models--c--d", used_bytes=7 * GIB, complete=False),
        Folder(path="/hub/models--e--f", used_bytes=6 * GIB),
    )
    full = replace(DISK, free_bytes=0, folders=folders)
    found = judged(full, model="me/mine")
    # 8 + 7 = 15 GiB are more than the 10 that should be spare
    assert found.fix == "rm -rf -- /hub/models--a--b /hub/models--c--d"
    assert "`/hub/models--me--mine` with 60 GiB, `/hub/videos` with 50 GiB" in found.why


def test_nothing_is_thrown_away_where_that_would_not_be_enough() -> None:
    folders = (Folder(path="/hub/models--a--b", used_bytes=8 * GIB),)
    found = judged(replace(DISK, free_bytes=0, folders=folders))
    assert found.fix == "du -xhd2 /srv | sort -h | tail -20"


def test_a_count_that_ran_out_of_time_says_at_least() -> None:
    folders = (Folder(path="/hub/models--a--b", used_bytes=80 * GIB, complete=False),)
    found = judged(replace(DISK, free_bytes=0, folders=folders))
    assert "`/hub/models--a--b` with at least 80 GiB" in found.why


def test_a_disk_without_room_for_another_file_is_full_whatever_is_free() -> None:
    found = judged(replace(DISK, free_files=3))
    assert found.status == "fail"
    assert "only 3 more files fit" in found.why


def test_a_folder_that_cannot_be_written_is_made_and_given_to_this_user() -> None:
    found = judged(replace(DISK, path="/srv/my models", writable=False))
    assert found.status == "fail"
    assert found.fix == (
        "sudo mkdir -p '/srv/my models' && sudo chown -R \"$(id -un)\" '/srv/my models'"
    )


def test_a_model_that_is_there_may_lie_where_nobody_writes() -> None:
    assert judged(replace(DISK, writable=False), disk_bytes=0).status == "ok"
    assert judged(replace(DISK, read_only=True), disk_bytes=0).status == "ok"
    cache = replace(DISK, role="vllm_cache", path="/c", writable=False)
    assert judged(cache, disk_bytes=0).status == "fail"
    assert "compiles it anew" in judged(cache).why
    assert judged(cache, disk_bytes=0, vllm=None).status == "ok"  # the simulator compiles nothing


def test_nobody_is_given_the_folder_of_everybodys_temporary_files() -> None:
    found = judged(replace(DISK, role="temporary", path="/tmp", writable=False))
    assert found.status == "fail"
    assert found.fix == 'mkdir -p "$HOME/tmp" && export TMPDIR="$HOME/tmp"'


def test_a_disk_that_cannot_be_looked_at_is_unknown() -> None:
    found = judged(Disk(role="models", path="/hub", error="stale file handle"))
    assert (found.status, found.why) == (
        "warn",
        "unknown: `/hub` cannot be looked at: stale file handle",
    )


def test_a_disk_that_is_mounted_read_only_is_mounted_anew() -> None:
    found = judged(replace(DISK, read_only=True, writable=False))
    assert (found.status, found.fix) == ("fail", "sudo mount -o remount,rw /srv")
