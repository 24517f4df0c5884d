"""Live frames through a ring of memory that the kernel writes and we read (TPACKET_V3): `--engine ring`.

No system call and no copy by the kernel for each frame: a third of the default engine's CPU, for mmap and struct. Python's
libraries offer no TPACKET_V3; the layout is the kernel's, from linux/if_packet.h.
"""

import errno
import mmap
import os
import socket
import struct
from collections.abc import Collection
from contextlib import ExitStack
from functools import lru_cache

from toolkit.capture import bpf, sockets
from toolkit.capture.engine import (
    DEFAULT_BUFFER_BYTES,
    LiveCapture,
    OnFrame,
    interface_name,
    refusal,
)
from toolkit.capture.sights import REMEMBERED

PACKET_VERSION, PACKET_RX_RING, TPACKET_V3 = 10, 5, 2
BLOCK_BYTES = 1024 * 1024
"""Room for the longest frame many times over; the kernel hands blocks over, not frames."""
FEWEST_BLOCKS = 2
FRAME_BYTES = 2048
"""Version 3 packs frames of any length; this only has to divide the block."""
RETIRE_MS = 50
"""A block that is not full is handed over after so long: a frame comes at most so late."""

KERNELS, OURS = 0, 1
STATUS, STATUS_AT = struct.Struct("=I"), 8
BLOCK = struct.Struct("=8xIII")
"""tpacket_block_desc after version and offset: status, frames, place of the first."""
FRAME = struct.Struct("=IIIIIIHH")
"""tpacket3_hdr: next, seconds, nanoseconds, captured, on the wire, status, place of the link header, of the IP header."""
ADDRESS = struct.Struct("=HHiHB")
"""sockaddr_ll: family, protocol, interface, hardware, kind of frame."""
ADDRESS_AT = 48
"""It follows the 48 bytes of the header."""


def open_ring(
    iface: str,
    *,
    ports: Collection[int],
    follow_answers: bool,
    buffer_bytes: int = DEFAULT_BUFFER_BYTES,
) -> LiveCapture:
    """Listen on one interface, or `any`, through a ring of so many bytes."""
    program = sockets.program_for(iface, ports, follow_answers=follow_answers)
    with ExitStack() as opened:
        try:
            sock = opened.enter_context(sockets.opened(iface))
            engine = _Ring(sock, iface, program, ports, buffer_bytes)
        except OSError as error:
            raise refusal(error, iface, ports) from error
        opened.pop_all()
        return engine


def _ring(sock: socket.socket, buffer_bytes: int) -> mmap.mmap:
    """The socket's ring, of fewer blocks where the kernel has no memory for all."""
    sock.setsockopt(sockets.SOL_PACKET, PACKET_VERSION, TPACKET_V3)
    blocks = max(FEWEST_BLOCKS, buffer_bytes // BLOCK_BYTES)
    while True:
        frames = blocks * BLOCK_BYTES // FRAME_BYTES
        wanted = (BLOCK_BYTES, blocks, FRAME_BYTES, frames, RETIRE_MS, 0, 0)
        try:
            # struct tpacket_req3; its last two are private bytes and features, which we do without
            sock.setsockopt(sockets.SOL_PACKET, PACKET_RX_RING, struct.pack("=7I", *wanted))
        except OSError as error:
            if error.errno != errno.ENOMEM or blocks <= FEWEST_BLOCKS:
                raise
            blocks = max(FEWEST_BLOCKS, blocks // 2)
        else:
            return mmap.mmap(sock.fileno(), blocks * BLOCK_BYTES)


class _Ring(sockets.Listener):
    """Blocks of frames, handed to us in turn and handed back when their frames were handed out."""

    lag_s = 4 * RETIRE_MS / 1000
    """The kernel's timer may come late; three times on a busy machine."""

    def __init__(
        self,
        sock: socket.socket,
        iface: str,
        program: bpf.Program,
        ports: Collection[int],
        buffer_bytes: int,
    ) -> None:
        super().__init__(sock, iface, ports)
        self._memory = _ring(sock, buffer_bytes)
        self._next = 0
        self._name_of = lru_cache(REMEMBERED)(interface_name)
        self.buffer_bytes: int | None = len(self._memory)
        sockets.begin(sock, program)

    def pump(self, frame: OnFrame, timeout_s: float) -> int:
        """Hand out one block's frames, at most."""
        if not self._is_ours() and self._arrivals.poll(timeout_s * 1000):
            problem = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if problem:
                self._link.check(OSError(problem, os.strerror(problem)))
        return self._hand_out(frame) if self._is_ours() else 0

    def _is_ours(self) -> bool:
        status, _, _ = BLOCK.unpack_from(self._memory, self._next)
        return bool(status & OURS)

    def _hand_out(self, frame: OnFrame) -> int:
        memory, start = self._memory, self._next
        packet = None if self.link_type == sockets.ETHERNET else self._packet
        _, count, first = BLOCK.unpack_from(memory, start)
        at, header = start + first, FRAME.unpack_from
        for _ in range(count):
            following, seconds, nanoseconds, captured, on_wire, _, link_at, _ = header(memory, at)
            data = memory[at + link_at : at + link_at + captured]
            cut = on_wire - captured
            if packet is not None:
                data = packet(data, at)
            if data:
                frame(seconds + nanoseconds * 1e-9, data, len(data) + cut)
            at += following
        STATUS.pack_into(memory, start + STATUS_AT, KERNELS)
        self._next = (start + BLOCK_BYTES) % len(memory)
        return int(count)

    def _packet(self, data: bytes, at: int) -> bytes:
        """The IP packet of a cooked frame, empty where it does not count."""
        _, protocol, index, _, kind = ADDRESS.unpack_from(self._memory, at + ADDRESS_AT)
        data = bpf.behind_tags(data, socket.ntohs(protocol))
        if kind == bpf.OUTGOING and self._sights:
            return data if self._sights.counts(data, self._name_of(index)) else b""
        return data

    def close(self) -> None:
        """End the capture."""
        self._drops.now()
        self._memory.close()
        self._sock.close()
