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

RAW = ("RAW", 0, None)
LINKS: dict[int, tuple[str, int, int | None]] = {
    0: ("NULL", 4, None),
    1: ("EN10MB", 14, 12),
    # RAW is 101 in files; 12 and 14 are what it is called in memory, and some programs write that
    12: RAW,
    14: RAW,
    101: RAW,
    108: ("LOOP", 4, None),
    113: ("LINUX_SLL", 16, 14),
    228: ("IPV4", 0, None),
    229: ("IPV6", 0, None),
    276: ("LINUX_SLL2", 20, 0),
}
"""Link types by their numbers in capture files: name, bytes before the IP packet (VLAN tags not counted), and where among them
the EtherType stands. None: there is none, and the packet's own version tells."""

ETHERTYPES = (b"\x08\x00", b"\x86\xdd")
"""Of IPv4 and IPv6."""
TAGS = frozenset({b"\x81\x00", b"\x88\xa8", b"\x91\x00"})
"""EtherTypes of VLAN tags: 802.1Q, 802.1ad (QinQ) and what came before it; a tag is 4 bytes long."""


def not_read(link_type: int) -> ToolkitError:
    """That frames of this type are not read; scapy knows the names of all."""
    from scapy import data  # noqa: PLC0415 - 0.1 s of CPU, and hardly ever wanted

    names = (
        name[4:]
        for name, number in vars(data).items()
        if number == link_type and name[:4] == "DLT_"
    )
    known = ", ".join(f"{name} ({number})" for number, (name, _, _) in LINKS.items())
    return ToolkitError(
        f"frames of link type {next(names, 'unknown')} ({link_type}) are not read",
        f"Capture on the interface that carries the IP packets, e.g., `tcpdump -i any`; read are {known}",
    )


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

        whole = bytearray()
        if packet.length is not None and packet.seen >= packet.length:
            for start in sorted(packet.fragments):
                if start > len(whole):
                    break
                # of an overlap the earlier bytes win, whatever came first: no sender overlaps
                whole += packet.fragments[start][len(whole) - start :]
        is_whole = packet.length is not None and len(whole) >= packet.length
        if is_whole:
            self._let_go(key)
            self._done.append((key, bytes(whole[: packet.length])))
        while self._packets:
            oldest, begun = next(iter(self._packets.items()))
            if self._held <= self._limits.fragments_bytes and begun.begun_at + WAIT_S >= ts:
                break
            self._let_go(oldest)
            self._losses.fragments += 1
        return self._done[-1][1] if is_whole else None

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

