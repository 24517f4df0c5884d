"""What the kernel knows of a client's socket and the event loop does not tell. It touches the network.

Where a question can't be asked (another system than Linux, a unix socket), the answer is the one that does no harm.
"""

import asyncio
import contextlib
import fcntl
import socket
import struct
import termios

_RESET = struct.pack("ii", 1, 0)
_LEFT_STATES = frozenset((7, 8))
"""Linux's TCP_CLOSE and TCP_CLOSE_WAIT."""


def unread_bytes(transport: asyncio.Transport) -> int:
    """Written, and not yet received by the client; the kernel's part with it, which alone may be megabytes.

    The loop hears of room in the kernel's buffer only when a third of it is free (800,000 bytes on loopback): a client that
    reads 10 kB/s would seem to stand still for a minute.
    """
    kernel = bytes(4)
    with contextlib.suppress(OSError, AttributeError, ValueError):
        kernel = fcntl.ioctl(
            transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4)
        )
    return transport.get_write_buffer_size() + int.from_bytes(kernel, "little")


def has_left(transport: asyncio.Transport) -> bool:
    """Whether the client closed its side behind bytes that are not read yet; for while reading pauses."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        sock = transport.get_extra_info("socket")
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _LEFT_STATES
    return False


def end_by_reset(transport: asyncio.Transport) -> None:
    """Close at once, so that the client can't take it for an end."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()
