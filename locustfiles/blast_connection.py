"""One user's connection to its host: requests out, answers read and timed where their bytes leave the socket.

Requests are written whole onto gevent's sockets, and geventhttpclient's parser finds the bodies; `completion` reads them.
Nothing but the host's own address is contacted: no redirect, no proxy.

Locust's FastHttpUser with `stream=True` was tried (2026-11-23): 69 % of a bare FastHttpUser's requests per core for JSON
and 42 % for bursts, where this makes 158 and 92 %; at 100 streams of a stamped server it adds 0.59 ms to TTFT at p50 and
25.8 at p99, this 0.26 and 0.79. Its `read(n)` waits for n bytes, so a first token is seen by `readline` alone.
"""

import errno
import http.client
import ssl
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import gevent
import gevent.socket
import gevent.threadpool
from gevent import monkey
from geventhttpclient._parser import HTTPParseError, HTTPResponseParser

from toolkit.bench.client import (
    AFTER_DONE_S,
    CONNECT_TIMEOUT_S,
    CROSSING_S,
    LEAST_IDLE_S,
)
from toolkit.bench.connections import IDLE_S
from toolkit.bench.faults import hidden, line, reason
from toolkit.bench.plan import CHAT, EMBEDDINGS
from toolkit.bench.request_record import Failure, Response
from toolkit.protocol.completion import Completion
from toolkit.protocol.embeddings import Embeddings
from toolkit.records import Host
from toolkit.scout.problems import tls_problem

READ_BYTES = 2**16
TURN_BYTES = 2**18
"""After so many of an answer that never pauses the others get their turn: 256 KiB of events are read in 2 ms or so."""
MOST_HEAD_BYTES = 2**18
MOST_LAST_READS = 8
"""After `[DONE]`; a host that goes on and on would never let the timer strike."""
MOST_PAGE_BYTES = 2**20
CACHE_HEADERS = ("cache-status", "x-cache")
"""The first one counts."""

_poll: Final[Callable[[], Any]] = monkey.get_original("select", "poll")
"""gevent's own would switch greenlets; this one asks and returns."""


class EndedError(gevent.GreenletExit):
    """Thrown at a user whose answer has not come when a blast has waited long enough for it.

    Should the answer come in that very moment, it ends the user as Locust does.
    """


class _NoConnectionError(Exception):
    """There is none; the cause says why."""


class _ClosedError(Exception):
    """The host ended the connection."""


FAULTS = (
    gevent.Timeout,
    EndedError,
    _NoConnectionError,
    _ClosedError,
    HTTPParseError,
    OSError,
    ValueError,
)


