"""Bytes that a server sent on one connection -> its answers, each with the request that it belongs to.

An answer is not read in full: until the first token completion.py reads along, which is the only stopwatch for tokens; after
that only times and the last few KB are kept, which hold `usage` and the finish reason. A compressed answer (Content-Encoding) is
not unpacked: its tokens are unknown. No clock, no socket.
"""

import re
from collections import Counter, deque
from collections.abc import Callable

from httptools import HttpResponseParser

from toolkit.capture.http import HEAD, IGNORED, LOST, UNTIL_CLOSE, Messages, Requests
from toolkit.capture.records import HttpAnswer, HttpRequest, MemoryBounds
from toolkit.protocol.completion import UNFINISHED, Completion, token_count
from toolkit.protocol.sse import LAST_LINE_ENDS

TAIL_BYTES = 4096
"""How much of an answer's end is kept at least, and twice as much at most."""
ANSWER_BYTES = 2 * TAIL_BYTES
"""What an unanswered request costs beside its body."""
FIRST_TOKEN_BYTES = 256 * 1024
"""A stream without a token so far is not one of ours: nobody looks for it any longer."""
CACHE_STATUS_CHARS = 200
PIPELINED = 128
"""Unanswered requests of one connection; clients have one, load generators that pipeline some tens."""
SERVERS = 65_536
"""Of which it is remembered that the capture holds what they send."""
WITHOUT_BODY = frozenset({204, 304})


