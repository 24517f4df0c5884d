"""A whole body -> the events that the server would have streamed instead. What can't be carried over makes them None.

A choice's role comes in one event, and so do its thoughts, its text and its calls, in vLLM 0.32's shape: where its tokens were
cut, and when each was made, a whole body doesn't tell, and nothing here invents it.
"""

from collections.abc import Iterator
from typing import Any

import orjson

from toolkit.proxy.answers.assembly import (
    CALL,
    CHOICE,
    FUNCTION,
    LOGPROBS,
    REFUSED,
    SAID,
    TEXT_CHOICE,
    Fields,
    LossyError,
    a_list,
    a_text,
    an_object,
    check,
    check_ends,
)

BODY = frozenset(
    "id object created model choices usage system_fingerprint service_tier prompt_token_ids prompt_text".split()
)
MESSAGE_CHOICE = CHOICE - {"delta"} | {"message"}
THOUGHTS = ("reasoning_content", "reasoning")
"""Two names of one thing: a server in transition has both."""
TEXTS = (*THOUGHTS, "content", "refusal")
DONE_EVENT = b"data: [DONE]\n\n"


def streamed(body: bytes, endpoint: str, *, usage: bool, uncut: bool = False) -> list[bytes] | None:
    """The events of a stream of completions, the one with the usage only if it is wanted; None if anything would be lost.

    `uncut`: nor if its length ended a choice.
    """
    is_chat = endpoint == "chat/completions"
    try:
        said = an_object(orjson.loads(body))
        choices = _choices(said, is_chat=is_chat, uncut=uncut)
        chunks = _chunks(said, choices, is_chat=is_chat, usage=usage)
        return [*(b"data: %b\n\n" % orjson.dumps(chunk) for chunk in chunks), DONE_EVENT]
    except REFUSED:
        return None


def _choices(said: Fields, *, is_chat: bool, uncut: bool) -> list[Fields]:
    check(said, BODY)
    choices = [an_object(choice) for choice in a_list(said.get("choices"))]
    if [choice.get("index") for choice in choices] != list(range(len(choices))):
        raise LossyError("index")
    for choice in choices:
        check(choice, MESSAGE_CHOICE if is_chat else TEXT_CHOICE)
        check(an_object(choice.get("logprobs") or {}), LOGPROBS)
        if not a_text(choice.get("finish_reason")):
            raise LossyError("no finish reason")
    check_ends([choice["finish_reason"] for choice in choices], uncut=uncut)
    return choices


def _chunks(said: Fields, choices: list[Fields], *, is_chat: bool, usage: bool) -> Iterator[Fields]:
    head = {
        "id": said.get("id"),
        "object": "chat.completion.chunk" if is_chat else "text_completion",
        "created": said.get("created"),
        "model": said.get("model"),
    }
    # vLLM tells it once: with the usage, or else where a choice ends
    tail = {name: said[name] for name in ("system_fingerprint", "service_tier") if said.get(name)}
    if is_chat:
        yield from _roles(said, choices, head)
    elif said.get("prompt_token_ids") is not None or said.get("prompt_text") is not None:
        raise LossyError("the prompt outside a choice")
    for choice in choices:
        parts = list(_chat_parts(choice) if is_chat else _text_parts(choice))
        for part in parts:
            is_last = part is parts[-1]
            yield head | {"choices": [part]} | (tail if is_last and not usage else {})
    if usage:
        told = _without_nulls(an_object(said.get("usage")))
        yield head | {"choices": [], "usage": told} | tail


def _roles(said: Fields, choices: list[Fields], head: Fields) -> Iterator[Fields]:
    prompt = {name: said.get(name) for name in ("prompt_token_ids", "prompt_text")}
    for choice in choices:
        message = an_object(choice.get("message"))
        role = a_text(message.get("role"))
        if not role:
            raise LossyError("no role")
        part = {"index": choice["index"], "delta": {"role": role, "content": ""}}
        yield head | {"choices": [part | {"logprobs": None, "finish_reason": None}]} | prompt


def _chat_parts(choice: Fields) -> Iterator[Fields]:
    deltas = list(_deltas(an_object(choice["message"])))
    for number, delta in enumerate(deltas, start=1):
        part = {"index": choice["index"], "delta": delta, "logprobs": None, "finish_reason": None}
        yield part | (_ending(choice) if number == len(deltas) else {"token_ids": None})


def _deltas(message: Fields) -> Iterator[Fields]:
    """What the message says, in the order in which it is said; one that says nothing when there is nothing."""
    check(message, SAID)
    told = {name: text for name in TEXTS if (text := a_text(message.get(name)))}
    calls = [_call(index, call) for index, call in enumerate(a_list(message.get("tool_calls")))]
    thoughts = {name: told[name] for name in THOUGHTS if name in told}
    texts: list[Fields] = [{name: told[name]} for name in ("content", "refusal") if name in told]
    deltas: list[Fields] = [thoughts, *texts, {"tool_calls": calls} if calls else {}]
    yield from [delta for delta in deltas if delta] or [{}]


def _call(index: int, said: object) -> Fields:
    call = an_object(said)
    check(call, CALL)
    function = an_object(call.get("function"))
    check(function, FUNCTION)
    name, arguments = a_text(function.get("name")), a_text(function.get("arguments"))
    if not name or arguments is None or call.get("index", index) != index:
        raise LossyError("a call without a name or arguments")
    return {
        "id": call.get("id"),
        "type": call.get("type"),
        "index": index,
        "function": {"name": name, "arguments": arguments},
    }


def _text_parts(choice: Fields) -> Iterator[Fields]:
    text = a_text(choice.get("text"))
    if text is None:
        raise LossyError("no text")
    prompt_ids = choice.get("prompt_token_ids")
    yield {
        "index": choice["index"],
        "text": text,
        **_ending(choice),
        "prompt_token_ids": prompt_ids,
    }


def _ending(choice: Fields) -> Fields:
    names = ("logprobs", "finish_reason", "stop_reason", "token_ids")
    return {name: choice.get(name) for name in names}


def _without_nulls(value: Any) -> Any:
    """As vLLM writes the usage of a stream."""
    if type(value) is not dict:
        return value
    return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
