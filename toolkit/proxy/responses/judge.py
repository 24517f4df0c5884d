"""Whether an answer without choices is complete, and what it tells of its tokens. Pure.

Answers with choices are read by protocol.completion. Here is the reader of all others (responses, messages, embeddings, scores, ...):
a stream is complete only where its last event is known by name; one of any other endpoint never is.
"""

from typing import Any

import orjson

from toolkit.protocol.completion import MAX_BODY_BYTES, MAX_EVENT_BYTES, Answer, token_count
from toolkit.protocol.sse import EventStream

COMPLETIONS = frozenset({"chat/completions", "completions"})
"""Endpoints whose answers have choices."""
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


def brings_token(name: bytes) -> bool:
    """Whether an event of this name brings a part of a text, a thought or a call."""
    return name.endswith(b"delta") and name != b"message_delta"


class OtherAnswer:
    """Reads what has no choices; it is fed and asked as `Completion` is."""

    def __init__(self, *, endpoint: str, is_stream: bool) -> None:
        self.finished = False
        self.first_token_at: float | None = None
        self._endpoint = endpoint
        self._stream = EventStream(max_event_bytes=MAX_EVENT_BYTES) if is_stream else None
        self._body: list[bytes] = []
        self._bytes = 0
        self._kind: str | None = None
        """Of the error that makes it incomplete."""
        self._told: dict[str, Any] = {}

    @property
    def has_failed(self) -> bool:
        """Whatever follows, it is not complete."""
        return self._kind is not None

    def feed(self, data: bytes, at: float) -> bool:
        """Take the next bytes of the body, which were read at `at`; all of them are."""
        if self.finished or self.has_failed:
            return True
        if self._stream is None:
            self._bytes += len(data)
            self._body.append(data)
            if self._bytes > MAX_BODY_BYTES:
                self._kind = "too_large"
                self._body.clear()
            return True
        for name, said in self._stream.feed(data):
            if name in FAILURES:
                self._kind = "stream_error"
                return True
            if self.first_token_at is None and brings_token(name):
                self.first_token_at = at
            if name in TELLING:
                self._note(_object(said) or {})
            if name and name == LAST_EVENTS.get(self._endpoint):
                self.finished = True
                return True
        if self._stream.too_large:
            self._kind = "too_large"
        return True

    def end(self, at: float, broken: str | None = None) -> Answer:
        """What it was; call it once. `broken`: why the connection ended the body early."""
        endpoint = self._endpoint
        if self._stream is not None:
            if broken is None:
                # many a server forgets the blank line after its last event
                self.feed(b"\n\n", at)
            if not (self.finished or self.has_failed):
                self._kind = "cut" if broken else "no_finish"
        elif broken is not None:
            self._kind = "cut"
        elif not self.has_failed:
            said = _object(b"".join(self._body))
            names = HOLDS.get(endpoint)
            if said is None:
                self._kind = "garbage"
            elif said.get("error") or "error" in (said.get("object"), said.get("type")):
                self._kind = "stream_error"
            elif names and not any(type(said.get(name)) in (list, dict) for name in names):
                self._kind = "garbage"
            elif (endpoint == "responses" and said.get("status") not in COMPLETE) or (
                endpoint == "messages" and not said.get("stop_reason")
            ):
                self._kind = "no_finish"
            else:
                self._note(said)
        return Answer(
            ok=self._kind is None,
            error_kind=self._kind,
            streamed=self._stream is not None,
            ended_at=at,
            first_token_at=self.first_token_at,
            **self._told,
        )

    def _note(self, said: dict[str, Any]) -> None:
        """Keep what an object tells of the model, the usage and why it stopped, itself or one level below."""
        for told in (said, said.get("response"), said.get("message"), said.get("delta")):
            if type(told) is not dict:
                continue
            for name, field in (("model", "model"), ("finish_reason", "stop_reason")):
                value = told.get(field)
                if type(value) is str and value:
                    self._told[name] = value[:200]
            usage = told.get("usage")
            if type(usage) is dict:
                prompt = token_count(usage.get("prompt_tokens", usage.get("input_tokens")))
                output = token_count(usage.get("completion_tokens", usage.get("output_tokens")))
                # a message's last event tells the prompt again, or as 0
                self._told["prompt_tokens"] = prompt or self._told.get("prompt_tokens")
                self._told["output_tokens"] = output


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        said = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return said if type(said) is dict else None
