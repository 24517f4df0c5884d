"""Is an answer what its request must get? For upstreams that tell the truth (support.truthful), over whatever stands between."""

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from support.proxied import Answer
from support.truthful import Fields, Truth, truth

HONEST = frozenset({429, 500, 502, 503, 504})
"""With a body that says so."""
_MARK = re.compile(r"chatcmpl-(\w+)\.(\d+)\.\d+")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one request whose client stayed."""

    kind: str
    """whole, rejected, error (an honest one), cut (a stream that says that it broke off) or wrong."""
    why: str = ""
    word: str = ""
    """The salt's, of a whole answer."""
    server: str = ""
    life: int = 0


@dataclass(slots=True)
class _Said:
    """What a client holds of an answer."""

    texts: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    roles: Counter[int] = field(default_factory=Counter)
    usages: list[Fields] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    models: set[str] = field(default_factory=set)
    has_calls: bool = False
    error: Fields | None = None
    ends: int = 0


def verdict(fields: Fields, answer: Answer) -> Verdict:
    try:
        if answer.status in HONEST:
            return _error(answer)
        if answer.status != 200:
            return Verdict("wrong", f"status {answer.status}: {answer.body[:200]!r}")
        stream = bool(fields.get("stream"))
        if answer.headers.get("content-type", "").startswith("text/event-stream") != stream:
            return Verdict("wrong", f"content-type {answer.headers.get('content-type')}")
        said = _streamed(answer.body) if stream else _told(answer.json)
        return _judged(fields, said, is_whole=answer.is_whole)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        return Verdict("wrong", f"{error!r} in {answer.status} {answer.body[-300:]!r}")


def _error(answer: Answer) -> Verdict:
    if not answer.is_whole or answer.json["error"]["code"] != answer.status:
        return Verdict("wrong", f"an error that is no error: {answer.status} {answer.body!r}")
    if "retry-after" in answer.headers:
        return Verdict("rejected", str(answer.status))
    return Verdict("error", str(answer.status))


def _judged(fields: Fields, said: _Said, *, is_whole: bool) -> Verdict:
    must = truth(fields)
    if said.error is not None or not is_whole:
        return _broken(must, said, is_whole=is_whole)
    texts = {index: text.partition(" ") for index, text in sorted(said.texts.items())}
    words = {word for word, _, _ in texts.values()}
    found = Truth(
        tuple(space + rest for _, space, rest in texts.values()),
        said.has_calls,
        must.prompt_tokens,
        must.output_tokens,
    )
    if found != must:
        return Verdict("wrong", f"asked {must}, got {found}")
    reason = "tool_calls" if must.has_calls else "stop"
    if said.reasons != dict.fromkeys(texts, reason) or len(words) != 1 or len(said.ids) != 1:
        return Verdict("wrong", f"{said.reasons} {words} {said.ids}")
    if said.models != {fields["model"]} or said.roles != Counter(texts.keys()):
        return Verdict("wrong", f"{said.models} {said.roles}")
    why = _wrong_usage(fields, must, said)
    if why:
        return Verdict("wrong", why)
    mark = _MARK.fullmatch(said.ids.pop())
    assert mark is not None
    return Verdict("whole", "", words.pop(), mark[1], int(mark[2]))


def _broken(must: Truth, said: _Said, *, is_whole: bool) -> Verdict:
    """Honest, if the last thing told is that it broke, and what came before is a part of the truth."""
    if said.error is None:
        return Verdict("wrong", f"it ended in the middle without a word: {said}")
    for index, text in said.texts.items():
        _, space, rest = text.partition(" ")
        if not must.texts[index].startswith(space + rest):
            return Verdict("wrong", f"{text!r} is no beginning of {must.texts[index]!r}")
    return Verdict("cut", "ended" if is_whole else "broken off")


def _wrong_usage(fields: Fields, must: Truth, said: _Said) -> str:
    stream = fields.get("stream")
    if stream and said.ends != 1:
        return f"{said.ends} times [DONE]"
    wanted = not stream or (fields.get("stream_options") or {}).get("include_usage", False)
    total = must.prompt_tokens + must.output_tokens
    usage = {
        "prompt_tokens": must.prompt_tokens,
        "total_tokens": total,
        "completion_tokens": must.output_tokens,
    }
    told = [
        {name: value for name, value in each.items() if value is not None} for each in said.usages
    ]
    return "" if told == [usage] * int(wanted) else f"usage {told}, wanted {wanted} of {usage}"


def _told(body: Fields) -> _Said:
    said = _Said(ids={body["id"]}, models={body["model"]}, usages=[body["usage"]])
    for choice in body["choices"]:
        index, message = choice["index"], choice["message"]
        calls = message.get("tool_calls") or ()
        said.has_calls |= bool(calls)
        said.texts[index] = message["content"] or "".join(
            each["function"]["arguments"] for each in calls
        )
        said.reasons[index] = choice["finish_reason"]
        said.roles[index] += message["role"] == "assistant"
    return said


def _streamed(body: bytes) -> _Said:
    said = _Said()
    # what was cut may end in the middle of an event
    *events, rest = body.split(b"\n\n")
    for event in events:
        data = event.removeprefix(b"data: ")
        if said.ends:
            raise ValueError(f"after the end came {event!r}")
        if data == b"[DONE]":
            said.ends += 1
            continue
        told = json.loads(data)
        if "error" in told:
            said.error = told["error"]
            continue
        if said.error is not None:
            raise ValueError("tokens after an error")
        _add(said, told)
    if rest:
        raise ValueError(f"half an event: {rest!r}")
    return said


def _add(said: _Said, told: Fields) -> None:
    said.ids.add(told["id"])
    said.models.add(told["model"])
    if told.get("usage") is not None:
        said.usages.append(told["usage"])
    for choice in told["choices"]:
        index, delta = choice["index"], choice["delta"]
        said.roles[index] += delta.get("role") == "assistant"
        part = delta.get("content") or _arguments(said, delta)
        said.texts[index] = said.texts.get(index, "") + part
        if choice["finish_reason"] is not None:
            if index in said.reasons:
                raise ValueError("two ends of one choice")
            said.reasons[index] = choice["finish_reason"]


def _arguments(said: _Said, delta: dict[str, Any]) -> str:
    calls = delta.get("tool_calls") or ()
    said.has_calls |= bool(calls)
    return "".join(each["function"]["arguments"] for each in calls)
