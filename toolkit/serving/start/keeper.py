"""The process between us and an engine: starts it, tells how it ended, and ends its whole family when we are gone.

Nobody can tell a parent's SIGKILL to grandchildren, and an engine that outlives its house keeps the GPU. The keeper
adopts the orphans of its engine (Linux's subreaper), holds a pipe that closes with us, and is stopped through it.

    stdin   `stop SECONDS`; its end is our end
    stdout  `started PID TICKS`, `refused WHY`, `ended CODE`, `left PID ...`; its end: all are gone
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from toolkit.serving.start import processes
from toolkit.serving.start.log_file import turn_over

PR_SET_CHILD_SUBREAPER = 36
"""From <sys/prctl.h>: orphaned descendants become our children, not the first process's."""
LOOK_S = 1.0
MOST_LOG_BYTES = 32 << 20
"""Then a log is kept as `.1`, and begins anew: a chatty engine must not fill the disk."""
SHARED_LOOKS_S = (1.0, 30.0)
"""Between two looks at the family's shared memory, doubling: files appear while it starts."""
ORPHANS_S = 2.0
"""For those whom a dead engine leaves behind: SIGTERM took an orphaned engine core less than that."""


@dataclass(slots=True)
class _Watch:
    """What the keeper knows."""

    engine: "subprocess.Popen[bytes]"
    origin: processes.Origin
    log: Path
    within_s: float
    shared: set[processes.SharedFile] = field(default_factory=set)
    next_look_s: float = SHARED_LOOKS_S[0]
    look_at: float = 0.0


def main() -> None:
    """Keep one engine: `LOG SECONDS COMMAND...`."""
    log, within_s, command = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    waker, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda got, _: asked.append(got))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    engine = _started(command, log)
    if engine is None:
        return
    watch = _Watch(engine, _origin(engine.pid), log, within_s)
    _say(f"started {engine.pid} {watch.origin.started}")
    _watch(watch, waker, asked)
    _end(watch)


def _started(command: list[str], log: Path) -> "subprocess.Popen[bytes] | None":
    # the engine writes itself, at the file's end: through a pipe it would wait for us whenever we are busy
    with log.open("ab", buffering=0) as output:
        try:
            return subprocess.Popen(  # noqa: S603 (the user's own command)
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                restore_signals=True,
            )
        except OSError as error:
            _say(f"refused {error.strerror or error}")
            return None


def _origin(engine: int) -> processes.Origin:
    born = processes.member(engine)
    started = 0 if born is None else born.started
    mark = os.environ.get(processes.MARK, "")
    return processes.Origin(keeper=os.getpid(), engine=engine, started=started, mark=mark)


def _watch(watch: _Watch, waker: int, asked: list[int]) -> None:
    """Until the engine ends, or we are to end it."""
    parent = os.getppid()
    while watch.engine.poll() is None and not asked:
        ready, _, _ = select.select([0, waker], [], [], LOOK_S)
        if waker in ready:
            os.read(waker, 4096)
        if 0 in ready:
            words = os.read(0, 4096).split()
            watch.within_s = float(words[-1]) if words else watch.within_s
            return
        if os.getppid() != parent:
            return  # somebody else holds the pipe's other end
        _look(watch)


def _look(watch: _Watch) -> None:
    """Note the family's shared memory, and keep the log small."""
    now = time.monotonic()
    if now < watch.look_at:
        return
    watch.look_at = now + watch.next_look_s
    watch.next_look_s = min(2 * watch.next_look_s, SHARED_LOOKS_S[1])
    _note(watch)
    with contextlib.suppress(OSError):
        if watch.log.stat().st_size > MOST_LOG_BYTES:
            turn_over(watch.log)


def _note(watch: _Watch) -> None:
    watch.shared |= processes.shared_files(one.pid for one in processes.family(watch.origin))


def _end(watch: _Watch) -> None:
    """End whoever is left, and say who can't be ended."""
    _note(watch)
    told = _tell_code(watch, told=False)
    within_s = min(ORPHANS_S, watch.within_s) if told else watch.within_s

    def meanwhile() -> None:
        nonlocal told
        told = _tell_code(watch, told=told)
        _reap(watch)

    left = processes.end(watch.origin, within_s, meanwhile)
    meanwhile()
    processes.remove_shared(watch.shared)
    if left:
        _say(" ".join(["left", *map(str, left)]))


def _tell_code(watch: _Watch, *, told: bool) -> bool:
    code = watch.engine.poll()
    if code is not None and not told:
        _say(f"ended {code}")
    return code is not None


def _reap(watch: _Watch) -> None:
    """Bury the orphans that became ours; the engine's own code is its Popen's to read."""
    if watch.engine.returncode is None:
        return
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _say(line: str) -> None:
    # nobody may listen any more, which must not keep us from ending the family
    with contextlib.suppress(OSError):
        os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    main()
