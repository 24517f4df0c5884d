"""The process that makes the load, as its parent sees it: started on a leash, read, interrupted once, cleared away."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError

LOCUSTFILE = Path("locustfiles", "blast.py")
LEASH = Path(__file__).with_name("blast_leash.py")
KEPT_LINES = 200
"""Of its output, the last ones: enough for a traceback."""
MOST_LINE_CHARS = 2_000
READ_BYTES = 65_536
MOST_LINE_BYTES = 2**20
READ_OUT_S = 5.0
"""After the end of all processes their output is there at once; whoever else holds the pipe is not waited for."""


def locustfile(root: Path = Path(__file__).parents[2]) -> Path:
    """Where the load's own file is: beside the package. Raises ToolkitError."""
    path = root / LOCUSTFILE
    if not path.is_file():
        raise ToolkitError(
            f"`{path}` is not there, which makes the load",
            "Run the toolkit from its checkout: `git clone`, then `pip install -e .` in it",
        )
    return path


class Child:
    """One process of the load with all that it forks. `secrets` are never repeated from its output."""

    def __init__(self, command: Sequence[str], *, secrets: Collection[str] = ()) -> None:
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        """What it said last, on either of its outputs."""
        self._command = [sys.executable, str(LEASH), str(os.getpid()), *command]
        self._secrets = [word for word in secrets if word]
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self, environment: Mapping[str, str], on_line: Callable[[str], None] = lambda _: None
    ) -> None:
        """Start it in a session of its own: a terminal's Ctrl-C reaches it through us, once.

        To be called in the main thread, as Linux takes the end of the thread that forked for the parent's.
        """
        self._process = subprocess.Popen(  # noqa: S603 (our own words)
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
        loop = asyncio.get_running_loop()
        # not asyncio's subprocess: its end is that of all who hold the pipe, so of orphaned workers, too
        self._ended, self._read_out = loop.create_future(), loop.create_future()
        self._in_thread(self._process.wait, self._ended)
        self._in_thread(lambda: self._read(loop, on_line), self._read_out)

    async def ended(self) -> int:
        """Wait for its end; the exit code, negative for a signal. What it forked is gone then, too."""
        assert self._process is not None
        code: int = await asyncio.shield(self._ended)
        self.kill()  # a master that was killed leaves its workers behind, which would load on for a minute
        await asyncio.wait((self._read_out,), timeout=READ_OUT_S)
        return code

    def interrupt(self) -> None:
        """Ask it to end cleanly."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End it and all that it forked, at once."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    @staticmethod
    def _in_thread(work: Callable[[], Any], future: "asyncio.Future[Any]") -> None:
        """Do it in a daemon thread, and tell the future what came of it."""
        loop = future.get_loop()

        def tell(result: Any) -> None:
            if not future.done():
                future.set_result(result)

        def run() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(tell, work())

        threading.Thread(target=run, daemon=True).start()

    def _read(self, loop: asyncio.AbstractEventLoop, on_line: Callable[[str], None]) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        rest = b""
        with self._process.stdout as pipe:
            while data := os.read(pipe.fileno(), READ_BYTES):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    loop.call_soon_threadsafe(self._take, line, on_line)
                if len(rest) > MOST_LINE_BYTES:
                    rest = b""  # no line; and half of a secret could not be told
        if rest:
            loop.call_soon_threadsafe(self._take, rest, on_line)

    def _take(self, data: bytes, on_line: Callable[[str], None]) -> None:
        line = data.decode(errors="replace")
        for secret in self._secrets:
            line = line.replace(secret, "***")
        plain = "".join(c for c in line if c.isprintable())[:MOST_LINE_CHARS]
        self.lines.append(plain)
        on_line(plain)


def told_error(lines: Sequence[str]) -> ToolkitError | None:
    """The last `Error: ...` of the lines, with the `Hint: ...` that follows it; None: it told none."""
    message = hint = ""
    for line in lines:
        if line.startswith("Error: "):
            message, hint = line.removeprefix("Error: "), ""
        elif line.startswith("Hint: ") and message:
            hint = line.removeprefix("Hint: ")
    return ToolkitError(message, hint) if message else None
