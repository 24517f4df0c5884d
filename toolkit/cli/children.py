"""The processes that a verb starts, commands of the toolkit and servers: they end with it, whatever ends it."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from toolkit.cli.waiting import waiting_for
from toolkit.errors import ToolkitError

PARENT_DEATH = Path(__file__).with_name("parent_death.py")
"""Runs a command that ends when this process does."""
TOOLKIT = [sys.executable, "-c", "from toolkit.cli import main; main(prog_name='toolkit')"]
LOOPBACK = "127.0.0.1"
ANSWER_S = 5.0
STOP_S = 10.0
"""For an orderly end."""
LAST_CHARACTERS = 2000
"""Of what a server said before it ended."""
OURS = ("TOOLKIT_DB", "TOOLKIT_HOSTS")
"""Variables that would lead the demo's commands to the user's own files."""


def environment(**more: str) -> dict[str, str]:
    """The user's, without what points at the user's files."""
    return {name: value for name, value in os.environ.items() if name not in OURS} | more


def started(
    words: Sequence[str],
    folder: Path,
    output: "IO[bytes] | None" = None,
    environ: Mapping[str, str] | None = None,
) -> "subprocess.Popen[bytes]":
    """A process that ends when this one does; what it says goes to `output`, else to our screen."""
    return subprocess.Popen(  # noqa: S603 (our own words)
        [sys.executable, str(PARENT_DEATH), str(os.getpid()), *words],
        cwd=folder,
        env=environment() if environ is None else dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        # a terminal's Ctrl-C is for us, who then end it in order; a second one would end it at once
        start_new_session=True,
    )


@contextlib.contextmanager
def server(
    words: Sequence[str], folder: Path, log: Path, environ: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that serves until the end of the block; what it says goes to a file."""
    with log.open("wb") as output:
        process = started(words, folder, output, environ)
    try:
        yield process
    finally:
        process.terminate()
        end(process)


@contextlib.contextmanager
def command(words: Sequence[str], folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A command that prints to our screen and has ended at the end of the block; interrupted once, as we are."""
    if sys.stdout is not None:  # closed, as by `>&-`
        sys.stdout.flush()
    process = started(words, folder)
    try:
        yield process
        process.wait()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            end(process)


def end(process: "subprocess.Popen[bytes]") -> None:
    """Wait for one that was asked to end, and end it with all that it started."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def refuse_dead(process: "subprocess.Popen[bytes]", what: str, log: Path) -> None:
    """Raise ToolkitError with its last words where a server is not there any more."""
    if process.poll() is None:
        return
    said = log.read_text(errors="replace")[-LAST_CHARACTERS:].strip() or "nothing"
    raise ToolkitError(f"{what} ended with exit code {process.returncode}; it said:\n{said}")


def wait_until_up(
    process: "subprocess.Popen[bytes]",
    what: str,
    log: Path,
    is_up: Callable[[], bool],
    *,
    limit_s: float,
    hint: str,
) -> None:
    """Wait for a server. Raises ToolkitError when it ends, or takes too long."""
    give_up_s = time.monotonic() + limit_s
    with waiting_for(f"Starting {what}"):
        while not is_up():
            refuse_dead(process, what, log)
            if time.monotonic() > give_up_s:
                raise ToolkitError(f"{what} was not up after {limit_s:.0f} s", hint)
            time.sleep(0.1)


def answers(url: str) -> bool:
    """Whether a page says 200; no proxy from the environment stands between."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=ANSWER_S) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
