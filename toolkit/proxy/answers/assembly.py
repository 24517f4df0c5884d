"""A stream's events -> the whole body that the server would have given instead. What it can't carry over makes it None.

It goes by lists of the fields it knows. An unknown field, a value of another kind, an index left out, a call whose arguments are
no JSON: then no body is made, and the request goes upstream. A miss is cheap; a wrong answer is not.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from toolkit.alike import Frame, frame
from toolkit.completion import DONE, MAX_EVENT_BYTES
from toolkit.event_stream import EventStream

Fields = dict[str, Any]

CHUNK = frozenset(
    "id object created model choices usage system_fingerprint service_tier prompt_token_ids prompt_text".split()
)
TOLD = CHUNK - {"choices", "usage", "created"}
"""Fields that have one value in all chunks that have them."""
CHOICE = frozenset("index delta logprobs finish_reason stop_reason token_ids".split())
TEXT_CHOICE = frozenset(
    "index text logprobs finish_reason stop_reason prompt_token_ids token_ids".split()
)
SAID = frozenset("role content reasoning reasoning_content refusal tool_calls".split())
"""Of a delta, or of a message."""
CALL = frozenset("index id type function".split())
FUNCTION = frozenset("name arguments".split())
LOGPROBS = frozenset("content refusal tokens token_logprobs top_logprobs text_offset".split())
MAY_BE_NULL = frozenset(
    "error metrics function_call annotations audio routed_experts prompt_logprobs kv_transfer_params ec_transfer_params".split()
)
"""Known, but the other mode doesn't tell them: carried over only where they are null or an empty list."""
DETAILS = ("prompt_tokens_details", "completion_tokens_details")
TEXT_LOGPROBS = frozenset("text_offset token_logprobs tokens top_logprobs".split())
ENDED_WELL = frozenset({"stop", "tool_calls"})
"""How a choice with calls ends by itself. One that was cut off in a call is told otherwise in a whole body: vLLM gives its raw text."""
MOST_TRIES = 8
"""So many chunks are looked at for a frame; a stream has one for each choice, and another for its thoughts."""


class LossyError(Exception):
    """Something can't be carried over."""


REFUSED = (LossyError, orjson.JSONDecodeError, orjson.JSONEncodeError, RecursionError)
"""Also what is nested deeper than can be written: orjson reads 1,024 levels and writes 254."""


