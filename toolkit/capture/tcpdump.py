"""Live frames through a tcpdump of our own, which has the rights that we may lack: `--engine tcpdump`.

It starts tcpdump, reads its pcap from a pipe and its counts from its messages. It opens no socket.
"""

import contextlib
import fcntl
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import time
from collections import deque
from collections.abc import Collection
from functools import lru_cache

from toolkit.capture import bpf
from toolkit.capture.live import (
    ANY,
    DEFAULT_BUFFER_BYTES,
    REMEMBERED,
    LiveCapture,
    OnFrame,
    OutgoingFrames,
    check,
    interface_name,
    no_rights,
)
from toolkit.errors import ToolkitError

START_S, END_S = 10.0, 5.0
"""It listens within 0.1 s and ends within 1 s, its kernel's timeout; longer only on a very busy machine."""
ASK_EVERY_S = 1.0
COPIES = {ANY: "not (outbound and ifindex 1)", "lo": "ifindex 1 and not outbound"}
"""Of `lo`'s two copies only the inbound one; it is the first interface of every network namespace."""
PIPE_BYTES = 1024 * 1024
"""As much as Linux lets a user have; where it does not, the pipe stays as it is."""
KEPT_LINES = 20
"""Of its messages, to say why it ended."""

FILE = struct.Struct("=IHHiIII")
RECORD = struct.Struct("=IIII")
LINUX_SLL2 = 276
COOKED = struct.Struct("!HxxiHB")
"""Header of a frame of `any`: protocol, interface, hardware, kind of frame; 20 bytes with the address."""
COOKED_BYTES = 20
DROPPED = re.compile(rb"(\d+) packets? dropped by kernel")
NO_REASON = re.compile(r"listening on|data link type|\d packets? |verbose output suppressed")
"""What it says at any time."""


