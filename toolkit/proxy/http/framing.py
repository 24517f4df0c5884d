"""Where one request ends and the next begins: bytes of a connection -> whole requests, or why they are refused.

It holds no socket and no clock. What two readers could understand in two ways is refused, never repaired: httptools
reads each head, and what it lets pass (HTTP/1.0 with Transfer-Encoding, no Host, two Hosts, a head of any size, another
protocol's name) is looked at here. No framing of a client's goes any further than this.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import httptools

from toolkit.proxy.exchange import Headers, Request
from toolkit.proxy.http.chunked import ChunkedBody
from toolkit.proxy.settings import FrontSetting

RAW_BYTES = 64 * 1024
"""Longer requests are not remembered by their bytes."""
TARGET_BYTES = 8 * 1024

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
"""All for which a request is refused before anybody looks at what it asks."""

ONCE = frozenset(
    b"authorization content-encoding content-length content-type expect host transfer-encoding upgrade"
    b" x-api-key x-request-id".split()
)
"""Two of one of these, and two readers may each take another one."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A request that nobody looks at; its connection is closed after the answer."""

    status: int
    reason: str
    """One of REASONS."""
    message: str


@dataclass(slots=True, kw_only=True, eq=False)
class Framed:
    """A whole request, and what its answer must know of it."""

    request: Request
    http_minor: int


@dataclass(slots=True, kw_only=True, eq=False)
class Head:
    """A request's head, understood and free of doubt."""

    method: str
    target: str
    headers: tuple[tuple[bytes, bytes], ...]
    http_minor: int
    length: int | None
    """Of the body; None: it comes in chunks."""
    expects: bool
    """The client waits for a word before it sends the body."""


def refusal(reason: str) -> Refusal:
    """The refusal for one of REASONS."""
    status, message = REASONS[reason]
    return Refusal(status=status, reason=reason, message=message)


def checked(method: str, target: bytes, headers: Headers, http_minor: int) -> Refusal | None:
    """Why a head must not be served, whatever it asks for; names in lower case, values without outer blanks."""
    named = dict(headers)
    reason = (
        _line_fault(method, target)
        or (_repeated(headers) if len(named) < len(headers) else None)
        or _length_fault(named, http_minor)
        or _host_fault(named, http_minor)
        or _wish_fault(named, http_minor)
    )
    return refusal(reason) if reason else None


def _line_fault(method: str, target: bytes) -> str | None:
    if method == "CONNECT":
        return "upgrade"
    if not _TARGET.fullmatch(target):
        return "target"
    return "target_bytes" if len(target) > TARGET_BYTES else None


def _repeated(headers: Headers) -> str | None:
    counts = Counter(name for name, _ in headers)
    twice = {name for name in ONCE & counts.keys() if counts[name] > 1}
    if twice & {b"content-length", b"transfer-encoding"}:
        return "length"
    if b"host" in twice:
        return "host"
    return "duplicate" if twice else None


def _length_fault(named: Mapping[bytes, bytes], http_minor: int) -> str | None:
    length, coding = named.get(b"content-length"), named.get(b"transfer-encoding")
    if coding is not None:
        if length is not None or http_minor == 0:
            return "length"
        return None if coding.lower() == b"chunked" else "coding"
    return None if length is None or _DIGITS.fullmatch(length) else "length"


def _host_fault(named: Mapping[bytes, bytes], http_minor: int) -> str | None:
    host = named.get(b"host")
    if host is None:
        return "host" if http_minor else None
    return None if _HOST.fullmatch(host) else "host"


def _wish_fault(named: Mapping[bytes, bytes], http_minor: int) -> str | None:
    # Java's client and curl --http2 offer h2c on every first request and go on with HTTP/1.1 where it is passed over
    if named.get(b"upgrade", b"h2c").lower() != b"h2c":
        return "upgrade"
    if http_minor and named.get(b"expect", b"100-continue").lower() != b"100-continue":
        return "expect"
    coded = named.get(b"content-encoding", b"").lower() not in (b"", b"identity")
    return "content_encoding" if coded else None


