"""TCP segments -> bytes in order for the readers of a connection's two directions, and holes declared as such.

First come, first served: what was sent twice counts as it came first. It never fills a hole, never waits for ever, keeps
memory within limits whatever comes, and never reads a clock: time is that of the packets.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from toolkit.capture.answers import Answers
from toolkit.capture.http import Messages, Requests
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


class Segment(NamedTuple):
    """One TCP segment; `missing` bytes of it were cut off behind `payload` when it was captured."""

    ts: float
    seq: int
    ack: int
    flags: int
    payload: bytes
    missing: int


Piece = tuple[int, int, float, bytes]
"""Of a stream: first byte, end, when it came, payload; shorter than from first to end where it was cut at capture."""
first_byte: Callable[[Piece], int] = itemgetter(0)

Span = tuple[int, int]
"""From a position to another."""


def is_of(span: Span, seq: int) -> bool:
    """Whether a segment was sent again, or overtaken, of what was read before."""
    start, end = span
    reach = min(end - start, BEHIND_BYTES) + EARLIER_BYTES
    return -reach <= ((seq - end + HALF) & MASK) - HALF < 0


@dataclass(slots=True, eq=False)
class Direction:
    """One direction of a connection: where in its stream it is, and what waits for bytes that are missing.

    Positions count on past 2^32; `seq` of a segment is their last 32 bits.
    """

    reader: Messages
    limits: MemoryBounds
    losses: Losses
    next: int = 0
    """Position of the byte that comes next."""
    started_at: int = 0
    """Position of the first byte."""
    isn: int | None = None
    """Its initial sequence number, of the SYN."""
    began_at: float | None = None
    """When its first byte was seen; None: no segment was."""
    anchored: bool = False
    """Whether `next` is known: not while the connection was joined in the middle of a message."""
    stash: list[Piece] = field(default_factory=list)
    """What waits: disjoint, in order."""
    stash_bytes: int = 0
    ends_at: int | None = None
    """Position of the FIN."""
    stray: Piece | None = None
    """A segment too far off to be believed alone."""
    left: Span | None = None
    """What was read before it went on at a stray segment; what comes of that is old."""
    slow: bool = True
    """Whether a segment needs more than to be next."""

    @property
    def ended(self) -> bool:
        """Whether all was read up to its FIN."""
        return self.ends_at is not None and self.next >= self.ends_at

    @property
    def spans(self) -> tuple[Span, ...]:
        """What was read: the latest stretch, and the one that was left for it."""
        latest = (self.started_at, self.next)
        return (latest,) if self.left is None else (latest, self.left)

    @property
    def held(self) -> int:
        """Bytes that wait here or in the reader."""
        stray = len(self.stray[3]) + PIECE_BYTES if self.stray else 0
        return self.reader.held + self.stash_bytes + stray

    def position(self, seq: int) -> int:
        """Serial arithmetic: the position nearest to where we are that ends in these 32 bits."""
        return self.next + ((seq - self.next + HALF) & MASK) - HALF

    def is_stray(self, seq: int) -> bool:
        """Whether a segment is farther off than we could wait for."""
        is_placed = self.began_at is not None
        return is_placed and abs(self.position(seq) - self.next) > self.limits.stash_bytes

    def arrive(self, segment: Segment) -> None:
        """Take in any segment with payload or FIN; the caller may shortcut one that is next where it is not `slow`."""
        ts, payload, limits = segment.ts, segment.payload, self.limits
        if self.began_at is None:
            self.began_at = ts
            self.next = self.started_at = segment.seq
        start = self.position(segment.seq)
        end = start + len(payload) + segment.missing
        if self.is_stray(segment.seq):
            if payload:
                self._arrive_stray((start, end, ts, payload))
            return
        if start <= self.next < end:
            self.stray = None
        if segment.flags & FIN and self.ends_at is None:
            self.ends_at = end
        if self.ends_at is not None and end > self.ends_at:
            payload, end = payload[: max(0, self.ends_at - start)], self.ends_at
        if not self.anchored and payload and self.reader.starts(payload):
            self._anchor(start)
        piece = (start, end, ts, payload)
        if self.anchored and start <= self.next:
            self._deliver(piece)
            self._drain(ts)
        else:
            self._put_aside(piece)
            while len(self.stash) > limits.stash_segments or self.stash_bytes > limits.stash_bytes:
                self.give_up()
        self._judge()

    def join(self, ts: float, start: int) -> None:
        """The connection's SYN came, if late: what waited can be read."""
        self.reader.begin()
        self.began_at = ts
        self._anchor(start)
        self._drain(ts)
        self._judge()

    def drop_from(self, start: int) -> None:
        """What waits from here on, as far as its own beginning may be overtaken, may be of the connection that begins here."""
        kept = bisect_left(self.stash, start, key=first_byte)
        upto = bisect_right(self.stash, start + self.limits.stash_bytes, key=first_byte)
        self.stash_bytes -= sum(len(piece[3]) + PIECE_BYTES for piece in self.stash[kept:upto])
        del self.stash[kept:upto]

    def give_up(self) -> None:
        """Wait no more for the first hole."""
        start, _, ts, _ = self.stash[0]
        hole, self.next = start - self.next, start
        if not self.anchored:
            # nobody knows what came before, but that it begins no message
            self.anchored = True
            self.started_at = self.next
        else:
            self._gap(ts, hole)
        self._drain(ts)
        self._judge()

    def give_up_all(self) -> None:
        """Nothing more comes: read what waits, with its holes."""
        while self.stash:
            self.give_up()

    def _judge(self) -> None:
        waits = self.stash or self.stray is not None or self.ends_at is not None
        self.slow = bool(waits) or not self.anchored

    def _anchor(self, start: int) -> None:
        """The stream is read from here on; what waits from before it is of no use."""
        self.anchored = True
        self.next = self.started_at = start

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
        self.losses.gaps += 1
        self.losses.gap_bytes += missing or 0
        self.reader.gap(ts, missing)

    def _drain(self, ts: float) -> None:
        """Read what is next among the pieces that waited; they can be read from `ts` on, when the hole was closed."""
        count = 0
        for start, end, came_at, payload in self.stash:
            if start > self.next:
                break
            count += 1
            self.stash_bytes -= len(payload) + PIECE_BYTES
            self._deliver((start, end, max(ts, came_at), payload))
        if count:
            del self.stash[:count]

    def _put_aside(self, piece: Piece) -> None:
        """Keep for later what no piece holds already."""
        start, end, ts, payload = piece
        stash, first = self.stash, start
        at = bisect_right(stash, start, key=first_byte)
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

    def _arrive_stray(self, piece: Piece) -> None:
        """Farther off than we could wait for: a stray, unless a second one follows it or it begins a message."""
        if any(is_of(span, piece[0]) for span in self.spans):
            return
        first = self.stray
        is_second = first is not None and piece[0] == first[1]
        if first is None or not is_second:
            self.stray = first = piece
            self.slow = True
            if not self.reader.is_between or self.stash or not self.reader.starts(piece[3]):
                return
        # go on there; how much lies between nobody knows, it may be another connection's numbers
        self.stray = None
        self.stash.clear()
        self.stash_bytes = 0
        self._gap(first[2], None)
        self.left = (self.started_at, self.next)
        self.isn = self.ends_at = None
        self.began_at = first[2]
        self._anchor(first[0])
        self._deliver(first)
        if is_second:
            self._deliver(piece)
        self.slow = False


