"""One direction of a connection, bytes in order -> HTTP/1 requests; httptools parses, this file keeps it alive.

It never fills a hole and never guesses: a request that misses a byte is delivered as damaged, without its body.
"""

import re
from collections.abc import Callable

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade

from toolkit.capture.messages import CaptureState, Ends, Message
from toolkit.capture.records import HttpRequest
from toolkit.units import counted

REQUEST_LINE = re.compile(rb"(?:\r\n){0,2}([A-Z][A-Z-]{2,19}) ([^\x00-\x20]+) HTTP/1\.[0-9]\r\n")
"""What a segment begins with that may be read without having seen what came before it."""
BEGINNING = re.compile(rb"[A-Z][A-Z-]{0,19}(?: |\Z)")
"""What the first bytes of a request look like, however few there are."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HELLO = re.compile(rb"\x16(?:\Z|\x03(?:\Z|[\x00-\x04]))")
"""A TLS connection's first bytes."""
RECORD = re.compile(rb"[\x14-\x17]\x03[\x00-\x04][\x00-\x48]", re.DOTALL)
"""A TLS record of at most 18 KiB: what a segment may begin with where the capture began in the middle."""

OPEN, RESYNC, SKIP, IGNORE = range(4)
"""At or in a message; waiting for a segment that begins with one; in a body with a hole; not HTTP/1 at all."""

FRAMING_BYTES = 16 * 1024
"""Of a chunk's size with its extensions, or of all trailers; nearly nobody sends either."""

PARSER_BYTES = 1024
"""What an unfinished request costs beside its bytes."""


