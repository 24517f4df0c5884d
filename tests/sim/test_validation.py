"""Which requests the simulated server takes, and in which words it refuses the others; its bytes as a whole are the contract's business."""

import json

import pytest

from toolkit.sim.answers import Kind
from toolkit.sim.presets import setup_for
from toolkit.sim.validation import Refused, TextRequest, read_request

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
