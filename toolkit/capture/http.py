"""One direction of a connection, bytes in order -> HTTP/1 requests; httptools parses, this file keeps it alive.

It never fills a hole and never guesses: a request that misses a byte is delivered as damaged, without its body. Of a head it
keeps the method, the path and what frames the body; a header's value is gone when its request is.
"""

import re
import zlib
from collections.abc import Callable
from hashlib import blake2b

import brotli  # type: ignore[import-untyped]
import zstandard
from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserUpgrade,
    HttpRequestParser,
)

from toolkit.capture.records import HttpRequest, Losses, MemoryBounds
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

OPEN, RESYNC, IGNORE = range(3)
"""At or in a message; waiting for a segment that begins with one; not HTTP/1 at all."""

FRAMING_BYTES = 16 * 1024
"""Of a chunk's size with its extensions, or of all trailers; nearly nobody sends either."""
PARSER_BYTES = 1024
"""What an unfinished request costs beside its bytes."""
FRAMING_BROKEN = "its body's framing is broken"

METHODS = {
    name.encode(): name for name in "GET POST PUT DELETE HEAD OPTIONS PATCH CONNECT TRACE".split()
}
FRAMING_LENGTHS = frozenset(
    map(len, ("content-length", "transfer-encoding", "content-encoding", "upgrade"))
)


