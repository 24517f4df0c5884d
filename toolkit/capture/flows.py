"""TCP segments -> whole requests, and their answers where they are followed.

It finds the connection, keeps memory within limits whatever comes, and tells what was lost; the bytes' order is
reassembly.py's, their meaning http.py's. It never reads a clock: time is that of the packets.
"""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from toolkit.capture.exchange import ACK, FIN, RST, SYN, HttpRequest, Limits, Losses
from toolkit.capture.http import Requests
from toolkit.capture.messages import Shared
from toolkit.capture.reassembly import HALF, MASK, Direction, Reassembly

if TYPE_CHECKING:
    from toolkit.capture.pairing import InFlight, Pairs

SPECIAL = SYN | FIN | RST

LOOK_S = 0.25
"""How often holes are looked at that nobody fills, by the packets' clock."""
CLOSED = 65_536
"""Closed connections that are remembered, so that a segment sent again after the end begins no new one."""
CLOSED_S = 60.0
"""A segment lives no longer (RFC 9293: a connection waits for two minutes; Linux for one)."""
CLOSED_BYTES = 64 * 1024 * 1024
"""How far before its end a segment of a closed connection may be; later numbers are another's."""


class Flow:
    """One connection: the client's direction, and the server's where answers are followed."""

    __slots__ = ("back", "client", "held", "isn", "key", "pairs", "requests", "seen_at")

    def __init__(self, key: bytes, requests: Requests, client: Direction, ts: float) -> None:
        self.key = key
        """As the client's segments have it."""
        self.requests = requests
        self.client = client
        self.pairs: Pairs | None = None
        self.back: Direction | None = None
        """The server's direction."""
        self.isn: int | None = None
        """The client's initial sequence number, of the SYN."""
        self.seen_at = ts
        self.held = 0


