"""What the end of an answer tells: read off without parsing where that is safe, and equal to what a parser reads."""

import json
from typing import Any

import pytest
from support.answer_bytes import events
from support.recordings import recorded

from toolkit.capture.answers import Told, told_by_body, told_by_stream, told_by_tail

CHAT = recorded("chat_stream.txt")


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def choice(finish: str | None, index: int = 0, text: str = "x") -> dict[str, Any]:
    return {"index": index, "delta": {"content": text}, "finish_reason": finish}


DONE = b"data: [DONE]\n\n"


def test_a_stream_tells_by_its_last_events_wherever_its_tail_begins() -> None:
    for start in range(0, len(CHAT) - 700, 7):
        told = told_by_stream(CHAT[start:])
        assert told == Told(21, 16, None, "length"), start


def test_line_ends_of_two_characters_are_line_ends() -> None:
    assert told_by_stream(CHAT.replace(b"\n", b"\r\n")) == Told(21, 16, None, "length")


def test_what_a_text_says_is_no_field() -> None:
    lie = '"usage":{"prompt_tokens":1,"completion_tokens":2},"finish_reason":"stop"'
    body = (
        event(choices=[choice(None, text=lie)]) + event(choices=[choice("length", text=lie)]) + DONE
    )
    assert told_by_stream(body) == Told(None, None, None, "length")
    whole = json.dumps({"choices": [{"message": {"content": lie}, "finish_reason": "length"}]})
    assert told_by_tail(whole.encode()) == Told(None, None, None, "length")


def test_the_last_usage_counts() -> None:
    body = b"".join(
        event(
            choices=[choice("stop" if n == 3 else None)],
            usage={"prompt_tokens": 9, "completion_tokens": n},
        )
        for n in (1, 2, 3)
    )
    assert told_by_stream(body + DONE) == Told(9, 3, None, "stop")


def test_an_error_inside_a_stream_is_its_end() -> None:
    body = event(choices=[choice(None)]) + event(error={"message": "gone", "code": 500}) + DONE
    assert told_by_stream(body) == Told(None, None, None, "error")
    # no error: a usual field of an answer without one
    fine = event(choices=[choice("stop")], error=None) + DONE
    assert told_by_stream(fine).finish_reason == "stop"


def test_a_stream_without_an_end_tells_none() -> None:
    assert told_by_stream(b"".join(events(CHAT)[:5])) == Told()
    assert told_by_stream(b"") == Told()
    assert told_by_stream(b"data: garbage") == Told()


@pytest.mark.parametrize(
    ("reason", "told"),
    [("end_turn", "stop"), ("max_tokens", "length"), ("tool_use", "tool_calls")],
)
def test_anthropic_answers_tell_their_usage(reason: str, told: str) -> None:
    usage = {"input_tokens": 12, "output_tokens": 3}
    body = {"type": "message", "content": [], "stop_reason": reason, "usage": usage}
    assert told_by_body(json.dumps(body).encode()) == Told(12, 3, None, told)
    delta = event(type="message_delta", delta={"stop_reason": reason}, usage=usage)
    body_stream = event(type="content_block_delta") * 9 + delta + event(type="message_stop")
    assert told_by_stream(body_stream) == Told(12, 3, None, told)


@pytest.mark.parametrize("number", ["-1", "1.5", "1e3", "12345678901234567", '"12"', "true"])
def test_what_is_no_number_of_tokens_is_none(number: str) -> None:
    tail = f'"completion_tokens":{number},"finish_reason":"stop"'.encode()
    assert told_by_tail(tail) == Told(None, None, None, "stop")


def test_a_stop_string_of_openai_is_no_reason() -> None:
    tail = b'"finish_reason":"stop","stop_reason":"max_tokens"'
    assert told_by_tail(tail).finish_reason == "stop"


def test_an_error_after_the_last_token_is_the_end_all_the_same() -> None:
    body = event(choices=[choice("stop")]) + event(error={"message": "gone"}) + DONE
    assert told_by_stream(body).finish_reason == "error"
    given_up = event(choices=[choice("abort")]) + DONE
    assert told_by_stream(given_up).finish_reason == "abort"


def test_half_an_event_at_the_beginning_of_a_tail_hides_no_error() -> None:
    body = event(choices=[choice(None)]) * 3 + event(error={"message": "gone"}) + DONE
    for start in range(1, 40):
        assert told_by_stream(body[start:]).finish_reason == "error"
