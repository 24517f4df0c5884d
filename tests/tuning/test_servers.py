"""What a sweep asks of servers, over a real socket: requests for JSON, and how many answers are none of the schema; counters."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from toolkit.errors import ToolkitError
from toolkit.tuning.servers import counters_of, invalid_json
from toolkit.tuning.sweep_file import JsonRequests, Serving

SCHEMA = json.dumps(
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
VALID = """
{"department": "billing", "urgent": true}
 {"urgent": false, "department": "shipping", "steps": [], "parcels": 3}
{"urgent": false, "department": "shipping", "steps": ["look", "ask"], "parcels": null}
""".strip("\n").split("\n")
INVALID = [
    "",
    "[" * 100_000,
    '```json\n{"department": "billing", "urgent": true}\n```',
    *"""
{"department": "billing", "urgent": tr
{"department": "billing", "urgent": true} I hope this helps.
["billing", true]
{"department": "legal", "urgent": true}
{"department": "billing"}
{"department": "billing", "urgent": "yes"}
{"department": "billing", "urgent": 1}
{"department": "billing", "urgent": true, "mood": "bad"}
{"department": "billing", "urgent": true, "steps": ["ask", 4]}
{"department": "billing", "urgent": true, "parcels": true}
""".strip().split("\n"),
]
WANTED = JsonRequests(
    requests=4, concurrency=2, max_tokens=9, prompts=("Sort it.", "And this."), schema=SCHEMA
)
MODELS = {"data": [{"id": "m"}]}


def choice(text: str, reason: str = "stop") -> tuple[int, Any]:
    return 200, {"choices": [{"message": {"content": text}, "finish_reason": reason}]}


@contextmanager
def serving(answers: list[tuple[int, Any]], models: Any) -> Iterator[tuple[str, list[Any]]]:
    """Answers in turn to whatever is asked; the address, and what was asked."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers["authorization"])
            self.say(200, models)

        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.say(*answers.pop())

        def say(self, status: int, told: Any) -> None:
            body = (told if isinstance(told, str) else json.dumps(told)).encode()
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


@pytest.mark.parametrize(("texts", "invalid"), [(VALID, 0), (INVALID, len(INVALID))])
def test_what_a_parser_or_the_schema_refuses_is_invalid(texts: list[str], invalid: int) -> None:
    asking = replace(WANTED, requests=len(texts))
    with serving([choice(text) for text in texts], MODELS) as (url, _):
        figures, _ = invalid_json(asking, url, Serving())
    assert (figures["json_answered"], figures["json_invalid"]) == (len(texts), invalid)


def test_of_ok_answers_those_are_counted_that_are_no_json_of_the_schema() -> None:
    answers = [
        choice(VALID[0]),
        choice(INVALID[-1]),
        choice('{"urgent": tr', "length"),
        (400, {"error": {"message": "no grammar\n  for that"}}),
    ]
    with serving(answers, MODELS) as (url, _):
        figures, notes = invalid_json(WANTED, url, Serving(asked="schema"))
    # three of four were answered, two of these are no JSON of the schema, and one of the two was cut off
    assert figures["invalid_json_ratio"] == pytest.approx(2 / 3)
    counts = [figures[f"json_{what}"] for what in ("asked", "answered", "invalid", "cut")]
    assert counts == [4, 3, 2, 1]
    assert (figures["json_e2e_p50_ms"] or 0) > 0
    assert notes == [
        "1 of 4 requests for JSON were not answered: status 400: no grammar for that",
        "1 of 4 answers that had to be JSON were cut off at 9 tokens, and so are none",
    ]


@pytest.mark.parametrize(
    ("way", "told"),
    [
        (None, None),
        ("words", None),
        ("json", {"type": "json_object"}),
        (
            "schema",
            {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": json.loads(SCHEMA), "strict": True},
            },
        ),
    ],
)
def test_the_engine_is_told_in_the_way_that_is_compared(
    way: Any, told: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "a key")
    with serving([choice("{}")] * 4, MODELS) as (url, asked):
        invalid_json(WANTED, url, Serving(asked=way, key_env="MINE"))
    key, *bodies = asked
    assert key == "Bearer a key"
    assert [body.get("response_format") for body in bodies] == [told] * 4
    # the schema stands in every prompt; prompts go round, and no two requests are equal
    texts = sorted(body["messages"][0]["content"] for body in bodies)
    starts = [text.partition("\n")[0] for text in texts]
    assert starts == [
        *("Request 1. Sort it.", "Request 2. And this."),
        *("Request 3. Sort it.", "Request 4. And this."),
    ]
    assert all(SCHEMA in text for text in texts)
    assert {(body["max_tokens"], body["model"]) for body in bodies} == {(9, "m")}


def test_counters_are_those_of_the_page_and_of_no_page_there_are_none() -> None:
    with serving([], 'vllm:num_preemptions_total{engine="0"} 4\n') as (url, _):
        assert counters_of(url, None) == {"preemptions": 4.0}
    assert counters_of(url, None) == {}  # it is gone
    assert counters_of("http://", None) == {}


def test_a_key_that_no_header_can_bear_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "ключ")
    assert counters_of("http://127.0.0.1:9", "MINE") == {}
    with pytest.raises(ToolkitError, match="`MINE` holds no key"):
        invalid_json(WANTED, "http://127.0.0.1:9", Serving(key_env="MINE"))


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ((400, {"error": "nothing of the kind"}), "status 400: nothing of the kind"),
        *(((200, each), "an answer without a choice") for each in ({"choices": [None]}, [], {})),
    ],
)
def test_what_is_no_answer_is_an_error_and_no_invalid_json(
    answer: tuple[int, Any], cause: str
) -> None:
    with serving([answer] * 4, MODELS) as (url, _):
        figures, notes = invalid_json(WANTED, url, Serving())
    assert (figures["invalid_json_ratio"], figures["json_e2e_p50_ms"]) == (None, None)
    assert notes == [f"4 of 4 requests for JSON were not answered: {cause}"]
    with (
        serving([], {"data": []}) as (url, _),
        pytest.raises(ToolkitError, match="lists no model to ask for JSON"),
    ):
        invalid_json(WANTED, url, Serving())
