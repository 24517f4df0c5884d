"""httptools' callbacks: the one request that a parser is in the middle of, and what its head says that matters.

Of a head it keeps the method, the path and what frames the body. A header's value is gone when its request is.
"""

import re
from hashlib import blake2b

from httptools import HttpRequestParser

from toolkit.capture.codings import NotDecodedError, decoded
from toolkit.capture.records import HttpRequest, Losses, MemoryBounds

SPARE_PARSERS = 64
"""Parsers kept for the next message."""

PATHS = 1024
"""Targets whose path is remembered: those of real traffic are few."""


class Ends:
    """Who speaks to whom on a connection. `key`: addresses and ports as in the packets of the client."""

    __slots__ = ("client", "client_port", "server", "server_port")

    def __init__(self, key: bytes) -> None:
        address = (len(key) - 4) // 2
        self.client, self.server = key[:address], key[address : 2 * address]
        self.client_port = int.from_bytes(key[-4:-2], "big")
        self.server_port = int.from_bytes(key[-2:], "big")

    def request(self, ts: float, ts_last: float) -> HttpRequest:
        """A request of which only its place is known."""
        return HttpRequest(
            ts=ts,
            ts_last=ts_last,
            client=self.client,
            client_port=self.client_port,
            server=self.server,
            server_port=self.server_port,
        )


class CaptureState:
    """What all connections of a capture share: limits, counts, and parsers that are between two messages."""

    def __init__(self, limits: MemoryBounds, losses: Losses) -> None:
        self.limits = limits
        self.losses = losses
        self.spare: list[Message] = []
        """A parser has no state between messages, so that a connection needs one only in the middle of one."""
        self.paths: dict[bytes, str] = {}

    def message(self, ends: Ends, began_at: float) -> "Message":
        """A parser at the beginning of a message."""
        message = self.spare.pop() if self.spare else Message(self)
        message.ends = ends
        message.began_at = message.now = began_at
        return message

    def keep(self, message: "Message") -> None:
        """Take back a parser that is between two messages."""
        if len(self.spare) < SPARE_PARSERS:
            self.spare.append(message)

    def path(self, target: bytes) -> str:
        """`path_of`, the same string for the same target."""
        path = self.paths.get(target)
        if path is not None:
            return path
        path = path_of(target)
        # a query may hold a secret, and is rarely twice the same
        if len(self.paths) < PATHS and len(path) == len(target) < 256:
            self.paths[target] = path
        return path


def path_of(target: bytes) -> str:
    """Without scheme, host and query: each may hold a secret (`user:password@`, `?key=`)."""
    scheme, found, rest = target.partition(b"://")
    if found and scheme.isalnum():
        target = b"/" + rest.partition(b"/")[2]
    path = re.split(rb"[?#]", target, maxsplit=1)[0]
    if not path.startswith(b"/"):  # CONNECT names a host
        path = path.rpartition(b"@")[2]
    return path.decode("ascii", "backslashreplace")


class Message:
    """httptools' callbacks, and the one request that they are in the middle of."""

    __slots__ = (
        "began_at",
        "body",
        "body_bytes",
        "chunked",
        "done",
        "encoding",
        "ends",
        "hashed",
        "in_head",
        "length",
        "limit",
        "now",
        "open",
        "parser",
        "path_of",
        "target",
        "upgrade",
    )

    def __init__(self, shared: CaptureState) -> None:
        self.limit = shared.limits.body_bytes
        self.ends: Ends
        self.path_of = shared.path
        self.now = self.began_at = 0.0
        self.open = self.in_head = False
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
        self.body_bytes = 0
        self.encoding: str | None = None
        self.length: int | None = None

    def on_url(self, target: bytes) -> None:
        """A piece of the target."""
        self.target = self.target + target if self.target else target

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep what frames the body; by length first, as this is called for each header of each request."""
        size = len(name)
        if size not in FRAMING_LENGTHS or not self.in_head:
            return  # or a trailer
        name = name.lower()
        if name == b"content-length":
            self.length = int(value) if len(value) < 20 else None
        elif name == b"transfer-encoding":
            self.chunked = True
            codings = [coding.strip() for coding in value.decode("latin-1").lower().split(",")]
            self._encode([coding for coding in codings if coding != "chunked"])
        elif name == b"content-encoding":
            self._encode([value.decode("latin-1")])
        elif name == b"upgrade":
            self.upgrade = True

    def _encode(self, encodings: list[str]) -> None:
        if encodings:
            self.encoding = ",".join([*([self.encoding] if self.encoding else []), *encodings])

    def on_headers_complete(self) -> None:
        """The head is over; what header comes now is a trailer."""
        self.in_head = False

    def on_body(self, data: bytes) -> None:
        """A piece of the body, without the chunks' framing."""
        self.body_bytes += len(data)
        if self.body_bytes > self.limit:
            self._hash(data)
        elif self.body is None:
            self.body = data
        else:
            if isinstance(self.body, bytes):
                self.body = bytearray(self.body)
            self.body += data

    def _hash(self, data: bytes) -> None:
        if self.hashed is None:
            self.hashed = blake2b(self.body or b"", digest_size=16)
            self.body = None
        self.hashed.update(data)

    def on_message_complete(self) -> None:
        """A whole request."""
        if self.upgrade and (self.length or self.chunked) and self.parser.should_upgrade():
            return  # httptools leaves its body out; it is read again, see `Requests._upgraded`
        request = self.request()
        if self.hashed is not None:
            request.body_hash = self.hashed.digest()
            request.problem = f"its body is longer than {self.limit:,} bytes"
        elif self.body is not None:
            request.body = self.body if isinstance(self.body, bytes) else bytes(self.body)
            if self.encoding is not None:
                decode(request, self.encoding, self.limit)
        self.done.append(request)
        self.open = False
        self.body = None
        self.target = b""
        self.began_at = self.now  # of the next one, if these bytes hold it

    def request(self) -> HttpRequest:
        """What is known so far, without the body."""
        request = self.ends.request(self.began_at, self.now)
        method = self.parser.get_method()
        request.method = METHODS.get(method) or method.decode("latin-1")
        request.path = self.path_of(self.target)
        request.body_bytes = self.body_bytes
        return request


METHODS = {
    name.encode(): name for name in "GET POST PUT DELETE HEAD OPTIONS PATCH CONNECT TRACE".split()
}
FRAMING_LENGTHS = frozenset(
    map(len, ("content-length", "transfer-encoding", "content-encoding", "upgrade"))
)


def decode(request: HttpRequest, encodings: str, limit: int) -> None:
    """Undo the body's encodings; what can't be undone keeps the hash of its bytes as they were sent."""
    assert request.body is not None
    try:
        body = decoded(request.body, encodings, limit)
    except NotDecodedError as problem:
        request.body_hash = blake2b(request.body, digest_size=16).digest()
        request.problem = f"its body can't be decoded: {problem}"
        request.body = None
    else:
        request.body = body
        request.body_bytes = len(body)
