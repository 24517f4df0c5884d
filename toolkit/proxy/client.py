"""HTTP/1.1 towards clients: connections, the requests they bring, the answers they get, and what ends them. It touches the network.

`ClientConnection.data_received` is where a request comes in. If its raw bytes are those of a hot entry, `recall` has the whole
answer and nothing is parsed: this path must cost next to nothing, all else may cost more. Else RequestReader (framing.py) cuts out
whole requests, and `Responder.take` (handler.py) answers each. There is no timer per connection: `Front.sweep` runs once a second.
"""

import asyncio
import contextlib
import fcntl
import math
import socket
import struct
import termios
import time
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, Literal, Protocol, cast

from toolkit.proxy.config import FrontSetting
from toolkit.proxy.errors import JSON, error_body
from toolkit.proxy.framing import REASONS, Framed, Head, Heads, RequestReader
from toolkit.proxy.headers import Headers

JOINED_BYTES: Final = 64 * 1024
"""A larger body is not copied behind its head."""
SLICE_BYTES: Final = 256 * 1024
"""Most that is written before checking again whether the client keeps up: unread bytes are held for each client, while
the answer itself is held once for all."""
PIPELINED_BYTES: Final = 64 * 1024
"""Most bytes kept of requests behind the one that is being answered; beyond them reading pauses."""
TURNS: Final = 16
"""Pipelined requests handed on before other connections have their turn."""
SLOWEST_BODY_BYTES_S: Final = 64 * 1024
"""A body that came so fast in the last LATE_S may take longer than `body_s`."""
LATE_S: Final = 5.0
STALLED_S: Final = 1.0
"""When too many bytes are held, an incomplete request that brought nothing for so long is ended."""
TICK_S: Final = 0.001
"""A loop's timers are no finer (uvloop counts whole ms): what is due within it is written now."""
LINGER_S: Final = 2.0
"""A refused client has so long to read why: closed at once, bytes still on their way would tear the answer from it."""
SPARE: Final = 64
"""So many connections beyond the limit get a 503, or an eighth of the limit where that is more; further ones are reset."""
SILENT: Final = 256
"""So many of the longest silent connections are collected at a time, to be closed when there are too many."""

IDLE, HEAD, BODY, ANSWER, CLIENT, END = "idle", "head", "body", "answer", "client", "end"
"""What a connection waits for: a request, the rest of its head or body, its answer, the client to read, the end."""
OURS: Final = frozenset(
    b"connection content-length date keep-alive trailer transfer-encoding upgrade".split()
)
"""Headers that the proxy writes itself: those of an upstream's answer are left out."""

_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
LAST_CHUNK: Final = b"0\r\n\r\n"

_BREAKS: Final = bytes.maketrans(b"\r\n\0", b"   ")
_RESET: Final = struct.pack("ii", 1, 0)
_LEFT_STATES: Final = frozenset((7, 8))
"""Linux's TCP_CLOSE and TCP_CLOSE_WAIT."""


class Responder(Protocol):
    """Answers requests: the handler, the admin, and both ends of the workers' private sockets, which need only `take`."""

    def recall(self, data: bytes) -> bytes | list[bytes] | None:
        """The whole answer, head included, to the request of these very bytes, where it is known by them."""
        del data
        return None

    def admits(self, head: Head) -> bool:
        """Whether the body of this head should be waited for; if not, `take` answers it without."""
        del head
        return True

    def take(self, request: "Request") -> None:
        """Answer a request, now or later."""

    def refused(self, status: int, reason: str, peer: str) -> None:
        """Count a request that was refused before `take`; `reason` is a key of framing.REASONS."""
        del status, reason, peer


