"""Answers in time: which chunk has a token, when, how many, and what the answer said."""

import json
from typing import Any

import pytest

from toolkit.completion import Answer, Completion

STREAM = "text/event-stream; charset=utf-8"


def event(said: Any) -> bytes:
    return b"data: " + (said if type(said) is bytes else json.dumps(said).encode()) + b"\n\n"


def chunk(delta: Any, finish: str | None = None, *, index: int = 0, tokens: int | None = None):
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    usage = {} if tokens is None else {"usage": {"prompt_tokens": 7, "completion_tokens": tokens}}
    return {"id": "chatcmpl-1", "model": "tiny", "choices": [choice]} | usage


def usage(tokens: Any, **more: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": tokens} | more}


ROLE = chunk({"role": "assistant", "content": ""})
DONE = b"[DONE]"


def text(content: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return chunk({"content": content}, finish, **more)


def streamed(*events: Any) -> Answer:
    """The answer of events that came at 1.0, 2.0, 3.0 ...; its end came at 100.0."""
    reader = Completion(status=200, content_type=STREAM)
    for at, said in enumerate(events, start=1):
        reader.feed(event(said), float(at))
    return reader.end(100.0)


def whole(body: Any, *, status: int = 200, content_type: str = "application/json") -> Answer:
    reader = Completion(status=status, content_type=content_type)
    reader.feed(body if type(body) is bytes else json.dumps(body).encode(), 1.0)
    return reader.end(2.0)


def message(said: Any, finish: str | None = "stop", **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant"} | said, "finish_reason": finish}
    return {"id": "chatcmpl-1", "model": "tiny", "choices": [choice]} | more


# Which chunk is the first token


def test_the_first_token_is_no_role_and_the_last_no_usage():
    answer = streamed(ROLE, text("a"), text("b"), text("c", "length"), usage(3), DONE)
    assert (answer.first_token_at, answer.last_token_at, answer.ended_at) == (2.0, 4.0, 6.0)
    assert answer.e2e_end_at == 4.0
    assert (answer.ok, answer.error_kind, answer.error, answer.streamed) == (True, None, None, True)
    assert answer.gaps == ((1.0, 1), (1.0, 1))
    assert (answer.token_chunks, answer.first_chunk_tokens) == (3, 1)
    assert (answer.text, answer.finish_reason) == ("abc", "length")
    assert (answer.model, answer.answer_id, answer.prompt_tokens) == ("tiny", "chatcmpl-1", 7)


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "x"},
        {"role": "assistant", "content": "x"},
        {"refusal": "x"},
        {"reasoning_content": "x"},
        {"reasoning": "x", "content": None},
        {"tool_calls": [{"index": 0, "function": {"name": "x"}}]},
        {"tool_calls": [{"index": 0}, {"function": {"arguments": "x"}}]},
        {"function_call": {"name": "x"}},
        {"function_call": {"arguments": "x"}},
    ],
)
def test_text_of_any_kind_is_a_token(delta):
    answer = streamed(ROLE, chunk(delta), chunk({}, "stop"), DONE)
    assert (answer.token_chunks, answer.first_token_at, answer.last_token_at) == (1, 2.0, 2.0)
    assert answer.text + answer.reasoning + answer.tool_calls == "x"
    assert answer.text_chars == 1


@pytest.mark.parametrize(
    "delta",
    [
        {},
        None,
        {"role": "assistant"},
        {"content": ""},
        {"content": None, "reasoning_content": "", "refusal": None, "tool_calls": []},
        {"tool_calls": [{"index": 0, "id": "call-1", "type": "function"}]},
        {"tool_calls": [{"index": 0, "function": {"name": "", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"name": None, "arguments": {"x": 1}}}]},
        {"content": ["x"], "reasoning": 1, "refusal": True, "tool_calls": {"x": 1}},
    ],
)
def test_a_delta_without_text_is_no_token(delta):
    answer = streamed(ROLE, chunk(delta), text("x"), chunk({}, "stop"), DONE)
    assert (answer.token_chunks, answer.first_token_at, answer.text) == (1, 3.0, "x")
    assert answer.ok


