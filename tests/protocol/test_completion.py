"""What an answer was: which chunk has a token, when, how many, what it said, and what went wrong with it."""

import json
from pathlib import Path
from typing import Any

import pytest

from toolkit.protocol.completion import MAX_BODY_BYTES, MAX_EVENT_BYTES, Answer, Completion

RECORDED = Path(__file__).parents[1] / "data" / "vllm-0.32.0-cpu"
STREAM, WHOLE = "text/event-stream; charset=utf-8", "application/json"
DONE = b"data: [DONE]\n\n"
RESET = "the connection was reset"


def event(said: Any) -> bytes:
    return b"data: %b\n\n" % (said if type(said) is bytes else json.dumps(said).encode())


def chunk(delta: Any, finish: Any = None, *, index: int = 0, tokens: int | None = None) -> bytes:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    told = {} if tokens is None else {"usage": {"prompt_tokens": 7, "completion_tokens": tokens}}
    return event({"id": "chatcmpl-1", "model": "tiny", "choices": [choice]} | told)


def text(content: str, finish: Any = None, **more: Any) -> bytes:
    return chunk({"content": content}, finish, **more)


def usage(tokens: Any, **more: Any) -> bytes:
    counts = {"prompt_tokens": 7, "completion_tokens": tokens}
    return event({"choices": [], "usage": counts | more})