class HostAddress:
    """A host's address, and what every request to it begins with; one per host and process."""

    def __init__(self, host: Host, *, key: str | None, tls: ssl.SSLContext | None) -> None:
        """`key` is sent as a bearer token; `tls` is for an https host."""
        url = urlsplit(host.url)
        self.host = host
        self.name = url.hostname or ""
        self.port = url.port or (443 if url.scheme == "https" else 80)
        self.tls = tls if url.scheme == "https" else None
        self.key = key
        self._path = url.path.rstrip("/")
        self._fields = (
            f"Host: {url.netloc}\r\nUser-Agent: llm-serving-toolkit\r\nAccept: */*\r\n"
            "Accept-Encoding: identity\r\n" + (f"Authorization: Bearer {key}\r\n" if key else "")
        )
        self._posts: dict[str, bytes] = {}
        self._addresses: list[tuple[int, Any]] = []
        self._lookups: gevent.threadpool.ThreadPool | None = None

    def post(self, path: str, body: bytes) -> bytes:
        """A whole request with a JSON body."""
        head = self._posts.get(path)
        if head is None:
            head = self._head("POST", path) + b"Content-Type: application/json\r\nContent-Length: "
            self._posts[path] = head
        return b"%b%d\r\n\r\n%b" % (head, len(body), body)

    def addresses(self) -> list[tuple[int, Any]]:
        """Family and address of each, looked up once. Raises OSError.

        In a thread of this host alone: gevent's ten are shared, and a dead name server would hold all of them.
        """
        if not self._addresses:
            if self._lookups is None:
                self._lookups = gevent.threadpool.ThreadPool(1)
            look_up = monkey.get_original("socket", "getaddrinfo")
            where = (self.name, self.port, 0, gevent.socket.SOCK_STREAM)
            found = self._lookups.apply(look_up, where)
            self._addresses = [(info[0], info[4]) for info in found]
        return self._addresses

    def connect(self) -> Any:
        """A socket that is connected to the first address that takes it. Raises _NoConnectionError."""
        fault = OSError(errno.EHOSTUNREACH, "the name has no address")
        try:
            with gevent.Timeout(CONNECT_TIMEOUT_S, TimeoutError):
                for family, address in self.addresses():
                    sock = gevent.socket.socket(family, gevent.socket.SOCK_STREAM)
                    try:
                        sock.connect(address)
                        sock.setsockopt(gevent.socket.IPPROTO_TCP, gevent.socket.TCP_NODELAY, 1)
                        if self.tls is not None:
                            sock = self.tls.wrap_socket(sock, server_hostname=self.name)
                    except BaseException as error:
                        sock.close()
                        # our own time limit, which has no number, is for all addresses together
                        if not isinstance(error, OSError) or error.errno is None:
                            raise
                        fault = error
                    else:
                        return sock
                raise fault
        except (OSError, ValueError) as error:
            raise _NoConnectionError from error

    def page(
        self, path: str, timeout_s: float, body: bytes | None = None
    ) -> tuple[int, bytes] | Failure:
        """Status and body of a small page, over a connection of its own, or why there is none; a `body` is posted."""
        method = "GET" if body is None else "POST"
        request = self._head("GET", path) + b"\r\n" if body is None else self.post(path, body)
        try:
            with gevent.Timeout(timeout_s), closing(self.connect()) as sock:
                sock.sendall(request)
                answer = http.client.HTTPResponse(sock, method=method)
                answer.begin()
                found = answer.read(MOST_PAGE_BYTES + 1)
                if len(found) > MOST_PAGE_BYTES:
                    raise ValueError("the page does not end")
                if answer.length:
                    raise _ClosedError
                return answer.status, found
        except (http.client.IncompleteRead, http.client.RemoteDisconnected):
            return _failure(_ClosedError(), timeout_s, self.key)
        except (*FAULTS, http.client.HTTPException) as error:
            return _failure(error, timeout_s, self.key)

    def _head(self, method: str, path: str) -> bytes:
        return f"{method} {self._path}{path} HTTP/1.1\r\n{self._fields}".encode("latin-1")


