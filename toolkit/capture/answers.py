"""Bytes that a server sent on one connection -> its answers: status, times, and what their ends tell of tokens.

An answer is not read in full. Its framing is followed; until the first token completion.py reads along, which is the only
stopwatch for tokens; after that only times and the last few KB are kept, which hold `usage` and the finish reason. A
compressed answer (Content-Encoding) is not unpacked: its tokens are unknown. No clock, no socket.
"""

import re
from collections import deque
from collections.abc import Callable

from toolkit.capture.answer_ends import Told, told_by_body, told_by_stream, told_by_tail
from toolkit.capture.records import HttpAnswer
from toolkit.protocol.completion import Completion

HEAD_BYTES = 256 * 1024
"""A longer head is none."""
TAIL_BYTES = 4096
"""How much of an answer's end is kept at least, and twice as much at most."""
FIRST_TOKEN_BYTES = 256 * 1024
"""A stream without a token so far is not one of ours: nobody looks for it any longer."""
SIZE_CHARS = 16
"""Hexadecimal digits of a chunk's size."""
LINE_BYTES = 16 * 1024
"""Of a chunk's size with its extensions, or of a trailer."""
CACHE_STATUS_CHARS = 200

BEGINNING = b"HTTP/1."
STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d\d\d)(?=[ \r])")
FIELDS = re.compile(
    rb"\r\n(content-length|transfer-encoding|content-type|content-encoding|cache-status|x-cache)[ \t]*:[ \t]*([^\r\n]*)",
    re.IGNORECASE,
)

# what the next bytes are
HEAD, LENGTH, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILER, UNTIL_CLOSE, LOST, TUNNEL = range(9)
WITHOUT_BODY = frozenset({204, 304})


