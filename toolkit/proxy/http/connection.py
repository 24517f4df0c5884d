"""One client's connection: its requests one at a time to the desk, its answers back, and what ends it.

It touches the network. An answer that the desk knows by a request's very bytes is sent without reading the request: this
is the path that must cost next to nothing; all else may cost more.
"""

import asyncio
import math
from collections.abc import Callable
from typing import cast

from toolkit.proxy.error_json import CONTENT_TYPE, error_body
from toolkit.proxy.http import answer_heads as heads
from toolkit.proxy.http.client_reply import ClientReply
from toolkit.proxy.http.framing import Framed, Refusal, RequestReader, refusal
from toolkit.proxy.http.front_state import BODY, CLIENT, DESK, END, HEAD, IDLE, FrontState
from toolkit.proxy.http.socket_facts import end_by_reset, has_left, unread_bytes

PIPELINED_BYTES = 64 * 1024
"""Of requests behind the one under way; beyond them reading pauses."""
TURNS = 16
"""Pipelined requests handed on before other connections have their turn."""
SLOWEST_BODY_BYTES_S = 64 * 1024
"""A body that came so fast of late may take longer than its time."""
LATE_S = 5.0
"""What `of late` is."""
STALLED_S = 1.0
"""Where memory is wanted, a request of which nothing came for so long makes room."""
LINGER_S = 2.0
"""A refused client has so long to read why: closed at once, bytes still on their way would tear the answer from it."""
SPARE = 64
"""Connections beyond the limit that are told so, at the least; an eighth of the limit where that is more."""


