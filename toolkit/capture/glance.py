"""How a reader of files throws frames away that nobody wants: by one unpacking each, without a call or a slice.

A glance judges plain frames of one shape: IPv4 without options or fragments, or IPv6 without extensions, behind one
VLAN tag or none. All other frames are for Frames.frame; it never decides that a frame is wanted, only that it is not.
"""

import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass

from toolkit.capture.links import TAGS, LinkType

PART_OF_PACKET = 0x3FFF
"""Of IPv4's flags and fragment offset: more fragments follow, or this one is not the first."""

_TAG = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PeekBounds:
    """What one unpacking must yield for a frame to be judged, and when it is thrown away.

    Numbers are in the byte order of the file's own headers, whatever the network's is: constants are swapped once, not
    numbers each time.
    """

    fields: Callable[[bytes, int], tuple[int, ...]]
    """(the record's own fields..., ethertype, version, total, part, source port, target port, offset, flags)."""
    size: int
    """Bytes that `fields` looks at, the record's header included."""
    least: int
    """Bytes of a frame that it looks at."""
    ethertype: int | bytes
    """As the link's header tells it, so a tag's where there is one; empty where it tells none."""
    version: int | bytes
    """The IP packet's first byte; behind a tag with the EtherType before it."""
    part_mask: int
    part: int
    """IPv4: what `part_mask` leaves of flags and fragment offset; IPv6: the next header is TCP."""
    to: frozenset[int]
    answers_from: frozenset[int]
    """Empty unless answers are followed."""
    bare: tuple[int, ...]
    """By the byte that holds TCP's data offset: IP's length without payload; -1 where such segments are wanted."""


class Glances:
    """The glances of one link type, each made when a frame of its shape is first met."""

    def __init__(self, link: LinkType, ports: Collection[int], *, follow_answers: bool) -> None:
        self._link, self._ports, self._follow_answers = link, frozenset(ports), follow_answers
        self._made: dict[tuple[bytes, int, str, str], PeekBounds] = {}

    def at(self, frame: bytes, record: str, order: str) -> PeekBounds:
        """The glance for frames like this one, or the commonest one.

        `record`: the struct format of a record's header in the file's byte order, `<` or `>`.
        """
        shape = (*self._shape(frame), record, order)
        if shape not in self._made:
            self._made[shape] = self._make(*shape)
        return self._made[shape]

    def _shape(self, frame: bytes) -> tuple[bytes, int]:
        """A tag's EtherType, if there is one, and the IP version."""
        link, tag = self._link, b""
        version_at = link.header
        if link.protocol_at is not None:
            outer = frame[link.protocol_at : link.protocol_at + 2]
            if outer in TAGS:
                tag, version_at = outer, link.header + _TAG
        version = frame[version_at : version_at + 1]
        return tag, 6 if version == b"\x60" else 4

    def _make(self, tag: bytes, version: int, record: str, order: str) -> PeekBounds:
        # IPv4: length at 2, flags and offset at 6, TCP at 20; IPv6: length at 4, next header at 6, TCP at 40
        packet = "xH2xH12xHH8xBB" if version == 4 else "3xHBx32xHH8xBB"
        looked = struct.Struct(order + record + _before(self._link, tag) + packet)
        ports = frozenset(_swapped(port, order) for port in self._ports)
        ethertype, first = (b"\x08\x00", b"\x45") if version == 4 else (b"\x86\xdd", b"\x60")
        if self._link.protocol_at is None:
            outer: int | bytes = b""
        else:
            outer = _swapped(int.from_bytes(tag or ethertype, "big"), order)
        headers = 20 if version == 4 else 0
        return PeekBounds(
            fields=looked.unpack_from,
            size=looked.size,
            least=looked.size - struct.calcsize(order + record),
            ethertype=outer,
            version=ethertype + first if tag else first[0],
            part_mask=_swapped(PART_OF_PACKET, order) if version == 4 else 0xFF,
            part=0 if version == 4 else 6,
            to=ports,
            answers_from=ports if self._follow_answers else frozenset(),
            bare=tuple(
                -1
                if self._follow_answers or offset < 0x50
                else _swapped(headers + (offset >> 4) * 4, order)
                for offset in range(256)
            ),
        )


def up_to_ip(link: LinkType) -> str:
    """Struct format of a link's header of which only the EtherType is read, or nothing."""
    if link.protocol_at is None:
        return f"{link.header}x0s"
    return f"{link.protocol_at}xH{link.header - link.protocol_at - 2}x"


def _before(link: LinkType, tag: bytes) -> str:
    """The same, with the version, too: behind a tag, its number and the EtherType come before that."""
    return up_to_ip(link) + ("2x3s" if tag else "B")


def _swapped(number: int, order: str) -> int:
    """What a 16-bit number of the network reads as in this byte order."""
    return int.from_bytes(number.to_bytes(2, "big"), "big" if order == ">" else "little")
