"""Frames -> TCP segments on the ports watched, whatever the link, IP version, options and fragments.

It builds no object per frame, checks no checksum (offload leaves wrong ones) and never follows a connection.
"""

import struct
from collections.abc import Callable, Collection

from toolkit.capture.exchange import FIN, RST, SYN, Losses, MemoryBounds
from toolkit.capture.fragments import Fragments
from toolkit.capture.glance import PART_OF_PACKET, Glances, PeekBounds, up_to_ip
from toolkit.capture.links import EXTENSIONS, FRAGMENT, ip_start, link, transport

_TCP = 6
_SEGMENT = struct.Struct(">4sIIBB")
_IPV4 = struct.Struct(">HHHxB")
_IPV6 = struct.Struct(">4xHB")
_FRAGMENT_HEADER = struct.Struct(">BxHI")

SAYS_SOMETHING = FIN | SYN | RST
"""A segment without payload and without one of these is only an acknowledgement."""

_NORMAL = MemoryBounds()


class Frames:
    """Frames of one link type; hands `segment` what Streams.segment takes."""

    def __init__(
        self,
        link_type: int,
        segment: Callable[..., None],
        *,
        ports: Collection[int],
        follow_answers: bool,
        losses: Losses,
        limits: MemoryBounds = _NORMAL,
    ) -> None:
        self._link = link(link_type)
        self._segment, self._losses = segment, losses
        self._follow_answers = follow_answers
        self._glances = Glances(self._link, ports, follow_answers=follow_answers)
        self._to = frozenset(port.to_bytes(2, "big") for port in ports)
        self._from = self._to if follow_answers else frozenset[bytes]()
        self._fragments = Fragments(losses=losses, limits=limits)
        self._at = self._link.header
        # an Ethernet header without tags, an IPv4 header without options, TCP: most frames, in one unpacking
        plain = struct.Struct(f">{up_to_ip(self._link)}BxH2xHxB2x12sIIBB")
        self._plain = plain.unpack_from
        self._ethertype: int | bytes = b"" if self._link.protocol_at is None else 0x0800

    def frame(self, ts: float, frame: bytes | memoryview, wire_length: int) -> None:
        """Look at one frame; `wire_length` is its length before it was cut to the capture's snaplen."""
        losses = self._losses
        losses.frames += 1
        try:
            ethertype, version, total, part, protocol, key, seq, ack, offset, flags = self._plain(
                frame
            )
        except struct.error:  # shorter than a whole TCP header
            self._unusual(ts, bytes(frame), wire_length)
            return
        if version != 0x45 or ethertype != self._ethertype or part & PART_OF_PACKET:
            self._unusual(ts, bytes(frame), wire_length)
            return
        if protocol != _TCP or not (key[10:] in self._to or key[8:10] in self._from):
            return
        losses.segments += 1
        # a total of 0 is left behind by offload of segments beyond 64 KB
        end = self._at + total if total else wire_length
        start = self._at + 20 + (offset >> 4) * 4
        if offset < 0x50 or start > end:
            losses.damaged_frames += 1
        elif start < end or flags & SAYS_SOMETHING or self._follow_answers:
            payload = bytes(frame[start:end])
            missing = end - start - len(payload)
            if missing:
                losses.truncated += 1
            self._segment(ts, key, seq, ack, flags, payload, missing)

    def close(self) -> None:
        """The capture is over: packets of which fragments are missing are counted as lost."""
        self._fragments.close()

    def glance(self, frame: bytes, record: str, order: str) -> PeekBounds:
        """How to throw away frames like this one unseen; see Glances.at."""
        return self._glances.at(frame, record, order)

    def _unusual(self, ts: float, frame: bytes, wire_length: int) -> None:
        """Any frame that is not plain: tags, options, fragments, IPv6, cut short, or no IP at all."""
        at = ip_start(self._link, frame)
        if at is None:
            return
        version = frame[at] >> 4
        if version == 4:
            self._ipv4(ts, frame, at, wire_length)
        elif version == 6:
            self._ipv6(ts, frame, at, wire_length)

    def _ipv4(self, ts: float, frame: bytes, at: int, wire_length: int) -> None:
        if len(frame) < at + 20:
            self._losses.damaged_frames += 1
            return
        total, ident, part, protocol = _IPV4.unpack_from(frame, at + 2)
        if protocol != _TCP:
            return
        start = at + (frame[at] & 0x0F) * 4
        end = at + total if total else wire_length
        if start < at + 20 or end < start:
            self._losses.damaged_frames += 1
            return
        addresses = frame[at + 12 : at + 20]
        if not part & PART_OF_PACKET:
            self._tcp(ts, addresses, frame, start, end)
            return
        whole = self._fragments.add(
            ts,
            (addresses, ident),
            offset=(part & 0x1FFF) * 8,
            more=bool(part & 0x2000),
            length=end - start,
            data=self._seen_of_fragment(frame, start, end),
        )
        if whole is not None:
            self._tcp(ts, addresses, whole, 0, len(whole))

    def _ipv6(self, ts: float, frame: bytes, at: int, wire_length: int) -> None:
        if len(frame) < at + 40:
            self._losses.damaged_frames += 1
            return
        length, header = _IPV6.unpack_from(frame, at)
        end = at + 40 + length if length else wire_length
        addresses = frame[at + 8 : at + 40]
        header, start = transport(frame, header, at + 40)
        if header == _TCP:
            self._tcp(ts, addresses, frame, start, end)
        elif header == FRAGMENT and start + 8 <= min(end, len(frame)):
            self._ipv6_fragment(ts, addresses, frame, start, end)
        elif header == FRAGMENT or header in EXTENSIONS:  # the frame ends among its headers
            self._losses.damaged_frames += 1

    def _ipv6_fragment(
        self, ts: float, addresses: bytes, frame: bytes, start: int, end: int
    ) -> None:
        header, part, ident = _FRAGMENT_HEADER.unpack_from(frame, start)
        if header != _TCP and header not in EXTENSIONS:
            return
        whole = self._fragments.add(
            ts,
            (addresses, ident),
            offset=part & 0xFFF8,
            more=bool(part & 1),
            length=end - start - 8,
            data=self._seen_of_fragment(frame, start + 8, end),
        )
        if whole is None:
            return
        header, start = transport(whole, header, 0)
        if header == _TCP:
            self._tcp(ts, addresses, whole, start, len(whole))

    def _seen_of_fragment(self, frame: bytes, start: int, end: int) -> bytes:
        data = frame[start:end]
        if len(data) < end - start:
            self._losses.truncated += 1
        return data

    def _tcp(self, ts: float, addresses: bytes, packet: bytes, at: int, end: int) -> None:
        """Hand on a TCP segment that begins at `at` and reached to `end` before it was cut."""
        if not self._is_watched(packet[at : at + 4]):
            return
        self._losses.segments += 1
        if end < at + 20 or len(packet) < at + _SEGMENT.size:
            self._losses.damaged_frames += 1
            return
        ports, seq, ack, offset, flags = _SEGMENT.unpack_from(packet, at)
        start = at + (offset >> 4) * 4
        if start < at + 20 or start > end:
            self._losses.damaged_frames += 1
        elif start < end or flags & SAYS_SOMETHING or self._follow_answers:
            payload = packet[start:end]
            missing = end - start - len(payload)
            if missing:
                self._losses.truncated += 1
            self._segment(ts, addresses + ports, seq, ack, flags, payload, missing)

    def _is_watched(self, ports: bytes) -> bool:
        """Whether a segment is on a port watched; one whose ports are not to be seen may be."""
        return len(ports) < 4 or ports[2:] in self._to or ports[:2] in self._from
