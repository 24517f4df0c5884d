"""Which bytes does vLLM 0.32.0 answer with? Shapes as recorded from it. No clock, no socket, no chance."""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Kind = Literal["chat", "text"]
"""Which endpoint's shape: `/v1/chat/completions` or `/v1/completions`."""

DONE = b"data: [DONE]\n\n"
JSON_TYPE = "application/json"
SSE_TYPE = "text/event-stream; charset=utf-8"
ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def json_bytes(value: Any) -> bytes:
    """Encode as vLLM does: no spaces, UTF-8 as it is; half a surrogate pair, which has no UTF-8, as `?`."""
    return _encode(value).encode(errors="replace")


def _event(value: Any) -> bytes:
    return b"data: " + json_bytes(value) + b"\n\n"


def _null(names: str) -> dict[str, Any]:
    return dict.fromkeys(names.split())


class Token(NamedTuple):
    """One token of a stream, as its chunk shows it."""

    piece: str
    output_tokens: int
    """Tokens said so far, this one included."""
    finish_reason: str | None = None
    """Set on the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFrame:
    """What stays the same through all bytes of one answer."""

    kind: Kind
    id: str
    """Starts with `chatcmpl-` or `cmpl-`."""
    created_s: int
    """Wall clock, whole seconds since 1970."""
    model: str
    fingerprint: str
    prompt_tokens: int

    def head(self, chat_object: str) -> dict[str, Any]:
        """What every body of it begins with."""
        kind = chat_object if self.kind == "chat" else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created_s, "model": self.model}

    def usage(self, output_tokens: int) -> dict[str, Any]:
        """The tokens so far."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + output_tokens,
            "completion_tokens": output_tokens,
        }


def whole(frame: AnswerFrame, text: str, finish_reason: str, output_tokens: int) -> bytes:
    """The one body of an answer that is not streamed."""
    choice: dict[str, Any] = {"index": 0}
    ended = {"logprobs": None, "finish_reason": finish_reason, "stop_reason": None}
    if frame.kind == "chat":
        nothing = _null("refusal annotations audio function_call reasoning")
        choice["message"] = {"role": "assistant", "content": text} | nothing
        choice |= ended | _null("token_ids routed_experts")
    else:
        choice["text"] = text
        choice |= ended | _null("token_ids prompt_logprobs prompt_token_ids routed_experts")
    details = _null("prompt_tokens_details completion_tokens_details")
    return json_bytes(
        frame.head("chat.completion")
        | {"choices": [choice], "service_tier": None, "system_fingerprint": frame.fingerprint}
        | {"usage": frame.usage(output_tokens) | details}
        | (_null("prompt_logprobs prompt_token_ids prompt_text") if frame.kind == "chat" else {})
        | _null("kv_transfer_params ec_transfer_params metrics")
    )


def opening(frame: AnswerFrame, *, with_usage: bool) -> bytes:
    """What a stream says before any token: a chat names the role, a text says nothing."""
    if frame.kind == "text":
        return b""
    choice = {"index": 0, "delta": {"role": "assistant", "content": ""}}
    return _event(
        frame.head("chat.completion.chunk")
        | {"choices": [choice | _null("logprobs finish_reason")]}
        | (_running_usage(frame, 0) if with_usage else {})
        | _null("prompt_token_ids prompt_text")
    )


def token_chunk(frame: AnswerFrame, token: Token, *, with_usage: bool, last_word: bool) -> bytes:
    """One chunk; `last_word` when no usage chunk follows, so that the last token carries the fingerprint."""
    if token.finish_reason is None and not with_usage:
        before, after = _around_text(frame)
        return before + json_bytes(token.piece) + after
    return _token_chunk(frame, token, with_usage=with_usage, last_word=last_word)


@functools.lru_cache(maxsize=1024)
def _around_text(frame: AnswerFrame) -> tuple[bytes, bytes]:
    """What stands before and after the text in most chunks of an answer: encoding it anew costs 4 us a token."""
    empty = _token_chunk(frame, Token("", 1), with_usage=False, last_word=False)
    before, _, after = empty.rpartition(b'""')
    return before, after


