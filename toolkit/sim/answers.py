"""Which bytes does vLLM 0.32.0 answer with? Shapes as recorded from it. No clock, no socket, no chance."""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["chat", "text"]
"""Which endpoint's shape: `/v1/chat/completions` or `/v1/completions`."""

DONE = b"data: [DONE]\n\n"
JSON_TYPE = "application/json"
SSE_TYPE = "text/event-stream; charset=utf-8"
ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What stays the same through all bytes of one answer."""

    kind: Kind
    id: str
    """Starts with `chatcmpl-` or `cmpl-`."""
    created_s: int
    """Wall clock, whole seconds since 1970."""
    model: str
    fingerprint: str
    prompt_tokens: int


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def json_bytes(value: Any) -> bytes:
    """Encode as vLLM does: no spaces, UTF-8 as it is; half a surrogate pair, which has no UTF-8, as `?`."""
    return _encode(value).encode(errors="replace")


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + json_bytes(value) + b"\n\n"


def whole(reply: Reply, text: str, finish_reason: str, output_tokens: int) -> bytes:
    """The one body of an answer that is not streamed."""
    choice, tail = (
        (_chat_choice(text, finish_reason), _PROMPT_TAIL | _TRANSFER_TAIL)
        if reply.kind == "chat"
        else (_text_choice(text, finish_reason), _TRANSFER_TAIL)
    )
    usage = _usage(reply, output_tokens) | {
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }
    return json_bytes(
        _head(reply, "chat.completion" if reply.kind == "chat" else "text_completion")
        | {"choices": [choice], "service_tier": None, "system_fingerprint": reply.fingerprint}
        | {"usage": usage}
        | tail
    )


def opening(reply: Reply, *, with_usage: bool) -> bytes:
    """What a stream says before any token: a chat names the role, a text says nothing."""
    if reply.kind == "text":
        return b""
    choice = {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    return event(
        _chunk_head(reply)
        | {"choices": [choice]}
        | _running_usage(reply, 0, wanted=with_usage)
        | {"prompt_token_ids": None, "prompt_text": None}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token of a stream, as its chunk tells it."""

    piece: str
    count: int
    """Tokens said so far, this one included."""
    finish_reason: str | None = None
    """Set on the last one."""


def token_chunk(reply: Reply, token: Token, *, with_usage: bool, last_word: bool) -> bytes:
    """One chunk; `last_word` when no usage chunk follows, so that the last token carries the fingerprint."""
    if token.finish_reason is None and not with_usage:
        before, after = _frame(reply)
        return before + json_bytes(token.piece) + after
    return _token_chunk(reply, token, with_usage=with_usage, last_word=last_word)


@functools.lru_cache(maxsize=1024)
def _frame(reply: Reply) -> tuple[bytes, bytes]:
    """What stands before and after the text in most chunks of an answer: encoding it anew costs 4 us a token."""
    empty = _token_chunk(reply, Token(piece="", count=1), with_usage=False, last_word=False)
    before, _, after = empty.rpartition(b'""')
    return before, after


def _token_chunk(reply: Reply, token: Token, *, with_usage: bool, last_word: bool) -> bytes:
    choice = _chat_delta(token) if reply.kind == "chat" else _text_delta(token)
    ends = last_word and token.finish_reason is not None
    return event(
        _chunk_head(reply)
        | {"choices": [choice]}
        | _running_usage(reply, token.count, wanted=with_usage)
        | ({"system_fingerprint": reply.fingerprint} if ends else {})
    )


def usage_chunk(reply: Reply, output_tokens: int) -> bytes:
    """The chunk without a choice that `include_usage` asks for."""
    return event(
        _chunk_head(reply)
        | {"choices": [], "usage": _usage(reply, output_tokens)}
        | {"system_fingerprint": reply.fingerprint}
    )


def stream_error(message: str = ENGINE_DEAD) -> bytes:
    """How a stream that began with status 200 says that it failed; `[DONE]` follows even then.

    The one body that vLLM writes with Python's default separators.
    """
    return f"data: {json.dumps(_error(500, 'InternalServerError', message))}\n\n".encode()


def error(status: int, kind: str, message: str, param: str | None = None) -> bytes:
    """The usual error body."""
    return json_bytes(_error(status, kind, message, param))


def internal_error(message: str = ENGINE_DEAD) -> bytes:
    """What an answer that is not streamed says when the engine fails under it: status 500."""
    return error(500, "InternalServerError", message)


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
    """`/tokenize`: it tells max_model_len to anybody, with or without a key."""
    answer = {"count": len(ids), "max_model_len": max_model_len, "tokens": ids, "token_strs": None}
    return json_bytes(answer)


def openapi(routes: Mapping[str, tuple[str, ...]]) -> bytes:
    """`/openapi.json`, reduced to what a visitor reads from it: which routes there are."""
    nothing: dict[str, Any] = {}
    paths = {path: {each.lower(): nothing for each in methods} for path, methods in routes.items()}
    info = {"title": "FastAPI", "version": "0.1.0"}
    return json_bytes({"openapi": "3.1.0", "info": info, "paths": paths})


_PROMPT_TAIL = {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
_TRANSFER_TAIL = {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}


def _head(reply: Reply, name: str) -> dict[str, Any]:
    return {"id": reply.id, "object": name, "created": reply.created_s, "model": reply.model}


def _chunk_head(reply: Reply) -> dict[str, Any]:
    return _head(reply, "chat.completion.chunk" if reply.kind == "chat" else "text_completion")


def _usage(reply: Reply, output_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "total_tokens": reply.prompt_tokens + output_tokens,
        "completion_tokens": output_tokens,
    }


def _running_usage(reply: Reply, output_tokens: int, *, wanted: bool) -> dict[str, Any]:
    """Usage so far, for `continuous_usage_stats`; a chat's has one key more than the final one."""
    if not wanted:
        return {}
    more = {"completion_tokens_details": None} if reply.kind == "chat" else {}
    return {"usage": _usage(reply, output_tokens) | more}


def _chat_choice(text: str, finish_reason: str) -> dict[str, Any]:
    message = {
        "role": "assistant",
        "content": text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }
    return {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": finish_reason,
        "stop_reason": None,
        "token_ids": None,
        "routed_experts": None,
    }


def _text_choice(text: str, finish_reason: str) -> dict[str, Any]:
    return {
        "index": 0,
        "text": text,
        "logprobs": None,
        "finish_reason": finish_reason,
        "stop_reason": None,
        "token_ids": None,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "routed_experts": None,
    }


def _chat_delta(token: Token) -> dict[str, Any]:
    """`stop_reason` stands only in the last chunk, before `token_ids`."""
    choice = {"index": 0, "delta": {"content": token.piece}, "logprobs": None}
    if token.finish_reason is None:
        return choice | {"finish_reason": None, "token_ids": None}
    return choice | {"finish_reason": token.finish_reason, "stop_reason": None, "token_ids": None}


def _text_delta(token: Token) -> dict[str, Any]:
    return {
        "index": 0,
        "text": token.piece,
        "logprobs": None,
        "finish_reason": token.finish_reason,
        "stop_reason": None,
        "prompt_token_ids": None,
        "token_ids": None,
    }


def _error(status: int, kind: str, message: str, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}
