"""Live frames through scapy's socket: the default engine. The only file that imports scapy.

Of scapy it takes the socket only, with our filter and buffer: its dissectors drop 97 % of the frames at 4,000 requests/s.
"""

from collections.abc import Collection
from typing import Any

from toolkit.capture import bpf, sockets
from toolkit.capture.engine import DEFAULT_BUFFER_BYTES, LiveCapture, OnFrame, refusal

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
) -> LiveCapture:
    """Listen on one interface, or `any`; from here on frames wait in the kernel until they are pumped."""
    program = sockets.program_for(iface, ports, follow_answers=follow_answers)
    try:
        return _Live(_listening(iface), iface, program, ports, buffer_bytes)
    except OSError as error:
        raise refusal(error, iface, ports) from error


def _listening(iface: str) -> Any:
    """A socket of scapy's that hands out frames as they are, with address and the kernel's time.

    We open it: scapy's own way takes in all traffic before it has a filter, and reads until none comes any more, which
    on a busy interface is never.
    """
    from scapy.arch.linux import L2ListenSocket  # noqa: PLC0415 - 0.2 s of CPU, and only a live capture needs it

    class Listening(L2ListenSocket):
        promisc = False
        auxdata_available = True

        def __init__(self) -> None:
            self.ins = sockets.opened(iface)
            sockets.stamp_arrivals(self.ins)

        def received(self) -> tuple[bytes, Any, float | None]:
            return self._recv_raw(self.ins, RECEIVE_BYTES)

    return Listening()


def _keep_big_blocks() -> None:
    """Have glibc keep freed memory of our size.

    Else each receive maps and unmaps 256 KiB: 20 us of CPU a frame instead of 3. Its limit rises to the size of the
    largest mapped block that was ever freed, so one is.
    """
    bytearray(4 * RECEIVE_BYTES)


class _Live(sockets.Listener):
    """The default engine: one system call a frame."""

    lag_s = 0.0

    def __init__(
        self,
        listening: Any,
        iface: str,
        program: bpf.Program,
        ports: Collection[int],
        buffer_bytes: int,
    ) -> None:
        super().__init__(listening.ins, iface, ports)
        self._listening = listening
        self.buffer_bytes: int | None = sockets.grant(self._sock, buffer_bytes)
        _keep_big_blocks()
        sockets.begin(self._sock, program)

    def pump(self, frame: OnFrame, timeout_s: float) -> int:
        """Hand out what frames there are, 1,024 at most."""
        count = self._hand_out(frame)
        if not count and self._arrivals.poll(timeout_s * 1000):
            count = self._hand_out(frame)
        return count

    def _hand_out(self, frame: OnFrame) -> int:
        received = self._listening.received
        packet = None if self.link_type == sockets.ETHERNET else self._packet
        for count in range(AT_ONCE):
            try:
                data, address, ts = received()
            except BlockingIOError:
                return count
            except OSError as error:
                self._link.check(error)
                return count
            is_cut = len(data) == RECEIVE_BYTES
            if packet is not None:
                data = packet(data, address)
            if data:
                # of a frame that was cut it is not told how long it was: longer
                frame(ts, data, len(data) + is_cut)
        return AT_ONCE

    def _packet(self, data: bytes, address: tuple[str, int, int, int, bytes]) -> bytes:
        """The IP packet of a cooked frame, empty where it does not count."""
        interface, protocol, kind = address[:3]
        data = bpf.behind_tags(data, protocol)
        if kind == bpf.OUTGOING and self._sights and not self._sights.counts(data, interface):
            return b""
        return data

    def close(self) -> None:
        """End the capture."""
        self._drops.now()
        self._listening.close()
