"""Bytes of one direction of a connection, in order -> HTTP/1 messages; here the requests, in answers.py the answers.

httptools reads the heads. Bodies are framed here, because a hole of known length within one is stepped over, and the parser
wants every byte. Nothing is filled in or guessed: a request that misses a byte is delivered as damaged, without its body. Of a
head only the method, the path and what frames the body are kept.
"""

import re
import sys
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, ClassVar

from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserUpgrade,
    HttpRequestParser,
    HttpResponseParser,
)

from toolkit.capture.codings import NotDecodedError, decoded
from toolkit.capture.records import HttpRequest, Losses, MemoryBounds
from toolkit.units import counted

# what comes next; the first two are bytes of a body, `_left` of them
BODY, CHUNK, CHUNK_SIZE, CHUNK_END, TRAILERS, UNTIL_CLOSE, HEAD, LOST, IGNORED = range(9)

HEAD_END = re.compile(rb"\n\r?\n")
CHUNK_LINE = re.compile(rb"([0-9a-fA-F]{1,16})[ \t]*(?:;[^\n]*)?(?:\r\n?)?")
"""A chunk's size, or as much of its line as there is."""
FIELD_LENGTHS = frozenset(
    map(len, "x-cache cache-status content-length transfer-encoding content-encoding".split())
)
"""Of the names of headers that matter to anybody; most others are passed over by that."""
FRAMING_BYTES = 16 * 1024
"""Of a chunk's size with its extensions, or of all trailers; nearly nobody sends either."""
MESSAGE_BYTES = 500
"""What an unfinished message costs beside its bytes."""


