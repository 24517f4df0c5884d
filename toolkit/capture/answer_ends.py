"""The last bytes of an answer -> what they tell: tokens by the server's `usage`, and the finish reason. Pure.

The end of a stream with one choice is searched, not parsed: 6 us instead of 44, and a text cannot be taken for a field,
because JSON escapes the quotes in it. Whatever is less plain is read by completion.py.
"""

import re
from typing import NamedTuple

from toolkit.protocol.completion import UNFINISHED, Completion, token_count
from toolkit.protocol.sse import LAST_LINE_ENDS

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


def told_by_stream(tail: bytes) -> Told:
    """What the end of an event stream tells; half an event at its beginning is no event, and tells nothing."""
    if b"\r" in tail:
        tail = tail.replace(b"\r\n", b"\n")
    at = len(tail)
    for _ in range(LAST_EVENTS + 1):
        at = max(0, tail.rfind(LAST_LINE_ENDS, 0, at))
    found = told_by_tail(tail[at:])
    is_plain = b'"error"' not in tail[at:] and not any(other in tail for other in OTHER_CHOICES)
    if is_plain and found.finish_reason is not None:
        return found
    read = _told_by(tail, "text/event-stream")
    return read if _tells(read) else found


def told_by_body(body: bytes) -> Told:
    """What a whole JSON body tells."""
    read = _told_by(body, "application/json")
    return read if _tells(read) else told_by_tail(body)


def told_by_tail(tail: bytes) -> Told:
    """What the end of an answer tells whose beginning is not kept: `usage` follows the choices, and the last one counts."""
    numbers = {name: token_count(int(digits)) for name, digits in NUMBERS.findall(tail)}
    finish, stop = FINISH.search(tail), STOP.search(tail)
    reason = finish[1].decode() if finish else FINISHES.get(stop[1], "stop") if stop else None
    return Told(
        numbers.get(b"prompt_tokens", numbers.get(b"input_tokens")),
        numbers.get(b"completion_tokens", numbers.get(b"output_tokens")),
        numbers.get(b"cached_tokens"),
        reason,
    )


def _tells(read: Told) -> bool:
    """Whether an answer was one of OpenAI's; others have a `usage`, too, and are searched for it."""
    return any(one is not None for one in read)


def _told_by(body: bytes, content_type: str) -> Told:
    reader = Completion(status=200, content_type=content_type)
    reader.feed(body, 0.0)
    said = reader.end(0.0)
    has_failed = said.error_kind == "stream_error" and said.finish_reason not in UNFINISHED
    return Told(
        said.prompt_tokens,
        # counted chunks would be those of the tail
        None if said.output_tokens_estimated else said.output_tokens,
        said.cached_tokens,
        "error" if has_failed else said.finish_reason,
    )
