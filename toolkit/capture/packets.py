"""Frames -> TCP segments on the ports watched, whatever the link, IP version, options and fragments.

It builds no object per frame, checks no checksum (offload leaves wrong ones) and never follows a connection.
"""

import struct
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from toolkit.capture.records import FIN, RST, SYN, CaptureFilter, Losses, MemoryBounds
from toolkit.errors import ToolkitError

# --- link types -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkType:
    """How frames of one link type begin."""

    name: str
    header: int
    """Bytes before the IP packet, VLAN tags not counted."""
    protocol_at: int | None = None
    """Where the EtherType stands; None: the frame has none, and the packet's own version tells."""


_RAW = LinkType(name="RAW", header=0)
LINKS = {
    0: LinkType(name="NULL", header=4),
    1: LinkType(name="EN10MB", header=14, protocol_at=12),
    # RAW is 101 in files; 12 and 14 are what it is called in memory, and some programs write that
    12: _RAW,
    14: _RAW,
    101: _RAW,
    108: LinkType(name="LOOP", header=4),
    113: LinkType(name="LINUX_SLL", header=16, protocol_at=14),
    228: LinkType(name="IPV4", header=0),
    229: LinkType(name="IPV6", header=0),
    276: LinkType(name="LINUX_SLL2", header=20, protocol_at=0),
}
NOT_READ = {
    6: "TOKEN_RING",
    9: "PPP",
    50: "PPP_HDLC",
    51: "PPP_ETHER",
    105: "IEEE802_11",
    127: "IEEE802_11_RADIOTAP",
    147: "USER0",
    187: "BLUETOOTH_HCI_H4",
    189: "USB_LINUX",
    195: "IEEE802_15_4",
    201: "BLUETOOTH_HCI_H4_WITH_PHDR",
    220: "USB_LINUX_MMAPPED",
    239: "NFLOG",
    240: "NETANALYZER",
    249: "USBPCAP",
    253: "NETLINK",
}
"""Names of what people capture, too, and what holds no IP, or holds it deeper than is looked."""

ETHERTYPES = (b"\x08\x00", b"\x86\xdd")
"""Of IPv4 and IPv6."""
TAGS = frozenset({b"\x81\x00", b"\x88\xa8", b"\x91\x00"})
"""EtherTypes of VLAN tags: 802.1Q, 802.1ad (QinQ) and what came before it; a tag is 4 bytes long."""


def link(link_type: int) -> LinkType:
    """How frames of this type begin; ToolkitError names a type that is not read."""
    found = LINKS.get(link_type)
    if found is None:
        known = ", ".join(f"{each.name} ({number})" for number, each in LINKS.items())
        raise ToolkitError(
            f"frames of link type {NOT_READ.get(link_type, 'unknown')} ({link_type}) are not read",
            f"Capture on the interface that carries the IP packets, e.g., `tcpdump -i any`; read are {known}",
        )
    return found


# --- IP fragments -----------------------------------------------------------------------------------

WAIT_S = 30.0
"""How long Linux waits for a packet's missing fragments (net.ipv4.ipfrag_time)."""
LONGEST_PACKET = 0xFFFF + 8
"""No packet reaches further; what claims to is damaged or an attack."""
FRAGMENT_BYTES = 600
"""What a fragment that is alone of its packet takes beside its bytes, by tracemalloc 490 without any; so that empty ones
are bounded, too."""
MOST_FRAGMENTS = 1024
"""64 KB in fragments of the smallest MTU, 576 bytes, are 119; more are an attack on whoever puts them together."""
REMEMBERED = 16
"""Whole packets remembered, 1 MB at most, so that a second copy of a late fragment is not taken for a new packet."""


@dataclass(slots=True)
class _Packet:
    """One packet's fragments so far, by their offset."""

    begun_at: float
    length: int | None = None
    fragments: dict[int, bytes] = field(default_factory=dict)
    seen: int = 0


