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


def test_its_first_whole_line_is_waited_for(tmp_path: Path) -> None:
    up = python("import time; print('http://h', flush=True); time.sleep(60)", tmp_path)
    assert (up.first_line(WAIT_S), up.code) == ("http://h", None)
    up.stop(0)
    half = python("import time; print('half', end='', flush=True); time.sleep(60)", tmp_path)
    with pytest.raises(ToolkitError, match="was not ready after 0 s"):
        half.first_line(0.3)
    with pytest.raises(ToolkitError, match="was not over after 0 s"):
        half.wait(0.2)
    half.stop(0)


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("print('Error: the disk is full\\n\\nHint: Make room', file=sys.stderr); sys.exit(1)", "the disk is full"),
        ("sys.exit('Boom')", "`child` ended with exit code 1: Boom"),
        ("sys.exit(3)", "`child` ended with exit code 3"),
    ],
)  # fmt: skip
def test_a_child_that_ends_says_why_in_its_own_words(tmp_path: Path, code: str, cause: str) -> None:
    with pytest.raises(ToolkitError) as failed:
        python(f"import sys; {code}", tmp_path).first_line(WAIT_S)
    assert failed.value.message == cause


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


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('up', flush=True); time.sleep(600)"
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
        with pytest.raises(ToolkitError, match="was not over"):
            other.wait(0.3)
    finally:
        other.stop(0)
    assert not is_alive(other.mark)
