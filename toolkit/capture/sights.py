"""With `--iface any` a request that crosses several interfaces shows on each: which sight of it counts.

It asks the machine which addresses are its own and which interfaces are bridges; it never captures.
"""

import socket
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path

INTERFACES = Path("/sys/class/net")
REMEMBERED = 4096
"""Addresses and interfaces of which the answer is remembered."""


class SecondSights:
    """With `--iface any` a request that crosses several interfaces shows on each: which sight counts.

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
        """Whether an outgoing IP packet is the sight that counts."""
        source, request = outgoing(packet, self._ports)
        if self._own(source, interface) and not (request and self._bridge(interface)):
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


def outgoing(packet: bytes, ports: frozenset[int]) -> tuple[bytes, bool]:
    """An IP packet's source address, and whether its segment goes to a port watched."""
    if packet[:1] >= b"\x60":
        source, transport = packet[8:24], 40
    else:
        source, transport = packet[12:16], (packet[0] & 15) * 4 if packet else 0
    return source, int.from_bytes(packet[transport + 2 : transport + 4]) in ports


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
