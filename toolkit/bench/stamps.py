"""What a stamped answer is made of, and how its stamps are read: bytes only. No clock, no socket: `stamped` sends them.

Texts are `RECEIVED/SENT SENT SENT ...`, a token each, nanoseconds of the server's clock. Chunks are vLLM's, about
300 bytes, so that reading them costs what reading an engine's costs.
"""

from dataclasses import dataclass
from typing import Any

import orjson

MODEL = "stamped"
MOST_TOKENS = 1_000_000
"""Of an answer: a client that asks for more gets so many."""
_DIGITS = 19
"""Of a stamp, whatever the uptime: equal lengths let a chunk be made once and stamped by two joins."""
_STAMP = "#" * _DIGITS


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPace:
    """How fast tokens come."""

    ttft_ms: float = 50.0
    interval_ms: float = 10.0
    """Between two tokens; 0: as fast as the client reads."""
    tokens: int = 100
    """Of an answer whose request names no `max_tokens`."""


@dataclass(slots=True, kw_only=True)
class Truth:
    """One answered request by the server's own clock, nanoseconds of `time.monotonic_ns`."""

    id: str
    """The answer's `id`."""
    stream: bool
    received_ns: int
    """When the request was read to its last byte."""
    first_sent_ns: int | None = None
    """When the first token was handed to the socket; of a whole answer, when the answer was."""
    last_sent_ns: int | None = None
    tokens: int = 0
    """Sent so far."""
    complete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamps:
    """What an answer's text says, nanoseconds of `time.monotonic_ns`."""

    received_ns: int
    sent_ns: tuple[int, ...]
    """Of each token."""


def read_stamps(text: str) -> Stamps:
    """Read an answer's text, `RECEIVED/SENT SENT SENT ...`; ValueError when it is no stamped one."""
    first, *rest = text.split()
    received, _, sent = first.partition("/")
    return Stamps(received_ns=int(received), sent_ns=(int(sent), *map(int, rest)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What one request asks for."""

    chat: bool
    stream: bool
    tokens: int
    usage: bool
    prompt_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StampedScript:
    """The bytes of one streamed answer around its stamps."""

    opening: tuple[bytes, bytes, bytes]
    """Up to the first token's two stamps: headers, role chunk and all; between and after them."""
    middle: tuple[bytes, bytes]
    last: tuple[bytes, bytes]
    """As `middle`, with the finish reason."""
    closing: bytes
    """After the last token: usage, `[DONE]`."""

    def first(self, received_ns: int, sent_ns: int) -> bytes:
        """The first token and all that comes before it."""
        before, between, after = self.opening
        return b"%b%019d%b%019d%b" % (before, received_ns, between, sent_ns, after)

    def token(self, sent_ns: int, *, is_last: bool) -> bytes:
        """Any later token; what closes the answer is still to follow."""
        head, tail = self.last if is_last else self.middle
        return b"%b%019d%b" % (head, sent_ns, tail)


def wanted(body: bytes, *, chat: bool, pace: TokenPace) -> Want:
    """Read a request; ValueError when it is no JSON object."""
    asked = orjson.loads(body)
    if not isinstance(asked, dict):
        raise ValueError("the body is no JSON object")  # noqa: TRY004 (orjson's fault is a ValueError, too)
    tokens = asked.get("max_completion_tokens") or asked.get("max_tokens") or pace.tokens
    if not isinstance(tokens, int) or tokens < 1:
        raise ValueError("`max_tokens` is no positive number")
    options = asked.get("stream_options")
    return Want(
        chat=chat,
        stream=bool(asked.get("stream")),
        tokens=min(tokens, MOST_TOKENS),
        usage=isinstance(options, dict) and bool(options.get("include_usage")),
        prompt_tokens=max(1, len(body) // 4),  # no tokenizer here: about 4 characters a token
    )


def script(want: Want, answer_id: str, created: int) -> StampedScript:
    """Lay out the chunks as vLLM writes them."""
    base = {
        "id": answer_id,
        "object": "chat.completion.chunk" if want.chat else "text_completion",
        "created": created,
        "model": MODEL,
    }
    finish = "length" if want.tokens == 1 else None
    first = _http_chunk(_event(base, want, f"{_STAMP}/{_STAMP} ", finish))
    before, between, after = _around_stamps(_STREAM_HEAD + _role(base, want) + first)
    head, tail = _around_stamps(_http_chunk(_event(base, want, f"{_STAMP} ", None)))
    last_head, last_tail = _around_stamps(_http_chunk(_event(base, want, f"{_STAMP} ", "length")))
    usage = _http_chunk(_line(base | {"choices": [], "usage": _usage(want)}))
    return StampedScript(
        opening=(before, between, after),
        middle=(head, tail),
        last=(last_head, last_tail),
        closing=usage * want.usage + _http_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n",
    )


def _around_stamps(data: bytes) -> list[bytes]:
    return data.split(_STAMP.encode())


def _role(base: dict[str, Any], want: Want) -> bytes:
    """The first chunk of a chat as vLLM sends it, which holds no token yet."""
    if not want.chat:
        return b""
    delta = {"role": "assistant", "content": ""}
    return _http_chunk(_line(base | {"choices": [_choice({"delta": delta}, None)]}))


def _event(base: dict[str, Any], want: Want, said: str, finish: str | None) -> bytes:
    content = {"delta": {"content": said}} if want.chat else {"text": said}
    return _line(base | {"choices": [_choice(content, finish)]})


def _choice(content: dict[str, Any], finish: str | None) -> dict[str, Any]:
    rest = {"logprobs": None, "finish_reason": finish, "stop_reason": None, "token_ids": None}
    return {"index": 0, **content, **rest}


def _line(event: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(event) + b"\n\n"


def _http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _usage(want: Want) -> dict[str, int]:
    return {
        "prompt_tokens": want.prompt_tokens,
        "completion_tokens": want.tokens,
        "total_tokens": want.prompt_tokens + want.tokens,
    }


def whole_answer(want: Want, answer_id: str, created: int, stamps_ns: tuple[int, int]) -> bytes:
    """An answer that was not to be streamed; the stamps are when it was received and sent."""
    said = "/".join(f"{stamp:0{_DIGITS}}" for stamp in stamps_ns)
    content = {"message": {"role": "assistant", "content": said}} if want.chat else {"text": said}
    return page(
        orjson.dumps(
            {
                "id": answer_id,
                "object": "chat.completion" if want.chat else "text_completion",
                "created": created,
                "model": MODEL,
                "choices": [_choice(content, "length")],
                "usage": _usage(want),
            }
        )
    )


def page(body: bytes, status: str = "200 OK", kind: str = "application/json") -> bytes:
    """An HTTP answer of known length."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def refusal(status: str, message: str) -> bytes:
    """An error as OpenAI's API and vLLM tell it."""
    error = {"message": message, "type": "BadRequestError", "param": None, "code": int(status[:3])}
    return page(orjson.dumps({"error": error}), status)


_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
