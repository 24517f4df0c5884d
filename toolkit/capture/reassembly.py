"""One direction of a TCP connection: segments as they were captured -> bytes in order, and holes declared as such.

It knows nothing of what the bytes mean. First come, first served: what was sent twice counts as it came first. It never
fills a hole and never waits for ever.
"""

from bisect import bisect_left, bisect_right
from typing import NamedTuple, Protocol

from toolkit.capture.records import FIN, Losses, MemoryBounds

MASK = 0xFFFFFFFF
HALF = 0x80000000

PIECE_BYTES = 256
"""What a waiting segment costs beside its bytes."""

BEHIND_BYTES = 16 * 1024 * 1024
"""How far before a stream's end a segment may be and still be of it; later numbers are another's."""
EARLIER_BYTES = 64 * 1024
"""The same before its first segment that was seen."""

Span = tuple[int, int]
"""From a position to another."""


class Segment(NamedTuple):
    """One TCP segment; `missing` bytes of it were cut off behind `payload` when it was captured."""

    ts: float
    seq: int
    ack: int
    flags: int
    payload: bytes
    missing: int


class ByteReader(Protocol):
    """Who reads the bytes of one direction."""

    held: int
    """Bytes that it keeps."""

    def data(self, ts: float, data: bytes) -> None:
        """Read the next bytes, at least one."""

    def gap(self, ts: float, missing: int | None) -> None:
        """Bytes are missing here; None: nobody knows how many."""

    def starts(self, data: bytes) -> bool:
        """Whether a segment can be read without what came before it."""

    def begin(self) -> None:
        """The connection's start was seen after all."""

    @property
    def between(self) -> bool:
        """Whether no message is unfinished."""


Piece = tuple[int, int, float, bytes]
"""Of a stream: first byte, end, when it came, payload; shorter than from first to end where it was cut at capture."""


class Direction:
    """Where in its stream a direction is, and what waits for bytes that are missing.

    Positions count on past 2^32; `seq` of a segment is their last 32 bits.
    """

    __slots__ = (
        "anchored",
        "began_at",
        "ends_at",
        "far",
        "isn",
        "left",
        "next",
        "placed",
        "reader",
        "slow",
        "started_at",
        "stash",
        "stash_bytes",
    )

    def __init__(self, reader: ByteReader) -> None:
        self.reader = reader
        self.next = self.started_at = 0
        """Position of the byte that comes next, and of the first one."""
        self.isn: int | None = None
        """Its initial sequence number, of the SYN."""
        self.began_at = 0.0
        """When its first byte was seen."""
        self.placed = False
        """Whether a segment of it was seen."""
        self.anchored = False
        """Whether `next` is known: not while the connection was joined in the middle of a message."""
        self.stash: list[Piece] = []
        """Disjoint, in order."""
        self.stash_bytes = 0
        self.ends_at: int | None = None
        """Position of the FIN."""
        self.far: Piece | None = None
        """A segment too far off to be believed alone."""
        self.left: Span | None = None
        """What was read before it went on at a far segment; what comes of that is old."""
        self.slow = True
        """Whether a segment needs more than to be next."""

    @property
    def ended(self) -> bool:
        """Whether all was read up to its FIN."""
        return self.ends_at is not None and self.next >= self.ends_at

    def position(self, seq: int) -> int:
        """Serial arithmetic: the position nearest to where we are that ends in these 32 bits."""
        return self.next + ((seq - self.next + HALF) & MASK) - HALF

    @property
    def spans(self) -> tuple[Span, ...]:
        """What was read: the latest stretch, and the one that was left for it."""
        latest = (self.started_at, self.next)
        return (latest,) if self.left is None else (latest, self.left)

    @property
    def held(self) -> int:
        """Bytes that wait here or in the reader."""
        return (
            self.reader.held
            + self.stash_bytes
            + (len(self.far[3]) + PIECE_BYTES if self.far else 0)
        )

    def is_slow(self) -> bool:
        """What `slow` should be."""
        waits = self.stash or self.far is not None or self.ends_at is not None
        return bool(waits) or not self.anchored


