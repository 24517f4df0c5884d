"""Bytes that a server sent on one connection -> its answers, and which request each of them belongs to.

An answer is not read in full. httptools follows its framing; until the first token completion.py reads along, which is the
only stopwatch for tokens; after that only times and the last few KB are kept, which hold `usage` and the finish reason. A
compressed answer (Content-Encoding) is not unpacked: its tokens are unknown. No clock, no socket.
"""

import re
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserUpgrade,
    HttpResponseParser,
)

from toolkit.capture.records import HttpAnswer, HttpRequest
from toolkit.protocol.completion import UNFINISHED, Completion, token_count
from toolkit.protocol.sse import LAST_LINE_ENDS

if TYPE_CHECKING:
    from toolkit.capture.http import Requests

HEAD_BYTES = 256 * 1024
"""A longer head is none."""
TAIL_BYTES = 4096
"""How much of an answer's end is kept at least, and twice as much at most."""
FIRST_TOKEN_BYTES = 256 * 1024
"""A stream without a token so far is not one of ours: nobody looks for it any longer."""
LINE_BYTES = 16 * 1024
"""Of a chunk's size with its extensions, or of all trailers."""
LONGEST_HOLE = 16 * 1024 * 1024
"""A body is not followed over a longer one."""
CACHE_STATUS_CHARS = 200

STATUS_LINE = re.compile(rb"[\r\n]{0,16}HTTP/1\.[01] \d\d\d(?=[ \r])")
FIELDS = frozenset(
    b"content-length transfer-encoding content-type content-encoding cache-status x-cache".split()
)
WITHOUT_BODY = frozenset({204, 304})

# what the next bytes are
READ, LOST, TUNNEL = range(3)


