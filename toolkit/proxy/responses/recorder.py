"""Records one answer of an upstream as it comes: `parts` go to clients, and `end` says whether the whole may be stored, or why not.

Streams are cut into whole events. It reads no clock, and nothing is held twice but an unfinished event.
"""

from toolkit.protocol.completion import (
    DONE,
    DONE_EVENT,
    MAX_BODY_BYTES,
    MAX_EVENT_BYTES,
    Answer,
    Completion,
)
from toolkit.protocol.sse import LAST_LINE_ENDS, EventStream, event_ends
from toolkit.proxy.cache.entry import CachedResponse
from toolkit.proxy.responses.judge import COMPLETIONS, LAST_EVENTS, OtherAnswer
from toolkit.proxy.responses.transcode import FINISH, without_usage

LONGEST_BLANK_LINE = 4
MIB = 2**20
WHY_NOT = {
    "cut": "cut",
    "stream_error": "an error inside it",
    "no_finish": "no finish reason",
    "garbage": "not an answer",
    "too_large": f"larger than {MAX_BODY_BYTES // MIB} MiB, or an event of it than {MAX_EVENT_BYTES // MIB} MiB",
}
"""Kind of an answer's error -> why it is not stored."""


class Recorder:
    """Made when an answer's head came; `feed` takes the bytes, `end` fills in `answer`, and `cached` or `why_not`."""

    __slots__ = (
        *("answer", "cached", "content_type", "endpoint", "first_token_at", "forbidden"),
        *("has_failed", "is_finished", "is_stream", "parts", "sent_s", "status", "too_large"),
        *("why_not", "without_usage"),
        *("_bytes", "_held", "_held_at", "_max_bytes", "_reader", "_usage_came", "_waiting"),
    )

    def __init__(
        self,
        *,
        status: int,
        content_type: str,
        endpoint: str,
        has_usage: bool,
        sent_s: float,
        max_bytes: int,
        forbidden: str | None = None,
    ) -> None:
        """`max_bytes`: a larger one is not stored. `forbidden`: why the upstream does not want it stored.

        `has_usage`: the request asked for the usage, for the proxy's sake or a client's.
        """
        self.status, self.content_type, self.endpoint = status, content_type, endpoint
        self.forbidden, self.sent_s = forbidden, sent_s
        kind = content_type.partition(";")[0].strip().lower()
        self.is_stream = 200 <= status < 300 and kind == "text/event-stream"
        """It comes as an event stream, whatever was asked for. A refusal is read whole, whatever it calls itself."""
        self.parts: list[bytes] = []
        """What came: of a stream whole events, one or several a part; of a whole body its pieces. A part that all clients have
        may be emptied in its place, here and in `without_usage`, once the answer is too large."""
        self.without_usage = [] if has_usage and self.is_stream else self.parts
        """For each part what a client gets that did not ask for the usage; empty: nothing (yet)."""
        self.first_token_at: float | None = None
        """Stamp of the first part with a token; None for a whole body."""
        self.is_finished = False
        """A stream's last event came: what follows is no part of the answer."""
        self.has_failed = False
        """An error inside the answer, or garbage, was read: it will not be stored."""
        self.too_large = False
        """It will not be stored, but clients still get it."""
        self.answer: Answer | None = None
        """What it said, once it ended; None: it is of an endpoint without completions."""
        self.cached: CachedResponse | None = None
        """What may be stored, once it ended; its `stored_at` is for whoever has the wall clock."""
        self.why_not: str | None = None
        """Why it is not stored, e.g., `status 500`, `cut`, `no finish reason`, `larger than 16 MiB`."""
        self._reader: Completion | OtherAnswer
        if endpoint in COMPLETIONS or not 200 <= status < 300:
            # a refusal is read alike everywhere
            self._reader = Completion(status=status, content_type=content_type)
        else:
            self._reader = OtherAnswer(endpoint=endpoint, is_stream=self.is_stream)
        self._max_bytes = max_bytes
        self._bytes = 0
        self._held = bytearray()
        """An event as far as it came, and when the last bytes of one did."""
        self._held_at = 0.0
        self._waiting = b""
        """For clients that did not ask for the usage: an event that ends a choice, held back until the next event comes. vLLM 0.32 puts
        its fingerprint into the usage event or, where no usage is asked for, into each event that ends a choice; so such a client
        gets it there, as it would without the proxy. The engine sends both events in the same step."""
        self._usage_came = False

    def feed(self, data: bytes, at: float) -> bool:
        """Take the next bytes of the body, read at `at`; return whether there is a part more."""
        if not data or self.is_finished:
            return False
        self._bytes += len(data)
        if self._bytes > self._max_bytes:
            self.too_large = True
        if self.is_stream and (self._held or not data.endswith(LAST_LINE_ENDS)):
            # the events that these bytes complete go on; what is left waits for the next ones
            self._held_at = at
            held = self._held
            # a blank line may have begun in the last bytes of the read before
            first = max(0, len(held) - LONGEST_BLANK_LINE + 1)
            held += data
            ends = event_ends(bytes(held[first:]))
            end = first + ends[-1] if ends else 0
            if not end and len(held) > MAX_EVENT_BYTES:
                # nobody can read it any more: what came so far goes on as it is
                self.too_large = True
                end = len(held)
            data = bytes(held[:end])
            del held[:end]
            if not data:
                return False
        self._take(data, at)
        return True

    def _take(self, data: bytes, at: float) -> None:
        """Take a part: of a stream whole events."""
        reader, hides_usage = self._reader, self.without_usage is not self.parts
        says_more = reader.feed(data, at)
        if says_more:
            self.first_token_at, self.has_failed = reader.first_token_at, reader.has_failed
            if reader.finished and self.is_stream:
                self.is_finished = True
                self._held.clear()
                if data.find(DONE) != len(data) - len(DONE + LAST_LINE_ENDS):
                    data = _up_to_the_last_event(data)
        self.parts.append(data)
        if not hides_usage:
            return
        if self._waiting:
            data, self._waiting = self._waiting + data, b""
        if says_more:
            shorter = without_usage(data)
            if shorter is not None:
                data, self._usage_came = shorter, True
            elif not (self._usage_came or self.is_finished) and FINISH in data:
                last = [0, 0, *event_ends(data)][-2]
                if FINISH in data[last:]:
                    data, self._waiting = data[:last], data[last:]
        self.without_usage.append(data)

    def end(self, at: float, broken: str | None = None) -> None:
        """Work out how it ended; call it once. `broken`: why the connection ended the body early, in one sentence."""
        if self.is_stream and not self.is_finished:
            # what no event behind it, nor a blank line, has sent on: many a server forgets the one after its last event
            rest = bytes(self._held)
            self._held.clear()
            if not rest.strip(b"\r\n"):
                # the LF of the last CRLF, where the CR came alone
                rest = rest if self.parts else b""
            elif broken is None or rest.strip() == DONE_EVENT.strip():
                rest = rest.rstrip(b"\r\n") + LAST_LINE_ENDS
            else:
                # half an event
                rest = b""
            if rest or self._waiting:
                self._usage_came = True
                self._take(rest, self._held_at)
        answer = self._reader.end(at, broken)
        if isinstance(self._reader, Completion):
            self.answer = answer
        body, why_not = b"", None
        if self.status != 200:
            why_not = f"status {self.status}"
        elif self.forbidden is not None:
            why_not = self.forbidden
        elif answer.error_kind is not None:
            why_not = WHY_NOT[answer.error_kind]
        elif self.too_large:
            most = self._max_bytes
            is_round = most >= MIB and most % MIB == 0
            why_not = f"larger than {f'{most // MIB} MiB' if is_round else f'{most:,} bytes'}"
        elif self.is_stream and not self.is_finished:
            why_not = "no [DONE]"
        else:
            body = b"".join(self.parts)
            try:
                body.decode()
            except UnicodeDecodeError:
                # no two readers make the same text of it
                why_not = "not UTF-8"
        self.why_not = why_not
        if why_not is not None:
            return
        first = self.first_token_at
        self.cached = CachedResponse(
            endpoint=self.endpoint,
            streamed=self.is_stream,
            content_type=self.content_type,
            body=body,
            model=answer.model,
            prompt_tokens=answer.prompt_tokens,
            output_tokens=None if answer.output_tokens_estimated else answer.output_tokens,
            finish_reason=answer.finish_reason,
            ttft_ms=None if first is None else round((first - self.sent_s) * 1000, 3),
            latency_ms=round((answer.ended_at - self.sent_s) * 1000, 3),
        )


def _up_to_the_last_event(part: bytes) -> bytes:
    """Without what follows the event that ends the answer."""
    events, first = EventStream(max_event_bytes=MAX_EVENT_BYTES), 0
    for end in event_ends(part):
        for name, data in events.feed(part[first:end]):
            if data.strip() == DONE or name in LAST_EVENTS.values():
                return part[:end]
        first = end
    return part
