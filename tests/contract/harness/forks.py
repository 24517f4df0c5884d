"""Short commands of `toolkit` without the price of their imports, which is most of their CPU; `programs.run` is how tests call it.

    python forks.py TOOLKIT SOCKET

waits on that file descriptor for orders. It forks off itself a process for each command, which runs the script that `pip install` made.
It runs none itself and imports a module only after one of them did: the first of each kind here starts as if in a new interpreter.
"""

import atexit
import fcntl
import gc
import importlib
import itertools
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

_turns = itertools.count()


def run_forked(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdin: bytes, timeout_s: float
) -> subprocess.CompletedProcess[bytes]:
    """As `subprocess.run` with its output captured, for the `toolkit` script as the command."""
    script, *words = command
    # by turns of two with other hashes, so that two commands of a test must agree without them
    forks = _forks(script, str(next(_turns) % 2 + 1))
    umask = os.umask(0o077)
    os.umask(umask)
    order = {"words": words, "cwd": str(cwd), "env": dict(env), "umask": umask}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb") as theirs, os.fdopen(writing, "wb") as ours:
            pid = forks.ask(order, (theirs.fileno(), out.fileno(), err.fileno()))
            theirs.close()
            with suppress(BrokenPipeError):
                ours.write(stdin)
                ours.flush()
        ends = os.pidfd_open(pid)
        waiting = select.poll()
        waiting.register(ends, select.POLLIN)
        is_late = not waiting.poll(timeout_s * 1000)
        if is_late:
            os.kill(pid, signal.SIGKILL)
        code = forks.ask({"bury": pid})
        os.close(ends)
        if is_late:
            raise subprocess.TimeoutExpired(command, timeout_s)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    return subprocess.CompletedProcess(command, code, *texts)


class _Forks:
    def __init__(self, script: str, seed: str) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kept = {k: v for k, v in os.environ.items() if k.startswith(("PATH", "LANG", "LC_"))}
        with theirs:
            # pipes, as a command's own files mostly are; and no signal of a terminal reaches it
            self._process = subprocess.Popen(
                [sys.executable, __file__, script, str(theirs.fileno())],
                env=kept | {"PYTHONHASHSEED": seed},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(self._end)

    def ask(self, order: Mapping[str, Any], files: Sequence[int] = ()) -> int:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(order).encode()], files)
            answer = self._socket.recv(64)
        assert answer, self._process.communicate()
        return int(answer)

    def _end(self) -> None:
        self._socket.close()
        self._process.communicate()


@cache
def _forks(script: str, seed: str) -> _Forks:
    return _Forks(script, seed)


# --- in the process that forks -----------------------------------------------------------------------


class _Noted:
    """Writes down what a command looks for, before anything is found."""

    def __init__(self, notes: int) -> None:
        self._notes = notes

    def find_spec(self, name: str, *_: object) -> None:
        with suppress(OSError):  # a command may close what it did not open
            os.write(self._notes, f"{name}\n".encode())


def _next_command(orders: socket.socket) -> dict[str, Any] | None:
    """What the process in which this returns shall run; None once nobody can order any more."""
    # a file, for a command that was killed has written down what it had imported, too; and none below TMPDIR, which each has its own of
    notes = os.memfd_create("imported")
    fcntl.fcntl(notes, fcntl.F_SETFL, os.O_APPEND)
    known = 0
    while True:
        message, files, *_ = socket.recv_fds(orders, 1 << 20, 3)
        if not message:
            return None
        order: dict[str, Any] = json.loads(message)
        if "bury" in order:
            _, status = os.waitpid(order["bury"], 0)
            orders.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        new = os.pread(notes, 1 << 20, known)
        known += len(new)
        for name in new.decode().split():
            if name not in sys.modules:
                with suppress(Exception):
                    importlib.import_module(name)
        gc.freeze()
        pid = os.fork()
        if not pid:
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            sys.meta_path.insert(0, _Noted(notes))
            return order
        for file in files:
            os.close(file)
        orders.send(str(pid).encode())


if __name__ == "__main__":
    _script = sys.argv[1]
    with socket.socket(fileno=int(sys.argv[2])) as _orders:
        _orders.set_inheritable(False)
        _order = _next_command(_orders)
    if _order is not None:
        os.setsid()
        os.chdir(_order["cwd"])
        os.umask(_order["umask"])
        os.environ.clear()
        os.environ.update(_order["env"])
        time.tzset()
        sys.argv = [_script, *_order["words"]]
        sys.path[0] = str(Path(_script).parent)
        runpy.run_path(_script, run_name="__main__")
