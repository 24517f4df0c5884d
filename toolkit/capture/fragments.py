"""IP fragments -> the packets they were cut from. Bounded: what waits too long or takes too much is let go.

It never fills a hole: a packet that lacks a fragment is counted as lost, and its bytes are a gap to whoever counts them.
"""

from collections import deque
from collections.abc import Hashable

from toolkit.capture.exchange import Losses, MemoryBounds

WAIT_S = 30.0
"""How long Linux waits for a packet's missing fragments (net.ipv4.ipfrag_time)."""
_LONGEST = 0xFFFF + 8
"""No packet reaches further; what claims to is damaged or an attack."""
_OVERHEAD_BYTES = 600
"""What a fragment that is alone of its packet takes beside its bytes, by tracemalloc 490 without any; so that empty ones
are bounded, too."""
_MOST_PIECES = 1024
"""64 KB in fragments of the smallest MTU, 576 bytes, are 119; more are an attack on whoever puts them together."""
_REMEMBERED = 16
"""Whole packets remembered, 1 MB at most, so that a second copy of a late fragment is not taken for a new packet."""


class _Packet:
    """One packet's fragments so far."""

    __slots__ = ("begun_at", "bytes", "length", "pieces", "seen")

    def __init__(self, begun_at: float) -> None:
        self.begun_at = begun_at
        self.pieces: dict[int, bytes] = {}
        self.length: int | None = None
        self.bytes = self.seen = 0

    def add(self, offset: int, end: int | None, data: bytes) -> int:
        """Keep a fragment; how many bytes that takes. The first at its place wins. `end`: of the packet, if this tells it."""
        if self.length is None:
            self.length = end
        if offset in self.pieces or len(self.pieces) == _MOST_PIECES:
            return 0
        self.pieces[offset] = data
        self.seen += len(data)
        self.bytes += len(data) + _OVERHEAD_BYTES
        return len(data) + _OVERHEAD_BYTES

    def whole(self) -> bytes | None:
        """All its bytes in order; None while some are missing."""
        if self.length is None or self.seen < self.length:
            return None
        whole = bytearray()
        for offset in sorted(self.pieces):
            if offset > len(whole):
                return None
            # of an overlap the earlier bytes win, whatever came first: no sender overlaps
            whole += self.pieces[offset][len(whole) - offset :]
        return bytes(whole[: self.length]) if len(whole) >= self.length else None


class Fragments:
    """All packets of which fragments wait for others, the one longest begun first."""

    def __init__(self, *, losses: Losses, limits: MemoryBounds) -> None:
        self._losses, self._limits = losses, limits
        self._packets: dict[Hashable, _Packet] = {}
        self._done: deque[tuple[Hashable, bytes]] = deque(maxlen=_REMEMBERED)
        self._bytes = 0

    def add(
        self,
        ts: float,
        key: Hashable,
        *,
        offset: int,
        more: bool,
        length: int,
        data: bytes,
    ) -> bytes | None:
        """Take one fragment in; the whole packet where this was the last one missing.

        `key`: what all fragments of a packet share, addresses and number; `offset` in bytes; `length`: of the fragment
        before it was cut at capture, while `data` is what was kept of it.
        """
        if offset + length > _LONGEST or self._is_copy(key, offset, data):
            return None
        packet = self._packets.get(key)
        if packet is None:
            packet = self._packets[key] = _Packet(ts)
        self._bytes += packet.add(offset, None if more else offset + length, data)
        whole = packet.whole()
        if whole is not None:
            self._forget(key)
            self._done.append((key, whole))
        self._bound(ts)
        return whole

    def close(self) -> None:
        """The capture is over: what is still not whole never will be."""
        for key in list(self._packets):
            self._lose(key)

    def _is_copy(self, key: Hashable, offset: int, data: bytes) -> bool:
        return any(
            key == other and whole[offset : offset + len(data)] == data
            for other, whole in self._done
        )

    def _bound(self, now: float) -> None:
        while self._packets:
            key, oldest = next(iter(self._packets.items()))
            if self._bytes <= self._limits.fragments_bytes and oldest.begun_at + WAIT_S >= now:
                return
            self._lose(key)

    def _lose(self, key: Hashable) -> None:
        self._forget(key)
        self._losses.fragments += 1

    def _forget(self, key: Hashable) -> None:
        self._bytes -= self._packets.pop(key).bytes
