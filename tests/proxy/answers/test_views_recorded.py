"""One stored answer shown in the other mode, field by field against what the same vLLM itself said in that mode."""

import json
import re
from dataclasses import replace

import pytest
from support.pairs import (
    NAMES,
    PAIRS,
    RECORDED,
    Fields,
    asked,
    kept,
    kept_stream,
    kept_whole,
    merged,
    without_nulls,
)

from toolkit.proxy.answers.views import Shown, shown
from toolkit.proxy.exchange import View

ECHOES = "chat_echo chat_prompt_logprobs text_echo text_echo_logprobs text_prompt_logprobs".split()
CUT_WITH_TOOLS = "chat_tool_auto chat_tool_cut".split()
CROSSING = [name for name in NAMES if name not in (*ECHOES, *CUT_WITH_TOOLS)]
STREAM, USAGE = View(stream=True), View(stream=True, usage=True)


def compared(body: Fields) -> Fields:
    """Without what differs between any two answers: their ids and times, a call's id, and the white space in its arguments."""
    text = re.sub(r'"(chatcmpl|cmpl)-[-\w]+"', '"ID"', json.dumps(body))
    body = json.loads(text) | {"created": 0}
    for choice in body["choices"]:
        for call in choice.get("message", choice.get("delta", {})).get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    # a null that only a whole body's usage has; a stream tells what is not null
    (body["usage"].get("prompt_tokens_details") or {}).pop("multimodal_tokens", None)
    return body


def found(answer: Shown | None) -> bytes:
    assert answer is not None
    return answer.body


def test_there_are_pairs_of_every_kind():
    assert len(CROSSING) >= 15
    assert {"chat", "chat_n2", "chat_logprobs_n2", "chat_stop", "chat_json_schema"} < set(CROSSING)
    assert {"chat_tool_named", "chat_tool_named_n2", "chat_reasoning_tool"} < set(CROSSING)
    assert {"text_n2_prompts", "text_logprobs_n2", "text_stop", "text_token_ids"} < set(CROSSING)


@pytest.mark.parametrize("name", CROSSING)
def test_a_stream_shown_whole_is_the_body_that_vllm_gives(name):
    _, whole = asked(name)
    answer = shown(kept_stream(name), whole)
    recorded = json.loads((PAIRS / f"{name}.json").read_bytes())
    assert answer is not None
    assert (answer.content_type, answer.ends, answer.ms) == ("application/json", (), ())
    assert compared(json.loads(answer.body)) == compared(recorded)
    # in the same order, too
    assert list(json.loads(answer.body)) == list(recorded)


@pytest.mark.parametrize("name", CROSSING)
def test_a_body_shown_as_a_stream_comes_to_what_vllm_streams(name):
    _, whole = asked(name)
    body = found(shown(kept_whole(name), replace(whole, stream=True, usage=True)))
    streamed = merged((PAIRS / f"{name}.txt").read_bytes())
    assert compared(without_nulls(merged(body))) == compared(without_nulls(streamed))


@pytest.mark.parametrize("name", ["chat", "chat_n2", "chat_logprobs", "text"])
def test_a_body_shown_as_a_stream_without_usage_comes_to_what_vllm_streams_without(name):
    body = found(shown(kept_whole(name), STREAM))
    streamed = (PAIRS / f"{name}.nousage.txt").read_bytes()
    ours, theirs = (
        without_nulls(merged(each)) | {"id": "", "created": 0} for each in (body, streamed)
    )
    assert ours == theirs
    assert "usage" not in ours


@pytest.mark.parametrize("name", CROSSING)
def test_there_and_back_nothing_is_lost(name):
    endpoint, whole = asked(name)
    stored = kept_whole(name)
    there = shown(stored, replace(whole, stream=True, usage=True))
    back = shown(kept(found(there), endpoint=endpoint), whole)
    ours, theirs = json.loads(found(back)), json.loads(stored.body)
    assert without_nulls(ours) == without_nulls(theirs)