@dataclass(slots=True)
class _Call:
    id: str | None = None
    type: str | None = None
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class _Choice:
    """What the chunks of one choice said so far."""

    role: str | None = None
    texts: dict[str, list[str]] = field(default_factory=dict)
    """Of content, reasoning, ...: their parts. One that was only null is not among them."""
    calls: list[_Call] = field(default_factory=list)
    logprobs: dict[str, list[Any]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None

    def add_text(self, name: str, text: object) -> None:
        if text is None:
            return
        if type(text) is not str:
            raise LossyError(name)
        self.texts.setdefault(name, []).append(text)

    def text(self, name: str) -> str | None:
        parts = self.texts.get(name)
        return None if parts is None else "".join(parts)


@dataclass(slots=True)
class _Answer:
    """What all chunks say alike, and their choices."""

    told: Fields = field(default_factory=dict)
    """Of each field outside the choices the one value that it ever had."""
    usage: Fields | None = None
    choices: dict[int, _Choice] = field(default_factory=dict)


def assembled(events: Iterable[bytes], endpoint: str, *, uncut: bool = False) -> bytes | None:
    """The whole body of a stream of completions that told its usage; None where anything would be lost or guessed.

    `uncut`: nor if its length ended a choice.
    """
    is_chat = endpoint == "chat/completions"
    try:
        answer = _read(events, is_chat=is_chat)
        check_ends([choice.finish_reason for choice in answer.choices.values()], uncut=uncut)
        body = orjson.dumps(_body(answer, is_chat=is_chat))
    except REFUSED:
        return None
    # a copy: it may be remembered, and what orjson wrote keeps the room it was written in, four to eight times as much (3.13.0)
    return bytes(memoryview(body))


def _read(events: Iterable[bytes], *, is_chat: bool) -> _Answer:
    """Take all events up to `[DONE]`; most differ from one before in nothing but a text, and are not parsed."""
    answer, stream = _Answer(), EventStream(max_event_bytes=MAX_EVENT_BYTES)
    frames: list[_Frame] = []
    tries = MOST_TRIES
    for event in events:
        if frames and stream.is_between and _is_taken(event, frames):
            continue
        for name, data in stream.feed(event):
            if data == DONE:
                return answer
            chunk = _chunk(name, data)
            _take_chunk(answer, chunk, is_chat=is_chat)
            if tries and is_chat:
                tries -= 1
                frames += _frame(answer, data, chunk)
    raise LossyError("no end")


class _Frame(NamedTuple):
    """What stands around the texts of one choice, and where these are collected."""

    frame: Frame
    choice: _Choice
    texts: list[str]


def _is_taken(event: bytes, frames: list[_Frame]) -> bool:
    """Whether an event is the next text in one of the frames, which then has it."""
    for around, choice, texts in frames:
        text = around.text(event)
        if text is not None and choice.finish_reason is None:
            texts.append(text)
            return True
    return False


def _frame(answer: _Answer, data: bytes, chunk: Fields) -> list[_Frame]:
    """The frame of a chunk that was taken, if a text is all that it tells."""
    found = frame(data, chunk)
    if found is None:
        return []
    said = chunk["choices"][0]
    # equal tokens have equal ids and logprobs: these would stand in the frame, and be lost
    if any(said.get(name) is not None for name in ("logprobs", "token_ids", "stop_reason")):
        return []
    choice = answer.choices[said["index"]]
    return [_Frame(found[0], choice, choice.texts[found[1]])]


def _chunk(name: bytes, data: bytes) -> Fields:
    try:
        said = orjson.loads(data)
    except orjson.JSONDecodeError:
        said = None
    if name or type(said) is not dict:
        raise LossyError("an event of another kind")
    return said


def _take_chunk(answer: _Answer, chunk: Fields, *, is_chat: bool) -> None:
    check(chunk, CHUNK)
    answer.told.setdefault("created", chunk.get("created"))
    for name in TOLD:
        _tell(answer.told, name, chunk.get(name))
    choices, usage = chunk.get("choices"), chunk.get("usage")
    if type(choices) is not list:
        raise LossyError("choices")
    if not choices and usage is not None:
        answer.usage = an_object(usage)
    for said in choices:
        _take(_choice(answer, said), said, is_chat=is_chat)


def check(said: Fields, known: frozenset[str]) -> None:
    """Refuse an object with a field that is not known, unless it is one that may be null and is."""
    for name in said.keys() - known:
        if name not in MAY_BE_NULL or said[name] not in (None, []):
            raise LossyError(name)


def check_ends(reasons: Sequence[object], *, uncut: bool) -> None:
    """Refuse an answer without a choice, or one that its length cut off where that makes a difference."""
    if not reasons or (uncut and not ENDED_WELL.issuperset(reasons)):
        raise LossyError("cut off")


def _tell(told: Fields, name: str, value: object) -> None:
    if value is None:
        return
    if told.setdefault(name, value) != value:
        raise LossyError(name)


def an_object(value: object) -> Fields:
    """An object, or it is refused."""
    if type(value) is not dict:
        raise LossyError("no object")
    return value


def a_list(value: object) -> list[Any]:
    """None is an empty one."""
    if value is not None and type(value) is not list:
        raise LossyError("no list")
    return value or []


def _choice(answer: _Answer, said: object) -> _Choice:
    index = an_object(said).get("index")
    if type(index) is not int:
        raise LossyError("index")
    return answer.choices.setdefault(index, _Choice())


def _take(choice: _Choice, said: Fields, *, is_chat: bool) -> None:
    if choice.finish_reason is not None:
        raise LossyError("more after the end")
    check(said, CHOICE if is_chat else TEXT_CHOICE)
    if is_chat:
        _take_delta(choice, an_object(said.get("delta")))
    else:
        choice.add_text("text", said.get("text"))
    _take_logprobs(choice, said.get("logprobs"))
    _take_ids(choice, said)
    choice.finish_reason = a_text(said.get("finish_reason"))
    choice.stop_reason = said.get("stop_reason")


def _take_delta(choice: _Choice, delta: Fields) -> None:
    check(delta, SAID)
    role = a_text(delta.get("role"))
    if role is not None and choice.role not in (None, role):
        raise LossyError("role")
    choice.role = role or choice.role
    for name in ("content", "reasoning", "reasoning_content", "refusal"):
        choice.add_text(name, delta.get(name))
    calls = delta.get("tool_calls")
    if calls is not None:
        if type(calls) is not list:
            raise LossyError("tool_calls")
        for said in calls:
            _take_call(choice.calls, an_object(said))


def _take_call(calls: list[_Call], said: Fields) -> None:
    """Merge a part of a call by its index; a part begins the next call or goes on with one that began."""
    check(said, CALL)
    index = said.get("index")
    if type(index) is not int or not 0 <= index <= len(calls):
        raise LossyError("index of a call")
    if index == len(calls):
        calls.append(_Call())
    call, function = calls[index], said.get("function")
    call.id = _once(call.id, said.get("id"))
    call.type = _once(call.type, said.get("type"))
    if function is not None:
        check(an_object(function), FUNCTION)
        call.name += a_text(function.get("name")) or ""
        call.arguments += a_text(function.get("arguments")) or ""


def _once(known: str | None, value: object) -> str | None:
    """A value that comes once; some servers say it again with every part, or send an empty one."""
    name = a_text(value)
    if name and known and name != known:
        raise LossyError("two values for one")
    return known or name


def a_text(value: object) -> str | None:
    """A text or None."""
    if value is not None and type(value) is not str:
        raise LossyError("no text")
    return value


def _take_logprobs(choice: _Choice, said: object) -> None:
    """Chain the lists, whatever they are called: `content` and `refusal` of a chat, `tokens` and their kin of a text."""
    if said is None:
        return
    if choice.logprobs is None:
        choice.logprobs = {}
    for name, entries in an_object(said).items():
        if name not in LOGPROBS:
            raise LossyError(name)
        if entries is not None:
            if type(entries) is not list:
                raise LossyError(name)
            choice.logprobs.setdefault(name, []).extend(entries)


def _take_ids(choice: _Choice, said: Fields) -> None:
    ids, prompt_ids = said.get("token_ids"), said.get("prompt_token_ids")
    if ids is not None:
        if type(ids) is not list:
            raise LossyError("token_ids")
        choice.token_ids = [*(choice.token_ids or ()), *ids]
    if prompt_ids is not None:
        if type(prompt_ids) is not list or choice.prompt_token_ids not in (None, prompt_ids):
            raise LossyError("prompt_token_ids")
        choice.prompt_token_ids = prompt_ids


# --- the body ----------------------------------------------------------------------------------


def _body(answer: _Answer, *, is_chat: bool) -> Fields:
    """In the order of vLLM 0.32's fields, with its nulls."""
    told, usage = answer.told, answer.usage
    if usage is None or sorted(answer.choices) != list(range(len(answer.choices))):
        raise LossyError("no usage, or an index left out")
    _check_counts(answer.choices.values(), usage.get("completion_tokens"))
    body = {
        "id": told.get("id"),
        "object": "chat.completion" if is_chat else "text_completion",
        "created": told.get("created"),
        "model": told.get("model"),
        "choices": [
            (_message_choice if is_chat else _text_choice)(index, answer.choices[index])
            for index in range(len(answer.choices))
        ],
        "service_tier": told.get("service_tier"),
        "system_fingerprint": told.get("system_fingerprint"),
        "usage": usage | {name: usage.get(name) for name in DETAILS},
    }
    if is_chat:
        body |= dict.fromkeys(("prompt_logprobs",))
        body |= {name: told.get(name) for name in ("prompt_token_ids", "prompt_text")}
    elif "prompt_token_ids" in told or "prompt_text" in told:
        raise LossyError("the prompt outside a choice")
    return body | dict.fromkeys(("kv_transfer_params", "ec_transfer_params", "metrics"))


def _check_counts(choices: Iterable[_Choice], tokens: object) -> None:
    """Refuse logprobs or ids that are not of all tokens: a server may leave some of them out of a stream."""
    for counts in (
        [None if choice.token_ids is None else len(choice.token_ids) for choice in choices],
        [None if choice.logprobs is None else _entries(choice.logprobs) for choice in choices],
    ):
        told = [count for count in counts if count is not None]
        if told and (len(told) < len(counts) or sum(told) != tokens):
            raise LossyError("not all tokens")


def _entries(logprobs: dict[str, list[Any]]) -> int:
    lengths = {len(entries) for entries in logprobs.values()}
    if len(lengths) != 1:
        raise LossyError("logprobs of unequal length")
    return lengths.pop()


def _message_choice(index: int, choice: _Choice) -> Fields:
    message: Fields = {
        "role": choice.role,
        "content": _content(choice),
        "refusal": choice.text("refusal"),
    }
    message |= dict.fromkeys(("annotations", "audio", "function_call"))
    if choice.calls:
        message["tool_calls"] = [_whole_call(call, choice) for call in choice.calls]
    message["reasoning"] = choice.text("reasoning")
    if "reasoning_content" in choice.texts:
        message["reasoning_content"] = choice.text("reasoning_content")
    if choice.role is None:
        raise LossyError("no role")
    return {"index": index, "message": message, **_ending(choice), "routed_experts": None}


def _content(choice: _Choice) -> str | None:
    """None where nothing but thoughts or calls came: the empty text of the first chunk is only its shape.

    vLLM 0.32 has null there after thoughts and after calls that it chose to make, but an empty text for calls it was told to make.
    """
    content = choice.text("content")
    has_thoughts = "reasoning" in choice.texts or "reasoning_content" in choice.texts
    is_null = choice.finish_reason == "tool_calls" if choice.calls else has_thoughts
    return None if is_null and not content else content


def _whole_call(call: _Call, choice: _Choice) -> Fields:
    if choice.finish_reason not in ENDED_WELL or not (call.id and call.type and call.name):
        raise LossyError("an unfinished call")
    try:
        orjson.loads(call.arguments)
    except orjson.JSONDecodeError:
        raise LossyError("arguments that are no JSON") from None
    return {
        "id": call.id,
        "type": call.type,
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _text_choice(index: int, choice: _Choice) -> Fields:
    told = choice.logprobs
    if told is not None and (told.keys() != TEXT_LOGPROBS or None in told["token_logprobs"]):
        # a prompt's first token has none: the whole body tells of the prompt what the stream doesn't
        raise LossyError("logprobs of a prompt")
    if choice.prompt_token_ids is not None and choice.token_ids is None:
        raise LossyError("an echo's prompt, which a whole body has only if asked for")
    text = choice.text("text")
    if text is None:
        raise LossyError("no text")
    return {
        "index": index,
        "text": text,
        **_ending(choice),
        "prompt_logprobs": None,
        "prompt_token_ids": choice.prompt_token_ids,
        "routed_experts": None,
    }


def _ending(choice: _Choice) -> Fields:
    if choice.finish_reason is None:
        raise LossyError("no finish reason")
    return {
        "logprobs": choice.logprobs,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "token_ids": choice.token_ids,
    }
