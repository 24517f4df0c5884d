"""How a client wants an answer, and one stored answer in that form: as it came, without its usage, whole, or as a stream. Pure.

It goes by lists of the fields it knows. An unknown field, a value of another kind, an index left out, a call whose arguments are no
JSON: then nothing is made, and the request goes upstream. A miss is cheap; a wrong answer is not.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import orjson

from toolkit.protocol.completion import (
    DONE,
    MAX_EVENT_BYTES,
    MOST_TRIES,
    Completion,
    Frame,
    frame,
)
from toolkit.protocol.sse import EventStream, event_ends
from toolkit.proxy.responses.judge import COMPLETIONS, brings_token

if TYPE_CHECKING:
    from toolkit.proxy.cache.entry import CachedResponse

Fields = dict[str, Any]
Crosses = Literal["always", "uncut", "never"]
"""Whether an answer may be given in the other form than it came in; `uncut`: unless its length ended it."""

TOLD_BY_PATH = frozenset({"generate", "api/chat", "api/generate"})
"""Endpoints whose form stands in the path, or is a stream unless told otherwise."""
STREAM_OPTIONS = frozenset({"include_usage", "continuous_usage_stats"})
ONE_FORM = frozenset({"prompt_logprobs", "kv_transfer_params", "ec_transfer_params"})
"""Fields whose answer only a whole body tells (vLLM 0.32)."""
TOOLS = frozenset({"tools", "functions"})

NO_CHOICES = b'"choices":[]', b'"choices": []'
"""How the event with the usage is found without reading every one; a text can't hold it, its quotes would be escaped."""
USAGE = b'"usage":{', b'"usage": {'
FINISH = b'"finish_reason":"'
FINGERPRINT = b'"system_fingerprint":"'
JSON_TYPE = "application/json"
STREAM_TYPE = "text/event-stream; charset=utf-8"

TEXTS = ("content", "reasoning", "reasoning_content", "refusal")
THOUGHTS = ("reasoning_content", "reasoning")
"""Two names of one thing: a server in transition has both."""
TEXT_LOGPROBS = frozenset("text_offset token_logprobs tokens top_logprobs".split())

Rules = dict[str, Any]
"""Known fields of an object, and how what several chunks say of one comes together: `one` value, alike each time; a `name`, the
same of texts, where an empty one is none; the `first`; the `last`; `parts` of a text; a `list` whose pieces are added up. An object
has rules of its own; of a list of objects each is known by its index, and in a tuple, where it has none, by its place."""
FUNCTION: Rules = {"name": "parts", "arguments": "parts"}
CALL: Rules = {"index": "one", "id": "name", "type": "name", "function": FUNCTION}
SAID: Rules = {"role": "name", **dict.fromkeys(TEXTS, "parts")}
LOGPROBS: Rules = dict.fromkeys(("content", "refusal", *TEXT_LOGPROBS), "list")
CHOICE: Rules = {"index": "one", "logprobs": LOGPROBS, "token_ids": "list"}
CHOICE |= {"finish_reason": "name", "stop_reason": "last"}
TEXT = CHOICE | {"text": "parts", "prompt_token_ids": "one"}
STREAMED_CHAT = CHOICE | {"delta": SAID | {"tool_calls": [CALL]}}
WHOLE_CHAT = CHOICE | {"message": SAID | {"tool_calls": (CALL,)}}
HEAD: Rules = dict.fromkeys(
    "id object model system_fingerprint service_tier prompt_token_ids prompt_text".split(), "one"
) | {"created": "first", "usage": "last"}
MAY_BE_NULL = frozenset(
    "error metrics function_call annotations audio routed_experts prompt_logprobs kv_transfer_params ec_transfer_params".split()
)
"""Known, but the other form doesn't tell them: carried over only where they are null or an empty list."""
ENDING = ("logprobs", "finish_reason", "stop_reason", "token_ids")
"""Fields of a choice that tell how it ended, and those of its tokens; below what stands where, in the order and with the nulls of
vLLM 0.32: in a choice of a whole body, its message, the body itself, and in the last chunk of a choice."""
CHAT_CHOICE = ("index", "message", *ENDING, "routed_experts")
TEXT_CHOICE = ("index", "text", *ENDING, "prompt_logprobs", "prompt_token_ids", "routed_experts")
MESSAGE = "role content refusal annotations audio function_call tool_calls reasoning reasoning_content".split()
AS_SAID = frozenset({"tool_calls", "reasoning_content"})
"""Left out where nothing was said of them."""
OF_CHAT = ("prompt_logprobs", "prompt_token_ids", "prompt_text")
BODY = "id object created model choices service_tier system_fingerprint usage".split()
BODY += [*OF_CHAT, "kv_transfer_params", "ec_transfer_params", "metrics"]
CHAT_END = ("index", "delta", *ENDING)
TEXT_END = ("index", "text", *ENDING, "prompt_token_ids")
DETAILS = ("prompt_tokens_details", "completion_tokens_details")
ENDED_WELL = frozenset({"stop", "tool_calls"})
"""How a choice with calls ends by itself. One that was cut off in a call is told otherwise in a whole body: vLLM gives its raw text."""


