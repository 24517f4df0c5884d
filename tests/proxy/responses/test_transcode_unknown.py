"""Whatever is not known is not carried over: every recorded answer with one thing in it that nobody has seen before."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.pairs import JSON_TYPE, PAIRS, asked, chunks, kept

from toolkit.proxy.responses.transcode import convert

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


CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("choices", 0, "message", "function_call"), {"name": "f", "arguments": "{}"}),
        (("choices", 0, "message", "annotations"), [{"type": "url_citation"}]),
        (("choices", 0, "message", "tool_calls"), [{"function": {"name": "f", "arguments": {}}}]),
        (("choices", 0, "message", "tool_calls"), [{"id": "a", "function": {"arguments": "{}"}}]),
        (("choices", 0, "message", "tool_calls"), [{"id": "a", "function": {"name": "f"}}]),
        (("choices", 0, "message", "tool_calls"), [CALL | {"index": 1}]),
        (("choices", 0, "message", "tool_calls"), {"0": CALL}),
        (("choices", 0, "routed_experts"), "AAAA"),
        (("kv_transfer_params",), {"remote_block_ids": [1]}),
    ],
)
def test_what_a_stream_could_not_tell_makes_no_stream(place, value):
    endpoint, wanted = asked("chat")
    body = json.loads((PAIRS / "chat.json").read_bytes())
    holder = body
    for step in place[:-1]:
        holder = holder[step]
    holder[place[-1]] = value
    stored = kept(json.dumps(body).encode(), JSON_TYPE, endpoint)
    assert convert(stored, replace(wanted, stream=True, usage=True)) is None


@pytest.mark.parametrize(
    ("changed", "choice"),
    [
        ({"prompt_token_ids": [1]}, {}),
        ({"prompt_text": "one"}, {}),
        ({}, {"text": None}),
        ({}, {"text": 1}),
    ],
)
def test_a_text_that_does_not_fit_makes_no_stream(changed, choice):
    endpoint, wanted = asked("text")
    body = json.loads((PAIRS / "text.json").read_bytes()) | changed
    body["choices"][0] |= choice
    stored = kept(json.dumps(body).encode(), JSON_TYPE, endpoint)
    assert convert(stored, replace(wanted, stream=True, usage=True)) is None


@pytest.mark.parametrize("changed", [{"prompt_token_ids": [1]}, {"prompt_text": "one"}])
def test_a_text_stream_with_its_prompt_outside_a_choice_makes_no_body(changed):
    endpoint, wanted = asked("text")
    said = chunks((PAIRS / "text.txt").read_bytes())
    said[0] |= changed
    assert convert(kept(as_stream(said), endpoint=endpoint), wanted) is None


@pytest.mark.parametrize(
    ("number", "changed"),
    [
        # a chunk of another answer, or of another model
        (2, {"model": "other"}),
        (2, {"choices": None}),
        (2, {"choices": [{"index": 2, "delta": {"content": "A"}, "finish_reason": "stop"}]}),
        (2, {"choices": [{"delta": {"content": "A"}, "finish_reason": None}]}),
        # ended twice, or thoughts of one chunk without their logprobs
        (2, {"choices": [{"index": 0, "delta": {"content": "A"}, "finish_reason": "stop"}]}),
        (2, {"choices": [{"index": 0, "delta": {"content": "A"}, "token_ids": "ab"}]}),
        (2, {"choices": [{"index": 0, "delta": {"content": "A"}, "prompt_token_ids": "ab"}]}),
        (2, {"choices": [{"index": 0, "delta": {"content": "A"}, "logprobs": {"content": "ab"}}]}),
        (2, {"choices": [{"index": 0, "delta": {"content": "A"}, "finish_reason": 1}]}),
        (2, {"choices": [{"index": 0, "delta": {"tool_calls": {"index": 0}}}]}),
        (2, {"choices": ["A"]}),
    ],
)
def test_a_chunk_that_does_not_fit_makes_no_body(number, changed):
    said = chunks((PAIRS / "chat.txt").read_bytes())
    said[number] |= changed
    assert convert(kept(as_stream(said)), asked("chat")[1]) is None


@pytest.mark.parametrize("name", ["chat_logprobs", "text_logprobs"])
def test_a_stream_that_left_out_logprobs_of_a_token_makes_no_body(name):
    endpoint, wanted = asked(name)
    said = chunks((PAIRS / f"{name}.txt").read_bytes())
    said[2]["choices"][0]["logprobs"] = None
    assert convert(kept(as_stream(said), endpoint=endpoint), wanted) is None


def test_an_echo_that_the_request_did_not_tell_of_makes_no_body():
    """vLLM streams the prompt's ids and logprobs with an echo; whole, it puts the one elsewhere and leaves out the other."""
    wanted = asked("text")[1]
    for name in ("text_echo", "text_echo_logprobs"):
        stored = kept((PAIRS / f"{name}.txt").read_bytes(), endpoint="completions")
        assert convert(stored, wanted) is None


@pytest.mark.parametrize(
    "changed",
    [
        # no text's first token lacks a logprob, only a prompt's
        {"token_logprobs": [None]},
        {"content": [{}]},
        {"tokens": []},
    ],
)
def test_logprobs_of_another_shape_make_no_body(changed):
    endpoint, wanted = asked("text_logprobs")
    said = chunks((PAIRS / "text_logprobs.txt").read_bytes())
    said[0]["choices"][0]["logprobs"] |= changed
    assert convert(kept(as_stream(said), endpoint=endpoint), wanted) is None


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


def test_a_text_stream_without_a_text_makes_no_body():
    endpoint, wanted = asked("text")
    said = chunks((PAIRS / "text.txt").read_bytes())
    for chunk in said[:-1]:
        chunk["choices"][0]["text"] = None
    assert convert(kept(as_stream(said), endpoint=endpoint), wanted) is None
