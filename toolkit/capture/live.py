"""Live frames from scapy's socket, or why there are none.

Of scapy it takes the socket only, with our filter and buffer: its dissectors drop 97 % of the frames at 4,000 requests/s. It
follows 10,000 requests/s without their answers, 4,000 with them, without a drop. Who has no right to listen pipes from tcpdump.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import Any

from toolkit.capture import bpf
from toolkit.errors import ToolkitError

ANY = "any"
DEFAULT_BUFFER_BYTES = 64 * 1024 * 1024
"""8 MB held a second's stall of the reader at 4,000 requests/s without a drop; 2 MB lost 2,421 of 8,126 frames."""

OnFrame = Callable[[float, bytes, int], None]
"""Time of arrival, the frame, and its length on the wire."""


def pipe_hint(iface: str, ports: Collection[int]) -> str:
    """The command that leaves the rights to tcpdump."""
    watched = sorted(set(ports))
    wanted = " or ".join(f"tcp port {port}" for port in watched)
    own = "".join(f" --port {port}" for port in watched if watched != [8000])
    return f"sudo tcpdump -i {iface} -s 0 -U -w - '{wanted}' | toolkit capture -{own}"


# --- `--iface any` ----------------------------------------------------------------------------------

INTERFACES = Path("/sys/class/net")
REMEMBERED = 4096
"""Addresses and interfaces of which the answer is remembered."""


class OutgoingFrames:
    """With `--iface any` a request that crosses several interfaces shows on each: which copy counts.

    An inbound frame counts; so does an outgoing one of this machine's own, because it shows nowhere inbound. Not
    counted are outgoing frames of others (forwarded: they came in somewhere, before a published port's address was
    changed), and this machine's own requests into a bridge (docker-proxy's: the client's were seen on the way to it).
    """

    def __init__(self, ports: Collection[int]) -> None:
        self._ports = frozenset(ports)
        self._own = lru_cache(REMEMBERED)(_is_own)
        self._bridge = lru_cache(REMEMBERED)(_is_bridge)
        self.left_out: dict[str, int] = {}
        """Frames that did not count, by interface."""

    def counts(self, packet: bytes, interface: str) -> bool:
        """Whether an outgoing IP packet is the copy that counts."""
        if packet[:1] >= b"\x60":
            source, transport = packet[8:24], 40
        else:
            source, transport = packet[12:16], (packet[0] & 15) * 4 if packet else 0
        if self._own(source, interface):
            is_request = int.from_bytes(packet[transport + 2 : transport + 4]) in self._ports
            if not (is_request and self._bridge(interface)):
                return True
        self.left_out[interface] = self.left_out.get(interface, 0) + 1
        return False

    @property
    def note(self) -> str | None:
        """Where frames were left out, for the user."""
        if not self.left_out:
            return None
        where = ", ".join(f"{count:,} on `{name}`" for name, count in self.left_out.items())
        return f"outgoing frames not counted with `any`: {where}; --iface NAME counts them"


def _is_own(address: bytes, interface: str) -> bool:
    """Whether this machine has the address: only then a socket can be bound to it."""
    try:
        if len(address) == 4:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.bind((socket.inet_ntop(socket.AF_INET, address), 0))
        else:
            with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
                # a link-local address is one only together with its interface
                scope = socket.if_nametoindex(interface) if address[:2] == b"\xfe\x80" else 0
                probe.bind((socket.inet_ntop(socket.AF_INET6, address), 0, 0, scope))
    except (OSError, ValueError):
        return False
    return True


def _is_bridge(interface: str) -> bool:
    """Whether it is a bridge or plugged into one."""
    return any((INTERFACES / interface / part).exists() for part in ("bridge", "brport"))


# --- the packet socket ------------------------------------------------------------------------------

# From asm-generic/socket.h and linux/if_packet.h; Python's socket module has no names for these.
SO_ATTACH_FILTER, SO_RCVBUFFORCE, SO_TIMESTAMPNS = 26, 33, 35
SOL_PACKET, PACKET_STATISTICS = 263, 6
SIOCGIFHWADDR, SIOCGIFFLAGS, IFF_UP = 0x8927, 0x8913, 1
ETH_P_ALL = 3
PROBES, PROBE_EVERY_S, PROBE_S = 200, 0.001, 0.05
"""It took up to 16 ms on a busy machine; 0.2 s is given up after."""

