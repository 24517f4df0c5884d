import json
from pathlib import Path
from typing import Any

import pytest

from toolkit.proxy.answers.verify import Difference, same
from toolkit.proxy.exchange import Kept

RECORDED = Path(__file__).parents[2] / "data" / "vllm-0.32.0-cpu"


def whole(body: Any, endpoint: str = "chat/completions") -> Kept:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Kept(endpoint=endpoint, streamed=False, content_type="application/json", body=data)


def stream(*chunks: Any, endpoint: str = "chat/completions", end: bytes = b"[DONE]") -> Kept:
    data = [*(json.dumps(each).encode() for each in chunks), end]
    body = b"".join(b"data: " + each + b"\n\n" for each in data)
    return Kept(endpoint=endpoint, streamed=True, content_type="text/event-stream", body=body)


def recorded(name: str, endpoint: str = "chat/completions", *, streamed: bool = True) -> Kept:
    body = (RECORDED / name).read_bytes()
    kind = "text/event-stream" if streamed else "application/json"
    return Kept(endpoint=endpoint, streamed=streamed, content_type=kind, body=body)


def chat(message: dict[str, Any], finish: str | None = "stop", **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return {"id": "chatcmpl-1", "created": 1, "model": "m", "choices": [choice], **fields}


def chunk(delta: dict[str, Any], finish: str | None = None, index: int = 0) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return {"id": "chatcmpl-2", "created": 2, "model": "m", "choices": [choice]}


def call(name: str, arguments: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **fields}


def test_a_recorded_answer_is_the_same_as_itself_with_another_id_time_and_fingerprint() -> None:
    said = json.loads((RECORDED / "chat.json").read_bytes())
    other = {**said, "id": "chatcmpl-other", "created": 7, "system_fingerprint": "vllm-other"}
    assert same(recorded("chat.json", streamed=False), whole(other)) is None


def test_a_recorded_stream_says_the_same_as_the_body_that_says_it() -> None:
    # 16 tokens, max_tokens 16; the text as a person puts it together from the recorded events
    text = ":exceptionmptywayshelpizeininininname headerexception encodingnameattr"
    usage = {"prompt_tokens": 21, "completion_tokens": 16}
    body = whole(chat({"content": text}, "length", usage=usage))
    assert same(recorded("chat_stream.txt"), body) is None
    assert same(body, recorded("chat_stream.txt")) is None
    assert same(recorded("chat.json", streamed=False), recorded("chat_stream.txt")) is None


def test_two_recorded_answers_part_at_the_character_where_a_person_sees_it() -> None:
    # `ke dest """own` of 4 tokens, `ke dest """own nonignped` of 8: alike up to character 14
    short, long = (
        recorded("completions_stream.body", "completions"),
        recorded("completions.body", "completions", streamed=False),
    )
    assert same(short, long) == Difference(
        what="text", where="choices[0].text", at=14, length=14, length_again=24
    )


@pytest.mark.parametrize(
    ("one", "other", "what", "where", "at"),
    [
        ({"content": "abcd"}, {"content": "abXd"}, "text", "choices[0].text", 2),
        ({"content": "ab"}, {"content": "b"}, "text", "choices[0].text", 0),
        ({"content": "ab"}, {"content": None}, "text", "choices[0].text", 0),
        ({"refusal": "No."}, {"refusal": "No!"}, "text", "choices[0].refusal", 2),
        ({"reasoning": "x"}, {"reasoning": "xy"}, "reasoning", "choices[0].reasoning", 1),
        (
            {"reasoning_content": "so", "content": "a"},
            {"reasoning_content": "no", "content": "b"},
            "reasoning",
            "choices[0].reasoning",
            0,
        ),
        (
            {"tool_calls": [call("f", "{}"), call("g", "{}")]},
            {"tool_calls": [call("f", "{}"), call("h", "{}")]},
            "tool_call",
            "choices[0].tool_calls[1].name",
            0,
        ),
        (
            {"tool_calls": [call("f", '{"a": 1}')]},
            {"tool_calls": [call("f", '{"a": 2}')]},
            "tool_call",
            "choices[0].tool_calls[0].arguments",
            6,
        ),
        (
            {"function_call": {"name": "f", "arguments": "1"}},
            {"function_call": {"name": "f", "arguments": "2"}},
            "tool_call",
            "choices[0].function_call.arguments",
            0,
        ),
    ],
)
def test_what_is_said_otherwise_is_found(
    one: dict[str, Any], other: dict[str, Any], what: str, where: str, at: int
) -> None:
    difference = same(whole(chat(one)), whole(chat(other)))
    assert difference is not None
    assert (difference.what, difference.where, difference.at) == (what, where, at)


def test_a_difference_holds_nothing_of_the_text() -> None:
    difference = same(
        whole(chat({"content": "my secret plan"})), whole(chat({"content": "another word"}))
    )
    told = repr(difference)
    assert "length=14, length_again=12" in told
    assert not [word for word in ("secret", "plan", "another") if word in told]


def test_another_reason_to_end_is_a_difference() -> None:
    assert same(
        whole(chat({"content": "a"}, "stop")), whole(chat({"content": "a"}, "length"))
    ) == Difference(
        what="finish_reason", where="choices[0].finish_reason", at=0, length=4, length_again=6
    )


def test_tokens_count_where_both_tell_them() -> None:
    def told(**usage: int) -> Kept:
        return whole(chat({"content": "a"}, usage=usage))

    one = told(prompt_tokens=3, completion_tokens=1)
    assert same(one, told(prompt_tokens=3, completion_tokens=2)) == Difference(
        what="tokens", where="usage.completion_tokens"
    )
    assert same(one, told(prompt_tokens=4, completion_tokens=1)) == Difference(
        what="tokens", where="usage.prompt_tokens"
    )
    assert same(one, whole(chat({"content": "a"}))) is None
    cached = {"prompt_tokens_details": {"cached_tokens": 2}}
    assert same(one, told(prompt_tokens=3, completion_tokens=1, **cached)) is None  # type: ignore[arg-type]


def test_each_choices_own_tokens_are_counted_where_they_are_listed() -> None:
    def answer(*tokens: str) -> Kept:
        body = chat({"content": "ab"})
        body["choices"][0]["logprobs"] = {"content": [{"token": each} for each in tokens]}
        return whole(body)

    assert same(answer("a", "b"), answer("ab")) == Difference(
        what="tokens", where="choices[0].tokens"
    )
    assert same(answer("a", "b"), answer("a", "b")) is None


def test_choices_are_compared_by_their_index_however_a_stream_mixes_them() -> None:
    mixed = stream(
        chunk({"role": "assistant", "content": ""}, index=1),
        chunk({"content": "two"}, index=1),
        chunk({"content": "one"}, index=0),
        chunk({"content": " more"}, "stop", index=1),
        chunk({}, "length", index=0),
    )
    body = chat({"content": "one"}, "length")
    body["choices"].append(
        {"index": 1, "message": {"content": "two more"}, "finish_reason": "stop"}
    )
    assert same(mixed, whole(body)) is None
    body["choices"][1]["message"]["content"] = "two moRe"
    assert same(mixed, whole(body)) == Difference(
        what="text", where="choices[1].text", at=6, length=8, length_again=8
    )


def test_a_choice_too_few_is_a_difference() -> None:
    body = chat({"content": "one"})
    more = chat({"content": "one"})
    more["choices"].append({"index": 1, "message": {"content": "x"}, "finish_reason": "stop"})
    difference = same(whole(body), whole(more))
    assert difference is not None
    assert difference.where == "choices[1].text"


def test_tool_calls_in_pieces_are_the_calls_of_the_whole_with_other_ids_and_spaces() -> None:
    pieces = stream(
        chunk({"tool_calls": [{"index": 0, "id": "a", **call("weather", "")}]}),
        chunk({"tool_calls": [{"index": 1, "id": "b", **call("time", '{"tz":')}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"in": "Bonn"}'}}]}),
        chunk({"tool_calls": [{"index": 1, "function": {"arguments": "1}"}}]}, "tool_calls"),
    )
    calls = [call("weather", '{"in":"Bonn"}', id="x"), call("time", '{"tz": 1}', id="y")]
    assert same(pieces, whole(chat({"tool_calls": calls}, "tool_calls"))) is None
    calls[1]["function"]["arguments"] = '{"tz": true}'
    difference = same(pieces, whole(chat({"tool_calls": calls}, "tool_calls")))
    assert difference is not None
    assert difference.where == "choices[0].tool_calls[1].arguments"


def test_in_one_mode_a_space_more_in_the_arguments_is_a_difference() -> None:
    one, other = ({"tool_calls": [call("f", text)]} for text in ('{"a":1}', '{"a": 1}'))
    assert same(whole(chat(one)), whole(chat(other))) is not None


def test_reasoning_that_is_sent_under_both_of_its_names_counts_once() -> None:
    both = stream(
        chunk({"reasoning": "so", "reasoning_content": "so"}), chunk({"content": "a"}, "stop")
    )
    assert same(both, whole(chat({"reasoning": "so", "content": "a"}))) is None


def test_what_comes_after_the_end_of_a_stream_is_not_compared() -> None:
    said = stream(chunk({"content": "a"}, "stop"))
    longer = Kept(
        endpoint=said.endpoint,
        streamed=True,
        content_type=said.content_type,
        body=said.body + stream(chunk({"content": "b"})).body,
    )
    assert same(said, longer) is None


# --- answers without choices ---------------------------------------------------------------------


def response(text: str, status: str = "completed", number: int = 1) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"id": f"msg_{number}", "type": "message", "status": status, "content": [part]}
    usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    return {
        "id": f"resp_{number}",
        "created_at": number,
        "object": "response",
        "status": status,
        "output": [item],
        "usage": usage,
    }


def test_a_response_is_compared_by_the_whole_that_ends_its_stream() -> None:
    events = [
        {"type": "response.created", "response": response("", "in_progress")},
        {"type": "response.output_text.delta", "delta": "Hel", "sequence_number": 2},
        {"type": "response.completed", "response": response("Hello"), "sequence_number": 4},
    ]
    said = stream(*events, endpoint="responses")
    assert same(said, whole(response("Hello", number=2), "responses")) is None
    assert same(said, whole(response("Help!", number=2), "responses")) == Difference(
        what="text", where="output[0].content[0].text", at=3, length=5, length_again=5
    )


def message(text: str, inputs: Any, thinking: str = "Hm.") -> dict[str, Any]:
    content = [
        {"type": "thinking", "thinking": thinking, "signature": "s1"},
        {"type": "text", "text": text},
        {"type": "tool_use", "id": "t1", "name": "weather", "input": inputs},
    ]
    usage = {"input_tokens": 9, "output_tokens": 4}
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": content,
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": usage,
    }


def test_a_message_in_pieces_is_the_message_of_the_whole() -> None:
    def block(index: int, kind: str, **fields: Any) -> dict[str, Any]:
        return {"type": kind, "index": index, **fields}

    start, delta = "content_block_start", "content_block_delta"
    begun = {"type": "message", "role": "assistant", "content": [], "usage": {"input_tokens": 9}}
    events = [
        {"type": "message_start", "message": begun},
        block(0, start, content_block={"type": "thinking", "thinking": ""}),
        block(0, delta, delta={"type": "thinking_delta", "thinking": "Hm."}),
        block(0, delta, delta={"type": "signature_delta", "signature": "s2"}),
        block(1, start, content_block={"type": "text", "text": ""}),
        block(1, delta, delta={"type": "text_delta", "text": "It "}),
        block(1, delta, delta={"type": "text_delta", "text": "rains"}),
        block(
            2, start, content_block={"type": "tool_use", "id": "t2", "name": "weather", "input": {}}
        ),
        block(2, delta, delta={"type": "input_json_delta", "partial_json": '{"in": "B'}),
        block(2, delta, delta={"type": "input_json_delta", "partial_json": 'onn"}'}),
        block(2, "content_block_stop"),
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {"output_tokens": 4},
        },
        {"type": "message_stop"},
    ]
    said = stream(*events, endpoint="messages")
    assert same(said, whole(message("It rains", {"in": "Bonn"}), "messages")) is None
    for other, what in (
        (message("It snows", {"in": "Bonn"}), "text"),
        (message("It rains", {"in": "Ulm"}), "tool_call"),
        (message("It rains", {"in": "Bonn"}, "Ah."), "reasoning"),
    ):
        difference = same(said, whole(other, "messages"))
        assert difference is not None
        assert difference.what == what
        assert "Bonn" not in repr(difference)


