"""Which requests the simulated server takes, and in which words it refuses the others; its bytes as a whole are the contract's business."""

import json

import pytest
from support.recordings import recorded

from toolkit.sim import answers
from toolkit.sim.answers import Kind, Token
from toolkit.sim.presets import setup_for
from toolkit.sim.validation import Refused, TextRequest, read_request, read_tokenize

SETUP = setup_for(model="tiny", max_model_len=512)
JSON = "application/json"
QUESTION = [{"role": "user", "content": "hi"}]


def accepted(body: object, kind: Kind | None = "chat", content_type: str = JSON) -> TextRequest:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_request(raw, content_type, kind, SETUP)


def refused(body: object, kind: Kind | None = "chat", status: int = 400) -> str:
    with pytest.raises(Refused) as refusal:
        accepted(body, kind)
    assert refusal.value.status == status
    error = json.loads(refusal.value.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return str(error["message"])


@pytest.mark.parametrize("kind", ["chat", "text"])
def test_text_that_json_must_escape_arrives_as_it_was_said(kind: answers.Kind) -> None:
    reply = answers.AnswerFrame(
        kind=kind,
        id="chatcmpl-1",
        created_s=1,
        model='a "" model\\',
        fingerprint="vllm",
        prompt_tokens=1,
    )
    piece = '"" \\ \n {} é 漢'
    chunk = answers.token_chunk(reply, Token(piece, 1), with_usage=False, last_word=True)
    told = json.loads(chunk.removeprefix(b"data: "))
    (choice,) = told["choices"]
    assert (choice["delta"]["content"] if kind == "chat" else choice["text"]) == piece
    assert told["model"] == reply.model


def test_another_content_type_than_json_is_refused_in_the_recorded_words() -> None:
    with pytest.raises(Refused) as refusal:
        accepted({"messages": QUESTION}, content_type="text/plain")
    assert refusal.value.body == recorded("err_wrong_ctype.body")


def test_a_charset_beside_the_content_type_is_welcome() -> None:
    assert accepted({"messages": QUESTION}, content_type="application/json; charset=utf-8")


def test_invocations_take_a_chat_or_a_text() -> None:
    assert accepted({"messages": QUESTION}, None).kind == "chat"
    assert accepted({"prompt": "hi"}, None).kind == "text"
    assert "body.messages" in refused({}, None)


def test_stream_options_are_read_only_for_a_stream() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    streamed = accepted({"messages": QUESTION, "stream": True, "stream_options": options})
    read = streamed.fields.stream_options
    assert read is not None
    assert (read.include_usage, read.continuous_usage_stats) == (True, True)
    assert "stream=True" in refused({"messages": QUESTION, "stream_options": options})


def test_messages_may_come_in_parts_and_without_text() -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    in_parts = accepted({"messages": [{"role": "user", "content": parts}]})
    assert in_parts.prompt_ids == accepted({"messages": QUESTION}).prompt_ids
    empty = accepted({"messages": [{"role": "assistant", "content": None}]})
    assert len(empty.prompt_ids) == 8


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "valid dictionary"),
        ({"messages": "hi"}, "valid list"),
        ({"messages": ["hi"]}, "body.messages.0"),
        ({"messages": [{"content": "hi"}]}, "body.messages.0.role"),
        ({"messages": [{"role": "user", "content": 5}]}, "body.messages.0.content"),
        ({"messages": QUESTION, "max_tokens": "many"}, "body.max_tokens"),
        ({"messages": QUESTION, "max_tokens": 0}, "must be at least 1"),
        ({"messages": QUESTION, "stream": "perhaps"}, "body.stream"),
        ({"messages": QUESTION, "n": 2}, "only n=1"),
        ({"messages": QUESTION, "max_tokens": 4, "min_tokens": 5}, "min_tokens"),
        ({"messages": QUESTION, "temperature": "hot"}, "body.temperature"),
        # integers of JSON that no float holds
        ({"messages": QUESTION, "temperature": -(10**400)}, "body.temperature"),
        ({"messages": QUESTION, "top_p": 10**400}, "body.top_p"),
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
    unknown = b'{"model": "\\ud800", "messages": [{"role": "user", "content": "x"}]}'
    assert "model `?` does not exist" in refused(unknown, status=404)
    assert accepted(b'{"messages": [{"role": "user", "content": "\\ud800"}]}').prompt_ids


def test_tokenize_takes_a_prompt_or_messages() -> None:
    assert (
        read_tokenize(b'{"prompt": "hi"}', JSON, SETUP)
        == accepted({"prompt": "hi"}, "text").prompt_ids
    )
    chat = read_tokenize(json.dumps({"messages": QUESTION}).encode(), JSON, SETUP)
    assert chat == accepted({"messages": QUESTION}).prompt_ids
    with pytest.raises(Refused):
        read_tokenize(b"{}", JSON, SETUP)


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
