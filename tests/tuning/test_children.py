"""Processes of a sweep: their words, their ends, and what a killed sweep leaves behind."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from toolkit.errors import ToolkitError
from toolkit.tuning.children import ChildCommand, end_left, is_alive, started_ticks

WAIT_S = 30


def python(code: str, folder: Path) -> ChildCommand:
    return ChildCommand([sys.executable, "-c", code], folder=folder, name="child")


def until_gone(pid: int) -> bool:
    end = time.monotonic() + WAIT_S
    while started_ticks(pid) is not None and time.monotonic() < end:
        time.sleep(0.01)
    return started_ticks(pid) is None


def test_the_first_line_of_its_data_is_waited_for(tmp_path: Path) -> None:
    child = python("import time; print('http://h', flush=True); time.sleep(60)", tmp_path)
    try:
        assert child.first_line(WAIT_S) == "http://h"
        assert child.code is None
    finally:
        child.kill()


def test_half_a_line_is_none_yet(tmp_path: Path) -> None:
    child = python(
        "import sys, time; print('http://', end='', flush=True); time.sleep(60)", tmp_path
    )
    try:
        with pytest.raises(ToolkitError, match="was not ready after 0 s"):
            child.first_line(0.3)
    finally:
        child.kill()


def test_a_child_that_ends_tells_its_cause_in_its_own_words(tmp_path: Path) -> None:
    code = "import sys; print('Error: the disk is full\\n\\nHint: Make room', file=sys.stderr); sys.exit(1)"
    with pytest.raises(ToolkitError) as told:
        python(code, tmp_path).first_line(WAIT_S)
    assert told.value.message == "the disk is full"


def test_a_child_without_a_word_of_its_own_is_told_by_its_last_lines(tmp_path: Path) -> None:
    child = python("raise SystemExit('Boom')", tmp_path)
    assert child.wait(WAIT_S) == 1
    assert child.failure().message == "`child` ended with exit code 1: Boom"


def test_a_child_that_does_not_end_in_time_is_told(tmp_path: Path) -> None:
    child = python("import time; time.sleep(60)", tmp_path)
    try:
        with pytest.raises(ToolkitError, match="was not over after 0 s"):
            child.wait(0.2)
    finally:
        child.kill()


def test_stopping_ends_what_it_started_too(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(p.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    child = python(code, tmp_path)
    grandchild = int(child.first_line(WAIT_S))
    child.stop()
    assert child.code == -signal.SIGTERM
    assert until_gone(grandchild)


def test_a_child_that_will_not_hear_is_killed(tmp_path: Path) -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('deaf', flush=True); time.sleep(600)"
    )
    child = python(code, tmp_path)
    child.first_line(WAIT_S)
    child.stop(within_s=0.2)
    assert child.code == -signal.SIGKILL


def test_what_was_left_is_found_again_and_ended(tmp_path: Path) -> None:
    child = python("import time; print('up', flush=True); time.sleep(600)", tmp_path)
    child.first_line(WAIT_S)
    assert is_alive(child.mark)
    assert end_left([child.mark], within_s=WAIT_S) == 1
    assert child.code == -signal.SIGTERM
    assert end_left([child.mark]) == 0


def test_another_process_of_the_same_number_is_left_alone() -> None:
    me = os.getpid()
    ticks = started_ticks(me)
    assert ticks is not None
    assert is_alive((me, ticks))
    assert end_left([(me, ticks - 1)]) == 0


def test_whoever_has_the_number_of_one_that_was_buried_is_left_alone(tmp_path: Path) -> None:
    over = python("", tmp_path)
    over.wait(WAIT_S)
    other = ChildCommand(
        [sys.executable, "-c", "import time; time.sleep(600)"], folder=tmp_path, name="o"
    )
    try:
        # as if the system had given its number to the other one, which began at another moment
        pid, ticks = other.mark
        over.mark = pid, ticks - 1
        over.stop()
        assert is_alive(other.mark)
    finally:
        other.kill()
    assert not is_alive(other.mark)