class LossyError(Exception):
    """Something can't be carried over."""


REFUSED = (LossyError, orjson.JSONDecodeError, orjson.JSONEncodeError, RecursionError)
"""Also what is nested deeper than can be written: orjson reads 1,024 levels and writes 254."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseFormat:
    """How a client wants to see an answer; one stored answer serves several."""

    stream: bool = False
    usage: bool = False
    """`stream_options.include_usage`: a last event with the usage."""
    continuous_usage: bool = False
    """`stream_options.continuous_usage_stats`: the usage so far in each event (vLLM)."""
    crosses: Crosses = "always"


WHOLE = ResponseFormat()


def response_format(fields: Fields, endpoint: str) -> ResponseFormat | None:
    """The form that a body asks for; None: one that we don't know, so that its answer must not be shared with any other."""
    stream, options = fields.get("stream"), fields.get("stream_options")
    if endpoint in TOLD_BY_PATH or type(stream) not in (bool, type(None)):
        return None
    crosses: Crosses = "always"
    # an echo brings the prompt's own logprobs in a whole body only
    is_one_form = not ONE_FORM.isdisjoint(fields) and any(
        fields.get(name) is not None for name in ONE_FORM
    )
    if endpoint not in COMPLETIONS or is_one_form or fields.get("echo"):
        crosses = "never"
    elif not TOOLS.isdisjoint(fields) and any(fields.get(name) for name in TOOLS):
        crosses = "uncut"
    if options is None:
        return ResponseFormat(stream=bool(stream), crosses=crosses)
    if not stream or endpoint not in COMPLETIONS or type(options) is not dict:
        return None
    kinds = {type(told) for told in options.values()}
    if not options.keys() <= STREAM_OPTIONS or not kinds <= {bool, type(None)}:
        return None
    usage = bool(options.get("include_usage"))
    continuous = usage and bool(options.get("continuous_usage_stats"))
    return ResponseFormat(stream=True, usage=usage, continuous_usage=continuous, crosses=crosses)


def passes_through(leads: ResponseFormat, wants: ResponseFormat, *, has_usage: bool) -> bool:
    """Whether what a call made for one form brings is right for another as it comes, but for the event with the usage.

    `has_usage`: the call asked for it.
    """
    if not leads.stream or not wants.stream:
        return leads.stream == wants.stream
    return leads.continuous_usage == wants.continuous_usage and has_usage >= wants.usage


def can_join(
    leads: ResponseFormat, wants: ResponseFormat, endpoint: str, *, has_usage: bool
) -> bool:
    """Whether a call made for one form will serve a request that wants another one, at its end at the latest."""
    if leads.stream == wants.stream:
        return passes_through(leads, wants, has_usage=has_usage)
    if endpoint not in COMPLETIONS or wants.crosses == "never":
        return False
    return has_usage if leads.stream else not wants.continuous_usage


