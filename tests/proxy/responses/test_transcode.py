"""What view a request asks for, which calls serve it, and that whatever is not known is carried over into no other."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pairs import JSON_TYPE, PAIRS, RECORDED, asked, chunks, kept, kept_stream

from toolkit.proxy.responses.transcode import ResponseFormat, can_join, convert, paced

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


def whole(*events: bytes) -> dict[str, Any] | None:
    answer = convert(kept(b"".join((*events, USAGE_EVENT, DONE))), WHOLE)
    return None if answer is None else json.loads(answer[1])


def test_a_text_that_looks_like_a_usage_or_an_end_changes_nothing():
    text = '"usage":{"choices":[],"finish_reason":"stop"} [DONE]\n\ndata: [DONE]\n\n'
    stored = kept(b"".join((ROLE, delta({"content": text}, finish="stop"), USAGE_EVENT, DONE)))
    plain = convert(stored, STREAM)
    assert plain is not None
    assert plain[1] == b"".join((ROLE, delta({"content": text}, finish="stop"), DONE))
    answer = convert(stored, WHOLE)
    assert answer is not None
    assert json.loads(answer[1])["choices"][0]["message"]["content"] == text


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


NAMES = ["chat", "chat_logprobs", "chat_tool_named", "chat_reasoning", "text_logprobs", "text"]
NEW = {"novel": {"a": 1}}
FREE = ("usage", "arguments", "top_logprobs")
"""What is carried over as it is, whatever it holds."""


def objects(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where an object stands whose fields are known one by one."""
    if isinstance(value, list):
        for number, inner in enumerate(value):
            # the entries of a chat's logprobs are carried over as they are
            if not (path and path[-1] == "content"):
                yield from objects(inner, (*path, number))
    elif isinstance(value, dict):
        yield path
        for name, inner in value.items():
            if name not in FREE:
                yield from objects(inner, (*path, name))


def with_new(value: Any, path: tuple[str | int, ...]) -> Any:
    """A copy with a field that nobody knows in one of its objects."""
    copy = json.loads(json.dumps(value))
    holder = copy
    for step in path:
        holder = holder[step]
    holder.update(NEW)
    return copy


def as_stream(said: list[Any]) -> bytes:
    events = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in said]
    return b"".join((*events, b"data: [DONE]\n\n"))


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_field_anywhere_in_a_body_makes_no_stream(name):
    endpoint, wanted = asked(name)
    wanted = replace(wanted, stream=True, usage=True)
    body = json.loads((PAIRS / f"{name}.json").read_bytes())
    assert convert(kept(json.dumps(body).encode(), JSON_TYPE, endpoint), wanted) is not None
    places = list(objects(body))
    # the body, its choice, and in a chat the message
    assert len(places) >= (3 if endpoint == "chat/completions" else 2)
    for path in places:
        stored = kept(json.dumps(with_new(body, path)).encode(), JSON_TYPE, endpoint)
        assert convert(stored, wanted) is None, path


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_field_anywhere_in_a_stream_makes_no_body(name):
    endpoint, wanted = asked(name)
    said = chunks((PAIRS / f"{name}.txt").read_bytes())
    assert convert(kept(as_stream(said), endpoint=endpoint), wanted) is not None
    places = list(objects(said))
    assert len(places) > len(said)
    for path in places:
        stored = kept(as_stream(with_new(said, path)), endpoint=endpoint)
        assert convert(stored, wanted) is None, path


@pytest.mark.parametrize("depth", [300, 1000])
def test_what_is_nested_too_deep_is_shown_only_as_it_came(depth):
    deep = b'{"a":' * depth + b"1" + b"}" * depth
    body = json.loads((PAIRS / "chat.json").read_bytes())
    body["usage"] |= {"novel": "DEEP"}
    said = chunks((PAIRS / "chat.txt").read_bytes())
    said[-1]["usage"] |= {"novel": "DEEP"}
    wanted = asked("chat")[1]
    as_usage = replace(wanted, stream=True, usage=True)
    whole = kept(json.dumps(body).encode().replace(b'"DEEP"', deep), JSON_TYPE)
    stream = kept(as_stream(said).replace(b'"DEEP"', deep))
    assert (convert(whole, as_usage), convert(stream, wanted)) == (None, None)
    assert convert(whole, wanted) is not None
    assert convert(stream, as_usage) is not None


# --- the pace of a stored stream: all times by hand --------------------------------------------------


def by_event(body: bytes, steps: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """The steps with the number of events instead of bytes."""
    ends = [*accumulate(len(each) + 2 for each in body.split(b"\n\n")[:-1])]
    return [(at, ends.index(end) + 1) for at, end in steps]


@given(texts=st.lists(st.sampled_from(["", "a", "bc"]), max_size=40), rate=st.floats(0.5, 10_000))
def test_every_event_is_due_once_in_order_and_never_too_early(texts, rate):
    tokens = b"".join(delta({"content": text}) for text in texts)
    body = ROLE + tokens + delta({}, finish="stop") + DONE
    steps = by_event(body, paced(body, rate))
    assert steps[-1][1] == len(texts) + 3
    assert steps == sorted(steps)
    for at, upto in steps:
        # the first token, and from then on so many a second
        assert sum(map(bool, ["", *texts][:upto])) <= 1 + at * rate + 1e-6


@pytest.mark.parametrize(
    ("body", "dues"),
    [
        # a role, 16 tokens, the usage, the end
        ((RECORDED / "chat_stream.txt").read_bytes(), [2, *range(3, 17), 19]),
        # two roles, 4 tokens of each choice in turn, the usage, the end
        (kept_stream("chat_n2").body, [3, *range(4, 10), 12]),
        # created, in progress, an item, a part, two deltas, four ends
        ((PAIRS / "responses.txt").read_bytes(), [5, 10]),
        # start, a block, four deltas, its end, the reason (`message_delta`), the end
        ((PAIRS / "messages.txt").read_bytes(), [3, 4, 5, 9]),
    ],
)
def test_recorded_streams_are_due_token_by_token(body, dues):
    assert by_event(body, paced(body, 1.0)) == [(float(at), due) for at, due in enumerate(dues)]
