"""An engine's log: read as it grows, by lines, and through its turning over; earlier ones are kept."""

import errno
import shutil
from pathlib import Path

import pytest

from toolkit.serving.launch import KEPT_LOGS, LINE_BYTES, READ_BYTES, GrowingLog, set_aside
from toolkit.serving.reaper import turn_over


def add(log: Path, text: str | bytes) -> None:
    with log.open("ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)


def test_only_whole_lines_are_read_and_the_rest_when_it_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    reader = GrowingLog(log)
    assert reader.read() == []
    add(log, "one\ntw")
    assert reader.read() == ["one"]
    add(log, "o\nthree")
    assert reader.read() == ["two"]
    assert reader.read() == []
    assert reader.rest() == ["three"]
    assert reader.rest() == []


def test_progress_bars_are_lines_and_a_windows_end_is_one(tmp_path: Path) -> None:
    add(tmp_path / "log", " 0%\r50%\r100%\r\ndone\n")
    assert GrowingLog(tmp_path / "log").rest() == [" 0%", "50%", "100%", "done"]


def test_a_character_that_is_cut_in_two_is_read_whole(tmp_path: Path) -> None:
    log, sign = tmp_path / "log", "█".encode()
    reader = GrowingLog(log)
    add(log, sign[:2])
    assert reader.read() == []
    add(log, sign[2:] + b" \xff\n")
    assert reader.read() == ["█ \N{REPLACEMENT CHARACTER}"]


def test_a_line_without_an_end_is_cut_and_takes_no_memory(tmp_path: Path) -> None:
    log = tmp_path / "log"
    add(log, b"x" * (3 * READ_BYTES) + b"\nshort\n")
    lines = GrowingLog(log).rest()
    assert [len(line) for line in lines] == [LINE_BYTES, 5]


def test_of_a_long_log_only_the_end_is_read_when_that_is_asked(tmp_path: Path) -> None:
    log = tmp_path / "log"
    reader = GrowingLog(log)
    reader.skip(7)
    add(log, "first\nsecond\nlast\n")
    # the last 7 bytes are `d\nlast\n`
    reader.skip(7)
    assert reader.rest() == ["d", "last"]


def test_a_log_that_turned_over_is_read_on_without_a_loss(tmp_path: Path) -> None:
    log = tmp_path / "log"
    reader = GrowingLog(log)
    with log.open("ab", buffering=0) as engine:
        engine.write(b"one\n")
        assert reader.read() == ["one"]
        engine.write(b"two\n")
        turn_over(log)
        assert log.stat().st_size == 0
        assert reader.read() == ["two"]
        # the engine still holds the same file, and goes on at its new end
        engine.write(b"three\n")
        assert reader.read() == ["three"]


def test_a_few_earlier_logs_are_kept_the_newest_first(tmp_path: Path) -> None:
    log = tmp_path / "folder" / "log"
    for number in range(KEPT_LOGS + 3):
        set_aside(log)
        log.write_text(str(number))
    # the last start was number 7: its log stands, and 6, 5, 4, 3, 2 beside it
    assert log.read_text() == "7"
    kept = [log.with_name(f"log.{number}").read_text() for number in range(1, KEPT_LOGS + 1)]
    assert kept == ["6", "5", "4", "3", "2"]
    assert len(list(log.parent.iterdir())) == KEPT_LOGS + 1


def test_a_log_is_its_owners_alone_and_so_is_what_is_kept_of_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    set_aside(log)
    add(log, "what a client asked\n")
    turn_over(log)
    set_aside(log)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"log": 0o600, "log.1": 0o600, "log.2": 0o600}


def test_a_disk_without_room_for_both_keeps_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Path, kept: Path) -> None:
        kept.write_text("half of")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copy", full)
    add(tmp_path / "log", "old\n")
    turn_over(tmp_path / "log")
    assert [(path.name, path.stat().st_size) for path in tmp_path.iterdir()] == [("log", 0)]


def test_only_what_came_later_is_read_and_nothing_is_news_of_a_log_that_is_gone(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    reader = GrowingLog(log)
    reader.skip(0)
    add(log, "one\ntwo\n")
    assert reader.read() == ["one", "two"]
    log.unlink()
    assert reader.read() == []


def test_a_log_that_was_emptied_or_replaced_is_read_from_its_start(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("a long line before\n")
    reader = GrowingLog(log)
    reader.skip(0)
    log.write_text("new\n")
    assert reader.read() == ["new"]
    # as logrotate does it, with a line that came just before; the new one is longer than the old one was
    add(log, "late\n")
    log.rename(tmp_path / "log.1")
    log.write_text("a whole other file\n")
    assert reader.read() == ["late"]
    assert reader.read() == ["a whole other file"]
