"""Starts an engine and ends it with its whole family. It knows no flags and reads no log line's meaning."""

import asyncio
import json
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.serving.start import processes
from toolkit.serving.start.log_file import GrowingLog, set_aside

READ_S = 0.1
"""Between two looks into a log that did not grow."""
TERM_S = 10.0
"""From SIGTERM to SIGKILL; a vLLM at rest takes about 2 s."""
FREE_S = 30.0
"""Longest wait for a GPU's memory once all processes have ended."""
_KEEPER = (
    "import sys; sys.path.insert(0, sys.argv.pop(1))\n"
    "from toolkit.serving.start.keeper import main; main()"
)
_NOTED = "boot house house_started keeper keeper_started engine started mark".split()
_ROOT = str(Path(__file__).parents[3])


class Process:
    """An engine that was started, and everybody whom it started."""

    def __init__(
        self,
        keeper: asyncio.subprocess.Process,
        origin: processes.Origin,
        log: Path,
        within_s: float = TERM_S,
    ) -> None:
        self.pid = origin.engine
        self.log = log
        self.code: int | None = None
        """As Python has it: -9 was killed. Known at once, while its family is still being ended."""
        self.left: tuple[int, ...] = ()
        """Members whom not even SIGKILL ended."""
        self._keeper = keeper
        self._origin = origin
        self._within_s = within_s
        self._ended = asyncio.Event()
        self._told = asyncio.create_task(self._listen())

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        env: Mapping[str, str],
        log_path: Path,
        *,
        within_s: float = TERM_S,
    ) -> "Process":
        """Start a command in a session of its own; what it says goes to a new log. Raises ToolkitError.

        `within_s` is from SIGTERM to SIGKILL when we die without asking.
        """
        await end_leftovers(log_path, within_s)
        set_aside(log_path)
        mark = f"{log_path.name}-{secrets.token_hex(8)}"
        keeper = await _keeper(argv, dict(env) | {processes.MARK: mark}, log_path, within_s)
        try:
            words = await _first_words(keeper, argv[0], log_path)
            origin = processes.Origin(
                keeper=keeper.pid, engine=int(words[0]), started=int(words[1]), mark=mark
            )
            # a disk that is full takes no note, and then nobody would know of the engine
            _write_note(log_path, origin)
        except BaseException:
            await asyncio.shield(_let_go(keeper))
            raise
        return cls(keeper, origin, log_path, within_s)

    async def ended(self) -> int:
        """Wait until the engine itself has ended; its code."""
        await self._ended.wait()
        assert self.code is not None
        return self.code

    async def gone(self) -> None:
        """Wait until its whole family has ended."""
        await asyncio.shield(self._told)

    async def lines(self) -> AsyncIterator[str]:
        """Every line of its log, from the first one on, until it has ended."""
        log = GrowingLog(self.log)
        while not self._ended.is_set():
            found = log.read()
            for line in found:
                yield line
            if not found:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), READ_S)
        for line in log.rest():
            yield line

    def said(self) -> list[str]:
        """The lines of its log so far; of a long one the last."""
        log = GrowingLog(self.log)
        log.skip()
        return log.rest()

    def members(self) -> list[processes.Member]:
        """Its processes that run."""
        return processes.family(self._origin)

    async def stop(
        self, within_s: float = TERM_S, *, is_free: Callable[[], bool] | None = None
    ) -> None:
        """End its whole family; back only when all are gone, and `is_free` says that their memory is, too.

        Raises ToolkitError for a process that even SIGKILL does not end, and for memory that stays taken.
        """
        if self._keeper.stdin is not None:
            # RuntimeError: uvloop's word for a pipe that is closed, as the keeper has ended by itself
            with suppress(BrokenPipeError, ConnectionResetError, RuntimeError):
                self._keeper.stdin.write(f"stop {within_s}\n".encode())
                await self._keeper.stdin.drain()
        await self.gone()
        if self.left:
            raise ToolkitError(
                f"process {self.left[0]} of the engine can't be ended: it waits in the kernel",
                f"See `cat /proc/{self.left[0]}/status`; a GPU's driver that hangs needs a reboot",
            )
        if is_free is not None:
            await _wait_until_free(is_free)

    async def _listen(self) -> None:
        """What the keeper tells, to its end; then nobody of the family is left."""
        assert self._keeper.stdout is not None
        while words := (await self._keeper.stdout.readline()).decode().split():
            if words[0] == "ended":
                self.code = int(words[1])
                self._ended.set()
            elif words[0] == "left":
                self.left = tuple(map(int, words[1:]))
        await self._keeper.wait()
        if self.code is None or self._keeper.returncode != 0:
            await self._end_ourselves()
        self._ended.set()
        if not self.left:
            note(self.log).unlink(missing_ok=True)

    async def _end_ourselves(self) -> None:
        """The keeper was killed: do its work."""
        self.left = tuple(await asyncio.to_thread(_end, self._origin, self._within_s))
        self.code = -signal.SIGKILL if self.code is None else self.code