class Request:
    """One whole request, and the way back to its client. What is written after the client left goes nowhere, without an error."""

    __slots__ = (
        *(
            "arrived_s",
            "body",
            "body_bytes",
            "ended_s",
            "first_token_s",
            "head",
            "is_over",
            "is_paused",
        ),
        *("left", "on_done", "on_writable", "peer", "raw", "status"),
        *("_connection", "_ends_by", "_head", "_rest_bytes"),
    )

    def __init__(
        self, framed: Framed, connection: "ClientConnection | None", peer: str = ""
    ) -> None:
        self.head, self.body, self.raw = framed.head, framed.body, framed.raw
        self.peer = peer
        """The client's address; for limits and the log."""
        self.arrived_s = 0.0
        """Monotonic clock, when its first byte was read: the time to read and parse it counts as waiting, too."""
        self.status: int | None = None
        """None: no answer has begun."""
        self.is_over = False
        """Nothing more is written."""
        self.left = False
        """The client left before the end of its answer."""
        self.is_paused = False
        """The client does not read as fast as is written: write no more until `on_writable`."""
        self.ended_s = 0.0
        self.first_token_s: float | None = None
        """When a stream's first token was written; None for a whole body, and if none came."""
        self.body_bytes = 0
        """Written, without framing; whether the client read all of it, nobody knows."""
        self.on_writable: Callable[[], None] | None = None
        """Called whenever a client that had fallen behind reads again."""
        self.on_done: Callable[[], None] | None = None
        """Called once: when its answer was written to the end, was cut, or the client left."""
        self._connection = connection
        self._ends_by: Literal["length", "chunk", "close", "head"] | None = None
        self._rest_bytes = 0
        self._head = b""
        """The answer's, until it is sent."""

    # --- its answer ----------------------------------------------------------------------------------

    def respond(
        self, status: int, headers: Headers, body: bytes, *, has_tokens: bool = False
    ) -> None:
        """Answer in one go, a large body as the client reads it. `has_tokens`: it is a stream's events."""
        if self.is_over:
            return
        self.begin(status, headers, length=len(body))
        if len(body) > SLICE_BYTES:
            self.send(body, [(0.0, len(body))], has_tokens=has_tokens)
            return
        if has_tokens:
            self.note_token()
        self.write(body, is_last=True)

    def send(self, body: bytes, steps: list[tuple[float, int]], *, has_tokens: bool) -> None:
        """Send a whole body behind the head that has begun, piece by piece as the client reads it, and end the answer.

        `steps`: so many seconds from now the bytes up to this one are due. There is no timer while the client does not read.
        """
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        written = due = step = 0
        timer: asyncio.TimerHandle | None = None

        def fill() -> None:
            nonlocal written, due, step, timer
            if timer is not None:
                timer.cancel()
            while step < len(steps) and steps[step][0] <= loop.time() - began_s + TICK_S:
                due = steps[step][1]
                step += 1
            while written < due and not self.is_paused and not self.is_over:
                end = min(due, written + SLICE_BYTES)
                self.write(body[written:end])
                written = end
                if has_tokens:
                    self.note_token()
            if written >= len(body):
                self.write(b"", is_last=True)
            elif not self.is_paused and self.on_writable is not None:
                # not by its own name: a function that holds itself keeps its body until the collector comes round
                timer = loop.call_at(began_s + steps[step][0], self.on_writable)

        self.on_writable = fill
        fill()

    def begin(self, status: int, headers: Headers, *, length: int | None = None) -> None:
        """Begin an answer; its head goes out in one write with its first part.

        Without a length it is chunked (for HTTP/1.0: ended by closing).
        """
        connection, head = self._connection, self.head
        if connection is None or self.status is not None:
            return
        self.status = status
        framing = b""
        if status < 200 or status in (204, 304):
            self._ends_by = "head"
        elif length is not None:
            self._ends_by, self._rest_bytes = "length", length
            framing = b"content-length: %d\r\n" % length
        elif head.http_minor:
            self._ends_by, framing = "chunk", b"transfer-encoding: chunked\r\n"
        else:
            self._ends_by = "close"
        if self._ends_by == "close" or not head.keeps_alive or connection.front.is_draining:
            connection.closes = True
        if connection.closes:
            framing += b"connection: close\r\n"
        elif not head.http_minor:
            framing += b"connection: keep-alive\r\n"
        if head.method == "HEAD":
            self._ends_by = "head"
            # an upstream's answer to HEAD has no body: how long it would be, is not known here
            framing = framing.replace(b"content-length: 0\r\n", b"")
        self._head = answer_head(status, headers, date=connection.front.date(), framing=framing)

    def write(self, data: bytes, framed: bytes | None = None, *, is_last: bool = False) -> None:
        """Send a part of the body; `framed`: the same as a chunk, made once for all who get it. `is_last`: it ends the answer.

        Where the body isn't as long as was said by then, the client sees that it was cut.
        """
        connection = self._connection
        if connection is None or self.status is None:
            return
        if self._ends_by == "length":
            data = data[: self._rest_bytes]
            self._rest_bytes -= len(data)
        elif self._ends_by == "head":
            data = b""
        self.body_bytes += len(data)
        if self._ends_by == "chunk":
            if data:
                data = framed or b"%x\r\n%b\r\n" % (len(data), data)
            if is_last:
                data += LAST_CHUNK
        if self._head:
            if len(data) <= JOINED_BYTES:
                data = self._head + data
            else:
                connection.write(self._head)
            self._head = b""
        if data:
            connection.write(data)
        if is_last:
            self._finish()

    def note_token(self) -> None:
        """Stamp the first token as written now; later calls change nothing."""
        if self.first_token_s is None and self._connection is not None:
            self.first_token_s = self._connection.front.clock()

    def cut(self, last: bytes = b"") -> None:
        """The answer can't be completed: a last part that says so, and the connection closed without its end."""
        if self._connection is not None:
            self.write(last)
            self._finish(is_cut=True)

    def leave(self) -> None:
        """The client left, or its connection failed."""
        if not self.is_over:
            self.left = True
            self._done()

    def _finish(self, *, is_cut: bool = False) -> None:
        connection = self._connection
        assert connection is not None
        try:
            # before the connection goes on with the next request
            self._done()
        finally:
            if is_cut or (self._ends_by == "length" and self._rest_bytes):
                # a body that ends by closing can be cut visibly only by a reset
                connection.cut(is_hard=self._ends_by in (None, "close", "head"))
            else:
                connection.answered()

    def _done(self) -> None:
        self.is_over = True
        if self._connection is not None:
            self.ended_s = self._connection.front.clock()
        self._connection = self.on_writable = None
        done, self.on_done = self.on_done, None
        if done is not None:
            done()


