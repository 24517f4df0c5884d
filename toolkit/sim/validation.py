"""Is this request one that vLLM 0.32.0 would take? Body bytes in, a TextRequest out, or Refused.

Types are pydantic's business, as in vLLM, whose refusals are pydantic's words; other messages are as recorded, or, where no
recording has them, as vLLM's sources have them. No clock, no socket.
"""

import json
from dataclasses import dataclass
from typing import Any, NoReturn

from pydantic import BaseModel, ValidationError

from toolkit.sim.answers import Kind, error
from toolkit.sim.presets import Setup
from toolkit.sim.text import VOCABULARY, chat_ids, token_ids

DEFAULT_TEXT_TOKENS = 16
"""`max_tokens` of `/v1/completions` when the client gives none; a chat may fill the model's length."""


class Refused(Exception):  # noqa: N818 (an answer, and no error of ours)
    """A status and a body ready to send."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = error(status, kind, message, param)


class _Message(BaseModel):
    role: str
    content: str | list[dict[str, Any]] | None = None
    """Text, no text at all (a tool call), or parts, of which only text is simulated."""


class _StreamOptions(BaseModel):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Fields(BaseModel):
    """What is read of a body; all else is taken and ignored."""

    model: str | None = None
    messages: list[_Message] | None = None
    prompt: Any = None
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = False
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """A request for text that stands."""

    kind: Kind
    prompt_ids: tuple[int, ...]
    max_tokens: int
    fields: Fields
    cache_key: str
    """Equal for requests that must get an equal answer; streamed or not makes no difference."""


def read_request(body: bytes, content_type: str, kind: Kind | None, setup: Setup) -> TextRequest:
    """Check a request for text; a `kind` of None takes either, by its fields, as `/invocations` does."""
    raw, fields = _read(body, content_type)
    if kind is None:
        kind = "chat" if "messages" in raw or "prompt" not in raw else "text"
    if kind == "chat" and fields.messages is None:
        _invalid("missing", "body.messages", "Field required", raw)
    if kind == "text" and fields.prompt is None:
        _bad("prompt", "Either prompt or prompt_embeds must be provided and non-empty.")
    _known_model(fields, setup)
    if fields.stream_options and not fields.stream:
        _bad("stream_options", "Stream options can only be defined when `stream=True`.")
    if kind == "chat" and not fields.messages:
        message = (
            "Cannot apply chat template to an empty conversation. Provide at least one message."
        )
        raise Refused(400, "BadRequestError", message)
    limit = _output_limit(fields, kind, setup.max_model_len)
    prompt_ids = _prompt_ids(fields, kind)
    if not prompt_ids:
        _bad("prompt", "The decoder prompt cannot be empty.", "")
    max_tokens = _room(len(prompt_ids), limit, setup.max_model_len)
    if fields.n not in (None, 1):
        _bad("n", f"n={fields.n} is not simulated, only n=1.", fields.n)
    if fields.top_p is not None and not 0 < fields.top_p <= 1:
        _bad("top_p", f"top_p must be in (0, 1], got {fields.top_p}.", fields.top_p)
    least = fields.min_tokens or 0
    if least < 0:
        _bad("min_tokens", f"min_tokens must be greater than or equal to 0, got {least}.", least)
    if least > max_tokens:
        message = f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {least}."
        _bad("min_tokens", message, least)
    if fields.temperature is not None and fields.temperature < 0:
        message = f"temperature must be non-negative, got {fields.temperature}."
        _bad("temperature", message, fields.temperature)
    same = {name: value for name, value in raw.items() if name not in ("stream", "stream_options")}
    return TextRequest(
        kind=kind,
        prompt_ids=prompt_ids,
        max_tokens=max_tokens,
        fields=fields,
        cache_key=json.dumps([kind, same], sort_keys=True),
    )


def read_tokenize(body: bytes, content_type: str, setup: Setup) -> tuple[int, ...]:
    """Check a request to `/tokenize`, a prompt or messages; their token ids."""
    _, fields = _read(body, content_type)
    _known_model(fields, setup)
    return _prompt_ids(fields, "text" if fields.messages is None else "chat")


def _read(body: bytes, content_type: str) -> tuple[dict[str, Any], Fields]:
    if content_type.partition(";")[0].strip().lower() != "application/json":
        _schema("Unsupported Media Type: Only 'application/json' is allowed")
    try:
        raw = json.loads(body)
    except json.JSONDecodeError as cause:
        _json_invalid(cause.pos, cause.msg)
    except (ValueError, RecursionError):  # not UTF-8, over 4,300 digits, or thousands of brackets
        _json_invalid(0, "Expecting value")
    if not isinstance(raw, dict):
        _invalid("model_attributes_type", "body", "Input should be a valid dictionary", raw)
    try:
        return raw, Fields.model_validate(raw)
    except ValidationError as cause:
        first = cause.errors()[0]
        where = ".".join(["body", *map(str, first["loc"])])
        _invalid(first["type"], where, first["msg"], first["input"])


def _json_invalid(position: int, message: str) -> NoReturn:
    """VLLM writes the input as an empty dict, whatever it was."""
    where = f"body.{position}"
    detail = {
        "type": "json_invalid",
        "loc": where,
        "msg": "JSON decode error",
        "input": "<dict of 0 items>",
        "ctx": {"error": message},
    }
    _schema(str(detail), where)


def _invalid(kind: str, where: str, message: str, value: object) -> NoReturn:
    """A schema error; the detail is a Python dict's text, not JSON."""
    if isinstance(value, dict | list):  # vLLM does not repeat it
        value = f"<{type(value).__name__} of {len(value)} items>"
    _schema(str({"type": kind, "loc": where, "msg": message, "input": value}), where)