@pytest.mark.parametrize("odd", ["x", ["x"], 7])
def test_a_message_that_is_no_object_is_no_answer(odd):
    assert streamed(ROLE, chunk(odd), text("x"), chunk({}, "stop"), DONE).error_kind == "garbage"


def test_legacy_completions_stream_their_text():
    pieces = [{"choices": [{"index": 0, "text": said, "finish_reason": None}]} for said in "\0ab"]
    pieces[0]["choices"][0]["text"] = ""
    pieces[2]["choices"][0]["finish_reason"] = "length"
    answer = streamed(*pieces, DONE)
    assert (answer.first_token_at, answer.token_chunks, answer.text) == (2.0, 2, "ab")
    assert answer.ok


def test_reasoning_is_a_token_but_not_visible():
    answer = streamed(
        ROLE,
        chunk({"reasoning_content": "hm"}),
        chunk({"reasoning": "so"}),
        chunk({"reasoning": "", "content": "Hi"}, "stop"),
        DONE,
    )
    assert (answer.first_token_at, answer.first_visible_at) == (2.0, 4.0)
    assert (answer.reasoning, answer.text) == ("hmso", "Hi")


def test_reasoning_sent_under_both_names_is_kept_once():
    answer = streamed(chunk({"reasoning_content": "hm", "reasoning": "hm"}, "stop"), DONE)
    assert (answer.reasoning, answer.first_visible_at) == ("hm", None)


def test_a_chunk_with_reasoning_and_text_is_visible():
    assert streamed(chunk({"reasoning": "hm", "content": "Hi"}, "stop")).first_visible_at == 1.0


def test_tool_calls_keep_names_and_arguments():
    def call(**function: str) -> dict[str, Any]:
        return chunk({"tool_calls": [{"index": 0, "function": function}]})

    answer = streamed(
        ROLE, call(name="f", arguments=""), call(arguments='{"a"'), call(arguments=": 1}")
    )
    assert (answer.tool_calls, answer.text, answer.token_chunks) == ('f{"a": 1}', "", 3)
    assert answer.first_visible_at == 2.0


def test_a_token_counts_from_the_read_that_completed_its_event():
    body = event(text("a")) + event(text("b", "stop"))
    reader = Completion(status=200, content_type=STREAM)
    # the last byte but one of `a`, then the rest of it with half of `b`
    cut = len(event(text("a"))) - 1
    reader.feed(body[:cut], 1.0)
    reader.feed(body[cut:-20], 2.0)
    reader.feed(body[-20:], 3.5)
    answer = reader.end(4.0)
    assert (answer.first_token_at, answer.gaps, answer.ended_at) == (2.0, ((1.5, 1),), 3.5)


def test_tokens_of_one_read_have_no_time_between_them():
    reader = Completion(status=200, content_type=STREAM)
    reader.feed(event(text("a")) + event(text("b")) + event(text("c", "stop")), 5.0)
    assert reader.end(6.0).gaps == ((0.0, 1), (0.0, 1))


# How many tokens a chunk has


def test_usage_in_every_chunk_tells_its_tokens():
    # speculative decoding: 3, then 2, then 4 tokens; the last chunk at 4.0, the first at 2.0
    answer = streamed(
        chunk({"role": "assistant", "content": ""}, tokens=0),
        text("abc", tokens=3),
        text("de", tokens=5),
        text("fghi", "stop", tokens=9),
        usage(9),
        DONE,
    )
    assert (answer.first_chunk_tokens, answer.gaps) == (3, ((1.0, 2), (1.0, 4)))
    assert answer.gap_tokens_known
    assert answer.tpot_s == pytest.approx(2.0 / 6)  # 2 s for the 6 tokens after the first chunk
    assert (answer.output_tokens, answer.output_tokens_estimated) == (9, False)