class ConnectionRequests:
    """The requests of one client on one connection, from bytes in order and from holes of known or unknown length.

    `key`: addresses and ports as in the packets.
    """

    __slots__ = (
        "_began_at",
        "_beheaded",
        "_fed",
        "_framing",
        "_head",
        "_hurt",
        "_last_at",
        "_lost",
        "_message",
        "_mode",
        "_read",
        "_silent",
        "_skip",
        "deliver",
        "ends",
        "held",
        "shared",
    )

    def __init__(
        self, deliver: Callable[[HttpRequest], None], key: bytes, shared: CaptureState
    ) -> None:
        self.ends = Ends(key)
        self.deliver, self.shared = deliver, shared
        self.held = 0
        """Bytes of an unfinished request."""
        self._mode = RESYNC
        self._message: Message | None = None
        self._head: bytearray | None = None
        self._fed = 0
        self._began_at = self._last_at = 0.0
        self._hurt: HttpRequest | None = None
        self._skip = self._lost = 0
        self._read = self._framing = 0
        """Of a chunked body so far, and what came since then that was none of it."""
        self._silent = True
        """Whether nothing of it was read so far, and nothing of that was told."""
        self._beheaded: str | None = None
        """What was lost right before a request of which the beginning is missing, too."""

    @property
    def between(self) -> bool:
        """Whether no request is unfinished."""
        return self._message is None and self._head is None and self._hurt is None

    def starts(self, data: bytes) -> bool:
        """Whether a segment can be read without what came before it."""
        return bool(REQUEST_LINE.match(data)) or data.startswith(PREFACE)

    def begin(self) -> None:
        """The connection was seen from its start."""
        self._mode = OPEN

    # --- bytes ------------------------------------------------------------------------------------

    def data(self, ts: float, data: bytes) -> None:
        """Read the next bytes; `data` is not empty."""
        message = self._message
        if message is None:
            if self._mode or self._head is not None or b"\n\r\n" not in data:
                self._unusual(ts, data)
                return
            message = self.shared.message(self.ends, ts)
        elif message.in_head:
            self._gather(ts, data)
            return
        elif ts > message.now:  # what waited behind a hole came before what filled it
            message.now = ts
        self._feed(message, data)

    def _feed(self, message: Message, data: bytes) -> None:
        stopped: HttpParserUpgrade | HttpParserError | None = None
        try:
            message.parser.feed_data(data)
        except (HttpParserUpgrade, HttpParserError) as reason:
            stopped = reason
        if message.done:
            self._silent = False
            for request in message.done:
                self.deliver(request)
            message.done.clear()
        if stopped is None:
            self._rest(message, data)
        elif isinstance(stopped, HttpParserUpgrade):
            self._upgraded(message, data[stopped.args[0] :])
        elif isinstance(stopped, HttpParserCallbackError):
            raise stopped
        else:
            self._stumbled(message, data)

    def _rest(self, message: Message, data: bytes) -> None:
        """Keep the parser only while it is in the middle of a message."""
        if not message.open:
            self._forget()
            self.shared.keep(message)
            return
        self._message = message
        self.held = PARSER_BYTES + (len(message.body) if message.body else 0)
        if message.in_head:
            self._head = bytearray(data[-3:])
            self._began_at = self._last_at = message.now
            self._fed = len(self._head)
            self.held += len(data)
        elif message.chunked:
            self._bound_framing(message, len(data))

    def _bound_framing(self, message: Message, fed: int) -> None:
        """Trailers grow in the parser, with a copy for each segment."""
        if message.body_bytes != self._read:
            self._read, self._framing = message.body_bytes, 0
            return
        self._framing += fed
        if self._framing > FRAMING_BYTES:
            self._damage(message, "its body's framing is broken")
            self._forget()
            self._mode = RESYNC

    def _unusual(self, ts: float, data: bytes) -> None:
        if self._mode == OPEN:
            self._gather(ts, data)
        elif self._mode == RESYNC:
            self._resync(ts, data)
        elif self._mode == SKIP:
            self._skipped(ts, data)

    def _gather(self, ts: float, data: bytes) -> None:
        """Wait for the head's end: a head that comes byte by byte would cost the parser a copy for each."""
        head = self._head
        if head is None:
            data = data.lstrip(b"\r\n")  # some clients end a body with a line break
            if not data:
                return
            if not BEGINNING.match(data):
                self._refuse(data)
                return
            head = self._head = bytearray()
            self._fed = 0
            self._began_at = self._last_at = ts
        searched = max(0, len(head) - 3)
        head += data
        self._last_at = max(ts, self._last_at)
        self.held += len(data)
        if head.find(b"\n\r\n", searched) < 0 and head.find(b"\n\n", searched) < 0:
            if len(head) > self.shared.limits.header_bytes:
                self._drop_head()
            return
        self._head = None
        message = self._message or self.shared.message(self.ends, self._began_at)
        message.now = max(self._last_at, message.now)
        self._feed(message, bytes(head[self._fed :]))
        # what stood before it was no request, and it is one
        if self._mode == RESYNC and len(head) > len(data) and REQUEST_LINE.match(data):
            self._resync(ts, data)

    def _drop_head(self) -> None:
        self._forget()
        self._mode = RESYNC
        self._silent = False
        self.shared.losses.unparsed += 1

    def _resync(self, ts: float, data: bytes) -> None:
        """Go on where a segment begins with a request."""
        if self.starts(data):
            self._mode = OPEN
            self._beheaded = None
            self.data(ts, data)
        elif self._beheaded is not None:
            problem, self._beheaded = self._beheaded, None
            self.deliver(damaged(self.ends.request(ts, ts), problem))
        elif self._silent:
            self._silent = False
            if RECORD.match(data):
                self.shared.losses.encrypted += 1
            else:
                self.shared.losses.unparsed += 1

    # --- what is no HTTP/1 ------------------------------------------------------------------------

    def _refuse(self, data: bytes) -> None:
        """Bytes that begin no request, where one should begin."""
        losses = self.shared.losses
        if self._silent and HELLO.match(data):
            self._mode = IGNORE
            losses.encrypted += 1
            return
        losses.unparsed += 1
        self._silent = False
        self._mode = RESYNC
        if data.startswith(PREFACE[:12]):
            self._mode = IGNORE
            losses.http2 += 1

    def _stumbled(self, message: Message, data: bytes) -> None:
        """The parser is dead. A request whose head was read is damaged, anything else was none."""
        head_read = message.open and not message.in_head
        if head_read:
            self._damage(message, "its body's framing is broken")
        self._forget()
        message.open = False
        if not head_read:
            self._refuse(data)
        else:
            self._mode = RESYNC

    def _upgraded(self, message: Message, rest: bytes) -> None:
        """Read on as HTTP/1.1: uvicorn and vLLM ignore the wish; where it was granted, what follows is no request."""
        self._message = None
        self.held = 0
        if not message.open:
            if rest:
                self.data(message.now, rest)
            return
        message.open = False
        framing = (
            f"content-length: {message.length}"
            if not message.chunked
            else "transfer-encoding: chunked"
        )
        again = self.shared.message(self.ends, message.began_at)
        again.now = message.now
        again.parser.feed_data(
            b"%s %s HTTP/1.1\r\n%s\r\n\r\n"
            % (message.parser.get_method(), message.target, framing.encode())
        )
        again.encoding = message.encoding
        self._feed(again, rest) if rest else self._rest(again, rest)

    # --- holes and ends ---------------------------------------------------------------------------

    def gap(self, ts: float, missing: int | None) -> None:  # noqa: ARG002 - as all readers
        """Bytes are missing here; None: nobody knows how many."""
        if self._mode == IGNORE:
            return
        if self._mode == SKIP:
            self._skip_hole(missing)
            return
        message, head = self._message, self._head
        if not self.between:
            self._silent = False
        if message is not None and not message.in_head:
            self._hurt_body(message, missing)
            return
        if head is not None:
            self._hurt_head(lost(missing))
        elif self._mode == OPEN:
            self._beheaded = lost(missing)
        self._forget()
        self._mode = RESYNC

    def _hurt_body(self, message: Message, missing: int | None) -> None:
        """With a Content-Length it is known where the request ends, if the hole ends before that."""
        left = (
            None
            if message.length is None or message.chunked
            else message.length - message.body_bytes
        )
        if missing is None or left is None or missing > left:
            self._damage(message, lost(missing))
            self._forget()
            self._mode = RESYNC
            return
        request = message.request()
        self._forget()
        self._hurt = damaged(request, lost(missing))
        self._lost, self._skip, self._mode = missing, left - missing, SKIP
        self.held = PARSER_BYTES
        if not self._skip:
            self._finish_hurt(lost(missing))

    def _skipped(self, ts: float, data: bytes) -> None:
        request = self._hurt
        assert request is not None
        request.ts_last = max(ts, request.ts_last)
        taken = min(len(data), self._skip)
        self._skip -= taken
        request.body_bytes += taken
        if not self._skip:
            self._finish_hurt(lost(self._lost))
            if taken < len(data):
                self.data(ts, data[taken:])

    def _skip_hole(self, missing: int | None) -> None:
        if missing is None or missing > self._skip:
            self._finish_hurt(lost(None if missing is None else self._lost + missing))
            self._mode = RESYNC
            return
        self._skip -= missing
        self._lost += missing
        if not self._skip:
            self._finish_hurt(lost(self._lost))

    def _finish_hurt(self, problem: str) -> None:
        request, self._hurt = self._hurt, None
        assert request is not None
        self._mode = OPEN
        self.held = 0
        self.deliver(damaged(request, problem))

    def _hurt_head(self, problem: str) -> None:
        """A request of which not even the head is whole; its first line may be."""
        head = bytes(self._head or b"")
        line = REQUEST_LINE.match(head)
        message = self._message
        if message is not None:  # it began behind another one, in the parser
            self._damage(message, problem)
        else:
            request = self.ends.request(self._began_at, self._last_at)
            if line:
                request.method = line[1].decode("ascii")
                request.path = self.shared.path(line[2])
            self.deliver(damaged(request, problem))

    def _damage(self, message: Message, problem: str) -> None:
        request = message.request()
        if message.in_head:  # its first line may be cut
            request.method = request.path = None
        self.deliver(damaged(request, problem))

    def end(self, why: str) -> None:
        """Nothing more comes; an unfinished request is damaged, for the reason given."""
        message = self._message
        if self._hurt is not None:
            self._finish_hurt(f"{lost(self._lost)}, then {why}")
        elif message is not None and not message.in_head:
            self._damage(message, why)
        elif self._head is not None:
            self._hurt_head(why)
        self._forget()
        self._mode = IGNORE

    def _forget(self) -> None:
        """Let go of what is unfinished; a parser in the middle of a message is of no more use."""
        self._read = self._framing = 0
        self._message = None
        self._head = None
        self.held = 0


def damaged(request: HttpRequest, problem: str) -> HttpRequest:
    """The request, which has no body so far, told as damaged."""
    request.damaged = True
    request.problem = problem
    return request


def lost(missing: int | None) -> str:
    """A hole in words."""
    if missing is None:
        return "bytes lost"
    return f"{counted(missing, 'byte')} lost"