class AnswerReader:
    """Feed it the server's bytes in order; every answer goes to `on_answer`, but not the interim ones (1xx)."""

    __slots__ = (
        *("_on_answer", "_asked", "_state", "_parser", "_now", "_done", "_gapped", "_answer"),
        *("_is_asked", "_fields", "_in_head", "_framing", "_ends_with_head", "_until_close"),
        *("_is_padding", "_is_plain", "_kind", "_reader", "_fed", "_tail", "_tail_cut"),
    )

    def __init__(self, on_answer: Callable[[HttpAnswer], None]) -> None:
        self._on_answer = on_answer
        self._asked: deque[tuple[str | None, float]] = deque()
        """Requests whose answer has not begun: method, and when they were sent."""
        self._state = READ
        self._parser: HttpResponseParser | None = None
        self._now = 0.0
        self._done: list[HttpAnswer] = []
        """Of the bytes just fed; an exception raised in a callback would be lost in httptools."""
        self._gapped = False
        """Bytes were lost since the last head: whole answers may be among them."""
        self._answer: HttpAnswer | None = None
        """The one that has begun."""
        self._is_asked = False
        """Whether the request of that one was told."""
        self._fields: dict[bytes, bytes] = {}
        self._in_head = False
        self._framing = 0
        """Bytes since the head began, or since the last ones of the body."""
        self._ends_with_head = self._until_close = False
        """How its body is framed where the head alone does not tell the parser, or nothing does."""
        self._is_padding = False
        """What is fed stands for bytes that were lost."""
        self._is_plain = True
        """Neither compressed nor coded otherwise."""
        self._kind = b""
        """Content-Type."""
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
        self._now = ts
        if self._state == LOST and STATUS_LINE.match(data):
            self._state = READ
        pieces = [data]
        if any(method == "HEAD" for method, _ in self._asked):
            # The parser cannot know that no body follows; what does is another answer, for a new parser. In lines, so that
            # the head ends with a piece.
            pieces = data.splitlines(keepends=True)
        for piece in pieces:
            if self._state == READ and piece:
                self._feed(piece)

    def gap(self, ts: float, missing: int | None) -> None:
        """Bytes were lost, how many if that is known. A body whose framing is not lost with them goes on behind them."""
        if self._state == TUNNEL:
            return
        self._now = ts
        answer = self._answer
        if (
            answer is None
            or self._in_head
            or missing is None
            or missing > LONGEST_HOLE
            or self._until_close
        ):
            self._lose()
            return
        # What stands for them is framing nowhere, so that a hole beyond the body or the chunk is an error. No byte of it is
        # told: part of the body is lost, and what follows may still tell its end.
        answer.damaged = True
        self._reader = None
        self._tail.clear()
        self._tail_cut = self._is_padding = True
        self._feed(bytes(missing))
        self._is_padding = False

    def end(self, ts: float) -> None:  # noqa: ARG002 - the last byte's time counts
        """The connection is over: what has begun is all there is of it."""
        if self._answer is not None and self._until_close and not self._in_head:
            self._finish()
        elif self._answer is not None:
            self._hand_over(self._answer)
        self._deliver()
        self._state = TUNNEL
        self._parser = None

    def _feed(self, data: bytes) -> None:
        if self._parser is None:
            self._parser = HttpResponseParser(self)
            # a server may close and send on, and write heads that only browsers read: we tell what was sent
            self._parser.set_dangerous_leniencies(
                lenient_headers=True,
                lenient_chunked_length=True,
                lenient_keep_alive=True,
                lenient_spaces_after_chunk_size=True,
            )
        self._framing += len(data)
        is_broken = False
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self._state = TUNNEL
        except HttpParserCallbackError:
            raise
        except HttpParserError:
            is_broken = True
        if self._ends_with_head:
            # the next answer begins behind the head, for a new parser
            self._ends_with_head = False
            self._parser = None
        elif self._state == TUNNEL:
            self._parser = None
        elif is_broken or self._framing > (HEAD_BYTES if self._in_head else LINE_BYTES):
            if self._in_head:
                # no answer at all, e.g., the rest of one that began before the capture
                self._answer = None
            self._lose()
        self._deliver()

    # --- httptools' callbacks ---------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """The first byte of a status line."""
        if self._state == TUNNEL:
            return
        self._answer = HttpAnswer(first_at=self._now)
        self._fields = {}
        self._in_head, self._is_asked, self._until_close = True, False, False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep the few that matter, as the first of their name says."""
        name = name.lower()
        if name in FIELDS and self._in_head:
            self._fields.setdefault(name, value.strip())

    def on_headers_complete(self) -> None:
        """The head is over: whose answer it is, and how long its body is (RFC 9112, 6.3)."""
        answer, fields = self._answer, self._fields
        if answer is None:
            return
        assert self._parser is not None
        self._in_head = False
        self._framing = 0
        status = self._parser.get_status_code()
        if status < 200 and status != 101:
            self._answer = None
            return
        method = self._request_of(answer)
        coding = fields.get(b"transfer-encoding", b"").lower()
        packed = fields.get(b"content-encoding", b"").lower()
        self._kind = fields.get(b"content-type", b"").lower()
        self._is_plain = packed in (b"", b"identity") and coding in (b"", b"chunked")
        answer.status, answer.last_at = status, self._now
        answer.cache_status = _text(fields.get(b"cache-status") or fields.get(b"x-cache"))
        answer.stream = self._kind.startswith(b"text/event-stream")
        if answer.stream and status < 300 and self._is_plain:
            self._reader = Completion(status=status, content_type="text/event-stream")
        if status == 101 or (method == "CONNECT" and status < 300):
            self._finish()
            self._state = TUNNEL
        elif method == "HEAD":
            self._finish()
            self._ends_with_head = True
        elif status not in WITHOUT_BODY:
            self._until_close = not (
                coding.endswith(b"chunked") if coding else b"content-length" in fields
            )

    def on_body(self, data: bytes) -> None:
        """A piece of the body, without the chunks' framing."""
        self._framing = 0
        answer = self._answer
        if answer is None or self._is_padding:
            return
        answer.last_at = self._now
        if self._reader is not None:
            self._reader.feed(data, self._now)
            self._fed += len(data)
            answer.token_at = self._reader.first_token_at
            if answer.token_at is not None or self._fed > FIRST_TOKEN_BYTES:
                self._reader = None
        tail = self._tail
        tail += data
        if len(tail) > 2 * TAIL_BYTES:
            del tail[:-TAIL_BYTES]
            self._tail_cut = True

    def on_message_complete(self) -> None:
        """The last byte of an answer, interim ones and those that were told with their head among them."""
        self._framing = 0
        if self._answer is not None:
            self._answer.last_at = self._now
            self._finish()

    # --- one answer -------------------------------------------------------------------------------

    def _request_of(self, answer: HttpAnswer) -> str | None:
        """The method of the request that an answer belongs to; of answers that were lost before it, say so."""
        while self._gapped and len(self._asked) > 1 and self._asked[1][1] <= (answer.first_at or 0):
            # the client had sent the next request already, so it had the answer to this one
            self._asked.popleft()
            self._done.append(HttpAnswer(damaged=True))
        self._gapped = False
        self._is_asked = bool(self._asked)
        return self._asked.popleft()[0] if self._asked else None

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
        self._parser = None
        self._in_head = self._until_close = False
        self._framing = 0
        self._deliver()

    def _finish(self) -> None:
        """The answer is whole."""
        answer = self._answer
        assert answer is not None
        answer.complete = not answer.damaged
        is_read = answer.stream or b"json" in self._kind
        if self._tail and is_read and self._is_plain and (answer.status or 0) < 300:
            told = told_by_end(bytes(self._tail), is_stream=answer.stream, is_cut=self._tail_cut)
            answer.prompt_tokens, answer.output_tokens = told.prompt_tokens, told.output_tokens
            answer.cached_tokens, answer.finish_reason = told.cached_tokens, told.finish_reason
        self._hand_over(answer)

    def _hand_over(self, answer: HttpAnswer) -> None:
        self._answer = None
        self._reader = None
        self._tail.clear()
        self._fed = 0
        self._tail_cut = False
        self._done.append(answer)

    def _deliver(self) -> None:
        done, self._done = self._done, []
        for answer in done:
            self._on_answer(answer)


