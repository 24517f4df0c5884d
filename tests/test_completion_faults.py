"""Answers that went wrong: which kind of error, in whose words, and what is still told."""

import json
from pathlib import Path
from typing import Any

import pytest

from toolkit.completion import MAX_BODY_BYTES, MAX_EVENT_BYTES, Answer, Completion

RECORDED = Path(__file__).parent / "data" / "vllm-0.32.0-cpu"
STREAM = "text/event-stream"
TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
WHOLE = b'{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}'


def stream(*reads: bytes, broken: str | None = None, status: int = 200) -> Answer:
    """The answer of reads at 1.0, 2.0, 3.0 ...; its end came at 100.0."""
    reader = Completion(status=status, content_type=STREAM)
    for at, data in enumerate(reads, start=1):
        reader.feed(data, float(at))
    return reader.end(100.0, broken)


def whole(body: bytes, *, status: int = 200, broken: str | None = None) -> Answer:
    reader = Completion(status=status, content_type="application/json")
    reader.feed(body, 1.0)
    return reader.end(100.0, broken)


def fault(answer: Answer) -> tuple[str | None, str | None]:
    assert answer.ok == (answer.error_kind is None) == (answer.error is None)
    return answer.error_kind, answer.error


def event(said: Any) -> bytes:
    return b"data: " + json.dumps(said).encode() + b"\n\n"


# The end


def test_a_finish_reason_and_a_clean_end_are_complete_without_done():
    reader = Completion(status=200, content_type=STREAM)
    reader.feed(TEXT + LAST, 1.0)
    assert not reader.finished
    assert fault(reader.end(2.0)) == (None, None)


def test_done_tells_the_caller_to_stop():
    reader = Completion(status=200, content_type=STREAM)
    reader.feed(TEXT + LAST + DONE[:-1], 1.0)
    assert not reader.finished
    reader.feed(DONE[-1:], 2.0)
    assert reader.finished


def test_nothing_after_done_counts():
    answer = stream(LAST + DONE + TEXT, TEXT, b"data: {damaged\n\n")
    assert (answer.text, answer.ended_at, answer.ok) == ("b", 1.0, True)


def test_a_stream_without_a_finish_reason_is_not_complete():
    for reads in ((TEXT,), (TEXT, DONE), (DONE,), ()):
        assert fault(stream(*reads)) == ("no_finish", "the answer ended without a finish reason")


def test_a_broken_stream_is_cut_whatever_its_finish_reason():
    answer = stream(TEXT, LAST, broken="the connection was reset")
    assert fault(answer) == ("cut", "the connection was reset")
    assert (answer.text, answer.token_chunks, answer.last_token_at) == ("ab", 2, 2.0)
    assert answer.ended_at == 100.0
    assert fault(stream(LAST, broken=""))[0] == "cut"


def test_what_breaks_after_done_broke_no_answer():
    answer = stream(LAST, DONE, broken="the connection was reset")
    assert (answer.ok, answer.ended_at) == (True, 2.0)
    # `[DONE]` is whole without its blank line
    assert stream(LAST, DONE[:-2], broken="the connection was reset").ok


def test_a_last_event_without_its_blank_line_counts_after_a_clean_end():
    for missing in (1, 2):
        answer = stream(TEXT, LAST[:-missing])
        assert (answer.ok, answer.text, answer.last_token_at) == (True, "ab", 2.0)
    assert stream(LAST, DONE[:-2]).ok


def test_half_an_event_before_a_cut_is_no_event():
    answer = stream(TEXT, LAST[:-1], broken="the connection was reset")
    assert (answer.error_kind, answer.text) == ("cut", "a")
    assert stream(TEXT, LAST[:-9], broken="the connection was reset").error_kind == "cut"


def test_half_an_event_before_a_clean_end_is_garbage():
    assert stream(TEXT, LAST[:-9]).error_kind == "garbage"


def test_a_broken_whole_body_is_cut_even_if_it_could_be_read():
    answer = whole(WHOLE, broken="the connection was reset")
    assert fault(answer) == ("cut", "the connection was reset")
    assert answer.ended_at == 100.0
    assert whole(WHOLE[:-5], broken="reset").error_kind == "cut"