ETHERNET, RAW_IP = 1, 101
"""Link types of capture files (LINKTYPE_ETHERNET, LINKTYPE_RAW)."""
HARDWARE_WITH_ETHERNET = (1, 772)
"""ARPHRD_ETHER and ARPHRD_LOOPBACK: frames begin with 14 bytes of Ethernet."""
RECEIVE_BYTES = 0x40000
"""Of one frame. `lo` has frames of 65,549 bytes, of which scapy's own size of 65,535 would lose 14; BIG TCP longer ones."""
AT_ONCE = 1024
"""Frames handed out in one go: the caller looks up at least that often."""


def open_live(
    iface: str,
    *,
    ports: Collection[int],
    follow_answers: bool,
    buffer_bytes: int = DEFAULT_BUFFER_BYTES,
) -> "LiveCapture":
    """Listen on one interface, or `any`; from here on frames wait in the kernel until they are pumped."""
    if not sys.platform.startswith("linux"):
        raise ToolkitError("live capture needs Linux", pipe_hint(iface, ports))
    interfaces = [*sorted(name for _, name in socket.if_nameindex()), ANY]
    if iface not in interfaces:
        raise ToolkitError(
            f"no interface `{iface}`", f"--iface takes one of: {', '.join(interfaces)}"
        )
    try:
        return LiveCapture(iface, ports, follow_answers=follow_answers, buffer_bytes=buffer_bytes)
    except PermissionError as error:
        raise ToolkitError(
            f"no right to capture on `{iface}`: that takes CAP_NET_RAW (and CAP_NET_ADMIN for the big buffer)",
            f"Run it as root, or leave the rights to tcpdump: {pipe_hint(iface, ports)}\n"
            f"Or give them to the program: sudo setcap cap_net_raw,cap_net_admin+ep {os.path.realpath(sys.executable)}"
            " (then whatever anybody runs with it has them; undo it with setcap -r)",
        ) from error
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ToolkitError(
            f"cannot capture on `{iface}`: {reason}", pipe_hint(iface, ports)
        ) from error


