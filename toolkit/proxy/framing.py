"""Where one request ends and the next begins: bytes of a connection -> whole requests, or why they are refused.

It holds no socket and no clock. A request that two HTTP readers could understand in two ways is refused, never repaired:
httptools parses each head, and what it accepts all the same (HTTP/1.0 with Transfer-Encoding, no Host, two Hosts, a head
of any size, another protocol's name) is checked here. The client's framing ends here: upstreams get the proxy's own.

A client sends nearly the same head each time. A parsed head is remembered under its raw bytes without the digits of its
Content-Length, and with it what the handler worked out from it (`Head.known`). `RequestReader.next` is the way in.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import httptools

from toolkit.proxy.config import FrontSetting
from toolkit.proxy.headers import Headers

RAW_BYTES: Final = 64 * 1024
"""Longer requests are not remembered by their bytes."""
TARGET_BYTES: Final = 8 * 1024
REMEMBERED_HEADS: Final = 512
"""In one generation; `Heads` keeps two. With LONGEST_REMEMBERED bytes each: 4 MiB at most, under attack."""
LONGEST_REMEMBERED: Final = 4 * 1024
LINE_BYTES: Final = 256
"""Of a chunk's size with its extensions."""
TRAILER_BYTES: Final = 8 * 1024
FREE_CHUNKS: Final = 4_096
SMALLEST_MEAN_BYTES: Final = 16
"""The first FREE_CHUNKS may be of any size; beyond them the chunks must hold so much on average, as each costs a turn of a loop."""

REASONS: Mapping[str, tuple[int, str]] = {
    # reason (a metric's label): status, what the client is told
    "framing": (400, "The request is not HTTP/1.1 without doubt"),
    "tls": (400, "This port speaks plain HTTP, and a TLS handshake came"),
    "target": (400, "The target must be a path: no full address, no `*`, no fragment"),
    "host": (400, "There must be exactly one Host header, with one host"),
    "length": (400, "Content-Length and Transfer-Encoding leave doubt where the body ends"),
    "duplicate": (400, "A header that may stand once stands twice"),
    "chunks": (400, "The body's chunks are too small"),
    "header_timeout": (408, "The request's head took too long"),
    "body_timeout": (408, "The request's body took too long"),
    "body_bytes": (413, "The request's body is too large"),
    "target_bytes": (414, "The target is too long"),
    "content_encoding": (415, "Send the body as it is: no Content-Encoding is understood"),
    "expect": (417, "Nothing but `100-continue` can be expected"),
    "header_bytes": (431, "The request's head is too large"),
    "headers": (431, "The request has too many headers"),
    "fault": (500, "The proxy failed at this request"),
    "method": (501, "The method is unknown here"),
    "coding": (501, "No Transfer-Encoding but `chunked` is understood"),
    "upgrade": (501, "No other protocol is spoken here"),
    "held_bytes": (503, "Too many bodies are on their way"),
    "connections": (503, "Too many connections are open"),
    "version": (505, "Only HTTP/1.1 and HTTP/1.0 are spoken here"),
}
"""Why a request can be refused before the handler sees it."""

ONCE = frozenset(
    b"authorization content-encoding content-length content-type expect host transfer-encoding upgrade"
    b" x-api-key x-request-id".split()
)
"""Headers that may not stand twice: of two, one reader might use the first and another the second."""

_LINE = re.compile(
    rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}) ([!-~]+) ([A-Z]{2,8})/([0-9])\.([0-9])\r\n"
)
_TARGET = re.compile(rb"/[!\"$-;=?-~]*")
"""Visible ASCII but `#`, `<` and `>`."""
_HOST = re.compile(rb"[A-Za-z0-9._~%:\[\]-]*")
_DIGITS = re.compile(rb"[0-9]{1,15}")
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]")
_LINES = re.compile(rb"(?:[^\r\n\0 \t][^\r\n\0]*+\r\n)++\r\n")
"""No bare line end, no zero, no folded line; possessive, so that a wrong byte costs no second look."""
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,15})[ \t]*\r\n", re.IGNORECASE)
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,12})(?:[ \t]*;[\t\x20-\x7e]*)?\r\n")
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*\r\n")


