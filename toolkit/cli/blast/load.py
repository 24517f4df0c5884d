"""The process that makes the load: started so that it ends with us, read, interrupted once, cleared away; and what goes on beside it.

`drive` owns the signals.
"""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.blast.plan import LOAD_OPTIONS
from toolkit.cli.children import PARENT_DEATH
from toolkit.cli.places import PACKAGE, front_end
from toolkit.errors import ToolkitError

KEPT_LINES = 200
"""Of its output, the last ones: enough for a traceback."""
MOST_LINE_CHARS = 2_000
READ_BYTES = 65_536
MOST_LINE_BYTES = 2**20
READ_EVERY_S = 0.1
STOPPING = "Stopping: answers under way are waited for, 30 s at most; Ctrl-C again quits at once"
OTHERS_WORDS = (
    *("TOOLKIT_HOSTS", "TOOLKIT_PROFILE", "TOOLKIT_CA", "TOOLKIT_INSECURE"),
    *(option.variable for option in LOAD_OPTIONS),
)
"""Variables for a plain Locust, as all that begin with LOCUST_: they would change what this verb's command line says."""
NOT_RELAYED = (
    # its introduction, and its words to whoever sits before it
    *("Blast of ", "Profile ", "The hosts' /metrics", "Run ", "Waiting "),
    # shown at the end, with our own figures
    "CPU usage ",
    # shown as our own error; and a traceback
    *("Error: ", "Hint: ", "Traceback ", " "),
    # gevent's word for our own interrupt, and Python's where that meets it still starting
    *("KeyboardInterrupt", "Fatal Python error", "Python runtime state"),
)
"""How lines of the load's output begin that are kept for the case of its failure."""
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
"""A line of gevent's below each exception."""
SHOWN_LINES = 8
"""Of the output of a load that failed without a word of its own."""


def locustfile(package: Path = PACKAGE) -> Path:
    """Where the load's own file is. Raises ToolkitError."""
    return front_end("locustfiles", "blast.py", "makes the load", package)


def environment(own: Mapping[str, str], keys_in: Collection[str]) -> Mapping[str, str]:
    """Ours for the load: the variables in `keys_in` hold the hosts' keys, which no command line may show."""
    kept = {
        name: word
        for name, word in own.items()
        if name in keys_in or not (name.startswith("LOCUST_") or name in OTHERS_WORDS)
    }
    # a library's warning to its developers is nothing that a user can mend
    return kept | {"PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore"}


