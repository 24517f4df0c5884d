"""The processes that a demo starts: commands of the toolkit, and servers; both end with the demo, whatever ends it.

A sweep is ended by signals as a demo is.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from toolkit.errors import ToolkitError

LEASH = Path(__file__).with_name("leash.py")
"""Runs a command that ends when this process does."""
TOOLKIT = [sys.executable, "-c", "from toolkit.cli import main; main(prog_name='toolkit')"]
LOOPBACK = "127.0.0.1"
ANSWER_S = 5.0
STOP_S = 10.0
"""For an orderly end."""
TOLD_CHARACTERS = 2000
"""Of what a server said last."""
OURS = ("TOOLKIT_DB", "TOOLKIT_HOSTS")
"""Variables that would lead the demo's commands to the user's own files."""


@contextlib.contextmanager
def signals_raise(error: Callable[[int], BaseException]) -> Iterator[None]:
    """Inside, SIGTERM and a closed terminal raise this error of the signal's number, so that what was made is cleared away."""

    def end(number: int, _: object) -> NoReturn:
        # of one closed terminal its shell tells and then the kernel: the second must not disturb the clearing away
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        raise error(number)

    before = {
        number: signal.signal(number, end)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN  # nohup's
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def environment(**more: str) -> dict[str, str]:
    """The user's, without what points at the user's files."""
    return {name: value for name, value in os.environ.items() if name not in OURS} | more


@contextlib.contextmanager
def server(
    words: Sequence[str], folder: Path, log: Path, environ: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that serves until the end of the block; what it says goes to a file."""
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 (our own words)
            [sys.executable, str(LEASH), str(os.getpid()), *words],
            cwd=folder,
            env=environment() if environ is None else dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for us, who then stop it in order
            start_new_session=True,
        )
    try:
        yield process
    finally:
        stop(process)


def stop(process: "subprocess.Popen[bytes]", *, ask: bool = True) -> None:
    """Ask it to end, and end it with all that it started."""
    if ask:
        process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def command(words: Sequence[str], folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A command that prints to our screen and has ended at the end of the block; interrupted once, as we are."""
    if sys.stdout is not None:  # closed, as by `>&-`
        sys.stdout.flush()
    process = subprocess.Popen(  # noqa: S603 (our own words)
        [sys.executable, str(LEASH), str(os.getpid()), *words],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        # a terminal's Ctrl-C would reach it beside our own, and a second one ends it at once
        start_new_session=True,
    )
    try:
        yield process
        process.wait()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            stop(process, ask=False)


def refuse_dead(process: "subprocess.Popen[bytes]", what: str, log: Path) -> None:
    """Tell why a server is not there any more."""
    if process.poll() is None:
        return
    said = log.read_text(errors="replace")[-TOLD_CHARACTERS:].strip() or "nothing"
    raise ToolkitError(f"{what} ended with exit code {process.returncode}; it said:\n{said}")


def answers(url: str) -> bool:
    """Whether a page says 200; no proxy from the environment stands between."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=ANSWER_S) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
