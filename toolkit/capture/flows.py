"""TCP segments -> whole requests, and their answers where they are followed.

It finds the connection, keeps memory within limits whatever comes, and tells what was lost; the bytes' order is
reassembly.py's, their meaning http.py's. It never reads a clock: time is that of the packets.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple

from toolkit.capture.http import ConnectionRequests
from toolkit.capture.messages import CaptureState
from toolkit.capture.pairing import NOTHING, InFlight, NoAnswers, Pairs
from toolkit.capture.reassembly import MASK, Direction, Reassembly, Segment, Span, is_of
from toolkit.capture.records import ACK, FIN, RST, SYN, HttpRequest, Losses, MemoryBounds

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


NOWHERE = Direction(NOTHING)
"""The server's direction where answers are not followed."""


class Flow:
    """One connection: the client's direction and the server's, the requests and their answers."""

    __slots__ = (
        "answers",
        "back",
        "client",
        "held",
        "key",
        "over",
        "requests",
        "seen_at",
    )

    def __init__(
        self, key: bytes, requests: ConnectionRequests, answers: Pairs | NoAnswers, ts: float
    ) -> None:
        self.key = key
        """As the client's segments have it."""
        self.requests, self.answers = requests, answers
        self.client = Direction(requests)
        self.back = NOWHERE if answers is NOTHING else Direction(answers)
        self.seen_at = ts
        self.held = 0
        self.over = False


