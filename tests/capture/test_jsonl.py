"""The rotated file on a real disk, and on one that is full: every line is in a file, waits, or is counted."""

import fcntl
import os
from pathlib import Path

import pytest

from toolkit.capture import jsonl
from toolkit.capture.jsonl import RotatedFile
from toolkit.errors import ToolkitError


class Warnings(list):
    def __call__(self, sentence: str) -> None:
        self.append(sentence)


@pytest.fixture
def said() -> Warnings:
    return Warnings()


def opened(path: Path, said: Warnings, rotate_bytes: int = 1000, keep: int = 3) -> RotatedFile:
    return RotatedFile(path, rotate_bytes=rotate_bytes, keep=keep, warn=said)


def test_a_full_file_is_moved_on_and_no_line_is_split(tmp_path: Path, said: Warnings) -> None:
    file = opened(tmp_path / "a.jsonl", said, rotate_bytes=10)
    # 4 + 4 fit into 10 bytes, 12 do not
    file.write([b"aaa\n", b"bbb\n", b"ccc\n", b"ddd\n", b"eee\n"])
    # at once, without a close
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "a.jsonl.2": b"aaa\nbbb\n",
        "a.jsonl.1": b"ccc\nddd\n",
        "a.jsonl": b"eee\n",
    }
    # the lock goes with the name
    with (tmp_path / "a.jsonl.1").open() as old:
        fcntl.flock(old, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(ToolkitError, match="another process"):
        opened(tmp_path / "a.jsonl", said)
    file.close()
    assert (file.lost, file.removed, said) == (0, 0, [])


def test_only_so_many_old_files_are_kept_and_it_is_told_once(
    tmp_path: Path, said: Warnings
) -> None:
    file = opened(tmp_path / "a.jsonl", said, rotate_bytes=2, keep=2)
    for n in range(6):
        file.write([b"%d\n" % n])
    file.close()
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert kept == {"a.jsonl": b"5\n", "a.jsonl.1": b"4\n", "a.jsonl.2": b"3\n"}
    assert file.removed == 3  # 0, 1 and 2
    assert len(said) == 1
    assert "only 2 old files are kept" in said[0]


def test_a_line_longer_than_a_file_gets_one_of_its_own(tmp_path: Path, said: Warnings) -> None:
    file = opened(tmp_path / "a.jsonl", said, rotate_bytes=5)
    file.write([b"a\n", b"0123456789\n", b"b\n"])
    file.close()
    assert (tmp_path / "a.jsonl.2").read_bytes() == b"a\n"
    assert (tmp_path / "a.jsonl.1").read_bytes() == b"0123456789\n"
    assert (tmp_path / "a.jsonl").read_bytes() == b"b\n"


def test_a_line_that_a_kill_cut_does_not_swallow_the_next(tmp_path: Path, said: Warnings) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"a":1}\n{"b')
    file = opened(tmp_path / "a.jsonl", said)
    file.write([b'{"c":3}\n'])
    file.close()
    assert (tmp_path / "a.jsonl").read_bytes() == b'{"a":1}\n{"b\n{"c":3}\n'


def test_two_captures_do_not_mix_their_lines_in_one_file(tmp_path: Path, said: Warnings) -> None:
    first = opened(tmp_path / "a.jsonl", said)
    with pytest.raises(ToolkitError, match="written by another process"):
        opened(tmp_path / "a.jsonl", said)
    first.close()
    opened(tmp_path / "a.jsonl", said).close()


def test_a_file_that_somebody_moved_is_made_anew(tmp_path: Path, said: Warnings) -> None:
    file = opened(tmp_path / "a.jsonl", said)
    file.write([b"1\n"])
    (tmp_path / "a.jsonl").rename(tmp_path / "theirs")
    file.write([b"2\n"])
    file.close()
    assert (tmp_path / "theirs").read_bytes() == b"1\n"
    assert (tmp_path / "a.jsonl").read_bytes() == b"2\n"


@pytest.mark.parametrize("name", ["no/such/folder/a.jsonl", "."])
def test_a_file_that_cannot_be_is_refused_with_its_reason(
    tmp_path: Path, said: Warnings, name: str
) -> None:
    with pytest.raises(ToolkitError, match=r"cannot be written: (no such file|is a directory)"):
        opened(tmp_path / name, said)


class SmallDisk:
    """Takes so many bytes and then, like a full disk, a part of what is written and an error."""

    def __init__(self, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = room
        self._write = os.write
        monkeypatch.setattr(jsonl.os, "write", self.write)

    def write(self, number: int, data: bytes) -> int:
        if not self.room:
            raise OSError(28, "No space left on device")
        taken = self._write(number, bytes(data[: self.room]))
        self.room -= taken
        return taken


def test_what_a_full_disk_refuses_waits_and_is_written_once_there_is_room(
    tmp_path: Path, said: Warnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = opened(tmp_path / "a.jsonl", said)
    file.write([b"first\n"])
    disk = SmallDisk(3, monkeypatch)
    file.write([b"second\n"])
    # no half of a line is left for a reader to stumble over
    assert (tmp_path / "a.jsonl").read_bytes() == b"first\n"
    disk.room = 8  # for one of two lines
    file.write([b"third\n"])
    assert (tmp_path / "a.jsonl").read_bytes() == b"first\nsecond\n"
    assert said == [
        f"`{tmp_path / 'a.jsonl'}` takes nothing: no space left on device; it is tried again"
    ]
    disk.room = 1_000
    file.write([b"fourth\n"])
    assert (tmp_path / "a.jsonl").read_bytes() == b"first\nsecond\nthird\nfourth\n"
    file.close()
    assert file.lost == 0


def test_what_finds_no_room_in_the_end_is_counted(
    tmp_path: Path, said: Warnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "WAITING_BYTES", 10)
    SmallDisk(0, monkeypatch)
    file = opened(tmp_path / "a.jsonl", said)
    file.write([b"1234\n", b"5678\n", b"lost\n"])  # 5 + 5 bytes wait
    assert file.lost == 1
    file.close()
    assert file.lost == 3


def test_a_folder_that_forbids_rotating_makes_the_file_grow_and_says_so(
    tmp_path: Path, said: Warnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:  # root may rename anything, so it is injected
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", refuse)
    file = opened(tmp_path / "a.jsonl", said, rotate_bytes=3)
    file.write([b"1\n", b"2\n", b"3\n"])
    file.close()
    assert (tmp_path / "a.jsonl").read_bytes() == b"1\n2\n3\n"
    assert said == [f"`{tmp_path / 'a.jsonl'}` cannot be rotated, and grows: permission denied"]


def test_a_pipe_gets_the_lines_and_is_never_rotated(tmp_path: Path, said: Warnings) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    file = opened(tmp_path / "pipe", said, rotate_bytes=3)
    file.write([b"1\n", b"2\n", b"3\n"])
    file.close()
    assert os.read(reader, 100) == b"1\n2\n3\n"
    os.close(reader)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