def test_a_token_whose_text_is_to_come_belongs_to_the_chunk_that_brings_it():
    half = [text("a", tokens=1), text("", tokens=2), text("é", "stop", tokens=3), usage(3)]
    answer = streamed(*half)
    assert (answer.gaps, answer.gap_tokens_known) == (((2.0, 2),), True)
    # the same without usage in the chunks: three chunks, three tokens
    answer = streamed(text("a"), text(""), text("é", "stop"), usage(3))
    assert (answer.gaps, answer.gap_tokens_known) == (((2.0, 2),), True)


def test_half_a_character_at_the_start_makes_the_first_chunk_two_tokens():
    # also without a chunk that tells the role, as legacy completions begin
    for first, at in (((ROLE, text("")), 3.0), ((text(""),), 2.0)):
        answer = streamed(*first, text("é"), text("b", "stop"), usage(3))
        assert (answer.first_token_at, answer.first_chunk_tokens) == (at, 2)
        assert (answer.gaps, answer.gap_tokens_known) == (((1.0, 1),), True)


def test_a_role_in_every_chunk_makes_only_the_first_one_no_token():
    said = [chunk({"role": "assistant", "content": part}) for part in ("", "a", "", "é")]
    answer = streamed(*said, usage(3))
    assert (answer.first_token_at, answer.gaps, answer.gap_tokens_known) == (2.0, ((2.0, 2),), True)


def test_a_token_that_ends_the_text_is_counted_but_not_timed():
    # 2 tokens of text and one that ends it: nothing was shown for that one
    answer = streamed(ROLE, text("a"), text("b"), text("", "stop"), usage(3))
    assert (answer.output_tokens, answer.gaps, answer.gap_tokens_known) == (3, ((1.0, 1),), True)
    assert (answer.last_token_at, answer.tpot_s) == (3.0, 1.0)


def test_a_last_chunk_that_is_no_token_leaves_one_token_a_chunk():
    answer = streamed(ROLE, text("a"), text("b"), chunk({}, "stop"), usage(2))
    assert (answer.first_chunk_tokens, answer.gaps, answer.gap_tokens_known) == (
        1,
        ((1.0, 1),),
        True,
    )


def test_bundled_tokens_without_usage_in_the_chunks_are_spread_evenly():
    # 10 tokens over 4 chunks end at 2.5, 5, 7.5, 10, cut to whole ones: 2, 5, 7, 10
    answer = streamed(text("aa"), text("bb"), text("cc"), text("dd", "stop"), usage(10))
    assert (answer.first_chunk_tokens, answer.gap_tokens_known) == (2, False)
    assert answer.gaps == ((1.0, 3), (1.0, 2), (1.0, 3))


def test_fewer_tokens_than_chunks_are_one_a_chunk():
    answer = streamed(text("a"), text("b"), text("c", "stop"), usage(1))
    assert (answer.gaps, answer.gap_tokens_known) == (((1.0, 1), (1.0, 1)), False)
    assert (answer.output_tokens, answer.output_tokens_estimated) == (1, False)


def test_without_usage_chunks_are_counted_and_the_number_is_marked():
    answer = streamed(ROLE, text("a"), text(""), text("b", "stop"), DONE)
    assert (answer.output_tokens, answer.output_tokens_estimated) == (2, True)
    assert (answer.gaps, answer.gap_tokens_known) == (((2.0, 1),), False)
    assert answer.prompt_tokens is None


@pytest.mark.parametrize(
    "told",
    [
        (2, 2, 6),  # the second chunk brings none: it can't be what it was made of
        (3, 2, 6),  # backwards
        (1, None, 6),  # not in every chunk
        (1, 2, 4),  # the end tells another number
    ],
)
def test_usage_in_the_chunks_that_does_not_add_up_tells_nothing(told):
    first, second, third = told
    answer = streamed(
        text("a", tokens=first),
        text("b", tokens=second),
        text("c", "stop", tokens=third),
        usage(6),
    )
    # 6 tokens over 3 chunks
    assert (answer.gaps, answer.gap_tokens_known) == (((1.0, 2), (1.0, 2)), False)


def test_usage_in_the_last_chunk_alone_is_no_usage_in_every_chunk():
    answer = streamed(text("ab"), text("cd"), text("ef", "stop", tokens=6), DONE)
    assert (answer.gaps, answer.gap_tokens_known) == (((1.0, 2), (1.0, 2)), False)


