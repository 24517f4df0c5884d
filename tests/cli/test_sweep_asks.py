"""Requests for JSON over a real socket: how many answers are no JSON of the schema, and what there is to say of it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from toolkit.cli.sweep.servers import invalid_json
from toolkit.errors import ToolkitError
from toolkit.tuning.sweep_file import JsonAsking, Serving

SCHEMA = '{"type": "object", "required": ["urgent"], "properties": {"urgent": {"type": "boolean"}}}'
ASKING = JsonAsking(requests=4, concurrency=2, max_tokens=9, prompts=("Sort it.",), schema=SCHEMA)


def choice(text: str, reason: str = "stop") -> tuple[int, Any]:
    return 200, {"choices": [{"message": {"content": text}, "finish_reason": reason}]}


@contextmanager
def serving(answers: list[tuple[int, Any]], models: Any) -> Iterator[tuple[str, list[Any]]]:
    """Answers in turn to whatever is asked; the address, and what was asked."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.say(200, models)

        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.say(*answers.pop())

        def say(self, status: int, told: Any) -> None:
            body = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


MODELS = {"data": [{"id": "m"}]}


def test_of_ok_answers_those_are_counted_that_are_no_json_of_the_schema() -> None:
    answers = [
        choice('{"urgent": true}'),
        choice('{"urgent": "yes"}'),
        choice('{"urgent": tr', "length"),
        (400, {"error": {"message": "no grammar\n  for that"}}),
    ]
    with serving(answers, MODELS) as (url, asked):
        figures, notes = invalid_json(ASKING, url, Serving(asked="schema"))
    # three of four were answered, two of these are no JSON of the schema, and one of the two was cut off
    assert figures["invalid_json_ratio"] == pytest.approx(2 / 3)
    counts = [figures[f"json_{what}"] for what in ("asked", "answered", "invalid", "cut")]
    assert counts == [4, 3, 2, 1]
    assert (figures["json_e2e_p50_ms"] or 0) > 0
    assert notes == [
        "1 of 4 requests for JSON were not answered: status 400: no grammar for that",
        "1 of 4 answers that had to be JSON were cut off at 9 tokens, and so are none",
    ]
    assert all(body["response_format"]["type"] == "json_schema" for body in asked)


def test_a_server_that_refuses_them_all_has_no_ratio_and_says_why() -> None:
    with serving([(400, {"error": "nothing of the kind"})] * 4, MODELS) as (url, _):
        figures, notes = invalid_json(ASKING, url, Serving(asked="json"))
    assert figures["invalid_json_ratio"] is None
    assert figures["json_e2e_p50_ms"] is None
    told = "4 of 4 requests for JSON were not answered: status 400: nothing of the kind"
    assert notes == [told]


@pytest.mark.parametrize("answer", [{"choices": []}, {"choices": [None]}, [], {}])
def test_an_answer_without_a_choice_is_an_error_and_no_invalid_json(answer: Any) -> None:
    with serving([(200, answer)] * 4, MODELS) as (url, _):
        figures, notes = invalid_json(ASKING, url, Serving())
    assert (figures["json_answered"], figures["json_invalid"]) == (0, 0)
    assert "an answer without a choice" in notes[0]


def test_a_server_without_a_model_cannot_be_asked() -> None:
    with (
        serving([], {"data": []}) as (url, _),
        pytest.raises(ToolkitError, match="lists no model to ask for JSON"),
    ):
        invalid_json(ASKING, url, Serving())
