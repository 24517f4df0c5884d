"""What is JSON of a schema, and how it is asked for."""

import json
from typing import Any

import pytest

from toolkit.tuning.json_answers import body_of, is_valid
from toolkit.tuning.sweep_file import JsonAsking

LETTER = json.dumps(
    {
        "type": "object",
        "additionalProperties": False,
        "required": ["department", "urgent"],
        "properties": {
            "department": {"type": "string", "enum": ["shipping", "billing"]},
            "urgent": {"type": "boolean"},
            "steps": {"type": "array", "items": {"type": "string"}},
            "parcels": {"type": ["integer", "null"]},
        },
    }
)


@pytest.mark.parametrize(
    "text",
    [
        '{"department": "billing", "urgent": true}',
        ' {"urgent": false, "department": "shipping", "steps": [], "parcels": 3}\n',
        '{"urgent": false, "department": "shipping", "steps": ["look", "ask"], "parcels": null}',
    ],
)
def test_json_of_the_schema_is_valid(text: str) -> None:
    assert is_valid(text, LETTER)


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"department": "billing", "urgent": tr',  # cut off
        '```json\n{"department": "billing", "urgent": true}\n```',
        '{"department": "billing", "urgent": true} I hope this helps.',
        '["billing", true]',
        '{"department": "legal", "urgent": true}',
        '{"department": "billing"}',
        '{"department": "billing", "urgent": "yes"}',
        '{"department": "billing", "urgent": 1}',
        '{"department": "billing", "urgent": true, "mood": "bad"}',
        '{"department": "billing", "urgent": true, "steps": ["ask", 4]}',
        '{"department": "billing", "urgent": true, "parcels": true}',
        "[" * 100_000,
    ],
)
def test_what_a_parser_or_a_schema_refuses_is_invalid(text: str) -> None:
    assert not is_valid(text, LETTER)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (None, None),
        ("words", None),
        ("json", {"type": "json_object"}),
        (
            "schema",
            {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": json.loads(LETTER), "strict": True},
            },
        ),
    ],
)
def test_the_engine_is_told_in_the_way_that_is_compared(
    asked: str | None, told: dict[str, Any] | None
) -> None:
    asking = JsonAsking(prompts=("one", "two"), schema=LETTER, max_tokens=7)
    body = body_of(asking, 3, "m", asked)
    assert body.get("response_format") == told
    # the schema stands in every prompt; prompts go round, and no two requests are equal
    text = body["messages"][0]["content"]
    assert text.startswith("Request 4. two")
    assert LETTER in text
    assert (body["max_tokens"], body["model"]) == (7, "m")
