"""Launch: an engine is ended with everybody whom it started, whoever is killed first, and nothing of it is left; its log is read as it grows."""

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest
import uvloop
from contract.harness.programs import runs

from toolkit.errors import ToolkitError
from toolkit.serving import launch, processes
from toolkit.serving.launch import (
    KEPT_LOGS,
    LINE_BYTES,
    READ_BYTES,
    GrowingLog,
    Process,
    set_aside,
)
from toolkit.serving.orphans import end_orphan, note_of
from toolkit.serving.reaper import turn_over

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="families are read from /proc")


# Every member says `NAME PID` once its signals are set, so that a test waits for lines and never for time.
MEMBER = """
import os, signal, subprocess, sys, time
name, stubborn, *children = sys.argv[1:]
if stubborn == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
for child in children:
    kind, _, manners = child.partition(":")
    subprocess.Popen([sys.executable, "-c", os.environ["MEMBER"], kind, manners], start_new_session=kind == "far",
                     env=None if kind != "bare" else {"MEMBER": os.environ["MEMBER"]})
print(name, os.getpid(), flush=True)
time.sleep(600)
"""


def command(name: str, manners: str, *children: str) -> list[str]:
    """A member that starts children `NAME:MANNERS`; one called `far` is in a session of its own."""
    return [sys.executable, "-c", MEMBER, name, manners, *children]


def environment() -> dict[str, str]:
    return {**os.environ, "MEMBER": MEMBER}


def run(story: Callable[[Path], Awaitable[None]], tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(story(tmp_path / "logs" / "engine.log"), 60))  # type: ignore[arg-type]


async def pids(process: Process, count: int) -> dict[str, int]:
    """Who has said that they are there."""
    found: dict[str, int] = {}
    async for line in process.lines():
        name, pid = line.split()
        found[name] = int(pid)
        if len(found) == count:
            break
    return found


def test_its_lines_are_read_as_it_writes_them_and_its_code_is_known(tmp_path: Path) -> None:
    async def story(log: Path) -> None:
        script = "import sys; print('one'); print('two', file=sys.stderr); print('three', end=''); sys.exit(7)"
        process = await Process.start([sys.executable, "-uc", script], environment(), log)
        assert [line async for line in process.lines()] == ["one", "two", "three"]
        assert (await process.ended(), process.code) == (7, 7)
        await process.gone()
        assert process.said() == ["one", "two", "three"]
        await process.stop()

    run(story, tmp_path)


def test_a_stubborn_family_in_several_sessions_is_ended_to_the_last(tmp_path: Path) -> None:
    async def story(log: Path) -> None:
        argv = command("parent", "stubborn", "near:stubborn", "far:stubborn", "bare:stubborn")
        process = await Process.start(argv, environment(), log)
        family = await pids(process, 4)
        assert {one.pid for one in process.members()} == set(family.values())
        await process.stop(0.2)
        assert not [name for name, pid in family.items() if runs(pid)]
        assert process.code == -signal.SIGKILL
        assert process.members() == []

    run(story, tmp_path)


def test_an_engine_that_ends_on_sigterm_is_not_killed(tmp_path: Path) -> None:
    async def story(log: Path) -> None:
        process = await Process.start(command("parent", "polite"), environment(), log)
        await pids(process, 1)
        await process.stop(30)
        assert process.code == -signal.SIGTERM

    run(story, tmp_path)


def test_orphans_are_ended_when_the_engine_is_killed(tmp_path: Path) -> None:
    async def story(log: Path) -> None:
        argv = command("parent", "polite", "near:polite", "far:stubborn")
        process = await Process.start(argv, environment(), log, within_s=0.2)
        family = await pids(process, 3)
        os.kill(process.pid, signal.SIGKILL)
        assert await process.ended() == -signal.SIGKILL
        await process.gone()
        assert not [name for name, pid in family.items() if runs(pid)]

    run(story, tmp_path)


def test_orphans_are_ended_when_the_reaper_is_killed_too(tmp_path: Path) -> None:
    async def story(log: Path) -> None:
        argv = command("parent", "polite", "near:stubborn", "far:polite")
        process = await Process.start(argv, environment(), log, within_s=0.2)
        family = await pids(process, 3)
        os.kill(psutil.Process(process.pid).ppid(), signal.SIGKILL)
        await process.gone()
        assert not [name for name, pid in family.items() if runs(pid)]
        assert await process.ended() == -signal.SIGKILL

    run(story, tmp_path)


# A serve of its own, which says whom it started and is then killed with its engine running.
SERVE = """
import asyncio, os, sys
from pathlib import Path
from toolkit.serving.launch import Process

async def main():
    process = await Process.start({argv!r}, dict(os.environ), Path({log!r}), within_s=0.2)
    async for line in process.lines():
        print(line, flush=True)

asyncio.run(main())
"""