def answer_head(status: int, headers: Headers, *, date: bytes, framing: bytes = b"") -> bytes:
    """An answer's first line and headers; `framing`: our own lines on where it ends."""
    parts = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status, date]
    for name, value in headers:
        if name not in OURS:
            line = b"%b: %b" % (name, value)
            # a break inside would end the header: whoever wrote the value would write the answer
            if b"\n" in line or b"\r" in line or b"\0" in line:
                line = line.translate(_BREAKS)
            parts.append(line + b"\r\n")
    parts += [framing, b"\r\n"]
    return b"".join(parts)


def date_line(second: int) -> bytes:
    """The Date header of a whole second since 1970, with its line end."""
    return f"date: {formatdate(second, usegmt=True)}\r\n".encode()


class Front:
    """All connections of one listener: makes their protocols, ends what waits too long, bounds what they hold, drains."""

    def __init__(
        self,
        responder: Responder,
        limits: FrontSetting,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.responder, self.limits, self.clock = responder, limits, clock
        self.heads = Heads(limits)
        self.recall: Callable[[bytes], bytes | list[bytes] | None] = responder.recall
        self.busy = 0
        """Connections with a request under way."""
        self.held_bytes = 0
        """Of requests that are not whole yet, and the bodies of those under way."""
        self.is_draining = False
        self.longest_s = {
            IDLE: limits.idle_s,
            HEAD: limits.header_s,
            BODY: limits.body_s,
            ANSWER: math.inf,
            CLIENT: limits.stall_s,
            END: limits.stall_s,
        }
        """How long a connection may wait for each."""
        self._open: set[ClientConnection] = set()
        self._shed: set[ClientConnection] = set()
        """Being closed to make room, but still open for a moment."""
        self._silent: list[tuple[ClientConnection, float | None]] = []
        """Those to be closed next when there are too many, each with the time since it is silent; the longest silent last."""
        self._second, self._date = 0, b""

    def __call__(self) -> asyncio.Protocol:
        """The protocol of a new connection."""
        return ClientConnection(self)

    @property
    def connections(self) -> int:
        """Open ones."""
        return len(self._open)

    def sweep(self) -> None:
        """Once a second: end what waits too long."""
        now = self.clock()
        for connection in tuple(self._open):
            connection.check(now)

    def drain(self) -> None:
        """From now on answers close their connection; those that wait for nothing are closed."""
        self.is_draining = True
        self.recall = _nothing
        for connection in tuple(self._open):
            connection.drain()

    def reopen(self) -> None:
        """Keep connections again after an answer."""
        self.is_draining = False
        self.recall = self.responder.recall

    def date(self) -> bytes:
        """The Date line of this second."""
        second = int(time.time())
        if second != self._second:
            self._second, self._date = second, date_line(second)
        return self._date

    def admit(self, connection: "ClientConnection") -> int:
        """Add a connection; above the limit, close the one silent longest. Return by how many they still are too many."""
        over = len(self._open) + 1 - self.limits.connections - len(self._shed)
        while over > 0:
            if not self._silent:
                # looked for once in a while: with 10,000 open it takes 2 ms
                silent = [
                    each for each in self._open - self._shed if each.silent_since_s is not None
                ]
                silent.sort(key=lambda each: each.silent_since_s or 0.0, reverse=True)
                self._silent = [(each, each.silent_since_s) for each in silent[-SILENT:]]
                if not self._silent:
                    break
            each, since_s = self._silent.pop()
            if each in self._open and each not in self._shed and each.silent_since_s == since_s:
                self._shed.add(each)
                each.shed()
                over -= 1
                break
        self._open.add(connection)
        return max(0, over)

    def make_room(self) -> bool:
        """Too many bytes are held: end stalled requests, the largest first. False: still too many."""
        while self.held_bytes > self.limits.held_bytes:
            victim = max(self._open, key=lambda each: each.stalled_bytes, default=None)
            if victim is None or not victim.stalled_bytes:
                return False
            victim.shed()
        return True

    def forget(self, connection: "ClientConnection") -> None:
        """It is closed."""
        self._open.discard(connection)
        self._shed.discard(connection)


class ClientConnection(asyncio.Protocol):
    """One client's connection: one request at a time is under way, those behind it wait."""

    __slots__ = (
        *("__weakref__", "closes", "deadline_s", "front", "waits_for", "write"),
        *("_arrived_s", "_came_s", "_held_bytes", "_is_read_paused", "_is_serving", "_is_slow"),
        *("_late_bytes", "_late_s", "_lingers", "_peer", "_reader", "_request", "_taken_bytes"),
        *("_transport", "_unread_bytes", "_was_used"),
    )

    def __init__(self, front: Front) -> None:
        self.front = front
        self.waits_for = IDLE
        self.deadline_s = math.inf
        self.closes = False
        """It ends with the answer under way."""
        self.write: Callable[[bytes], None] = _nothing
        self._transport: asyncio.Transport | None = None
        self._reader: RequestReader | None = None
        self._request: Request | None = None
        """The one under way."""
        self._peer = ""
        self._arrived_s = self._came_s = self._late_s = 0.0
        self._held_bytes = self._unread_bytes = self._taken_bytes = self._late_bytes = 0
        self._is_slow = self._was_used = False
        self._is_serving = self._is_read_paused = self._lingers = False

    # --- called by the event loop --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a client in, or answer that there are too many."""
        # (uvloop's is no subclass of asyncio's)
        both_ways = self._transport = cast("asyncio.Transport", transport)
        self.write = both_ways.write
        # a unix socket's is no tuple
        peer = both_ways.get_extra_info("peername")
        self._peer = str(peer[0]) if isinstance(peer, tuple) else ""
        over = self.front.admit(self)
        if not over:
            self._wait_for(IDLE)
        elif over <= max(SPARE, self.front.limits.connections // 8):
            self._refuse("connections")
        else:
            self._drop()

    def data_received(self, data: bytes) -> None:
        """Answer a request that is known by its bytes, or read it."""
        if self.waits_for is IDLE:
            try:
                answer = self.front.recall(data)
            except Exception as error:  # noqa: BLE001 (reported, and the request is read as any other)
                self._report(error)
                answer = None
            if answer is not None:
                self._was_used = True
                if isinstance(answer, bytes):
                    self.write(answer)
                elif self._transport is not None:
                    self._transport.writelines(answer)
                return
        if self.waits_for is END or self.closes:
            return
        reader = self._reader
        if reader is None:
            reader = self._reader = RequestReader(self.front.limits, self.front.heads)
        self._came_s = self.front.clock()
        if reader.is_between:
            self._arrived_s = self._came_s
        reader.feed(data)
        if self._request is not None or self.waits_for is CLIENT:
            self._keep_waiting()
        else:
            self._serve()

    def eof_received(self) -> None:
        """The client will send nothing more; one that awaits an answer has left."""
        if self._request is None:
            self._close(lingers=False)
        else:
            self._drop()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is closed, by either side."""
        del error
        self.front.forget(self)
        self.waits_for = END
        self._transport = self._reader = None
        self.write = _nothing
        request = self._part()
        if request is not None:
            request.leave()

    def pause_writing(self) -> None:
        """The client reads more slowly than is written."""
        if self.waits_for is not END:
            self._wait_for(CLIENT)
            if self._request is not None:
                self._request.is_paused = True

    def resume_writing(self) -> None:
        """The client has read."""
        if self.waits_for is not CLIENT:
            return
        self._wait_for(ANSWER)
        request = self._request
        if request is None:
            self._serve()
            return
        request.is_paused = False
        if request.on_writable is not None:
            request.on_writable()

    # --- what comes in -------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Hand on whole requests, one by one, until one is being answered or more bytes are needed."""
        if self._is_serving:
            return
        self._is_serving = True
        for _ in range(TURNS):
            if self._request is not None or self.waits_for in (CLIENT, END):
                break
            found = None if self._reader is None else self._reader.next()
            if found is None:
                self._await_more()
                break
            if isinstance(found, str):
                self._refuse(found)
                break
            self._take(found)
        else:
            asyncio.get_running_loop().call_soon(self._serve)
        self._is_serving = False

    def _take(self, framed: Framed) -> None:
        front = self.front
        # a body that came in one read was not counted yet
        self._taken_bytes = len(framed.body)
        if not self._hold() and self._taken_bytes:
            self._refuse("held_bytes")
            return
        request = self._request = Request(framed, self, self._peer)
        request.arrived_s = self._arrived_s
        front.busy += 1
        self.waits_for, self.deadline_s = ANSWER, math.inf
        if self._reader is not None and self._reader.held_bytes:
            self._keep_waiting()
        try:
            front.responder.take(request)
        except Exception as error:  # noqa: BLE001 (reported below, and the client must get an answer)
            self._report(error)
            if request is not self._request:
                return
            self._part()
            if request.status is not None:
                self._drop()
            else:
                self._refuse("fault")
            request.leave()

    def _await_more(self) -> None:
        """No whole request is left: wait for the next one, or for the rest of the one that has begun."""
        reader, front = self._reader, self.front
        waits_for = IDLE
        if reader is not None and not reader.is_between:
            head = reader.awaited
            waits_for = HEAD if head is None else BODY
            if head is not None and self.waits_for is not BODY:
                if not front.responder.admits(head):
                    # `take` refuses it by its head, e.g., for its key: the body is not read
                    self._reader, self.closes = None, True
                    self._take(Framed(head=head, body=b""))
                    return
                self._late_s, self._late_bytes, self._is_slow = self._came_s, 0, False
            if reader.owes_continue():
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self.waits_for is not waits_for:
            self._wait_for(waits_for)
        if not self._hold():
            self._refuse("held_bytes")
            return
        if self._is_read_paused:
            self._resume_reading()
        if waits_for is IDLE and front.is_draining:
            self._close(lingers=True)

    def _keep_waiting(self) -> None:
        """Keep what came behind the request that is being answered, within limits."""
        if self._reader is not None and self._reader.held_bytes > PIPELINED_BYTES:
            # uvloop refuses to pause or resume what a failed write is closing
            transport = self._transport
            if not self._is_read_paused and transport is not None and not transport.is_closing():
                self._is_read_paused = True
                transport.pause_reading()
        if self._hold():
            return
        if self._request is None:
            self._close(lingers=False)
        else:  # what came behind it is forgotten, and so is all that follows
            self.closes, self._reader = True, None
            self._hold()

    def _hold(self) -> bool:
        """Account for the bytes that are kept, of unfinished requests and of the one under way; False: they are too many."""
        held = self._taken_bytes + (self._reader.held_bytes if self._reader is not None else 0)
        more, self._held_bytes = held - self._held_bytes, held
        self.front.held_bytes += more
        is_too_much = more > 0 and self.front.held_bytes > self.front.limits.held_bytes
        return not is_too_much or self.front.make_room()

    def _resume_reading(self) -> None:
        transport = self._transport
        if self._is_read_paused and transport is not None and not transport.is_closing():
            self._is_read_paused = False
            transport.resume_reading()

    # --- what goes out -------------------------------------------------------------------------------

    def answered(self) -> None:
        """The answer is complete."""
        self._part()
        if self.closes:
            has_unread = self._reader is None or not self._reader.is_between
            self._close(lingers=has_unread or self.front.is_draining)
        elif self.waits_for is not CLIENT:
            self._serve()

    def cut(self, *, is_hard: bool) -> None:
        """End the connection in an answer's midst: after what was written, or at once."""
        self._part()
        if is_hard:
            self._drop()
        else:
            self._close(lingers=False)

    def _part(self) -> Request | None:
        """Detach the request that was being answered, if any, and return it."""
        request, self._request = self._request, None
        if request is not None:
            self.front.busy -= 1
        self._taken_bytes = 0
        self._hold()
        return request

    def _refuse(self, reason: str) -> None:
        """Answer with the error of one of REASONS, and close."""
        status, message = REASONS[reason]
        self.front.responder.refused(status, reason, self._peer)
        body = error_body(status, message)
        framing = b"content-length: %d\r\nconnection: close\r\n" % len(body)
        if status == 503:
            framing = b"retry-after: 1\r\n" + framing
        head = answer_head(status, [JSON], date=self.front.date(), framing=framing)
        self.write(head + body)
        self._close(lingers=True)

    def _report(self, error: Exception) -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": "the handler failed at a request", "exception": error, "protocol": self}
        )

    # --- ends ----------------------------------------------------------------------------------------

    def _close(self, *, lingers: bool) -> None:
        """Close after what was written; or say that no more comes, and wait for the client to close."""
        transport = self._transport
        self._reader, self._taken_bytes = None, 0
        self._hold()
        self._wait_for(END)
        if transport is None or transport.is_closing():
            return
        self._lingers = lingers and transport.can_write_eof()
        if self._lingers:
            self._be_patient(self.front.clock())
            self._resume_reading()
            transport.write_eof()
        else:
            transport.close()

    def _drop(self) -> None:
        """Close at once, so that the client can't take it for an end."""
        self._wait_for(END)
        # now, not in `connection_lost`: an answer that ends before that would be recorded as complete
        request = self._part()
        if request is not None:
            request.leave()
        if self._transport is not None:
            with contextlib.suppress(OSError, AttributeError, ValueError):
                sock = self._transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._transport.abort()

    def shed(self) -> None:
        """End a connection whose request is not being answered, to make room for others."""
        if self.waits_for is BODY:
            self._refuse("body_timeout")
        else:
            self._close(lingers=False)

    def drain(self) -> None:
        """Answer no further request but those that have begun to come."""
        if self.waits_for is IDLE:
            self._close(lingers=False)

    # --- time ----------------------------------------------------------------------------------------

    def _wait_for(self, what: str) -> None:
        self.waits_for = what
        self.deadline_s = self.front.clock() + self.front.longest_s[what]
        if what in (CLIENT, END) and self._transport is not None:
            self._unread_bytes = unread_bytes(self._transport)

    def check(self, now: float) -> None:
        """Once a second: end what waits too long."""
        limits = self.front.limits
        if self._was_used:
            self._was_used = False
            if self.waits_for is IDLE:
                self.deadline_s = now + limits.idle_s
        elif self.waits_for in (CLIENT, END):
            # let a client go that reads nothing of what was written
            assert self._transport is not None
            before, self._unread_bytes = self._unread_bytes, unread_bytes(self._transport)
            if self._unread_bytes < before:
                self._be_patient(now)
            elif now >= self.deadline_s:
                self._drop()
        elif self.waits_for is ANSWER:
            if self._is_read_paused and self._transport and has_left(self._transport):
                self._drop()
        else:
            if self.waits_for is BODY and now >= self._late_s + LATE_S:
                wanted = SLOWEST_BODY_BYTES_S * (now - self._late_s)
                self._is_slow = self._held_bytes - self._late_bytes < wanted
                self._late_s, self._late_bytes = now, self._held_bytes
            if now < self.deadline_s:
                return
            if self.waits_for is IDLE:
                self._close(lingers=False)
            elif self.waits_for is HEAD:
                self._refuse("header_timeout")
            elif self._is_slow:
                self._refuse("body_timeout")

    def _be_patient(self, now: float) -> None:
        """Set how long to wait: for a client that has bytes to read `stall_s`, for one that only has to close LINGER_S."""
        is_read = self._lingers and self._unread_bytes <= 1  # the end itself counts as a byte
        self.deadline_s = now + (LINGER_S if is_read else self.front.limits.stall_s)

    @property
    def silent_since_s(self) -> float | None:
        """Since when it has sent no whole head; None: it is busy with something else."""
        if self.waits_for not in (IDLE, HEAD) or self._transport is None:
            return None
        if self._transport.get_write_buffer_size():
            return None
        if self._was_used:
            # it was answered within the last second: it is the last to be closed
            return math.inf
        return self.deadline_s - self.front.longest_s[self.waits_for]

    @property
    def stalled_bytes(self) -> int:
        """Bytes held for an incomplete request that has stalled, or comes too slowly; else 0."""
        if self.waits_for not in (HEAD, BODY):
            return 0
        stands = self.front.clock() >= self._came_s + STALLED_S
        return self._held_bytes if stands or (self._is_slow and self.waits_for is BODY) else 0


def unread_bytes(transport: asyncio.Transport) -> int:
    """Written, and not yet received by the client; the kernel's part with it, which alone may be megabytes.

    The loop hears of room in the kernel's buffer only when a third of it is free (800,000 bytes on loopback): a client that
    reads 10 kB/s would seem to stand still for a minute. Where the kernel can't be asked, its part counts as nothing.
    """
    kernel = bytes(4)
    with contextlib.suppress(OSError, AttributeError, ValueError):
        number = transport.get_extra_info("socket").fileno()
        kernel = fcntl.ioctl(number, termios.TIOCOUTQ, bytes(4))
    return transport.get_write_buffer_size() + int.from_bytes(kernel, "little")


def has_left(transport: asyncio.Transport) -> bool:
    """Whether the client closed its side behind bytes that are not read yet; for while reading pauses. Linux's TCP tells."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        sock = transport.get_extra_info("socket")
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _LEFT_STATES
    return False


def _nothing(data: object) -> None:
    del data