_SEGMENT = struct.Struct(">4xIIBB")
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
        if link_type not in LINKS:
            raise not_read(link_type)
        self._segment, self._losses = segment, losses
        self._follow_answers = watch.follow_answers
        self._to = frozenset(port.to_bytes(2, "big") for port in watch.ports)
        self._from = self._to if watch.follow_answers else frozenset[bytes]()
        self._fragments = Fragments(losses=losses, limits=watch.limits)
        _, self._at, self._protocol_at = LINKS[link_type]
        place = self._protocol_at
        # an Ethernet header without tags, an IPv4 header without options, TCP: most frames, in one unpacking
        up_to_ip = f"{self._at}x0s" if place is None else f"{place}xH{self._at - place - 2}x"
        self._plain = struct.Struct(f">{up_to_ip}BxH2xHxB2x12sIIBB").unpack_from
        self._ethertype: int | bytes = b"" if place is None else 0x0800

    def frame(self, ts: float, frame: bytes, wire_length: int) -> None:
        """Look at one frame; `wire_length` is its length before it was cut to the capture's snaplen."""
        losses = self._losses
        losses.frames += 1
        try:
            ethertype, version, total, part, protocol, key, seq, ack, words, flags = self._plain(
                frame
            )
        except struct.error:  # shorter than a whole TCP header
            version = 0
        if version == 0x45 and ethertype == self._ethertype and not part & PART_OF_PACKET:
            packet, start = frame, self._at + 20
            if protocol != TCP:
                return
            if not (key[10:] in self._to or key[8:10] in self._from):
                if not losses.segments:
                    self._look_elsewhere(packet, start)
                return
            # a total of 0 is left behind by offload of segments beyond 64 KB
            end = self._at + total if total else wire_length
        else:
            found = self._find_tcp(ts, frame, wire_length)
            if found is None:
                return
            packet, addresses, start, end = found
            key = addresses + packet[start : start + 4]
            is_watched = key[-2:] in self._to or key[-4:-2] in self._from
            # one whose ports are not to be seen may be watched
            if not is_watched and len(packet) >= start + 4:
                self._look_elsewhere(packet, start)
                return
            seq = ack = words = flags = 0
            if end >= start + 20 and len(packet) >= start + _SEGMENT.size:
                seq, ack, words, flags = _SEGMENT.unpack_from(packet, start)

        losses.segments += 1
        at = start + (words >> 4) * 4
        if words < 0x50 or at > end:
            losses.damaged_frames += 1
        elif at < end or flags & SAYS_SOMETHING or self._follow_answers:
            payload = packet[at:end]
            missing = end - at - len(payload)
            if missing:
                losses.truncated += 1
            self._segment(ts, key, seq, ack, flags, payload, missing)

    def _look_elsewhere(self, packet: bytes, tcp: int) -> None:
        """Note where requests go instead, as long as none is on the ports watched: a hint to a person."""
        words = packet[tcp + 12] if tcp + 12 < len(packet) else 0
        is_request = packet.startswith((b"POST /", b"GET /"), tcp + (words >> 4) * 4)
        if is_request and not self._losses.segments:
            self._losses.other_ports[int.from_bytes(packet[tcp + 2 : tcp + 4], "big")] += 1

    def close(self) -> None:
        """The capture is over: packets of which fragments are missing are counted as lost."""
        self._fragments.close()

    def _find_tcp(
        self, ts: float, frame: bytes, wire_length: int
    ) -> tuple[bytes, bytes, int, int] | None:
        """Of any frame that is not plain - tags, options, fragments, IPv6, cut short, no IP at all - what holds its TCP segment.

        That is the packet, its addresses, and where in it the segment begins and ends.
        """
        losses, at = self._losses, self._at
        if self._protocol_at is not None:
            ethertype = frame[self._protocol_at : self._protocol_at + 2]
            while ethertype in TAGS:
                # after the EtherType of a tag come its 2 bytes, then the next EtherType
                ethertype = frame[at + 2 : at + 4]
                at += 4
            if ethertype not in ETHERTYPES:
                return None
        version = frame[at] >> 4 if at < len(frame) else 0
        if version not in (4, 6):
            return None
        is_damaged = len(frame) < at + (20 if version == 4 else 40)
        ident = offset = start = end = header = 0
        more = False
        if is_damaged:
            pass
        elif version == 4:
            total, ident, part, header = _IPV4.unpack_from(frame, at + 2)
            addresses = frame[at + 12 : at + 20]
            start, end = at + (frame[at] & 0x0F) * 4, at + total if total else wire_length
            offset, more = (part & 0x1FFF) * 8, bool(part & 0x2000)
            is_damaged = header == TCP and (start < at + 20 or end < start)
        else:
            length, header = _IPV6.unpack_from(frame, at)
            addresses = frame[at + 8 : at + 40]
            end = at + 40 + length if length else wire_length
            header, start = past_extensions(frame, header, at + 40)
            is_fragment = header == FRAGMENT
            # the frame ends among its headers
            is_damaged = header in EXTENSIONS or (is_fragment and start + 8 > min(end, len(frame)))
            if is_fragment and not is_damaged:
                header, part, ident = _FRAGMENT_HEADER.unpack_from(frame, start)
                start += 8
                offset, more = part & 0xFFF8, bool(part & 1)
        if is_damaged:
            losses.damaged_frames += 1
            return None
        if header != TCP and (version == 4 or header not in EXTENSIONS):
            return None

        packet = frame
        if offset or more:
            data = frame[start:end]
            if len(data) < end - start:
                losses.truncated += 1
            whole = self._fragments.add(
                ts, (addresses, ident), offset=offset, more=more, length=end - start, data=data
            )
            if whole is None:
                return None
            packet, start, end = whole, 0, len(whole)
        if version == 6:
            header, start = past_extensions(packet, header, start)
        return (packet, addresses, start, end) if header == TCP else None
