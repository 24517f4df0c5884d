"""The last bytes of an answer -> what they tell: tokens by the server's `usage`, and the finish reason. Pure."""

import re
from typing import NamedTuple

from toolkit.choices import token_count
from toolkit.completion import Completion
from toolkit.event_stream import LAST_LINE_ENDS

LAST_EVENTS = 3
"""The last token with the finish reason, the usage, and `[DONE]`."""
TOLD = re.compile(rb'"(prompt_tokens|completion_tokens|cached_tokens)"\s*:\s*(\d{1,16})(?![\d.eE])')
FINISH = re.compile(rb'"finish_reason"\s*:\s*"(\w{1,40})"')


class Told(NamedTuple):
    """What the end of an answer tells of it."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None


def told_by_stream(tail: bytes, *, is_cut: bool) -> Told:
    """What the end of an event stream tells; cut, its first event may be half of one."""
    if b"\r" in tail:
        tail = tail.replace(b"\r\n", b"\n")
    if is_cut:
        tail = tail[tail.find(LAST_LINE_ENDS) + len(LAST_LINE_ENDS) :]
    at = len(tail)
    for _ in range(LAST_EVENTS + 1):
        at = max(0, tail.rfind(LAST_LINE_ENDS, 0, at))
    # of several choices the first one's end may come before another's last token
    if at and b'"index":1' not in tail:
        told = _told_by(tail[at + len(LAST_LINE_ENDS) :], "text/event-stream")
        if told.finish_reason is not None:
            return told
    return _told_by(tail, "text/event-stream")


def told_by_body(body: bytes) -> Told:
    """What a whole JSON body tells."""
    return _told_by(body, "application/json")


def told_by_tail(tail: bytes) -> Told:
    """What the end of a JSON body tells, whose beginning is not kept: `usage` follows the choices."""
    numbers = {name: token_count(int(digits)) for name, digits in TOLD.findall(tail)}
    finish = FINISH.search(tail)
    return Told(
        numbers.get(b"prompt_tokens"),
        numbers.get(b"completion_tokens"),
        numbers.get(b"cached_tokens"),
        finish[1].decode() if finish else None,
    )


def _told_by(body: bytes, content_type: str) -> Told:
    reader = Completion(status=200, content_type=content_type)
    reader.feed(body, 0.0)
    said = reader.end(0.0)
    failed = "error" if said.error_kind == "stream_error" else None
    return Told(
        said.prompt_tokens,
        # counted chunks would be those of the tail
        None if said.output_tokens_estimated else said.output_tokens,
        said.cached_tokens,
        said.finish_reason or failed,
    )
