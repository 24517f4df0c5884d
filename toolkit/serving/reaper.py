"""The process between serve and an engine: starts it, reports how it ended, and ends its whole family when serve is gone.

Serve cannot act on its own SIGKILL, and an engine that outlives it keeps the GPU. The reaper adopts the orphans of its
engine (Linux's subreaper), holds a pipe that closes with serve, and is stopped through it.

    stdin   `stop SECONDS`; its end is serve's end
    stdout  `started PID TICKS`, `refused WHY`, `ended CODE`, `left PID ...`; its end: all are gone
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from toolkit.serving.processes import (
    MARK,
    Origin,
    SharedFile,
    end,
    family,
    remove_shared,
    shared_files,
    start_ticks,
)

PR_SET_CHILD_SUBREAPER = 36
"""From <sys/prctl.h>: orphaned descendants become our children, not the first process's."""
LOOK_S = 1.0
MOST_LOG_BYTES = 32 << 20
"""Then a log is kept as `.1`, and begins anew: a chatty engine must not fill the disk."""
SHARED_LOOKS_S = (1.0, 30.0)
"""Between two looks at the family's shared memory, doubling: files appear while it starts."""
ORPHANS_S = 2.0
"""For those whom a dead engine leaves behind: SIGTERM took an orphaned engine core less than that."""


def main() -> None:
    """Run one engine until it ends or is to end, then end its family: `LOG SECONDS COMMAND...`."""
    log, within_s, command = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    signals, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)  # the pipe says which it was

    # the engine writes itself, at the log's end: through a pipe it would wait for us whenever we are busy
    with log.open("ab", buffering=0) as output:
        try:
            engine = subprocess.Popen(  # noqa: S603 (the user's own command)
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                restore_signals=True,
            )
        except OSError as error:
            _say(f"refused {error.strerror or error}")
            return
    origin = Origin(
        reaper=os.getpid(),
        engine=engine.pid,
        started=start_ticks(engine.pid) or 0,
        mark=os.environ.get(MARK, ""),
    )
    _say(f"started {engine.pid} {origin.started}")

    shared: set[SharedFile] = set()
    serve, look_at, pause_s = os.getppid(), 0.0, SHARED_LOOKS_S[0]
    # with another parent, somebody else holds the pipe's other end
    while engine.poll() is None and os.getppid() == serve:
        ready, _, _ = select.select([0, signals], [], [], LOOK_S)
        if 0 in ready:
            words = os.read(0, 4096).split()
            within_s = float(words[-1]) if words else within_s
            break
        if signals in ready and set(os.read(signals, 4096)) - {signal.SIGCHLD}:
            break
        if time.monotonic() < look_at:
            continue
        look_at = time.monotonic() + pause_s
        pause_s = min(2 * pause_s, SHARED_LOOKS_S[1])
        shared |= shared_files(one.pid for one in family(origin))
        with contextlib.suppress(OSError):
            if log.stat().st_size > MOST_LOG_BYTES:
                turn_over(log)

    shared |= shared_files(one.pid for one in family(origin))
    has_ended = False

    def bury() -> None:
        nonlocal has_ended
        if engine.poll() is None:
            return
        if not has_ended:
            _say(f"ended {engine.returncode}")
            has_ended = True
        # the orphans that became ours; before, the engine's own code would be lost to its Popen
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    bury()
    left = end(origin, min(ORPHANS_S, within_s) if has_ended else within_s, bury)
    bury()
    remove_shared(shared)
    if left:
        _say(" ".join(["left", *map(str, left)]))


def turn_over(log: Path) -> None:
    """Keep what it holds as `.1` and empty it: the engine has it open, and goes on at its new end. A line in between may be lost."""
    kept = log.with_name(f"{log.name}.1")
    try:
        shutil.copy(log, kept)
    except OSError:  # a disk without room for both: half of one helps nobody
        kept.unlink(missing_ok=True)
    os.truncate(log, 0)


def _say(line: str) -> None:
    # nobody may listen any more, which must not keep us from ending the family
    with contextlib.suppress(OSError):
        os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    main()