@dataclass(slots=True, kw_only=True, eq=False)
class Head:
    """A request's head, understood and free of doubt. It may be the head of many requests."""

    method: str
    path: str
    """As it was sent, without the query."""
    query: str
    headers: tuple[tuple[bytes, bytes], ...]
    """Names in lower case."""
    http_minor: int
    is_chunked: bool
    expects: bool
    """The client waits for `100 Continue` before it sends the body."""
    keeps_alive: bool
    """The client keeps the connection for another request."""
    known: Any = None
    """What the handler worked out from it (`handler.Known`), once for all requests with this head; None: not yet."""

    def header(self, name: bytes) -> bytes | None:
        """The first header of a name in lower case."""
        return next((value for each, value in self.headers if each == name), None)


@dataclass(slots=True, kw_only=True, eq=False)
class Framed:
    """A whole request."""

    head: Head
    body: bytes
    raw: bytes | None = None
    """The request as it came, if one read held it and nothing else and the connection is kept. Hot entries are found by it."""


class _Parsed:
    """What httptools tells of a head."""

    __slots__ = ("headers", "is_whole", "target")

    def __init__(self) -> None:
        self.target = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.is_whole = False

    def on_url(self, part: bytes) -> None:
        self.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        self.is_whole = True


def parse_head(data: bytes, limits: FrontSetting) -> tuple[Head, int] | str:
    """A head's bytes up to its empty line -> what it says and how long its body is (0 of a chunked one), or one of REASONS."""
    line = _LINE.match(data)
    if line is None or line[3] != b"HTTP" or not _LINES.fullmatch(data):
        return "framing"
    if line[4] != b"1" or line[5] not in b"01":
        return "version"
    parsed = _Parsed()
    parser = httptools.HttpRequestParser(parsed)
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        pass  # raised after a whole head only; `head_fault` below ignores the upgrade or refuses it
    except httptools.HttpParserInvalidMethodError:
        return "method"
    except httptools.HttpParserInvalidURLError:
        return "target"
    except httptools.HttpParserError:
        return "framing"
    if not parsed.is_whole or parsed.target != line[2]:
        return "framing"
    method, http_minor = line[1].decode(), int(line[5])
    reason = head_fault(method, parsed.target, parsed.headers, http_minor)
    if reason is None and len(parsed.headers) > limits.headers:
        reason = "headers"
    if reason is not None:
        return reason
    named = dict(parsed.headers)
    path, _, query = parsed.target.decode().partition("?")
    options = {
        word.strip().lower()
        for name, value in parsed.headers
        if name == b"connection"
        for word in value.split(b",")
    }
    head = Head(
        method=method,
        path=path,
        query=query,
        headers=tuple(parsed.headers),
        http_minor=http_minor,
        is_chunked=b"transfer-encoding" in named,
        expects=http_minor == 1 and b"expect" in named,
        keeps_alive=b"close" not in options and (http_minor == 1 or b"keep-alive" in options),
    )
    return head, int(named.get(b"content-length", 0))


def head_fault(method: str, target: bytes, headers: Headers, http_minor: int) -> str | None:
    """Why a head must not be served, whatever it asks for; names in lower case, values without outer blanks."""
    if method == "CONNECT":
        return "upgrade"
    if not _TARGET.fullmatch(target):
        return "target"
    if len(target) > TARGET_BYTES:
        return "target_bytes"
    named = dict(headers)
    if len(named) < len(headers):
        counts = Counter(name for name, _ in headers)
        twice = {name for name in ONCE & counts.keys() if counts[name] > 1}
        if twice & {b"content-length", b"transfer-encoding"}:
            return "length"
        if twice:
            return "host" if b"host" in twice else "duplicate"
    length, coding = named.get(b"content-length"), named.get(b"transfer-encoding")
    if coding is not None:
        if length is not None or http_minor == 0:
            return "length"
        if coding.lower() != b"chunked":
            return "coding"
    elif length is not None and not _DIGITS.fullmatch(length):
        return "length"
    host = named.get(b"host")
    if (host is None and http_minor) or (host is not None and not _HOST.fullmatch(host)):
        return "host"
    # Java's client and curl --http2 offer h2c on every first request and go on with HTTP/1.1 where it is passed over
    if named.get(b"upgrade", b"h2c").lower() != b"h2c":
        return "upgrade"
    if http_minor and named.get(b"expect", b"100-continue").lower() != b"100-continue":
        return "expect"
    is_coded = named.get(b"content-encoding", b"").lower() not in (b"", b"identity")
    return "content_encoding" if is_coded else None