def _text(value: bytes | None) -> str | None:
    """A header as sent, in printable characters."""
    if value is None:
        return None
    text = value[:CACHE_STATUS_CHARS].decode("latin-1")
    return "".join(char if char.isprintable() else "?" for char in text)


# --- what an answer's last bytes tell ---------------------------------------------------------------

LAST_EVENTS = 3
"""The last token with the finish reason, the usage, and `[DONE]`."""
NUMBERS = re.compile(
    rb'"(prompt_tokens|completion_tokens|cached_tokens|input_tokens|output_tokens)"\s*:\s*(\d{1,16})(?![\d.eE])'
)
FINISH = re.compile(rb'"finish_reason"\s*:\s*"(\w{1,40})"')
STOP = re.compile(rb'"stop_reason"\s*:\s*"(end_turn|stop_sequence|max_tokens|tool_use)"')
FINISHES = {b"max_tokens": "length", b"tool_use": "tool_calls"}
"""Anthropic's words in OpenAI's; the others are `stop`."""
OTHER_CHOICES = (b'"index":1', b'"index": 1')


class Told(NamedTuple):
    """What the end of an answer tells of it."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None


def told_by_end(end: bytes, *, is_stream: bool, is_cut: bool) -> Told:
    """What an answer's last bytes tell; `is_cut`: its beginning is not among them. Half an event at a stream's is no event.

    The end of a stream with one choice is searched, not parsed: 6 us instead of 44, and a text cannot be taken for a field,
    because JSON escapes the quotes in it. So is the end of a long body: `usage` follows the choices, and the last one
    counts. Whatever is less plain is read by completion.py.
    """
    last = end
    if is_stream:
        end = end.replace(b"\r\n", b"\n")
        at = len(end)
        for _ in range(LAST_EVENTS + 1):
            at = max(0, end.rfind(LAST_LINE_ENDS, 0, at))
        last = end[at:]
    numbers = {name: token_count(int(digits)) for name, digits in NUMBERS.findall(last)}
    finish, stop = FINISH.search(last), STOP.search(last)
    found = Told(
        numbers.get(b"prompt_tokens", numbers.get(b"input_tokens")),
        numbers.get(b"completion_tokens", numbers.get(b"output_tokens")),
        numbers.get(b"cached_tokens"),
        finish[1].decode() if finish else FINISHES.get(stop[1], "stop") if stop else None,
    )
    if is_stream:
        has_others = any(other in end for other in OTHER_CHOICES)
        is_plain = found.finish_reason is not None and b'"error"' not in last and not has_others
    else:
        is_plain = is_cut
    if is_plain:
        return found

    kind = "text/event-stream" if is_stream else "application/json"
    reader = Completion(status=200, content_type=kind)
    reader.feed(end, 0.0)
    said = reader.end(0.0)
    has_failed = said.error_kind == "stream_error" and said.finish_reason not in UNFINISHED
    read = Told(
        said.prompt_tokens,
        # counted chunks would be those of the end
        None if said.output_tokens_estimated else said.output_tokens,
        said.cached_tokens,
        "error" if has_failed else said.finish_reason,
    )
    # other answers than OpenAI's have a `usage`, too
    return read if any(one is not None for one in read) else found


# --- which answer belongs to which request -----------------------------------------------------------

ANSWER_BYTES = 8192
"""What an unanswered request costs beside its body: its answer's tail."""
PIPELINED = 128
"""Unanswered requests of one connection; clients have one, load generators that pipeline some tens."""
SERVERS = 65_536
"""Of which it is remembered that the capture holds what they send."""