class Fragments:
    """IP fragments -> the packets they were cut from; what waits too long or takes too much is let go and counted as lost.

    It never fills a hole: the bytes of a packet that lacks a fragment are a gap to whoever counts them.
    """

    def __init__(self, *, losses: Losses, limits: MemoryBounds) -> None:
        self._losses, self._limits = losses, limits
        self._packets: dict[Hashable, _Packet] = {}
        """The one longest begun first."""
        self._done: deque[tuple[Hashable, bytes]] = deque(maxlen=REMEMBERED)
        self._held = 0

    def add(
        self, ts: float, key: Hashable, *, offset: int, more: bool, length: int, data: bytes
    ) -> bytes | None:
        """Take one fragment in; the whole packet where this was the last one missing.

        `key`: what all fragments of a packet share, addresses and number; `offset` in bytes; `length`: of the fragment
        before it was cut at capture, while `data` is what was kept of it. The first at its place wins.
        """
        is_copy = any(
            key == other and whole[offset : offset + len(data)] == data
            for other, whole in self._done
        )
        if is_copy or offset + length > LONGEST_PACKET:
            return None
        packet = self._packets.setdefault(key, _Packet(ts))
        if packet.length is None and not more:
            packet.length = offset + length
        if offset not in packet.fragments and len(packet.fragments) < MOST_FRAGMENTS:
            packet.fragments[offset] = data
            packet.seen += len(data)
            self._held += len(data) + FRAGMENT_BYTES

        whole: bytearray | None = None
        if packet.length is not None and packet.seen >= packet.length:
            whole = bytearray()
            for start in sorted(packet.fragments):
                if start > len(whole):
                    break
                # of an overlap the earlier bytes win, whatever came first: no sender overlaps
                whole += packet.fragments[start][len(whole) - start :]
            if len(whole) < packet.length:
                whole = None
            else:
                self._let_go(key)
                self._done.append((key, bytes(whole[: packet.length])))

        while self._packets:
            oldest, begun = next(iter(self._packets.items()))
            if self._held <= self._limits.fragments_bytes and begun.begun_at + WAIT_S >= ts:
                break
            self._let_go(oldest)
            self._losses.fragments += 1
        return None if whole is None else self._done[-1][1]

    def _let_go(self, key: Hashable) -> None:
        packet = self._packets.pop(key)
        self._held -= packet.seen + len(packet.fragments) * FRAGMENT_BYTES

    def close(self) -> None:
        """The capture is over: what is still not whole never will be."""
        self._losses.fragments += len(self._packets)
        self._packets.clear()


# --- frames -----------------------------------------------------------------------------------------

TCP = 6
FRAGMENT, AUTHENTICATION = 44, 51
EXTENSIONS = frozenset({0, 43, AUTHENTICATION, 60, 135, 139, 140})
"""IPv6's headers before the transport's: hop-by-hop, routing, authentication, destination options, mobility, HIP, shim6.

With fragments' these are all that the kernel's filter lets through, as TCP may stand behind any of them.
"""
PART_OF_PACKET = 0x3FFF
"""Of IPv4's flags and fragment offset: more fragments follow, or this one is not the first."""
SAYS_SOMETHING = FIN | SYN | RST
"""A segment without payload and without one of these is only an acknowledgement."""

_SEGMENT = struct.Struct(">4sIIBB")
_IPV4 = struct.Struct(">HHHxB")
_IPV6 = struct.Struct(">4xHB")
_FRAGMENT_HEADER = struct.Struct(">BxHI")


def past_extensions(packet: bytes, header: int, at: int) -> tuple[int, int]:
    """Kind and place of the first header that is no IPv6 extension; a fragment header ends the walk, too.

    `header` is the kind of what stands at `at`. A chain that is cut short ends as the extension it ends in.
    """
    while header in EXTENSIONS and at + 2 <= len(packet):
        following, length = packet[at], packet[at + 1]
        # RFC 8200 counts 8 bytes beyond the first 8, RFC 4302 4 bytes beyond the first 8
        at += (length + 2) * 4 if header == AUTHENTICATION else (length + 1) * 8
        header = following
    return header, at


