"""What view a request asks for, which calls serve it, and what becomes of answers that no recording holds."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pairs import JSON_TYPE, chunks, kept, kept_stream

from toolkit.proxy.responses.transcode import ResponseFormat, can_join, convert

CHAT = "chat/completions"
WHOLE, STREAM, USAGE = (
    ResponseFormat(),
    ResponseFormat(stream=True),
    ResponseFormat(stream=True, usage=True),
)
CONTINUOUS = ResponseFormat(stream=True, usage=True, continuous_usage=True)


@pytest.mark.parametrize(
    ("leads", "wants", "has_usage", "joins"),
    [
        (WHOLE, WHOLE, False, True),
        (STREAM, STREAM, False, True),
        (USAGE, STREAM, True, True),
        # the proxy asked for the usage
        (STREAM, USAGE, True, True),
        (STREAM, USAGE, False, False),
        (STREAM, WHOLE, True, True),
        (STREAM, WHOLE, False, False),
        (WHOLE, STREAM, False, True),
        (WHOLE, USAGE, False, True),
        (WHOLE, CONTINUOUS, False, False),
        (CONTINUOUS, CONTINUOUS, True, True),
        (CONTINUOUS, USAGE, True, False),
        (USAGE, CONTINUOUS, True, False),
        (CONTINUOUS, WHOLE, True, True),
    ],
)
def test_who_may_join_whose_call(leads, wants, has_usage, joins):
    assert can_join(leads, wants, CHAT, has_usage=has_usage) is joins


def test_nobody_joins_across_modes_where_nothing_crosses_over():
    never = ResponseFormat(stream=False, crosses="never")
    assert not can_join(STREAM, never, CHAT, has_usage=True)
    assert not can_join(STREAM, WHOLE, "responses", has_usage=True)
    assert can_join(never, never, CHAT, has_usage=False)
    assert can_join(STREAM, STREAM, "messages", has_usage=False)


# --- answers by hand -----------------------------------------------------------------------------

HEAD = {"id": "c-1", "object": "chat.completion.chunk", "created": 5, "model": "m"}
COUNTS = {"prompt_tokens": 3, "total_tokens": 9, "completion_tokens": 6}


def event(choice: dict[str, Any] | None, **more: Any) -> bytes:
    said = HEAD | {"choices": [] if choice is None else [choice]} | more
    return b"data: " + json.dumps(said).encode() + b"\n\n"


def delta(said: dict[str, Any], index: int = 0, finish: str | None = None, **more: Any) -> bytes:
    return event({"index": index, "delta": said, "finish_reason": finish} | more)


USAGE_EVENT, DONE = event(None, usage=COUNTS), b"data: [DONE]\n\n"
ROLE = delta({"role": "assistant", "content": ""})


def call(index: int, **said: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, **said}]}


def whole(*events: bytes) -> dict[str, Any] | None:
    answer = convert(kept(b"".join((*events, USAGE_EVENT, DONE))), WHOLE)
    return None if answer is None else json.loads(answer[1])


def message(*events: bytes) -> dict[str, Any]:
    body = whole(*events)
    assert body is not None
    return body["choices"][0]["message"]


CALLS = (
    ROLE,
    delta(call(0, id="a", type="function", function={"name": "f", "arguments": ""})),
    delta(call(0, function={"arguments": '{"x":'})),
    delta(call(0, function={"arguments": " 1}"})),
    delta(call(1, id="b", type="function", function={"name": "g", "arguments": "{"})),
    delta(call(1, function={"arguments": "}"})),
    delta({}, finish="tool_calls"),
)


@pytest.mark.parametrize(
    "spoilt",
    [
        # its arguments are no JSON; the second call's name never came; it ended by its length
        (*CALLS[:2], CALLS[-1]),
        (*CALLS[:4], delta(call(1, id="b", type="function")), CALLS[-1]),
        (*CALLS[:-1], delta({}, finish="length")),
        # the second call begins before the first; a call has two ids
        (ROLE, CALLS[4], CALLS[5], CALLS[-1]),
        (*CALLS[:4], delta(call(0, id="other")), CALLS[-1]),
    ],
)
def test_calls_in_another_state_are_not_shown_whole(spoilt):
    assert whole(*spoilt) is None


def test_a_service_tier_is_told_once_and_carried_over():
    tier = {"service_tier": "default", "system_fingerprint": "fp"}
    body = whole(
        ROLE, event({"index": 0, "delta": {"content": "A"}, "finish_reason": "stop"}, **tier)
    )
    assert body is not None
    assert (body["service_tier"], body["system_fingerprint"]) == ("default", "fp")
    answer = convert(kept(json.dumps(body).encode(), JSON_TYPE), USAGE)
    assert answer is not None
    told = [chunk["service_tier"] for chunk in chunks(answer[1]) if "service_tier" in chunk]
    assert told == ["default"]


def test_an_answer_that_says_nothing_still_has_its_end():
    body = whole(ROLE, delta({"content": ""}, finish="stop"))
    assert body is not None
    assert body["choices"][0]["message"]["content"] == ""
    answer = convert(kept(json.dumps(body).encode(), JSON_TYPE), STREAM)
    assert answer is not None
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks(answer[1])] == [None, "stop"]


def test_a_text_that_looks_like_a_usage_or_an_end_changes_nothing():
    text = '"usage":{"choices":[],"finish_reason":"stop"} [DONE]\n\ndata: [DONE]\n\n'
    stored = kept(b"".join((ROLE, delta({"content": text}, finish="stop"), USAGE_EVENT, DONE)))
    plain = convert(stored, STREAM)
    assert plain is not None
    assert plain[1] == b"".join((ROLE, delta({"content": text}, finish="stop"), DONE))
    answer = convert(stored, WHOLE)
    assert answer is not None
    assert json.loads(answer[1])["choices"][0]["message"]["content"] == text


def test_a_stream_whose_usage_came_first_loses_just_that():
    end = delta({"content": "A"}, finish="stop")
    stored = kept(b"".join((USAGE_EVENT, ROLE, end, DONE)))
    plain = convert(stored, STREAM)
    assert plain is not None
    assert plain[1] == b"".join((ROLE, end, DONE))


@pytest.mark.parametrize(
    ("told", "added"),
    [
        ({}, b""),
        ({"system_fingerprint": None}, b""),
        ({"system_fingerprint": "fp"}, b',"system_fingerprint":"fp"'),
        # one that had to be unescaped is left out
        ({"system_fingerprint": 'f"p'}, b""),
    ],
)
def test_a_fingerprint_is_moved_only_where_it_is_plain(told, added):
    def compact(said: dict[str, Any]) -> bytes:
        return b"data: %b\n\n" % json.dumps(HEAD | said, separators=(",", ":")).encode()

    first = compact(
        {"choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]}
    )
    last = compact({"choices": [{"index": 0, "delta": {"content": "A"}, "finish_reason": "stop"}]})
    usage = compact({"choices": [], "usage": COUNTS} | told)
    plain = convert(kept(b"".join((first, last, usage, DONE))), STREAM)
    assert plain is not None
    assert plain[1] == first + last.replace(b"}\n\n", added + b"}\n\n") + DONE


TEXTS = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from(["content", "reasoning"]), st.text(max_size=6))
)


@given(said=TEXTS, plain=st.booleans())
def test_any_texts_of_two_choices_come_out_whole_and_apart(said, plain):
    """However they are escaped: those that look like the one before are read without parsing."""
    parts = [ROLE, delta({"role": "assistant", "content": ""}, 1)]
    for index, name, text in said:
        choice = {"index": index, "delta": {name: text}, "finish_reason": None}
        told = json.dumps(HEAD | {"choices": [choice]}, ensure_ascii=plain, separators=(",", ":"))
        parts.append(b"data: %b\n\n" % told.encode())
    body = whole(*parts, delta({}, 0, "stop"), delta({}, 1, "length"))
    assert body is not None
    for index in (0, 1):
        mine = [(name, text) for choice, name, text in said if choice == index]
        message = body["choices"][index]["message"]
        assert (message["reasoning"] or "") == "".join(
            text for name, text in mine if name == "reasoning"
        )
        assert (message["content"] or "") == "".join(
            text for name, text in mine if name == "content"
        )
    assert [choice["finish_reason"] for choice in body["choices"]] == ["stop", "length"]


def test_a_body_that_was_made_takes_no_more_than_its_bytes():
    """It is remembered by its length; what orjson writes keeps the room that it was written in."""
    stored = kept_stream("chat")
    first = convert(stored, WHOLE)
    assert first is not None
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    found = [one[1] for _ in range(100) if (one := convert(stored, WHOLE)) is not None]
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    # 33 bytes are a bytes object's own, and some 80 the list's and what tracemalloc can't tell apart
    assert taken < sum(len(body) + 33 + 80 for body in found)
