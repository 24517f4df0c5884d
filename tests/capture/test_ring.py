"""toolkit.capture.ring where it differs from the other engines: blocks, their order and their memory."""

import errno
import socket
import struct

import pytest
from support.live_traffic import MIB, bodies, capturing, send, serving
from support.net_namespaces import needs_capture

from toolkit.capture import ring

pytestmark = needs_capture


def test_the_ring_is_gone_round_many_times_without_a_loss() -> None:
    wanted = bodies(400, size=30_000)  # 12 MB through 4 MB
    with serving() as server, capturing("ring", "lo", server.port, buffer_bytes=4 * MIB) as capture:
        assert capture.engine.buffer_bytes == 4 * MIB
        # a block that is not full goes to the reader after a while, too: of two blocks both may be taken while it is kept from running
        for start in range(0, len(wanted), 10):
            some = wanted[start : start + 10]
            send("127.0.0.1", server.port, some, connections=2, ends=False)
            capture.pump_for(start + 10)
    assert capture.bodies == wanted
    assert capture.engine.drops() == 0


def test_a_ring_smaller_than_two_blocks_has_two() -> None:
    with capturing("ring", "lo", 8000, buffer_bytes=1) as capture:
        assert capture.engine.buffer_bytes == 2 * MIB


class Poor(socket.socket):
    """A kernel that has memory for five blocks."""

    def setsockopt(self, level: int, name: int, value: int | bytes) -> None:  # type: ignore[override]
        if name == ring.PACKET_RX_RING and struct.unpack("=7I", value)[1] > 5:  # type: ignore[arg-type]
            raise OSError(errno.ENOMEM, "no memory")
        super().setsockopt(level, name, value)


def test_a_kernel_short_of_memory_gives_a_smaller_ring() -> None:
    with Poor(socket.AF_PACKET, socket.SOCK_RAW, 0) as sock:
        memory = ring._ring(sock, 64 * MIB)  # 64, 32, 16, 8, 4 blocks of 1 MiB
        assert len(memory) == 4 * MIB
        memory.close()


def test_a_reader_that_fails_within_a_block_gets_its_frames_again() -> None:
    seen: list[bytes] = []

    def fail_once(_ts: float, data: bytes, _length: int) -> None:
        seen.append(data)
        if len(seen) == 2:
            raise InterruptedError

    with serving() as server, capturing("ring", "lo", server.port) as capture:
        send("127.0.0.1", server.port, bodies(5))
        with pytest.raises(InterruptedError):
            capture.engine.pump(fail_once, 5.0)
        assert len(capture.pump()) == 5
    assert capture.frames[:2] == seen
