"""The simulator against a real vLLM, live: the same requests to both, then page by page and byte shape by byte shape.

What differs on purpose stands in a list with its reason; an entry that no longer differs fails, too.
"""

import json
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.real_vllm import ANSWER_LIMIT_S

from toolkit.sim.app import serve_in_thread

SAY_FIVE = {"max_tokens": 5, "ignore_eos": True}
CHAT = SAY_FIVE | {"messages": [{"role": "user", "content": "count to five"}]}
TEXT = SAY_FIVE | {"prompt": "one two three"}
STREAM = {"stream": True, "max_tokens": 40}
"""So many, 2 ms each, that a server which stands still for a moment does not put all of them into one event."""
USAGE = {"include_usage": True}
EVERY_USAGE = {"include_usage": True, "continuous_usage_stats": True}
CHATS, TEXTS = "/v1/chat/completions", "/v1/completions"


def say(path: str, fields: dict[str, Any], **more: Any) -> tuple[str, str, dict[str, Any]]:
    return "POST", path, {"json": {"model": "tiny", **fields, **more}}


ANSWERS = {
    "a chat": say(CHATS, CHAT),
    "a chat as a stream": say(CHATS, CHAT, **STREAM),
    "a chat as a stream with usage": say(CHATS, CHAT, **STREAM, stream_options=USAGE),
    "a chat as a stream with usage in each chunk": say(
        CHATS, CHAT, **STREAM, stream_options=EVERY_USAGE
    ),
    "a chat without a model's name": ("POST", CHATS, {"json": CHAT}),
    "a chat of one token as a stream": say(CHATS, CHAT, max_tokens=1, stream=True),
    "a text": say(TEXTS, TEXT),
    "a text as a stream": say(TEXTS, TEXT, **STREAM),
    "a text as a stream with usage": say(TEXTS, TEXT, **STREAM, stream_options=USAGE),
    "a text as a stream with usage in each chunk": say(
        TEXTS, TEXT, **STREAM, stream_options=EVERY_USAGE
    ),
    "a text without max_tokens": ("POST", TEXTS, {"json": {"model": "tiny", "prompt": "one"}}),
    "the models": ("GET", "/v1/models", {}),
    "the version": ("GET", "/version", {}),
    "the health": ("GET", "/health", {}),
    "a ping": ("GET", "/ping", {}),
    "the load": ("GET", "/load", {}),
    "tokens of a prompt": say("/tokenize", {"prompt": "one two"}),
}
"""Compared by status, content type, and the shape of what they say: keys, their order, kinds of values."""

OPEN_DOOR = {"a chat through the open door": say("/invocations", CHAT)}
"""Without a key, too, and an answer all the same."""

JSON = {"content-type": "application/json"}
LONG = "word " * 600
"""More than the 512 tokens of the models."""

REFUSALS = {
    "no JSON": ("POST", CHATS, {"content": b'{"model": "tiny", "messages": [', "headers": JSON}),
    "another content type": (
        *("POST", CHATS),
        {"content": b"{}", "headers": {"content-type": "text/plain"}},
    ),
    "no messages": say(CHATS, {}),
    "no prompt": say(TEXTS, {}),
    "empty messages": say(CHATS, {"messages": []}),
    "an unknown model": say(CHATS, CHAT, model="nope"),
    "an unknown model for a text": say(TEXTS, TEXT, model="nope"),
    "a temperature below zero": say(CHATS, CHAT, temperature=-1),
    "a top_p above one": say(CHATS, CHAT, top_p=2),
    "more max_tokens than the model's length": say(CHATS, CHAT, max_tokens=5000),
    "zero max_tokens": say(CHATS, CHAT, max_tokens=0),
    "max_tokens that are no number": say(CHATS, CHAT, max_tokens="many"),
    "a prompt that is too long": say(TEXTS, {"prompt": LONG, "max_tokens": 5}),
    "a prompt that is too long as a stream": say(
        TEXTS, {"prompt": LONG, "max_tokens": 5}, stream=True
    ),
    "stream options without a stream": say(CHATS, CHAT, stream_options=USAGE),
    "an unknown path": ("GET", "/nope", {}),
    "GET where POST is wanted": ("GET", CHATS, {}),
    "POST where GET is wanted": ("POST", "/health", {}),
}
"""Compared by status, content type, and every byte of the body."""

STRANGERS = {
    "no key for a chat": ("POST", CHATS, {"json": CHAT}),
    "no key for the models": ("GET", "/v1/models", {}),
    "no key for a path that is none": ("GET", "/v1/nope", {}),
    "a wrong key": ("GET", "/v1/models", {"headers": {"authorization": "Bearer wrong"}}),
    "the key in another header": ("GET", "/v1/models", {"headers": {"x-api-key": "secret"}}),
    "no key to look at a chat": ("GET", CHATS, {}),
    "the version without a key": ("GET", "/version", {}),
    "the open door beside the key": ("GET", "/invocations", {}),
}
"""Without the key that `/v1` wants."""

ON_PURPOSE: dict[str, str] = {}
"""Family of `/metrics` -> why the simulator's differs."""

OTHER_WORDS: dict[str, str] = {}
"""Answer or refusal -> why the simulator's differs."""

ENUMERABLE = ("finished_reason", "reason", "source", "sleep_state", "handler", "method", "status")
"""Labels whose values are a fixed list, or follow from the requests, which both servers got alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What one server answered to every request above, by the request's name, and its page afterwards."""

    answers: dict[str, httpx.Response]
    families: dict[str, Any]