@pytest.mark.parametrize("name", ["chat", "chat_n2", "chat_logprobs", "text"])
def test_a_stream_without_its_usage_is_byte_for_byte_what_vllm_streams_without(name):
    """The fingerprint is where vLLM tells it: with the usage if there is one, else where each choice ends."""
    answer = shown(kept_stream(name), STREAM)
    recorded = (PAIRS / f"{name}.nousage.txt").read_bytes()
    ids = re.compile(rb'"id":"[^"]+"|"created":\d+')
    assert answer is not None
    assert ids.sub(b"", answer.body) == ids.sub(b"", recorded)
    pieces = [
        answer.body[first:end] for first, end in zip((0, *answer.ends), answer.ends, strict=False)
    ]
    assert pieces == [piece + b"\n\n" for piece in answer.body.split(b"\n\n")[:-1]]
    assert len(answer.ms) == len(pieces)


@pytest.mark.parametrize("name", NAMES)
def test_in_its_own_mode_an_answer_is_shown_byte_for_byte(name):
    stream, whole = kept_stream(name), kept_whole(name)
    as_stream, as_whole = shown(stream, USAGE), shown(whole, View())
    assert (found(as_stream), found(as_whole)) == (stream.body, whole.body)
    assert as_stream is not None
    assert (as_stream.ends, as_stream.ms) == (stream.event_ends, stream.event_ms)


@pytest.mark.parametrize("name", ECHOES)
def test_what_only_a_whole_body_tells_of_a_prompt_is_never_shown_in_the_other_mode(name):
    _, wanted = asked(name)
    assert wanted.crosses == "never"
    assert shown(kept_stream(name), wanted) is None
    assert shown(kept_whole(name), replace(wanted, stream=True, usage=True)) is None


@pytest.mark.parametrize("name", CUT_WITH_TOOLS)
def test_an_answer_with_tools_that_its_length_ended_is_not_shown_in_the_other_mode(name):
    """Of a call that was cut, vLLM streams the parts and gives its raw text whole."""
    _, wanted = asked(name)
    assert wanted.crosses == "uncut"
    assert shown(kept_stream(name), wanted) is None
    assert shown(kept_whole(name), replace(wanted, stream=True, usage=True)) is None


def test_a_stream_that_did_not_tell_its_usage_is_not_shown_whole_or_with_usage():
    stored = kept((PAIRS / "chat.nousage.txt").read_bytes())
    assert shown(stored, View()) is None
    assert shown(stored, USAGE) is None
    assert found(shown(stored, STREAM)) == stored.body


def test_usage_in_each_event_is_shown_to_who_asked_for_it_and_to_nobody_else():
    continuous = View(stream=True, usage=True, continuous_usage=True)
    stored = kept((RECORDED / "chat_stream_contusage.body").read_bytes())
    plain = kept((RECORDED / "chat_stream.txt").read_bytes())
    assert found(shown(stored, continuous)) == stored.body
    assert shown(stored, USAGE) is None
    assert shown(stored, STREAM) is None
    assert shown(plain, continuous) is None
    assert shown(kept_whole("chat"), continuous) is None


def test_a_stream_with_usage_in_each_event_is_shown_whole():
    stored = kept((RECORDED / "chat_stream_contusage.body").read_bytes())
    body = json.loads(found(shown(stored, View())))
    assert body["choices"][0]["message"]["content"] == 'ke dest """ le'
    # as it stands in the recording's event without a choice
    details = {"prompt_tokens_details": None, "completion_tokens_details": None}
    counts = {"prompt_tokens": 21, "total_tokens": 25, "completion_tokens": 4}
    assert body["usage"] == counts | details


def test_a_stream_made_of_a_body_is_due_when_the_body_was_complete():
    # sent at 10.0 s, read at 10.5 s: role, text, usage, end
    answer = shown(kept_whole("chat"), USAGE)
    assert answer is not None
    assert answer.ms == (500, 500, 500, 500)
    assert answer.content_type == "text/event-stream; charset=utf-8"
    assert answer.body[answer.ends[2] : answer.ends[3]] == b"data: [DONE]\n\n"


@pytest.mark.parametrize("endpoint", ["responses", "messages"])
def test_other_endpoints_are_shown_only_in_the_mode_they_came_in(endpoint):
    stream = kept((PAIRS / f"{endpoint}.txt").read_bytes(), endpoint=endpoint)
    whole = kept((PAIRS / f"{endpoint}.json").read_bytes(), "application/json", endpoint)
    assert found(shown(stream, STREAM)) == stream.body
    assert found(shown(whole, View())) == whole.body
    assert shown(stream, View()) is None
    assert shown(whole, STREAM) is None