def keeps_alive(headers: Headers, http_minor: int) -> bool:
    """Whether the client wants to go on after this answer."""
    words = {
        word.strip().lower()
        for name, value in headers
        if name == b"connection"
        for word in value.split(b",")
    }
    return b"close" not in words and (http_minor == 1 or b"keep-alive" in words)


class _Heard:
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


def head(data: bytes, limits: FrontSetting) -> Head | Refusal:
    """Understand a whole head, from its first line to the empty one."""
    line = _LINE.match(data)
    reason = (None if _LINES.fullmatch(data) else "framing") or _version_fault(line)
    if reason or line is None:
        return refusal(reason or "framing")
    heard = _heard(data)
    if isinstance(heard, Refusal):
        return heard
    if heard.target != line[2]:
        return refusal("framing")
    method, minor = line[1].decode(), int(line[5])
    found = checked(method, heard.target, heard.headers, minor)
    if found is None and len(heard.headers) > limits.headers:
        found = refusal("headers")
    return found or _understood(method, heard, minor)


def _heard(data: bytes) -> _Heard | Refusal:
    heard = _Heard()
    parser = httptools.HttpRequestParser(heard)
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        pass  # said after a whole head only; whether it is passed over or refused is `checked`'s
    except httptools.HttpParserInvalidMethodError:
        return refusal("method")
    except httptools.HttpParserInvalidURLError:
        return refusal("target")
    except httptools.HttpParserError:
        return refusal("framing")
    return heard if heard.is_whole else refusal("framing")


def _understood(method: str, heard: _Heard, http_minor: int) -> Head:
    headers = dict(heard.headers)
    is_chunked = b"transfer-encoding" in headers
    return Head(
        method=method,
        target=heard.target.decode(),
        headers=tuple(heard.headers),
        http_minor=http_minor,
        length=None if is_chunked else int(headers.get(b"content-length", 0)),
        expects=http_minor == 1 and b"expect" in headers,
    )


def _version_fault(line: re.Match[bytes] | None) -> str | None:
    if line is None or line[3] != b"HTTP":
        return "framing"
    return None if line[4] == b"1" and line[5] in b"01" else "version"


def _half_fault(data: bytes) -> str | None:
    """What a head can't become whole with: a client that sends bare line feeds never sends the end."""
    if data[:2] == b"\x16\x03":
        return "tls"
    pairs, half_pair = data.count(b"\r\n"), data[-1:] == b"\r"
    has_bare = data.count(b"\n") != pairs or data.count(b"\r") - half_pair != pairs
    has_fold = b"\r\n " in data or b"\r\n\t" in data
    is_fine = _TOKEN.match(data) and not has_bare and not has_fold and b"\0" not in data
    return None if is_fine else "framing"


