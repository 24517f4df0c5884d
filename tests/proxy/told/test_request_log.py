"""The log's file: whole lines, soon, in order; and what becomes of them when the disk is slow, full or gone."""

import json
import os
import queue
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit.errors import ToolkitError
from toolkit.proxy.told import request_log
from toolkit.proxy.told.request_log import RequestLog

WAIT_S = 60.0
"""Longest that a test waits for what must come."""


class Told(queue.SimpleQueue[str]):
    """What a log said of itself."""

    def next(self) -> str:
        return self.get(timeout=WAIT_S)


def numbered(count: int, size: int = 100) -> list[bytes]:
    return [f"{number:0{size - 1}d}\n".encode() for number in range(count)]


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits half a second for a flush."""
    monkeypatch.setattr(request_log, "FLUSH_S", 0.02)


class Pipe:
    """A named pipe as the log's file, with the end that reads it."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self.end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(self.end, True)

    def read(self, size: int) -> bytes:
        """The next so many bytes; blocks until they are there."""
        found = b""
        while len(found) < size:
            part = os.read(self.end, size - len(found))
            assert part, "the log was closed before"
            found += part
        return found

    def rest(self) -> bytes:
        """All up to the log's end."""
        found = b""
        while part := os.read(self.end, 1 << 20):
            found += part
        return found


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipe]:
    made = Pipe(tmp_path / "pipe")
    yield made
    os.close(made.end)


def test_lines_stand_in_the_file_in_their_order_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = RequestLog(str(path))
    lines = numbered(5000)
    for line in lines:
        log.write(line)
    log.close()
    assert path.read_bytes() == b"".join(lines)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert log.dropped == 0


def test_a_single_line_is_written_without_being_asked_for(pipe: Pipe) -> None:
    log = RequestLog(str(pipe.path))
    log.write(b"first\n")
    assert pipe.read(6) == b"first\n"
    log.write(b"second\n")
    assert pipe.read(7) == b"second\n"
    log.close()


def test_a_log_goes_on_where_the_last_one_ended_and_after_a_torn_line_on_a_new_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.jsonl"
    for before, after in (
        (b"", b"new\n"),
        (b"old\n", b"old\nnew\n"),
        (b"old\nto", b"old\nto\nnew\n"),
    ):
        path.write_bytes(before)
        log = RequestLog(str(path))
        log.write(b"new\n")
        log.close()
        assert path.read_bytes() == after


def test_after_a_rotation_lines_go_into_a_new_file(pipe: Pipe, tmp_path: Path) -> None:
    log = RequestLog(str(pipe.path))
    log.write(b"before\n")
    assert pipe.read(7) == b"before\n"
    pipe.path.rename(tmp_path / "moved")
    log.reopen()
    log.write(b"after\n")
    log.close()
    assert pipe.rest() == b""
    assert pipe.path.read_bytes() == b"after\n"


def test_a_new_file_that_cannot_be_opened_leaves_the_old_one_in_use(tmp_path: Path) -> None:
    told = Told()
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "log.jsonl"
    log = RequestLog(str(path), tell=told.put)
    folder.rename(tmp_path / "moved")
    log.reopen()
    assert "anew" in told.next()
    log.write(b"after\n")
    log.close()
    assert (tmp_path / "moved" / "log.jsonl").read_bytes() == b"after\n"


def test_a_file_that_cannot_be_opened_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="No such file"):
        RequestLog(str(tmp_path / "nowhere" / "log.jsonl"))
    os.mkfifo(tmp_path / "unread")
    with pytest.raises(ToolkitError, match="cannot write the log"):
        RequestLog(str(tmp_path / "unread"))


def test_a_full_disk_loses_lines_and_says_so_once() -> None:
    told = Told()
    log = RequestLog("/dev/full", tell=told.put)
    for line in numbered(3):
        log.write(line)
    assert (
        told.next() == "Cannot write the log `/dev/full`: No space left on device; lines are lost"
    )
    for line in numbered(2000):
        log.write(line)
    log.close()
    assert log.dropped == 2003
    assert told.empty()


def test_a_reader_that_stalls_holds_up_no_write_and_what_is_lost_is_told_in_the_log(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "HELD_BYTES", 1_000_000)
    log = RequestLog(str(pipe.path), wall=lambda: 1.5)
    lines = numbered(30_000)  # 3 MB: a pipe takes 64 KiB, 1 MB is held
    for line in lines:
        log.write(line)
    lost = log.dropped
    assert 0 < lost < 30_000
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(pipe.rest()))
    reader.start()
    log.close()
    reader.join(WAIT_S)
    *kept, last = found[0].splitlines(keepends=True)
    assert json.loads(last) == {"event": "log_lines_dropped", "ts": 1.5, "lines": lost}
    assert len(kept) == 30_000 - lost
    assert set(kept) <= set(lines)
    assert kept == sorted(kept)


def test_closing_does_not_wait_forever_for_a_reader_that_stopped(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "CLOSE_S", 0.05)
    told = Told()
    log = RequestLog(str(pipe.path), tell=told.put)
    for line in numbered(2000):
        log.write(line)
    log.close()
    assert "lines are lost" in told.next()


def test_a_reader_that_left_is_told_and_the_next_one_is_served_on_a_new_line(pipe: Pipe) -> None:
    told = Told()
    log = RequestLog(str(pipe.path), tell=told.put)
    log.write(b"first\n")
    assert pipe.read(6) == b"first\n"
    os.close(pipe.end)
    log.write(b"lost\n")
    assert "Broken pipe" in told.next()
    pipe.end = os.open(pipe.path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(pipe.end, True)
    log.write(b"again\n")
    assert told.next() == f"The log `{pipe.path}` is written again; lines lost: 1"
    assert pipe.read(6) == b"again\n"
    log.close()
    assert json.loads(pipe.rest())["lines"] == 1


def test_standard_output_is_written_and_left_open(capfd: pytest.CaptureFixture[str]) -> None:
    log = RequestLog("-")
    log.write(b"line\n")
    log.reopen()
    log.close()
    os.write(1, b"still open\n")
    assert capfd.readouterr().out == "line\nstill open\n"
