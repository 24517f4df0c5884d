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
from toolkit.tuning.figures import Figures, counters, ratio
from toolkit.tuning.sweep_file import JsonRequests, Serving

ANSWER_S = 120.0
PAGE_S = 5.0
MOST_BYTES = 4 * 2**20
MOST_PAGE_BYTES = 16 * 2**20
MOST_REASON_CHARACTERS = 200
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
    """The server's counters now; empty where it has none."""
    with contextlib.suppress(*FAILURES), _client(key_env, PAGE_S) as client:
        status, page = _response(client, f"{url}/metrics", None, MOST_PAGE_BYTES)
        if status < 400:
            return counters(read_page(page.decode(errors="replace")))
    return {}


def invalid_json(wanted: JsonRequests, url: str, serving: Serving) -> tuple[Figures, list[str]]:
    """Send requests for JSON, a few at once; the share of ok answers that are none of the schema, and what there is to say.

    Of no answer it is not known. Raises ToolkitError where the server lists no model.
    """
    try:
        client = _client(serving.key_env, ANSWER_S)
    except ValueError as error:
        raise ToolkitError(f"`{serving.key_env}` holds no key that a header can bear") from error
    schema = json.loads(wanted.schema)
    held_to = {"name": "answer", "schema": schema, "strict": True}
    formats = {
        "schema": {"type": "json_schema", "json_schema": held_to},
        "json": {"type": "json_object"},
    }

    def answer(number: int) -> tuple[bool, bool, float] | ToolkitError:
        """Whether it is JSON of the schema, whether it was cut off at its tokens, and milliseconds."""
        prompt = wanted.prompts[number % len(wanted.prompts)]
        text = f"{prompt}\n\nAnswer with JSON of this schema and nothing else:\n{wanted.schema}"
        body: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": f"Request {number + 1}. {text}"}],
            "max_tokens": wanted.max_tokens,
            "temperature": 0.7,  # at 0 all answers to one prompt are valid or none is
            "seed": number,
        }
        if serving.asked in formats:
            body["response_format"] = formats[serving.asked]
        began_s = time.monotonic()
        try:
            choice = _json(client, f"{url}/v1/chat/completions", body)["choices"][0]
            # what is cut off is hardly ever JSON, whoever holds the engine to a schema
            is_cut = choice.get("finish_reason") == "length"
            content = str(choice["message"]["content"])
        except ToolkitError as error:
            return error
        except (LookupError, TypeError, AttributeError):
            return ToolkitError("an answer without a choice")
        took_ms = 1000 * (time.monotonic() - began_s)
        try:
            # the whole text: a parser stumbles over JSON in a code block
            return _fits(json.loads(content), schema), is_cut, took_ms
        except (ValueError, RecursionError):
            return False, is_cut, took_ms

    with client, ThreadPoolExecutor(wanted.concurrency) as pool:
        listed = _json(client, f"{url}/v1/models", None)
        try:
            model = str(listed["data"][0]["id"])
        except (LookupError, TypeError) as error:
            raise ToolkitError(f"`{url}` lists no model to ask for JSON") from error
        found = list(pool.map(answer, range(wanted.requests)))
    errors = [each.message for each in found if isinstance(each, ToolkitError)]
    answers = [each for each in found if not isinstance(each, ToolkitError)]
    invalid = [is_cut for is_valid, is_cut, _ in answers if not is_valid]
    cut = sum(invalid)
    notes = []
    if errors:
        notes.append(
            f"{len(errors)} of {len(found)} requests for JSON were not answered: {errors[0]}"
        )
    if cut:
        notes.append(
            f"{cut} of {len(found)} answers that had to be JSON were cut off at {wanted.max_tokens} tokens, and so are none"
        )
    figures: Figures = {
        "invalid_json_ratio": ratio(len(invalid), len(answers)),
        "json_asked": float(len(found)),
        "json_answered": float(len(answers)),
        "json_invalid": float(len(invalid)),
        "json_cut": float(cut),
        "json_e2e_p50_ms": nearest_rank((took_ms for _, _, took_ms in answers), 0.5),
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
        is_known = (
            "boolean" in kinds
            if isinstance(value, bool)
            else any(isinstance(value, KINDS.get(each, ())) for each in kinds)
        )
        if not is_known:
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


def _response(client: httpx.Client, url: str, body: object, most: int) -> tuple[int, bytes]:
    """An answer's status and its first bytes. Raises one of FAILURES."""
    found = bytearray()
    with client.stream("GET" if body is None else "POST", url, json=body) as answer:
        for chunk in answer.iter_bytes():
            found += chunk
            if len(found) > most:
                break
    return answer.status_code, bytes(found[:most])


def _json(client: httpx.Client, url: str, body: dict[str, Any] | None) -> Any:
    """An answer's JSON. Raises ToolkitError, with what the server says of its refusal."""
    try:
        status, text = _response(client, url, body, MOST_BYTES)
        if status < 400:
            return json.loads(text)
    except FAILURES as error:
        raise ToolkitError(f"`{url}` gave no JSON answer: {error}") from error
    reason = ""
    with contextlib.suppress(ValueError, LookupError, TypeError):
        cause = json.loads(text)["error"]
        message = str(cause["message"] if isinstance(cause, dict) else cause)
        reason = f": {' '.join(message.split())[:MOST_REASON_CHARACTERS]}"
    raise ToolkitError(f"status {status}{reason}")