def half_head_fault(data: bytes, limits: FrontSetting) -> str | None:
    """Why a head that is not complete yet can never become valid; None: wait for more. Bare line feeds never make the empty line."""
    if data[:2] == b"\x16\x03":
        return "tls"
    pairs, half_pair = data.count(b"\r\n"), data[-1:] == b"\r"
    has_bare = data.count(b"\n") != pairs or data.count(b"\r") - half_pair != pairs
    has_fold = b"\r\n " in data or b"\r\n\t" in data
    if has_bare or has_fold or b"\0" in data or not _TOKEN.match(data):
        return "framing"
    return "header_bytes" if len(data) >= limits.header_bytes else None


class Heads:
    """Parsed heads by their bytes without the digits of their length, in two generations: once `_now` is full, it replaces `_before`."""

    __slots__ = ("_before", "_limits", "_now")

    def __init__(self, limits: FrontSetting) -> None:
        self._limits = limits
        self._now: dict[bytes, Head] = {}
        self._before: dict[bytes, Head] = {}

    def forget(self) -> None:
        """Forget all: the settings changed, and so would `Head.known`."""
        self._now, self._before = {}, {}

    def read(self, data: bytes) -> tuple[Head, int] | str:
        """As `parse_head`, which is called only for a head that is not remembered."""
        found = _LENGTH.search(data)
        if found is None:
            # no head begins with a blank: so this can't equal another head's bytes without their digits
            mark, length = b" " + data, 0
        else:
            first, last = found.span(1)
            mark, length = data[:first] + data[last:], int(data[first:last])
        head = self._now.get(mark)
        if head is not None:
            return head, length
        head = self._before.get(mark)
        if head is None:
            read = parse_head(data, self._limits)
            if isinstance(read, str):
                return read
            head, length = read
        if len(data) <= LONGEST_REMEMBERED:
            if len(self._now) >= REMEMBERED_HEADS:
                self._before, self._now = self._now, {}
            self._now[mark] = head
        return head, length


