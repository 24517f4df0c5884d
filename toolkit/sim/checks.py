"""Is this request one that vLLM 0.32.0 would take? Body bytes in, an Ask or a Refusal out.

Messages as recorded, or, where no recording has them, as vLLM's sources word them. No clock, no socket.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

from toolkit.sim.answers import Kind, error
from toolkit.sim.tokens import VOCABULARY, chat_ids, token_ids

MOST_DIGITS = 20
"""Of a number in a string: none that means tokens has more."""
DEFAULT_TEXT_TOKENS = 16
"""`max_tokens` of `/v1/completions` when the client gives none; a chat may fill the model's length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why not: a status and a body ready to send."""

    status: int
    body: bytes


class RefusedError(ValueError):
    """Carries a Refusal up to the front of this module."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(body.decode())
        self.refusal = Refusal(status=status, body=body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a server checks a request against."""

    model: str
    max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request for text that stands."""

    kind: Kind
    prompt_ids: tuple[int, ...]
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    temperature: float
    """1.0 when the client names none, as vLLM has it."""
    seed: int | None
    stream: bool
    include_usage: bool
    continuous_usage: bool
    cache_key: str
    """Equal for requests that must get an equal answer; streamed or not makes no difference."""


def read_ask(body: bytes, content_type: str, kind: Kind | None, limits: Limits) -> Ask | Refusal:
    """Check a request for text; a `kind` of None takes either, by its fields, as `/invocations` does."""
    try:
        fields = _object(body, content_type)
        if kind is None:
            kind = "chat" if "messages" in fields or "prompt" not in fields else "text"
        return _ask(fields, kind, limits)
    except RefusedError as refused:
        return refused.refusal
    except RecursionError:  # thousands of brackets inside each other
        return _json_invalid(0, "Expecting value").refusal


def read_tokenize(body: bytes, content_type: str, limits: Limits) -> tuple[int, ...] | Refusal:
    """Check a request to `/tokenize`: a prompt or messages."""
    try:
        fields = _object(body, content_type)
        _known_model(fields, limits)
        return _prompt_ids(fields, "chat" if "messages" in fields else "text")
    except RefusedError as refused:
        return refused.refusal
    except RecursionError:
        return _json_invalid(0, "Expecting value").refusal


def may_enter(
    path: str, authorization: str | None, key: str | None, prefixes: tuple[str, ...]
) -> bool:
    """The API-key rule: only these path prefixes are guarded, everything else is open."""
    if key is None or not path.startswith(prefixes):
        return True
    scheme, _, given = (authorization or "").partition(" ")
    return scheme.lower() == "bearer" and given == key


def _ask(fields: dict[str, Any], kind: Kind, limits: Limits) -> Ask:
    _something_to_say(fields, kind)
    _known_model(fields, limits)
    stream = _flag(fields, "stream")
    options = _stream_options(fields, stream=stream)
    if kind == "chat" and fields["messages"] == []:
        message = (
            "Cannot apply chat template to an empty conversation. Provide at least one message."
        )
        raise RefusedError(400, error(400, "BadRequestError", message))
    limit = _output_limit(fields, kind, limits)
    prompt_ids = _prompt_ids(fields, kind)
    if not prompt_ids:
        raise _bad("prompt", "", "The decoder prompt cannot be empty.")
    max_tokens = _room(len(prompt_ids), limit, limits.max_model_len)
    _one_choice(fields)
    _check_top_p(fields)
    return Ask(
        kind=kind,
        prompt_ids=prompt_ids,
        max_tokens=max_tokens,
        min_tokens=_min_tokens(fields, max_tokens),
        ignore_eos=_flag(fields, "ignore_eos"),
        temperature=_temperature(fields),
        seed=_integer(fields, "seed"),
        stream=stream,
        include_usage=_flag(options, "include_usage"),
        continuous_usage=_flag(options, "continuous_usage_stats"),
        cache_key=_cache_key(fields, kind),
    )


def _object(body: bytes, content_type: str) -> dict[str, Any]:
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise _schema("Unsupported Media Type: Only 'application/json' is allowed")
    try:
        value = json.loads(body)
    except json.JSONDecodeError as cause:
        raise _json_invalid(cause.pos, cause.msg) from cause
    except ValueError as cause:  # not UTF-8, or a number of more than 4,300 digits
        raise _json_invalid(0, "Expecting value") from cause
    if not isinstance(value, dict):
        raise _invalid("model_attributes_type", "body", "Input should be a valid dictionary", value)
    return value


def _json_invalid(position: int, message: str) -> RefusedError:
    """The input is told as an empty dict, whatever it was."""
    where = f"body.{position}"
    detail = {
        "type": "json_invalid",
        "loc": where,
        "msg": "JSON decode error",
        "input": _summary({}),
        "ctx": {"error": message},
    }
    return _schema(str(detail), where)


def _invalid(kind: str, where: str, message: str, value: object) -> RefusedError:
    """Word a schema error as pydantic does; the detail is a Python dict's text, not JSON."""
    detail = {"type": kind, "loc": where, "msg": message, "input": _summary(value)}
    return _schema(str(detail), where)