class Answers(Messages):
    """The answers to the requests of one connection: a request is delivered when its answer is over, or will not come.

    `in_flight` and `speaking` are of all connections: unanswered requests by server, address and port; and servers of which
    the capture holds what they send.
    """

    __slots__ = (
        *("_answer", "_completion", "_deliver", "_early", "_fed", "_gapped", "_in_flight"),
        *("_is_cut", "_is_read", "_server", "_speaking", "_tail", "_waiting", "requests"),
    )
    BEGINNING = re.compile(rb"H(?:\Z|T(?:\Z|T(?:\Z|P(?:\Z|/))))")
    FIRST_LINE = re.compile(rb"[\r\n]{0,16}HTTP/1\.[01] \d\d\d(?=[ \r])")
    FIELDS = frozenset(
        b"content-length transfer-encoding content-type content-encoding cache-status x-cache".split()
    )

    def __init__(
        self,
        deliver: Callable[[HttpRequest], None],
        key: bytes,
        limits: MemoryBounds,
        in_flight: Counter[bytes],
        speaking: set[bytes],
    ) -> None:
        super().__init__(limits, HEAD)
        self._deliver, self._in_flight, self._speaking = deliver, in_flight, speaking
        address = (len(key) - 4) // 2
        self._server = key[address : 2 * address] + key[-2:]
        self.requests: Requests
        self._waiting: deque[HttpRequest] = deque()
        """Requests without an answer; an answer that has begun is the first one's."""
        self._early: HttpAnswer | None = None
        """An answer that was over before its request was whole, e.g., a refusal."""
        self._answer = HttpAnswer()
        """The one whose head was read last."""
        self._gapped = False
        """Bytes were lost since the last head: whole answers may be among them."""
        self._is_read = False
        """Whether its end is searched for tokens."""
        self._completion: Completion | None = None
        """Reads it until the first token."""
        self._fed = 0
        self._tail = bytearray()
        self._is_cut = False
        """The tail is not all of the body."""

    # --- requests

    def expect_answer(self, request: HttpRequest) -> None:
        """A request is whole, or as whole as it will be; its answer comes after those of all before it."""
        request.in_flight = self._in_flight[self._server]
        self._in_flight[self._server] += 1
        self._waiting.append(request)
        self._keep(ANSWER_BYTES + len(request.body or b""))
        if len(self._waiting) > PIPELINED:
            # the server's half is not captured, or no longer
            while len(self._waiting) > 1:
                self._release(None)
            self._gapped = False
            self._completion, self._fed, self._is_cut = None, 0, False
            self._tail.clear()
            self.forget(HEAD)
        if self._early is not None:
            self._release(self._early)

    def _release(self, answer: HttpAnswer | None) -> None:
        """Deliver the request that waits longest."""
        request = self._waiting.popleft()
        request.answer, self._early = answer, None
        self._in_flight[self._server] -= 1
        if not self._in_flight[self._server]:
            del self._in_flight[self._server]
        if self._server not in self._speaking:  # only clients were captured: nobody knows
            request.in_flight = None
        self._keep(-ANSWER_BYTES - len(request.body or b""))
        self._deliver(request)

    def _keep(self, size: int) -> None:
        self.waiting_bytes += size
        self.held += size

    def end(self) -> None:
        """The connection is over: what has begun is all there is of it, and no further answer comes."""
        if self.is_open and self._state == UNTIL_CLOSE:
            self.end_message()
        elif self.is_open:
            self._hand_over(
                HttpAnswer(first_at=self._began_at) if self._state == HEAD else self._answer
            )
        self.forget(IGNORED)
        while self._waiting:
            self._release(None)

    # --- the server's bytes

    def begin(self) -> None:
        """The server speaks, be it only to take the connection."""
        if len(self._speaking) < SERVERS:
            self._speaking.add(self._server)

    def starts(self, data: bytes) -> bool:  # noqa: ARG002 - they find their own beginning
        """Whether a segment can be read without what came before it."""
        return True

    def read_head(self, head: bytes) -> bool:
        """Whose answer it is, and how long its body is (RFC 9112, 6.3)."""
        parser = HttpResponseParser(self)
        # heads that only browsers read are sent, too
        parser.set_dangerous_leniencies(lenient_headers=True, lenient_chunked_length=True)
        # without `Connection: upgrade` httptools takes no 101
        if not self.parse(parser, head) and parser.get_status_code() != 101:
            return False
        self.begin()
        status, fields = parser.get_status_code(), self._fields
        if status < 200 and status != 101:  # an interim one
            self.forget(HEAD)
            return True
        method = self._find_request()
        coding = fields.get(b"transfer-encoding", b"").lower()
        kind = fields.get(b"content-type", b"").lower()
        cache_status = fields.get(b"cache-status") or fields.get(b"x-cache")
        is_stream = kind.startswith(b"text/event-stream")
        self._is_read = (
            status < 300
            and (is_stream or b"json" in kind)
            and fields.get(b"content-encoding", b"").lower() in (b"", b"identity")
            and coding in (b"", b"chunked")
        )
        if is_stream and self._is_read:
            self._completion = Completion(status=status, content_type="text/event-stream")
        self._answer = HttpAnswer(
            status=status, first_at=self._began_at, last_at=self._now, stream=is_stream
        )
        if cache_status is not None:
            text = cache_status[:CACHE_STATUS_CHARS].decode("latin-1").strip()
            self._answer.cache_status = "".join(c if c.isprintable() else "?" for c in text)

        if status == 101 or (method == "CONNECT" and status < 300):
            self.end_message()
            self.forget(IGNORED)
        elif method == "HEAD" or status in WITHOUT_BODY:
            self.expect(0)
        elif coding:
            self.expect(None, chunked=coding.endswith(b"chunked"))
        else:
            length = fields.get(b"content-length")
            self.expect(None if length is None else int(length))
        return True

    def _find_request(self) -> str | None:
        """The method of the request that an answer belongs to; of answers that were lost before it, say so."""
        waiting = self._waiting
        while self._gapped and len(waiting) > 1 and waiting[1].ts_last <= self._began_at:
            # the client had sent the next request already, so it had the answer to this one
            self._release(HttpAnswer(damaged=True))
        self._gapped = False
        return waiting[0].method if waiting else None

    def read_body(self, data: bytes) -> None:
        """Look for the first token, and keep the end."""
        answer = self._answer
        answer.last_at = self._now
        if self._completion is not None:
            self._completion.feed(data, self._now)
            self._fed += len(data)
            answer.token_at = self._completion.first_token_at
            if answer.token_at is not None or self._fed > FIRST_TOKEN_BYTES:
                self._completion = None
        self._tail += data
        if len(self._tail) > 2 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]
            self._is_cut = True

    def hide_body(self) -> None:
        """Its end may still come."""
        self._answer.damaged = self._is_cut = True
        self._completion = None
        self._tail.clear()

    def end_message(self) -> None:
        """The answer is whole, but for what holes hid."""
        answer = self._answer
        answer.last_at, answer.complete = self._now, not answer.damaged
        if self._tail and self._is_read:
            (
                answer.prompt_tokens,
                answer.output_tokens,
                answer.cached_tokens,
                answer.finish_reason,
            ) = read_tokens(bytes(self._tail), is_stream=answer.stream, is_cut=self._is_cut)
        self._hand_over(answer)

    def lose(self, missing: int | None) -> None:  # noqa: ARG002 - how much is told by nothing
        """Of an answer that has begun comes nothing more."""
        if self.is_open:
            if self._state == HEAD:  # whose it is, is still to be found
                self._answer = HttpAnswer(first_at=self._began_at)
                self._find_request()
            self._answer.damaged = True
            self._hand_over(self._answer)
        self._gapped = True
        self.forget(LOST)

    def refuse(self, data: bytes) -> None:  # noqa: ARG002 - whatever it is
        """No answer at all, e.g., the rest of one that began before the capture."""
        self._gapped = True
        self.forget(LOST)

    def _hand_over(self, answer: HttpAnswer) -> None:
        self._completion, self._fed, self._is_cut = None, 0, False
        self._tail.clear()
        if self._waiting:
            self._release(answer)
        elif self.requests.is_open:
            self._early = answer