class Streams:
    """TCP segments -> whole requests (and answers)."""

    def __init__(
        self,
        on_request: Callable[[HttpRequest], None],
        *,
        ports: Collection[int],
        follow_answers: bool = False,
        limits: MemoryBounds = MemoryBounds(),  # noqa: B008 - frozen
        losses: Losses,
    ) -> None:
        self._on_request = on_request
        self._ports = ports
        self._limits, self._losses = limits, losses
        self._shared = CaptureState(limits, losses)
        self._order = Reassembly(limits, losses)
        self._in_flight = InFlight() if follow_answers else None
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
            self._look(ts)
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
        if other.stash and flags & ACK:
            self._acknowledged(flow, other, ack)
        if to.slow or missing or flags & SPECIAL or seq != to.next & MASK:
            self._unusual(flow, to, Segment(ts, seq, ack, flags, payload, missing))
        elif payload:
            # nearly all segments go this way: next in order, nothing waits
            to.next += len(payload)
            to.reader.data(ts, payload)
            if flow.requests.held + flow.back.reader.held != flow.held:
                self._weigh(flow)

    @property
    def held_bytes(self) -> int:
        """What unfinished requests and waiting segments hold, all connections together."""
        return self._held

    def expire(self, now: float) -> None:
        """Give up holes and connections that waited too long, by the packets' clock."""
        self._look(now)

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
        from_client = self._is_from_client(key, segment)
        if not from_client and self._in_flight is None:
            return
        if len(self._flows) >= self._limits.flows:
            self._make_room()
        flow = self._open(key if from_client else reverse(key), segment.ts)
        self._unusual(flow, flow.client if from_client else flow.back, segment)

    def _is_from_client(self, key: bytes, segment: Segment) -> bool:
        to_port, from_port = int.from_bytes(key[-2:], "big"), int.from_bytes(key[-4:-2], "big")
        if not (to_port in self._ports and from_port in self._ports):
            return to_port in self._ports
        if segment.flags & SYN:
            return not segment.flags & ACK
        return not segment.payload.startswith(b"HTTP/")

    def _open(self, key: bytes, ts: float) -> Flow:
        if self._in_flight is None:
            requests = ConnectionRequests(self._on_request, key, self._shared)
            flow = Flow(key, requests, NOTHING, ts)
        else:
            pairs = Pairs(self._on_request, key, self._in_flight)
            pairs.requests = requests = ConnectionRequests(pairs.asked, key, self._shared)
            flow = self._servers[reverse(key)] = Flow(key, requests, pairs, ts)
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
                self._order.join(ts, to, seq + 1)
            segment = segment._replace(seq=(seq + 1) & MASK)
        elif to is flow.client and self._is_behind_its_end(to, segment):
            self._end(flow, ts, "another connection took its place before it was whole")
            flow = self._open(flow.key, ts)
            to = flow.client
        if segment.payload or segment.missing or flags & FIN:
            # a segment behind a reset may have begun this flow: what was sent before that, and is sent again, is no new request
            is_doubtful = not to.anchored or self._order.is_far(to, segment.seq)
            if is_doubtful and self._is_late(
                flow.key if to is flow.client else reverse(flow.key), segment
            ):
                return
            self._order.arrive(to, segment)
        self._settle(ts, flow)

    def _synchronised(self, flow: Flow, syn: Segment) -> Flow:
        """The connection that a client's SYN belongs to: a new one, if its number is new."""
        client = flow.client
        if client.isn == syn.seq:
            return flow
        first = client.position(syn.seq + 1)
        if client.isn is not None or not self._is_overtaken(flow, first, syn.ts):
            self._order.drop_from(client, first)
            self._end(flow, syn.ts, "another connection took its place before it was whole")
            flow = self._open(flow.key, syn.ts)
            first = flow.client.position(syn.seq + 1)
        flow.client.isn = syn.seq
        if not flow.client.anchored:
            self._order.join(syn.ts, flow.client, first)
        return flow

    @staticmethod
    def _is_behind_its_end(client: Direction, segment: Segment) -> bool:
        """Whether a request begins behind a FIN: on the same ports another connection is there, whose SYN was not seen."""
        if client.ends_at is None or not segment.payload:
            return False
        return client.position(segment.seq) > client.ends_at and client.reader.starts(
            segment.payload
        )

    def _is_overtaken(self, flow: Flow, first: int, ts: float) -> bool:
        """Whether the connection's own data came before this SYN."""
        client, limits = flow.client, self._limits
        if not client.placed:
            return True
        behind = max(client.next, client.started_at) - first
        soon = abs(ts - client.began_at) <= CLOSED_S
        return soon and client.started_at >= first and behind <= limits.stash_bytes

    def _acknowledged(self, flow: Flow, other: Direction, ack: int) -> None:
        """What the other side has, and we have not, will not be sent again; an answer comes after its request."""
        if not other.anchored:
            return
        have = other.position(ack)
        while other.stash and other.stash[0][0] <= have:
            self._order.give_up(other)
        self._settle(flow.seen_at, flow)

    # --- keeping house ----------------------------------------------------------------------------

    def _settle(self, ts: float, flow: Flow) -> None:
        """See after anything unusual whether it is over, what waits, and what it holds."""
        client, back = flow.client, flow.back
        if client.ended:
            if back.ended or self._in_flight is None:
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
        self._order.give_up_all(flow.client)
        flow.requests.end(why)
        if self._in_flight is not None:
            del self._servers[reverse(flow.key)]
            self._order.give_up_all(flow.back)
            flow.answers.end(ts)
        self._held -= flow.held
        flow.held = 0
        self._remember(ts, flow)

    def _remember(self, ts: float, flow: Flow) -> None:
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

    def _look(self, now: float) -> None:
        """Now and then: holes, and connections gone quiet."""
        if now < self._earliest:
            # a clock that was set back; by less they differ from one core to another
            self._sweep_at = now
        self._earliest, self._look_at = now - SET_BACK_S, now + LOOK_S
        for flow in list(self._waiting.values()):
            self._give_up_old(now, flow)
        if now >= self._sweep_at:
            self._sweep_at = now + self._limits.idle_s / 8
            self._sweep(now)

    def _give_up_old(self, now: float, flow: Flow) -> None:
        for direction in (flow.client, flow.back):
            while direction is not None and direction.stash:
                if now - direction.stash[0][2] <= self._limits.stash_s:
                    break
                self._order.give_up(direction)
        self._settle(now, flow)

    def _sweep(self, now: float) -> None:
        idle_s = self._limits.idle_s
        for flow in [flow for flow in self._flows.values() if now - flow.seen_at > idle_s]:
            self._end(flow, flow.seen_at, "the connection went quiet before it was whole")


def reverse(key: bytes) -> bytes:
    """The key of the other direction."""
    address = (len(key) - 4) // 2
    return key[address : 2 * address] + key[:address] + key[-2:] + key[-4:-2]