class Pairs:
    """The requests of one connection that wait for their answers; also the reader of the server's bytes."""

    __slots__ = (
        *("_answers", "_deliver", "_early", "_heard", "_in_flight", "_is_heard", "_server"),
        *("_waiting", "held", "requests"),
    )

    def __init__(
        self,
        deliver: Callable[[HttpRequest], None],
        key: bytes,
        in_flight: Counter[bytes],
        heard: set[bytes],
    ) -> None:
        self._deliver, self._in_flight, self._heard = deliver, in_flight, heard
        """Of all connections: unanswered requests by server, address and port; servers that speak."""
        address = (len(key) - 4) // 2
        self._server = key[address : 2 * address] + key[-2:]
        self.requests: Requests
        self._waiting: deque[HttpRequest] = deque()
        self._early: HttpAnswer | None = None
        """An answer that came before its request was whole, e.g., a refusal."""
        self._answers = AnswerReader(self._answered)
        self._is_heard = False
        self.held = 0
        """Bytes of the bodies of unanswered requests."""

    def asked(self, request: HttpRequest) -> None:
        """A request is whole, or as whole as it will be."""
        request.in_flight = self._in_flight[self._server]
        self._in_flight[self._server] += 1
        self._waiting.append(request)
        self.held += ANSWER_BYTES + (len(request.body) if request.body else 0)
        if len(self._waiting) > PIPELINED:
            self._give_up()
        early, self._early = self._early, None
        if early is None:
            self._answers.asked(request.method, request.ts_last)
        else:
            self._answered(early)

    def _answered(self, answer: HttpAnswer) -> None:
        if not self._waiting:
            if not self.requests.between:
                self._early = answer
            return
        request = self._waiting[0]
        request.answer = answer
        self._release()

    def _release(self) -> None:
        request = self._waiting.popleft()
        self._in_flight[self._server] -= 1
        if not self._in_flight[self._server]:
            del self._in_flight[self._server]
        if self._server not in self._heard:  # only clients were captured: nobody knows
            request.in_flight = None
        self.held -= ANSWER_BYTES + (len(request.body) if request.body else 0)
        self._deliver(request)

    def _give_up(self) -> None:
        """The server's half is not captured, or no longer: nobody waits for it."""
        last = self._waiting.pop()
        while self._waiting:
            self._release()
        self._waiting.append(last)
        self._answers = AnswerReader(self._answered)

    # --- the server's bytes -----------------------------------------------------------------------

    def data(self, ts: float, data: bytes) -> None:
        """Read the server's next bytes."""
        if not self._is_heard:
            self.begin()
        self._answers.data(ts, data)

    def gap(self, ts: float, missing: int | None) -> None:
        """Bytes of the server are missing."""
        self._answers.gap(ts, missing)

    def starts(self, data: bytes) -> bool:  # noqa: ARG002 - answers find their own beginning
        """Whether a segment can be read without what came before it."""
        return True

    def begin(self) -> None:
        """The server speaks, be it only to take the connection."""
        self._is_heard = True
        if len(self._heard) < SERVERS:
            self._heard.add(self._server)

    @property
    def between(self) -> bool:
        """Whether no request waits."""
        return not self._waiting

    def end(self, ts: float) -> None:
        """No further answer comes; the requests go out as they are."""
        self._answers.end(ts)
        while self._waiting:
            self._release()
