"""What a sweep asks of the servers that it tries: their counters, and JSON, as an application asks for it. Plain HTTP.

Of JSON Schema it knows what applications' schemas use: type, properties, required, items, enum, additionalProperties = false.
"""

import contextlib
import json
import os
import ssl
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from toolkit.errors import ToolkitError
from toolkit.metrics.parser import read_page
from toolkit.stats import nearest_rank
from toolkit.tuning.figures import Figures, counters
from toolkit.tuning.sweep_file import JsonAsking, Serving

ASK_S = 120.0
PAGE_S = 5.0
MOST_BYTES = 4 * 2**20
MOST_PAGE_BYTES = 16 * 2**20
MOST_SAID_CHARACTERS = 200
FAILURES = (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError)
KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def counters_of(url: str, key_env: str | None) -> Mapping[str, float]:
    """The server's counters now; empty where it tells none."""
    with contextlib.suppress(*FAILURES), _client(key_env, PAGE_S) as client:
        status, page = _asked(client, f"{url}/metrics", None, MOST_PAGE_BYTES)
        if status < 400:
            return counters(read_page(page.decode(errors="replace")).readings())
    return {}


def invalid_json(asking: JsonAsking, url: str, serving: Serving) -> tuple[Figures, list[str]]:
    """Send requests for JSON, a few at once; the share of ok answers that are none of the schema, and what there is to say.

    Of no answer it is not known. Raises ToolkitError where the server lists no model.
    """
    try:
        client = _client(serving.key_env, ASK_S)
    except ValueError as error:
        raise ToolkitError(f"`{serving.key_env}` holds no key that a header can bear") from error
    schema = json.loads(asking.schema)
    response_format: dict[str, Any] = {"type": "json_object"}
    if serving.asked == "schema":
        held_to = {"name": "answer", "schema": schema, "strict": True}
        response_format = {"type": "json_schema", "json_schema": held_to}

    def ask(number: int) -> tuple[str, bool, float] | ToolkitError:
        """Its text, whether that was cut off at its tokens, and milliseconds; what is no answer is not invalid JSON."""
        prompt = asking.prompts[number % len(asking.prompts)]
        text = f"{prompt}\n\nAnswer with JSON of this schema and nothing else:\n{asking.schema}"
        body: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": f"Request {number + 1}. {text}"}],
            "max_tokens": asking.max_tokens,
            "temperature": 0.7,  # at 0 all answers to one prompt are valid or none is
            "seed": number,
        }
        if serving.asked in ("schema", "json"):
            body["response_format"] = response_format
        began_s = time.monotonic()
        try:
            choice = _json(client, f"{url}/v1/chat/completions", body)["choices"][0]
            # what is cut off is hardly ever JSON, whoever holds the engine to a schema
            is_cut = choice.get("finish_reason") == "length"
            return str(choice["message"]["content"]), is_cut, 1000 * (time.monotonic() - began_s)
        except ToolkitError as error:
            return error
        except (LookupError, TypeError, AttributeError):
            return ToolkitError("an answer without a choice")

    with client, ThreadPoolExecutor(asking.concurrency) as pool:
        listed = _json(client, f"{url}/v1/models", None)
        try:
            model = str(listed["data"][0]["id"])
        except (LookupError, TypeError) as error:
            raise ToolkitError(f"`{url}` lists no model to ask for JSON") from error
        answers = list(pool.map(ask, range(asking.requests)))
    errors = [each.message for each in answers if isinstance(each, ToolkitError)]
    told = [each for each in answers if not isinstance(each, ToolkitError)]
    invalid = []
    for text, is_cut, _ in told:
        try:
            # the whole text: a parser stumbles over JSON in a code block
            is_valid = _fits(json.loads(text), schema)
        except (ValueError, RecursionError):
            is_valid = False
        if not is_valid:
            invalid.append(is_cut)
    cut = sum(invalid)
    notes = []
    if errors:
        notes.append(
            f"{len(errors)} of {len(answers)} requests for JSON were not answered: {errors[0]}"
        )
    if cut:
        notes.append(
            f"{cut} of {len(answers)} answers that had to be JSON were cut off at {asking.max_tokens} tokens, and so are none"
        )
    figures: Figures = {
        "invalid_json_ratio": len(invalid) / len(told) if told else None,
        "json_asked": float(len(answers)),
        "json_answered": float(len(told)),
        "json_invalid": float(len(invalid)),
        "json_cut": float(cut),
        "json_e2e_p50_ms": nearest_rank((took_ms for _, _, took_ms in told), 0.5),
    }
    return figures, notes


def _fits(value: Any, schema: Any) -> bool:
    """Whether a value is as a schema has it."""
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


def _client(key_env: str | None, timeout_s: float) -> httpx.Client:
    """No proxy of the environment's: only the named host is asked. Raises ValueError for a key that no header can bear."""
    return httpx.Client(
        headers={"Authorization": f"Bearer {os.environ.get(key_env, '')}"} if key_env else {},
        timeout=timeout_s,
        trust_env=False,
        verify=ssl.create_default_context(),
        follow_redirects=True,
    )


def _asked(client: httpx.Client, url: str, body: object, most_bytes: int) -> tuple[int, bytes]:
    """An answer's status and its first bytes. Raises one of FAILURES."""
    found = bytearray()
    with client.stream("GET" if body is None else "POST", url, json=body) as answer:
        for chunk in answer.iter_bytes():
            found += chunk
            if len(found) > most_bytes:
                break
    return answer.status_code, bytes(found[:most_bytes])


def _json(client: httpx.Client, url: str, body: dict[str, Any] | None) -> Any:
    """An answer's JSON. Raises ToolkitError, with what the server says of its refusal."""
    try:
        status, text = _asked(client, url, body, MOST_BYTES)
        if status < 400:
            return json.loads(text)
    except FAILURES as error:
        raise ToolkitError(f"`{url}` gave no JSON answer: {error}") from error
    said = ""
    with contextlib.suppress(ValueError, LookupError, TypeError):
        told = json.loads(text)["error"]
        message = str(told["message"] if isinstance(told, dict) else told)
        said = f": {' '.join(message.split())[:MOST_SAID_CHARACTERS]}"
    raise ToolkitError(f"status {status}{said}")
