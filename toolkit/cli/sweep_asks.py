"""Requests for JSON, as an application sends them, and how many answers are no JSON of the schema. Plain HTTP, a few at once."""

import json
import os
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.improve.configurations import Serving
from toolkit.improve.figures import Figures
from toolkit.improve.json_answers import body_of, is_valid
from toolkit.improve.sweep_file import Asking

ASK_S = 120.0
MOST_BYTES = 4 * 2**20


def invalid_json(asking: Asking, url: str, serving: Serving) -> Figures:
    """Send them all; the share of ok answers that are invalid. None of an answer: not known."""
    model = _model(url, serving)
    bodies = [body_of(asking, number, model, serving.asked) for number in range(asking.requests)]
    with ThreadPoolExecutor(asking.concurrency) as pool:
        answers = list(pool.map(lambda body: _text(url, serving, body), bodies))
    told = [text for text in answers if text is not None]
    invalid = sum(not is_valid(text, asking.schema) for text in told)
    return {
        "invalid_json_ratio": invalid / len(told) if told else None,
        "json_asked": float(len(bodies)),
        "json_answered": float(len(told)),
        "json_invalid": float(invalid),
    }


def _model(url: str, serving: Serving) -> str:
    listed = _json(url, "/v1/models", serving, None)
    try:
        return str(listed["data"][0]["id"])
    except (LookupError, TypeError) as error:
        raise ToolkitError(f"`{url}` lists no model to ask for JSON") from error


def _text(url: str, serving: Serving, body: dict[str, Any]) -> str | None:
    """The answer's text; None: there was none, and that is an error, not invalid JSON."""
    try:
        answer = _json(url, "/v1/chat/completions", serving, body)
        return str(answer["choices"][0]["message"]["content"])
    except (ToolkitError, LookupError, TypeError):
        return None


def _json(url: str, path: str, serving: Serving, body: dict[str, Any] | None) -> Any:
    headers = {"Content-Type": "application/json"}
    if serving.key_env:
        headers["Authorization"] = f"Bearer {os.environ.get(serving.key_env, '')}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data=data, headers=headers)  # noqa: S310 (the user's own host)
    # no proxy of the environment's: only the named host is asked
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=ASK_S) as answer:
            return json.loads(answer.read(MOST_BYTES))
    except (OSError, ValueError) as error:
        raise ToolkitError(f"`{url}{path}` gave no JSON answer: {error}") from error
