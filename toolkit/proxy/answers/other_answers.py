"""Answers without choices (responses, messages, embeddings, scores, ...): whether one is complete, and its tokens. No clock.

It offers what the recorder asks of `completion.Completion`, for everything that one does not read. A stream is complete
only where its last event is known by name; one of any other endpoint never is.
"""

from dataclasses import dataclass
from typing import Any

import orjson

from toolkit.choices import token_count
from toolkit.completion import MAX_BODY_BYTES, MAX_EVENT_BYTES
from toolkit.event_stream import EventStream

LAST_EVENTS = {"responses": b"response.completed", "messages": b"message_stop"}
"""Endpoint -> the event that ends its stream; vLLM 0.32 sends no `[DONE]` after it."""
HOLDS = {
    "responses": ("output",),
    "messages": ("content",),
    "embeddings": ("data",),
    "embed": ("embeddings",),
    "score": ("data", "scores"),
    "rerank": ("results", "data"),
}
"""Endpoint -> where its whole body holds what was computed (vLLM 0.32; SGLang's scores). What has none of them, e.g.,
`{"detail": "loading"}` with status 200, is no answer."""
FAILURES = frozenset({b"error", b"response.failed", b"response.cancelled"})
TELLING = frozenset({b"message_start", b"message_delta", b"response.completed"})
"""Events that hold the model, the usage or why it stopped."""
COMPLETE = frozenset({"completed", "incomplete"})
"""`status` of a response that ended by itself; an incomplete one used up its tokens."""


@dataclass(slots=True, kw_only=True)
class Ending:
    """What such an answer came to."""

    problem: str | None = None
    """Why it is not complete."""
    model: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None


def has_token(name: bytes) -> bool:
    """Whether an event of this name brings a part of a text, a thought or a call."""
    return name.endswith(b"delta") and name != b"message_delta"


class OtherAnswer:
    """Feed it what comes, then ask with `end` what it was."""

    __slots__ = (
        "_bytes",
        "_ending",
        "_endpoint",
        "_parts",
        "_stream",
        "finished",
        "first_token_at",
    )

    def __init__(self, *, endpoint: str, is_stream: bool) -> None:
        self.finished = False
        """The last event was read: nothing more counts."""
        self.first_token_at: float | None = None
        self._endpoint = endpoint
        self._stream = EventStream(max_event_bytes=MAX_EVENT_BYTES) if is_stream else None
        self._parts: list[bytes] = []
        self._bytes = 0
        self._ending = Ending()

    @property
    def has_failed(self) -> bool:
        """It can't become complete any more."""
        return self._ending.problem is not None

    def feed(self, data: bytes, at: float) -> None:
        """Take the next bytes of the body, which were read at `at`."""
        if self.finished or self.has_failed:
            return
        self._bytes += len(data)
        if self._stream is not None:
            self._read_events(self._stream, data, at)
        elif self._bytes > MAX_BODY_BYTES:
            self._fail(f"larger than {MAX_BODY_BYTES // 2**20} MiB")
            self._parts.clear()
        else:
            self._parts.append(data)

    def end(self, at: float, broken: str | None = None) -> Ending:
        """What it was; call it once. `broken`: why the connection ended the body early."""
        if self._stream is not None:
            if broken is None and not self.finished:
                self.feed(b"\n\n", at)
            if not self.finished:
                self._fail("cut" if broken else "no last event")
        elif broken is not None:
            self._fail("cut")
        elif not self.has_failed:
            self._take_whole(b"".join(self._parts))
        return self._ending

    def _read_events(self, stream: EventStream, data: bytes, at: float) -> None:
        for name, said in stream.feed(data):
            if name in FAILURES:
                return self._fail("an error inside it")
            if self.first_token_at is None and has_token(name):
                self.first_token_at = at
            if name in TELLING:
                self._take(_object(said) or {})
            if name and name == LAST_EVENTS.get(self._endpoint):
                self.finished = True
                return None
        if stream.too_large:
            self._fail(f"an event larger than {MAX_EVENT_BYTES // 2**20} MiB")
        return None

    def _take_whole(self, body: bytes) -> None:
        said = _object(body)
        if said is None:
            return self._fail("not an answer")
        if said.get("error") or "error" in (said.get("object"), said.get("type")):
            return self._fail("an error inside it")
        names = HOLDS.get(self._endpoint)
        if names and not any(type(said.get(name)) in (list, dict) for name in names):
            return self._fail("not an answer")
        if self._endpoint == "responses" and said.get("status") not in COMPLETE:
            return self._fail("not completed")
        if self._endpoint == "messages" and not said.get("stop_reason"):
            return self._fail("no finish reason")
        return self._take(said)

    def _take(self, said: dict[str, Any]) -> None:
        """Note what an object tells of the model, the usage and why it stopped, itself or one level below."""
        ending = self._ending
        for told in (said, said.get("response"), said.get("message"), said.get("delta")):
            if type(told) is not dict:
                continue
            usage = told.get("usage")
            if type(usage) is dict:
                ending.prompt_tokens = (
                    _first(usage, "prompt_tokens", "input_tokens") or ending.prompt_tokens
                )
                ending.output_tokens = _first(usage, "completion_tokens", "output_tokens")
            ending.model = _name(told.get("model")) or ending.model
            ending.finish_reason = _name(told.get("stop_reason")) or ending.finish_reason

    def _fail(self, problem: str) -> None:
        if self._ending.problem is None:
            self._ending.problem = problem


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        said = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return said if type(said) is dict else None


def _first(usage: dict[str, Any], *names: str) -> int | None:
    return next(
        (count for name in names if (count := token_count(usage.get(name))) is not None), None
    )


def _name(value: object) -> str | None:
    return value[:200] if type(value) is str and value else None