class RequestReader:
    """One connection's bytes, read up to the end of one request at a time."""

    __slots__ = (
        *("_blank_passed", "_body", "_chunked", "_data", "_head", "_heads", "_is_one_read"),
        *("_length", "_limits", "_owes_continue", "_raw"),
    )

    def __init__(self, limits: FrontSetting, heads: Heads) -> None:
        self._limits, self._heads = limits, heads
        self._data = b""
        self._is_one_read = True
        self._blank_passed = False
        self._head: Head | None = None
        self._length = 0
        self._body: bytearray | None = None
        self._chunked: ChunkedBody | None = None
        self._raw: bytes | None = None
        self._owes_continue = False

    @property
    def held_bytes(self) -> int:
        """Bytes of an incomplete request, and of requests behind the one that is being answered."""
        body = self._body if self._chunked is None else self._chunked.body
        return len(self._data) + (len(body) if body is not None else 0)

    @property
    def is_between(self) -> bool:
        """No byte of a next request has come."""
        return not self._data and self._head is None

    @property
    def awaited(self) -> Head | None:
        """The head whose body is still coming."""
        return self._head

    def owes_continue(self) -> bool:
        """Whether to send `100 Continue` now; True once."""
        owed, self._owes_continue = self._owes_continue, False
        return owed

    def feed(self, data: bytes) -> None:
        """Take what was read."""
        self._is_one_read = self.is_between
        self._data = self._data + data if self._data else data

    def next(self) -> Framed | str | None:
        """The next whole request; a key of REASONS: refuse and close; or None: more bytes are needed."""
        if self._head is None:
            if not self._blank_passed and self._data[:2] == b"\r\n":
                # RFC 9112, 2.2: one empty line before a request is passed over; old clients end a body with it
                self._blank_passed, self._is_one_read = True, False
                self._data = self._data[2:]
            data, limits = self._data, self._limits
            if not data or (data == b"\r" and not self._blank_passed):
                return None
            end = data.find(b"\r\n\r\n", 0, limits.header_bytes) + 4
            if end < 4:
                return half_head_fault(data, limits)
            read = self._heads.read(data[:end])
            if isinstance(read, str):
                return read
            head, self._length = read
            if self._length > limits.body_bytes:
                return "body_bytes"
            is_plain = head.keeps_alive and head.http_minor == 1 and head.method != "HEAD"
            is_all = not head.is_chunked and len(data) == end + self._length <= RAW_BYTES
            self._raw = data if self._is_one_read and is_plain and is_all else None
            self._head, self._data = head, data[end:]
            self._owes_continue = head.expects and not self._data
            if head.is_chunked:
                self._chunked = ChunkedBody(limits.body_bytes)
        head, data = self._head, self._data
        if self._chunked is not None:
            end = self._chunked.feed(data)
            if self._chunked.fault:
                return self._chunked.fault
            body: bytes | bytearray = self._chunked.body
            is_whole = self._chunked.is_whole
        elif self._body is None and len(data) >= self._length:
            is_whole, body, end = True, data[: self._length], self._length
        else:
            body = self._body = bytearray() if self._body is None else self._body
            end = self._length - len(body)
            body += data[:end]
            is_whole = len(data) >= end
        if not is_whole:
            self._data = b""
            return None
        raw, self._raw = self._raw, None
        self._data = data[end:]
        self._is_one_read = self._blank_passed = self._owes_continue = False
        self._head = self._body = self._chunked = None
        return Framed(head=head, body=bytes(body), raw=raw)


class ChunkedBody:
    """A chunked body, wherever it was split; extensions and trailers are passed over, within limits. `fault`: one of REASONS."""

    __slots__ = (
        *("body", "fault", "is_whole"),
        *("_awaits", "_chunks", "_limit", "_line", "_needs", "_trailer_bytes"),
    )

    def __init__(self, limit_bytes: int) -> None:
        self.body = bytearray()
        self.fault: str | None = None
        self.is_whole = False
        self._limit = limit_bytes
        self._needs = 0
        """Bytes of the chunk under way."""
        self._awaits: Literal["size", "end", "trailer"] = "size"
        """Which line comes next: a chunk's size, the empty one behind its bytes, or what follows the last chunk."""
        self._line = b""
        """As far as it came."""
        self._chunks = self._trailer_bytes = 0

    def feed(self, data: bytes) -> int:
        """How many of these bytes are this body's; all, unless it ended."""
        at = 0
        while at < len(data) and not self.is_whole and self.fault is None:
            if self._needs:
                part = data[at : at + self._needs]
                self.body += part
                self._needs -= len(part)
                at += len(part)
                continue
            limit = (2 if self._awaits == "end" else LINE_BYTES) - len(self._line)
            end = data.find(b"\n", at, at + limit) + 1
            if not end:
                if len(data) - at >= limit:
                    self.fault = "framing"
                self._line += data[at : at + limit]
                return len(data)
            line, self._line, at = self._line + data[at:end], b"", end
            if self._awaits == "size":
                size = _SIZE.fullmatch(line)
                if size is None:
                    self.fault = "framing"
                    break
                self._needs = int(size[1], 16)
                self._chunks += 1
                if len(self.body) + self._needs > self._limit:
                    self.fault = "body_bytes"
                elif self._chunks > FREE_CHUNKS + len(self.body) // SMALLEST_MEAN_BYTES:
                    self.fault = "chunks"
                self._awaits = "end" if self._needs else "trailer"
            elif self._awaits == "end":
                self._awaits = "size"
                if line != b"\r\n":
                    self.fault = "framing"
            elif line == b"\r\n":
                self.is_whole = True
            else:
                self._trailer_bytes += len(line)
                if self._trailer_bytes > TRAILER_BYTES:
                    self.fault = "header_bytes"
                elif not _TRAILER.fullmatch(line):
                    self.fault = "framing"
        return at