class Requests:
    """The requests of one client on one connection, from bytes in order and from holes of known or unknown length.

    `key`: addresses and ports as in the client's packets.
    """

    __slots__ = (
        *("_beheaded", "_began_at", "_deliver", "_fed", "_framing", "_head", "_key", "_last_at"),
        *("_losses", "_message", "_mode", "_read", "_silent", "held", "limits"),
    )

    def __init__(
        self,
        deliver: Callable[[HttpRequest], None],
        key: bytes,
        limits: MemoryBounds,
        losses: Losses,
    ) -> None:
        self._deliver, self._key, self.limits, self._losses = deliver, key, limits, losses
        self.held = 0
        """Bytes of an unfinished request."""
        self._mode = RESYNC
        self._message: _Message | None = None
        """Only in the middle of a message: of 200,000 connections hardly any is."""
        self._head: bytearray | None = None
        self._fed = 0
        """Bytes of the head that the parser had before."""
        self._began_at = self._last_at = 0.0
        self._read = self._framing = 0
        """Of a chunked body so far, and what came since then that was none of it."""
        self._silent = True
        """Whether nothing of it was read so far, and nothing of that was told."""
        self._beheaded: str | None = None
        """What was lost right before a request of which the beginning is missing, too."""

    @property
    def between(self) -> bool:
        """Whether no request is unfinished."""
        return self._message is None and self._head is None

    def starts(self, data: bytes) -> bool:
        """Whether a segment can be read without what came before it."""
        return bool(REQUEST_LINE.match(data)) or data.startswith(PREFACE)

    def begin(self) -> None:
        """The connection was seen from its start."""
        self._mode = OPEN

    def request(self, ts: float, ts_last: float) -> HttpRequest:
        """A request of which only its place is known."""
        key = self._key
        address = (len(key) - 4) // 2
        return HttpRequest(
            ts=ts,
            ts_last=ts_last,
            client=key[:address],
            client_port=int.from_bytes(key[-4:-2], "big"),
            server=key[address : 2 * address],
            server_port=int.from_bytes(key[-2:], "big"),
        )

    # --- bytes ------------------------------------------------------------------------------------

    def data(self, ts: float, data: bytes) -> None:
        """Read the next bytes; `data` is not empty."""
        message = self._message
        if message is not None and not message.in_head:
            # what waited behind a hole came before what filled it
            message.now = max(ts, message.now)
            self._feed(message, data)
        elif self._mode == OPEN:
            if message is None and self._head is None and b"\n\r\n" in data:
                self._feed(_Message(self, ts), data)
            else:
                self._gather(ts, data)
        elif self._mode == RESYNC:
            self._resync(ts, data)

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
            if len(head) > self.limits.header_bytes:
                self._forget(RESYNC)
                self._silent = False
                self._losses.unparsed += 1
            return
        self._head = None
        message = self._message or _Message(self, self._began_at)
        message.now = max(self._last_at, message.now)
        self._feed(message, bytes(head[self._fed :]))
        # what stood before it was no request, and it is one
        if self._mode == RESYNC and len(head) > len(data) and REQUEST_LINE.match(data):
            self._resync(ts, data)

    def _feed(self, message: "_Message", data: bytes) -> None:
        broken, upgraded_at = False, -1
        try:
            message.parser.feed_data(data)
        except HttpParserUpgrade as reason:
            upgraded_at = reason.args[0]
        except HttpParserCallbackError:
            raise
        except HttpParserError:
            broken = True
        if message.done:
            self._silent = False
            for request in message.done:
                self._deliver(request)
            message.done.clear()

        if broken:
            # the parser is dead; a request whose head was read is damaged, anything else was none
            is_request = message.open and not message.in_head
            if is_request:
                self._damage(message, _lost(message.lost) if message.lost else FRAMING_BROKEN)
            self._message = message
            self._forget(RESYNC)
            if not is_request:
                self._refuse(data)
        elif upgraded_at >= 0:
            self._read_on(message, data[upgraded_at:])
        elif not message.open:
            self._message = message
            self._forget(OPEN)
        else:
            self._message = message
            self.held = PARSER_BYTES + (len(message.body) if message.body else 0)
            if message.in_head:
                self._head = bytearray(data[-3:])
                self._began_at = self._last_at = message.now
                self._fed = len(self._head)
                self.held += len(data)
            elif message.chunked:
                # trailers grow in the parser, with a copy for each segment
                self._framing = self._framing + len(data) if message.body_bytes == self._read else 0
                self._read = message.body_bytes
                if self._framing > FRAMING_BYTES:
                    self._damage(message, FRAMING_BROKEN)
                    self._forget(RESYNC)

    def _read_on(self, message: "_Message", rest: bytes) -> None:
        """After `Upgrade` as HTTP/1.1: uvicorn and vLLM ignore the wish; where it was granted, what follows is no request."""
        self._message = message
        is_open, method, target = message.open, message.parser.get_method(), message.target
        self._forget(self._mode)
        if is_open:
            framing = "transfer-encoding: chunked"
            if not message.chunked:
                framing = f"content-length: {message.length}"
            again = _Message(self, message.began_at)
            again.now = message.now
            head = b"%s %s HTTP/1.1\r\n%s\r\n\r\n" % (method, target, framing.encode())
            again.parser.feed_data(head)
            again.encoding = message.encoding
            self._feed(again, rest)
        elif rest:
            self.data(message.now, rest)

    def _resync(self, ts: float, data: bytes) -> None:
        """Go on where a segment begins with a request."""
        if self.starts(data):
            self._mode = OPEN
            self._beheaded = None
            self.data(ts, data)
        elif self._beheaded is not None:
            problem, self._beheaded = self._beheaded, None
            self._deliver(_damaged(self.request(ts, ts), problem))
        elif self._silent:
            self._silent = False
            if RECORD.match(data):
                self._losses.encrypted += 1
            else:
                self._losses.unparsed += 1

    def _refuse(self, data: bytes) -> None:
        """Bytes that begin no request, where one should begin."""
        if self._silent and HELLO.match(data):
            self._mode = IGNORE
            self._losses.encrypted += 1
            return
        self._losses.unparsed += 1
        self._silent = False
        self._mode = RESYNC
        if data.startswith(PREFACE[:12]):
            self._mode = IGNORE
            self._losses.http2 += 1

    # --- holes and ends ---------------------------------------------------------------------------

    def gap(self, ts: float, missing: int | None) -> None:  # noqa: ARG002 - as all readers
        """Bytes are missing here; None: nobody knows how many."""
        if self._mode == IGNORE:
            return
        message = self._message
        if not self.between:
            self._silent = False
        if message is not None and not message.in_head:
            message.body = message.hashed = None
            if missing is not None and (message.chunked or missing <= message.left):
                # What stands for the lost bytes is framing nowhere: the parser goes on behind them, or breaks where the hole
                # reaches beyond a chunk.
                message.lost += missing
                message.is_padding = True
                self._feed(message, bytes(missing))
                message.is_padding = False
            else:
                self._damage(message, _lost(None if missing is None else message.lost + missing))
                self._forget(RESYNC)
            return
        if self._head is not None:
            self._hurt_head(_lost(missing))
        elif self._mode == OPEN:
            self._beheaded = _lost(missing)
        self._forget(RESYNC)

    def _hurt_head(self, problem: str) -> None:
        """A request of which not even the head is whole; its first line may be."""
        if self._message is not None:  # it began behind another one, in the parser
            self._damage(self._message, problem)
            return
        request = self.request(self._began_at, self._last_at)
        line = REQUEST_LINE.match(bytes(self._head or b""))
        if line:
            request.method, request.path = line[1].decode("ascii"), path_of(line[2])
        self._deliver(_damaged(request, problem))

    def _damage(self, message: "_Message", problem: str) -> None:
        request = message.request()
        if message.in_head:  # its first line may be cut
            request.method = request.path = None
        self._deliver(_damaged(request, problem))

    def end(self, why: str) -> None:
        """Nothing more comes; an unfinished request is damaged, for the reason given."""
        message = self._message
        if message is not None and not message.in_head:
            self._damage(message, f"{_lost(message.lost)}, then {why}" if message.lost else why)
        elif self._head is not None:
            self._hurt_head(why)
        self._forget(IGNORE)

    def _forget(self, mode: int) -> None:
        """Let go of what is unfinished, and of the parser, which holds its callbacks: only a search would find that garbage."""
        if self._message is not None:
            del self._message.parser
            self._message = None
        self._read = self._framing = self.held = 0
        self._head = None
        self._mode = mode