def test_an_answer_that_never_began_ends_when_it_was_given_up():
    assert stream(broken="no whole answer within 9 s").ended_at == 100.0
    assert stream().ended_at == 100.0
    assert whole(b"").ended_at == 100.0


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_answer_that_the_server_gave_up_is_no_answer(reason):
    said = {"choices": [{"delta": {"content": "a"}, "finish_reason": reason}]}
    expected = ("stream_error", f"the server gave up: finish_reason `{reason}`")
    answer = stream(event(said), DONE)
    assert fault(answer) == expected
    assert answer.finish_reason == reason


@pytest.mark.parametrize("reason", ["", None, 1, True, ["stop"], {"type": "stop"}])
def test_a_finish_reason_is_a_word(reason):
    said = {"choices": [{"delta": {"content": "a"}, "finish_reason": reason}]}
    assert stream(event(said), DONE).error_kind == "no_finish"
    said = {"choices": [{"message": {"content": "a"}, "finish_reason": reason}]}
    assert whole(json.dumps(said).encode()).error_kind == "no_finish"


# Errors inside a 2xx


@pytest.mark.parametrize(
    "said",
    [
        {"error": {"message": "out of memory", "code": 500}},
        {"error": "out of memory"},
        {"error": True, "message": "out of memory"},
        {"object": "error", "message": "out of memory", "code": 40303},
        {"error": {"code": 500}, "detail": "out of memory", "choices": 1},
    ],
)
def test_an_error_inside_a_2xx_is_an_error_with_its_message(said):
    answer = stream(TEXT, event(said), LAST, DONE)
    assert fault(answer) == ("stream_error", "out of memory")
    assert (answer.text, answer.token_chunks) == ("ab", 2)
    assert fault(whole(json.dumps(said).encode())) == ("stream_error", "out of memory")


def test_an_error_event_is_an_error_whatever_its_data():
    assert fault(stream(b'event: error\ndata: {"message": "m"}\n\n', LAST)) == ("stream_error", "m")
    assert fault(stream(b"event: error\ndata: out of memory\n\n", LAST)) == (
        "stream_error",
        "out of memory",
    )
    assert fault(stream(b"event: error\ndata:\n\n", LAST)) == (
        "stream_error",
        "an error without a message",
    )
    assert stream(b"event: message\n" + LAST, DONE).ok


def test_an_error_without_a_message_is_shown_as_it_came():
    assert fault(stream(event({"error": {"code": 7}})))[1] == '{"error": {"code": 7}}'
    deep = b'{"error": {"message": ' + b"[" * 1000 + b"]" * 1000 + b"}}"
    assert fault(stream(b"data: " + deep + b"\n\n"))[1].startswith('{"error": {"message": [[[')


@pytest.mark.parametrize("nothing", [None, {}, "", False, []])
def test_an_empty_error_is_none(nothing):
    chunk = json.loads(LAST[6:]) | {"error": nothing}
    assert stream(event(chunk), DONE).ok
    assert whole(json.dumps(json.loads(WHOLE) | {"error": nothing}).encode()).ok


def test_the_first_fault_is_told():
    first, second = event({"error": "first"}), event({"error": "second"})
    assert fault(stream(first, second, b"data: garbage\n\n", broken="cut")) == (
        "stream_error",
        "first",
    )
    assert stream(b"data: garbage\n\n", second, LAST, DONE).error_kind == "garbage"


# What is no answer


@pytest.mark.parametrize(
    "data", [b"garbage", b"7", b"null", b'"x"', b"[]", b"{damaged", b"\xff\xfe"]
)
def test_an_event_that_is_no_object_is_garbage(data):
    answer = stream(TEXT, b"data: " + data + b"\n\n", LAST, DONE)
    assert fault(answer) == (
        "garbage",
        f"an event is no JSON object: {data.decode('utf-8', 'replace')}",
    )
    assert (answer.text, answer.token_chunks) == ("ab", 2)


def test_an_event_with_nothing_in_it_is_nothing():
    assert stream(TEXT, b"data:\n\n", b"data:  \n\n", LAST, DONE).ok


def test_an_event_without_choices_is_nothing():
    answer = stream(TEXT, event({"type": "ping"}), event({"choices": []}), LAST, DONE)
    assert (answer.ok, answer.token_chunks) == (True, 2)