def convert(kept: "CachedResponse", wanted: ResponseFormat) -> tuple[str, bytes] | None:
    """Content type and body of a stored answer in another form; None if it can't be given so without loss or invention."""
    if not kept.streamed and not wanted.stream:
        return kept.content_type, kept.body
    if kept.streamed and wanted.stream:
        if kept.endpoint not in COMPLETIONS:
            return kept.content_type, kept.body
        shorter = without_usage(kept.body)
        plain = kept.body if shorter is None else shorter
        if wanted.continuous_usage:
            # each event has a usage, but for the last one, which is `[DONE]`
            usages = sum(map(kept.body.count, USAGE))
            is_told = usages == len(event_ends(kept.body)) - 1
        else:
            # a server that tells it in each event tells it in the first
            first = plain[: _event_around(plain, 0)[1]]
            is_told = not any(usage in first for usage in USAGE)
        if not is_told or (wanted.usage and shorter is None):
            return None
        return kept.content_type, kept.body if wanted.usage else plain
    if kept.endpoint not in COMPLETIONS or wanted.crosses == "never" or wanted.continuous_usage:
        return None
    is_chat = kept.endpoint == "chat/completions"
    try:
        said = _read(kept, is_chat=is_chat, uncut=wanted.crosses == "uncut")
        if not wanted.stream:
            return JSON_TYPE, _whole(said, is_chat=is_chat)
        chunks = _chunks(said, is_chat=is_chat, usage=wanted.usage)
        events = [b"data: %b\n\n" % orjson.dumps(chunk) for chunk in chunks]
        return STREAM_TYPE, b"".join([*events, b"data: [DONE]\n\n"])
    except REFUSED:
        return None


# --- a stream, with or without its usage ---------------------------------------------------------


def without_usage(events: bytes) -> bytes | None:
    """The same events without the one that tells the usage and no choice; None: there is none.

    What vLLM tells there beside the usage, its fingerprint, it tells where a choice ends if there is no usage.
    """
    at = len(events)
    # from the end: that is where it mostly is
    while (at := events.rfind(b"[]", 0, at)) >= 0:
        if events.endswith(NO_CHOICES, 0, at + 2):
            first, end = _event_around(events, at)
            lines = events[first:end].splitlines()
            data = b"\n".join([line[5:] for line in lines if line.startswith(b"data:")])
            try:
                said = orjson.loads(data)
            except orjson.JSONDecodeError:
                continue
            is_whole = type(said) is dict and said.get("choices") == []
            if is_whole and type(said.get("usage")) is dict:
                break
    else:
        return None
    start = events.find(FINGERPRINT, first, end)
    stop = events.find(b'"', start + len(FINGERPRINT), end) + 1
    told = events[start:stop] if 0 <= start < stop else b""
    # one that has to be unescaped is left out
    if not told or b"\\" in told:
        return events[:first] + events[end:]
    cuts = [(first, end, b"")]
    at = len(events)
    # looking backwards takes 3.6 us in 25 KB instead of 8.6
    while (at := events.rfind(FINISH, 0, at)) >= 0:
        first, end = _event_around(events, at)
        brace = events.rfind(b"}", at, end)
        is_last = events[brace:end].strip() == b"}"
        if is_last and events.find(FINGERPRINT, first, brace) < 0:
            cuts.append((brace, brace, b"," + told))
        at = first
    pieces: list[bytes | memoryview] = []
    taken, whole = 0, memoryview(events)
    for first, end, added in sorted(cuts):
        pieces += (whole[taken:first], added)
        taken = end
    return b"".join([*pieces, whole[taken:]])


def _event_around(events: bytes, at: int) -> tuple[int, int]:
    """Beginning and end of the event that this byte is in."""
    if b"\r" in events:
        ends = [0, *event_ends(events), len(events)]
        number = bisect_right(ends, at)
        return ends[number - 1], ends[number]
    before, end = events.rfind(b"\n\n", 0, at), events.find(b"\n\n", at)
    return before + 2 if before >= 0 else 0, end + 2 if end >= 0 else len(events)


