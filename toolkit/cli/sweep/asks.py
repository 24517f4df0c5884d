"""Requests for JSON, as an application sends them, and how many answers are no JSON of the schema. Plain HTTP, a few at once."""

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.stats import nearest_rank
from toolkit.tuning.figures import Figures
from toolkit.tuning.json_answers import body_of, is_valid
from toolkit.tuning.sweep_file import JsonAsking, Serving

ASK_S = 120.0
MOST_BYTES = 4 * 2**20
MOST_SAID_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What came of one request."""

    text: str = ""
    is_cut: bool = False
    """At the tokens that it may have: what is cut off is hardly ever JSON, whoever holds the engine to a schema."""
    error: str | None = None
    took_ms: float = 0.0


def invalid_json(asking: JsonAsking, url: str, serving: Serving) -> tuple[Figures, list[str]]:
    """Send them all; the share of ok answers that are invalid, and what there is to say of it. Of no answer: not known."""
    model = _model(url, serving)
    bodies = [body_of(asking, number, model, serving.asked) for number in range(asking.requests)]
    with ThreadPoolExecutor(asking.concurrency) as pool:
        answers = list(pool.map(lambda body: _answer(url, serving, body), bodies))
    told = [each for each in answers if each.error is None]
    invalid = [each for each in told if not is_valid(each.text, asking.schema)]
    cut = sum(each.is_cut for each in invalid)
    figures: Figures = {
        "invalid_json_ratio": len(invalid) / len(told) if told else None,
        "json_asked": float(len(bodies)),
        "json_answered": float(len(told)),
        "json_invalid": float(len(invalid)),
        "json_cut": float(cut),
        "json_e2e_p50_ms": nearest_rank((each.took_ms for each in told), 0.5),
    }
    return figures, _notes(asking, answers, cut)


def _notes(asking: JsonAsking, answers: Sequence[_Answer], cut: int) -> list[str]:
    notes, errors = [], [each.error for each in answers if each.error is not None]
    if errors:
        notes.append(
            f"{len(errors)} of {len(answers)} requests for JSON were not answered: {errors[0]}"
        )
    if cut:
        notes.append(
            f"{cut} of {len(answers)} answers that had to be JSON were cut off at {asking.max_tokens} tokens, and so are none"
        )
    return notes


def _model(url: str, serving: Serving) -> str:
    listed = _json(url, "/v1/models", serving, None)
    try:
        return str(listed["data"][0]["id"])
    except (LookupError, TypeError) as error:
        raise ToolkitError(f"`{url}` lists no model to ask for JSON") from error


def _answer(url: str, serving: Serving, body: dict[str, Any]) -> _Answer:
    """What is no answer is an error, not invalid JSON."""
    began_s = time.monotonic()
    try:
        choice = _json(url, "/v1/chat/completions", serving, body)["choices"][0]
        text = str(choice["message"]["content"])
        return _Answer(
            text=text,
            is_cut=choice.get("finish_reason") == "length",
            took_ms=1000 * (time.monotonic() - began_s),
        )
    except ToolkitError as error:
        return _Answer(error=error.message)
    except (LookupError, TypeError, AttributeError):
        return _Answer(error="an answer without a choice")


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
    except urllib.error.HTTPError as error:
        raise ToolkitError(f"status {error.code}{_said(error)}") from error
    except (OSError, ValueError) as error:
        raise ToolkitError(f"`{url}{path}` gave no JSON answer: {error}") from error


def _said(error: urllib.error.HTTPError) -> str:
    """What the server says of its refusal."""
    try:
        told = json.loads(error.read(MOST_BYTES))["error"]
        message = str(told["message"] if isinstance(told, dict) else told)
    except (OSError, ValueError, LookupError, TypeError):
        return ""
    return f": {' '.join(message.split())[:MOST_SAID_CHARACTERS]}"