def _schema(detail: str, where: str | None = None) -> NoReturn:
    raise Refused(400, "Bad Request", f"1 validation error:\n  {detail}", where)


def _bad(name: str, message: str, value: object = None) -> NoReturn:
    """A wrong parameter; one that is wrong by being there, or by not being there, has no value."""
    shown = "" if value is None else f", value={value}"
    raise Refused(400, "BadRequestError", f"{message} (parameter={name}{shown})", name)


def _known_model(fields: Fields, setup: Setup) -> None:
    """No model, or null, means the served one."""
    if fields.model not in (None, "", setup.model):
        message = f"The model `{fields.model}` does not exist. Valid aliases: {setup.model}."
        raise Refused(404, "NotFoundError", message, "model")


def _output_limit(fields: Fields, kind: Kind, max_model_len: int) -> int | None:
    """What the client allows; `max_completion_tokens` comes first. None: up to the model's length."""
    name, value = "max_tokens", fields.max_tokens
    if kind == "chat" and fields.max_completion_tokens is not None:
        name, value = "max_completion_tokens", fields.max_completion_tokens
    if value is None:
        given = "max_tokens" in fields.model_fields_set
        return None if kind == "chat" or given else DEFAULT_TEXT_TOKENS
    if value < 1:
        _bad(name, f"{name} must be at least 1, got {value}.", value)
    if value > max_model_len:
        message = (
            f"{name}={value} cannot be greater than max_model_len={max_model_len}. "
            "Please request fewer output tokens."
        )
        _bad(name, message, value)
    return value


def _prompt_ids(fields: Fields, kind: Kind) -> tuple[int, ...]:
    if kind == "chat":
        return chat_ids((each.role, _text(each.content)) for each in fields.messages or ())
    prompt = fields.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return token_ids(prompt)
    if not isinstance(prompt, list) or not prompt or any(type(each) is not int for each in prompt):
        _invalid("string_type", "body.prompt", "Input should be a valid string", prompt)
    for each in prompt:
        if not 0 <= each < VOCABULARY:
            _bad("prompt", f"Token id {each} is out of vocabulary.", each)
    return tuple(prompt)


def _text(content: str | list[dict[str, Any]] | None) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return content or ""


def _room(prompt_tokens: int, limit: int | None, max_model_len: int) -> int:
    """How many tokens the answer may have; the client's wish must fit whole, as in vLLM."""
    allowed = max_model_len - (limit or 0)
    if prompt_tokens <= allowed and prompt_tokens < max_model_len:
        return limit or max_model_len - prompt_tokens
    start = f"This model's maximum context length is {max_model_len} tokens. However, "
    # vLLM stops to count one token beyond what it allows: hence `at least`
    if prompt_tokens >= max_model_len:
        seen = min(prompt_tokens, max_model_len + 1)
        message = (
            f"{start}your prompt contains at least {seen} input tokens, which exceeds this limit even "
            "without any output tokens. Please reduce the length of the input prompt."
        )
    else:
        seen = min(prompt_tokens, allowed + 1)
        message = (
            f"{start}you requested {limit} output tokens and your prompt contains at least {seen} input "
            f"tokens, for a total of at least {seen + (limit or 0)} tokens. Please reduce the length of "
            "the input prompt or the number of requested output tokens."
        )
    _bad("input_tokens", message, seen)
