"""A pcapng file's bytes, fed in blocks of any size -> frames, whatever the sections, interfaces and byte orders.

It opens no file, keeps no more than one block, and passes over what it does not know, decryption secrets among it.
Frames that nobody wants are thrown away here, by one unpacking each (Frames.glance): no call, no slice.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from toolkit.capture.exchange import Losses
from toolkit.capture.frames import Frames
from toolkit.capture.pcap import SHAPE, damaged, not_read
from toolkit.errors import ToolkitError

MAGIC = b"\x0a\x0d\x0d\x0a"
"""A section's first bytes, the same in both byte orders."""
_ORDERS = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
LARGEST_BLOCK = 16 << 20
"""Wireshark's own limit: a length beyond this is damaged, and is not waited for."""
MOST_INTERFACES = 1 << 16
"""An old packet block counts no further; so that a file of nothing else cannot fill the memory."""

YEAR_10000 = 253_402_300_800.0
"""No calendar goes beyond it, and a clock whose units are damaged easily does."""

_INTERFACE, _OLD_PACKET, _SIMPLE, _STATISTICS, _ENHANCED = 1, 2, 3, 5, 6
_RESOLUTION, _OFFSET_S = 9, 14
_DROPPED_BY_INTERFACE, _DROPPED_BY_SYSTEM = 5, 7
_SMALLEST = 12
_PACKET_HEADER = 28
"""Bytes of an enhanced or old packet block before its frame."""


@dataclass(slots=True, kw_only=True)
class _Interface:
    """What an interface's block says of its frames."""

    frames: Frames | None
    problem: ToolkitError | None
    """Why its frames are not read, where they are not."""
    ticks_per_s: int = 10**6
    offset_s: int = 0
    snaplen: int
    """0: frames are whole."""
    drops: int = 0