class _Reply(HTTPResponseParser):  # type: ignore[misc]
    """One HTTP answer. The methods with `_on_` are the parser's; it calls them while it is fed."""

    def __init__(self, reads: type[Completion]) -> None:
        super().__init__()
        self._reads = reads
        self.status: int | None = None
        self.cache_status: str | None = None
        self.reader: Completion | None = None
        """Once the headers are known."""
        self.is_complete = False
        self._content_type = ""
        self.bytes = 0
        self._is_final = self._is_followed = False
        self._parts: list[bytearray] = []
        # a method of C: a stream that comes in one burst has a part for each token
        self._on_body: Callable[[bytearray], None] = self._parts.append
        self._name: str | None = None
        self._value: str | None = None
        """None: the name may go on."""

    def take(self, data: bytes, at: float) -> None:
        """Feed bytes that were read at `at`; none of them: the connection has ended. Raises HTTPParseError, _ClosedError."""
        self.bytes += len(data)
        if data:
            self.feed(data)
        else:
            try:
                self.feed(b"")  # a body without a length ends so
            except HTTPParseError as error:
                raise _ClosedError from error
            if not self.is_complete:
                raise _ClosedError
        if self._is_final:
            data = b"".join(self._parts)
            self._parts.clear()
            if self.reader is None:
                self.reader = self._reads(status=self.status or 0, content_type=self._content_type)
            if data:
                self.reader.feed(data, at)
        elif self.bytes > MOST_HEAD_BYTES:
            raise HTTPParseError("the headers do not end")

    @property
    def is_over(self) -> bool:
        """Nothing more of it counts."""
        reader = self.reader
        return self.is_complete or (reader is not None and (reader.finished or reader.too_large))

    @property
    def awaits_end(self) -> bool:
        """Nothing more counts, but the end of the body may be on its way."""
        return not self.is_complete and self.reader is not None and self.reader.finished

    @property
    def is_reusable(self) -> bool:
        """Whether another request may follow on this connection."""
        return self.is_complete and not self._is_followed and bool(self.should_keep_alive())

    def _on_message_begin(self) -> None:
        # after an interim answer (1xx) comes another one; after a final one nothing may
        self._is_followed = self._is_final
        if self._is_followed:
            self._on_body = _ignore
        self._name = self._value = None

    def _on_status(self, text: str) -> None:
        """Its words say nothing that its number does not."""

    def _on_header_field(self, text: str) -> None:
        if self._name is None or self._value is not None:
            self._keep_header()
            self._name, self._value = text, None
        else:
            self._name += text

    def _on_header_value(self, text: str) -> None:
        self._value = text if self._value is None else self._value + text

    def _on_headers_complete(self) -> bool:
        self._keep_header()
        if not self._is_followed:
            self.status = self.get_code()
            self._is_final = self.status >= 200
        return False

    def _on_message_complete(self) -> None:
        self.is_complete = self._is_final

    def _keep_header(self) -> None:
        if self._name is None or self._value is None or self._is_followed:
            return
        name = self._name.lower()
        if name == "content-type":
            self._content_type = self._value
        elif name in CACHE_HEADERS and (self.cache_status is None or name == CACHE_HEADERS[0]):
            self.cache_status = line(self._value)


def _ignore(data: bytearray) -> None:
    """What follows an answer is nobody's."""


@dataclass(slots=True)
class TimedRequest:
    """One request: what came back, and when, in seconds of the monotonic clock."""

    response: Response
    sent_s: float
    ended_s: float
    bytes: int
    """Of the answer, headers included."""