def open_tcpdump(
    iface: str,
    *,
    ports: Collection[int],
    follow_answers: bool,
    buffer_bytes: int = DEFAULT_BUFFER_BYTES,
) -> LiveCapture:
    """Have tcpdump listen on one interface, or `any`; from here on frames wait in its kernel buffer and the pipe."""
    check(iface, ports)
    program = shutil.which("tcpdump")
    if program is None:
        raise ToolkitError(
            "`tcpdump` is not installed",
            "Install it (apt install tcpdump), or use another --engine",
        )
    wanted = bpf.expression(ports, follow_answers=follow_answers)
    listen = ["-i", iface]
    if iface in COPIES:
        # `lo` is asked for as a part of `any`: there the direction is a part of the frame. On `lo` itself libpcap would
        # count drops twice, and with the filter `inbound` lose all frames of its first blocks, which it filters itself
        wanted = f"{COPIES[iface]} and ({wanted})"
        listen = ["-i", ANY, "-y", "LINUX_SLL2"]
    # -p: not promiscuous; -n: no names; -s 0: whole frames; -U: as they come; -B: in KiB
    room = str(max(1, buffer_bytes // 1024))
    how = ["-p", "-n", "-s", "0", "-U", "-w", "-", "-B", room, "--time-stamp-precision=nano"]
    # a child of another session does not hear the terminal's Ctrl-C before we do
    child = subprocess.Popen(  # noqa: S603 - the user's tcpdump, with numbers of ours
        [program, *listen, *how, wanted],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    engine = _Tcpdump(child, program, iface, ports)
    try:
        engine.begin()
    except BaseException:
        engine.close()
        raise
    return engine


class _Tcpdump:
    """A running tcpdump and what it has written."""

    lag_s = 1.5
    """libpcap has the kernel hand a block over after a second (tcpdump's own choice), however little is in it."""
    buffer_bytes: int | None = None
    """It does not tell what the kernel granted."""

    def __init__(
        self, child: subprocess.Popen[bytes], program: str, iface: str, ports: Collection[int]
    ) -> None:
        assert child.stdout is not None
        assert child.stderr is not None
        self._child, self._program = child, program
        self._iface, self._ports = iface, ports
        self._pipes = (child.stdout, child.stderr)
        self._frames, self._words = (pipe.fileno() for pipe in self._pipes)
        self._outgoing = OutgoingFrames(ports) if iface == ANY else None
        self._name_of = lru_cache(REMEMBERED)(interface_name)
        self._arrivals = select.poll()
        for pipe in (self._frames, self._words):
            os.set_blocking(pipe, False)
            self._arrivals.register(pipe, select.POLLIN)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._frames, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._rest = b""
        self._lines: deque[bytes] = deque(maxlen=KEPT_LINES)
        self._line = b""
        self._dropped = 0
        self._asked_at = time.monotonic()
        self._is_closed = False
        self.link_type = 0

    @property
    def lag_note(self) -> str | None:
        """That frames come late, or where some were left out."""
        late = "tcpdump hands frames over up to a second late"
        return "; ".join(filter(None, (late, self._outgoing.note if self._outgoing else None)))

    def begin(self) -> None:
        """Wait until it listens: its file's header is here."""
        end = time.monotonic() + START_S
        while len(self._rest) < FILE.size:
            if time.monotonic() > end:
                raise ToolkitError(
                    f"tcpdump on `{self._iface}` did not begin within {START_S:g} s",
                    "Try without it: leave `--engine tcpdump` out",
                )
            self._wait(end - time.monotonic())
            self._rest += self._read()
        self.link_type = FILE.unpack_from(self._rest)[-1]
        self._rest = self._rest[FILE.size :]

    def pump(self, frame: OnFrame, timeout_s: float) -> int:
        """Hand out what frames there are in a pipe's worth of bytes."""
        end = time.monotonic() + timeout_s
        while not (count := self._hand_out(frame)):
            data = self._read()
            self._rest += data
            left_s = end - time.monotonic()
            if not data and left_s <= 0:
                break
            if not data:  # what wakes us may be words, or the beginning of a frame
                self._wait(left_s)
        return count

    def _hand_out(self, frame: OnFrame) -> int:
        data, at, count = self._rest, 0, 0
        outgoing = self._outgoing if self.link_type == LINUX_SLL2 else None
        end = len(data) - RECORD.size
        while at <= end:
            seconds, nanoseconds, captured, on_wire = RECORD.unpack_from(data, at)
            following = at + RECORD.size + captured
            if following > len(data):
                break
            one = data[at + RECORD.size : following]
            counts = True
            if outgoing is not None:
                _, index, _, kind = COOKED.unpack_from(one)
                if kind == bpf.OUTGOING:
                    counts = outgoing.counts(one[COOKED_BYTES:], self._name_of(index))
            if counts:
                frame(seconds + nanoseconds * 1e-9, one, on_wire)
            at, count = following, count + 1
        self._rest = data[at:]
        return count

    def _read(self) -> bytes:
        """What its pipe holds of frames; ToolkitError where it has ended."""
        if self._is_closed:
            raise self._ended()
        try:
            data = os.read(self._frames, PIPE_BYTES)
        except BlockingIOError:
            return b""
        if not data:
            self.close()
            raise self._ended()
        return data

    def _wait(self, timeout_s: float) -> None:
        """Until it says something, in frames or in words."""
        self._arrivals.poll(max(0.0, timeout_s) * 1000)
        self._listen()

    def _listen(self) -> None:
        """Take in what it has said in words by now."""
        with contextlib.suppress(BlockingIOError):
            while said := os.read(self._words, PIPE_BYTES):
                self._hear(said)
            with contextlib.suppress(KeyError):
                self._arrivals.unregister(self._words)

    def _hear(self, said: bytes) -> None:
        *whole, self._line = (self._line + said).split(b"\n")
        for line in whole:
            self._lines.append(line)
            told = DROPPED.search(line)
            if told:
                self._dropped = int(told[1])

    def _ended(self) -> ToolkitError:
        said = b"\n".join(self._lines).decode(errors="replace")
        if re.search(r"permission|not permitted", said, re.IGNORECASE):
            return no_rights(self._iface, self._ports, program=self._program)
        reasons = [line for line in said.splitlines() if line and not NO_REASON.search(line)]
        why = reasons[0].removeprefix("tcpdump: ") if reasons else "it gave no reason"
        return ToolkitError(
            f"tcpdump on `{self._iface}` ended: {why}",
            "Try without it: leave `--engine tcpdump` out",
        )

    def drops(self) -> int:
        """Frames that the kernel had no room for; asked of it once a second, and at its end it tells them all."""
        if not self._is_closed:
            if time.monotonic() - self._asked_at >= ASK_EVERY_S:
                self._asked_at = time.monotonic()
                self._signal(signal.SIGUSR1)
            self._listen()
        return self._dropped

    def _signal(self, number: signal.Signals) -> None:
        # where it belongs to another user it ends by its pipe, with the next frame
        with contextlib.suppress(PermissionError):
            self._child.send_signal(number)

    def close(self) -> None:
        """End it, and hear its last count."""
        if self._is_closed:
            return
        self._is_closed = True
        self._signal(signal.SIGTERM)
        try:
            # frames that nobody waits for are read, too; without that it may wait for room in the pipe and not end
            _, said = self._child.communicate(timeout=END_S)
        except subprocess.TimeoutExpired as late:
            said = late.stderr or b""
            self._signal(signal.SIGKILL)
            for pipe in self._pipes:
                pipe.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(END_S)
        self._hear(said)