# --- connections ------------------------------------------------------------------------------------

SPECIAL = SYN | FIN | RST
ENDED = "the connection ended before it was whole"
REPLACED = "another connection took its place before it was whole"

LOOK_S = 0.25
"""How often holes are looked at that nobody fills, by the packets' clock."""
SET_BACK_S = 1.0
"""By less the clocks of two cores differ; by more a clock was set back."""
CLOSED = 65_536
"""Closed connections that are remembered, so that a segment sent again after the end begins no new one."""
CLOSED_S = 60.0
"""A segment lives no longer (RFC 9293: a connection waits for two minutes; Linux for one)."""
EARLIER = 4
"""Closed connections of one key."""


class Closed(NamedTuple):
    """A connection that is over: when that was, how it began, what was read of it."""

    at: float
    isn: int | None
    client: tuple[Span, ...]
    server: tuple[Span, ...]


@dataclass(slots=True, eq=False)
class Flow:
    """One connection: the client's direction with its requests, and the server's with their answers."""

    key: bytes
    """As the client's segments have it."""
    requests: Requests
    client: Direction
    answers: Answers | None
    server: Direction
    """One for all where answers are not followed: none of it arrives."""
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
        self._on_request, self._watch, self._losses = on_request, watch, losses
        self._limits = watch.limits
        no_answers = Requests(on_request, bytes(12), watch.limits, losses)
        self._nothing = Direction(no_answers, watch.limits, losses)
        self._in_flight, self._speaking = Counter[bytes](), set[bytes]()
        self._flows: dict[bytes, Flow] = {}
        self._servers: dict[bytes, Flow] = {}
        """The same connections by the server's key, where answers are followed."""
        self._waiting: dict[bytes, Flow] = {}
        """Those with a hole, by the client's key."""
        self._closed: dict[bytes, tuple[Closed, ...]] = {}
        """By the client's key, the latest first."""
        self.held_bytes = 0
        """What unfinished requests and waiting segments hold, all connections together."""
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
        if flow is not None:
            to, other = flow.client, flow.server
        else:
            flow = self._servers.get(key)
            if flow is None:
                self._begin(key, Segment(ts, seq, ack, flags, payload, missing))
                return
            to, other = flow.server, flow.client
        flow.seen_at = ts
        if other.stash and flags & ACK and other.anchored:
            # what the other side has, and we have not, will not be sent again; an answer comes after its request
            have = other.position(ack)
            while other.stash and other.stash[0][0] <= have:
                other.give_up()
            self._settle(ts, flow)
        if to.slow or missing or flags & SPECIAL or seq != to.next & MASK:
            self._take(flow, to, Segment(ts, seq, ack, flags, payload, missing))
        elif payload:
            # nearly all segments go this way: next in order, nothing waits
            to.next += len(payload)
            to.reader.data(ts, payload)
            if flow.client.reader.held + flow.server.reader.held != flow.held:
                self._weigh(flow)

    def expire(self, now: float) -> None:
        """Give up holes and connections that waited too long, by the packets' clock."""
        if now < self._earliest:
            self._sweep_at = now
        self._earliest, self._look_at = now - SET_BACK_S, now + LOOK_S
        for flow in list(self._waiting.values()):
            for direction in (flow.client, flow.server):
                while direction.stash and now - direction.stash[0][2] > self._limits.stash_s:
                    direction.give_up()
            self._settle(now, flow)
        if now >= self._sweep_at:
            idle_s = self._limits.idle_s
            self._sweep_at = now + idle_s / 8
            for flow in [flow for flow in self._flows.values() if now - flow.seen_at > idle_s]:
                self._end(flow, flow.seen_at, "the connection went quiet before it was whole")

    def close(self) -> None:
        """The capture is over: what is unfinished is delivered as damaged."""
        for flow in list(self._flows.values()):
            self._end(flow, flow.seen_at, "the capture ended before it was whole")

    # --- where a connection begins ----------------------------------------------------------------

    def _begin(self, key: bytes, segment: Segment) -> None:
        """A segment of a connection that is not known."""
        flags, ports = segment.flags, self._watch.ports
        if flags & RST or not (segment.payload or flags & SYN):
            return
        if self._closed and self._is_late(key, segment):
            return
        from_client = int.from_bytes(key[-2:], "big") in ports
        if from_client and int.from_bytes(key[-4:-2], "big") in ports:
            # both ports are watched
            if flags & SYN:
                from_client = not flags & ACK
            else:
                from_client = not segment.payload.startswith(b"HTTP/")
        if not from_client and not self._watch.follow_answers:
            return
        if len(self._flows) >= self._limits.flows:
            self._make_room()
        flow = self._open(key if from_client else reverse(key), segment.ts)
        self._take(flow, flow.client if from_client else flow.server, segment)

    def _open(self, key: bytes, ts: float) -> Flow:
        limits, losses = self._limits, self._losses
        if self._watch.follow_answers:
            answers = Answers(self._on_request, key, limits, self._in_flight, self._speaking)
            answers.requests = requests = Requests(answers.expect_answer, key, limits, losses)
            server = Direction(answers, limits, losses)
            flow = Flow(key, requests, Direction(requests, limits, losses), answers, server, ts)
            self._servers[reverse(key)] = flow
        else:
            requests = Requests(self._on_request, key, limits, losses)
            client = Direction(requests, limits, losses)
            flow = Flow(key, requests, client, None, self._nothing, ts)
        self._flows[key] = flow
        return flow

    def _take(self, flow: Flow, to: Direction, segment: Segment) -> None:
        """Take in a segment that is not simply next."""
        ts, seq, _, flags, payload, missing = segment
        if flags & RST:
            self._end(flow, ts, "the connection was reset before it was whole")
            return
        if flags & SYN:
            if to is flow.client:
                if self._is_late(flow.key, segment):
                    return
                flow = self._synchronise(flow, segment)
                to = flow.client
            elif to.began_at is None:
                to.join(ts, seq + 1)
            segment = segment._replace(seq=(seq + 1) & MASK)
        elif (
            to is flow.client
            and to.ends_at is not None
            and payload
            and to.position(seq) > to.ends_at
            and to.reader.starts(payload)
        ):
            # a request behind a FIN: on the same ports another connection is there, whose SYN was not seen
            self._end(flow, ts, REPLACED)
            flow = self._open(flow.key, ts)
            to = flow.client
        if payload or missing or flags & FIN:
            # a segment behind a reset may have begun this flow: what was sent before that, and is sent again, is no new request
            key = flow.key if to is flow.client else reverse(flow.key)
            if (not to.anchored or to.is_stray(segment.seq)) and self._is_late(key, segment):
                return
            to.arrive(segment)
        self._settle(ts, flow)

    def _synchronise(self, flow: Flow, syn: Segment) -> Flow:
        """The connection that a client's SYN belongs to: a new one, if its number is new."""
        client = flow.client
        if client.isn == syn.seq:
            return flow
        first = client.position(syn.seq + 1)
        # its own data may have come before it
        is_overtaken = client.began_at is None or (
            abs(syn.ts - client.began_at) <= CLOSED_S
            and client.started_at >= first
            and max(client.next, client.started_at) - first <= self._limits.stash_bytes
        )
        if client.isn is not None or not is_overtaken:
            client.drop_from(first)
            self._end(flow, syn.ts, REPLACED)
            flow = self._open(flow.key, syn.ts)
            first = flow.client.position(syn.seq + 1)
        flow.client.isn = syn.seq
        if not flow.client.anchored:
            flow.client.join(syn.ts, first)
        return flow

    # --- ends and limits --------------------------------------------------------------------------

    def _settle(self, ts: float, flow: Flow) -> None:
        """See after anything unusual whether it is over, what waits, and what it holds."""
        if flow.client.ended:
            if flow.answers is None or flow.server.ended:
                self._end(flow, ts, ENDED)
            else:
                flow.requests.end(ENDED)  # a half-closed connection still answers
        if flow.over:
            return
        if flow.client.stash or flow.server.stash:
            self._waiting[flow.key] = flow
        else:
            self._waiting.pop(flow.key, None)
        self._weigh(flow)

    def _weigh(self, flow: Flow) -> None:
        held = flow.client.held + flow.server.held
        self.held_bytes += held - flow.held
        flow.held = held
        if self.held_bytes > self._limits.total_bytes:
            self._make_room()

    def _make_room(self) -> None:
        """Let go of the connections longest quiet, a sixteenth at a time, so that this is rare."""
        limits = self._limits
        few = limits.flows - limits.flows // 16 - 1
        little = limits.total_bytes - limits.total_bytes // 16
        for flow in sorted(self._flows.values(), key=lambda flow: flow.seen_at):
            if len(self._flows) <= few and self.held_bytes <= little:
                return
            if len(self._flows) > few or flow.held:
                self._losses.gave_up += 1
                self._end(flow, flow.seen_at, "given up for want of room before it was whole")

    def _end(self, flow: Flow, ts: float, why: str) -> None:
        if flow.over:
            return
        flow.over = True
        key, client, server = flow.key, flow.client, flow.server
        del self._flows[key]
        self._waiting.pop(key, None)
        client.give_up_all()
        flow.requests.end(why)
        if flow.answers is not None:
            del self._servers[reverse(key)]
            server.give_up_all()
            flow.answers.end()
        self.held_bytes -= flow.held
        flow.held = 0
        # what is remembered of it
        earlier = [one for one in self._closed.pop(key, ()) if ts - one.at <= CLOSED_S]
        if len(self._closed) >= CLOSED:
            del self._closed[next(iter(self._closed))]
        closed = Closed(ts, client.isn, client.spans, server.spans)
        self._closed[key] = (closed, *earlier[: EARLIER - 1])

    def _is_late(self, key: bytes, segment: Segment) -> bool:
        """Whether a segment belongs to a connection that is over: sent again, or overtaken by its end."""
        from_client = key in self._closed
        for closed in self._closed.get(key) or self._closed.get(reverse(key), ()):
            if segment.ts - closed.at > CLOSED_S:
                continue
            spans = closed.client if from_client else closed.server
            if segment.flags & SYN:
                # or its SYN was not seen before
                starts = [(start, start + 1) for start, _ in spans if closed.isn is None]
                is_late = segment.seq == closed.isn or any(
                    is_of(start, segment.seq + 1) for start in starts
                )
            else:
                is_late = any(is_of(span, segment.seq) for span in spans)
            if is_late:
                return True
        return False


def reverse(key: bytes) -> bytes:
    """The key of the other direction."""
    address = (len(key) - 4) // 2
    return key[address : 2 * address] + key[:address] + key[-2:] + key[-4:-2]