class Messages:
    """Heads, bodies and holes of one direction; a message is open from the first byte of its head to its end or its loss."""

    __slots__ = (
        *("_began_at", "_fields", "_framing", "_hidden", "_left", "_limits", "_now", "_part"),
        *("_state", "held", "is_open", "waiting_bytes"),
    )
    BEGINNING: ClassVar[re.Pattern[bytes]]
    """What the first bytes of a message look like, however few there are."""
    FIRST_LINE: ClassVar[re.Pattern[bytes]]
    """What a segment begins with that may be read without having seen what came before it."""
    FIELDS: ClassVar[frozenset[bytes]]
    """Headers that matter."""

    def __init__(self, limits: MemoryBounds, state: int) -> None:
        self._limits, self._state = limits, state
        self.is_open = False
        """Whether a message is unfinished."""
        self.held = self.waiting_bytes = 0
        """Bytes that are kept; of these, what waits for the other direction."""
        self._began_at = self._now = 0.0
        """Of the message that is open: first and latest time."""
        self._part: bytearray | None = None
        """A head, or a line of a chunked body's framing, that is not whole yet."""
        self._left = self._framing = self._hidden = 0
        """Bytes of the body, or of its chunk, that are to come; of framing since the last one; of the body that holes hid."""
        self._fields: dict[bytes, bytes] = {}

    # what requests and answers do with it

    def begin(self) -> None:
        """The connection was seen from its start."""
        raise NotImplementedError

    def read_head(self, head: bytes) -> bool:
        """Take in a whole head, and say with `expect` what follows; False: it is none."""
        raise NotImplementedError

    def read_body(self, data: bytes) -> None:
        """A piece of the body, without the chunks' framing."""
        raise NotImplementedError

    def hide_body(self) -> None:
        """A hole hid part of the body, and nothing of its framing."""
        raise NotImplementedError

    def end_message(self) -> None:
        """The message is whole, but for what holes hid."""
        raise NotImplementedError

    def lose(self, missing: int | None) -> None:
        """Bytes are missing, and where the next message begins is not known; 0: those that are here make no sense."""
        raise NotImplementedError

    def refuse(self, data: bytes) -> None:
        """These bytes are no message, where one should begin."""
        raise NotImplementedError

    def pass_over(self, data: bytes) -> None:
        """A segment that cannot be read without what is missing before it."""

    # bytes and holes

    @property
    def is_between(self) -> bool:
        """Whether no message is open or waits."""
        return not (self.is_open or self.waiting_bytes)

    def starts(self, data: bytes) -> bool:
        """Whether a segment can be read without what came before it."""
        return bool(self.FIRST_LINE.match(data))

    def data(self, ts: float, data: bytes) -> None:
        """Read the next bytes, at least one."""
        # what waited behind a hole came before what filled it
        if ts > self._now or not self.is_open:
            self._now = ts
        if self._state == LOST:
            if not self.FIRST_LINE.match(data):
                self.pass_over(data)
                return
            self._state = HEAD
        at, end = 0, len(data)
        while at < end:
            state = self._state
            if state <= CHUNK:
                stop = min(at + self._left, end)
                self._left -= stop - at
                self.read_body(data[at:stop])
                at = stop
                if not self._left:
                    self._end_piece()
            elif state == HEAD:
                at = self._gather_head(data, at)
            elif state < UNTIL_CLOSE:
                at = self._read_chunk(data, at) or self._read_framing(data, at)
            else:
                if state == UNTIL_CLOSE:
                    self.read_body(data[at:])
                return

    def gap(self, ts: float, missing: int | None) -> None:
        """Bytes are missing here; None: nobody knows how many."""
        if self._state == IGNORED:
            return
        if ts > self._now or not self.is_open:
            self._now = ts
        if self._state <= CHUNK and missing is not None and missing <= self._left:
            self._hidden += missing
            self._left -= missing
            self.hide_body()
            if not self._left:
                self._end_piece()
        else:
            self.lose(missing)

    def expect(self, length: int | None, *, chunked: bool = False) -> None:
        """How the body is framed whose head was read: by its length, in chunks, or (None) by the connection's end."""
        self._left, self._hidden, self._framing = length or 0, 0, 0
        self._state = CHUNK_SIZE if chunked else UNTIL_CLOSE if length is None else BODY
        if self._state == BODY and not length:
            self._end_piece()

    def forget(self, state: int) -> None:
        """No message is open any more; `state`: what comes next."""
        self._state, self._part = state, None
        self.is_open, self.held = False, self.waiting_bytes

    def _end_piece(self) -> None:
        """The last byte of a chunk, or of a body."""
        if self._state == CHUNK:
            self._state = CHUNK_END
            return
        self.end_message()
        self.forget(HEAD)

    def _gather_head(self, data: bytes, at: int) -> int:
        """Wait for a head's end: one that comes byte by byte would cost the parser a copy for each. Where to read on."""
        earlier = self._part
        if earlier is None:
            while at < len(data) and data[at] in b"\r\n":  # some end a body with a line break
                at += 1
            if at == len(data):
                return at
            end = data.find(b"\r\n\r\n", at) + 4
            if end < 4 and (found := HEAD_END.search(data, at)):
                end = found.end()
            if end < 4 and not self.BEGINNING.match(data, at):
                self.refuse(data[at:])
                return len(data)
            self.is_open, self._began_at = True, self._now
            self.held += MESSAGE_BYTES
            if end < 4:
                self._part = bytearray(data[at:])
                self.held += len(self._part)
                return len(data)
            head = data[at:end]
        else:
            known = len(earlier)
            earlier += data
            found = HEAD_END.search(earlier, max(0, known - 2))
            if found is None:
                self.held += len(data)
                if len(earlier) > self._limits.header_bytes:
                    self.refuse(b"")
                return len(data)
            head, end = bytes(earlier[: found.end()]), found.end() - known
        self._part = None
        if self.read_head(head):
            return end
        self.refuse(head)
        if earlier is not None and self._state == LOST and self.FIRST_LINE.match(data):
            # what stood before it was no message, and it is one
            self._state = HEAD
            return 0
        return len(data)

    def parse(self, parser: HttpRequestParser | HttpResponseParser, head: bytes) -> bool:
        """Have httptools read a whole head; whether it is one."""
        self._fields = {}
        try:
            parser.feed_data(head)
        except HttpParserUpgrade:
            pass  # uvicorn and vLLM ignore the wish; where it was granted, what follows is no message
        except HttpParserCallbackError:
            raise
        except HttpParserError:
            return False
        return self._fields.get(b"content-length", b"0").isdigit()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by httptools: keep what matters, several of a name as one (RFC 9110, 5.3)."""
        if len(name) in FIELD_LENGTHS and (name := name.lower()) in self.FIELDS:
            earlier, value = self._fields.get(name), value.strip()
            self._fields[name] = value if earlier is None else b"%s, %s" % (earlier, value)

    def _read_chunk(self, data: bytes, at: int) -> int:
        """Read a chunk that is whole in its segment, as those of a stream are; where to read on, or 0 where none is."""
        if self._state != CHUNK_SIZE or self._part is not None:
            return 0
        line_end = data.find(b"\r\n", at, at + 18)
        digits = data[at:line_end]
        if line_end < 0 or not digits.isalnum():
            return 0
        try:
            end = line_end + 2 + int(digits, 16)
        except ValueError:
            return 0
        if end == line_end + 2 or not data.startswith(b"\r\n", end):
            return 0
        self._framing = 0
        self.read_body(data[line_end + 2 : end])
        return end + 2

    def _read_framing(self, data: bytes, at: int) -> int:
        """Read a line around the chunks of a body, or as much of it as there is; where to read on."""
        end = data.find(b"\n", at) + 1
        line = data[at : end or len(data)]
        self._framing += len(line)
        if self._part is not None:
            self.held -= len(self._part)
            line, self._part = bytes(self._part) + line, None
        size = None
        if self._state == CHUNK_SIZE:
            size = CHUNK_LINE.fullmatch(line)
            is_good = size is not None
        elif self._state == CHUNK_END:
            is_good = b"\r\n".startswith(line)
        else:
            is_good = not end or b":" in line or line == b"\r\n"
        if not is_good or self._framing > FRAMING_BYTES:
            self.lose(0)
            return len(data)
        if not end:
            self._part = bytearray(line)
            self.held += len(line)
            return len(data)

        if self._state == CHUNK_END:
            self._state = CHUNK_SIZE
        elif size is not None:
            self._left = int(size[1], 16)
            self._state = CHUNK if self._left else TRAILERS
            if self._left:
                self._framing = 0
        elif line == b"\r\n":
            self._end_piece()
        return end


# --- requests ---------------------------------------------------------------------------------------

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CLIENT_HELLO = re.compile(rb"\x16(?:\Z|\x03(?:\Z|[\x00-\x04]))")
"""A TLS connection's first bytes."""
RECORD = re.compile(rb"[\x14-\x17]\x03[\x00-\x04][\x00-\x48]", re.DOTALL)
"""A TLS record of at most 18 KiB: what a segment may begin with where the capture began in the middle."""