# --- what an answer's last bytes say of tokens --------------------------------------------------------

LAST_EVENTS = 3
"""The last token with the finish reason, the usage, and `[DONE]`."""
NUMBERS = re.compile(
    rb'"(prompt_tokens|completion_tokens|cached_tokens|input_tokens|output_tokens)"\s*:\s*(\d{1,16})(?![\d.eE])'
)
FINISH = re.compile(rb'"finish_reason"\s*:\s*"(\w{1,40})"')
STOP = re.compile(rb'"stop_reason"\s*:\s*"(end_turn|stop_sequence|max_tokens|tool_use)"')
FINISHES = {b"max_tokens": "length", b"tool_use": "tool_calls"}
"""Anthropic's words in OpenAI's; the others are `stop`."""
OTHER_CHOICES = re.compile(rb'"index": ?1')

Tokens = tuple[int | None, int | None, int | None, str | None]
"""Of the prompt, of the answer, and of the prompt from the engine's cache; and the finish reason."""


def read_tokens(end: bytes, *, is_stream: bool, is_cut: bool) -> Tokens:
    """What an answer's last bytes say; `is_cut`: its beginning is not among them. Half an event at a stream's is no event.

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
    found: Tokens = (
        numbers.get(b"prompt_tokens", numbers.get(b"input_tokens")),
        numbers.get(b"completion_tokens", numbers.get(b"output_tokens")),
        numbers.get(b"cached_tokens"),
        finish[1].decode() if finish else FINISHES.get(stop[1], "stop") if stop else None,
    )
    is_plain = is_cut
    if is_stream:
        is_plain = bool(found[3]) and b'"error"' not in last and not OTHER_CHOICES.search(end)
    if is_plain:
        return found

    kind = "text/event-stream" if is_stream else "application/json"
    completion = Completion(status=200, content_type=kind)
    completion.feed(end, 0.0)
    said = completion.end(0.0)
    has_failed = said.error_kind == "stream_error" and said.finish_reason not in UNFINISHED
    # counted chunks would be those of the end
    output_tokens = None if said.output_tokens_estimated else said.output_tokens
    finish_reason = "error" if has_failed else said.finish_reason
    read = (said.prompt_tokens, output_tokens, said.cached_tokens, finish_reason)
    # other answers than OpenAI's have a `usage`, too
    return found if read == (None,) * 4 else read
