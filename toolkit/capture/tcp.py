"""TCP segments -> bytes in order for whoever reads a connection's directions, and holes declared as such.

First come, first served: what was sent twice counts as it came first. It never fills a hole, never waits for ever, keeps
memory within limits whatever comes, and never reads a clock: time is that of the packets.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from toolkit.capture.answers import Pairs
from toolkit.capture.http import Requests
from toolkit.capture.records import (
    ACK,
    FIN,
    RST,
    SYN,
    CaptureFilter,
    HttpRequest,
    Losses,
    MemoryBounds,
)

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
    """One direction of a connection: where in its stream it is, and what waits for bytes that are missing.

    Positions count on past 2^32; `seq` of a segment is their last 32 bits.
    """

    __slots__ = (
        *("reader", "_limits", "_losses", "next", "started_at", "isn", "began_at", "placed"),
        *("anchored", "stash", "stash_bytes", "ends_at", "far", "left", "slow"),
    )

    def __init__(self, reader: ByteReader, limits: MemoryBounds, losses: Losses) -> None:
        self.reader, self._limits, self._losses = reader, limits, losses
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

    def _judge(self) -> None:
        waits = self.stash or self.far is not None or self.ends_at is not None
        self.slow = bool(waits) or not self.anchored

    def is_far(self, seq: int) -> bool:
        """Whether a segment is farther off than we could wait for."""
        return self.placed and abs(self.position(seq) - self.next) > self._limits.stash_bytes

    def arrive(self, segment: Segment) -> None:
        """Take in any segment with payload or FIN; the caller may shortcut one that is next where `to` is not slow."""
        ts, payload = segment.ts, segment.payload
        if not self.placed:
            self.placed, self.began_at = True, ts
            self.next = self.started_at = segment.seq
        start = self.position(segment.seq)
        end = start + len(payload) + segment.missing
        if abs(start - self.next) > self._limits.stash_bytes:
            if payload:
                self._arrive_far((start, end, ts, payload))
            return
        if start <= self.next < end:
            self.far = None
        if segment.flags & FIN and self.ends_at is None:
            self.ends_at = end
        if self.ends_at is not None and end > self.ends_at:
            payload, end = payload[: max(0, self.ends_at - start)], self.ends_at
        if not self.anchored and payload and self.reader.starts(payload):
            self.anchor(start)
        piece = (start, end, ts, payload)
        if self.anchored and start <= self.next:
            self._deliver(piece)
            self._drain(ts)
        else:
            self._put_aside(piece)
            limits = self._limits
            while len(self.stash) > limits.stash_segments or self.stash_bytes > limits.stash_bytes:
                self.give_up()
        self._judge()

    def anchor(self, start: int) -> None:
        """The stream is read from here on; what waits from before it is of no use."""
        self.anchored = True
        self.next = self.started_at = start

    def join(self, ts: float, start: int) -> None:
        """The connection's SYN came, if late: what waited can be read."""
        self.reader.begin()
        self.placed, self.began_at = True, ts
        self.anchor(start)
        self._drain(ts)
        self._judge()

    def drop_from(self, start: int) -> None:
        """What waits from here on, as far as its own beginning may be overtaken, may be of the connection that begins here."""
        kept = bisect_left(self.stash, start, key=_start)
        upto = bisect_right(self.stash, start + self._limits.stash_bytes, key=_start)
        self.stash_bytes -= sum(len(piece[3]) + PIECE_BYTES for piece in self.stash[kept:upto])
        del self.stash[kept:upto]

    def _deliver(self, piece: Piece) -> None:
        start, end, ts, payload = piece
        if end <= self.next:
            return  # all of it came before, e.g., a keep-alive probe
        fresh = payload[self.next - start :] if start < self.next else payload
        short = end - self.next - len(fresh)
        self.next = end
        if fresh:
            self.reader.data(ts, fresh)
        if short:
            self._gap(ts, short)

    def _gap(self, ts: float, missing: int | None) -> None:
        self._losses.gaps += 1
        self._losses.gap_bytes += missing or 0
        self.reader.gap(ts, missing)

    def _drain(self, ts: float) -> None:
        """Read what is next among the pieces that waited; they can be read from `ts` on, when the hole was closed."""
        stash = self.stash
        count = 0
        for start, end, came_at, payload in stash:
            if start > self.next:
                break
            count += 1
            self.stash_bytes -= len(payload) + PIECE_BYTES
            self._deliver((start, end, max(ts, came_at), payload))
        if count:
            del stash[:count]

    def _put_aside(self, piece: Piece) -> None:
        """Keep for later what no piece holds already."""
        start, end, ts, payload = piece
        stash, first = self.stash, start
        at = bisect_right(stash, start, key=_start)
        if at and stash[at - 1][1] > start:
            start = stash[at - 1][1]
        while start < end or (start == end == self.ends_at and not payload):
            upto = min(end, stash[at][0]) if at < len(stash) else end
            if upto > start or not payload:
                part = payload[start - first : upto - first]
                stash.insert(at, (start, upto, ts, part))
                self.stash_bytes += len(part) + PIECE_BYTES
                at += 1
            if at >= len(stash) or not payload:
                return
            start = max(upto, stash[at][1])
            at += 1

    def give_up(self) -> None:
        """Wait no more for the first hole."""
        first = self.stash[0]
        hole = first[0] - self.next
        self.next = first[0]
        if not self.anchored:
            self.anchored = True
            self.started_at = self.next
        else:
            self._gap(first[2], hole)
        self._drain(first[2])
        self._judge()

    def give_up_all(self) -> None:
        """Nothing more comes: read what waits, with its holes."""
        while self.stash:
            self.give_up()

    def _arrive_far(self, piece: Piece) -> None:
        """Farther off than we could wait for: a stray, unless a second one follows it or it begins a message."""
        if any(is_of(span, piece[0]) for span in self.spans):
            return
        if self.far is not None and piece[0] == self.far[1]:
            self._jump()
            self._deliver(piece)
            return
        self.far = piece
        self.slow = True
        if self.reader.between and not self.stash and self.reader.starts(piece[3]):
            self._jump()

    def _jump(self) -> None:
        """Go on at the far segment; how much lies between nobody knows, it may be another connection's numbers."""
        far, self.far = self.far, None
        assert far is not None
        self.stash.clear()
        self.stash_bytes = 0
        self._gap(far[2], None)
        self.left = (self.started_at, self.next)
        self.isn = self.ends_at = None
        self.next = self.started_at = far[0]
        self.began_at, self.anchored = far[2], True
        self._deliver(far)
        self.slow = False