def test_a_call_without_arguments_has_an_empty_input() -> None:
    block = {"type": "tool_use", "id": "t2", "name": "now", "input": {}}
    events = [
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
    ]
    body = {"content": [{**block, "id": "t3"}], "stop_reason": "tool_use"}
    said = stream(*events, endpoint="messages")
    assert same(said, whole(body, "messages")) is None
    body["content"] = [{**block, "input": {"zone": 1}}]
    assert same(said, whole(body, "messages")) is not None


def test_a_key_that_the_model_wrote_is_not_told_either() -> None:
    one, other = (message("a", {name: 1}) for name in ("secretkey", "otherkey"))
    difference = same(whole(one, "messages"), whole(other, "messages"))
    assert difference is not None
    assert difference.where == "content[2].input"


def test_numbers_of_other_answers_are_compared_by_place() -> None:
    def vectors(*numbers: float) -> Kept:
        data = [{"object": "embedding", "index": 0, "embedding": list(numbers)}]
        return whole({"id": "e", "created": 5, "data": data}, "embeddings")

    assert same(vectors(0.5, 1.0), vectors(0.5, 1.0)) is None
    assert same(vectors(0.5, 1.0), vectors(0.5, 1.5)) == Difference(
        what="value", where="data[0].embedding[1]"
    )


