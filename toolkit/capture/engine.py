"""What every live engine offers, and why one cannot begin.

It asks the machine for its interfaces; it never captures.
"""

import errno
import os
import socket
import sys
from collections.abc import Callable, Collection
from typing import Protocol

from toolkit.errors import ToolkitError

ANY = "any"
DEFAULT_BUFFER_BYTES = 64 * 1024 * 1024
"""8 MB held a second's stall of the reader at 4,000 requests/s without a drop; 2 MB lost 2,421 of 8,126 frames."""

OnFrame = Callable[[float, bytes, int], None]
"""Time of arrival, the frame, and its length on the wire."""


class LiveCapture(Protocol):
    """A running capture. Frames wait in the kernel until they are pumped."""

    link_type: int
    """Of the frames that it hands out, as in a pcap file."""
    buffer_bytes: int | None
    """Room for waiting frames that the kernel granted; None: unknown."""
    lag_s: float
    """A frame is handed out at most so long after its time; a capture that ends waits for the last ones."""

    @property
    def lag_note(self) -> str | None:
        """What a user should know about what is late, missing or left out just now."""

    def pump(self, frame: OnFrame, timeout_s: float) -> int:
        """Hand out what frames there are, waiting for the first so long at most; how many there were."""

    def drops(self) -> int:
        """Frames that the kernel had no room for, since the beginning; exact once it is closed."""

    def close(self) -> None:
        """End the capture; a second time does nothing."""


def interfaces() -> list[str]:
    """The names there are, `any` last."""
    return [*sorted(name for _, name in socket.if_nameindex()), ANY]


def check(iface: str, ports: Collection[int]) -> None:
    """Refuse a system or an interface that cannot be listened to."""
    if not sys.platform.startswith("linux"):
        raise ToolkitError("live capture needs Linux", pipe_hint(iface, ports))
    if iface not in interfaces():
        raise no_such_interface(iface)


def no_such_interface(iface: str) -> ToolkitError:
    """Names those that there are."""
    return ToolkitError(
        f"no interface `{iface}`", f"--iface takes one of: {', '.join(interfaces())}"
    )


def refusal(error: OSError, iface: str, ports: Collection[int]) -> ToolkitError:
    """Why the operating system did not let us listen."""
    if error.errno in (errno.EPERM, errno.EACCES):
        return no_rights(iface, ports)
    reason = os.strerror(error.errno) if error.errno else str(error)
    return ToolkitError(f"cannot capture on `{iface}`: {reason}", pipe_hint(iface, ports))


def no_rights(iface: str, ports: Collection[int], program: str = sys.executable) -> ToolkitError:
    """Neither root nor the capability."""
    real = os.path.realpath(program)
    return ToolkitError(
        f"no right to capture on `{iface}`: that takes CAP_NET_RAW (and CAP_NET_ADMIN for the big buffer)",
        f"Run it as root, or leave the rights to tcpdump: {pipe_hint(iface, ports)}\n"
        f"Or give them to the program: sudo setcap cap_net_raw,cap_net_admin+ep {real}"
        " (then whatever anybody runs with it has them; undo it with setcap -r)",
    )


def pipe_hint(iface: str, ports: Collection[int]) -> str:
    """The command that leaves the rights to tcpdump."""
    watched = sorted(set(ports))
    wanted = " or ".join(f"tcp port {port}" for port in watched)
    own = "".join(f" --port {port}" for port in watched if watched != [8000])
    return f"sudo tcpdump -i {iface} -s 0 -U -w - '{wanted}' | toolkit capture -{own}"


def interface_name(index: int) -> str:
    """The name of an interface; its number where it was taken away meanwhile."""
    try:
        return socket.if_indextoname(index)
    except OSError:
        return f"interface {index}"