def _schema(detail: str, where: str | None = None) -> RefusedError:
    body = error(400, "Bad Request", f"1 validation error:\n  {detail}", where)
    return RefusedError(400, body)


def _summary(value: object) -> object:
    """How vLLM tells an input without repeating it: `<dict of 2 items>`."""
    if isinstance(value, dict | list):
        return f"<{type(value).__name__} of {len(value)} items>"
    return value


def _bad(name: str, value: object, message: str) -> RefusedError:
    text = f"{message} (parameter={name}, value={value})"
    return RefusedError(400, error(400, "BadRequestError", text, name))


def _bad_name(name: str, message: str) -> RefusedError:
    """A parameter that is wrong by being there, or by not being there: no value is told."""
    return RefusedError(400, error(400, "BadRequestError", f"{message} (parameter={name})", name))


def _something_to_say(fields: dict[str, Any], kind: Kind) -> None:
    if kind == "chat" and fields.get("messages") is None:
        raise _invalid("missing", "body.messages", "Field required", fields)
    if kind == "text" and fields.get("prompt") is None:
        raise _bad_name("prompt", "Either prompt or prompt_embeds must be provided and non-empty.")


def _known_model(fields: dict[str, Any], limits: Limits) -> None:
    """No model, or null, means the served one."""
    model = fields.get("model")
    if model not in (None, "", limits.model):
        message = f"The model `{model}` does not exist. Valid aliases: {limits.model}."
        raise RefusedError(404, error(404, "NotFoundError", message, "model"))


