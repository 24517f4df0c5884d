"""Starts programs as a user does and reads what they print; every one of them is ended, with its children, when its block ends."""

import atexit
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from contract.harness.forks import run_forked

TOOLKIT = str(Path(sys.executable).parent / "toolkit")
"""The command that `pip install` put beside this Python: a checkout's or a wheel's."""
ROOT = Path(__file__).parents[3]
"""The checkout, for data files."""
PATIENCE_S = 60.0
"""For what takes a second on a quiet machine."""
HANDED_OUT: set[int] = set()
"""Ports that `free_port` has told a test of."""
TEMPORARY = tempfile.mkdtemp(prefix="contract-")
"""For the temporary files of all programs, which those that are killed leave behind; gone when the tests are over."""
atexit.register(shutil.rmtree, TEMPORARY, ignore_errors=True)


def environment(home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """A newcomer's: an empty home, none of this user's settings of the toolkit or of Python, 80 columns."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TOOLKIT_", "LOCUST_", "STREAMLIT_", "PYTEST_", "XDG_", "PYTHON"))
    }
    own = {"HOME": str(home), "TMPDIR": TEMPORARY, "COLUMNS": "80"}
    return kept | own | dict(more or {})


def runs(pid: int) -> bool:
    """Whether it does more than wait to be buried: an orphan stays in the table as long as the machine's first process likes.

    One whose first thread has ended holds its memory and its files until the last has.
    """
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1
    except psutil.NoSuchProcess:
        return False


def installed(name: str) -> Path:
    """`dashboards/leaderboard.py` or `locustfiles/blast.py`: the wheel's own copy, or the checkout's where that is installed."""
    package = importlib.util.find_spec("toolkit")
    assert package is not None, "the toolkit is not installed beside this Python"
    assert package.submodule_search_locations is not None
    folder = Path(package.submodule_search_locations[0])
    inside, beside = folder / name, folder.parent / name
    return inside if inside.is_file() else beside


def run(
    *words: object,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    stdin: str | bytes = b"",
    timeout_s: float = 120.0,
    anew: bool = False,
) -> "subprocess.CompletedProcess[str]":
    """Run `toolkit words...` to its end in `cwd`, which is its home too; standard input is `stdin`, no terminal.

    It is forked off a process that has its imports; with `anew`, or where `env` has a word for Python, it gets an interpreter of
    its own. What runs on (`Program`) always has one.
    """
    command = [TOOLKIT, *map(str, words)]
    own = environment(cwd, env)
    given = stdin.encode() if isinstance(stdin, str) else stdin
    if anew or any(name.startswith("PYTHON") for name in own):
        done = subprocess.run(
            command,
            cwd=cwd,
            env=own,
            input=given,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    else:
        done = run_forked(command, cwd=cwd, env=own, stdin=given, timeout_s=timeout_s)
    return subprocess.CompletedProcess(
        command, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def rows(text: str) -> list[dict[str, Any]]:
    """JSON lines, as `--json` prints them."""
    # not by splitlines(): JSON may hold other ends of lines than this one as they are
    return [json.loads(line) for line in text.split("\n") if line.strip()]


class Program:
    """A program that runs, and the lines it has printed so far."""

    def __init__(
        self, command: list[str], *, cwd: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.out: list[str] = []
        self.err: list[str] = []
        self._moved = threading.Condition()
        # a session of its own: what it starts can be found and ended, and no signal of ours reaches the test runner
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment(cwd, env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._readers = [
            threading.Thread(target=self._read, args=(pipe, lines), daemon=True)
            for pipe, lines in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, pipe: Any, lines: list[str]) -> None:
        for line in pipe:
            with self._moved:
                lines.append(line.decode(errors="replace").rstrip("\n"))
                self._moved.notify_all()
        with self._moved:
            self._moved.notify_all()

    @property
    def text(self) -> str:
        """All that it has printed, for the message of a failed assertion."""
        return "\n".join(["stdout:", *self.out, "stderr:", *self.err])

    def line(self, pattern: str, *, patience_s: float = PATIENCE_S) -> re.Match[str]:
        """Wait for a line of either stream that the pattern matches somewhere; fails with all that was printed."""
        give_up = time.monotonic() + patience_s
        with self._moved:
            while True:
                for line in (*self.err, *self.out):
                    if found := re.search(pattern, line):
                        return found
                left = give_up - time.monotonic()
                missing = f"no line like {pattern!r}\n{self.text}"
                assert any(reader.is_alive() for reader in self._readers), missing
                assert left > 0, missing
                self._moved.wait(min(left, 0.5))

    def family(self) -> list[psutil.Process]:
        """It and all that it has started, as far as they still run."""
        try:
            parent = psutil.Process(self.process.pid)
            return [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def cpu_s(self) -> float:
        """CPU seconds that it and its children have used so far."""
        total = 0.0
        for each in self.family():
            with suppress(psutil.NoSuchProcess):
                times = each.cpu_times()
                total += times.user + times.system
        return total

    def rss_bytes(self) -> int:
        """Resident memory of it and its children."""
        total = 0
        for each in self.family():
            with suppress(psutil.NoSuchProcess):
                total += each.memory_info().rss
        return total

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Its exit code, once it ends by itself and all that it printed is read."""
        code = self.process.wait(timeout_s)
        for reader in self._readers:
            reader.join(timeout_s)
        return code

    def end(self, number: int = signal.SIGINT, timeout_s: float = PATIENCE_S) -> int:
        """Send a signal, wait for the end; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait(timeout_s)

    def destroy(self) -> None:
        """Kill it and all of its family, whatever state it is in."""
        family = self.family()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for each in family:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self.process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()


@contextmanager
def program(
    command: list[str], *, cwd: Path, env: Mapping[str, str] | None = None
) -> Iterator[Program]:
    """Any program; it and its family are gone afterwards."""
    started = Program(command, cwd=cwd, env=env)
    try:
        yield started
    finally:
        started.destroy()


@contextmanager
def toolkit(*words: object, cwd: Path, env: Mapping[str, str] | None = None) -> Iterator[Program]:
    """`toolkit words...` while it runs."""
    with program([TOOLKIT, *map(str, words)], cwd=cwd, env=env) as started:
        yield started


def free_port() -> int:
    """A port that nobody listens on, for a program that is told one; prefer port 0 where it can report its own.

    Below the kernel's own range, so that no outgoing connection of another test is given it meanwhile; each worker of
    pytest-xdist has its own thousand and hands out none twice, so that no other test takes it before the program does.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    for _ in range(1000):
        port = 10_000 + worker % 20 * 1000 + int.from_bytes(os.urandom(2)) % 1000
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in HANDED_OUT:
                HANDED_OUT.add(port)
                return port
    raise AssertionError("no free port in 1,000 tries")


def until(holds: Any, *, patience_s: float = PATIENCE_S, step_s: float = 0.05) -> Any:
    """Call until it returns something true, and return that; fails when the patience is over."""
    give_up = time.monotonic() + patience_s
    while True:
        if found := holds():
            return found
        assert time.monotonic() < give_up, f"never became true: {holds}"
        time.sleep(step_s)


def gone(family: Sequence[psutil.Process]) -> bool:
    """Wait until all of them have ended; psutil's own wait counts an unburied orphan as alive."""
    until(lambda: not any(runs(each.pid) for each in family))
    return True
