"""One answer on its way to one client, whoever decides what is in it: it ends once, and its end is told once.

It writes to the Reply and reads the clock that it is given; it waits for nothing by itself.
"""

from collections.abc import Callable
from dataclasses import dataclass

from toolkit.proxy.error_json import CONTENT_TYPE, error_body
from toolkit.proxy.exchange import Headers, Rejection, Reply
from toolkit.proxy.faults import FAULTS, Fault

SLICE_BYTES = 256 * 1024
"""Most that is written before it is asked again whether the client reads: what a client has not read is held for it
alone, while the answer itself is held once for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What one client got. Times are those of the clock that was given."""

    status: int | None
    """None: the client left before there was one."""
    first_token_s: float | None = None
    """When a stream's first token was written; None for a whole body, and if none came."""
    end_s: float
    left: bool = False
    """The client left before the end."""
    fault: Fault | None = None
    """Why the answer is not whole, or there is none."""
    rejection: Rejection | None = None
    retry_after_s: int | None = None
    """As the client was told."""
    body_bytes: int = 0
    """Written, without framing; whether the client read all of it, nobody knows."""


def with_type(headers: Headers, content_type: str) -> Headers:
    """An answer's headers with its content-type, if it has one."""
    if not content_type:
        return headers
    # it came in a header: whatever bytes it had, it has
    return [*headers, (b"content-type", content_type.encode("utf-8", "surrogateescape"))]


class Sending:
    """From `whole` or `begin` to `end`, `cut` or the client's leaving, whichever is first; what comes later does nothing."""

    __slots__ = (
        *("body_bytes", "first_token_s", "is_over", "reply", "status"),
        *("_clock", "_ended", "_left"),
    )

    def __init__(
        self,
        reply: Reply,
        *,
        ended: Callable[[Sent], None],
        left: Callable[[], None] | None = None,
        clock: Callable[[], float],
    ) -> None:
        self.reply = reply
        self.status: int | None = None
        self.first_token_s: float | None = None
        self.body_bytes = 0
        self.is_over = False
        """Nothing more is written, and the end was told."""
        self._ended: Callable[[Sent], None] | None = ended
        self._left, self._clock = left, clock
        reply.on_gone = self.leave

    @property
    def can_write(self) -> bool:
        """The answer goes on, and the client reads."""
        return not (self.is_over or self.reply.is_paused)

    def whole(
        self, status: int, headers: Headers, body: bytes, *, has_tokens: bool = False
    ) -> None:
        """Send a whole answer; a large one goes as the client reads it. `has_tokens`: it is a stream's events."""
        if not self._is_open():
            return
        if len(body) > SLICE_BYTES:
            _Slices(self, body, has_tokens=has_tokens).begin(status, headers)
            return
        self._let_go()
        self.status, self.body_bytes = status, len(body)
        self.reply.whole(status, headers, body)
        if has_tokens:
            self.note_token()
        self._tell()

    def begin(
        self,
        status: int,
        headers: Headers,
        *,
        length: int | None = None,
        fill: Callable[[], None],
    ) -> None:
        """Begin an answer in parts; `fill` is called whenever a client that had fallen behind reads again."""
        if not self._is_open():
            return
        self.status = status
        self.reply.on_writable = fill
        self.reply.begin(status, headers, length=length)

    def write(self, data: bytes) -> None:
        """Send a part."""
        if data and not self.is_over:
            self.body_bytes += len(data)
            self.reply.write(data)

    def note_token(self) -> None:
        """A token was written, just now; only the first time counts."""
        if self.first_token_s is None:
            self.first_token_s = self._clock()

    def end(self) -> None:
        """The answer is whole."""
        if not self.is_over:
            self._let_go()
            self.reply.end()
            self._tell()

    def cut(self, last: bytes, fault: Fault) -> None:
        """The answer has begun and can't be completed: a last part that says so, and no proper end."""
        if not self.is_over:
            self.write(last)
            self._let_go()
            self.reply.abort()
            self._tell(fault=fault)

    def refuse(
        self,
        status: int,
        headers: Headers,
        body: bytes,
        *,
        fault: Fault | None = None,
        rejection: Rejection | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        """Send an error of ours in place of an answer."""
        if not self.is_over:
            self._let_go()
            self.status, self.body_bytes = status, len(body)
            self.reply.whole(status, headers, body)
            self._tell(fault=fault, rejection=rejection, retry_after_s=retry_after_s)

    def leave(self) -> None:
        """The client left: let who works for it know at once."""
        if not self.is_over:
            self._let_go()
            if self._left is not None:
                self._left()
            self._tell(left=True)

    def fail(self) -> None:
        """A fault of ours, whatever was done before it: an error where no answer began, else a cut."""
        if self._ended is None:
            return
        self._let_go()
        fault = Fault(kind="ours", message=FAULTS["ours"][1])
        if self.status is None:
            self.status, body = fault.status, error_body(fault.status, fault.message)
            self.reply.whole(fault.status, [CONTENT_TYPE], body)
        else:
            self.reply.abort()
        self._tell(fault=fault)

    def drop(self) -> None:
        """Somebody else answers this client: nothing was sent here, and nothing is told."""
        assert self.status is None, "an answer that has begun is not somebody else's"
        self._let_go()
        self._ended = self._left = None

    def _is_open(self) -> bool:
        """Whether an answer may begin; a client that left before this was made told nobody."""
        if self.reply.is_gone:
            self.leave()
        return not self.is_over

    def _let_go(self) -> None:
        self.is_over = True
        self.reply.on_gone = self.reply.on_writable = None

    def _tell(
        self,
        *,
        left: bool = False,
        fault: Fault | None = None,
        rejection: Rejection | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        told = Sent(
            status=self.status,
            first_token_s=self.first_token_s,
            end_s=self._clock(),
            left=left,
            fault=fault,
            rejection=rejection,
            retry_after_s=retry_after_s,
            body_bytes=self.body_bytes,
        )
        ended, self._ended, self._left = self._ended, None, None
        assert ended is not None
        ended(told)


class _Slices:
    """A whole body, slice by slice, as the client reads."""

    __slots__ = ("_at", "_body", "_has_tokens", "_sending")

    def __init__(self, sending: Sending, body: bytes, *, has_tokens: bool) -> None:
        self._sending, self._body, self._has_tokens = sending, body, has_tokens
        self._at = 0

    def begin(self, status: int, headers: Headers) -> None:
        self._sending.begin(status, headers, length=len(self._body), fill=self.fill)
        self.fill()

    def fill(self) -> None:
        while self._sending.can_write and self._at < len(self._body):
            self._sending.write(self._body[self._at : self._at + SLICE_BYTES])
            self._at += SLICE_BYTES
            if self._has_tokens:
                self._sending.note_token()
        if self._at >= len(self._body):
            self._sending.end()
