"""A log is read from where it ended, line by line."""

from pathlib import Path

import pytest

from toolkit.serving.warmup import LogTail


def add(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_only_what_came_later_is_read_and_each_line_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    tail = LogTail(log)
    assert tail.new_lines() == []
    add(log, "one\ntwo\n")
    assert tail.new_lines() == ["one", "two"]
    assert tail.new_lines() == []


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    tail = LogTail(log)
    add(log, "one\ntw")
    assert tail.new_lines() == ["one"]
    add(log, "o\n")
    assert tail.new_lines() == ["two"]


def test_a_log_that_was_replaced_or_cut_is_read_from_its_start(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("a long line before\n")
    tail = LogTail(log)
    log.write_text("new\n")
    assert tail.new_lines() == ["new"]
    log.rename(tmp_path / "log.1")
    log.write_text("a whole other file\n")
    assert tail.new_lines() == ["a whole other file"]


def test_a_log_that_is_gone_has_no_news(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("x\n")
    tail = LogTail(log)
    log.unlink()
    assert tail.new_lines() == []
    with pytest.raises(FileNotFoundError):
        LogTail(log)


def test_bytes_that_are_no_text_hide_no_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    tail = LogTail(log)
    with log.open("ab") as file:
        file.write(b"\xff\xfe\nnext\n")
    assert tail.new_lines()[-1] == "next"
