"""Where models, caches and temporary files go, and what fills the disk under them: real folders."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from toolkit.serving.fit.disks import disks, hub, measured, vllm_cache
from toolkit.serving.fit.needs import Needs

MIB = 2**20


def a_file(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({"HOME": "/home/me"}, "/home/me/.cache/huggingface/hub"),
        ({"HOME": "/home/me", "XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/c", "HF_HOME": "/hf"}, "/hf/hub"),
        ({"HF_HOME": "/hf", "HF_HUB_CACHE": "/models"}, "/models"),
    ],
)
def test_models_go_where_hugging_faces_variables_say(environ: dict[str, str], place: str) -> None:
    assert str(hub(environ)) == place


def test_compiled_code_goes_where_vllms_variable_says() -> None:
    assert str(vllm_cache({"HOME": "/home/me"})) == "/home/me/.cache/vllm"
    assert str(vllm_cache({"VLLM_CACHE_ROOT": "/v", "HOME": "/home/me"})) == "/v"


def test_a_folder_is_counted_as_du_counts_it(tmp_path: Path) -> None:
    a_file(tmp_path / "a/b/one", 3 * MIB)
    two = a_file(tmp_path / "a/two", MIB)
    (tmp_path / "a/again").hardlink_to(two)  # one file with two names
    (tmp_path / "a/link").symlink_to(two)
    with (tmp_path / "a/hole").open("wb") as sparse:
        sparse.truncate(100 * MIB)  # takes no room
    du = int(
        subprocess.run(
            ["du", "-sB1", tmp_path / "a"], capture_output=True, check=True
        ).stdout.split()[0]
    )
    folders = 2 * (tmp_path / "a").stat().st_blocks * 512  # du counts them, too
    assert measured(tmp_path / "a").used_bytes == du - folders
    assert measured(tmp_path / "a").complete


def test_counting_ends_when_its_time_is_over(tmp_path: Path) -> None:
    a_file(tmp_path / "a/one", MIB)
    assert not measured(tmp_path / "a", until=0.0).complete


def test_the_biggest_folder_of_a_disk_stands_first_with_what_can_be_fetched_again(
    tmp_path: Path,
) -> None:
    a_file(tmp_path / "hub/models--a--small/blobs/w", MIB)
    a_file(tmp_path / "hub/models--a--big/blobs/w", 3 * MIB)
    a_file(tmp_path / "hub/my-notes/n", 2 * MIB)
    a_file(tmp_path / "vllm/torch_compile_cache/x", 2 * MIB + 4096)
    environ = {
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "VLLM_CACHE_ROOT": str(tmp_path / "vllm"),
        "TMPDIR": str(tmp_path / "tmp"),
    }
    (disk,) = disks(Needs(), environ)  # three places, one file system
    assert (disk.role, disk.path, disk.writable) == ("models", str(tmp_path / "hub"), True)
    told = [(Path(each.path).name, each.spare) for each in disk.folders]
    assert told == [
        ("models--a--big", True),
        ("torch_compile_cache", True),
        ("my-notes", False),
        ("models--a--small", True),
    ]


def test_room_is_told_of_a_place_that_is_not_there_yet(tmp_path: Path) -> None:
    wanted = tmp_path / "not" / "yet"
    disk = disks(Needs(disk_path=str(wanted)), {})[0]
    room = os.statvfs(tmp_path)
    assert (disk.path, disk.total_bytes) == (str(wanted), room.f_blocks * room.f_frsize)
    assert not wanted.exists()
    assert disk.mount is not None
    assert Path(disk.mount).is_mount()
    assert tmp_path.is_relative_to(disk.mount)


def test_other_peoples_temporary_files_are_not_named(tmp_path: Path) -> None:
    a_file(tmp_path / "tmp/torchinductor_me/x", 4096)
    a_file(tmp_path / "tmp/secret-project/x", MIB)
    environ = {"VLLM_CACHE_ROOT": str(tmp_path), "TMPDIR": str(tmp_path / "tmp")}
    (disk,) = disks(Needs(disk_path=str(tmp_path / "hub")), environ)
    names = [Path(each.path).name for each in disk.folders]
    assert "torchinductor_me" in names
    assert "secret-project" not in names


NOBODY = 65_534


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may look everywhere: it gives that up for a moment."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if was == 0:
            os.seteuid(was)


def test_a_place_behind_another_users_folder_is_told_as_one_that_cannot_be_written(
    tmp_path: Path,
) -> None:
    shut = tmp_path / "shut"
    shut.mkdir(mode=0)
    environ = {"HF_HOME": str(shut / "hf"), "VLLM_CACHE_ROOT": str(shut / "vllm")}
    with as_nobody():
        disk = disks(Needs(), environ)[0]
    shut.chmod(0o700)
    assert (disk.role, disk.path) == ("models", str(shut / "hf/hub"))
    assert disk.total_bytes is not None
    assert disk.mount is not None


def test_a_disk_so_full_that_python_finds_no_temporary_folder_is_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    environ = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    assert [each.role for each in disks(Needs(), environ)] == ["models"]


def test_the_home_of_a_user_whom_nobody_knows_is_a_path_like_others() -> None:
    assert str(hub({"HF_HUB_CACHE": "~nobody-is-called-so/hub"})) == "~nobody-is-called-so/hub"
    assert disks(Needs(disk_path="~nobody-is-called-so"), {})[0].total_bytes is not None


def test_a_shut_folder_on_a_disk_that_is_told_already_is_told_by_itself(tmp_path: Path) -> None:
    # root may write everywhere: the answer of access(2) is planted
    hub_there, cache = tmp_path / "hub", tmp_path / "cache"
    hub_there.mkdir()
    cache.mkdir()
    environ = {
        "HF_HUB_CACHE": str(hub_there),
        "VLLM_CACHE_ROOT": str(cache),
        "TMPDIR": str(hub_there),
    }
    shut = {str(cache)}
    real = os.access
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: str(path) not in shut and real(path, mode))
        told = [(each.role, each.writable) for each in disks(Needs(), environ)]
    assert told == [("models", True), ("vllm_cache", False)]