def message(said: Any, finish: Any = "stop", **more: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant"} | said, "finish_reason": finish}
    return json.dumps({"id": "chatcmpl-1", "model": "tiny", "choices": [choice]} | more).encode()


def stream(*reads: bytes, broken: str | None = None, **how: Any) -> Answer:
    """The answer of reads at 1.0, 2.0, 3.0 ...; its end came at 100.0."""
    reader = Completion(**{"status": 200, "content_type": STREAM} | how)
    for at, data in enumerate(reads, start=1):
        reader.feed(data, float(at))
    return reader.end(100.0, broken)


def whole(*reads: bytes, **how: Any) -> Answer:
    return stream(*reads, **{"content_type": WHOLE} | how)


def is_so(answer: Answer, **expected: Any) -> bool:
    assert {name: getattr(answer, name) for name in expected} == expected
    assert answer.ok == (answer.error_kind is None) == (answer.error is None)
    return True


ROLE = chunk({"role": "assistant", "content": ""})
TEXT, LAST = text("a"), text("b", "stop")


# Which chunk has a token, when, and how many


def test_a_stream_is_timed_from_its_first_token_to_its_last() -> None:
    answer = stream(ROLE, text("a"), text("b"), text("c", "length"), usage(3), DONE)
    assert is_so(answer, ok=True, streamed=True, text="abc", finish_reason="length")
    assert is_so(answer, first_token_at=2.0, first_visible_at=2.0, last_token_at=4.0)
    assert is_so(answer, e2e_end_at=4.0, ended_at=6.0, gaps=((1.0, 1), (1.0, 1)), tpot_s=1.0)
    assert is_so(answer, token_chunks=3, first_chunk_tokens=1)
    assert is_so(answer, model="tiny", answer_id="chatcmpl-1", prompt_tokens=7, output_tokens=3)


@pytest.mark.parametrize(
    ("delta", "is_visible"),
    [
        ({"content": "x"}, True),
        ({"refusal": "x"}, True),
        ({"reasoning_content": "x"}, False),
        ({"reasoning": "x", "content": None}, False),
        ({"reasoning_content": "x", "reasoning": "x"}, False),  # a server in transition sends both
        ({"tool_calls": [{"index": 0, "function": {"name": "x"}}]}, True),
        ({"tool_calls": [{"index": 0}, {"function": {"arguments": "x"}}]}, True),
        ({"function_call": {"arguments": "x"}}, True),
    ],
)
def test_text_of_any_kind_is_a_token(delta: Any, is_visible: bool) -> None:
    answer = stream(ROLE, chunk(delta), chunk({}, "stop"), DONE)
    assert is_so(answer, token_chunks=1, first_token_at=2.0, last_token_at=2.0, text_chars=1)
    assert answer.text + answer.reasoning + answer.tool_calls == "x"
    assert (answer.first_visible_at == 2.0) == is_visible
    said = {name: inner for name, inner in delta.items() if name != "role"}
    assert whole(message(said)).text_hash == answer.text_hash


@pytest.mark.parametrize(
    "delta",
    [
        *({}, None, {"role": "assistant"}, {"content": ""}),
        {"content": None, "reasoning_content": "", "refusal": None, "tool_calls": []},
        {"tool_calls": [{"index": 0, "function": {"name": "", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"name": None, "arguments": {"x": 1}}}]},
        {"content": ["x"], "reasoning": 1, "refusal": True, "tool_calls": {"x": 1}},
    ],
)
def test_a_delta_without_text_is_no_token(delta: Any) -> None:
    answer = stream(ROLE, chunk(delta), text("x"), chunk({}, "stop"), DONE)
    assert is_so(answer, ok=True, token_chunks=1, first_token_at=3.0, text="x")


def call(**function: str) -> bytes:
    return chunk({"tool_calls": [{"index": 0, "function": function}]})


def tokens(*reads: bytes) -> tuple[int | None, tuple[tuple[float, int], ...]]:
    """Of the first chunk, and of each later one with its wait."""
    answer = stream(*reads)
    return answer.first_chunk_tokens, answer.gaps


def test_usage_in_every_chunk_tells_its_tokens() -> None:
    # speculative decoding: 3, then 2, then 4 tokens
    chunks = [text("abc", tokens=3), text("de", tokens=5), text("fghi", tokens=9)]
    assert tokens(*chunks, usage(9)) == (3, ((1.0, 2), (1.0, 4)))
    assert stream(*chunks, usage(9)).tpot_s == pytest.approx(2 / 6)
    # an empty usage, and one that does not count, leave the count where it was
    for odd in ({}, {"completion_tokens": None}):
        ends = event({"choices": [], "usage": odd}), usage(9)
        assert tokens(*chunks, *ends) == (3, ((1.0, 2), (1.0, 4)))
    # each choice's own beside the chunks, all of them at the end
    first = text("aa", tokens=2), text("b", index=1, tokens=1)
    second = text("aa", tokens=4), text("bb", index=1, tokens=3)
    assert tokens(*first, *second, usage(7)) == (2, ((1.0, 1), (1.0, 2), (1.0, 2)))


def test_half_a_character_is_a_token_of_the_chunk_that_brings_it() -> None:
    assert tokens(text("a", tokens=1), text("", tokens=2), text("é", tokens=3), usage(3)) == (
        *(1, ((2.0, 2),)),
    )
    assert tokens(TEXT, text(""), text("é", "stop"), usage(3)) == (1, ((2.0, 2),))
    assert tokens(ROLE, text(""), text("é"), LAST, usage(3)) == (2, ((1.0, 1),))
    assert tokens(text(""), text("é"), LAST, usage(3)) == (2, ((1.0, 1),))
    # a role in every chunk makes only the first one no token
    roles = [chunk({"role": "assistant", "content": said}) for said in ("", "a", "", "é")]
    assert tokens(*roles, usage(3)) == (1, ((2.0, 2),))
    # a token that ends the text is counted, and not timed
    assert tokens(ROLE, TEXT, TEXT, text("", "stop"), usage(3)) == (1, ((1.0, 1),))
    assert tokens(ROLE, TEXT, TEXT, chunk({}, "stop"), usage(2)) == (1, ((1.0, 1),))


def test_bundled_tokens_are_spread_evenly() -> None:
    # 10 tokens over 4 chunks end at 2.5, 5, 7.5, 10, cut to whole ones
    gaps = ((1.0, 3), (1.0, 2), (1.0, 3))
    assert tokens(TEXT, TEXT, TEXT, LAST, usage(10)) == (2, gaps)
    # so are those of a usage that does not add up: a chunk without any, backwards, not in every one, another end
    for counts in ((2, 2, 6), (3, 2, 6), (1, None, 6), (1, 2, 4), (None, None, 6)):
        chunks = (text("a", tokens=count) for count in counts)
        assert tokens(*chunks, usage(6)) == (2, ((1.0, 2), (1.0, 2)))
    # none has less than one
    assert tokens(TEXT, TEXT, LAST, usage(1)) == (1, ((1.0, 1), (1.0, 1)))
    assert tokens(ROLE, TEXT, text(""), LAST, DONE) == (1, ((2.0, 1),))


@pytest.mark.parametrize("told", [True, -1, 1.5, "3", None, [3], {}, 2**53, 10**30])
def test_a_count_that_is_none_is_unknown(told: Any) -> None:
    details = {"prompt_tokens_details": {"cached_tokens": told}}
    answer = stream(text("a", "stop"), usage(told, prompt_tokens=told, **details))
    assert is_so(answer, prompt_tokens=None, cached_tokens=None)
    assert is_so(answer, output_tokens=1, output_tokens_estimated=True)
    answer = whole(message({"content": "a"}, usage={"completion_tokens": told}))
    assert is_so(answer, output_tokens=None, output_tokens_estimated=False)


def test_choices_are_put_together_by_index() -> None:
    parts = [text(f"{name}{n}", index="ab".index(name)) for n in "12" for name in "ba"]
    ends = chunk({}, "length", index=1), chunk({}, "stop")
    answer = stream(*parts, *ends, usage(4), DONE)
    assert is_so(answer, text="a1a2b1b2", finish_reason="stop", token_chunks=4)
    assert answer.gaps == ((1.0, 1),) * 3
    # complete when every choice is
    assert stream(*parts, ends[1]).error_kind == "no_finish"
    # several choices in one event are one chunk, of which one with text is enough
    both = [json.loads(text("x", "stop", index=index)[6:])["choices"][0] for index in (0, 1)]
    assert is_so(stream(event({"choices": both}), usage(2)), token_chunks=1, text="xx")
    both[1]["delta"] = {}
    assert is_so(stream(event({"choices": both}), usage(1)), token_chunks=1, text="x")
    # in a whole body, those without an index count up
    said = {"choices": [{"text": each, "finish_reason": "stop"} for each in "abc"]}
    assert is_so(whole(json.dumps(said).encode()), text="abc", ok=True)
    del said["choices"][0]["finish_reason"]
    assert whole(json.dumps(said).encode()).error_kind == "no_finish"


# Whole bodies


def test_a_whole_body_is_timed_to_its_last_byte() -> None:
    body = message({"content": "Hi", "reasoning": "hm"}, usage={})
    answer = whole(body[:9], body[9:])
    assert is_so(answer, ok=True, streamed=False, ended_at=2.0, e2e_end_at=2.0, tpot_s=None)
    assert is_so(answer, first_token_at=None, first_visible_at=None, last_token_at=None)
    assert is_so(answer, token_chunks=None, first_chunk_tokens=None, gaps=())
    assert is_so(answer, text="Hi", reasoning="hm")
    calls = [{"function": {"name": "f", "arguments": "{}"}}, {"function": {"name": "g"}}]
    assert whole(message({"content": None, "tool_calls": calls})).tool_calls == "f{}g"
    assert whole(b"\xef\xbb\xbf" + message({"content": "a"})).text == "a"


def test_equal_texts_have_equal_hashes_and_those_of_another_kind_have_others() -> None:
    answer = stream(ROLE, chunk({"reasoning": "hm"}), text("Hé"), text("llo", "stop"), DONE)
    assert answer.text_hash == whole(message({"content": "Héllo", "reasoning": "hm"})).text_hash
    assert len(bytes.fromhex(answer.text_hash or "")) == 8
    call = {"tool_calls": [{"function": {"arguments": "x"}}]}
    kinds = ({"content": "x"}, {"reasoning": "x"}, call, {"content": "\ude00"}, {"content": "?"})
    assert len({whole(message(said)).text_hash for said in kinds} - {None}) == 5
    assert whole(message({"content": ""})).text_hash is None


# What a real vLLM said, as a person reads it


@pytest.mark.parametrize(
    ("name", "tokens", "said", "prompt", "cached"),
    [
        ("chat_stream.txt", 16, ":exceptionmptyways", 21, None),
        ("chat_stream_nousage.body", 4, 'ke dest """ le', None, None),
        ("v3/chat_stream_details.txt", 2, " laip", 153, 128),
        ("chat.json", 16, ":exceptionmptyways", 21, None),
    ],
)
def test_a_recorded_answer_reads_as_a_person_counts_it(
    name: str, tokens: int, said: str, prompt: int | None, cached: int | None
) -> None:
    answer = (whole if name == "chat.json" else stream)((RECORDED / name).read_bytes())
    assert is_so(answer, ok=True, finish_reason="length", model="tiny", output_tokens=tokens)
    assert is_so(answer, prompt_tokens=prompt, cached_tokens=cached)
    assert answer.gaps == ((0.0, 1),) * (tokens - 1 if answer.streamed else 0)
    assert answer.text.startswith(said)


# What went wrong

NO_FINISH = "the answer ended without a finish reason"
ERRORS = [
    {"error": {"message": "no memory", "code": 500}},
    {"error": "no memory"},
    {"error": True, "message": "no memory"},
    {"object": "error", "message": "no memory", "code": 40303},
    {"error": {"code": 500}, "detail": "no memory", "choices": 1},
]
GARBAGE, GOOD = event(b"garbage"), message({"content": "a"})


def test_nothing_after_done_counts() -> None:
    assert is_so(stream(LAST + DONE + TEXT, TEXT, GARBAGE), text="b", ended_at=1.0, ok=True)
    assert is_so(stream(LAST, DONE, broken=RESET), ok=True, ended_at=2.0)
    # it is whole without its blank line, and may be padded
    assert stream(LAST, DONE[:-2], broken=RESET).ok
    assert stream(LAST, b"data:  [DONE] \n\n", GARBAGE).ok


def test_an_answer_that_ends_early_is_not_complete() -> None:
    for reads in ((TEXT,), (TEXT, DONE), (DONE,), ()):
        assert is_so(stream(*reads), error_kind="no_finish", error=NO_FINISH)
    # cut, whatever its finish reason; it ends when it was given up
    answer = stream(ROLE, TEXT, TEXT, LAST, broken=RESET)
    assert is_so(answer, error_kind="cut", error=RESET, text="aab", last_token_at=4.0)
    assert is_so(answer, ended_at=100.0, token_chunks=3)
    assert stream(ROLE, TEXT, TEXT, broken=RESET).text == "aa"
    assert stream(LAST, broken="").error == "the connection ended the answer early"
    assert is_so(whole(GOOD, broken=RESET), error_kind="cut", error=RESET, ended_at=100.0)
    assert stream(broken="no whole answer within 9 s").ended_at == 100.0
    assert whole(b"").ended_at == 100.0


def test_a_last_event_without_its_blank_line_counts_after_a_clean_end_alone() -> None:
    assert is_so(stream(TEXT, LAST[:-1]), ok=True, text="ab", last_token_at=2.0)
    assert is_so(stream(TEXT, LAST[:-2]), ok=True, text="ab", last_token_at=2.0)
    assert is_so(stream(TEXT, LAST[:-1], broken=RESET), error_kind="cut", text="a")
    assert stream(TEXT, LAST[:-9]).error_kind == "garbage"


def test_a_finish_reason_is_a_word_and_some_tell_that_the_server_gave_up() -> None:
    for reason in ("abort", "error"):
        answer = stream(text("a", reason), DONE)
        assert is_so(answer, error_kind="stream_error", finish_reason=reason)
        assert answer.error == f"the server gave up: finish_reason `{reason}`"
    for odd in ("", None, 1, True, ["stop"], {"type": "stop"}):
        assert stream(text("a", odd)).error_kind == "no_finish"
        assert whole(message({}, odd)).error_kind == "no_finish"


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_inside_a_2xx_is_an_error_with_its_message(error: dict[str, Any]) -> None:
    answer = stream(TEXT, event(error), LAST, DONE)
    assert is_so(answer, error_kind="stream_error", error="no memory", text="ab")
    answer = whole(json.dumps(error).encode())
    assert is_so(answer, error_kind="stream_error", error="no memory")


def test_what_is_no_answer_is_garbage() -> None:
    for data in (b"garbage", b"7", b"null", b'"x"', b"[]", b"{damaged", b"\xff\xfe"):
        answer = stream(TEXT, event(data), LAST, DONE)
        assert is_so(answer, error_kind="garbage", text="ab")
        assert answer.error == f"an event is no JSON object: {data.decode('utf-8', 'replace')}"
    for odd in ("x", ["x"], 7):
        assert stream(chunk(odd), LAST).error_kind == "garbage"
    assert stream(TEXT, b"data:\n\n", b"data:  \n\n", event({"type": "ping"}), LAST).ok
    for body, sentence in (
        (b"", "the body is empty"),
        (b"<html>\n<p>hello</p>", "the body is no JSON object: <html> <p>hello</p>"),
        (b'{"choices": {}}', 'the body has no choices: {"choices": {}}'),
    ):
        assert is_so(whole(body), error_kind="garbage", error=sentence)
    assert whole(b'{"choices": [7, null]}').error_kind == "no_finish"


def test_json_beyond_the_standard_is_read() -> None:
    # Python writes NaN; half a surrogate pair comes from a tokenizer that cuts a character; bytes that are no UTF-8
    answer = stream(LAST.replace(b'"b"', b'"\xffb\\ud83d","x":NaN'))
    assert is_so(answer, ok=True, text="\ufffdb\ud83d", text_chars=3)
    assert whole(GOOD.replace(b'"a"', b'"a","x":-Infinity')).ok


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": {"message": "m"}, "message": "n"}', "m"),
        (b'{"error": {"message": ""}, "message": "n"}', "n"),
        (b'{"detail": [{"msg": "Field required"}]}', '{"detail": [{"msg": "Field required"}]}'),
        (b" \t\n", "HTTP 502 without a message"),
        (b'{"message": "' + b" " * 2000 + b'late"}', "late"),
        (b"\x1b[2Joh \x00no", "?[2Joh ?no"),
        (b"x" * 300, "x" * 300),
        (b"x" * 301, "x" * 299 + "…"),
    ],
)
def test_an_http_error_keeps_what_it_said(body: bytes, said: str) -> None:
    for answer in (whole(body, status=502), stream(body, status=502)):
        assert is_so(answer, error_kind="http_502", error=said, streamed=False)


