"""Starts an engine, reads its log, waits until it is ready, and ends it with its whole family. It knows no flags and no log line's meaning."""

import asyncio
import os
import re
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import aiohttp
import psutil

from toolkit.errors import ToolkitError, reason_of
from toolkit.serving.orphans import end_orphan, end_without_reaper, note_of, write_note
from toolkit.serving.processes import MARK, TERM_S, Origin, family

READ_S = 0.1
"""Between two looks into a log that did not grow."""
FREE_S = 30.0
"""Longest wait for a GPU's memory once all processes have ended."""
KEPT_LOGS = 5
"""Logs of earlier starts, `.1` the newest: in a crash loop the first failure says more than the last."""
READ_BYTES = 1 << 20
"""At once."""
LAST_BYTES = 2 << 20
"""That are looked through for a cause; a start that fails writes some 100 KiB."""
LINE_BYTES = 16_384
"""Of a longer line the rest is left out; vLLM's own longest, its configuration, has 4,000 characters."""
PROBE_S = 0.25
"""Between two probes; vLLM binds its port early and listens only when it is ready."""
ANSWER_S = 5.0
_LINE_END = re.compile(rb"\r\n|\n|\r")
"""Progress bars end their lines by a carriage return."""
_REAPER = (
    "import sys; sys.path.insert(0, sys.argv.pop(1))\n"
    "from toolkit.serving.reaper import main; main()"
)
_ROOT = str(Path(__file__).parents[2])


class Process:
    """An engine that was started, and all processes that it started."""

    def __init__(
        self,
        reaper: asyncio.subprocess.Process,
        origin: Origin,
        log: Path,
        within_s: float = TERM_S,
    ) -> None:
        self.pid = origin.engine
        self.log = log
        self.code: int | None = None
        """As Python has it: -9 was killed. Known at once, while its family is still being ended."""
        self.left: tuple[int, ...] = ()
        """Members whom not even SIGKILL ended."""
        self._reaper = reaper
        self._origin = origin
        self._within_s = within_s
        self._ended = asyncio.Event()
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        env: Mapping[str, str],
        log_path: Path,
        *,
        within_s: float = TERM_S,
    ) -> "Process":
        """Start a command in a session of its own, its output in a new log. Raises ToolkitError.

        `within_s` is from SIGTERM to SIGKILL when we die and cannot say it.
        """
        await end_orphan(log_path, within_s)
        set_aside(log_path)
        mark = f"{log_path.name}-{secrets.token_hex(8)}"
        with log_path.open("ab") as output:
            try:
                reaper = await asyncio.create_subprocess_exec(
                    # -I: the engine's PYTHONPATH is for the engine
                    *(sys.executable, "-I", "-c", _REAPER),
                    *(_ROOT, os.fspath(log_path), str(within_s), *argv),
                    env={**env, MARK: mark},
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=output,
                    # Ctrl-C is for us, who then stop it in order
                    start_new_session=True,
                )
            except OSError as error:
                raise ToolkitError(
                    f"no process can be started for `{argv[0]}`: {reason_of(error)}",
                    "`ulimit -u` and `ulimit -n` tell how many processes and open files this user may have",
                ) from error
        assert reaper.stdin is not None
        assert reaper.stdout is not None
        try:
            words = (await reaper.stdout.readline()).decode().split()
            if words[:1] == ["started"]:
                origin = Origin(
                    reaper=reaper.pid, engine=int(words[1]), started=int(words[2]), mark=mark
                )
                # without a note, as on a full disk, nobody would find the engine after a crash
                write_note(log_path, origin)
                return cls(reaper, origin, log_path, within_s)
            await reaper.wait()
        except BaseException:
            # the end of its pipe ends the reaper and what it has started
            reaper.stdin.close()
            await asyncio.shield(reaper.wait())
            raise
        why = " ".join(words[1:]).lower() or f"its reaper failed, see `{log_path}`"
        raise ToolkitError(
            f"`{argv[0]}` can't be started: {why}", "Is it installed, and may it run?"
        )

    async def ended(self) -> int:
        """Wait until the engine itself has ended; its code."""
        await self._ended.wait()
        assert self.code is not None
        return self.code

    async def gone(self) -> None:
        """Wait until its whole family has ended."""
        await asyncio.shield(self._listening)

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

    def members(self) -> list[psutil.Process]:
        """Its processes that run."""
        return family(self._origin)

    async def stop(
        self, within_s: float = TERM_S, *, is_free: Callable[[], bool] | None = None
    ) -> None:
        """End its whole family; back only when all are gone, and `is_free` says that their memory is, too.

        Raises ToolkitError for a process that even SIGKILL does not end, and for memory that stays taken.
        """
        if self._reaper.stdin is not None:
            # RuntimeError: uvloop's word for a pipe that is closed, as the reaper has ended by itself
            with suppress(BrokenPipeError, ConnectionResetError, RuntimeError):
                self._reaper.stdin.write(f"stop {within_s}\n".encode())
                await self._reaper.stdin.drain()
        await self.gone()
        if self.left:
            raise ToolkitError(
                f"process {self.left[0]} of the engine can't be ended: it waits in the kernel",
                f"See `cat /proc/{self.left[0]}/status`; a GPU's driver that hangs needs a reboot",
            )
        try:
            async with asyncio.timeout(FREE_S):
                while is_free is not None and not await asyncio.to_thread(is_free):  # noqa: ASYNC110 (a driver tells nobody)
                    await asyncio.sleep(READ_S)
        except TimeoutError:
            raise ToolkitError(
                "the engine's processes are gone, but the GPU's memory is not free",
                "`nvidia-smi` names who else holds it",
            ) from None

    async def _listen(self) -> None:
        """Read the reaper's reports to their end; then nobody of the family is left."""
        assert self._reaper.stdout is not None
        while words := (await self._reaper.stdout.readline()).decode().split():
            if words[0] == "ended":
                self.code = int(words[1])
                self._ended.set()
            elif words[0] == "left":
                self.left = tuple(map(int, words[1:]))
        await self._reaper.wait()
        if self.code is None or self._reaper.returncode != 0:
            # it was killed: do its work
            left = await asyncio.to_thread(end_without_reaper, self._origin, self._within_s)
            self.left = tuple(left)
            self.code = -signal.SIGKILL if self.code is None else self.code
        self._ended.set()
        if not self.left:
            note_of(self.log).unlink(missing_ok=True)