def test_a_padded_done_is_done():
    assert stream(LAST, b"data:  [DONE] \n\n", b"data: garbage\n\n").ok


def test_json_beyond_the_standard_is_read():
    # Python writes NaN; half a surrogate pair comes from a tokenizer that cuts a character
    said = b'{"choices":[{"delta":{"content":"b\\ud83d"},"finish_reason":"stop","logprobs":NaN}]}'
    answer = stream(b"data: " + said + b"\n\n", DONE)
    assert (answer.ok, answer.text) == (True, "b\ud83d")
    assert whole(WHOLE.replace(b'"a"', b'"a","x":-Infinity')).ok


def test_bytes_that_are_no_utf_8_are_replaced_as_in_a_browser():
    assert stream(LAST.replace(b'"b"', b'"\xffb"')).text == "\ufffdb"


@pytest.mark.parametrize("deep", [b"[" * 100_000, b'{"a":' * 100_000, b"[" * 5000 + b"]" * 5000])
def test_json_too_deep_to_be_read_is_garbage(deep):
    assert stream(b"data: " + deep + b"\n\n", LAST).error_kind == "garbage"
    assert whole(deep).error_kind == "garbage"


def test_a_number_too_long_to_be_read_is_garbage():
    said = b'{"usage":{"prompt_tokens":' + b"9" * 5000 + b"}}"
    assert stream(b"data: " + said + b"\n\n", LAST).error_kind == "garbage"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "the body is empty"),
        (b" \n", "the body is empty"),
        (b"<html>\n<p>hello</p>", "the body is no JSON object: <html> <p>hello</p>"),
        (b"[1]", "the body is no JSON object: [1]"),
        (b'{"id": 7}', 'the body has no choices: {"id": 7}'),
        (b'{"choices": {}}', 'the body has no choices: {"choices": {}}'),
        (WHOLE[:30], f"the body is no JSON object: {WHOLE[:30].decode()}"),
    ],
)
def test_a_body_that_is_no_answer_is_garbage(body, sentence):
    assert fault(whole(body)) == ("garbage", sentence)


def test_a_body_whose_choices_say_nothing_has_no_finish():
    assert whole(b'{"choices": []}').error_kind == "no_finish"
    assert whole(b'{"choices": [7, null]}').error_kind == "no_finish"


# HTTP errors


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("err_unknown_model", "The model `nope` does not exist. Valid aliases: tiny."),
        ("err_notfound", "Not Found"),
        ("err_method", "Method Not Allowed"),
        (
            "err_overlong_stream",
            (
                "This model's maximum context length is 512 tokens. However, your prompt contains at least"
                " 513 input tokens, which exceeds this limit even without any output tokens. Please reduce"
                " the length of the input prompt. (parameter=input_tokens, value=513)"
            ),
        ),
        (
            "err_wrong_ctype",
            "1 validation error: Unsupported Media Type: Only 'application/json' is allowed",
        ),
        ("v2/nokey_chat", "Unauthorized"),
    ],
)
def test_a_recorded_refusal_keeps_its_message(name, said):
    status = int((RECORDED / f"{name}.status").read_text())
    answer = whole((RECORDED / f"{name}.body").read_bytes(), status=status)
    assert fault(answer) == (f"http_{status}", said)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": {"message": "m"}, "message": "n"}', "m"),
        (b'{"error": {"message": ""}, "message": "n"}', "n"),
        (b'{"message": "n", "detail": "d"}', "n"),
        (b'{"detail": [{"msg": "Field required"}]}', '{"detail": [{"msg": "Field required"}]}'),
        (b"upstream connect error\n", "upstream connect error"),
        (b'{"error": {"mess', '{"error": {"mess'),
        (b"[7]", "[7]"),
        (b"", "HTTP 502 without a message"),
        (b" \t\n", "HTTP 502 without a message"),
        (b'{"message": "' + b" " * 2000 + b'late"}', "late"),
        (b"\x1b[2Joh \x00no", "?[2Joh ?no"),
        (b"\xff", "\ufffd"),
    ],
)
def test_an_http_error_keeps_what_it_said(body, said):
    assert fault(whole(body, status=502)) == ("http_502", said)
    assert fault(stream(body, status=502)) == ("http_502", said)