class LoadProcess:
    """One process of the load with all that it forks. `secrets` are never repeated from its output."""

    def __init__(self, command: Sequence[str], *, secrets: Collection[str] = ()) -> None:
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        """What it printed last, on either of its outputs."""
        self._command = [sys.executable, str(PARENT_DEATH), str(os.getpid()), *command]
        self._secrets = [word for word in secrets if word]
        self._process: asyncio.subprocess.Process | None = None
        self._rest, self._read_bytes = b"", 0

    async def start(
        self, environment: Mapping[str, str], on_line: Callable[[str], None] = lambda _: None
    ) -> None:
        """Start it in a session of its own: a terminal's Ctrl-C reaches it through us, once.

        To be called in the main thread, as Linux takes the end of the thread that forked for the parent's.
        """
        # not a pipe: it breaks when we are killed, and its last words would break the load's clean end
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (`ended` closes it)
        self._on_line = on_line
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )

    async def ended(self) -> int:
        """Wait for its end; the exit code, negative for a signal."""
        assert self._process is not None
        waiting = asyncio.ensure_future(self._process.wait())
        while not waiting.done():
            await asyncio.wait([waiting], timeout=READ_EVERY_S)
            self._read()
        self._read()
        if self._rest:
            self._take(self._rest)
        self._output.close()
        return waiting.result()

    def interrupt(self) -> None:
        """Ask it to end cleanly, if it has begun."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End it and all that it forked, at once."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _read(self) -> None:
        """Take the lines that came since the last time."""
        while data := os.pread(self._output.fileno(), READ_BYTES, self._read_bytes):
            self._read_bytes += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._take(line)
            if len(self._rest) > MOST_LINE_BYTES:
                self._rest = b""  # no line; and half of a secret could not be recognized

    def _take(self, data: bytes) -> None:
        line = data.decode(errors="replace")
        for secret in self._secrets:
            line = line.replace(secret, "***")
        plain = "".join(c for c in line if c.isprintable())[:MOST_LINE_CHARS]
        self.lines.append(plain)
        self._on_line(plain)


async def drive(
    child: LoadProcess,
    environment: Mapping[str, str],
    besides: Sequence[Callable[[], Coroutine[Any, Any, None]]],
    *,
    say: Callable[[str], None],
) -> tuple[int, bool]:
    """Run the load to its end: its exit code, negative for a signal, and whether somebody stopped it.

    The first Ctrl-C, SIGTERM or closed terminal asks it to end cleanly, a second one ends everything: then it raises
    KeyboardInterrupt, with nothing left running. `besides` go on as long as it does; a failure of theirs costs no measurement.
    """
    loop = asyncio.get_running_loop()
    stops = 0

    def stop() -> None:
        nonlocal stops
        stops += 1
        if stops == 1:
            say(STOPPING)
            child.interrupt()
        else:
            child.kill()

    def hang_up() -> None:
        # of one closed terminal its shell tells and then the kernel: the second is nobody's haste
        if not stops:
            stop()

    def listen() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup's
            loop.add_signal_handler(signal.SIGHUP, hang_up)

    def relay(line: str) -> None:
        """Show what the load has to say to a person while it goes on, and not what is said here already."""
        if line.strip() and not line.startswith(NOT_RELAYED) and not MOMENT.match(line):
            say(line)

    async def beside(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except (ToolkitError, OSError) as error:
            what = error.message if isinstance(error, ToolkitError) else str(error)
            say(f"Warning: {what}; the load goes on")

    listen()
    await child.start(environment, relay)
    if stops:  # meanwhile
        child.interrupt()
    tasks = [asyncio.create_task(beside(work)) for work in besides]
    # a look listens to SIGTERM itself and would end alone; its listening begins with its first step
    await asyncio.sleep(0)
    listen()
    try:
        code = await child.ended()
    finally:
        child.kill()  # a master that was killed leaves its workers behind, which would load on for a minute
        for task in tasks:
            task.cancel()
        faults = await asyncio.gather(*tasks, return_exceptions=True)
    if stops > 1:
        raise KeyboardInterrupt
    for fault in faults:
        if isinstance(fault, Exception):  # a slip of ours; what was measured is stored all the same
            raise fault
    return code, stops > 0


def failure(
    code: int, lines: Sequence[str], *, run: str, is_begun: bool, resume_command: str
) -> ToolkitError:
    """Why the load is over before its time, and how to go on. `lines`: what it said last."""
    # the last `Error: ...`, with the `Hint: ...` that follows it
    message = hint = ""
    for line in lines:
        if line.startswith("Error: "):
            message, hint = line.removeprefix("Error: "), ""
        elif line.startswith("Hint: ") and message:
            hint = line.removeprefix("Hint: ")
    if message and not is_begun:
        return ToolkitError(message, hint)
    how = f"ended with exit code {code}"
    if code < 0:
        known = {number.value: number.name for number in signal.Signals}
        how = f"was killed by {known.get(-code, f'signal {-code}')}"
    if not is_begun:
        said = "\n".join(lines[-SHOWN_LINES:]).strip()
        return ToolkitError(
            f"the load {how} before its first request" + (f"; it said:\n{said}" if said else ""),
            f"Run it by hand to see more: `locust -f {locustfile()} --headless`",
        )
    why = f": {message}" if message else ""
    return ToolkitError(
        f"the load of run `{run}` {how}{why}; what it had counted up to then is kept",
        f"Go on with `{resume_command}`",
    )
