"""How `toolkit blast` ends: by Ctrl-C, by a load that dies, and how it goes on from there."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import sim_fleet

PROGRAM = [sys.executable, "-c", "from toolkit.cli import main; main()", "blast"]
LONG = ("--duration", "10m", "--users", "2", "--max-tokens", "8", "--non-neutral", "--no-scout")


@pytest.fixture(scope="module")
def fleet() -> Iterator[str]:
    with sim_fleet.running({"quick": ("gptq-int4", {"time_scale": 0.02})}) as hosts:
        yield hosts


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fleet: str) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TOOLKIT_DB", "TOOLKIT_HOSTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    Path("hosts.txt").write_text(fleet)


@contextmanager
def blasting(*words: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [*PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def rows(query: str) -> list[tuple[Any, ...]]:
    try:
        with closing(sqlite3.connect("data/toolkit.db")) as file:
            return file.execute(query).fetchall()
    except sqlite3.OperationalError:  # it is just being made
        return []


def until(is_so: Callable[[], object]) -> None:
    for _ in range(3_000):
        if is_so():
            return
        time.sleep(0.01)
    pytest.fail("it did not come to that within 30 s")


def counted() -> int:
    return sum(ok or 0 for (ok,) in rows("SELECT sum(ok) FROM tallies WHERE kind = 'ranked'"))


def under_way() -> bool:
    """Marked, too: whoever is interrupted before has no time for it."""
    return counted() > 0 and rows("SELECT 1 FROM events WHERE kind = 'mark'") != []


def load_of(running: "subprocess.Popen[str]") -> int:
    """The process that makes the load, a child of the verb's."""
    (number,) = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    return int(number)


def group(number: int) -> list[int]:
    """Who is alive in a process group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = stat.read_text().rsplit(")", 1)[1].split()[:3]
        except OSError:
            continue
        if int(its_group) == number and state != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_load_cleanly_and_shows_what_was_counted(
    number: signal.Signals,
) -> None:
    with blasting(*LONG, "--json") as running:
        until(under_way)
        load = load_of(running)
        running.send_signal(number)
        output, errors = running.communicate(timeout=40)
    assert running.returncode == 130, errors
    (told,) = map(json.loads, output.splitlines())
    assert told["ok"] == counted()
    ((run, ended_at),) = rows("SELECT id, ended_at FROM runs")
    assert ended_at is not None
    assert errors.splitlines()[-1] == (
        f"Stopped; go on with `toolkit blast --resume {run} --non-neutral --no-scout`"
    )
    assert "Stopping: " in errors
    assert "KeyboardInterrupt" not in errors
    assert group(load) == []
    assert sorted(file.name for file in Path().iterdir()) == ["data", "hosts.txt"]


@pytest.mark.slow
def test_a_second_interrupt_quits_at_once_and_leaves_no_process_and_no_file() -> None:
    with blasting(*LONG, "--processes", "2") as running:
        until(under_way)
        load = load_of(running)
        assert len(group(load)) == 3
        os.kill(load, signal.SIGSTOP)  # or it would have ended by the first one already
        running.send_signal(signal.SIGINT)
        assert running.stderr is not None
        until(lambda: running.stderr.readline().startswith("Stopping: "))
        running.send_signal(signal.SIGINT)
        output, errors = running.communicate(timeout=20)
    assert running.returncode == 130
    assert (output, errors) == ("", "")
    until(lambda: group(load) == [])
    assert sorted(file.name for file in Path().iterdir()) == ["data", "hosts.txt"]


@pytest.mark.slow
def test_a_load_that_is_killed_is_told_and_its_run_goes_on() -> None:
    with blasting(*LONG, "--processes", "2", "--json") as running:
        until(under_way)
        load = load_of(running)
        os.kill(load, signal.SIGKILL)
        output, errors = running.communicate(timeout=20)
    assert running.returncode == 1
    ((run, ended_at),) = rows("SELECT id, ended_at FROM runs")
    assert ended_at is None
    command = f"toolkit blast --resume {run} --non-neutral --no-scout"
    assert errors.endswith(
        f"Error: the load of run `{run}` was killed by SIGKILL; what it had counted up to then is kept\n\n"
        f"Hint: Go on with `{command}`\n"
    )
    (told,) = map(json.loads, output.splitlines())
    assert told["ok"] == counted()
    until(lambda: group(load) == [])

    words = [*command.split()[2:], "--duration", "2s", "--json"]
    done = subprocess.run(
        [*PROGRAM, *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"Blast `{run}` resumes: 2 users on one host, 0:02\n")
    assert json.loads(done.stdout)["ok"] == counted() > told["ok"]
    assert [kind for (kind,) in rows("SELECT kind FROM events ORDER BY id")] == [
        *("start", "mark", "resume", "mark", "stop"),
    ]
    # a second process was asked for when it began, and is asked for again
    assert rows("SELECT count(*), max(ended_at) IS NOT NULL FROM runs") == [(1, 1)]


@pytest.mark.slow
def test_a_verb_that_is_killed_takes_its_load_along_cleanly() -> None:
    with blasting(*LONG) as running:
        until(under_way)
        load = load_of(running)
        running.kill()
        running.communicate(timeout=20)
        until(lambda: group(load) == [])
    ((ended_at,),) = rows("SELECT ended_at FROM runs")
    assert ended_at is not None
    assert [kind for (kind,) in rows("SELECT kind FROM events ORDER BY id")][-1] == "stop"