class Pcapng:
    """A pcapng file from its first byte on; `frames_of` gives the Frames of a link type."""

    def __init__(self, name: str, frames_of: Callable[[int], Frames], losses: Losses) -> None:
        self._name, self._frames_of, self._losses = name, frames_of, losses
        self._rest = b""
        self._place = 0
        """Of `_rest`'s first byte in the file."""
        self._now = 0.0
        """Time of the last frame that has one."""
        self._unread: dict[str, int] = {}
        self._timeless = 0
        self._start_section("<")

    def feed(self, data: bytes) -> None:
        """Take the file's next bytes; ToolkitError where they cannot be a block's."""
        block = self._rest + data if self._rest else data
        at = self._walk(block, 0)
        self._rest = block[at:]
        self._place += at

    def ending(self) -> str | None:
        """What is wrong with how the file ends, once all of it was fed; None: nothing."""
        if not self._rest:
            return None
        if not self._place:
            return f"it ends within its header, after {len(self._rest)} bytes"
        return f"its last block, at byte {self._place:,}, is cut off"

    def notes(self) -> list[str]:
        """What a reader of the capture should know."""
        told = [f"{self._name}: {count:,} {problem}" for problem, count in self._unread.items()]
        if self._timeless:
            told.append(
                f"{self._name}: {self._timeless:,} frames have no time that can be; each is taken for as late as the one before"
            )
        return told

    def _walk(self, block: bytes, at: int) -> int:
        """Hand on every whole block's frame that may be wanted; where the first one begins that is not whole."""
        while len(block) - at >= _SMALLEST:
            at = self._pass_over(block, at)
            following = self._hand_on(block, at)
            if following == at:
                break
            at = following
        return at

    def _pass_over(self, block: bytes, at: int) -> int:
        """The same as far as a glance can tell, until a section or interface changes what it looks for."""
        judged, alike, hand_on = self._judged, self._alike, self._hand_on
        if judged is None:
            return at
        start = at + _PACKET_HEADER
        # the first frame tells what most of the bytes fed look like, and is taken anew each time
        glance = judged.glance(block[start : start + SHAPE], "III8xI4x", self._order)
        fields, least, ethertype = glance.fields, glance.least, glance.ethertype
        ip, part_mask, plain = glance.version, glance.part_mask, glance.part
        to, answers_from, bare = glance.to, glance.answers_from, glance.bare
        end = len(block)
        last = end - glance.size
        others = acknowledgements = 0
        try:
            while at <= last:
                (
                    block_kind, length, number, kept,
                    kind, version, total, part, source, target, offset, flags,
                ) = fields(block, at)  # fmt: skip
                following = at + length
                if (
                    following <= end
                    and block_kind == _ENHANCED
                    and number in alike
                    and length >= kept + 32
                    and kind == ethertype
                    and version == ip
                    and kept >= least
                    and part & part_mask == plain
                ):
                    if target not in to and source not in answers_from:
                        others += 1
                        at = following
                        continue
                    if total == bare[offset] and not flags & 7:
                        acknowledgements += 1
                        at = following
                        continue
                following = hand_on(block, at)
                if following == at:
                    break
                at = following
                if self._alike is not alike:
                    break
        finally:
            self._losses.frames += others + acknowledgements
            self._losses.segments += acknowledgements
        return at

    def _hand_on(self, block: bytes, at: int) -> int:
        """Read one block closely; where the next one begins, or `at` where this one is not whole."""
        if len(block) - at < _SMALLEST:
            return at
        if block[at : at + 4] == MAGIC:
            return self._section(block, at)
        kind, length = self._head(block, at)
        following = self._end(block, at, length)
        if following > at:
            if kind == _ENHANCED:
                self._enhanced(block, at, length)
            elif kind == _SIMPLE:
                self._simple(block, at, length)
            elif kind == _OLD_PACKET:
                self._old_packet(block, at, length)
            elif kind == _INTERFACE:
                self._interface(block[at + 8 : following - 4], at)
            elif kind == _STATISTICS:
                self._statistics(block[at + 8 : following - 4], at)
        return following

    def _end(self, block: bytes, at: int, length: int) -> int:
        """Where a block ends, its length checked against the one that it repeats there; `at` if it is not whole."""
        if not _SMALLEST <= length <= LARGEST_BLOCK:
            raise self._damaged(at, f"a block says it is {length:,} bytes long")
        following = at + length
        if following > len(block):
            return at
        (repeated,) = self._number(block, following - 4)
        if repeated != length:
            raise self._damaged(
                at, f"a block says it is {length:,} bytes long, and {repeated:,} at its end"
            )
        return following

    def _section(self, block: bytes, at: int) -> int:
        order = _ORDERS.get(block[at + 8 : at + 12])
        if order is None:
            raise self._damaged(at, "a section tells no byte order")
        self._start_section(order)
        return self._end(block, at, self._head(block, at)[1])

    def _start_section(self, order: str) -> None:
        self._order = order
        self._head = struct.Struct(f"{order}II").unpack_from
        self._number = struct.Struct(f"{order}I").unpack_from
        self._packet = struct.Struct(f"{order}8xIIIII").unpack_from
        self._old_numbers = struct.Struct(f"{order}8xHH").unpack_from
        self._interfaces: list[_Interface] = []
        self._alike: set[int] = set()
        """Interfaces of `_judged`."""
        self._judged: Frames | None = None
        """Frames of the first link type that is read: only those are judged by a glance."""

    def _interface(self, body: bytes, at: int) -> None:
        if len(body) < 8 or len(self._interfaces) == MOST_INTERFACES:
            raise self._damaged(at, "an interface's block is cut off, or one too many")
        link_type, snaplen = struct.unpack_from(f"{self._order}H2xI", body)
        options = dict(self._options(body[8:]))
        interface = _Interface(frames=None, problem=None, snaplen=snaplen)
        if len(options.get(_RESOLUTION, b"")) == 1:
            power = options[_RESOLUTION][0]
            # the top bit tells powers of 2 from powers of 10
            interface.ticks_per_s = 2 ** (power & 0x7F) if power & 0x80 else 10**power
        if len(options.get(_OFFSET_S, b"")) == 8:
            (interface.offset_s,) = struct.unpack(f"{self._order}q", options[_OFFSET_S])
        try:
            interface.frames = self._frames_of(link_type)
        except ToolkitError as problem:
            interface.problem = problem
        self._interfaces.append(interface)
        if self._judged is None:
            self._judged = interface.frames
        if interface.frames is not None and interface.frames is self._judged:
            self._alike.add(len(self._interfaces) - 1)

    def _enhanced(self, block: bytes, at: int, length: int) -> None:
        if length < _PACKET_HEADER + 4:
            raise self._damaged(at, "a packet's block is cut off")
        number, high, low, kept, wire_length = self._packet(block, at)
        self._frame(block, at, length, number, (high << 32 | low, kept, wire_length))

    def _old_packet(self, block: bytes, at: int, length: int) -> None:
        if length < _PACKET_HEADER + 4:
            raise self._damaged(at, "a packet's block is cut off")
        _, high, low, kept, wire_length = self._packet(block, at)
        number, drops = self._old_numbers(block, at)
        if drops != 0xFFFF:  # which stands for unknown
            self._losses.kernel_drops += drops
        self._frame(block, at, length, number, (high << 32 | low, kept, wire_length))

    def _frame(
        self, block: bytes, at: int, length: int, number: int, packet: tuple[int, int, int]
    ) -> None:
        ticks, kept, wire_length = packet
        if kept > length - _PACKET_HEADER - 4:
            raise self._damaged(at, f"a block of {length:,} bytes holds a frame of {kept:,}")
        interface = self._interface_of(number, at)
        ts = ticks / interface.ticks_per_s + interface.offset_s
        if 0 <= ts < YEAR_10000:
            self._now = ts
        else:
            self._timeless += 1
        start = at + _PACKET_HEADER
        self._read(interface, block[start : start + kept], wire_length)

    def _simple(self, block: bytes, at: int, length: int) -> None:
        interface = self._interface_of(0, at)
        if length < 16:
            raise self._damaged(at, "a packet's block is cut off")
        (wire_length,) = self._number(block, at + 8)
        # it tells its length on the wire only: what was kept is that, up to the snaplen, without the padding
        kept = min(wire_length, interface.snaplen or wire_length, length - 16)
        self._timeless += 1
        self._read(interface, block[at + 12 : at + 12 + kept], wire_length)

    def _read(self, interface: _Interface, frame: bytes, wire_length: int) -> None:
        if interface.frames is not None:
            interface.frames.frame(self._now, frame, wire_length)
            return
        assert interface.problem is not None
        if all(each.frames is None for each in self._interfaces):
            raise not_read(self._name, interface.problem)
        problem = interface.problem.message
        self._unread[problem] = self._unread.get(problem, 0) + 1

    def _statistics(self, body: bytes, at: int) -> None:
        """What the capturing program says that it lost on an interface, counted since its start."""
        if len(body) < 12:
            raise self._damaged(at, "statistics are cut off")
        interface = self._interface_of(self._number(body, 0)[0], at)
        drops = sum(
            struct.unpack(f"{self._order}Q", value)[0]
            for code, value in self._options(body[12:])
            if code in (_DROPPED_BY_INTERFACE, _DROPPED_BY_SYSTEM) and len(value) == 8
        )
        self._losses.kernel_drops += max(0, drops - interface.drops)
        interface.drops = max(drops, interface.drops)

    def _interface_of(self, number: int, at: int) -> _Interface:
        if number >= len(self._interfaces):
            raise self._damaged(
                at, f"a block names interface {number:,} of {len(self._interfaces)}"
            )
        return self._interfaces[number]

    def _options(self, options: bytes) -> Iterator[tuple[int, bytes]]:
        at = 0
        while at + 4 <= len(options):
            code, length = struct.unpack_from(f"{self._order}HH", options, at)
            if code == 0:
                return
            yield code, options[at + 4 : at + 4 + length]
            at += 4 + length + -length % 4

    def _damaged(self, at: int, what: str) -> ToolkitError:
        return damaged(self._name, f"at byte {self._place + at:,} {what}")
