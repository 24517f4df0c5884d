"""The simulated server's bytes against the recorded ones: given the same words, they are the same."""

import json
from typing import Any

import pytest
from support.recordings import recorded
from support.simulated import events_of

from toolkit.sim import answers
from toolkit.sim.answers import Kind, Reply, Token
from toolkit.sim.checks import Ask, Limits, Refusal, may_enter, read_ask, read_tokenize

LIMITS = Limits(model="tiny", max_model_len=512)
JSON = "application/json"
QUESTION = [{"role": "user", "content": "hi"}]


def reply_of(first: dict[str, Any], kind: Kind, fingerprint: str, prompt_tokens: int) -> Reply:
    return Reply(
        kind=kind,
        id=first["id"],
        created_s=first["created"],
        model=first["model"],
        fingerprint=fingerprint,
        prompt_tokens=prompt_tokens,
    )


def test_a_whole_chat_answer_is_the_recorded_one_byte_for_byte() -> None:
    body = recorded("chat.json")
    said = json.loads(body)
    reply = reply_of(said, "chat", said["system_fingerprint"], 21)
    text = said["choices"][0]["message"]["content"]
    assert answers.whole(reply, text, "length", 16) == body


def test_a_whole_text_answer_is_the_recorded_one_byte_for_byte() -> None:
    body = recorded("completions.body")
    said = json.loads(body)
    reply = reply_of(said, "text", said["system_fingerprint"], 4)
    assert answers.whole(reply, said["choices"][0]["text"], "length", 8) == body


@pytest.mark.parametrize(
    ("name", "kind", "prompt_tokens", "include", "continuous"),
    [
        ("chat_stream.txt", "chat", 21, True, False),
        ("chat_stream_nousage.body", "chat", 21, False, False),
        ("chat_stream_contusage.body", "chat", 21, True, True),
        ("completions_stream.body", "text", 4, True, False),
    ],
)
def test_a_stream_is_the_recorded_one_byte_for_byte(
    name: str,
    kind: Kind,
    prompt_tokens: int,
    include: bool,
    continuous: bool,
) -> None:
    body = recorded(name)
    events = events_of(body)
    fingerprint = events[-1]["system_fingerprint"]
    reply = reply_of(events[0], kind, fingerprint, prompt_tokens)
    choices = [event["choices"][0] for event in events if event["choices"]]
    pieces = (
        [choice["delta"]["content"] for choice in choices if "role" not in choice["delta"]]
        if kind == "chat"
        else [choice["text"] for choice in choices]
    )
    written = answers.opening(reply, with_usage=continuous)
    for count, piece in enumerate(pieces, start=1):
        token = Token(
            piece=piece, count=count, finish_reason="length" if count == len(pieces) else None
        )
        written += answers.token_chunk(reply, token, with_usage=continuous, last_word=not include)
    if include:
        written += answers.usage_chunk(reply, len(pieces))
    assert written + answers.DONE == body


@pytest.mark.parametrize("kind", ["chat", "text"])
def test_text_that_json_must_escape_arrives_as_it_was_said(kind: answers.Kind) -> None:
    reply = answers.Reply(
        kind=kind,
        id="chatcmpl-1",
        created_s=1,
        model='a "" model\\',
        fingerprint="vllm",
        prompt_tokens=1,
    )
    piece = '"" \\ \n {} é 漢'
    chunk = answers.token_chunk(
        reply, answers.Token(piece=piece, count=1), with_usage=False, last_word=True
    )
    told = json.loads(chunk.removeprefix(b"data: "))
    (choice,) = told["choices"]
    assert (choice["delta"]["content"] if kind == "chat" else choice["text"]) == piece
    assert told["model"] == reply.model


def test_the_end_of_a_stream_whose_engine_died_is_the_recorded_one() -> None:
    end = answers.stream_error() + answers.DONE
    assert recorded("slow/stream_during_engine_death.txt").endswith(end)


def test_the_model_list_is_the_recorded_one_byte_for_byte() -> None:
    body = recorded("v1_models.json")
    card = json.loads(body)["data"][0]
    permission_id = card["permission"][0]["id"].removeprefix("modelperm-")
    written = answers.models("tiny", "/models/tiny", 512, card["created"], permission_id)
    assert written == body


def test_the_tokenizer_answers_as_recorded() -> None:
    assert answers.tokenized((466, 348, 294, 442), 512) == recorded("tokenize.body")