def serve(log: Path) -> tuple["subprocess.Popen[str]", dict[str, int]]:
    argv = command("parent", "polite", "near:stubborn", "far:stubborn")
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE.format(argv=argv, log=str(log))],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment(),
    )
    assert process.stdout is not None
    family: dict[str, int] = {}
    while len(family) < 3:
        name, pid = process.stdout.readline().split()
        family[name] = int(pid)
    return process, family


def test_an_engine_dies_with_a_serve_that_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    process, family = serve(log)
    process.kill()
    process.communicate()
    # the next start waits until the reaper has done its work; no other one is needed
    asyncio.run(asyncio.wait_for(end_orphan(log), 60))
    assert not [name for name, pid in family.items() if runs(pid)]
    assert not note_of(log).exists()


def test_the_engine_of_a_serve_that_lives_is_left_alone(tmp_path: Path) -> None:
    async def story(log: Path) -> None:
        process = await Process.start(command("parent", "polite"), environment(), log)
        with pytest.raises(ToolkitError, match="is running, started by process"):
            await Process.start(command("parent", "polite"), environment(), log)
        assert process.code is None
        assert process.members()
        await process.stop()

    run(story, tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"boot": "of another day"}'])
def test_a_note_that_was_cut_short_names_nobody(tmp_path: Path, text: str) -> None:
    log = tmp_path / "engine.log"
    note_of(log).write_text(text)
    assert asyncio.run(end_orphan(log)) is None


CHILDBEARING = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"])
print(child.pid, flush=True)
print(child.wait())
"""


def test_somebody_who_has_a_noted_number_by_chance_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    with subprocess.Popen(
        [sys.executable, "-c", CHILDBEARING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as stranger:
        started = processes.start_ticks(stranger.pid)
        assert started is not None
        assert stranger.stdout is not None
        assert runs(int(stranger.stdout.readline()))
        # the engine's number is a stranger's by now, a session leader with a child, and so is its reaper's; all of
        # them started after the engine of the note, whose serve and reaper are gone
        numbers = {
            "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "house": stranger.pid,
            "house_started": started - 1,
            "keeper": stranger.pid,
            "keeper_started": started - 1,
            "engine": stranger.pid,
            "started": started - 1,
            "mark": "none",
        }
        note_of(log).write_text(json.dumps(numbers))
        asyncio.run(end_orphan(log))
        assert stranger.poll() is None
        out, _ = stranger.communicate(b"\n")
        # both went their own way: no signal ended them
        assert (stranger.returncode, out) == (0, b"0\n")


# Starts somebody in a session of its own who carries no mark, and is gone itself when that one says so.
VANISHED = """
import subprocess, sys, time
child = "import os, time; print('adopted', os.getpid(), flush=True); time.sleep(600)"
middle = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True, env={{}})"
subprocess.run([sys.executable, "-c", middle])
time.sleep(600)
"""


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_engine_that_cannot_be_noted_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    started: list[processes.Origin] = []

    def full(_: Path, origin: processes.Origin) -> None:
        started.append(origin)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(launch, "write_note", full)

    async def story() -> None:
        with pytest.raises(OSError, match="No space left"):
            await Process.start(command("parent", "polite"), environment(), tmp_path / "e.log")
        (origin,) = started
        assert processes.family(origin) == []
        assert not runs(origin.reaper)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(story(), 60))


def test_one_whose_parent_is_gone_and_who_carries_no_mark_is_ended_too(tmp_path: Path) -> None:
    async def story(log: Path) -> None:
        process = await Process.start([sys.executable, "-c", VANISHED], environment(), log)
        adopted = (await pids(process, 1))["adopted"]
        await process.stop(0.2)
        assert not runs(adopted)

    run(story, tmp_path)


SHARING = """
import time
from multiprocessing import resource_tracker, shared_memory
block = shared_memory.SharedMemory(create=True, size=4096)
resource_tracker.unregister(block._name, "shared_memory")  # nobody tidies up, as after SIGKILL
print(block.name, flush=True)
time.sleep(600)
"""


def test_shared_memory_that_it_leaves_is_removed_and_another_ones_is_not(tmp_path: Path) -> None:
    async def story(log: Path) -> None:
        process = await Process.start([sys.executable, "-c", SHARING], environment(), log)
        own.append(Path("/dev/shm") / await anext(aiter(process.lines())))
        assert own[0].exists()
        await process.stop()

    own: list[Path] = []
    other = subprocess.Popen([sys.executable, "-c", SHARING], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    foreign = Path("/dev/shm") / other.stdout.readline().strip()
    try:
        run(story, tmp_path)
        assert (own[0].exists(), foreign.exists()) == (False, True)
    finally:
        other.kill()
        other.communicate()
        foreign.unlink()


def test_it_is_stopped_only_when_its_memory_is_free(tmp_path: Path) -> None:
    async def story(log: Path) -> None:
        answers = iter([False, False, True])
        process = await Process.start(command("parent", "polite"), environment(), log)
        await process.stop(is_free=lambda: next(answers))
        assert next(answers, None) is None

    run(story, tmp_path)


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