def _token_chunk(frame: AnswerFrame, token: Token, *, with_usage: bool, last_word: bool) -> bytes:
    ended = {"logprobs": None, "finish_reason": token.finish_reason}
    if frame.kind == "text":
        choice = {"index": 0, "text": token.piece} | ended
        choice |= _null("stop_reason prompt_token_ids token_ids")
    else:
        choice = {"index": 0, "delta": {"content": token.piece}} | ended
        choice |= _null("token_ids" if token.finish_reason is None else "stop_reason token_ids")
    ends = last_word and token.finish_reason is not None
    return _event(
        frame.head("chat.completion.chunk")
        | {"choices": [choice]}
        | (_running_usage(frame, token.output_tokens) if with_usage else {})
        | ({"system_fingerprint": frame.fingerprint} if ends else {})
    )


def _running_usage(frame: AnswerFrame, output_tokens: int) -> dict[str, Any]:
    """Usage so far, for `continuous_usage_stats`; a chat's has one key more than the final one."""
    more = _null("completion_tokens_details") if frame.kind == "chat" else {}
    return {"usage": frame.usage(output_tokens) | more}


def usage_chunk(frame: AnswerFrame, output_tokens: int) -> bytes:
    """The chunk without a choice that `include_usage` asks for."""
    return _event(
        frame.head("chat.completion.chunk")
        | {"choices": [], "usage": frame.usage(output_tokens)}
        | {"system_fingerprint": frame.fingerprint}
    )


def _error(status: int, kind: str, message: str, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def error(status: int, kind: str, message: str, param: str | None = None) -> bytes:
    """The usual error body."""
    return json_bytes(_error(status, kind, message, param))


def internal_error(message: str = ENGINE_DEAD) -> bytes:
    """What an answer that is not streamed says when the engine fails under it: status 500."""
    return error(500, "InternalServerError", message)


def stream_error(message: str = ENGINE_DEAD) -> bytes:
    """How a stream that began with status 200 says that it failed; `[DONE]` follows even then.

    The one body that vLLM writes with Python's default separators.
    """
    return f"data: {json.dumps(_error(500, 'InternalServerError', message))}\n\n".encode() + DONE


UNAUTHORIZED = json_bytes({"error": "Unauthorized"})
NOT_FOUND = json_bytes({"detail": "Not Found"})
METHOD_NOT_ALLOWED = json_bytes({"detail": "Method Not Allowed"})
TOO_LARGE = json_bytes({"detail": "Request Entity Too Large"})


def models(name: str, root: str, max_model_len: int, now_s: int, permission_id: str) -> bytes:
    """`/v1/models`: `created` is the time of the request, not of the start."""
    permission = {
        "id": f"modelperm-{permission_id}",
        "object": "model_permission",
        "created": now_s,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    card = {
        "id": name,
        "object": "model",
        "created": now_s,
        "owned_by": "vllm",
        "root": root,
        "parent": None,
        "max_model_len": max_model_len,
        "permission": [permission],
    }
    return json_bytes({"object": "list", "data": [card]})


def tokenized(ids: tuple[int, ...], max_model_len: int) -> bytes:
    """`/tokenize`: it shows max_model_len to anybody, with or without a key."""
    answer = {"count": len(ids), "max_model_len": max_model_len, "tokens": ids, "token_strs": None}
    return json_bytes(answer)


def openapi(routes: Mapping[str, tuple[str, ...]]) -> bytes:
    """`/openapi.json`, reduced to what a visitor reads from it: which routes there are."""
    paths: dict[str, dict[str, Any]] = {
        path: {each.lower(): {} for each in methods} for path, methods in routes.items()
    }
    info = {"title": "FastAPI", "version": "0.1.0"}
    return json_bytes({"openapi": "3.1.0", "info": info, "paths": paths})