def hear(url: str, key: str) -> Heard:
    answers: dict[str, httpx.Response] = {}
    with httpx.Client(base_url=url, timeout=ANSWER_LIMIT_S, trust_env=False) as client:
        for name, (method, path, options) in (STRANGERS | OPEN_DOOR).items():
            answers[name] = client.request(method, path, **options)
        client.headers["authorization"] = f"Bearer {key}"
        for name, (method, path, options) in (ANSWERS | REFUSALS).items():
            answers[name] = client.request(method, path, **options)
        page = client.get("/metrics")
    assert page.status_code == 200
    return Heard(answers=answers, families=families(page.text))


def families(text: str) -> dict[str, Any]:
    """What a page is made of, without its numbers, read by prometheus-client's own parser."""
    shapes: dict[str, Any] = {}
    for family in text_string_to_metric_families(text):
        labels = {(sample.name, tuple(sorted(sample.labels))) for sample in family.samples}
        values = {
            (sample.name, name, sample.labels[name])
            for sample in family.samples
            for name in (*ENUMERABLE, "le")
            if name in sample.labels
        }
        shapes[family.name] = {
            "type": family.type,
            "help": family.documentation,
            "labels": sorted(labels),
            "values": sorted(values),
        }
    return shapes


def shape(value: Any) -> Any:
    """Keys in their order and kinds of values, of any JSON value."""
    if isinstance(value, dict):
        return [(key, shape(inner)) for key, inner in value.items()]
    if isinstance(value, list):
        return ["list", *(shape(inner) for inner in value[:1])]
    return type(value).__name__


def events(body: str) -> list[Any]:
    """The shapes of a stream's events, equal neighbours once: real tokens may share an event."""
    shapes: list[Any] = []
    *blocks, end = body.split("\n\n")
    assert end == ""
    for block in blocks:
        data = block.removeprefix("data: ")
        assert data != block, block
        seen = data if data == "[DONE]" else (shape(json.loads(data)), is_compact(data))
        if not shapes or shapes[-1] != seen:
            shapes.append(seen)
    return shapes


def is_compact(text: str) -> bool:
    return text == json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)


def told(answer: httpx.Response) -> Any:
    """What must be equal of an answer whose text is drawn by chance."""
    kind = answer.headers.get("content-type")
    if kind and kind.startswith("text/event-stream"):
        return answer.status_code, kind, events(answer.text)
    body = (shape(answer.json()), is_compact(answer.text)) if answer.text else ""
    return answer.status_code, kind, body


def verbatim(answer: httpx.Response) -> Any:
    headers = {name: answer.headers.get(name) for name in ("content-type", "allow")}
    return answer.status_code, headers, answer.text


@pytest.fixture(scope="module")
def real(unasked_server: Any) -> Heard:
    return hear(unasked_server.url, unasked_server.key)


@pytest.fixture(scope="module")
def sim() -> Heard:
    """The simulator, set as the real server beside it was started."""
    with serve_in_thread(
        "gptq-int4",
        api_key="secret",
        model="tiny",
        max_model_len=512,
        max_num_seqs=16,
        block_size=32,
        num_gpu_blocks=64,
        time_scale=0.1,
    ) as server:
        return hear(server.url, "secret")


def assert_equal_unless_listed(name: str, sim: Any, real: Any, listed: dict[str, str]) -> None:
    if name in listed:
        assert sim != real, f"this differs no longer, strike it from the list: {listed[name]}"
    else:
        assert sim == real


def test_the_pages_have_the_same_families_types_labels_and_buckets(real: Heard, sim: Heard) -> None:
    names = real.families.keys() | sim.families.keys()
    differing = {
        name: {"sim": sim.families.get(name), "real": real.families.get(name)}
        for name in sorted(names)
        if real.families.get(name) != sim.families.get(name)
    }
    unexplained = {name: pair for name, pair in differing.items() if name not in ON_PURPOSE}
    assert not unexplained
    assert not ON_PURPOSE.keys() - differing.keys(), "these differ no longer: strike them"


def test_the_pages_tell_their_families_in_the_same_order(real: Heard, sim: Heard) -> None:
    def order(heard: Heard) -> list[str]:
        return [name for name in heard.families if name not in ON_PURPOSE]

    assert order(sim) == order(real)


@pytest.mark.parametrize("name", ANSWERS | OPEN_DOOR)
def test_an_answer_has_the_same_shape(real: Heard, sim: Heard, name: str) -> None:
    pair = told(sim.answers[name]), told(real.answers[name])
    assert_equal_unless_listed(name, *pair, OTHER_WORDS)


@pytest.mark.parametrize("name", REFUSALS | STRANGERS)
def test_a_refusal_has_the_same_bytes(real: Heard, sim: Heard, name: str) -> None:
    pair = verbatim(sim.answers[name]), verbatim(real.answers[name])
    assert_equal_unless_listed(name, *pair, OTHER_WORDS)


def test_the_key_guards_v1_and_leaves_a_door_open_beside_it(real: Heard) -> None:
    """GET is enough to see the door: its route exists, and no inference runs."""
    door, closed = (
        real.answers["the open door beside the key"],
        real.answers["no key to look at a chat"],
    )
    assert (door.status_code, door.headers["allow"]) == (405, "POST")
    assert (closed.status_code, closed.text) == (401, '{"error":"Unauthorized"}')
    assert real.answers["a chat through the open door"].status_code == 200


def test_every_difference_names_its_reason() -> None:
    assert ON_PURPOSE.keys() & OTHER_WORDS.keys() == set()
    assert OTHER_WORDS.keys() <= (ANSWERS | REFUSALS | STRANGERS).keys()
    assert all(len(reason.split()) > 4 for reason in (ON_PURPOSE | OTHER_WORDS).values())