class Streams:
    """TCP segments -> whole requests (and answers)."""

    def __init__(
        self,
        on_request: Callable[[HttpRequest], None],
        *,
        ports: Collection[int],
        follow_answers: bool = False,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        losses: Losses,
    ) -> None:
        self._on_request = on_request
        self._ports = ports
        self._follow = follow_answers
        self._limits, self._losses = limits, losses
        self._shared = Shared(limits, losses)
        self._order = Reassembly(limits, losses)
        self._in_flight: InFlight | None = None
        if follow_answers:
            from toolkit.capture.pairing import InFlight  # noqa: PLC0415 - until answers.py is there

            self._in_flight = InFlight()
        self._flows: dict[bytes, Flow] = {}
        self._servers: dict[bytes, Flow] = {}
        """The same connections by the server's key, where answers are followed."""
        self._waiting: dict[bytes, Flow] = {}
        """Those with a hole, by the client's key."""
        self._closed: dict[bytes, tuple[float, int]] = {}
        self._held = 0
        self._looked_at = self._look_at = self._sweep_at = float("-inf")

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
        if not self._looked_at <= ts < self._look_at:
            self._look(ts)
        flow = self._flows.get(key)
        if flow is None:
            self._other(ts, key, seq, ack, flags, payload, missing)
            return
        flow.seen_at = ts
        client = flow.client
        if (
            payload
            and seq == client.next & MASK
            and not (client.slow or missing or flags & SPECIAL)
        ):
            # nearly all segments go this way: next in order, nothing waits
            client.next += len(payload)
            requests = flow.requests
            requests.data(ts, payload)
            if requests.held != flow.held or flow.pairs is not None:
                self._weigh(flow)
        elif payload or missing or flags & SPECIAL:
            self._from_client(ts, flow, seq, flags, payload, missing)
        if flow.back is not None and flags & ACK:
            self._acknowledge(flow, flow.back, ack)

    def expire(self, now: float) -> None:
        """Give up holes and connections that waited too long, by the packets' clock."""
        self._look(now)

    def close(self) -> None:
        """The capture is over: what is unfinished is told as damaged."""
        for flow in list(self._flows.values()):
            self._end(flow, flow.seen_at, "the capture ended before it was whole")

    # --- one segment ------------------------------------------------------------------------------

    def _other(
        self, ts: float, key: bytes, seq: int, ack: int, flags: int, payload: bytes, missing: int
    ) -> None:
        """A segment of a server, or of a connection not known so far."""
        flow = self._servers.get(key)
        if flow is None:
            flow = self._newcomer(ts, key, seq, flags, payload)
            if flow is None:
                return
        flow.seen_at = ts
        if flow.key == key:
            self._from_client(ts, flow, seq, flags, payload, missing)
        else:
            self._from_server(ts, flow, seq, ack, flags, payload, missing)

    def _newcomer(self, ts: float, key: bytes, seq: int, flags: int, payload: bytes) -> Flow | None:
        """The connection that begins with this segment, if one does."""
        if flags & RST or not (payload or flags & SYN):
            return None
        if not flags & SYN and self._is_late(ts, key, seq):
            return None
        from_client = self._is_from_client(key, flags, payload)
        if not from_client and not self._follow:
            return None
        if len(self._flows) >= self._limits.flows:
            self._make_room()
        return self._open(ts, key if from_client else reverse(key), seq, flags, from_client)

    def _is_from_client(self, key: bytes, flags: int, payload: bytes) -> bool:
        to_port, from_port = int.from_bytes(key[-2:], "big"), int.from_bytes(key[-4:-2], "big")
        if to_port in self._ports and from_port in self._ports:
            return not flags & ACK if flags & SYN else not payload.startswith(b"HTTP/")
        return to_port in self._ports

    def _open(self, ts: float, key: bytes, seq: int, flags: int, from_client: bool) -> Flow:
        whole = from_client and bool(flags & SYN)
        pairs: Pairs | None = None
        deliver = self._on_request
        if self._in_flight is not None:
            from toolkit.capture.pairing import Pairs  # noqa: PLC0415

            address = (len(key) - 4) // 2
            server = key[address : 2 * address] + key[-2:]
            pairs = Pairs(self._on_request, server, self._in_flight)
            deliver = pairs.asked
        requests = Requests(deliver, key, self._shared, whole=whole)
        if pairs is not None:
            pairs.requests = requests
        first = (seq + bool(flags & SYN)) & MASK
        flow = Flow(key, requests, Direction(requests, first, anchored=whole), ts)
        if whole:
            flow.isn = seq
        elif not from_client:
            flow.client.placed = False
        if pairs is not None:
            flow.pairs = pairs
            flow.back = Direction(pairs, first, anchored=True)
            flow.back.placed = not from_client
            self._servers[reverse(key)] = flow
        self._flows[key] = flow
        self._closed.pop(key, None)
        return flow

    def _from_client(
        self, ts: float, flow: Flow, seq: int, flags: int, payload: bytes, missing: int
    ) -> None:
        if flags & RST:
            self._end(flow, ts, "the connection was reset before it was whole")
            return
        if flags & SYN:
            again = self._synchronised(ts, flow, seq)
            if again is None:
                return
            flow, seq = again, (seq + 1) & MASK
        if payload or missing or flags & FIN:
            self._place(flow.client, seq)
            self._order.arrive(ts, flow.client, seq, payload, missing, bool(flags & FIN))
        self._settle(ts, flow)

    def _synchronised(self, ts: float, flow: Flow, seq: int) -> Flow | None:
        """The connection that a client's SYN belongs to: a new one, if its number is new."""
        if flow.isn == seq:
            return flow
        client = flow.client
        first = client.position((seq + 1) & MASK)
        if flow.isn is None and 0 <= client.started_at - first <= self._limits.stash_bytes:
            flow.isn = seq  # overtaken by data
            if not client.anchored:
                self._order.join(ts, client, first)
            return flow
        self._end(flow, ts, "another connection took its place before it was whole")
        return self._open(ts, flow.key, seq, SYN, from_client=True)

    def _from_server(
        self, ts: float, flow: Flow, seq: int, ack: int, flags: int, payload: bytes, missing: int
    ) -> None:
        back = flow.back
        assert back is not None
        if flags & RST:
            self._end(flow, ts, "the connection was reset before it was whole")
            return
        if flags & SYN:
            back.next, back.placed = (seq + 1) & MASK, True
            return
        if flags & ACK:
            self._acknowledge(flow, flow.client, ack)
        if payload or missing or flags & FIN:
            self._place(back, seq)
            if seq == back.next & MASK and not (back.slow or missing or flags & SPECIAL):
                back.next += len(payload)
                back.reader.data(ts, payload)
            else:
                self._order.arrive(ts, back, seq, payload, missing, bool(flags & FIN))
            self._settle(ts, flow)

    @staticmethod
    def _place(to: Direction, seq: int) -> None:
        """A direction begins where it is first seen."""
        if not to.placed:
            to.placed = True
            to.next = to.started_at = seq

    def _acknowledge(self, flow: Flow, other: Direction, ack: int) -> None:
        """What the other side has, and we have not, will not be sent again."""
        if other.stash and other.anchored:
            have = other.position(ack)
            while other.stash and other.stash[0][0] <= have:
                self._order.give_up(other)
            self._settle(flow.seen_at, flow)

    # --- keeping house ----------------------------------------------------------------------------

    def _settle(self, ts: float, flow: Flow) -> None:
        """See after anything unusual whether it is over, what waits, and what it holds."""
        if flow.client.ended and (flow.back is None or flow.back.ended):
            self._end(flow, ts, "the connection ended before it was whole")
            return
        if flow.client.ended:
            flow.requests.end("the connection ended before it was whole")
        if flow.client.stash or (flow.back is not None and flow.back.stash):
            self._waiting[flow.key] = flow
        else:
            self._waiting.pop(flow.key, None)
        self._weigh(flow)

    def _weigh(self, flow: Flow) -> None:
        held = flow.client.held + (flow.back.held if flow.back is not None else 0)
        self._held += held - flow.held
        flow.held = held
        if self._held > self._limits.total_bytes:
            self._make_room()

    def _make_room(self) -> None:
        """Let go of the connections longest quiet, a sixteenth at a time, so that this is rare."""
        limits = self._limits
        flows = sorted(self._flows.values(), key=lambda flow: flow.seen_at)
        few, little = (
            limits.flows - limits.flows // 16 - 1,
            limits.total_bytes - limits.total_bytes // 16,
        )
        for flow in flows:
            if len(self._flows) <= few and self._held <= little:
                return
            if len(self._flows) > few or flow.held:
                self._losses.gave_up += 1
                self._end(flow, flow.seen_at, "given up for want of room before it was whole")

    def _end(self, flow: Flow, ts: float, why: str) -> None:
        if self._flows.pop(flow.key, None) is None:
            return
        self._waiting.pop(flow.key, None)
        self._order.give_up_all(flow.client)
        flow.requests.end(why)
        if flow.back is not None and flow.pairs is not None:
            del self._servers[reverse(flow.key)]
            self._order.give_up_all(flow.back)
            flow.pairs.end(ts)
        self._held -= flow.held
        flow.held = 0
        self._remember(ts, flow)

    def _remember(self, ts: float, flow: Flow) -> None:
        if len(self._closed) >= CLOSED:
            del self._closed[next(iter(self._closed))]
        self._closed[flow.key] = (ts, flow.client.next)

    def _is_late(self, ts: float, key: bytes, seq: int) -> bool:
        """Whether a segment belongs to a connection that is over: sent again, or overtaken by its end."""
        closed = self._closed.get(key)
        if closed is None:
            return False
        distance = ((seq - closed[1] + HALF) & MASK) - HALF
        return ts - closed[0] <= CLOSED_S and -CLOSED_BYTES < distance < 0

    def _look(self, now: float) -> None:
        """Now and then: holes, and connections gone quiet."""
        if now < self._looked_at:  # a clock that was set back
            self._sweep_at = now
        self._looked_at, self._look_at = now, now + LOOK_S
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
