"""A stored answer -> what it says, place by place: the same for a whole body and for the stream that says it.

Ids, times and what tells of a server's caches are no statements. It reads any bytes without raising, and no clock.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson

from toolkit.completion import DONE, MAX_EVENT_BYTES
from toolkit.event_stream import EventStream
from toolkit.proxy.exchange import Kept

Statements = dict[str, object]
"""E.g., `choices[0].text` -> "Hello"; an empty text, list or null is none."""

CHOICES = frozenset({"chat/completions", "completions"})
"""Endpoints whose answers consist of choices."""
OWN = frozenset(
    "id call_id item_id request_id response_id created created_at completed_at object type role model"
    " sequence_number service_tier system_fingerprint signature encrypted_content metrics"
    " kv_transfer_params logprobs prompt_logprobs prompt_tokens_details completion_tokens_details"
    " input_tokens_details output_tokens_details total_tokens cache_read_input_tokens"
    " cache_creation_input_tokens".split()
)
"""Names that tell of the moment, of a server's caches, of what was asked, or what the other names tell as well."""
OPAQUE = frozenset({"input", "arguments"})
"""Where the model chose the names inside: one statement, so that no name of the model's becomes a place."""
RESPONSE_ENDS = ("response.completed", "response.incomplete")
MOST_PLACES = 200_000
"""Of one answer; what is behind them is not compared."""


def statements(kept: Kept) -> Statements:
    """What a stored answer says; its whole body as one statement, where it can't be read."""
    if kept.streamed:
        events = _events(kept.body)
        said = _of_events(kept.endpoint, events)
    else:
        body = json_value(kept.body)
        said = _of_whole(kept.endpoint, body) if type(body) is dict else None
    return {"body": kept.body.decode("utf-8", "replace")} if said is None else said


def json_value(data: bytes) -> Any:
    """Any JSON value; None for what is none."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:
        # half a surrogate pair, NaN, bytes that are no text: each stays what it is
        return json.loads(data.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return None


def spelled(value: object) -> str:
    """A JSON value's one spelling."""
    try:
        return json.dumps(value, sort_keys=True)
    except RecursionError:
        return "nested too deep"


def _events(body: bytes) -> list[dict[str, Any]]:
    """The objects of a stream, one an event, up to `[DONE]`."""
    stream = EventStream(max_event_bytes=max(MAX_EVENT_BYTES, len(body)))
    found = []
    for _, data in (*stream.feed(body), *stream.end()):
        if data == DONE:
            break
        said = json_value(data)
        if type(said) is dict:
            found.append(said)
    return found


def _of_events(endpoint: str, events: list[dict[str, Any]]) -> Statements | None:
    if endpoint in CHOICES:
        return _choices(events)
    if endpoint == "responses":
        ends = [each.get("response") for each in events if each.get("type") in RESPONSE_ENDS]
        return _flat(ends[-1]) if ends else None
    if endpoint == "messages":
        return _flat(_message(events))
    return _merged(events)


def _of_whole(endpoint: str, body: dict[str, Any]) -> Statements | None:
    return _choices([body]) if endpoint in CHOICES else _flat(body)


# --- choices: chat/completions, completions ------------------------------------------------------


@dataclass(slots=True)
class _Choice:
    """What one choice has said, whole or in pieces."""

    texts: dict[str, list[str]] = field(default_factory=dict)
    """By name of the text."""
    finish_reason: object = None
    tokens: int = 0

    def add(self, name: str, text: object) -> bool:
        if type(text) is not str or not text:
            return False
        self.texts.setdefault(name, []).append(text)
        return True

    def take(self, said: dict[str, Any]) -> None:
        delta = said.get("delta") or said.get("message")
        if type(delta) is not dict:
            delta = {"content": said.get("text")}
        self.add("text", delta.get("content"))
        if len(delta) > 1 or "content" not in delta:
            self._take_rest(delta)
        if said.get("finish_reason") is not None:
            self.finish_reason = said["finish_reason"]
        self.tokens += _tokens(said)

    def _take_rest(self, delta: dict[str, Any]) -> None:
        # of the two names of reasoning, a server in transition sends both with the same text
        if not self.add("reasoning", delta.get("reasoning_content")):
            self.add("reasoning", delta.get("reasoning"))
        self.add("refusal", delta.get("refusal"))
        self._take_calls(delta)

    def _take_calls(self, delta: dict[str, Any]) -> None:
        calls = delta.get("tool_calls")
        listed = [each for each in calls if type(each) is dict] if type(calls) is list else []
        for place, call in enumerate(listed):
            index = call.get("index")
            self._take_call(f"tool_calls[{index if type(index) is int else place}]", call)
        self._take_call("function_call", {"function": delta.get("function_call")})

    def _take_call(self, name: str, call: dict[str, Any]) -> None:
        function = call.get("function")
        if type(function) is dict:
            self.add(f"{name}.name", function.get("name"))
            self.add(f"{name}.arguments", function.get("arguments"))

    def statements(self, place: str) -> Statements:
        said: Statements = {
            f"{place}.{name}": "".join(self.texts[name])
            for name in sorted(self.texts, key=lambda name: (name != "reasoning", name))
        }
        said[f"{place}.finish_reason"] = self.finish_reason
        said[f"{place}.tokens"] = self.tokens or None
        return said