class _Message:
    """httptools' callbacks, and the one request that they are in the middle of."""

    __slots__ = (
        *("began_at", "body", "body_bytes", "chunked", "connection", "done", "encoding", "hashed"),
        *(
            "in_head",
            "is_padding",
            "left",
            "length",
            "lost",
            "now",
            "open",
            "parser",
            "target",
            "upgrade",
        ),
    )

    def __init__(self, connection: Requests, began_at: float) -> None:
        self.connection = connection
        self.now = self.began_at = began_at
        self.open = self.in_head = self.is_padding = False
        self.done: list[HttpRequest] = []
        """Whole requests of the bytes just fed; an exception raised in a callback would be lost in httptools."""
        self.target = b""
        self.parser = HttpRequestParser(self)
        # a server that closes does not read on; we tell what was sent
        self.parser.set_dangerous_leniencies(lenient_keep_alive=True)

    def on_message_begin(self) -> None:
        """The first byte of a method."""
        self.open = self.in_head = True
        self.upgrade = self.chunked = False
        self.target = b""
        self.body: bytes | bytearray | None = None
        self.hashed: blake2b | None = None
        self.body_bytes = self.lost = 0
        self.encoding: str | None = None
        self.length: int | None = None
        self.left = 0

    def on_url(self, target: bytes) -> None:
        """A piece of the target."""
        self.target = self.target + target if self.target else target

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep what frames the body; by length first, as this is called for each header of each request."""
        if len(name) not in FRAMING_LENGTHS or not self.in_head:
            return  # or a trailer
        name = name.lower()
        encodings: list[str] = []
        if name == b"content-length":
            self.length = int(value) if len(value) < 20 else None
        elif name == b"transfer-encoding":
            self.chunked = True
            codings = [coding.strip() for coding in value.decode("latin-1").lower().split(",")]
            encodings = [coding for coding in codings if coding != "chunked"]
        elif name == b"content-encoding":
            encodings = [value.decode("latin-1")]
        elif name == b"upgrade":
            self.upgrade = True
        if encodings:
            self.encoding = ",".join([*([self.encoding] if self.encoding else []), *encodings])

    def on_headers_complete(self) -> None:
        """The head is over; what header comes now is a trailer."""
        self.in_head = False
        self.left = self.length or 0

    def on_body(self, data: bytes) -> None:
        """A piece of the body, without the chunks' framing; beyond the limit only its hash is kept."""
        self.left -= len(data)
        if self.is_padding:
            return
        self.body_bytes += len(data)
        if self.lost:
            return
        if self.body_bytes > self.connection.limits.body_bytes:
            if self.hashed is None:
                self.hashed = blake2b(self.body or b"", digest_size=16)
                self.body = None
            self.hashed.update(data)
        elif self.body is None:
            self.body = data
        else:
            if isinstance(self.body, bytes):
                self.body = bytearray(self.body)
            self.body += data

    def on_message_complete(self) -> None:
        """A whole request."""
        if self.upgrade and (self.length or self.chunked) and self.parser.should_upgrade():
            return  # httptools leaves its body out; it is read again, see `Requests._read_on`
        request = self.request()
        limit = self.connection.limits.body_bytes
        if self.lost:
            _damaged(request, _lost(self.lost))
        elif self.hashed is not None:
            request.body_hash = self.hashed.digest()
            request.problem = f"its body is longer than {limit:,} bytes"
        elif self.body is not None:
            body = self.body if isinstance(self.body, bytes) else bytes(self.body)
            try:
                request.body = decoded(body, self.encoding, limit) if self.encoding else body
            except NotDecodedError as problem:
                # the hash of its bytes as they were sent
                request.body_hash = blake2b(body, digest_size=16).digest()
                request.problem = f"its body can't be decoded: {problem}"
            else:
                request.body_bytes = len(request.body)
        self.done.append(request)
        self.open = False
        self.body = None
        self.target = b""
        self.began_at = self.now  # of the next one, if these bytes hold it

    def request(self) -> HttpRequest:
        """What is known so far, without the body."""
        request = self.connection.request(self.began_at, self.now)
        method = self.parser.get_method()
        request.method = METHODS.get(method) or method.decode("latin-1")
        request.path = path_of(self.target)
        request.body_bytes = self.body_bytes
        return request