def is_of(span: Span, seq: int) -> bool:
    """Whether a segment was sent again, or overtaken, of what was read before."""
    start, end = span
    reach = min(end - start, BEHIND_BYTES) + EARLIER_BYTES
    return -reach <= ((seq - end + HALF) & MASK) - HALF < 0


def _start(piece: Piece) -> int:
    return piece[0]


# --- connections ------------------------------------------------------------------------------------

SPECIAL = SYN | FIN | RST

ENDED = "the connection ended before it was whole"

LOOK_S = 0.25
"""How often holes are looked at that nobody fills, by the packets' clock."""
CLOSED = 65_536
"""Closed connections that are remembered, so that a segment sent again after the end begins no new one."""
SET_BACK_S = 1.0

EARLIER = 4
"""Of one key."""
CLOSED_S = 60.0
"""A segment lives no longer (RFC 9293: a connection waits for two minutes; Linux for one)."""


class Closed(NamedTuple):
    """Connections of one key that are over, the latest first: when that ended, how they began, what was read of them."""

    at: float
    isns: tuple[int | None, ...]
    client: tuple[Span, ...]
    back: tuple[Span, ...]


@dataclass(slots=True, eq=False)
class Flow:
    """One connection: the client's direction and the server's, the requests and their answers."""

    key: bytes
    """As the client's segments have it."""
    requests: Requests
    client: Direction
    back: Direction
    answers: Pairs | None
    seen_at: float
    held: int = 0
    over: bool = False


