"""A pcap file's bytes, fed in blocks of any size -> frames. It opens no file, and keeps no more than one record.

Frames that nobody wants are thrown away here, by one unpacking each (Frames.glance): no call, no slice.
"""

import struct
from collections.abc import Callable

from toolkit.capture.exchange import Losses
from toolkit.capture.frames import Frames
from toolkit.errors import ToolkitError

MAGICS = {
    b"\xd4\xc3\xb2\xa1": ("<", 10**6),
    b"\xa1\xb2\xc3\xd4": (">", 10**6),
    b"\x4d\x3c\xb2\xa1": ("<", 10**9),
    b"\xa1\xb2\x3c\x4d": (">", 10**9),
}
"""A file's first bytes -> its byte order, and how many parts of a second its times count."""
LARGEST_FRAME = 1 << 20
"""tcpdump keeps 262,144 bytes of a frame at most: a length beyond this is damaged, and is not waited for."""
DAMAGED_HINT = "All before it was read; copy the file anew, or capture again"

_HEADER, _RECORD = 24, 16
SHAPE = 64
"""Bytes of a frame that tell its shape."""


class Pcap:
    """A pcap file from its first byte on; `frames_of` gives the Frames of a link type."""

    def __init__(self, name: str, frames_of: Callable[[int], Frames], losses: Losses) -> None:
        self._name, self._frames_of, self._losses = name, frames_of, losses
        self._begun = False
        self._rest = b""
        self._place = 0
        """Of `_rest`'s first byte in the file."""

    def feed(self, data: bytes) -> None:
        """Take the file's next bytes; ToolkitError where they cannot be a record's."""
        block = self._rest + data if self._rest else data
        at = 0
        if not self._begun and len(block) >= _HEADER:
            self._begin(block)
            at = _HEADER
        if self._begun:
            at = self._walk(block, at)
        self._rest = block[at:]
        self._place += at

    def ending(self) -> str | None:
        """What is wrong with how the file ends, once all of it was fed; None: nothing."""
        if not self._begun:
            return f"it ends within its header, after {len(self._rest)} bytes"
        if self._rest:
            return f"its last record, at byte {self._place:,}, is cut off"
        return None

    def notes(self) -> list[str]:
        """What a reader of the capture should know; a pcap file has nothing to say."""
        return []

    def _begin(self, block: bytes) -> None:
        order, self._parts = MAGICS[block[:4]]
        # the upper 6 bits tell how long the frame check sequences are
        link_type = struct.unpack_from(f"{order}I", block, 20)[0] & 0x03FFFFFF
        try:
            frames = self._frames_of(link_type)
        except ToolkitError as problem:
            raise not_read(self._name, problem) from None
        self._frame, self._glance_at, self._order = frames.frame, frames.glance, order
        self._record = struct.Struct(f"{order}IIII").unpack_from
        self._begun = True

    def _walk(self, block: bytes, at: int) -> int:
        """Hand on every whole record that may be wanted; where the first one begins that is not whole."""
        at = self._pass_over(block, at)
        while at + _RECORD <= len(block):
            following = self._hand_on(block, at)
            if following == at:
                break
            at = following
        return at

    def _pass_over(self, block: bytes, at: int) -> int:
        """The same up to the block's last bytes, throwing away by a glance; the product's innermost loop.

        Written out here and in pcapng.py: shared, it would be a call for each of 320,000 frames of which 20,000 are wanted.
        """
        # the first frame tells what most of a block looks like, and is taken anew with every block
        glance = self._glance_at(block[at + _RECORD : at + _RECORD + SHAPE], "8xI4x", self._order)
        fields, least, ethertype = glance.fields, glance.least, glance.ethertype
        ip, part_mask, plain = glance.version, glance.part_mask, glance.part
        to, answers_from, bare = glance.to, glance.answers_from, glance.bare
        hand_on = self._hand_on
        end = len(block)
        last = end - glance.size
        others = acknowledgements = 0
        try:
            while at <= last:
                kept, kind, version, total, part, source, target, offset, flags = fields(block, at)
                following = at + kept + _RECORD
                if (
                    following <= end
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
        finally:
            self._losses.frames += others + acknowledgements
            self._losses.segments += acknowledgements
        return at

    def _hand_on(self, block: bytes, at: int) -> int:
        """Have one record looked at closely; where the next one begins, or `at` where this one is not whole."""
        seconds, parts, kept, wire_length = self._record(block, at)
        if kept > LARGEST_FRAME:
            raise damaged(
                self._name, f"at byte {self._place + at:,} a frame of {kept:,} bytes begins"
            )
        following: int = at + _RECORD + kept
        if following > len(block):
            return at
        self._frame(seconds + parts / self._parts, block[at + _RECORD : following], wire_length)
        return following


def damaged(name: str, what: str) -> ToolkitError:
    """Say that a capture file holds what cannot be; what came before it has been handed on."""
    return ToolkitError(f"{name} is damaged: {what}", DAMAGED_HINT)


def not_read(name: str, problem: ToolkitError) -> ToolkitError:
    """Say of which file a link is not read."""
    return ToolkitError(f"{name}: {problem.message}", problem.hint)