class AnswerReader:
    """Feed it the server's bytes in order; every answer goes to `on_answer`, but not the interim ones (1xx)."""

    __slots__ = (
        *("_on_answer", "_asked", "_state", "_held", "_left", "_gapped", "_answer", "_is_asked"),
        *("_kind", "_is_plain", "_reader", "_fed", "_tail", "_tail_cut"),
    )

    def __init__(self, on_answer: Callable[[HttpAnswer], None]) -> None:
        self._on_answer = on_answer
        self._asked: deque[tuple[str | None, float]] = deque()
        """Requests whose answer has not begun: method, and when they were sent."""
        self._state = HEAD
        self._held = bytearray()
        """A head or a line that is not whole yet."""
        self._left = 0
        """Bytes of the body or the chunk that are still to come."""
        self._gapped = False
        """Bytes were lost since the last head: whole answers may be among them."""
        self._answer: HttpAnswer | None = None
        """The one that has begun."""
        self._is_asked = False
        """Whether the request of that one was told."""
        self._kind = b""
        """Content-Type."""
        self._is_plain = True
        """Neither compressed nor coded otherwise."""
        self._reader: Completion | None = None
        """Until the first token."""
        self._fed = 0
        self._tail = bytearray()
        self._tail_cut = False

    def asked(self, method: str | None, sent_at: float) -> None:
        """A request went out; its answer comes after those of all before it."""
        answer = self._answer
        if answer is not None and answer.status is not None and not self._is_asked:
            # it began before its request was whole: a server may refuse one that is still on its way
            self._is_asked = True
        else:
            self._asked.append((method, sent_at))

    def data(self, ts: float, data: bytes) -> None:
        """Read the next bytes."""
        at = 0
        while at < len(data):
            at = self._STEPS[self._state](self, ts, data, at)

    def gap(self, ts: float, missing: int | None) -> None:
        """Bytes were lost, how many if that is known. A body whose length is known goes on behind them."""
        if self._state in (LENGTH, CHUNK) and missing is not None and missing <= self._left:
            self._spoil()
            self._left -= missing
            if not self._left:
                self._end_part(ts)
        elif self._state != TUNNEL:
            self._lose()

    def end(self, ts: float) -> None:  # noqa: ARG002 - the last byte's time counts
        """The connection is over: what has begun is all there is of it."""
        if self._state == UNTIL_CLOSE:
            self._finish()
        elif self._answer is not None:
            self._hand_over(self._answer)
        self._state = TUNNEL

    # --- what comes next, by state; each reads on from `at` and returns how far it came ----------

    def _find_head(self, _ts: float, data: bytes, at: int) -> int:
        """Lost: an answer begins where a status line begins the bytes."""
        begins = data[: SIZE_CHARS + len(BEGINNING)].lstrip(b"\r\n") if not at else b""
        if STATUS_LINE.match(begins) is None:
            return len(data)
        self._state = HEAD
        return 0

    def _read_head(self, ts: float, data: bytes, at: int) -> int:
        held = self._held
        if not held:
            while at < len(data) and data[at] in b"\r\n":
                at += 1
            if at == len(data):
                return at
            self._answer = HttpAnswer(first_at=ts)
            self._is_asked = False
        seen = len(held)
        held += data[at : at + HEAD_BYTES]
        end = held.find(b"\r\n\r\n", max(0, seen - 3))
        begins = held[: len(BEGINNING)] == BEGINNING[: len(held)]
        if end < 0 and begins and len(held) < HEAD_BYTES:
            return len(data)
        head = bytes(held[: end + 2])
        status = STATUS_LINE.match(head)
        held.clear()
        if end < 0 or status is None:
            # no answer at all, e.g., the rest of one that began before the capture
            self._answer = None
            self._lose()
            return len(data)
        self._take_head(ts, int(status[1]), head)
        return at + end + 4 - seen

    def _take_head(self, ts: float, status: int, head: bytes) -> None:
        answer = self._answer
        assert answer is not None
        if status < 200 and status != 101:
            self._answer = None
            return
        method = self._request_of(answer)
        fields: dict[bytes, bytes] = {}
        for name, value in FIELDS.findall(head):
            fields.setdefault(name.lower(), value.strip())
        length = fields.get(b"content-length")
        coding = fields.get(b"transfer-encoding", b"").lower()
        packed = fields.get(b"content-encoding", b"").lower()
        self._kind = fields.get(b"content-type", b"").lower()
        self._is_plain = packed in (b"", b"identity") and coding in (b"", b"chunked")
        answer.status, answer.last_at = status, ts
        answer.cache_status = _text(fields.get(b"cache-status") or fields.get(b"x-cache"))
        answer.stream = self._kind.startswith(b"text/event-stream")
        if answer.stream and status < 300 and self._is_plain:
            self._reader = Completion(status=status, content_type="text/event-stream")
        self._begin_body(status, method, length, coding)

    def _request_of(self, answer: HttpAnswer) -> str | None:
        """The method of the request that an answer belongs to; of answers that were lost before it, say so."""
        while self._gapped and len(self._asked) > 1 and self._asked[1][1] <= (answer.first_at or 0):
            # the client had sent the next request already, so it had the answer to this one
            self._asked.popleft()
            self._on_answer(HttpAnswer(damaged=True))
        self._gapped = False
        self._is_asked = bool(self._asked)
        return self._asked.popleft()[0] if self._asked else None

    def _begin_body(
        self, status: int, method: str | None, length: bytes | None, coding: bytes
    ) -> None:
        """How long the body is: RFC 9112, 6.3."""
        if status == 101 or (method == "CONNECT" and status < 300):
            self._finish()
            self._state = TUNNEL
        elif method == "HEAD" or status in WITHOUT_BODY:
            self._finish()
        elif coding:
            self._state = CHUNK_SIZE if coding.endswith(b"chunked") else UNTIL_CLOSE
        elif length is not None and length.isdigit() and len(length) <= SIZE_CHARS:
            self._left = int(length)
            self._state = LENGTH
            if not self._left:
                self._finish()
        else:
            self._state = UNTIL_CLOSE

    def _read_known(self, ts: float, data: bytes, at: int) -> int:
        """A body or a chunk whose length is known."""
        part = data[at : at + self._left]
        self._take(ts, part)
        self._left -= len(part)
        if not self._left:
            self._end_part(ts)
        return at + len(part)

    def _end_part(self, ts: float) -> None:
        if self._state == CHUNK:
            self._state = CHUNK_END
        else:
            assert self._answer is not None
            self._answer.last_at = ts
            self._finish()

    def _read_size(self, ts: float, data: bytes, at: int) -> int:
        """Chunks that are here as a whole, as a stream's tokens mostly come, one to a segment: 1 us; else the size of one."""
        while not self._held:
            end = data.find(b"\r\n", at, at + SIZE_CHARS + 2)
            size = _size(data[at:end]) if end > 0 else 0
            behind = end + 2 + size
            if size <= 0 or data[behind : behind + 2] != b"\r\n":
                break
            self._take(ts, data[end + 2 : behind])
            at = behind + 2
            if at == len(data):
                return at
        return self._read_size_line(data, at)

    def _read_size_line(self, data: bytes, at: int) -> int:
        line, at = self._line(data, at)
        if line is not None:
            self._left = _size(line.partition(b";")[0].strip())
            if self._left < 0:
                self._lose()
                return len(data)
            self._state = CHUNK if self._left else TRAILER
        return at

    def _read_chunk_end(self, _ts: float, data: bytes, at: int) -> int:
        line, at = self._line(data, at)
        if line is not None:
            self._state = CHUNK_SIZE
            if line:
                self._lose()
                return len(data)
        return at

    def _read_trailer(self, ts: float, data: bytes, at: int) -> int:
        line, at = self._line(data, at)
        if line == b"":
            self._end_part(ts)
        return at

    def _read_until_close(self, ts: float, data: bytes, at: int) -> int:
        self._take(ts, data[at:])
        return len(data)

    def _ignore(self, _ts: float, data: bytes, _at: int) -> int:
        return len(data)

    def _line(self, data: bytes, at: int) -> tuple[bytes | None, int]:
        """A line, and where it ends; None while it is not whole."""
        held = self._held
        if held[-1:] == b"\r" and data[at : at + 1] == b"\n":
            line = bytes(held[:-1])
            held.clear()
            return line, at + 1
        end = data.find(b"\r\n", at)
        if end >= 0:
            line = bytes(held) + data[at:end]
            held.clear()
            return line, end + 2
        if len(held) + len(data) - at > LINE_BYTES:
            self._lose()
        elif at < len(data):
            held += data[at:]
        return None, len(data)

    _STEPS = (
        _read_head,
        _read_known,
        _read_size,
        _read_known,
        _read_chunk_end,
        _read_trailer,
        _read_until_close,
        _find_head,
        _ignore,
    )
    """In the order of the states."""

    # --- one answer's body -------------------------------------------------------------------------

    def _take(self, ts: float, data: bytes) -> None:
        """The next bytes of the body."""
        answer = self._answer
        assert answer is not None
        answer.last_at = ts
        if self._reader is not None:
            self._look_for_token(self._reader, answer, ts, data)
        tail = self._tail
        tail += data
        if len(tail) > 2 * TAIL_BYTES:
            del tail[:-TAIL_BYTES]
            self._tail_cut = True

    def _look_for_token(
        self, reader: Completion, answer: HttpAnswer, ts: float, data: bytes
    ) -> None:
        reader.feed(data, ts)
        self._fed += len(data)
        answer.token_at = reader.first_token_at
        if answer.token_at is not None or self._fed > FIRST_TOKEN_BYTES:
            self._reader = None

    def _spoil(self) -> None:
        """Part of the body is lost; what follows may still tell its end."""
        assert self._answer is not None
        self._answer.damaged = True
        self._reader = None
        self._tail.clear()
        self._tail_cut = True

    def _lose(self) -> None:
        """Where the next answer begins is not known, and of one that has begun nothing more."""
        answer = self._answer
        if answer is not None:
            if answer.status is None:
                # its head is not whole, so that its request still waits in the row
                self._request_of(answer)
            answer.damaged = True
            self._hand_over(answer)
        self._gapped = True
        self._state = LOST
        self._held.clear()

    def _finish(self) -> None:
        """The answer is whole."""
        answer = self._answer
        assert answer is not None
        answer.complete = not answer.damaged
        self._state = HEAD
        if self._tail and self._is_plain and (answer.status or 0) < 300:
            told = self._told(answer)
            answer.prompt_tokens, answer.output_tokens = told.prompt_tokens, told.output_tokens
            answer.cached_tokens, answer.finish_reason = told.cached_tokens, told.finish_reason
        self._hand_over(answer)

    def _told(self, answer: HttpAnswer) -> Told:
        tail = bytes(self._tail)
        if answer.stream:
            return told_by_stream(tail)
        if b"json" not in self._kind:
            return Told()
        return told_by_tail(tail) if self._tail_cut else told_by_body(tail)

    def _hand_over(self, answer: HttpAnswer) -> None:
        self._answer = None
        self._reader = None
        self._held.clear()
        self._tail.clear()
        self._left = self._fed = 0
        self._tail_cut = False
        self._on_answer(answer)


def _size(digits: bytes) -> int:
    """A chunk's size; -1 for what is none."""
    try:
        return int(digits, 16) if digits.isalnum() and len(digits) <= SIZE_CHARS else -1
    except ValueError:
        return -1


def _text(value: bytes | None) -> str | None:
    """A header as sent, in printable characters."""
    if value is None:
        return None
    text = value[:CACHE_STATUS_CHARS].decode("latin-1")
    return "".join(char if char.isprintable() else "?" for char in text)
