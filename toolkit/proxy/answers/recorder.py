"""One answer of an upstream as it comes: its events byte for byte, when each came, and at its end whether it may be stored.

It reads no clock, and nothing is held twice but an unfinished event. What an answer means and when its tokens came,
`completion` reads; here its bytes are cut where an event ends, and the end is judged.
"""

import re
from itertools import accumulate

import orjson

from toolkit.completion import DONE, MAX_BODY_BYTES, MAX_EVENT_BYTES, Answer, Completion
from toolkit.event_stream import LAST_LINE_ENDS, EventStream
from toolkit.proxy.answers.other_answers import LAST_EVENTS, Ending, OtherAnswer
from toolkit.proxy.exchange import Kept, Recorded, View

COMPLETIONS = frozenset({"chat/completions", "completions"})
"""Endpoints whose answers `completion` reads."""
BLANK_LINE = re.compile(rb"(?:\r\n?+|\n){2}")
"""The end of a line and the end of an empty one; a CRLF is one end, never two."""
LONGEST_BLANK_LINE = 4
LINE_ENDS = b"\r\n"
NO_CHOICES = b'"choices":[]', b'"choices": []'
"""How the event with the usage is found without reading every one; a text can't hold it, its quotes would be escaped."""
LAST_MARKS = (DONE, *LAST_EVENTS.values())
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
    """Give it the head of an answer, `feed` it what comes, then ask with `end` what may be kept of it."""

    __slots__ = (
        *(
            "bytes",
            "content_type",
            "endpoint",
            "events",
            "forbidden",
            "is_stream",
            "sent_s",
            "status",
            "times_s",
        ),
        *("too_large", "usage_event", "view"),
        *("_held", "_max_bytes", "_reader", "_usage_is_ours"),
    )

    def __init__(
        self,
        *,
        status: int,
        content_type: str,
        endpoint: str,
        view: View,
        usage_is_ours: bool,
        sent_s: float,
        max_bytes: int,
        forbidden: str | None = None,
    ) -> None:
        self.status = status
        self.content_type = content_type
        self.endpoint = endpoint
        self.view = view
        """How the client wants it that led to this call."""
        self.forbidden = forbidden
        """Why the upstream does not want it stored."""
        self.sent_s = sent_s
        has_answer = 200 <= status < 300
        kind = content_type.partition(";")[0].strip().lower()
        self.is_stream = has_answer and kind == "text/event-stream"
        """It comes as an event stream, whatever was asked for. A refusal is read whole, whatever it calls itself."""
        self.events: list[bytes] = []
        """A stream's events, each with its blank line; the parts of a whole body as they came. One that all clients have
        may be emptied in its place once the answer is too large."""
        self.times_s: list[float] = []
        """When each of them was complete."""
        self.usage_event: int | None = None
        """Which event holds the usage and no choice."""
        self.bytes = 0
        self.too_large = False
        """It will not be stored; it is cut into events all the same."""
        self._usage_is_ours = usage_is_ours
        self._max_bytes = max_bytes
        self._held = bytearray()
        self._reader: Completion | OtherAnswer
        if endpoint in COMPLETIONS or not has_answer:
            self._reader = Completion(status=status, content_type=content_type)
        else:
            self._reader = OtherAnswer(endpoint=endpoint, is_stream=self.is_stream)

    @property
    def first_token_at(self) -> float | None:
        """Stamp of the first event with a token, as soon as it was read; None for a whole body."""
        return self._reader.first_token_at

    @property
    def is_finished(self) -> bool:
        """A stream's last event was read: what follows is no part of the answer."""
        return self._reader.finished

    @property
    def has_failed(self) -> bool:
        """An error inside the answer, or garbage, was read: it will not be stored."""
        return self._reader.has_failed

    def feed(self, data: bytes, at: float) -> int:
        """Take the next bytes of the body, read at `at`; return how many events, or parts of a whole body, are new."""
        reader = self._reader
        if not data or reader.finished:
            return 0
        self.bytes += len(data)
        if self.bytes > self._max_bytes:
            self.too_large = True
        reader.feed(data, at)
        if not self.is_stream:
            return self._add([data], at)
        events = self._cut(data)
        if self.is_finished:
            self._held.clear()
            events = _until_last(events)
        return self._add(events, at)

    def end(self, at: float, broken: str | None = None) -> Recorded:
        """How it ended; call it once. `broken`: why the connection ended the body early, in one sentence.

        The caller, who has the wall clock, adds `stored_at` to what is kept.
        """
        answer = self._reader.end(at, broken)
        if self._held:
            self._add_rest(at, is_whole=broken is None or self.is_finished)
        why_not = self._why_not(answer)
        told = answer if isinstance(answer, Answer) else None
        if why_not is not None:
            return Recorded(answer=told, kept=None, why_not=why_not)
        body = b"".join(self.events)
        try:
            body.decode()
        except UnicodeDecodeError:
            # no two readers make the same text of it
            return Recorded(answer=told, kept=None, why_not="not UTF-8")
        return Recorded(answer=told, kept=self._kept(answer, body, at))

    # --- events --------------------------------------------------------------------------------

    def _cut(self, data: bytes) -> list[bytes]:
        """The events that these bytes complete; what is left waits for the next ones."""
        held = self._held
        if held:
            first = max(0, len(held) - LONGEST_BLANK_LINE + 1)
            held += data
            if not BLANK_LINE.search(held, first):
                return self._cut_short()
            data = bytes(held)
            held.clear()
        if b"\r" not in data:
            if data.find(LAST_LINE_ENDS) == len(data) - len(LAST_LINE_ENDS) >= 0:
                return [data]
            events = data.split(LAST_LINE_ENDS)
            held += events.pop()
            return [event + LAST_LINE_ENDS for event in events]
        ends = [match.end() for match in BLANK_LINE.finditer(data)]
        held += data[ends[-1] if ends else 0 :]
        return [data[first:last] for first, last in zip([0, *ends], ends, strict=False)]

    def _cut_short(self) -> list[bytes]:
        """Nothing, as a rule; of an event without an end what came so far, for nobody can read it any more."""
        if len(self._held) <= MAX_EVENT_BYTES:
            return []
        self.too_large = True
        part = bytes(self._held)
        self._held.clear()
        return [part]

    def _add(self, events: list[bytes], at: float) -> int:
        for event in events:
            if NO_CHOICES[0] in event or NO_CHOICES[1] in event:
                self._note_usage(event)
            self.events.append(event)
            self.times_s.append(at)
        return len(events)

    def _note_usage(self, event: bytes) -> None:
        if self.is_stream and _is_usage(event):
            self.usage_event = len(self.events)

    def _add_rest(self, at: float, *, is_whole: bool) -> None:
        """Many a server forgets the blank line after its last event; after a cut it may be half of one."""
        rest = bytes(self._held)
        self._held.clear()
        if not rest.strip(LINE_ENDS):
            # the LF of the last CRLF, where the CR came alone
            if self.events:
                self.events[-1] += rest
        elif is_whole:
            self._add([rest.rstrip(LINE_ENDS) + LAST_LINE_ENDS], at)

    # --- what is kept --------------------------------------------------------------------------

    def _why_not(self, answer: Answer | Ending) -> str | None:
        if self.status != 200:
            return f"status {self.status}"
        if self.forbidden is not None:
            return self.forbidden
        if isinstance(answer, Ending):
            problem = answer.problem
        else:
            kind = answer.error_kind
            problem = None if kind is None else WHY_NOT.get(kind, kind)
        if problem is None and self.too_large:
            problem = f"larger than {_size(self._max_bytes)}"
        if problem is None and self.is_stream and not self.is_finished:
            problem = "no [DONE]"
        return problem

    def _kept(self, answer: Answer | Ending, body: bytes, at: float) -> Kept:
        first, sent = self.first_token_at, self.sent_s
        ended_at, output_tokens = at, answer.output_tokens
        if isinstance(answer, Answer):
            ended_at = answer.ended_at
            output_tokens = None if answer.output_tokens_estimated else output_tokens
        ends = tuple(accumulate(map(len, self.events))) if self.is_stream else ()
        # whatever the clock does, what is stored doesn't run backwards
        ms = accumulate((max(0, round((time - sent) * 1000)) for time in self.times_s), max)
        return Kept(
            endpoint=self.endpoint,
            streamed=self.is_stream,
            content_type=self.content_type,
            body=body,
            event_ends=ends,
            event_ms=tuple(ms) if self.is_stream else (),
            usage_event=self.usage_event,
            usage_was_ours=self._usage_is_ours and self.usage_event is not None,
            model=answer.model,
            prompt_tokens=answer.prompt_tokens,
            output_tokens=output_tokens,
            finish_reason=answer.finish_reason,
            ttft_ms=None if first is None else round((first - sent) * 1000, 3),
            latency_ms=round((ended_at - sent) * 1000, 3),
        )


def _until_last(events: list[bytes]) -> list[bytes]:
    """The events up to the one that ends the answer."""
    for number, event in enumerate(events):
        if any(mark in event for mark in LAST_MARKS) and _is_last(event):
            return events[: number + 1]
    return events


def _is_last(event: bytes) -> bool:
    read = EventStream(max_event_bytes=MAX_EVENT_BYTES).feed(event)
    return any(data.strip() == DONE or name in LAST_EVENTS.values() for name, data in read)


def _is_usage(event: bytes) -> bool:
    for _, data in EventStream(max_event_bytes=MAX_EVENT_BYTES).feed(event):
        try:
            said = orjson.loads(data)
        except orjson.JSONDecodeError:
            return False
        if type(said) is dict:
            return said.get("choices") == [] and type(said.get("usage")) is dict
    return False


def _size(count: int) -> str:
    return f"{count // MIB} MiB" if count >= MIB and count % MIB == 0 else f"{count:,} bytes"