def set_aside(log: Path) -> None:
    """Rename the log of the last start to `.1`, that to `.2`, and so on."""
    log.parent.mkdir(parents=True, exist_ok=True)
    for number in range(KEPT_LOGS - 1, 0, -1):
        with suppress(FileNotFoundError):
            log.with_name(f"{log.name}.{number}").replace(log.with_name(f"{log.name}.{number + 1}"))
    with suppress(FileNotFoundError):
        log.replace(log.with_name(f"{log.name}.1"))
    # it may hold prompts
    log.touch(mode=0o600)


class GrowingLog:
    """Reads the lines that were added since the last time, also when the log began anew meanwhile."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._offset = 0
        self._inode: int | None = None
        self._open = b""

    def read(self) -> list[str]:
        """Whole lines, at most 1 MiB of them; none when nothing was added."""
        return self._lines(self._added())

    def skip(self, last_bytes: int = LAST_BYTES) -> None:
        """Go on near the end: of an engine that ran for days nobody reads all."""
        with suppress(FileNotFoundError):
            state = self.log.stat()
            self._offset, self._inode = max(self._offset, state.st_size - last_bytes), state.st_ino

    def rest(self) -> list[str]:
        """All that is left, and a last line without an end: nobody writes any more."""
        lines: list[str] = []
        while added := self._added():
            lines += self._lines(added)
        last, self._open = self._open, b""
        return lines + ([last.decode(errors="replace")] if last else [])

    def _added(self) -> bytes:
        try:
            with self.log.open("rb") as file:
                state = os.fstat(file.fileno())
                is_new = self._inode not in (None, state.st_ino) or state.st_size < self._offset
                self._inode = state.st_ino
                if not is_new:
                    return self._from(file)
            # it was copied to `.1` and emptied, or renamed to that: what we had not read stands there
            left = b""
            with (
                suppress(FileNotFoundError),
                self.log.with_name(f"{self.log.name}.1").open("rb") as file,
            ):
                left = self._from(file)
            self._offset = 0
            return left or self._added()
        except OSError:
            return b""

    def _from(self, file: BinaryIO) -> bytes:
        file.seek(self._offset)
        added = file.read(READ_BYTES)
        self._offset += len(added)
        return added

    def _lines(self, added: bytes) -> list[str]:
        # a carriage return at the very end may be half of a line's end
        *lines, self._open = _LINE_END.split(self._open + added)
        self._open = self._open[-LINE_BYTES:]
        return [line[:LINE_BYTES].decode(errors="replace") for line in lines]


async def ready(
    url: str, key: str | None, limit_s: float, is_alive: Callable[[], bool] = lambda: True
) -> float:
    """Seconds until the engine at this base URL was healthy.

    Raises ToolkitError when it is not in time, or when `is_alive` says that nobody is there any more.
    """
    began_s, last = time.monotonic(), "nobody listens"
    try:
        async with asyncio.timeout(limit_s):
            while is_alive():
                last = await answer(url, key)
                if last == "HTTP 200":
                    return time.monotonic() - began_s
                await asyncio.sleep(PROBE_S)
    except TimeoutError:
        raise ToolkitError(
            f"the engine at `{url}` was not ready after {limit_s:g} s: {last}",
            "See its log; a large model wants longer: `ready` in a stack file, or --ready",
        ) from None
    raise ToolkitError(f"the engine at `{url}` ended before it was ready", "See its log")


async def answer(url: str, key: str | None = None, limit_s: float = ANSWER_S) -> str:
    """How `/health` answers: `HTTP 200`, or why not. It runs no model, and the body is not read."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(limit_s)) as session,
            session.get(
                f"{url.rstrip('/')}/health", headers=headers, allow_redirects=False
            ) as response,
        ):
            return f"HTTP {response.status}"
    except TimeoutError:
        return f"no answer in {limit_s:.1f} s"
    except OSError as error:
        # the address stands in the error's own text
        return os.strerror(error.errno).lower() if error.errno else "no connection"
    except aiohttp.ClientError:
        return "an answer that is no HTTP"