class RequestReader:
    """One connection's bytes, read up to the end of one request at a time."""

    __slots__ = (
        "_blank_passed",
        "_body",
        "_chunked",
        "_data",
        "_head",
        "_is_one_read",
        "_limits",
        "_owes_continue",
    )

    def __init__(self, limits: FrontSetting) -> None:
        self._limits = limits
        self._data = b""
        self._is_one_read = True
        self._blank_passed = False
        self._head: Head | None = None
        self._body: bytearray | None = None
        self._chunked: ChunkedBody | None = None
        self._owes_continue = False

    @property
    def held_bytes(self) -> int:
        """Of requests that are not whole yet, and of those behind one that is under way."""
        body = self._body if self._chunked is None else self._chunked.body
        return len(self._data) + (len(body) if body is not None else 0)

    @property
    def is_between(self) -> bool:
        """Nothing of a further request has come."""
        return not self._data and self._head is None

    @property
    def awaits_body(self) -> bool:
        """A head was understood, and its body is not whole."""
        return self._head is not None

    def early(self) -> Framed:
        """The request whose body is awaited, without it, for who can answer by the head alone; nothing may come behind it."""
        assert self._head is not None
        path, _, query = self._head.target.partition("?")
        request = Request(
            method=self._head.method,
            path=path,
            query=query,
            headers=self._head.headers,
            keeps_alive=False,
        )
        return Framed(request=request, http_minor=self._head.http_minor)

    def owes_continue(self) -> bool:
        """Whether the client waits to be told to send the body; True once."""
        owed, self._owes_continue = self._owes_continue, False
        return owed

    def feed(self, data: bytes) -> None:
        """Take what was read."""
        self._is_one_read = self.is_between
        self._data = self._data + data if self._data else data

    def next(self) -> Framed | Refusal | None:
        """The next whole request, why there will be none, or None: bytes are missing."""
        if self._head is None:
            found = self._read_head()
            if found is not None or self._head is None:
                return found
        return self._read_chunks() if self._head.length is None else self._read_length()

    def _read_head(self) -> Framed | Refusal | None:
        """Find a head's end; a request whose body came with it is told at once."""
        if not self._blank_passed and self._data[:2] == b"\r\n":
            # RFC 9112, 2.2: one empty line before a request is passed over; old clients end a body with it
            self._blank_passed, self._is_one_read = True, False
            self._data = self._data[2:]
        data = self._data
        if not data or (data == b"\r" and not self._blank_passed):
            return None
        end = data.find(b"\r\n\r\n", 0, self._limits.header_bytes)
        if end < 0:
            return self._half_head_fault()
        found = head(data[: end + 4], self._limits)
        if isinstance(found, Refusal):
            return found
        if (found.length or 0) > self._limits.body_bytes:
            return refusal("body_bytes")
        return self._begin(found, end + 4)

    def _half_head_fault(self) -> Refusal | None:
        reason = _half_fault(self._data)
        if reason is None and len(self._data) >= self._limits.header_bytes:
            reason = "header_bytes"
        return refusal(reason) if reason else None

    def _begin(self, found: Head, at: int) -> Framed | None:
        data = self._data
        if found.length is not None and len(data) >= at + found.length:
            end = at + found.length
            is_raw = self._is_one_read and end == len(data) <= RAW_BYTES
            return self._whole(found, data[at:end], end, data if is_raw else None)
        self._head, self._data = found, data[at:]
        self._owes_continue = found.expects and not self._data
        if found.length is None:
            self._chunked = ChunkedBody(self._limits.body_bytes)
        else:
            self._body = bytearray()
        return None

    def _read_length(self) -> Framed | None:
        assert self._head is not None
        assert self._body is not None
        needs = (self._head.length or 0) - len(self._body)
        taken = self._data[:needs]
        self._body += taken
        if len(taken) < needs:
            self._data = b""
            return None
        return self._whole(self._head, bytes(self._body), needs, None)

    def _read_chunks(self) -> Framed | Refusal | None:
        assert self._head is not None
        assert self._chunked is not None
        end = self._chunked.feed(self._data)
        if self._chunked.fault:
            return refusal(self._chunked.fault)
        if not self._chunked.is_whole:
            self._data = b""
            return None
        return self._whole(self._head, bytes(self._chunked.body), end, None)

    def _whole(self, found: Head, body: bytes, end: int, raw: bytes | None) -> Framed:
        path, _, query = found.target.partition("?")
        keeps = keeps_alive(found.headers, found.http_minor)
        is_plain = keeps and found.http_minor == 1 and found.method != "HEAD"
        request = Request(
            method=found.method,
            path=path,
            query=query,
            headers=found.headers,
            body=body,
            keeps_alive=keeps,
            raw=raw if is_plain else None,
        )
        self._data = self._data[end:]
        self._is_one_read = False
        self._blank_passed = self._owes_continue = False
        self._head = self._body = self._chunked = None
        return Framed(request=request, http_minor=found.http_minor)