class Frames:
    """Frames of one link type; hands `segment` what Streams.segment takes."""

    def __init__(
        self,
        link_type: int,
        segment: Callable[..., None],
        watch: CaptureFilter,
        losses: Losses,
    ) -> None:
        self._link = link(link_type)
        self._segment, self._losses = segment, losses
        self._follow_answers = watch.follow_answers
        self._to = frozenset(port.to_bytes(2, "big") for port in watch.ports)
        self._from = self._to if watch.follow_answers else frozenset[bytes]()
        self._fragments = Fragments(losses=losses, limits=watch.limits)
        self._at, place = self._link.header, self._link.protocol_at
        # an Ethernet header without tags, an IPv4 header without options, TCP: most frames, in one unpacking
        up_to_ip = f"{self._at}x0s" if place is None else f"{place}xH{self._at - place - 2}x"
        self._plain = struct.Struct(f">{up_to_ip}BxH2xHxB2x12sIIBB").unpack_from
        self._ethertype: int | bytes = b"" if place is None else 0x0800

    def frame(self, ts: float, frame: bytes, wire_length: int) -> None:
        """Look at one frame; `wire_length` is its length before it was cut to the capture's snaplen."""
        losses = self._losses
        losses.frames += 1
        try:
            ethertype, version, total, part, protocol, key, seq, ack, offset, flags = self._plain(
                frame
            )
        except struct.error:  # shorter than a whole TCP header
            self._unusual(ts, frame, wire_length)
            return
        if version != 0x45 or ethertype != self._ethertype or part & PART_OF_PACKET:
            self._unusual(ts, frame, wire_length)
            return
        if protocol != TCP or not (key[10:] in self._to or key[8:10] in self._from):
            return
        losses.segments += 1
        # a total of 0 is left behind by offload of segments beyond 64 KB
        end = self._at + total if total else wire_length
        start = self._at + 20 + (offset >> 4) * 4
        if offset < 0x50 or start > end:
            losses.damaged_frames += 1
        elif start < end or flags & SAYS_SOMETHING or self._follow_answers:
            payload = frame[start:end]
            missing = end - start - len(payload)
            if missing:
                losses.truncated += 1
            self._segment(ts, key, seq, ack, flags, payload, missing)

    def close(self) -> None:
        """The capture is over: packets of which fragments are missing are counted as lost."""
        self._fragments.close()

    def _unusual(self, ts: float, frame: bytes, wire_length: int) -> None:
        """Any frame that is not plain: tags, options, fragments, IPv6, cut short, or no IP at all."""
        losses = self._losses
        at = self._link.header
        if self._link.protocol_at is not None:
            ethertype = frame[self._link.protocol_at : self._link.protocol_at + 2]
            while ethertype in TAGS:
                # after the EtherType of a tag come its 2 bytes, then the next EtherType
                ethertype = frame[at + 2 : at + 4]
                at += 4
            if ethertype not in ETHERTYPES:
                return
        version = frame[at] >> 4 if at < len(frame) else 0
        if version not in (4, 6):
            return
        if len(frame) < at + (20 if version == 4 else 40):
            losses.damaged_frames += 1
            return

        ident = offset = 0
        more = False
        if version == 4:
            total, ident, part, header = _IPV4.unpack_from(frame, at + 2)
            addresses = frame[at + 12 : at + 20]
            start, end = at + (frame[at] & 0x0F) * 4, at + total if total else wire_length
            offset, more = (part & 0x1FFF) * 8, bool(part & 0x2000)
            if header == TCP and (start < at + 20 or end < start):
                losses.damaged_frames += 1
                return
        else:
            length, header = _IPV6.unpack_from(frame, at)
            addresses = frame[at + 8 : at + 40]
            end = at + 40 + length if length else wire_length
            header, start = past_extensions(frame, header, at + 40)
            if header in EXTENSIONS or (
                header == FRAGMENT and start + 8 > min(end, len(frame))
            ):  # the frame ends among its headers
                losses.damaged_frames += 1
                return
            if header == FRAGMENT:
                header, part, ident = _FRAGMENT_HEADER.unpack_from(frame, start)
                start += 8
                offset, more = part & 0xFFF8, bool(part & 1)
        if header != TCP and (version == 4 or header not in EXTENSIONS):
            return

        packet = frame
        if offset or more:
            data = frame[start:end]
            if len(data) < end - start:
                losses.truncated += 1
            whole = self._fragments.add(
                ts, (addresses, ident), offset=offset, more=more, length=end - start, data=data
            )
            if whole is None:
                return
            packet, start, end = whole, 0, len(whole)
        if version == 6:
            header, start = past_extensions(packet, header, start)
        if header != TCP:
            return

        ports = packet[start : start + 4]
        if len(ports) == 4 and ports[2:] not in self._to and ports[:2] not in self._from:
            return  # one whose ports are not to be seen may be watched
        losses.segments += 1
        if end < start + 20 or len(packet) < start + _SEGMENT.size:
            losses.damaged_frames += 1
            return
        ports, seq, ack, words, flags = _SEGMENT.unpack_from(packet, start)
        payload_at = start + (words >> 4) * 4
        if payload_at < start + 20 or payload_at > end:
            losses.damaged_frames += 1
        elif payload_at < end or flags & SAYS_SOMETHING or self._follow_answers:
            payload = packet[payload_at:end]
            missing = end - payload_at - len(payload)
            if missing:
                losses.truncated += 1
            self._segment(ts, addresses + ports, seq, ack, flags, payload, missing)