# --- what an answer says, whichever form it came in ----------------------------------------------


def _read(kept: "CachedResponse", *, is_chat: bool, uncut: bool) -> Fields:
    """All that it says, its choices in order; `uncut`: not if its length ended a choice."""
    known: Fields = {"choices": {}}
    if kept.streamed:
        rules = HEAD | {"choices": [STREAMED_CHAT if is_chat else TEXT]}
        for chunk in _unframed(kept.body, known["choices"], is_chat=is_chat):
            _merge(known, chunk, rules)
            said = _need(chunk.get("choices"), list)
            if said:
                # beside choices it is not that of the whole
                known.pop("usage", None)
            for each in said if is_chat else ():
                _need(each.get("delta"), dict)
    else:
        body = _need(orjson.loads(kept.body), dict)
        _merge(known, body, HEAD | {"choices": [WHOLE_CHAT if is_chat else TEXT]})
    indexes = sorted(known["choices"])
    every = known["choices"] = [known["choices"][index] for index in indexes]
    reasons = [choice.get("finish_reason") for choice in every]
    if not reasons or None in reasons or (uncut and not ENDED_WELL.issuperset(reasons)):
        raise LossyError("cut off")
    if indexes != [*range(len(every))]:
        raise LossyError("an index left out")
    if not is_chat and not known.keys().isdisjoint(("prompt_token_ids", "prompt_text")):
        raise LossyError("the prompt outside a choice")
    return known


def _merge(known: Fields, said: Any, rules: Rules) -> None:
    """Add what an object says to what is known; refuse a field without a rule, unless it is one that may be null and is."""
    for name, value in _need(said, dict).items():
        rule = rules.get(name)
        if rule is None:
            if name not in MAY_BE_NULL or value not in (None, []):
                raise LossyError(name)
        elif rule == "last":
            known[name] = value
        elif value is None or (rule == "name" and value == ""):
            pass
        elif rule == "first":
            known.setdefault(name, value)
        elif rule == "parts":
            known.setdefault(name, []).append(_need(value, str))
        elif rule == "list":
            known.setdefault(name, []).extend(_need(value, list))
        elif type(rule) is dict:
            _merge(known.setdefault(name, {}), value, rule)
        elif type(rule) in (list, tuple):
            by_index = known.setdefault(name, {})
            for place, each in enumerate(_need(value, list)):
                index = _need(each, dict).get("index", place if type(rule) is tuple else None)
                entry = by_index.setdefault(_need(index, int), {})
                if "finish_reason" in entry:
                    raise LossyError("more after the end")
                _merge(entry, each, rule[0])
        elif known.setdefault(name, value) != value or (rule == "name" and type(value) is not str):
            raise LossyError("two values for one")


def _unframed(stream: bytes, choices: dict[int, Fields], *, is_chat: bool) -> Iterator[Fields]:
    """The chunks of a stream up to `[DONE]`. One that differs from one before in nothing but its text is not parsed: that is added."""
    reader = EventStream(max_event_bytes=MAX_EVENT_BYTES)
    frames: list[tuple[Frame, Fields, list[str]]] = []
    # so many chunks are looked at for a frame; a stream has one for each choice, and another for its thoughts
    tries = MOST_TRIES if is_chat else 0
    first = 0
    for end in event_ends(stream):
        event, first = stream[first:end], end
        for (before, behind, _), choice, texts in frames if reader.is_between else ():
            ends = len(event) - len(behind)
            is_framed = event.startswith(before) and event.endswith(behind)
            if (
                is_framed
                and event.find(b'"', len(before)) == ends
                and "finish_reason" not in choice
            ):
                texts.append(orjson.loads(b'"%b"' % event[len(before) : ends]))
                break
        else:
            for name, data in reader.feed(event):
                if data == DONE:
                    return
                chunk = orjson.loads(data)
                if name or type(chunk) is not dict:
                    raise LossyError("an event of another kind")
                yield chunk
                tries -= 1
                found = frame(data, chunk) if tries >= 0 else None
                # equal tokens have equal ids and logprobs: these would stand in the frame, and be lost
                said = chunk["choices"][0] if found else {}
                if found and all(
                    said.get(n) is None for n in ("logprobs", "token_ids", "stop_reason")
                ):
                    choice = choices[said["index"]]
                    frames.append((found, choice, choice["delta"][found[2]]))
    raise LossyError("no end")