def ask(body: object, kind: Kind | None = "chat", content_type: str = JSON) -> Ask | Refusal:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_ask(raw, content_type, kind, LIMITS)


def accepted(body: object, kind: Kind | None = "chat") -> Ask:
    answer = ask(body, kind)
    assert isinstance(answer, Ask)
    return answer


def refused(body: object, kind: Kind | None = "chat") -> str:
    answer = ask(body, kind)
    assert isinstance(answer, Refusal)
    assert answer.status == 400
    error = json.loads(answer.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return str(error["message"])


REFUSED: list[tuple[str, object]] = [
    # 29 bytes up to the colon and 7 blanks: the value is missed at byte 36
    ("err_malformed", b'{"model": "tiny", "messages":       }'),
    ("err_missing_messages", {"model": "tiny"}),
    ("err_empty_messages", {"model": "tiny", "messages": []}),
    ("err_bad_temp", {"messages": QUESTION, "temperature": -1}),
    ("err_maxtokens", {"messages": QUESTION, "max_tokens": 5000}),
    ("err_overlong", {"messages": [{"role": "user", "content": "word " * 600}]}),
    ("err_unknown_model", {"model": "nope", "messages": QUESTION}),
]


@pytest.mark.parametrize(("name", "body"), REFUSED, ids=[name for name, _ in REFUSED])
def test_a_bad_request_is_refused_in_the_recorded_words(name: str, body: object) -> None:
    answer = ask(body)
    assert isinstance(answer, Refusal)
    assert answer.body == recorded(f"{name}.body")
    assert str(answer.status) == recorded(f"{name}.status").decode().strip()


def test_another_content_type_than_json_is_refused_in_the_recorded_words() -> None:
    answer = ask({"messages": QUESTION}, content_type="text/plain")
    assert isinstance(answer, Refusal)
    assert answer.body == recorded("err_wrong_ctype.body")


def test_a_charset_beside_the_content_type_is_welcome() -> None:
    answer = ask({"messages": QUESTION}, content_type="application/json; charset=utf-8")
    assert isinstance(answer, Ask)


def test_prompt_and_wish_together_must_fit_the_model() -> None:
    # "hi" is one token, the chat template adds eight: 9; 512 - 9 = 503 are left
    assert accepted({"messages": QUESTION, "max_tokens": 503}).max_tokens == 503
    message = refused({"messages": QUESTION, "max_tokens": 504})
    assert "you requested 504 output tokens and your prompt contains at least 9 input" in message
    assert "for a total of at least 513 tokens" in message


def test_a_chat_without_a_limit_may_fill_the_model_but_a_text_gets_sixteen_tokens() -> None:
    assert accepted({"messages": QUESTION}).max_tokens == 503
    assert accepted({"prompt": "hi"}, "text").max_tokens == 16
    assert accepted({"prompt": "hi", "max_tokens": None}, "text").max_tokens == 511


def test_the_newer_name_of_the_limit_comes_first() -> None:
    body = {"messages": QUESTION, "max_tokens": 9, "max_completion_tokens": 7}
    assert accepted(body).max_tokens == 7


def test_invocations_take_a_chat_or_a_text() -> None:
    assert accepted({"messages": QUESTION}, None).kind == "chat"
    assert accepted({"prompt": "hi"}, None).kind == "text"
    assert "body.messages" in refused({}, None)


def test_stream_options_are_read_only_for_a_stream() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    streamed = accepted({"messages": QUESTION, "stream": True, "stream_options": options})
    assert (streamed.include_usage, streamed.continuous_usage) == (True, True)
    assert "stream=True" in refused({"messages": QUESTION, "stream_options": options})


def test_messages_may_come_in_parts_and_without_text() -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    in_parts = accepted({"messages": [{"role": "user", "content": parts}]})
    assert in_parts.prompt_ids == accepted({"messages": QUESTION}).prompt_ids
    empty = accepted({"messages": [{"role": "assistant", "content": None}]})
    assert len(empty.prompt_ids) == 8


def test_a_prompt_may_be_token_ids_or_a_list_of_one() -> None:
    assert accepted({"prompt": [5, 6, 7]}, "text").prompt_ids == (5, 6, 7)
    plain = accepted({"prompt": "hello there"}, "text")
    assert accepted({"prompt": ["hello there"]}, "text").prompt_ids == plain.prompt_ids


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "valid dictionary"),
        ({"messages": "hi"}, "valid list"),
        ({"messages": ["hi"]}, "body.messages.0.role"),
        ({"messages": [{"role": "user", "content": 5}]}, "body.messages.0.content"),
        ({"messages": QUESTION, "max_tokens": "many"}, "body.max_tokens"),
        ({"messages": QUESTION, "max_tokens": 0}, "must be at least 1"),
        ({"messages": QUESTION, "stream": "yes"}, "body.stream"),
        ({"messages": QUESTION, "n": 2}, "only n=1"),
        ({"messages": QUESTION, "max_tokens": 4, "min_tokens": 5}, "min_tokens"),
        ({"messages": QUESTION, "temperature": "hot"}, "body.temperature"),
        # integers of JSON that no float holds
        ({"messages": QUESTION, "temperature": -(10**400)}, "got -inf."),
        ({"messages": QUESTION, "top_p": 10**400}, "got inf."),
        (b"\xff\xfe", "JSON decode error"),
        (b"[" * 100_000, "JSON decode error"),
        (b"1" * 5000, "JSON decode error"),
    ],
)
def test_nonsense_is_refused_and_named(body: object, words: str) -> None:
    assert words in refused(body)