def _end(known: processes.Origin, within_s: float) -> list[int]:
    """End a family that has no keeper any more, with its shared memory."""
    origin = replace(known, keeper=processes.NOBODY)
    shared = processes.shared_files(one.pid for one in processes.family(origin))
    left = processes.end(origin, within_s)
    processes.remove_shared(shared)
    return left


async def _keeper(
    argv: Sequence[str], env: Mapping[str, str], log: Path, within_s: float
) -> asyncio.subprocess.Process:
    with log.open("ab") as output:
        try:
            return await asyncio.create_subprocess_exec(
                # -I: the engine's PYTHONPATH is for the engine
                *(sys.executable, "-I", "-c", _KEEPER, _ROOT, os.fspath(log), str(within_s)),
                *argv,
                env=env,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=output,
                # Ctrl-C is for us, who then stop it in order
                start_new_session=True,
            )
        except OSError as error:
            raise ToolkitError(
                f"no process can be started for `{argv[0]}`: {(error.strerror or 'no reason given').lower()}",
                "`ulimit -u` and `ulimit -n` tell how many processes and open files this user may have",
            ) from error


async def _let_go(keeper: asyncio.subprocess.Process) -> None:
    """Close the pipe to it, which ends it and what it has started; back when it has gone."""
    assert keeper.stdin is not None
    keeper.stdin.close()
    await keeper.wait()


async def _first_words(
    keeper: asyncio.subprocess.Process, command: str, log: Path
) -> Sequence[str]:
    assert keeper.stdout is not None
    words = (await keeper.stdout.readline()).decode().split()
    if words and words[0] == "started":
        return words[1:]
    await keeper.wait()
    why = " ".join(words[1:]).lower() or f"its keeper failed, see `{log}`"
    raise ToolkitError(f"`{command}` can't be started: {why}", "Is it installed, and may it run?")


async def _wait_until_free(is_free: Callable[[], bool]) -> None:
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + FREE_S
    while not await asyncio.to_thread(is_free):
        if loop.time() > give_up_at:
            raise ToolkitError(
                "the engine's processes are gone, but the GPU's memory is not free",
                "`nvidia-smi` names who else holds it",
            )
        await asyncio.sleep(READ_S)


def note(log: Path) -> Path:
    """Where it stands who was started, for the next start after a crash."""
    return log.with_name(f"{log.name}.family")


def _write_note(log: Path, origin: processes.Origin) -> None:
    keeper, house = processes.member(origin.keeper), processes.member(os.getpid())
    text = {
        "boot": _boot(),
        "house": os.getpid(),
        "house_started": 0 if house is None else house.started,
        "keeper_started": 0 if keeper is None else keeper.started,
        "keeper": origin.keeper,
        "engine": origin.engine,
        "started": origin.started,
        "mark": origin.mark,
    }
    note(log).write_text(json.dumps(text))


def _boot() -> str:
    """Pids and ticks begin anew with each boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


async def end_leftovers(log: Path, within_s: float = TERM_S) -> None:
    """End what an earlier start with this log left behind, when both it and its keeper were killed.

    Raises ToolkitError while the engine of somebody who lives writes there.
    """
    found = _read_note(log)
    if found is None:
        return
    if found["boot"] == _boot():
        if processes.is_same(found["house"], found["house_started"]):
            await _refuse_living(log, found)
        await _wait_for_keeper(found)
        await asyncio.to_thread(_end, _origin(found), within_s)
    note(log).unlink(missing_ok=True)


def _read_note(log: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(note(log).read_bytes())
        # a note that was cut short by a full disk names nobody
        return dict(found) if {*_NOTED} <= found.keys() else None
    except (OSError, ValueError, AttributeError):
        return None


def _origin(found: Mapping[str, Any]) -> processes.Origin:
    return processes.Origin(
        keeper=found["keeper"], engine=found["engine"], started=found["started"], mark=found["mark"]
    )


async def _refuse_living(log: Path, found: Mapping[str, Any]) -> None:
    if processes.is_same(found["keeper"], found["keeper_started"]):
        raise ToolkitError(
            f"an engine that writes `{log}` is running, started by process {found['house']}",
            "Stop it first (`toolkit serve stop`), or give this one another folder",
        )


async def _wait_for_keeper(found: Mapping[str, Any]) -> None:
    """A keeper whose house died ends its family by itself; its own limits are shorter than ours."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + processes.KILLED_S + FREE_S
    while processes.is_same(found["keeper"], found["keeper_started"]):
        if loop.time() > give_up_at:
            raise ToolkitError(
                f"process {found['keeper']} of an earlier start does not end",
                f"End it by hand: `kill -9 {found['keeper']}`",
            )
        await asyncio.sleep(READ_S)