def test_a_long_message_is_cut_at_300_characters():
    said = whole(b"x" * 301, status=500).error
    assert said == "x" * 299 + "…"
    assert whole(b"x" * 300, status=500).error == "x" * 300
    assert len(stream(broken="y " * 500).error) == 300


@pytest.mark.parametrize("status", [100, 199, 300, 304, 400, 404, 429, 500, 503, 599])
def test_any_status_but_2xx_is_its_own_kind(status):
    assert fault(whole(WHOLE, status=status))[0] == f"http_{status}"
    assert whole(b"oops", status=status, broken="reset").error_kind == f"http_{status}"


def test_a_refusal_that_calls_itself_a_stream_is_read_whole():
    answer = stream(b'{"error": {"message": "queue full"}}', status=429)
    assert (*fault(answer), answer.streamed) == ("http_429", "queue full", False)


@pytest.mark.parametrize("status", [200, 201, 206, 299])
def test_any_2xx_may_hold_an_answer(status):
    assert stream(LAST, status=status).ok
    assert whole(WHOLE, status=status).ok


# Limits


def test_a_body_of_just_the_limit_is_read_and_one_above_is_not():
    reader = Completion(status=200, content_type="application/json")
    reader.feed(WHOLE, 1.0)
    reader.feed(b" " * (MAX_BODY_BYTES - len(WHOLE)), 2.0)
    assert not reader.too_large
    assert reader.end(3.0).ok

    reader = Completion(status=200, content_type="application/json")
    reader.feed(WHOLE, 1.0)
    reader.feed(b" " * (MAX_BODY_BYTES + 1 - len(WHOLE)), 2.0)
    assert reader.too_large
    assert fault(reader.end(3.0)) == ("too_large", "the body is larger than 64 MiB")


def test_a_stream_of_just_the_limit_is_read_and_one_above_is_not():
    line = b":" + b"x" * (2**20 - 3) + b"\n\n"  # a MiB
    for more, kind in ((0, None), (1, "too_large")):
        reader = Completion(status=200, content_type=STREAM)
        for _ in range(63):
            reader.feed(line, 1.0)
        filler = b":" + b"x" * (2**20 - len(LAST) - 3 + more) + b"\n\n"
        # what reaches over the limit is not lost as a whole: a read's size must not matter
        reader.feed(LAST + filler, 2.0)
        answer = reader.end(3.0)
        assert (answer.error_kind, answer.text, reader.too_large) == (kind, "b", more == 1)


def test_an_event_above_its_limit_is_refused():
    size = MAX_EVENT_BYTES - len(LAST) + 2  # the limit is on the line, without its two ends
    for more, kind in ((0, None), (1, "too_large")):
        reader = Completion(status=200, content_type=STREAM)
        reader.feed(LAST.replace(b'"b"', b'"' + b"b" * (size + 1 + more) + b'"'), 1.0)
        assert reader.too_large == (more == 1)
        answer = reader.end(2.0)
        assert answer.error_kind == kind
        if more:
            assert answer.error == "an event is larger than 4 MiB"


def test_what_follows_done_is_never_too_large():
    reader = Completion(status=200, content_type=STREAM)
    reader.feed(LAST + DONE + b":" * MAX_BODY_BYTES, 1.0)
    assert not reader.too_large
    assert reader.end(2.0).ok


def test_too_large_is_told_before_any_other_fault():
    reader = Completion(status=200, content_type=STREAM)
    reader.feed(b"data: garbage\n\n:" + b"x" * MAX_EVENT_BYTES, 1.0)
    assert reader.end(2.0).error_kind == "too_large"


def test_an_event_that_never_ends_is_refused_while_it_comes():
    reader = Completion(status=200, content_type=STREAM)
    reader.feed(TEXT + b"data: " + b"x" * MAX_EVENT_BYTES, 1.0)
    assert reader.too_large
    reader.feed(LAST, 2.0)
    answer = reader.end(3.0, "we stopped reading")
    assert (answer.error_kind, answer.text, answer.token_chunks) == ("too_large", "a", 1)


def test_an_endless_refusal_is_too_large():
    reader = Completion(status=500, content_type="text/plain")
    reader.feed(b"x" * (MAX_BODY_BYTES + 1), 1.0)
    assert reader.end(2.0).error_kind == "too_large"