def _choices(chunks: Iterable[dict[str, Any]]) -> Statements | None:
    choices: dict[int, _Choice] = {}
    usage: dict[str, Any] = {}
    for chunk in chunks:
        listed = chunk.get("choices")
        for place, said in enumerate(listed if type(listed) is list else ()):
            if type(said) is dict:
                index = said.get("index")
                found = choices.setdefault(index if type(index) is int else place, _Choice())
                found.take(said)
        told = chunk.get("usage")
        if type(told) is dict:
            usage = told
    if not choices:
        return None
    every: Statements = {}
    for index in sorted(choices):
        every |= choices[index].statements(f"choices[{index}]")
    for name in ("prompt_tokens", "completion_tokens"):
        every[f"usage.{name}"] = usage.get(name)
    return {place: said for place, said in every.items() if said is not None}


def _tokens(said: dict[str, Any]) -> int:
    """How many tokens a piece of a choice tells of one by one: with `token_ids`, or with log probabilities."""
    ids, probabilities = said.get("token_ids"), said.get("logprobs")
    if type(ids) is list:
        return len(ids)
    if type(probabilities) is dict:
        for name in ("content", "tokens"):
            if type(probabilities.get(name)) is list:
                return len(probabilities[name])
    return 0


# --- everything else -----------------------------------------------------------------------------


def _message(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole message that a stream of `/v1/messages` tells in parts."""
    blocks: dict[int, dict[str, list[str]]] = {}
    told: dict[str, Any] = {}
    usage: dict[str, Any] = {}
    for event in events:
        index, part = event.get("index"), event.get("content_block") or event.get("delta")
        for one in (event.get("message"), event):
            if type(one) is dict and type(one.get("usage")) is dict:
                usage |= one["usage"]
        if type(part) is not dict:
            continue
        if type(index) is not int:
            told |= part
            continue
        _add_part(blocks.setdefault(index, {}), part)
    content = [_block(blocks[index]) for index in sorted(blocks)]
    return {"content": content, **told, "usage": usage}


def _add_part(block: dict[str, list[str]], part: dict[str, Any]) -> None:
    """Add a block's beginning, or more of its text, thought or input."""
    for name in ("name", "text", "thinking", "partial_json"):
        if type(part.get(name)) is str:
            block.setdefault(name, []).append(part[name])
    if "input" in part:
        # a call without arguments has no pieces of them
        block.setdefault("partial_json", [])


def _block(parts: dict[str, list[str]]) -> dict[str, Any]:
    block: dict[str, Any] = {name: "".join(texts) for name, texts in parts.items()}
    written = block.pop("partial_json", None)
    if written is not None:
        value = json_value((written or "{}").encode("utf-8", "surrogatepass"))
        block["input"] = written if value is None else value
    return block


def _flat(value: object) -> Statements:
    """Every string, number and truth value in an answer, by its place."""
    every: Statements = {}
    todo: list[tuple[str, object]] = [("", value)]
    while todo and len(every) < MOST_PLACES:
        place, said = todo.pop()
        name = place.rpartition(".")[2]
        if name in OPAQUE and not isinstance(said, str):
            said = spelled(said)
        if isinstance(said, dict):
            inner = [(f"{place}.{key}" if place else key, each) for key, each in said.items()]
            todo += reversed([each for each in inner if each[0].rpartition(".")[2] not in OWN])
        elif isinstance(said, list):
            todo += reversed([(f"{place}[{number}]", each) for number, each in enumerate(said)])
        elif said is not None and said != "":
            every[place] = said
    return every


def _merged(events: list[dict[str, Any]]) -> Statements:
    """A stream of no known form: texts at one place run on, of everything else the last counts, however it was cut."""
    every: Statements = {}
    for event in events:
        for place, said in _flat(event).items():
            before = every.get(place)
            is_more = isinstance(said, str) and isinstance(before, str)
            every[place] = f"{before}{said}" if is_more else said
    return every