def test_one_is_not_true_and_not_1_0() -> None:
    ones = [whole({"score": one}, "score") for one in (1, True, 1.0)]
    for number, one in enumerate(ones):
        for other in ones[number + 1 :]:
            assert same(one, other) == Difference(what="value", where="score")


def test_wherever_two_texts_part_the_place_is_right() -> None:
    text = "0123456789abcdef"
    for length in range(1, len(text) + 1):
        for at in range(length):
            other = text[:at] + "X" + text[at + 1 : length]
            difference = same(
                whole(chat({"content": text[:length]})), whole(chat({"content": other}))
            )
            assert difference is not None
            assert difference.at == at


def test_bytes_that_are_no_text_are_compared_as_they_are() -> None:
    one, other = (
        b'{"choices": [{"message": {"content": "a' + bad + b'"}}]}' for bad in (b"\xfe", b"\xff")
    )
    assert same(whole(one), whole(one)) is None
    difference = same(whole(one), whole(other))
    assert difference is not None
    assert (difference.where, difference.at) == ("choices[0].text", 1)


def test_a_stream_of_no_known_form_is_compared_however_it_was_cut() -> None:
    one = stream({"text": "ab", "done": False}, {"text": "c", "done": True}, endpoint="generate")
    two = stream({"text": "a", "done": False}, {"text": "bc", "done": True}, endpoint="generate")
    other = stream({"text": "abd", "done": True}, endpoint="generate")
    assert same(one, two) is None
    assert same(one, other) == Difference(what="text", where="text", at=2, length=3, length_again=3)