def _text(said: Fields, name: str) -> str | None:
    return "".join(said[name]) if name in said else None


def _need(value: Any, kind: type) -> Any:
    """A value of this kind."""
    if type(value) is not kind:
        raise LossyError(f"no {kind.__name__}")
    return value


# --- the whole body that the server would have given instead of a stream -------------------------


def _whole(known: Fields, *, is_chat: bool) -> bytes:
    every, usage = known["choices"], _need(known.get("usage"), dict)
    # a server may leave the logprobs or the ids of some tokens out of a stream
    for counts in (
        [{len(choice["token_ids"])} if "token_ids" in choice else None for choice in every],
        [
            {*map(len, choice["logprobs"].values())} if "logprobs" in choice else None
            for choice in every
        ],
    ):
        if any(counts) and (
            not all(count and len(count) == 1 for count in counts)
            or sum(max(count) for count in counts if count) != usage.get("completion_tokens")
        ):
            raise LossyError("not all tokens")
    for choice in every:
        if not is_chat:
            logprobs, text = choice.get("logprobs"), _text(choice, "text")
            if logprobs is not None and (
                logprobs.keys() != TEXT_LOGPROBS or None in logprobs["token_logprobs"]
            ):
                # a prompt's first token has none: the whole body tells of the prompt what the stream doesn't
                raise LossyError("logprobs of a prompt")
            if text is None or ("prompt_token_ids" in choice and "token_ids" not in choice):
                # an echo's prompt a whole body has only if asked for
                raise LossyError("no text, or an echo's prompt")
            choice["text"] = text
            continue
        said = choice["delta"]
        calls = _calls(said)
        for call in calls:
            if choice["finish_reason"] not in ENDED_WELL or not (call["id"] and call["type"]):
                raise LossyError("an unfinished call")
            # one whose arguments are no JSON is none
            orjson.loads(call["function"]["arguments"])
        # null where nothing but thoughts or calls came: the empty text of the first chunk is only its shape. vLLM 0.32 has null
        # there after thoughts and after calls that it chose to make, but an empty text for calls that it was told to make
        is_null = choice["finish_reason"] == "tool_calls" if calls else said.keys() & THOUGHTS
        told: Fields = {name: _text(said, name) for name in TEXTS if name in said}
        told["content"] = told.get("content") or (None if is_null else told.get("content"))
        told["role"] = _need(said.get("role"), str)
        if calls:
            told["tool_calls"] = calls
        choice["message"] = {n: told.get(n) for n in MESSAGE if n in told or n not in AS_SAID}
    shape, object_ = (
        (CHAT_CHOICE, "chat.completion") if is_chat else (TEXT_CHOICE, "text_completion")
    )
    known["object"] = object_
    known["choices"] = [{name: choice.get(name) for name in shape} for choice in every]
    known["usage"] = usage | {name: usage.get(name) for name in DETAILS}
    body = {n: known.get(n) for n in BODY if is_chat or n not in OF_CHAT}
    # a copy: it may be remembered, and what orjson wrote keeps the room it was written in, four to eight times as much (3.13.0)
    return bytes(memoryview(orjson.dumps(body)))


def _calls(said: Fields) -> list[Fields]:
    """The calls of tools in what a choice says, as a whole body has them."""
    calls = said.get("tool_calls", {})
    if sorted(calls) != [*range(len(calls))]:
        raise LossyError("index of a call")
    every = []
    for index in range(len(calls)):
        told = calls[index].get("function", {})
        function = {"name": _text(told, "name"), "arguments": _text(told, "arguments")}
        if not function["name"] or function["arguments"] is None:
            raise LossyError("a call without a name, or without arguments")
        every.append(
            {"id": calls[index].get("id"), "type": calls[index].get("type"), "function": function}
        )
    return every