@pytest.mark.parametrize("status", [100, 199, 200, 206, 299, 300, 304, 404, 599])
def test_any_status_but_2xx_is_its_own_kind(status: int) -> None:
    kind = None if 200 <= status < 300 else f"http_{status}"
    assert whole(GOOD, status=status).error_kind == kind
    assert stream(LAST, status=status).error_kind == kind
    assert whole(b"oops", status=status, broken=RESET).error_kind == (kind or "cut")


# Limits


def fed(*reads: bytes, kind: str = STREAM) -> tuple[bool, str | None, str]:
    """Whether to stop reading, what is wrong, and the text."""
    reader = Completion(status=200, content_type=kind)
    for data in reads:
        reader.feed(data, 1.0)
    is_too_large = reader.too_large
    answer = reader.end(3.0)
    return is_too_large, answer.error, answer.text


def test_a_body_of_just_the_limit_is_read_and_one_above_is_not() -> None:
    rest = MAX_BODY_BYTES - len(GOOD)
    sentence = "the body is larger than 64 MiB"
    assert fed(GOOD, b" " * rest, kind=WHOLE) == (False, None, "a")
    assert fed(GOOD, b" " * (rest + 1), kind=WHOLE) == (True, sentence, "")
    line = b":" + b"x" * (2**20 - 3) + b"\n\n"  # a MiB
    for more, told in ((0, None), (1, sentence)):
        filler = b":" + b"x" * (2**20 - len(LAST) - 3 + more) + b"\n\n"
        # what reaches over the limit is not lost as a whole: a read's size must not matter
        assert fed(*[line] * 63, LAST + filler) == (more == 1, told, "b")
    assert whole(b"x" * (MAX_BODY_BYTES + 1), status=500).error_kind == "too_large"
    # nothing after `[DONE]` is ever too large
    assert fed(LAST + DONE + b":" * MAX_BODY_BYTES) == (False, None, "b")


def test_an_event_above_its_limit_is_refused() -> None:
    size = MAX_EVENT_BYTES - len(LAST) + 3  # the limit is on the line, without its two ends
    sentence = "an event is larger than 4 MiB"
    for more, told in ((0, None), (1, sentence)):
        said = "b" * (size + more)
        answer = fed(LAST.replace(b'"b"', b'"%b"' % said.encode()))
        assert answer == (more == 1, told, "" if more else said)
    # one that never ends is refused while it comes, before any other fault is told
    endless = b"data: " + b"x" * MAX_EVENT_BYTES
    assert fed(TEXT + endless, LAST) == (True, sentence, "a")
    assert fed(GARBAGE + endless) == (True, sentence, "")