def test_usage_null_and_empty_change_nothing():
    chunks = [text("a") | {"usage": None}, usage(2), text("", "stop") | {"usage": {}}]
    assert streamed(*chunks).output_tokens == 2


def test_a_chunk_whose_usage_does_not_count_leaves_the_count_where_it_was():
    last = chunk({}, "stop") | {"usage": {"prompt_tokens": 7}}
    answer = streamed(text("abc", tokens=3), text("de", tokens=5), last, usage(5))
    assert (answer.first_chunk_tokens, answer.gaps, answer.gap_tokens_known) == (
        3,
        ((1.0, 2),),
        True,
    )


@pytest.mark.parametrize("told", [True, -1, 1.5, "3", None, [3], {}, 2**53, 10**30])
def test_a_count_that_is_none_is_unknown(told):
    details = {"prompt_tokens_details": {"cached_tokens": told}}
    answer = streamed(text("a", "stop"), usage(told, prompt_tokens=told, **details))
    assert (answer.prompt_tokens, answer.cached_tokens) == (None, None)
    assert (answer.output_tokens, answer.output_tokens_estimated) == (1, True)
    body = message({"content": "a"}, usage={"completion_tokens": told, "prompt_tokens": told})
    assert (whole(body).output_tokens, whole(body).output_tokens_estimated) == (None, False)


def test_zero_is_a_count():
    assert whole(message({"content": ""}, usage={"completion_tokens": 0})).output_tokens == 0


def test_details_of_usage_are_read_from_streams_and_whole_bodies():
    details = {
        "prompt_tokens_details": {"cached_tokens": 128},
        "completion_tokens_details": {"reasoning_tokens": 5},
    }
    for answer in (
        streamed(text("a", "stop"), usage(9, **details)),
        whole(message({"content": "a"}, usage={"completion_tokens": 9} | details)),
    ):
        assert (answer.cached_tokens, answer.reasoning_tokens) == (128, 5)


# Several choices


def test_choices_are_put_together_by_index_and_all_their_chunks_are_tokens():
    answer = streamed(
        chunk({"role": "assistant"}, index=0),
        chunk({"role": "assistant"}, index=1),
        text("b1", index=1),
        text("a1", index=0),
        text("b2", "length", index=1),
        text("a2", "stop", index=0),
        usage(4),
        DONE,
    )
    assert (answer.text, answer.finish_reason, answer.ok) == ("a1a2b1b2", "stop", True)
    assert (answer.token_chunks, answer.gap_tokens_known) == (4, True)
    assert answer.gaps == ((1.0, 1), (1.0, 1), (1.0, 1))


def test_usage_in_the_chunks_is_each_choice_s_own():
    # vLLM counts each choice apart in its chunks, and all of them at the end
    answer = streamed(
        text("aa", index=0, tokens=2),
        text("b", index=1, tokens=1),
        text("aa", "stop", index=0, tokens=4),
        text("bb", "stop", index=1, tokens=3),
        usage(7),
    )
    assert (answer.first_chunk_tokens, answer.gap_tokens_known) == (2, True)
    assert answer.gaps == ((1.0, 1), (1.0, 2), (1.0, 2))


def test_an_answer_is_complete_when_every_choice_is():
    events = [text("a", "stop"), text("b", index=1), DONE]
    assert streamed(*events).error_kind == "no_finish"
    assert streamed(events[0], text("b", "stop", index=1), DONE).ok


def test_choices_of_one_chunk_are_one_chunk():
    both = {"choices": text("a", "stop")["choices"] + text("b", "stop", index=1)["choices"]}
    answer = streamed(both, usage(2))
    assert (answer.text, answer.token_chunks, answer.first_chunk_tokens) == ("ab", 1, 2)
    assert not answer.gap_tokens_known
    # one with text is enough, wherever it stands
    both["choices"][1]["delta"] = {}
    assert streamed(both, usage(1)).token_chunks == 1


# Whole bodies


