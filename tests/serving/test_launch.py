"""Launch: an engine is ended with everybody whom it started, whoever is killed first, and nothing of it is left."""

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest
import uvloop
from contract.harness.programs import runs
from support.families import command, environment

from toolkit.errors import ToolkitError
from toolkit.serving import launch, processes
from toolkit.serving.launch import Process
from toolkit.serving.orphans import end_orphan, note_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="families are read from /proc")


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


def test_an_engine_is_ended_on_uvloop(tmp_path: Path) -> None:
    async def story() -> None:
        argv = command("parent", "polite", "far:polite")
        process = await Process.start(argv, environment(), tmp_path / "log", within_s=0.2)
        family = await pids(process, 2)
        os.kill(process.pid, signal.SIGKILL)
        assert await process.ended() == -signal.SIGKILL
        await process.gone()
        await process.stop()
        assert not [name for name, pid in family.items() if runs(pid)]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(story(), 60))


def test_an_engine_that_ends_on_sigterm_is_not_killed(tmp_path: Path) -> None:
    async def story(log: Path) -> None:
        process = await Process.start(command("parent", "polite"), environment(), log)
        await pids(process, 1)
        await process.stop(30)
        assert process.code == -signal.SIGTERM

    run(story, tmp_path)


def test_a_frozen_engine_hears_that_it_is_to_end(tmp_path: Path) -> None:
    async def story(log: Path) -> None:
        process = await Process.start(command("parent", "polite"), environment(), log)
        await pids(process, 1)
        os.kill(process.pid, signal.SIGSTOP)
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


@pytest.mark.slow
def test_the_code_is_known_before_the_orphans_are_ended(tmp_path: Path) -> None:
    async def story(log: Path) -> None:
        process = await Process.start(
            command("parent", "polite", "far:stubborn"), environment(), log
        )
        orphan = (await pids(process, 2))["far"]
        os.kill(process.pid, signal.SIGTERM)
        assert await process.ended() == -signal.SIGTERM
        assert runs(orphan)  # it ignores SIGTERM, so it has its two seconds yet
        await process.stop()
        assert not runs(orphan)

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
import asyncio, sys
from pathlib import Path
sys.path[:0] = {path!r}
from support.families import command, environment
from toolkit.serving.launch import Process

async def main():
    process = await Process.start(command("parent", "polite", "near:stubborn", "far:stubborn"), environment(),
                                  Path({log!r}), within_s=0.2)
    async for line in process.lines():
        print(line, flush=True)

asyncio.run(main())
"""


def serve(log: Path) -> tuple["subprocess.Popen[str]", dict[str, int]]:
    source = textwrap.dedent(SERVE).format(path=sys.path, log=str(log))
    process = subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, start_new_session=True
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
    asyncio.run(end_orphan(log))


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


def test_a_command_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    async def story(log: Path) -> None:
        with pytest.raises(ToolkitError) as caught:
            await Process.start(["/nowhere/vllm", "serve"], environment(), log)
        assert caught.value.message == "`/nowhere/vllm` can't be started: no such file or directory"

    run(story, tmp_path)


# Starts somebody in a session of its own who carries no mark, and is gone itself when that one says so.
VANISHED = """
import subprocess, sys, time
child = "import os, time; print('adopted', os.getpid(), flush=True); time.sleep(600)"
middle = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True, env={{}})"
subprocess.run([sys.executable, "-c", middle])
time.sleep(600)
"""


def test_a_machine_that_starts_no_further_process_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", full)

    async def story(log: Path) -> None:
        with pytest.raises(ToolkitError) as told:
            await Process.start(["vllm"], {}, log)
        wanted = "no process can be started for `vllm`: resource temporarily unavailable"
        assert told.value.message == wanted
        assert "ulimit -u" in told.value.hint

    run(story, tmp_path)


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


ATTACHED = """
import sys
from multiprocessing import resource_tracker, shared_memory
block = shared_memory.SharedMemory(sys.argv[1])
resource_tracker.unregister(block._name, "shared_memory")
print("there", flush=True)
input()
"""


def test_shared_memory_that_somebody_else_uses_is_left(tmp_path: Path) -> None:
    async def story(log: Path) -> None:
        process = await Process.start([sys.executable, "-c", SHARING], environment(), log)
        name = await anext(aiter(process.lines()))
        others.append(attached(name))
        await process.stop()
        assert (Path("/dev/shm") / name).exists()
        (Path("/dev/shm") / name).unlink()

    def attached(name: str) -> "subprocess.Popen[str]":
        words = [sys.executable, "-c", ATTACHED, name]
        other = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert other.stdout is not None
        assert other.stdout.readline() == "there\n"
        return other

    others: list[subprocess.Popen[str]] = []
    run(story, tmp_path)
    others[0].communicate("\n")


def test_it_is_stopped_only_when_its_memory_is_free(tmp_path: Path) -> None:
    async def story(log: Path) -> None:
        answers = iter([False, False, True])
        process = await Process.start(command("parent", "polite"), environment(), log)
        await process.stop(is_free=lambda: next(answers))
        assert next(answers, None) is None

    run(story, tmp_path)


def test_stopping_twice_is_stopping(tmp_path: Path) -> None:
    async def story(log: Path) -> None:
        process = await Process.start(command("parent", "polite"), environment(), log)
        await asyncio.gather(process.stop(), process.stop())
        await process.stop()
        assert process.code == -signal.SIGTERM

    run(story, tmp_path)