class Streams:
    """TCP segments -> whole requests (and answers)."""

    def __init__(
        self,
        on_request: Callable[[HttpRequest], None],
        watch: CaptureFilter,
        losses: Losses,
    ) -> None:
        limits = watch.limits
        self._on_request = on_request
        self._ports, self._follow_answers = watch.ports, watch.follow_answers
        self._limits, self._losses = limits, losses
        self._nowhere = Direction(Requests(on_request, bytes(12), limits, losses), limits, losses)
        """The server's direction where answers are not followed: none of it arrives."""
        self._in_flight, self._heard = Counter[bytes](), set[bytes]()
        self._flows: dict[bytes, Flow] = {}
        self._servers: dict[bytes, Flow] = {}
        """The same connections by the server's key, where answers are followed."""
        self._waiting: dict[bytes, Flow] = {}
        """Those with a hole, by the client's key."""
        self._closed: dict[bytes, Closed] = {}
        self._held = 0
        self._earliest = self._look_at = self._sweep_at = float("-inf")

    def segment(
        self,
        ts: float,
        key: bytes,
        seq: int,
        ack: int,
        flags: int,
        payload: bytes,
        missing: int = 0,
    ) -> None:
        """Take in one segment of either direction; `missing` bytes of it were cut off behind `payload`."""
        if not self._earliest <= ts < self._look_at:
            self.expire(ts)
        flow = self._flows.get(key)
        if flow is None:
            flow = self._servers.get(key)
            if flow is None:
                self._first(key, Segment(ts, seq, ack, flags, payload, missing))
                return
            to, other = flow.back, flow.client
        else:
            to, other = flow.client, flow.back
        flow.seen_at = ts
        if other.stash and flags & ACK and other.anchored:
            # what the other side has, and we have not, will not be sent again; an answer comes after its request
            have = other.position(ack)
            while other.stash and other.stash[0][0] <= have:
                other.give_up()
            self._settle(ts, flow)
        if to.slow or missing or flags & SPECIAL or seq != to.next & MASK:
            self._unusual(flow, to, Segment(ts, seq, ack, flags, payload, missing))
        elif payload:
            # nearly all segments go this way: next in order, nothing waits
            to.next += len(payload)
            to.reader.data(ts, payload)
            if flow.client.reader.held + flow.back.reader.held != flow.held:
                self._weigh(flow)

    @property
    def held_bytes(self) -> int:
        """What unfinished requests and waiting segments hold, all connections together."""
        return self._held

    def close(self) -> None:
        """The capture is over: what is unfinished is told as damaged."""
        for flow in list(self._flows.values()):
            self._end(flow, flow.seen_at, "the capture ended before it was whole")

    # --- where a connection begins ----------------------------------------------------------------

    def _first(self, key: bytes, segment: Segment) -> None:
        """A segment of a connection that is not known."""
        flags = segment.flags
        if flags & RST or not (segment.payload or flags & SYN):
            return
        if self._closed and self._is_late(key, segment):
            return
        to_port, from_port = int.from_bytes(key[-2:], "big"), int.from_bytes(key[-4:-2], "big")
        if not (to_port in self._ports and from_port in self._ports):
            from_client = to_port in self._ports
        elif flags & SYN:
            from_client = not flags & ACK
        else:
            from_client = not segment.payload.startswith(b"HTTP/")
        if not from_client and not self._follow_answers:
            return
        if len(self._flows) >= self._limits.flows:
            self._make_room()
        flow = self._open(key if from_client else reverse(key), segment.ts)
        self._unusual(flow, flow.client if from_client else flow.back, segment)

    def _open(self, key: bytes, ts: float) -> Flow:
        limits, losses = self._limits, self._losses
        back, pairs, deliver = self._nowhere, None, self._on_request
        if self._follow_answers:
            pairs = Pairs(self._on_request, key, self._in_flight, self._heard)
            back, deliver = Direction(pairs, limits, losses), pairs.asked
        requests = Requests(deliver, key, limits, losses)
        flow = Flow(key, requests, Direction(requests, limits, losses), back, pairs, ts)
        if pairs is not None:
            pairs.requests = requests
            self._servers[reverse(key)] = flow
        self._flows[key] = flow
        return flow

    # --- what is not simply next ------------------------------------------------------------------

    def _unusual(self, flow: Flow, to: Direction, segment: Segment) -> None:
        ts, seq, flags = segment.ts, segment.seq, segment.flags
        if flags & RST:
            self._end(flow, ts, "the connection was reset before it was whole")
            return
        if flags & SYN:
            if to is flow.client:
                if self._is_late(flow.key, segment):
                    return
                flow = self._synchronised(flow, segment)
                to = flow.client
            elif not to.placed:
                to.join(ts, seq + 1)
            segment = segment._replace(seq=(seq + 1) & MASK)
        elif (
            to is flow.client
            and to.ends_at is not None
            and segment.payload
            and to.position(seq) > to.ends_at
            and to.reader.starts(segment.payload)
        ):
            # a request behind a FIN: on the same ports another connection is there, whose SYN was not seen
            self._end(flow, ts, "another connection took its place before it was whole")
            flow = self._open(flow.key, ts)
            to = flow.client
        if segment.payload or segment.missing or flags & FIN:
            # a segment behind a reset may have begun this flow: what was sent before that, and is sent again, is no new request
            is_doubtful = not to.anchored or to.is_far(segment.seq)
            if is_doubtful and self._is_late(
                flow.key if to is flow.client else reverse(flow.key), segment
            ):
                return
            to.arrive(segment)
        self._settle(ts, flow)

    def _synchronised(self, flow: Flow, syn: Segment) -> Flow:
        """The connection that a client's SYN belongs to: a new one, if its number is new."""
        client = flow.client
        if client.isn == syn.seq:
            return flow
        first = client.position(syn.seq + 1)
        # its own data may have come before it
        behind = max(client.next, client.started_at) - first
        is_overtaken = not client.placed or (
            abs(syn.ts - client.began_at) <= CLOSED_S
            and client.started_at >= first
            and behind <= self._limits.stash_bytes
        )
        if client.isn is not None or not is_overtaken:
            client.drop_from(first)
            self._end(flow, syn.ts, "another connection took its place before it was whole")
            flow = self._open(flow.key, syn.ts)
            first = flow.client.position(syn.seq + 1)
        flow.client.isn = syn.seq
        if not flow.client.anchored:
            flow.client.join(syn.ts, first)
        return flow

    # --- ends and limits --------------------------------------------------------------------------

    def _settle(self, ts: float, flow: Flow) -> None:
        """See after anything unusual whether it is over, what waits, and what it holds."""
        client, back = flow.client, flow.back
        if client.ended:
            if back.ended or not self._follow_answers:
                self._end(flow, ts, ENDED)
            else:
                flow.requests.end(ENDED)  # a half-closed connection still answers
        if flow.over:
            return
        if client.stash or back.stash:
            self._waiting[flow.key] = flow
        else:
            self._waiting.pop(flow.key, None)
        self._weigh(flow)

    def _weigh(self, flow: Flow) -> None:
        held = flow.client.held + flow.back.held
        self._held += held - flow.held
        flow.held = held
        if self._held > self._limits.total_bytes:
            self._make_room()

    def _make_room(self) -> None:
        """Let go of the connections longest quiet, a sixteenth at a time, so that this is rare."""
        limits = self._limits
        flows = sorted(self._flows.values(), key=lambda flow: flow.seen_at)
        few = limits.flows - limits.flows // 16 - 1
        little = limits.total_bytes - limits.total_bytes // 16
        for flow in flows:
            if len(self._flows) <= few and self._held <= little:
                return
            if len(self._flows) > few or flow.held:
                self._losses.gave_up += 1
                self._end(flow, flow.seen_at, "given up for want of room before it was whole")

    def _end(self, flow: Flow, ts: float, why: str) -> None:
        if flow.over:
            return
        flow.over = True
        del self._flows[flow.key]
        self._waiting.pop(flow.key, None)
        flow.client.give_up_all()
        flow.requests.end(why)
        if flow.answers is not None:
            del self._servers[reverse(flow.key)]
            flow.back.give_up_all()
            flow.answers.end(ts)
        self._held -= flow.held
        flow.held = 0
        # what is remembered of it
        isns: tuple[int | None, ...] = (flow.client.isn,)
        client, back = flow.client.spans, flow.back.spans
        before = self._closed.pop(flow.key, None)
        if before is not None and ts - before.at <= CLOSED_S:
            isns, client, back = isns + before.isns, client + before.client, back + before.back
        elif len(self._closed) >= CLOSED:
            del self._closed[next(iter(self._closed))]
        self._closed[flow.key] = Closed(ts, isns[:EARLIER], client[:EARLIER], back[:EARLIER])

    def _is_late(self, key: bytes, segment: Segment) -> bool:
        """Whether a segment belongs to a connection that is over: sent again, or overtaken by its end."""
        closed = self._closed.get(key)
        spans = closed.client if closed is not None else ()
        if closed is None:
            closed = self._closed.get(reverse(key))
            spans = closed.back if closed is not None else ()
        if closed is None or segment.ts - closed.at > CLOSED_S:
            return False
        if not segment.flags & SYN:
            return any(is_of(span, segment.seq) for span in spans)
        if segment.seq in closed.isns:
            return True
        # or its SYN was not seen before
        first = segment.seq + 1
        return None in closed.isns and any(is_of((start, start + 1), first) for start, _ in spans)

    def expire(self, now: float) -> None:
        """Give up holes and connections that waited too long, by the packets' clock."""
        if now < self._earliest:
            # a clock that was set back; by less they differ from one core to another
            self._sweep_at = now
        self._earliest, self._look_at = now - SET_BACK_S, now + LOOK_S
        for flow in list(self._waiting.values()):
            for direction in (flow.client, flow.back):
                while direction.stash and now - direction.stash[0][2] > self._limits.stash_s:
                    direction.give_up()
            self._settle(now, flow)
        if now >= self._sweep_at:
            idle_s = self._limits.idle_s
            self._sweep_at = now + idle_s / 8
            for flow in [flow for flow in self._flows.values() if now - flow.seen_at > idle_s]:
                self._end(flow, flow.seen_at, "the connection went quiet before it was whole")


def reverse(key: bytes) -> bytes:
    """The key of the other direction."""
    address = (len(key) - 4) // 2
    return key[address : 2 * address] + key[:address] + key[-2:] + key[-4:-2]
