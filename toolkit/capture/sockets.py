"""Packet sockets of Linux: filtered before anything counts, with room for a stall, and with the kernel's count of drops.

What the scapy engine and the ring share. It opens and reads no frame.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Collection

from toolkit.capture import bpf
from toolkit.capture.engine import ANY, check
from toolkit.capture.sights import SecondSights
from toolkit.errors import ToolkitError

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


def is_cooked(iface: str) -> bool:
    """Whether frames are taken without their link's header: all of them for `any`, else where it is not Ethernet's."""
    return iface == ANY or _ask(iface, SIOCGIFHWADDR) not in HARDWARE_WITH_ETHERNET


def link_type(iface: str) -> int:
    """What its frames begin with, as in a capture file."""
    return RAW_IP if is_cooked(iface) else ETHERNET


def program_for(iface: str, ports: Collection[int], *, follow_answers: bool) -> bpf.Program:
    """The filter for an interface; ToolkitError for one that cannot be listened to."""
    check(iface, ports)
    return bpf.program(ports, follow_answers=follow_answers, cooked=is_cooked(iface))


def opened(iface: str) -> socket.socket:
    """A socket that hears nothing yet; its frames are cooked where they must be."""
    kind = socket.SOCK_DGRAM if is_cooked(iface) else socket.SOCK_RAW
    sock = socket.socket(socket.AF_PACKET, kind, socket.htons(ETH_P_ALL))
    attach(sock, bpf.NOTHING)
    if iface != ANY:
        sock.bind((iface, ETH_P_ALL))
    return sock


class InterfaceState:
    """The interface listened on: there, down, or gone."""

    def __init__(self, iface: str) -> None:
        self._iface = iface
        self._index = None if iface == ANY else socket.if_nametoindex(iface)

    @property
    def note(self) -> str | None:
        """That it is switched off just now; it may come back."""
        if self._index is None or _ask(self._iface, SIOCGIFFLAGS) & IFF_UP:
            return None
        return f"`{self._iface}` is down; waiting for it to come up"

    def check(self, error: OSError) -> None:
        """Refuse to go on after an error of the socket, unless it only says that the interface is down.

        Where the interface was taken away a socket does not find one of the same name again.
        """
        if error.errno != errno.ENETDOWN:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise ToolkitError(
                f"capture on `{self._iface}` ended: {reason}",
                "Try another way to take packets: `--engine tcpdump`",
            ) from error
        try:
            gone = self._index not in (None, socket.if_nametoindex(self._iface))
        except OSError:
            gone = True
        if gone:
            raise ToolkitError(
                f"interface `{self._iface}` was removed", "`--iface any` outlives all of them"
            )


def _ask(iface: str, question: int) -> int:
    """The first two bytes of what the kernel tells of an interface; 0 if it tells nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        try:
            # struct ifreq: 16 bytes of name, then the answer
            answer = fcntl.ioctl(asker, question, struct.pack("16s24x", iface.encode()))
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


def begin(sock: socket.socket, program: bpf.Program) -> None:
    """Let the program decide from here on: what was queued before is thrown away, and the drops' count starts at 0."""
    attach(sock, bpf.NOTHING)
    _drain(sock)
    statistics(sock)
    attach(sock, program)


def _drain(sock: socket.socket) -> None:
    sock.setblocking(False)
    while True:
        try:
            sock.recv(1)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ENETDOWN:  # told once where the interface is down
                raise


def grant(sock: socket.socket, wanted_bytes: int) -> int:
    """Room for waiting frames, as much as we get; the kernel's own figure.

    It counts what a frame really takes up, about 1.3 KB for one of 0.6 KB, and doubles what is asked for that reason;
    we ask for half, so that who wants 64 MB is granted 64 MB.
    """
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, wanted_bytes // 2)
    except PermissionError:
        # that one takes CAP_NET_ADMIN; without it net.core.rmem_max is the limit
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, wanted_bytes // 2)
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)


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
            if _is_stamped(probe):
                return
            time.sleep(PROBE_EVERY_S)


def _is_stamped(probe: socket.socket) -> bool:
    """Whether what is sent bears a time before its reading."""
    probe.sendto(b"", probe.getsockname())
    reading_ns = time.time_ns()
    for _, _, data in probe.recvmsg(1, socket.CMSG_SPACE(16))[1]:
        if len(data) == 16:  # struct timespec
            seconds, nanoseconds = struct.unpack("=qq", data)
            return bool(seconds * 10**9 + nanoseconds < reading_ns)
    return False


def statistics(sock: socket.socket) -> int:
    """Frames dropped since the last call: reading sets the kernel's count back to 0."""
    # struct tpacket_stats: frames (dropped ones among them), drops; the ring's has a third field, its freezes
    answer = sock.getsockopt(SOL_PACKET, PACKET_STATISTICS, 12)
    return int(struct.unpack_from("=II", answer)[1])


class Drops:
    """The kernel's count of drops, added up."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._total = 0
        self._turn = threading.Lock()

    def now(self) -> int:
        """As of now, or of the socket's end."""
        with self._turn:
            if self._sock.fileno() >= 0:
                self._total += statistics(self._sock)
            return self._total


class Listener:
    """A socket on an interface, as both engines that read one wait for it and tell of it."""

    def __init__(self, sock: socket.socket, iface: str, ports: Collection[int]) -> None:
        self._sock = sock
        self._link, self._drops = InterfaceState(iface), Drops(sock)
        self._sights = SecondSights(ports) if iface == ANY else None
        self._arrivals = select.poll()
        self._arrivals.register(sock, select.POLLIN)
        self.link_type = link_type(iface)

    @property
    def lag_note(self) -> str | None:
        """That the interface is down, or where frames were left out."""
        return self._link.note or (self._sights.note if self._sights else None)

    def drops(self) -> int:
        """Frames that the kernel had no room for, since the beginning."""
        return self._drops.now()