class LiveCapture:
    """A running capture, one system call a frame. Frames wait in the kernel until they are pumped."""

    def __init__(
        self, iface: str, ports: Collection[int], *, follow_answers: bool, buffer_bytes: int
    ) -> None:
        from scapy.arch.linux import L2ListenSocket  # noqa: PLC0415 - 0.2 s of CPU, and only a live capture needs it

        class Listening(L2ListenSocket):
            """Ours: scapy's own takes in all traffic before it has a filter, and reads until none comes any more."""

            promisc = False
            auxdata_available = True

            def __init__(self, ins: socket.socket) -> None:
                self.ins = ins

            def received(self) -> tuple[bytes, Any, float | None]:
                return self._recv_raw(self.ins, RECEIVE_BYTES)

        self._iface, self._ports = iface, ports
        self._index = None if iface == ANY else socket.if_nametoindex(iface)
        self._outgoing = OutgoingFrames(ports) if iface == ANY else None
        # frames are taken without their link's header: all of them for `any`, else where it is not Ethernet's
        self._is_cooked = (
            iface == ANY or _interface_fact(iface, SIOCGIFHWADDR) not in HARDWARE_WITH_ETHERNET
        )
        self.link_type = RAW_IP if self._is_cooked else ETHERNET
        self._dropped = 0
        self._turn = threading.Lock()
        kind = socket.SOCK_DGRAM if self._is_cooked else socket.SOCK_RAW
        self._sock = socket.socket(socket.AF_PACKET, kind, socket.htons(ETH_P_ALL))
        self._listening: Any = Listening(self._sock)
        self._arrivals = select.poll()
        self._arrivals.register(self._sock, select.POLLIN)
        with ExitStack() as opened:
            opened.callback(self._sock.close)
            attach(self._sock, bpf.NOTHING)
            if iface != ANY:
                self._sock.bind((iface, ETH_P_ALL))
            stamp_arrivals(self._sock)
            # The kernel counts what a frame really takes up, about 1.3 KB for one of 0.6 KB, and doubles what is asked
            # for that reason; we ask for half, so that who wants 64 MB is granted 64 MB.
            try:
                self._sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, buffer_bytes // 2)
            except PermissionError:
                # that one takes CAP_NET_ADMIN; without it net.core.rmem_max is the limit
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes // 2)
            self.buffer_bytes: int = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
            """Room for waiting frames that the kernel granted."""
            # Have glibc keep freed memory of our size, or each receive maps and unmaps 256 KiB: 20 us of CPU a frame
            # instead of 3. Its limit rises to the size of the largest mapped block that was ever freed, so one is.
            bytearray(4 * RECEIVE_BYTES)
            # what was queued before the first filter is thrown away, and the drops' count starts at 0
            self._sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    try:
                        self._sock.recv(1)
                    except OSError as error:
                        if error.errno != errno.ENETDOWN:  # told once where the interface is down
                            raise
            self.drops()
            self._dropped = 0
            program = bpf.program(ports, follow_answers=follow_answers, cooked=self._is_cooked)
            attach(self._sock, program)
            opened.pop_all()

    @property
    def note(self) -> str | None:
        """That the interface is down and may come back, or where frames were left out."""
        if self._index is not None and not _interface_fact(self._iface, SIOCGIFFLAGS) & IFF_UP:
            return f"`{self._iface}` is down; waiting for it to come up"
        return self._outgoing.note if self._outgoing else None

    def pump(self, frame: OnFrame, timeout_s: float) -> int:
        """Hand out what frames there are, 1,024 at most."""
        count = self._hand_out(frame)
        if not count and self._arrivals.poll(timeout_s * 1000):
            count = self._hand_out(frame)
        return count

    def drain(self, frame: OnFrame) -> None:
        """Take in no more, and hand out what was."""
        attach(self._sock, bpf.NOTHING)
        # not `_hand_out`: an interface that went down is said before the frames that wait
        while self.pump(frame, 0.0):
            pass

    def _hand_out(self, frame: OnFrame) -> int:
        received = self._listening.received
        for count in range(AT_ONCE):
            try:
                data, address, ts = received()
            except BlockingIOError:
                return count
            except OSError as error:
                self._refuse(error)
                return count
            is_cut = len(data) == RECEIVE_BYTES
            if self._is_cooked:
                interface, protocol, kind = address[:3]
                data = bpf.behind_tags(data, protocol)
                if kind == bpf.OUTGOING and self._outgoing:
                    data = data if self._outgoing.counts(data, interface) else b""
            if data:
                # of a frame that was cut it is not told how long it was: longer
                frame(ts, data, len(data) + is_cut)
        return AT_ONCE

    def _refuse(self, error: OSError) -> None:
        """End after an error of the socket, unless it only says that the interface is down.

        Where the interface was taken away a socket does not find one of the same name again.
        """
        if error.errno != errno.ENETDOWN:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise ToolkitError(
                f"capture on `{self._iface}` ended: {reason}",
                f"Try another way to take packets: {pipe_hint(self._iface, self._ports)}",
            ) from error
        try:
            is_gone = self._index not in (None, socket.if_nametoindex(self._iface))
        except OSError:
            is_gone = True
        if is_gone:
            raise ToolkitError(
                f"interface `{self._iface}` was removed", "`--iface any` outlives all of them"
            )

    def drops(self) -> int:
        """Frames that the kernel had no room for, since the beginning: reading sets its own count back to 0."""
        with self._turn:
            if self._sock.fileno() >= 0:
                # struct tpacket_stats: frames (dropped ones among them), drops
                counts = self._sock.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)
                self._dropped += struct.unpack("=II", counts)[1]
            return self._dropped

    def close(self) -> None:
        """End the capture."""
        self.drops()
        self._listening.close()


def _interface_fact(iface: str, question: int) -> int:
    """The first two bytes of what the kernel tells of an interface; 0 if it tells nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # struct ifreq: 16 bytes of name, then the answer
            answer = fcntl.ioctl(probe, question, struct.pack("16s24x", iface.encode()))
        except OSError:
            return 0
    return int(struct.unpack_from("=H", answer, 16)[0])


def attach(sock: socket.socket, program: bpf.Program) -> None:
    """Replace the socket's filter; the kernel swaps it between two frames."""
    code = ctypes.create_string_buffer(bpf.packed(program))
    # struct sock_fprog: the number of instructions, padding, their address
    sock.setsockopt(
        socket.SOL_SOCKET,
        SO_ATTACH_FILTER,
        struct.pack("HP", len(program), ctypes.addressof(code)),
    )


def stamp_arrivals(sock: socket.socket) -> None:
    """Have frames bear the time of their arrival, from now on.

    The kernel's clock for that starts some milliseconds after it is asked for. Until then a frame would bear the time at
    which it is read, later than those that came after it; so we send ourselves something until it bears the right one.
    """
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        probe.settimeout(PROBE_S)
        # fails where `lo` is down, and then the first frames' times are as they are
        probe.bind(("127.0.0.1", 0))
        for _ in range(PROBES):
            probe.sendto(b"", probe.getsockname())
            reading_ns = time.time_ns()
            for _, _, data in probe.recvmsg(1, socket.CMSG_SPACE(16))[1]:
                if len(data) == 16:  # struct timespec
                    seconds, nanoseconds = struct.unpack("=qq", data)
                    if seconds * 10**9 + nanoseconds < reading_ns:
                        return
            time.sleep(PROBE_EVERY_S)
