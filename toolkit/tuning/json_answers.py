"""Is an answer JSON of the schema that was asked for? And how is it asked for. No network.

Of JSON Schema it knows what applications' schemas use: type, properties, required, items, enum, additionalProperties = false.
"""

import json
from typing import Any

from toolkit.tuning.sweep_file import JsonAsking

KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def body_of(asking: JsonAsking, number: int, model: str, asked: str | None) -> dict[str, Any]:
    """One request. `schema`: the engine is held to the schema; `json`: to any JSON; `words`: it is only told."""
    prompt = asking.prompts[number % len(asking.prompts)]
    text = f"{prompt}\n\nAnswer with JSON of this schema and nothing else:\n{asking.schema}"
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": f"Request {number + 1}. {text}"}],
        "max_tokens": asking.max_tokens,
        "temperature": 0.7,  # at 0 all answers to one prompt are valid or none is
        "seed": number,
    }
    if asked == "schema":
        schema = {"name": "answer", "schema": json.loads(asking.schema), "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif asked == "json":
        body["response_format"] = {"type": "json_object"}
    return body


def is_valid(text: str, schema: str) -> bool:
    """Whether the whole text is JSON of the schema; JSON in a code block is none, a parser stumbles over it."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return _fits(value, json.loads(schema))


def _fits(value: Any, schema: Any) -> bool:
    if not isinstance(schema, dict):
        return schema is not False
    if "enum" in schema and value not in schema["enum"]:
        return False
    kind = schema.get("type")
    if kind is not None:
        kinds = kind if isinstance(kind, list) else [kind]
        # Python counts a truth as a number, JSON does not
        is_truth = isinstance(value, bool)
        if not any(
            one == "boolean" if is_truth else isinstance(value, KINDS.get(one, ())) for one in kinds
        ):
            return False
    if isinstance(value, dict):
        known = schema.get("properties", {})
        if any(name not in value for name in schema.get("required", [])):
            return False
        if schema.get("additionalProperties") is False and value.keys() - known.keys():
            return False
        return all(_fits(value[name], known[name]) for name in value.keys() & known.keys())
    if isinstance(value, list) and "items" in schema:
        return all(_fits(one, schema["items"]) for one in value)
    return True