class Requests(Messages):
    """The requests of one client on one connection; `key`: addresses and ports as in the client's packets."""

    __slots__ = (
        *("_beheaded", "_body", "_body_bytes", "_deliver", "_encodings", "_hash", "_is_silent"),
        *("_key", "_losses", "_method", "_path", "_target"),
    )
    BEGINNING = re.compile(rb"[A-Z][A-Z-]{0,19}(?: |\Z)")
    FIRST_LINE = re.compile(
        rb"(?:\r\n){0,2}([A-Z][A-Z-]{2,19}) ([^\x00-\x20]+) HTTP/1\.[0-9]\r\n|" + re.escape(PREFACE)
    )
    FIELDS = frozenset((b"content-length", b"transfer-encoding", b"content-encoding"))

    def __init__(
        self,
        deliver: Callable[[HttpRequest], None],
        key: bytes,
        limits: MemoryBounds,
        losses: Losses,
    ) -> None:
        super().__init__(limits, LOST)
        self._deliver, self._key, self._losses = deliver, key, losses
        self._method: str | None = None
        self._path: str | None = None
        self._target = b""
        self._encodings = ""
        self._body: bytes | bytearray | None = None
        self._body_bytes = 0
        self._hash: blake2b | None = None
        """Of a body beyond the limit."""
        self._is_silent = True
        """Whether nothing was read so far, and nothing of that was counted."""
        self._beheaded: str | None = None
        """What was lost right before a request of which the beginning is missing, too."""

    def begin(self) -> None:
        """The connection was seen from its start."""
        self._state = HEAD if self._state == LOST else self._state

    def on_url(self, target: bytes) -> None:
        """Called by httptools."""
        self._target = target

    def read_head(self, head: bytes) -> bool:
        """Keep the method, the path, and what frames and encodes the body."""
        parser = HttpRequestParser(self)
        is_head = self.parse(parser, head) and not head.startswith(b"PRI ")
        target, self._target = self._target, b""
        if not is_head:
            return False
        self._method = sys.intern(parser.get_method().decode("latin-1"))
        self._path, fields = path_of(target), self._fields
        # httptools takes a Transfer-Encoding only if its last one is `chunked`
        transfer = fields.get(b"transfer-encoding")
        self._encodings = ""
        if transfer is not None or b"content-encoding" in fields:
            both = b"%s,%s" % (fields.get(b"content-encoding", b""), transfer or b"")
            names = [name.strip() for name in both.decode("latin-1").lower().split(",")]
            self._encodings = ",".join(name for name in names if name not in ("", "chunked"))
        self._body_bytes, self._is_silent = 0, False
        self.expect(int(fields.get(b"content-length", b"0")), chunked=transfer is not None)
        return True

    def read_body(self, data: bytes) -> None:
        """Keep it; beyond the limit only its hash."""
        self._body_bytes += len(data)
        if self._hidden:
            return
        if self._body_bytes > self._limits.body_bytes:
            if self._hash is None:
                self._hash = blake2b(self._body or b"", digest_size=16)
                self._body, self.held = None, MESSAGE_BYTES
            self._hash.update(data)
            return
        self.held += len(data)
        if self._body is None:
            self._body = data
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += data

    def hide_body(self) -> None:
        """What was kept of the body is of no use."""
        self._body = self._hash = None
        self.held = MESSAGE_BYTES

    def end_message(self) -> None:
        """Deliver a request with its body."""
        limit = self._limits.body_bytes
        if self._hidden:
            self._hand_over(damaged=True, problem=_lost(self._hidden))
        elif self._hash is not None:
            problem = f"its body is longer than {limit:,} bytes"
            self._hand_over(problem=problem, body_hash=self._hash.digest())
        elif self._body is None or not self._encodings:
            self._hand_over(body=None if self._body is None else bytes(self._body))
        else:
            body = bytes(self._body)
            try:
                plain = decoded(body, self._encodings, limit)
            except NotDecodedError as problem:
                # the hash of its bytes as they were sent
                digest = blake2b(body, digest_size=16).digest()
                self._hand_over(problem=f"its body can't be decoded: {problem}", body_hash=digest)
            else:
                self._body_bytes = len(plain)
                self._hand_over(body=plain)

    def lose(self, missing: int | None) -> None:
        """Deliver what is open as damaged, and go on where a segment begins with a request."""
        if self.is_open:
            hidden = 0 if self._state == HEAD else self._hidden
            lost = None if missing is None else missing + hidden
            problem = "its body's framing is broken" if lost == 0 else _lost(lost)
            self._is_silent = False
            self._hand_over(damaged=True, problem=problem)
        elif self._state != LOST:
            self._beheaded = _lost(missing)
        self.forget(LOST)

    def refuse(self, data: bytes) -> None:
        """Count what is no request."""
        if self._is_silent and CLIENT_HELLO.match(data):
            self._losses.encrypted += 1
            self.forget(IGNORED)
            return
        is_http2 = data.startswith(PREFACE[:12])
        self._losses.http2 += is_http2
        self._losses.unparsed += 1
        self._is_silent, self._beheaded = False, None
        self.forget(IGNORED if is_http2 else LOST)

    def pass_over(self, data: bytes) -> None:
        """The rest of a request whose head is missing; or what never was one."""
        if self._beheaded is not None:
            self._method = self._path = None
            self._began_at, self._body_bytes = self._now, 0
            self._hand_over(damaged=True, problem=self._beheaded)
        elif self._is_silent:
            self._is_silent = False
            if RECORD.match(data):
                self._losses.encrypted += 1
            else:
                self._losses.unparsed += 1

    def end(self, why: str) -> None:
        """Nothing more comes; a request that is open is damaged, for the reason given."""
        if self.is_open:
            is_hidden = self._state != HEAD and self._hidden
            problem = f"{_lost(self._hidden)}, then {why}" if is_hidden else why
            self._hand_over(damaged=True, problem=problem)
        self.forget(IGNORED)

    def _hand_over(self, **facts: Any) -> None:
        """Deliver a request; of one whose head is not whole, its first line may be."""
        key = self._key
        address = (len(key) - 4) // 2
        if self._state == HEAD:
            line = self.FIRST_LINE.match(self._part or b"")
            self._method = line[1].decode("ascii") if line else None
            self._path = path_of(line[2]) if line else None
            self._body_bytes = 0
        request = HttpRequest(
            ts=self._began_at,
            ts_last=self._now,
            client=key[:address],
            client_port=int.from_bytes(key[-4:-2], "big"),
            server=key[address : 2 * address],
            server_port=int.from_bytes(key[-2:], "big"),
            method=self._method,
            path=self._path,
            body_bytes=self._body_bytes,
            **facts,
        )
        self._body = self._hash = self._beheaded = None
        self._deliver(request)


def path_of(target: bytes) -> str:
    """Without scheme, host and query: each may hold a secret (`user:password@`, `?key=`)."""
    scheme, found, rest = target.partition(b"://")
    if found and scheme.isalnum():
        target = b"/" + rest.partition(b"/")[2]
    path = target.partition(b"?")[0].partition(b"#")[0]
    if not path.startswith(b"/"):  # CONNECT names a host
        path = path.rpartition(b"@")[2]
    return path.decode("ascii", "backslashreplace")


def _lost(missing: int | None) -> str:
    """A hole in words."""
    return "bytes lost" if missing is None else f"{counted(missing, 'byte')} lost"