def _flag(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise _invalid("bool_type", f"body.{name}", "Input should be a valid boolean", value)
    return bool(value)


def _integer(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        return _integer_in(value, name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _invalid("int_type", f"body.{name}", "Input should be a valid integer", value)
    return value


def _integer_in(value: str, name: str) -> int:
    """Digits in a string are a number to pydantic."""
    if not (value.isascii() and value.isdigit() and len(value) < MOST_DIGITS):
        message = "Input should be a valid integer, unable to parse string as an integer"
        raise _invalid("int_parsing", f"body.{name}", message, value)
    return int(value)


def _stream_options(fields: dict[str, Any], *, stream: bool) -> dict[str, Any]:
    options = fields.get("stream_options")
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise _invalid(
            "model_type", "body.stream_options", "Input should be a valid dictionary", options
        )
    if not stream:
        raise _bad_name("stream_options", "Stream options can only be defined when `stream=True`.")
    return options


def _output_limit(fields: dict[str, Any], kind: Kind, limits: Limits) -> int | None:
    """What the client allows; `max_completion_tokens` comes first. None: up to the model's length."""
    name = "max_tokens"
    value = _integer(fields, "max_completion_tokens") if kind == "chat" else None
    if value is not None:
        name = "max_completion_tokens"
    else:
        value = _integer(fields, "max_tokens")
    if value is None:
        return None if kind == "chat" or "max_tokens" in fields else DEFAULT_TEXT_TOKENS
    if value < 1:
        raise _bad(name, value, f"{name} must be at least 1, got {value}.")
    if value > limits.max_model_len:
        message = (
            f"{name}={value} cannot be greater than max_model_len={limits.max_model_len}. "
            "Please request fewer output tokens."
        )
        raise _bad(name, value, message)
    return value


def _prompt_ids(fields: dict[str, Any], kind: Kind) -> tuple[int, ...]:
    if kind == "chat":
        return chat_ids(_messages(fields["messages"]))
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return token_ids(prompt)
    if isinstance(prompt, list) and prompt and all(type(each) is int for each in prompt):
        return _in_vocabulary(prompt)
    raise _invalid("string_type", "body.prompt", "Input should be a valid string", prompt)


def _in_vocabulary(ids: list[int]) -> tuple[int, ...]:
    for each in ids:
        if not 0 <= each < VOCABULARY:
            raise _bad("prompt", each, f"Token id {each} is out of vocabulary.")
    return tuple(ids)


def _messages(messages: object) -> list[tuple[str, str]]:
    if not isinstance(messages, list):
        raise _invalid("list_type", "body.messages", "Input should be a valid list", messages)
    return [_message(each, f"body.messages.{index}") for index, each in enumerate(messages)]


def _message(message: object, where: str) -> tuple[str, str]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise _invalid("missing", f"{where}.role", "Field required", message)
    return message["role"], _content(message.get("content"), f"{where}.content")


def _content(content: object, where: str) -> str:
    """Text, no text at all (a tool call), or a list of parts, of which only text is simulated."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        return "".join(str(part.get("text", "")) for part in content)
    raise _invalid("string_type", where, "Input should be a valid string", content)


def _room(prompt_tokens: int, limit: int | None, max_model_len: int) -> int:
    """How many tokens the answer may have; the client's wish must fit whole, as in vLLM."""
    allowed = max_model_len - (limit or 0)
    if prompt_tokens <= allowed and prompt_tokens < max_model_len:
        return limit or max_model_len - prompt_tokens
    # vLLM stops to count one token beyond what it allows: hence `at least`
    seen = min(prompt_tokens, allowed + 1)
    start = f"This model's maximum context length is {max_model_len} tokens. However, "
    if prompt_tokens >= max_model_len:
        seen = min(prompt_tokens, max_model_len + 1)
        message = (
            f"{start}your prompt contains at least {seen} input tokens, which exceeds this limit even "
            "without any output tokens. Please reduce the length of the input prompt."
        )
    else:
        message = (
            f"{start}you requested {limit} output tokens and your prompt contains at least {seen} input "
            f"tokens, for a total of at least {seen + (limit or 0)} tokens. Please reduce the length of "
            "the input prompt or the number of requested output tokens."
        )
    raise _bad("input_tokens", seen, message)


def _one_choice(fields: dict[str, Any]) -> None:
    n = _integer(fields, "n")
    if n not in (None, 1):
        raise _bad("n", n, f"n={n} is not simulated, only n=1.")


def _min_tokens(fields: dict[str, Any], max_tokens: int) -> int:
    value = _integer(fields, "min_tokens") or 0
    if value < 0:
        raise _bad(
            "min_tokens", value, f"min_tokens must be greater than or equal to 0, got {value}."
        )
    if value > max_tokens:
        message = f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {value}."
        raise _bad("min_tokens", value, message)
    return value


def _temperature(fields: dict[str, Any]) -> float:
    value = fields.get("temperature")
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _invalid("float_type", "body.temperature", "Input should be a valid number", value)
    if value < 0:
        message = f"temperature must be non-negative, got {_float(value)}."
        raise _bad("temperature", _float(value), message)
    return _float(value)


def _check_top_p(fields: dict[str, Any]) -> None:
    """The text is drawn without it, but a wrong one is refused as by the model."""
    value = fields.get("top_p")
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _invalid("float_type", "body.top_p", "Input should be a valid number", value)
    if not 0 < value <= 1:
        raise _bad("top_p", _float(value), f"top_p must be in (0, 1], got {_float(value)}.")


def _float(value: float) -> float:
    """JSON can hold integers that no float can."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _cache_key(fields: dict[str, Any], kind: Kind) -> str:
    same = {key: value for key, value in fields.items() if key not in ("stream", "stream_options")}
    return json.dumps([kind, same], sort_keys=True)
