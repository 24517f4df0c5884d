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
from toolkit.proxy.telemetry.access_log import AccessLog

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
    monkeypatch.setattr(AccessLog, "interval_s", 0.02)


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
    log = AccessLog(str(path), say=print)
    lines = numbered(5000)
    for line in lines:
        log.put(line)
    log.close()
    assert path.read_bytes() == b"".join(lines)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert log.dropped == 0


def test_a_line_that_another_worker_is_writing_is_not_taken_for_a_torn_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write, half, opened = tmp_path / "log", os.write, threading.Event(), threading.Event()

    def slowly(descriptor: int, data: memoryview) -> int:
        if bytes(data) == b"whole\n":
            write(descriptor, data[:3])
            half.set()
            opened.wait(0.3)
            return 3 + write(descriptor, data[3:])
        return write(descriptor, data)

    def second() -> None:
        log = AccessLog(str(path), say=print)
        opened.set()
        log.put(b"next\n")
        log.close()

    first = AccessLog(str(path), say=print)
    monkeypatch.setattr(os, "write", slowly)
    first.put(b"whole\n")
    half.wait()
    thread = threading.Thread(target=second)
    thread.start()
    thread.join()
    first.close()
    assert path.read_bytes() == b"whole\nnext\n"


def test_a_new_file_that_cannot_be_opened_leaves_the_old_one_in_use(tmp_path: Path) -> None:
    told = Told()
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "log.jsonl"
    log = AccessLog(str(path), say=told.put)
    folder.rename(tmp_path / "moved")
    log.reopen()
    assert "anew" in told.next()
    log.put(b"after\n")
    log.close()
    assert (tmp_path / "moved" / "log.jsonl").read_bytes() == b"after\n"


def test_a_file_that_cannot_be_opened_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="No such file"):
        AccessLog(str(tmp_path / "nowhere" / "log.jsonl"), say=print)
    os.mkfifo(tmp_path / "unread")
    with pytest.raises(ToolkitError, match="cannot write the log"):
        AccessLog(str(tmp_path / "unread"), say=print)


def test_a_reader_that_stalls_holds_up_no_write_and_what_is_lost_is_told_in_the_log(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AccessLog, "max_held", 1_000_000)
    log = AccessLog(str(pipe.path), say=print, wall=lambda: 1.5)
    lines = numbered(30_000)  # 3 MB: a pipe takes 64 KiB, 1 MB is held
    for line in lines:
        log.put(line)
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
    monkeypatch.setattr(AccessLog, "close_s", 0.05)
    told = Told()
    log = AccessLog(str(pipe.path), say=told.put)
    for line in numbered(2000):
        log.put(line)
    log.close()
    assert "lines are lost" in told.next()


def test_a_reader_that_left_is_told_and_the_next_one_is_served_on_a_new_line(pipe: Pipe) -> None:
    told = Told()
    log = AccessLog(str(pipe.path), say=told.put)
    log.put(b"first\n")
    assert pipe.read(6) == b"first\n"
    os.close(pipe.end)
    log.put(b"lost\n")
    assert "Broken pipe" in told.next()
    pipe.end = os.open(pipe.path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(pipe.end, True)
    log.put(b"again\n")
    assert told.next() == f"The log `{pipe.path}` is written again; lines lost: 1"
    assert pipe.read(6) == b"again\n"
    log.close()
    assert json.loads(pipe.rest())["lines"] == 1


def test_standard_output_is_written_and_left_open(capfd: pytest.CaptureFixture[str]) -> None:
    log = AccessLog("-", say=print)
    log.put(b"line\n")
    log.reopen()
    log.close()
    os.write(1, b"still open\n")
    assert capfd.readouterr().out == "line\nstill open\n"