def path_of(target: bytes) -> str:
    """Without scheme, host and query: each may hold a secret (`user:password@`, `?key=`)."""
    scheme, found, rest = target.partition(b"://")
    if found and scheme.isalnum():
        target = b"/" + rest.partition(b"/")[2]
    path = target.partition(b"?")[0].partition(b"#")[0]
    if not path.startswith(b"/"):  # CONNECT names a host
        path = path.rpartition(b"@")[2]
    return path.decode("ascii", "backslashreplace")


def _damaged(request: HttpRequest, problem: str) -> HttpRequest:
    """The request, which has no body so far, told as damaged."""
    request.damaged = True
    request.problem = problem
    return request


def _lost(missing: int | None) -> str:
    """A hole in words."""
    return "bytes lost" if missing is None else f"{counted(missing, 'byte')} lost"


# --- what a body holds under its Content-Encoding ---------------------------------------------------

CODINGS = 4
"""Encodings one around the other; nobody sends two, and each costs a body of the limit's size."""
WINDOW_BYTES = 8 * 1024 * 1024
"""Largest window of a zstd frame: its sender chooses it, the decoder allocates it, and RFC 9659 allows no more."""
MEMBERS = 16
"""Of one gzip or zstd body; each costs a copy of what follows it, and one of 20 bytes is a whole one."""
ENDS_EARLY = "its encoding ends early"


class NotDecodedError(ValueError):
    """Its text says why."""


def decoded(body: bytes, encodings: str, limit: int) -> bytes:
    """The body without its encodings, `gzip` or `gzip, br` in the order in which they were applied.

    It never grows beyond the limit by more than tells it: a few kilobytes may stand for gigabytes.
    """
    names = [name.strip().lower() for name in encodings.split(",")]
    names = [name for name in names if name not in ("", "identity")]
    if len(names) > CODINGS:
        raise NotDecodedError(f"{len(names)} encodings one around the other")
    for name in reversed(names):
        decode = DECODERS.get(name)
        if decode is None:
            raise NotDecodedError("an encoding that is not known here")
        try:
            members, size = [], 0
            while True:
                plain, body = decode(body, limit - size)
                members.append(plain)
                size += len(plain)
                if not body or size > limit:
                    break
                if len(members) == MEMBERS:
                    raise NotDecodedError(f"it has more than {MEMBERS} members")
            body = b"".join(members)
        except (zlib.error, brotli.error, zstandard.ZstdError):
            raise NotDecodedError(f"it is not {name}") from None
        if len(body) > limit:
            raise NotDecodedError(f"it is longer than {limit:,} bytes")
    return body


# each decodes the first member to at most `limit` + 1 bytes, and returns what comes after it, too


def _gzip(body: bytes, limit: int, window: int = zlib.MAX_WBITS | 16) -> tuple[bytes, bytes]:
    stream = zlib.decompressobj(window)
    plain = stream.decompress(body, limit + 1)
    if not stream.eof and len(plain) <= limit:
        raise NotDecodedError(ENDS_EARLY)
    return plain, stream.unused_data


def _deflate(body: bytes, limit: int) -> tuple[bytes, bytes]:
    """RFC 9110 means zlib's format; some senders leave its header out."""
    try:
        plain, rest = _gzip(body, limit, zlib.MAX_WBITS)
    except zlib.error:
        plain, rest = _gzip(body, limit, -zlib.MAX_WBITS)
    if rest:
        raise NotDecodedError("bytes follow its encoding's end")
    return plain, b""


def _brotli(body: bytes, limit: int) -> tuple[bytes, bytes]:
    stream = brotli.Decompressor()
    plain: bytes = stream.process(body, output_buffer_limit=limit + 1)
    while len(plain) <= limit and not stream.is_finished():
        part = stream.process(b"", output_buffer_limit=limit + 1 - len(plain))
        if not part:
            raise NotDecodedError(ENDS_EARLY)
        plain += part
    return plain, b""


def _zstd(body: bytes, limit: int) -> tuple[bytes, bytes]:
    """Fed in small steps: a block of 4 bytes may stand for 128 KiB, and the decoder knows no limit."""
    stream = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES).decompressobj()
    parts: list[bytes] = []
    size = 0
    for start in range(0, len(body), 64):
        parts.append(stream.decompress(body[start : start + 64]))
        size += len(parts[-1])
        if stream.eof:
            return b"".join(parts), stream.unused_data + body[start + 64 :]
        if size > limit:
            return b"".join(parts), b""
    raise NotDecodedError(ENDS_EARLY)


DECODERS: dict[str, Callable[[bytes, int], tuple[bytes, bytes]]] = {
    "br": _brotli,
    "deflate": _deflate,
    "gzip": _gzip,
    "x-gzip": _gzip,
    "zstd": _zstd,
}