# --- what no server should send ------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", ["chat/completions", "responses", "messages", "score"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[1]",
        b"\xff\xfe",
        b'{"choices": 1, "usage": [], "output": 3, "content": "x"}',
        b'{"choices": [null, {"message": []}, {"delta": 1, "finish_reason": 3}]}',
        b'{"choices": [{"message": {"tool_calls": [1, {"function": 2}], "content": "\\ud800"}}]}',
        b'{"a":' * 2000 + b"1" + b"}" * 2000,
        b"[" * 900 + b"]" * 900,
        b'{"input": ' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}",
        b'{"input": ' + b'{"a":' * 1015 + b"1" + b"}" * 1015 + b"}",
        b'{"type": ["response.completed"], "response": {"output": []}, "delta": {}}',
    ],
    ids=range(12),
)
def test_whatever_a_body_is_it_is_the_same_as_itself_and_not_as_another(
    endpoint: str, body: bytes
) -> None:
    mine = whole(body, endpoint)
    in_events = stream(endpoint=endpoint, end=body.replace(b"\n", b""))
    assert same(mine, mine) is None
    assert same(in_events, in_events) is None
    assert same(mine, whole(chat({"content": "fine"}), endpoint)) is not None


def test_an_answer_that_can_not_be_read_differs_from_one_that_can() -> None:
    difference = same(whole(chat({"content": "a"})), whole(b"<html>"))
    assert difference is not None
    assert difference.where in ("choices[0].text", "body")