class Connection(asyncio.Protocol):
    """One client's connection."""

    __slots__ = (
        "__weakref__",
        "_answer",
        "_arrived_s",
        "_came_s",
        "_closes",
        "_held_bytes",
        "_is_idle",
        "_is_read_paused",
        "_is_serving",
        "_is_slow",
        "_late_bytes",
        "_late_s",
        "_lingers",
        "_peer",
        "_reader",
        "_recall",
        "_shared",
        "_taken_bytes",
        "_transport",
        "_unread_bytes",
        "_waits_for",
        "_was_used",
        "_write",
        "_writelines",
        "deadline_s",
        "is_write_paused",
    )

    def __init__(self, shared: FrontState) -> None:
        self._shared = shared
        self._recall = shared.recall
        self._transport: asyncio.Transport | None = None
        self._write: Callable[[bytes], None] = _nothing
        self._writelines: Callable[[list[bytes]], None] = _nothing
        self._reader: RequestReader | None = None
        self._answer: ClientReply | None = None
        self._waits_for = IDLE
        self._peer: str | None = None
        self._arrived_s = self._came_s = self._late_s = 0.0
        self._held_bytes = self._unread_bytes = self._taken_bytes = self._late_bytes = 0
        self._is_slow = False
        self._is_idle = self._was_used = self._closes = False
        self._is_serving = self._is_read_paused = self._lingers = False
        self.is_write_paused = False
        self.deadline_s = math.inf

    # ---- what the event loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Welcome a client, or tell it that there are too many."""
        both_ways = self._transport = cast("asyncio.Transport", transport)
        self._write, self._writelines = both_ways.write, both_ways.writelines
        over = self._shared.admit(self)
        if not over:
            self._wait_for(IDLE)
            self._is_idle = True
        elif over <= max(SPARE, self._shared.limits.connections // 8):
            self._refuse(refusal("connections"))
        else:
            self._drop()

    def data_received(self, data: bytes) -> None:
        """Answer a request that the desk knows by its bytes, or read it."""
        if self._is_idle:
            try:
                answer = self._recall(data)
            except Exception as error:  # noqa: BLE001 (told, and the request is read as any other)
                self._tell(error)
                answer = None
            if answer is not None:
                self._was_used = True
                if isinstance(answer, bytes):
                    self._write(answer)
                else:
                    self._writelines(answer)
                return
        self._receive(data)

    def eof_received(self) -> None:
        """The client will send nothing more; one that awaits an answer has left."""
        if self._answer is None:
            self._close(lingers=False)
        else:
            self._drop()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is closed, by whomever."""
        del error
        self._shared.forget(self)
        self._is_idle = False
        self._waits_for = END
        self._transport = self._reader = None
        self._taken_bytes = 0
        self._hold()
        self._write = self._writelines = _nothing
        told = self._part()
        if told is not None:
            told()

    def pause_writing(self) -> None:
        """The client reads more slowly than is written."""
        self.is_write_paused, self._is_idle = True, False
        if self._answer is not None:
            self._answer.is_paused = True
        if self._waits_for is not END:
            self._wait_for(CLIENT)

    def resume_writing(self) -> None:
        """The client has read."""
        self.is_write_paused = False
        if self._waits_for is END:
            return
        if self._answer is None:
            self._serve()
            return
        self._answer.is_paused = False
        self._wait_for(DESK)
        if self._answer.on_writable is not None:
            self._answer.on_writable()

    # ---- what comes in

    def _receive(self, data: bytes) -> None:
        if self._waits_for is END or self._closes:
            return
        self._is_idle = False
        if self._reader is None:
            self._reader = RequestReader(self._shared.limits)
        self._came_s = self._shared.clock()
        if self._reader.is_between:
            self._arrived_s = self._came_s
        self._reader.feed(data)
        if self._answer is not None or self.is_write_paused:
            self._keep_waiting()
        else:
            self._serve()

    def _serve(self) -> None:
        """Hand on what was read, request by request, until one is under way or bytes are missing."""
        if self._is_serving:
            return
        self._is_serving = True
        turns = 0
        while turns < TURNS and self._hands_on():
            turns += 1
        self._is_serving = False
        if turns == TURNS:
            asyncio.get_running_loop().call_soon(self._serve)

    def _hands_on(self) -> bool:
        """Whether a request was handed on, so that a further one may be."""
        if self._answer is not None or self.is_write_paused or self._waits_for is END:
            return False
        found = self._reader.next() if self._reader is not None else None
        if found is None:
            self._await_more()
        elif isinstance(found, Refusal):
            self._refuse(found)
        else:
            self._take(found)
        return isinstance(found, Framed)

    def _take(self, framed: Framed) -> None:
        shared, request = self._shared, framed.request
        request.arrived_s, request.peer = self._arrived_s, self.peer()
        # a body that came at once is counted here first
        self._taken_bytes = len(request.body)
        if self._taken_bytes and not self._hold():
            self._refuse(refusal("held_bytes"))
            return
        answer = self._answer = ClientReply(self, framed)
        shared.busy += 1
        self._wait_for(DESK)
        self._keep_waiting()
        try:
            shared.desk.take(request, answer)
        except Exception as error:  # noqa: BLE001 (told below, and the client must hear of it)
            self._fail(answer, error)

    def _fail(self, answer: ClientReply, error: Exception) -> None:
        self._tell(error)
        if answer is not self._answer:
            return
        told = self._part()
        if answer.is_begun:
            self._drop()
        else:
            self._refuse(refusal("fault"))
        if told is not None:
            told()

    def _tell(self, error: Exception) -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": "the desk failed at a request", "exception": error, "protocol": self}
        )

    def _await_more(self) -> None:
        """Everything that was read is handed on, but for the beginning of a request."""
        reader = self._reader
        waits_for = IDLE
        if reader is not None and not reader.is_between:
            waits_for = BODY if reader.awaits_body else HEAD
            if waits_for is BODY and self._waits_for is not BODY:
                early = reader.early()
                if not self._shared.desk.admits(early.request):
                    # nobody's key: its body is not waited for, nor read
                    self._reader = None
                    self._closes = True
                    self._take(early)
                    return
                self._late_s, self._late_bytes, self._is_slow = self._came_s, 0, False
            if reader.owes_continue():
                self.put(heads.CONTINUE)
        if self._waits_for != waits_for:
            self._wait_for(waits_for)
        if not self._hold():
            self._refuse(refusal("held_bytes"))
            return
        self._is_idle = waits_for is IDLE
        self._resume_reading()
        if self._is_idle and self._shared.is_draining:
            self._close(lingers=True)

    def _keep_waiting(self) -> None:
        """Keep what came behind the request under way, within limits."""
        if self._reader is not None and self._reader.held_bytes > PIPELINED_BYTES:
            self._pause_reading()
        if self._hold():
            return
        if self._answer is None:
            self._close(lingers=False)
        else:  # what came behind it is forgotten, and so is all that follows
            self._closes, self._reader = True, None
            self._hold()

    def _hold(self) -> bool:
        """Account for the bytes that are kept, of unfinished requests and of the one under way; False: they are too many."""
        count = self._taken_bytes + (self._reader.held_bytes if self._reader is not None else 0)
        more, self._held_bytes = count - self._held_bytes, count
        return self._shared.hold(more)

    def _pause_reading(self) -> None:
        # uvloop refuses to pause or resume what a failed write is closing
        transport = self._transport
        if not self._is_read_paused and transport is not None and not transport.is_closing():
            self._is_read_paused = True
            transport.pause_reading()

    def _resume_reading(self) -> None:
        transport = self._transport
        if self._is_read_paused and transport is not None and not transport.is_closing():
            self._is_read_paused = False
            transport.resume_reading()

    # ---- what goes out

    def put(self, data: bytes) -> None:
        """Send bytes."""
        if self.is_write_paused:
            self._unread_bytes += len(data)
        self._write(data)

    def date(self) -> bytes:
        """The Date line."""
        return self._shared.date()

    def peer(self) -> str:
        """The client's address; empty for a unix socket."""
        if self._peer is None:
            name = self._transport.get_extra_info("peername") if self._transport else None
            self._peer = str(name[0]) if isinstance(name, tuple) else ""
        return self._peer

    def kept_alive(self, keeps: bool, http_minor: int) -> bytes:
        """The Connection line of an answer, and the decision it tells."""
        self._closes = self._closes or not keeps or self._shared.is_draining
        if self._closes:
            return heads.CLOSE
        return b"" if http_minor else heads.KEEP

    def answered(self) -> None:
        """The answer is complete."""
        self._part()
        if self._closes:
            has_unread = self._reader is None or not self._reader.is_between
            self._close(lingers=has_unread or self._shared.is_draining)
        elif self.is_write_paused:
            self._wait_for(CLIENT)
        else:
            self._serve()

    def cut(self, *, is_hard: bool) -> None:
        """End the connection in an answer's midst: after what was written, or at once."""
        self._part()
        if is_hard:
            self._drop()
        else:
            self._close(lingers=False)

    def _part(self) -> Callable[[], None] | None:
        """No request is under way any more; what its answer wants to be called, if the client left before its end."""
        answer, self._answer = self._answer, None
        if answer is None:
            return None
        self._shared.busy -= 1
        self._taken_bytes = 0
        self._hold()
        return answer.leave()

    def _refuse(self, found: Refusal) -> None:
        self._shared.desk.refused(found.status, found.reason, self.peer())
        body = error_body(found.status, found.message)
        headers = [CONTENT_TYPE]
        if found.status == 503:
            headers.append((b"retry-after", b"1"))
        line = b"content-length: %d\r\n" % len(body)
        self.put(
            heads.answer_head(
                found.status, headers, date=self.date(), body=line, connection=heads.CLOSE
            )
            + body
        )
        self._close(lingers=True)

    # ---- ends

    def _close(self, *, lingers: bool) -> None:
        """Close after what was written; or say that no more comes, and wait for the client to close."""
        transport = self._transport
        self._is_idle, self._reader, self._taken_bytes = False, None, 0
        self._hold()
        self._wait_for(END)
        if transport is None or transport.is_closing():
            return
        self._lingers = lingers and transport.can_write_eof()
        if self._lingers:
            self._be_patient(self._shared.clock())
            self._resume_reading()
            transport.write_eof()
        else:
            transport.close()

    def _drop(self) -> None:
        """Close at once, so that the client can't take it for an end; `connection_lost` follows in the same turn."""
        self._is_idle = False
        self._wait_for(END)
        if self._transport is not None:
            end_by_reset(self._transport)

    # ---- time

    def _wait_for(self, what: str) -> None:
        self._waits_for = what
        self.deadline_s = self._shared.deadline_s(what)
        if what in (CLIENT, END) and self._transport is not None:
            self._unread_bytes = unread_bytes(self._transport)

    def look(self, now: float) -> None:
        """Once a second: end what waits too long."""
        if self._was_used:
            self._was_used = False
            if self._waits_for is IDLE:
                self.deadline_s = now + self._shared.limits.idle_s
        elif self._waits_for in (CLIENT, END):
            self._look_at_client(now)
        elif self._waits_for is DESK:
            if self._is_read_paused and self._transport and has_left(self._transport):
                self._drop()
        else:
            if self._waits_for is BODY and now >= self._late_s + LATE_S:
                wanted = SLOWEST_BODY_BYTES_S * (now - self._late_s)
                self._is_slow = self._held_bytes - self._late_bytes < wanted
                self._late_s, self._late_bytes = now, self._held_bytes
            if now >= self.deadline_s:
                self._end_late()

    def _look_at_client(self, now: float) -> None:
        """Let a client go that reads nothing of what was written."""
        assert self._transport is not None
        unread = unread_bytes(self._transport)
        if unread < self._unread_bytes:
            self._unread_bytes = unread
            self._be_patient(now)
        elif now >= self.deadline_s:
            self._drop()

    def _be_patient(self, now: float) -> None:
        """With a client that has something to read, longer than with one that has but to close."""
        is_read = self._lingers and self._unread_bytes <= 1  # the end itself counts as a byte
        self.deadline_s = now + (LINGER_S if is_read else self._shared.limits.stall_s)

    def _end_late(self) -> None:
        if self._waits_for is IDLE:
            self._close(lingers=False)
        elif self._waits_for is HEAD:
            self._refuse(refusal("header_timeout"))
        elif self._is_slow:
            self._refuse(refusal("body_timeout"))

    # ---- room for others

    @property
    def silent_since_s(self) -> float | None:
        """Since when it has sent no whole head, where nothing else is under way; None: something is."""
        if self._waits_for not in (IDLE, HEAD) or self._transport is None:
            return None
        if self._transport.get_write_buffer_size():
            return None
        if self._was_used:
            # since less than a second: nobody has been silent for less
            return math.inf
        limits = self._shared.limits
        return self.deadline_s - (limits.idle_s if self._waits_for is IDLE else limits.header_s)

    @property
    def stalled_bytes(self) -> int:
        """What it has sent of an unfinished request that has come to a stand, or nearly so."""
        if self._waits_for not in (HEAD, BODY):
            return 0
        stands = self._shared.clock() >= self._came_s + STALLED_S
        return self._held_bytes if stands or (self._is_slow and self._waits_for is BODY) else 0

    def shed(self) -> None:
        """End what is not under way, to make room for others."""
        if self._waits_for is BODY:
            self._refuse(refusal("body_timeout"))
        else:
            self._close(lingers=False)

    def drain(self) -> None:
        """Answer no further request but those that have begun to come."""
        if self._is_idle:
            self._close(lingers=False)


def _nothing(data: object) -> None:
    del data
