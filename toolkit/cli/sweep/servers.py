"""What a sweep asks of the servers that it tries: their counters, and JSON, as an application asks for it. Plain HTTP."""

import contextlib
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.metrics.parser import read_page
from toolkit.stats import nearest_rank
from toolkit.tuning.figures import Figures, counters
from toolkit.tuning.json_answers import body_of, is_valid
from toolkit.tuning.sweep_file import JsonAsking, Serving

ASK_S = 120.0
PAGE_S = 5.0
MOST_BYTES = 4 * 2**20
MOST_PAGE_BYTES = 16 * 2**20
MOST_SAID_CHARACTERS = 200


def counters_of(url: str, key_env: str | None) -> Mapping[str, float]:
    """The server's counters now; empty where it tells none."""
    with (
        contextlib.suppress(OSError, ValueError),
        _opened(f"{url}/metrics", key_env, None, PAGE_S) as answer,
    ):
        text = answer.read(MOST_PAGE_BYTES).decode(errors="replace")
        return counters(read_page(text).readings())
    return {}


def invalid_json(asking: JsonAsking, url: str, serving: Serving) -> tuple[Figures, list[str]]:
    """Send requests for JSON, a few at once; the share of ok answers that are none of the schema, and what there is to say.

    Of no answer it is not known. Raises ToolkitError where the server lists no model.
    """
    listed = _json(f"{url}/v1/models", serving.key_env, None)
    try:
        model = str(listed["data"][0]["id"])
    except (LookupError, TypeError) as error:
        raise ToolkitError(f"`{url}` lists no model to ask for JSON") from error

    def ask(number: int) -> tuple[str, bool, float] | ToolkitError:
        """Its text, whether that was cut off at its tokens, and milliseconds; what is no answer is not invalid JSON."""
        body = body_of(asking, number, model, serving.asked)
        began_s = time.monotonic()
        try:
            choice = _json(f"{url}/v1/chat/completions", serving.key_env, body)["choices"][0]
            # what is cut off is hardly ever JSON, whoever holds the engine to a schema
            is_cut = choice.get("finish_reason") == "length"
            return str(choice["message"]["content"]), is_cut, 1000 * (time.monotonic() - began_s)
        except ToolkitError as error:
            return error
        except (LookupError, TypeError, AttributeError):
            return ToolkitError("an answer without a choice")

    with ThreadPoolExecutor(asking.concurrency) as pool:
        answers = list(pool.map(ask, range(asking.requests)))
    errors = [each.message for each in answers if isinstance(each, ToolkitError)]
    told = [each for each in answers if not isinstance(each, ToolkitError)]
    invalid = [is_cut for text, is_cut, _ in told if not is_valid(text, asking.schema)]
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


def _json(url: str, key_env: str | None, body: dict[str, Any] | None) -> Any:
    """An answer's JSON. Raises ToolkitError, with what the server says of its refusal."""
    try:
        with _opened(url, key_env, body, ASK_S) as answer:
            return json.loads(answer.read(MOST_BYTES))
    except urllib.error.HTTPError as error:
        said = ""
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            told = json.loads(error.read(MOST_BYTES))["error"]
            message = str(told["message"] if isinstance(told, dict) else told)
            said = f": {' '.join(message.split())[:MOST_SAID_CHARACTERS]}"
        raise ToolkitError(f"status {error.code}{said}") from error
    except (OSError, ValueError) as error:
        raise ToolkitError(f"`{url}` gave no JSON answer: {error}") from error


def _opened(
    url: str, key_env: str | None, body: dict[str, Any] | None, timeout_s: float
) -> HTTPResponse:
    headers = {"Content-Type": "application/json"}
    if key_env:
        headers["Authorization"] = f"Bearer {os.environ.get(key_env, '')}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers)  # noqa: S310 (the user's own host)
    # no proxy of the environment's: only the named host is asked
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    answer: HTTPResponse = opener.open(request, timeout=timeout_s)
    return answer