def test_a_whole_body_is_timed_to_its_last_byte():
    body = json.dumps(message({"content": "Hi", "reasoning": "hm"}, usage={})).encode()
    reader = Completion(status=200, content_type="application/json")
    reader.feed(body[:9], 1.0)
    reader.feed(body[9:], 2.0)
    answer = reader.end(3.0)
    assert (answer.ok, answer.streamed, answer.ended_at, answer.e2e_end_at) == (True, False, 2, 2)
    assert (answer.first_token_at, answer.first_visible_at, answer.last_token_at) == (None,) * 3
    assert (answer.token_chunks, answer.first_chunk_tokens, answer.gaps) == (None, None, ())
    assert (answer.tpot_s, answer.text, answer.reasoning) == (None, "Hi", "hm")


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "", "text/plain", "text/event-streams", "json; text/event-stream"],
)
def test_what_does_not_call_itself_an_event_stream_is_read_whole(content_type):
    answer = whole(message({"content": "Hi"}), content_type=content_type)
    assert (answer.ok, answer.streamed, answer.text) == (True, False, "Hi")


@pytest.mark.parametrize("content_type", ["text/event-stream", "Text/Event-Stream ; charset=utf-8"])
def test_an_event_stream_is_known_by_its_type_in_any_spelling(content_type):
    assert whole(event(text("Hi", "stop")), content_type=content_type).streamed


def test_a_whole_body_tells_calls_and_legacy_text():
    calls = [{"function": {"name": "f", "arguments": "{}"}}, {"function": {"name": "g"}}]
    assert whole(message({"content": None, "tool_calls": calls})).tool_calls == "f{}g"
    assert whole(message({"function_call": {"name": "f", "arguments": "1"}})).tool_calls == "f1"
    legacy = {
        "choices": [{"text": "b", "index": 1, "finish_reason": "stop"}, {"text": "a", "index": 0}]
    }
    assert whole(legacy).text == "ab"
    assert whole(legacy).error_kind == "no_finish"


def test_choices_without_an_index_count_up():
    body = {"choices": [{"text": said, "finish_reason": "stop"} for said in "abc"]}
    assert (whole(body).text, whole(body).ok) == ("abc", True)
    del body["choices"][0]["finish_reason"]
    assert whole(body).error_kind == "no_finish"


def test_a_byte_order_mark_before_a_body_is_no_fault():
    assert whole(b"\xef\xbb\xbf" + json.dumps(message({"content": "a"})).encode()).text == "a"


# The text's hash


def test_equal_texts_have_equal_hashes_streamed_or_whole():
    answer = streamed(ROLE, chunk({"reasoning": "hm"}), text("Hé"), text("llo", "stop"), DONE)
    same = whole(message({"content": "Héllo", "reasoning": "hm"}))
    assert answer.text_hash == same.text_hash
    assert answer.text_chars == same.text_chars == 7
    assert len(answer.text_hash) == 16
    assert set(answer.text_hash) <= set("0123456789abcdef")


def test_texts_that_differ_only_in_their_kind_have_other_hashes():
    call = {"tool_calls": [{"function": {"arguments": "x"}}]}
    hashes = {
        whole(message(said)).text_hash for said in ({"content": "x"}, {"reasoning": "x"}, call)
    }
    assert len(hashes) == 3


def test_no_text_has_no_hash():
    assert whole(message({"content": ""})).text_hash is None


def test_half_a_surrogate_pair_breaks_nothing():
    answer = streamed(b'{"choices":[{"delta":{"content":"\\ud83d"},"finish_reason":"stop"}]}')
    assert (answer.ok, answer.text, answer.text_chars) == (True, "\ud83d", 1)
    assert answer.text_hash != whole(message({"content": "?"})).text_hash
    assert whole(message({"content": "\ude00"})).text_hash


def test_names_can_be_printed_and_stored_whatever_they_hold():
    answer = whole(message({"content": "a"}, model="tiny\x1b[31m\ud83d", id="x" * 1000))
    assert answer.model == "tiny?[31m?"
    assert answer.answer_id == "x" * 299 + "…"
    assert whole(message({"content": "a"}, model=7, id="")).model is None