@pytest.mark.parametrize("prompt", [None, "", [], [-1], [10**30], ["a", "b"], 5, {}])
def test_a_prompt_that_is_none_is_refused(prompt: object) -> None:
    assert refused({"prompt": prompt}, "text")


def test_half_a_surrogate_pair_breaks_nothing() -> None:
    answer = ask(b'{"model": "\\ud800", "messages": [{"role": "user", "content": "x"}]}')
    assert isinstance(answer, Refusal)
    assert "model `?` does not exist" in json.loads(answer.body)["error"]["message"]
    assert accepted(b'{"messages": [{"role": "user", "content": "\\ud800"}]}').prompt_ids


def test_equal_requests_share_a_cache_key_streamed_or_not() -> None:
    plain = accepted({"messages": QUESTION, "max_tokens": 4})
    streamed = accepted({"max_tokens": 4, "stream": True, "messages": QUESTION})
    other = accepted({"messages": QUESTION, "max_tokens": 5})
    assert plain.cache_key == streamed.cache_key
    assert plain.cache_key != other.cache_key


def test_tokenize_takes_a_prompt_or_messages() -> None:
    assert (
        read_tokenize(b'{"prompt": "hi"}', JSON, LIMITS)
        == accepted({"prompt": "hi"}, "text").prompt_ids
    )
    chat = read_tokenize(json.dumps({"messages": QUESTION}).encode(), JSON, LIMITS)
    assert chat == accepted({"messages": QUESTION}).prompt_ids
    assert isinstance(read_tokenize(b"{}", JSON, LIMITS), Refusal)


@pytest.mark.parametrize(
    ("path", "authorization", "enters"),
    [
        ("/v1/models", "Bearer secret", True),
        ("/v1/models", "bearer secret", True),
        ("/v1/models", "Bearer wrong", False),
        ("/v1/models", "secret", False),
        ("/v1/models", None, False),
        ("/metrics", None, True),
        ("/invocations", None, True),
    ],
)
def test_a_key_guards_its_path_prefixes_only(
    path: str, authorization: str | None, enters: bool
) -> None:
    assert may_enter(path, authorization, "secret", ("/v1", "/v2")) is enters
    assert may_enter(path, authorization, None, ("/v1", "/v2"))


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        # each sentence as vLLM 0.32.0 answered it (tests/real compares them live)
        (
            {},
            "text",
            "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
        ),
        (
            {"messages": QUESTION, "top_p": 2},
            "chat",
            "top_p must be in (0, 1], got 2.0. (parameter=top_p, value=2.0)",
        ),
        (
            {"messages": QUESTION, "stream_options": {"include_usage": True}},
            "chat",
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
        ),
        (
            {"messages": QUESTION, "max_tokens": "many"},
            "chat",
            (
                "1 validation error:\n  {'type': 'int_parsing', 'loc': 'body.max_tokens', 'msg': 'Input should"
                " be a valid integer, unable to parse string as an integer', 'input': 'many'}"
            ),
        ),
    ],
    ids=["no-prompt", "top-p", "stream-options", "max-tokens"],
)
def test_a_wrong_parameter_is_refused_in_vllms_words(
    fields: dict[str, object], kind: Kind, message: str
) -> None:
    assert refused(fields, kind) == message


def test_digits_in_a_string_are_a_number_as_for_pydantic() -> None:
    assert accepted({"messages": QUESTION, "max_tokens": "9"}).max_tokens == 9
