"""What the end of an answer tells: read off without parsing where that is safe, and equal to what a parser reads."""

import json
from functools import partial
from typing import Any

import pytest
from support.answer_bytes import events
from support.recordings import recorded

from toolkit.capture.answers import Told, told_by_end

CHAT = recorded("chat_stream.txt")
CHAT_TELLS = Told(21, 16, None, "length")
DONE = b"data: [DONE]\n\n"
LIE = '"usage":{"prompt_tokens":1,"completion_tokens":2},"finish_reason":"stop"'
by_stream = partial(told_by_end, is_stream=True, is_cut=True)
by_body = partial(told_by_end, is_stream=False, is_cut=False)
by_tail = partial(told_by_end, is_stream=False, is_cut=True)


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def chunk(finish: str | None = None, *, text: str = "x", **fields: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return event(choices=[choice], **fields)


ERROR = event(error={"message": "gone", "code": 500})


def test_a_stream_tells_by_its_last_events_wherever_its_tail_begins() -> None:
    for start in range(0, len(CHAT) - 700, 7):
        assert by_stream(CHAT[start:]) == CHAT_TELLS, start
    # half an event hides no error
    broken = chunk() * 3 + ERROR + DONE
    for start in range(40):
        assert by_stream(broken[start:]).finish_reason == "error"


@pytest.mark.parametrize(
    ("stream", "told"),
    [
        (CHAT.replace(b"\n", b"\r\n"), CHAT_TELLS),
        # what a text says is no field
        (chunk(text=LIE) + chunk("length", text=LIE) + DONE, Told(None, None, None, "length")),
        # the last usage counts
        (
            b"".join(
                chunk(end, usage={"prompt_tokens": 9, "completion_tokens": n})
                for n, end in ((1, None), (2, None), (3, "stop"))
            )
            + DONE,
            Told(9, 3, None, "stop"),
        ),
        # an error is the end, after the last token, too; null is a usual field of an answer without one
        (chunk() + ERROR + DONE, Told(finish_reason="error")),
        (chunk("stop") + ERROR + DONE, Told(finish_reason="error")),
        (chunk("stop", error=None) + DONE, Told(finish_reason="stop")),
        (chunk("abort") + DONE, Told(finish_reason="abort")),
        # no end
        (b"".join(events(CHAT)[:5]), Told()),
        (b"", Told()),
        (b"data: garbage", Told()),
    ],
)
def test_a_stream_tells_what_its_end_holds(stream: bytes, told: Told) -> None:
    assert by_stream(stream) == told


@pytest.mark.parametrize(
    ("reason", "told"),
    [("end_turn", "stop"), ("max_tokens", "length"), ("tool_use", "tool_calls")],
)
def test_anthropic_answers_tell_their_usage(reason: str, told: str) -> None:
    usage = {"input_tokens": 12, "output_tokens": 3}
    body = {"type": "message", "content": [], "stop_reason": reason, "usage": usage}
    assert by_body(json.dumps(body).encode()) == Told(12, 3, None, told)
    delta = event(type="message_delta", delta={"stop_reason": reason}, usage=usage)
    stream = event(type="content_block_delta") * 9 + delta + event(type="message_stop")
    assert by_stream(stream) == Told(12, 3, None, told)


def test_the_end_of_a_long_body_is_searched_for_fields_and_numbers_alone() -> None:
    whole = {"choices": [{"message": {"content": LIE}, "finish_reason": "length"}]}
    assert by_tail(json.dumps(whole).encode()) == Told(None, None, None, "length")
    for number in ("-1", "1.5", "1e3", "12345678901234567", '"12"', "true"):
        tail = f'"completion_tokens":{number},"finish_reason":"stop"'.encode()
        assert by_tail(tail) == Told(None, None, None, "stop"), number
    # OpenAI's own stop string is no reason
    assert by_tail(b'"finish_reason":"stop","stop_reason":"max_tokens"').finish_reason == "stop"
