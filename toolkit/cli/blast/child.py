"""The process that makes the load, as its parent sees it: started on a leash, read, interrupted once, cleared away."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from toolkit.cli.front_doors import PACKAGE, REINSTALL, front_door
from toolkit.errors import ToolkitError

LEASH = Path(__file__).with_name("leash.py")
KEPT_LINES = 200
"""Of its output, the last ones: enough for a traceback."""
MOST_LINE_CHARS = 2_000
READ_BYTES = 65_536
MOST_LINE_BYTES = 2**20
READ_EVERY_S = 0.1


def locustfile(package: Path = PACKAGE) -> Path:
    """Where the load's own file is. Raises ToolkitError."""
    path = front_door("locustfiles", "blast.py", package)
    if not path.is_file():
        raise ToolkitError(f"`{path}` is not there, which makes the load", REINSTALL)
    return path


class LoadProcess:
    """One process of the load with all that it forks. `secrets` are never repeated from its output."""

    def __init__(self, command: Sequence[str], *, secrets: Collection[str] = ()) -> None:
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        """What it said last, on either of its outputs."""
        self._command = [sys.executable, str(LEASH), str(os.getpid()), *command]
        self._secrets = [word for word in secrets if word]
        self._process: subprocess.Popen[bytes] | None = None
        self._rest, self._read_bytes = b"", 0

    def start(
        self, environment: Mapping[str, str], on_line: Callable[[str], None] = lambda _: None
    ) -> None:
        """Start it in a session of its own: a terminal's Ctrl-C reaches it through us, once.

        To be called in the main thread, as Linux takes the end of the thread that forked for the parent's.
        """
        # not a pipe: it breaks when we are killed, and its last words would break the load's clean end
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (`ended` closes it)
        self._process = subprocess.Popen(  # noqa: S603 (our own words)
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        threading.Thread(target=self._wait, args=(self._code,), daemon=True).start()
        self._on_line = on_line
        self._reading = asyncio.create_task(self._read_often())

    async def ended(self) -> int:
        """Wait for its end; the exit code, negative for a signal. What it forked is gone then, too."""
        code = await asyncio.shield(self._code)
        self.kill()  # a master that was killed leaves its workers behind, which would load on for a minute
        self._reading.cancel()
        self._read()
        if self._rest:
            self._take(self._rest)
        self._output.close()
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

    def _wait(self, code: "asyncio.Future[int]") -> None:
        assert self._process is not None
        found = self._process.wait()

        def tell() -> None:
            if not code.done():
                code.set_result(found)

        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            code.get_loop().call_soon_threadsafe(tell)

    async def _read_often(self) -> None:
        while True:
            await asyncio.sleep(READ_EVERY_S)
            self._read()

    def _read(self) -> None:
        """Take the lines that came since the last time."""
        while data := os.pread(self._output.fileno(), READ_BYTES, self._read_bytes):
            self._read_bytes += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._take(line)
            if len(self._rest) > MOST_LINE_BYTES:
                self._rest = b""  # no line; and half of a secret could not be told

    def _take(self, data: bytes) -> None:
        line = data.decode(errors="replace")
        for secret in self._secrets:
            line = line.replace(secret, "***")
        plain = "".join(c for c in line if c.isprintable())[:MOST_LINE_CHARS]
        self.lines.append(plain)
        self._on_line(plain)


def told_error(lines: Sequence[str]) -> ToolkitError | None:
    """The last `Error: ...` of the lines, with the `Hint: ...` that follows it; None: it told none."""
    message = hint = ""
    for line in lines:
        if line.startswith("Error: "):
            message, hint = line.removeprefix("Error: "), ""
        elif line.startswith("Hint: ") and message:
            hint = line.removeprefix("Hint: ")
    return ToolkitError(message, hint) if message else None
