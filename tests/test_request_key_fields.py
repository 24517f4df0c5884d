"""No field of a real vLLM's requests is left out of the key: each is set to one thing after another, and no two agree."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolkit.request_body import asked
from toolkit.request_key import VIEWS, Canonical, canonical, request_key

SCHEMAS: dict[str, list[str]] = json.loads(
    (Path(__file__).parent / "data" / "vllm-0.32.0-request-fields.json").read_text()
)["schemas"]
FIELDS = [(schema, field) for schema, fields in SCHEMAS.items() for field in fields]
ABSENT = object()
VALUES: list[Any] = [
    *(ABSENT, None, False, True, 0, 1, -1, 2**53, 2**53 + 1, 2**63, 2**64 - 1, 0.5, 1.5, 1e-9),
    *("", " ", "a", "A", "a ", "é", "e\u0301", "0", "1", "true", "null", "0.5"),
    *([], [None], [0], [[]], ["a"], ["a", "b"], ["b", "a"], ["ab"], [0, 1], [1, 0], [[0], [1]]),
    *({}, {"a": None}, {"a": 0}, {"a": 1}, {"b": 1}, {"a": {"b": 1}}, {"a": [1]}, [{"a": 1}]),
]
"""No two of these mean the same to a server."""
SAME = [(0, 0.0), (0, -0.0), (1, 1.0), (100, 1e2), ([1, 2], [1.0, 2e0])]
AS_WRITTEN = [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1.0, "b": 2}]
"""What a model may read letter by letter, as it reads tools and schemas."""

CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "ann"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "42"},
    ],
    "tools": [
        {"type": "function", "function": {"name": "f", "parameters": {"required": ["x", "y"]}}}
    ],
    "response_format": {"type": "json_schema", "json_schema": {"schema": {"minimum": 1}}},
    "logit_bias": {"17": -100, "18": 0.5},
    "stop": ["a", "b"],
    "temperature": 0,
    "chat_template_kwargs": {"enable_thinking": False},
    "structured_outputs": {"regex": "a|b"},
    "vllm_xargs": {"deep": {"stream": True}},
}


def key(fields: dict[str, Any], **spelling: Any) -> str:
    told = canonical(json.dumps(fields, **spelling).encode())
    assert isinstance(told, Canonical), told
    return request_key(told.form, endpoint="chat/completions")


def with_field(field: str, value: Any) -> dict[str, Any]:
    fields = {name: inner for name, inner in CHAT.items() if name != field}
    return fields if value is ABSENT else {**fields, field: value}


def test_the_fields_are_those_of_a_large_server() -> None:
    assert {schema: len(fields) for schema, fields in SCHEMAS.items()} == {
        "ChatCompletionRequest": 68,
        "CompletionRequest": 55,
        "ResponsesRequest": 53,
        "AnthropicMessagesRequest": 22,
        "BatchChatCompletionRequest": 42,
    }


@pytest.mark.parametrize(("schema", "field"), [one for one in FIELDS if one[1] not in VIEWS])
def test_every_value_of_every_field_makes_another_key(schema: str, field: str) -> None:
    keys = {key(with_field(field, value)) for value in VALUES}
    assert len(keys) == len(VALUES), schema


@pytest.mark.parametrize("field", sorted({field for _, field in FIELDS} - VIEWS))
def test_equal_numbers_are_the_same_value(field: str) -> None:
    for one, other in SAME:
        assert key(with_field(field, one)) == key(with_field(field, other))


@pytest.mark.parametrize("field", sorted({field for _, field in FIELDS} - VIEWS - {"logit_bias"}))
def test_an_object_counts_as_it_is_written(field: str) -> None:
    assert len({key(with_field(field, value)) for value in AS_WRITTEN}) == len(AS_WRITTEN)


@pytest.mark.parametrize("field", sorted(VIEWS))
def test_a_view_is_no_part_of_the_key_whatever_it_says(field: str) -> None:
    assert {key(with_field(field, value)) for value in VALUES} == {key(CHAT)}


def places(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """Where every value stands, those inside others included."""
    if path:
        yield path
    for step in (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    ):
        yield from places(value[step], *path, step)


def replaced(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    fields = copy.deepcopy(CHAT)
    holder: Any = fields
    for step in path[:-1]:
        holder = holder[step]
    if value is ABSENT:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return fields


@pytest.mark.parametrize("path", list(places(CHAT)), ids=str)
def test_every_value_however_deep_makes_another_key(path: tuple[Any, ...]) -> None:
    keys = {key(replaced(path, value)) for value in VALUES}
    assert len(keys) == len(VALUES)


@pytest.mark.parametrize(
    "spelling",
    [
        {"indent": 2},
        {"separators": (",", ":")},
        {"ensure_ascii": False},
        {"separators": (" , ", "\t:\n"), "ensure_ascii": False},
    ],
)
def test_every_spelling_of_a_request_has_its_key(spelling: dict[str, Any]) -> None:
    fields = {**CHAT, "user": 'é \U0001f600 \u2028 \x7f / \\ " : \t'}
    assert key(fields, **spelling) == key(fields)
    assert key(dict(sorted(fields.items())), **spelling) == key(fields)


READ = {
    "ChatCompletionRequest": (
        "add_generation_prompt add_special_tokens chat_template chat_template_kwargs continue_final_message documents"
        " media_io_kwargs messages mm_processor_kwargs reasoning_effort tools truncate_prompt_tokens truncation_side"
    ),
    "CompletionRequest": (
        "add_special_tokens prompt prompt_embeds suffix truncate_prompt_tokens truncation_side"
    ),
    "ResponsesRequest": (
        "chat_template_kwargs input instructions media_io_kwargs mm_processor_kwargs previous_input_messages"
        " previous_response_id prompt reasoning tools"
    ),
    "AnthropicMessagesRequest": "chat_template_kwargs messages system thinking tools",
}
"""What of each a model reads."""
PROMPTED: dict[str, tuple[str, dict[str, Any]]] = {
    "ChatCompletionRequest": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "hi"}]},
    ),
    "CompletionRequest": ("/v1/completions", {"prompt": "hi"}),
    "ResponsesRequest": ("/v1/responses", {"input": "hi"}),
    "AnthropicMessagesRequest": ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}]}),
}


@pytest.mark.parametrize("schema", list(READ))
def test_the_prompt_key_is_of_exactly_the_fields_that_a_model_reads(schema: str) -> None:
    path, fields = PROMPTED[schema]
    plain = asked(json.dumps(fields).encode(), path=path).prompt_key
    assert plain is not None
    other = [{"role": "user", "content": "ho"}]
    read = []
    for field in SCHEMAS[schema]:
        told = asked(json.dumps({**fields, field: other}).encode(), path=path)
        if told.prompt_key != plain:
            read.append(field)
    assert read == READ[schema].split()