class LoadConnection:
    """One connection, opened when it is needed and again when it was lost."""

    def __init__(self, address: HostAddress) -> None:
        self._address = address
        self._socket: Any = None
        self._pending: Any = None
        self._used_s = 0.0

    def ask(
        self, body: bytes, until_s: float, timeout_s: float, endpoint: str = CHAT
    ) -> TimedRequest:
        """Send a request and read its answer, until a moment; whatever fails is returned, not raised.

        `timeout_s` is what the sentence about a late answer names.
        """
        key, request = self._address.key, self._address.post(endpoint, body)
        reads = Embeddings if endpoint == EMBEDDINGS else Completion
        sent_s = time.monotonic()
        reply, failure = _Reply(reads), None
        timer = gevent.Timeout.start_new(max(0.0, until_s - sent_s))
        try:
            idle_s = self._connect()
            begun_s = time.monotonic()
            try:
                self._send_and_read(request, reply)
            except (_ClosedError, ConnectionError):
                # what the host cannot have read, because it was closing that connection meanwhile, is sent once more
                crossed = time.monotonic() - begun_s <= CROSSING_S
                if idle_s is None or idle_s < LEAST_IDLE_S or reply.bytes or not crossed:
                    raise
                self.close()
                self._connect()
                reply = _Reply(reads)
                self._send_and_read(request, reply)
        except FAULTS as error:
            failure = _failure(error, timeout_s, key)
        finally:
            timer.close()
            if not reply.is_reusable:
                self.close()

        ended_s = time.monotonic()
        if reply.reader is None:
            response = Response(failure=failure, status=reply.status)
            return TimedRequest(response, sent_s, ended_s, reply.bytes)
        answer = reply.reader.end(ended_s, broken=failure.error if failure else None)
        # a break counts, though not after `[DONE]` and not with a fault of the answer's own
        if reply.status is not None and 300 <= reply.status < 400:
            failure = Failure(kind=f"http_{reply.status}", error="a redirect, and none is followed")
        elif answer.ok:
            failure = None
        elif failure is None or answer.error_kind != "cut":
            kind, why = answer.error_kind or "garbage", answer.error or "no reason given"
            failure = Failure(kind=kind, error=why)
        header = reply.cache_status
        response = Response(
            answer=answer,
            failure=failure,
            status=reply.status,
            cache_status=hidden(header, key) if header else None,
        )
        return TimedRequest(response, sent_s, answer.ended_at, reply.bytes)

    def close(self) -> None:
        """Give the connection up."""
        sock, self._socket, self._pending = self._socket, None, None
        if sock is not None:
            sock.close()

    def _send_and_read(self, request: bytes, reply: _Reply) -> None:
        sock = self._socket
        sock.sendall(request)
        unshared = 0
        while not reply.is_over:
            data = sock.recv(READ_BYTES)
            reply.take(data, time.monotonic())
            unshared += len(data)
            if unshared > TURN_BYTES:
                unshared = 0
                gevent.sleep(0)
        if reply.awaits_end:
            # what may follow `[DONE]` is the end of the body, which lets the connection be used again
            with (
                suppress(_ClosedError, OSError, HTTPParseError),
                gevent.Timeout(AFTER_DONE_S, False),
            ):
                for _ in range(MOST_LAST_READS):
                    if reply.is_complete:
                        break
                    reply.take(sock.recv(READ_BYTES), 0.0)
        self._used_s = time.monotonic()

    def _connect(self) -> float | None:
        """Have a connection; for how long it was idle, None for a new one. Raises _NoConnectionError."""
        if self._socket is not None:
            idle_s = time.monotonic() - self._used_s
            # an idle connection that has something to read has ended
            if idle_s < IDLE_S and not self._pending.poll(0):
                return idle_s
            self.close()
        self._socket = self._address.connect()
        self._pending = _poll()
        self._pending.register(self._socket.fileno(), 1)  # POLLIN
        return None


def _failure(error: BaseException, timeout_s: float, key: str | None) -> Failure:
    """Kind and sentence of what went wrong outside the answer, in the bench's words."""
    match error:
        case gevent.Timeout():
            kind, why = "timeout", f"no whole answer within {timeout_s:g} s"
        case EndedError():
            kind, why = "timeout", "no whole answer when the blast was over"
        case _NoConnectionError(__cause__=ssl.SSLCertVerificationError(verify_message=fault)):
            kind, why = "tls", f"TLS certificate not trusted: {fault}"
        case _NoConnectionError(__cause__=ssl.SSLError() as fault) | (ssl.SSLError() as fault):
            kind, why = "tls", tls_problem(fault.reason)
        case _NoConnectionError(__cause__=TimeoutError(errno=None)):
            kind, why = "connect", f"no connection within {CONNECT_TIMEOUT_S:g} s"
        case _NoConnectionError(__cause__=gevent.socket.gaierror() | UnicodeError()):
            kind, why = "connect", "no connection: the name does not resolve to an address"
        case _NoConnectionError(__cause__=fault):
            words = reason(fault) if isinstance(fault, OSError) else str(fault)
            kind, why = "connect", f"no connection: {words}"
        case _ClosedError():
            kind, why = "cut", "the connection was closed before the answer's end"
        case OSError():
            kind, why = "cut", f"the connection broke: {reason(error)}"
        case _:
            # the parser's faults have a number beside their words
            words = str(error.args[0]) if error.args else type(error).__name__
            kind, why = "garbage", f"no HTTP answer: {words}"
    return Failure(kind=kind, error=line(hidden(why, key)))