# --- the events that the server would have streamed instead of a whole body ----------------------


def _chunks(known: Fields, *, is_chat: bool, usage: bool) -> Iterator[Fields]:
    """The chunks of a stream, the one with the usage only if it is wanted.

    A choice's role comes in one, and so do its thoughts, its text and its calls, in vLLM 0.32's shape: where its tokens were cut, and
    when each was made, a whole body doesn't tell, and nothing here invents it.
    """
    head = {name: known.get(name) for name in ("id", "object", "created", "model")}
    head["object"] = "chat.completion.chunk" if is_chat else "text_completion"
    # vLLM tells it once: with the usage, or else where a choice ends
    names = ("system_fingerprint", "service_tier")
    tail = {name: known[name] for name in names if known.get(name)}
    prompt = {name: known.get(name) for name in ("prompt_token_ids", "prompt_text")}
    nothing = {"logprobs": None, "finish_reason": None}
    for index, choice in enumerate(known["choices"] if is_chat else ()):
        role = _need(_need(choice.get("message"), dict).get("role"), str)
        first = {"index": index, "delta": {"role": role, "content": ""}} | nothing
        yield head | {"choices": [first]} | prompt
    for index, choice in enumerate(known["choices"]):
        if is_chat:
            said = choice["message"]
            calls = [
                {"id": call["id"], "type": call["type"], "index": number, **call}
                for number, call in enumerate(_calls(said))
            ]
            # in the order in which it is said; one that says nothing when there is nothing
            parts: list[Fields] = [
                {name: text for name in names if (text := _text(said, name))}
                for names in (THOUGHTS, ("content",), ("refusal",))
            ]
            parts.append({"tool_calls": calls} if calls else {})
            *deltas, choice["delta"] = [part for part in parts if part] or [{}]
            for delta in deltas:
                part = {"index": index, "delta": delta} | nothing | {"token_ids": None}
                yield head | {"choices": [part]}
        else:
            choice["text"] = _need(_text(choice, "text"), str)
        end = {name: choice.get(name) for name in (CHAT_END if is_chat else TEXT_END)}
        yield head | {"choices": [end]} | ({} if usage else tail)
    if usage:
        told_usage = _without_nulls(_need(known.get("usage"), dict))
        yield head | {"choices": [], "usage": told_usage} | tail


def _without_nulls(value: Any) -> Any:
    """As vLLM writes the usage of a stream."""
    if type(value) is not dict:
        return value
    return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}


# --- at a pace -----------------------------------------------------------------------------------


def paced(body: bytes, tokens_per_s: float) -> list[tuple[float, int]]:
    """When a stored stream is sent at so many tokens a second: (seconds after its start, bytes that may have been sent by then).

    No more than that have been sent at any time: the first token at once, and an event with several when its last one is due. An
    event without a token goes with the one before it.
    """
    ends = event_ends(body)
    reader = Completion(status=200, content_type="text/event-stream")
    tokens = [0] * len(ends)
    for number, (first, end) in enumerate(zip([0, *ends], ends, strict=False)):
        # the number of an event is its time: what was timed tells which event it was
        reader.feed(body[first:end], float(number))
        # of responses and messages each event has a name
        name = body[first:end].lstrip(b"\r\n").partition(b"\n")[0].strip()
        named = name.startswith(b"event:")
        tokens[number] = int(named and brings_token(name[6:].strip()))
    answer = reader.end(float(len(ends)))
    if answer.first_token_at is not None:
        tokens = [0] * len(ends)
        number = round(answer.first_token_at)
        tokens[number] = answer.first_chunk_tokens or 1
        for wait, count in answer.gaps:
            number += round(wait)
            tokens[number] = count
    steps: dict[float, int] = {}
    sent = 0
    for count, end in zip(tokens, ends, strict=True):
        sent += count
        steps[max(0, sent - 1) / tokens_per_s] = end
    return [*steps.items()]