class Reassembly:
    """The rules, the same for all directions of a capture."""

    def __init__(self, limits: MemoryBounds, losses: Losses) -> None:
        self._limits = limits
        self._losses = losses

    def is_far(self, to: Direction, seq: int) -> bool:
        """Whether a segment is farther off than we could wait for."""
        return to.placed and abs(to.position(seq) - to.next) > self._limits.stash_bytes

    def arrive(self, to: Direction, segment: Segment) -> None:
        """Take in any segment with payload or FIN; the caller may shortcut one that is next where `to` is not slow."""
        ts, payload = segment.ts, segment.payload
        if not to.placed:
            to.placed, to.began_at = True, ts
            to.next = to.started_at = segment.seq
        start = to.position(segment.seq)
        end = start + len(payload) + segment.missing
        if abs(start - to.next) > self._limits.stash_bytes:
            if payload:
                self._arrive_far(to, (start, end, ts, payload))
            return
        if start <= to.next < end:
            to.far = None
        if segment.flags & FIN and to.ends_at is None:
            to.ends_at = end
        if to.ends_at is not None and end > to.ends_at:
            payload, end = payload[: max(0, to.ends_at - start)], to.ends_at
        if not to.anchored and payload and to.reader.starts(payload):
            self.anchor(to, start)
        piece = (start, end, ts, payload)
        if to.anchored and start <= to.next:
            self._deliver(to, piece)
            self._drain(ts, to)
        else:
            self._put_aside(to, piece)
            self._keep_within(to)
        to.slow = to.is_slow()

    def anchor(self, to: Direction, start: int) -> None:
        """The stream is read from here on; what waits from before it is of no use."""
        to.anchored = True
        to.next = to.started_at = start

    def join(self, ts: float, to: Direction, start: int) -> None:
        """The connection's SYN came, if late: what waited can be read."""
        to.reader.begin()
        to.placed, to.began_at = True, ts
        self.anchor(to, start)
        self._drain(ts, to)
        to.slow = to.is_slow()

    def drop_from(self, to: Direction, start: int) -> None:
        """What waits from here on, as far as its own beginning may be overtaken, may be of the connection that begins here."""
        kept = bisect_left(to.stash, start, key=_start)
        upto = bisect_right(to.stash, start + self._limits.stash_bytes, key=_start)
        to.stash_bytes -= sum(len(piece[3]) + PIECE_BYTES for piece in to.stash[kept:upto])
        del to.stash[kept:upto]

    def _deliver(self, to: Direction, piece: Piece) -> None:
        start, end, ts, payload = piece
        if end <= to.next:
            return  # all of it came before, e.g., a keep-alive probe
        fresh = payload[to.next - start :] if start < to.next else payload
        short = end - to.next - len(fresh)
        to.next = end
        if fresh:
            to.reader.data(ts, fresh)
        if short:
            self._gap(ts, to, short)

    def _gap(self, ts: float, to: Direction, missing: int | None) -> None:
        self._losses.gaps += 1
        self._losses.gap_bytes += missing or 0
        to.reader.gap(ts, missing)

    def _drain(self, ts: float, to: Direction) -> None:
        """Read what is next among the pieces that waited; they can be read from `ts` on, when the hole was closed."""
        stash = to.stash
        count = 0
        for start, end, came_at, payload in stash:
            if start > to.next:
                break
            count += 1
            to.stash_bytes -= len(payload) + PIECE_BYTES
            self._deliver(to, (start, end, max(ts, came_at), payload))
        if count:
            del stash[:count]

    def _put_aside(self, to: Direction, piece: Piece) -> None:
        """Keep for later what no piece holds already."""
        start, end, ts, payload = piece
        stash, first = to.stash, start
        at = bisect_right(stash, start, key=_start)
        if at and stash[at - 1][1] > start:
            start = stash[at - 1][1]
        while start < end or (start == end == to.ends_at and not payload):
            upto = min(end, stash[at][0]) if at < len(stash) else end
            if upto > start or not payload:
                part = payload[start - first : upto - first]
                stash.insert(at, (start, upto, ts, part))
                to.stash_bytes += len(part) + PIECE_BYTES
                at += 1
            if at >= len(stash) or not payload:
                return
            start = max(upto, stash[at][1])
            at += 1

    def _keep_within(self, to: Direction) -> None:
        limits = self._limits
        while len(to.stash) > limits.stash_segments or to.stash_bytes > limits.stash_bytes:
            self.give_up(to)

    def give_up(self, to: Direction) -> None:
        """Wait no more for the first hole."""
        first = to.stash[0]
        hole = first[0] - to.next
        to.next = first[0]
        if not to.anchored:
            to.anchored = True
            to.started_at = to.next
        else:
            self._gap(first[2], to, hole)
        self._drain(first[2], to)
        to.slow = to.is_slow()

    def give_up_all(self, to: Direction) -> None:
        """Nothing more comes: read what waits, with its holes."""
        while to.stash:
            self.give_up(to)

    def _arrive_far(self, to: Direction, piece: Piece) -> None:
        """Farther off than we could wait for: a stray, unless a second one follows it or it begins a message."""
        if any(is_of(span, piece[0]) for span in to.spans):
            return
        if to.far is not None and piece[0] == to.far[1]:
            self._jump(to)
            self._deliver(to, piece)
            return
        to.far = piece
        to.slow = True
        if to.reader.between and not to.stash and to.reader.starts(piece[3]):
            self._jump(to)

    def _jump(self, to: Direction) -> None:
        """Go on at the far segment; how much lies between nobody knows, it may be another connection's numbers."""
        far, to.far = to.far, None
        assert far is not None
        to.stash.clear()
        to.stash_bytes = 0
        self._gap(far[2], to, None)
        to.left = (to.started_at, to.next)
        to.isn = to.ends_at = None
        to.next = to.started_at = far[0]
        to.began_at, to.anchored = far[2], True
        self._deliver(to, far)
        to.slow = False


def is_of(span: Span, seq: int) -> bool:
    """Whether a segment was sent again, or overtaken, of what was read before."""
    start, end = span
    reach = min(end - start, BEHIND_BYTES) + EARLIER_BYTES
    return -reach <= ((seq - end + HALF) & MASK) - HALF < 0


def _start(piece: Piece) -> int:
    return piece[0]
