"""Live frames through a tcpdump of our own, which has the rights that we may lack: `--engine tcpdump`.

It starts tcpdump, reads its pcap from a pipe and its counts from its messages. It opens no socket.
"""

import fcntl
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Collection
from contextlib import suppress
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
LAG_S = 1.5
"""libpcap has the kernel hand a block over after a second (tcpdump's own choice), however little is in it."""
COUNT_EVERY_S = 1.0
COPIES = {ANY: "not (outbound and ifindex 1)", "lo": "ifindex 1 and not outbound"}
"""Of `lo`'s two copies only the inbound one; it is the first interface of every network namespace."""
PIPE_BYTES = 1024 * 1024
"""As much as Linux lets a user have; where it does not, the pipe stays as it is."""
MESSAGE_BYTES = 4096
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
    engine = _Tcpdump([program, *listen, *how, wanted], iface, ports)
    try:
        engine.begin()
    except BaseException:
        engine.close()
        raise
    return engine


class _Tcpdump:
    """A running tcpdump and what it has written."""

    buffer_bytes: int | None = None
    """It does not tell what the kernel granted."""

    def __init__(self, command: list[str], iface: str, ports: Collection[int]) -> None:
        # a child of another session does not hear the terminal's Ctrl-C before we do
        self._child = subprocess.Popen(  # noqa: S603 - the user's tcpdump, with numbers of ours
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        self._program, self._iface, self._ports = command[0], iface, ports
        self._pipe, self._messages = self._child.stdout, self._child.stderr
        os.set_blocking(self._messages.fileno(), False)
        with suppress(OSError):
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._arrivals = select.poll()
        self._arrivals.register(self._pipe, select.POLLIN)
        self._outgoing = OutgoingFrames(ports) if iface == ANY else None
        self._name_of = lru_cache(REMEMBERED)(interface_name)
        self._rest = self._said = b""
        self._dropped = 0
        self._counted_s = time.monotonic()
        self.link_type = 0

    @property
    def note(self) -> str | None:
        """That frames come late, or where some were left out."""
        late = "tcpdump hands frames over up to a second late"
        return "; ".join(filter(None, (late, self._outgoing.note if self._outgoing else None)))

    def begin(self) -> None:
        """Wait until it listens: its file's header is here."""
        end_s = time.monotonic() + START_S
        while len(self._rest) < FILE.size:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise ToolkitError(
                    f"tcpdump on `{self._iface}` did not begin within {START_S:g} s",
                    "Try without it: leave `--engine tcpdump` out",
                )
            if not self._fill(left_s):
                raise self._ended()
        self.link_type = FILE.unpack_from(self._rest)[-1]
        self._rest = self._rest[FILE.size :]

    def pump(self, frame: OnFrame, timeout_s: float) -> int:
        """Hand out what frames there are in a pipe's worth of bytes; ToolkitError where it has ended."""
        count = self._hand_out(frame)
        if not count:
            if not self._fill(timeout_s):
                raise self._ended()
            count = self._hand_out(frame)
        return count

    def drain(self, frame: OnFrame) -> None:
        """Wait until the kernel has handed over what it has, then have tcpdump end."""
        self._read_for(LAG_S, frame)
        self._end(frame)

    def _end(self, frame: OnFrame) -> None:
        self._signal(signal.SIGTERM)
        self._read_for(END_S, frame)

    def _read_for(self, longest_s: float, frame: OnFrame) -> None:
        """Hand out what it writes, for so long or until it has ended."""
        end_s = time.monotonic() + longest_s
        while (left_s := end_s - time.monotonic()) > 0 and self._fill(left_s):
            self._hand_out(frame)

    def _fill(self, timeout_s: float) -> bool:
        """Take in what it has written, waiting so long at most; whether it may write more."""
        if self._pipe.closed:
            return False
        if not self._arrivals.poll(timeout_s * 1000):
            return True
        data = os.read(self._pipe.fileno(), PIPE_BYTES)
        self._rest += data
        return bool(data)

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

    def _listen(self) -> None:
        """Take in its messages so far; the last count of drops among them holds."""
        with suppress(BlockingIOError):
            while said := os.read(self._messages.fileno(), PIPE_BYTES):
                self._said = (self._said + said)[-MESSAGE_BYTES:]
        for count in DROPPED.findall(self._said):
            self._dropped = int(count)

    def _ended(self) -> ToolkitError:
        self.close()
        said = self._said.decode(errors="replace")
        if re.search(r"permission|not permitted", said, re.IGNORECASE):
            return no_rights(self._iface, self._ports, program=self._program)
        reasons = [line for line in said.splitlines() if line and not NO_REASON.search(line)]
        why = reasons[0].removeprefix("tcpdump: ") if reasons else "it gave no reason"
        return ToolkitError(
            f"tcpdump on `{self._iface}` ended: {why}",
            "Try without it: leave `--engine tcpdump` out",
        )

    def drops(self) -> int:
        """Frames that the kernel had no room for; it is asked once a second, and at its end it tells them all."""
        if not self._pipe.closed:
            if time.monotonic() - self._counted_s >= COUNT_EVERY_S:
                self._counted_s = time.monotonic()
                self._signal(signal.SIGUSR1)
            self._listen()
        return self._dropped

    def _signal(self, number: signal.Signals) -> None:
        # where it belongs to another user it ends by its pipe, with the next frame
        with suppress(PermissionError):
            self._child.send_signal(number)

    def close(self) -> None:
        """End it, and read its last count."""
        if self._pipe.closed:
            return
        if self._child.poll() is None:
            # without that it may wait for room in the pipe, and not end
            self._end(lambda *_: None)
        self._pipe.close()
        try:
            self._child.wait(END_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(END_S)
        self._listen()
        self._messages.close()
