"""A local OpenAI-style server whose every token says when it was sent: what `selftest` checks the clock against.

    python -m toolkit.bench.stamped --port 0        prints its URL; loopback only

It touches clock and network. It runs no model, and it never waits for a client: tokens are due at absolute
times, `received + ttft + k * interval`. `time.monotonic_ns` is one clock for all processes of a Linux machine, so a
token's stamp can be held against the moment at which a client says it read it.

    POST /v1/chat/completions     a stream of `RECEIVED/SENT SENT SENT ...`, a token each, nanoseconds of the server's clock
    GET  /v1/models /health       what a tool wants to see before it starts

Chunks are vLLM's, about 300 bytes, so that reading them costs what reading an engine's costs.
"""

import argparse
import asyncio
import gc
import heapq
import math
import os
import signal
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

import httptools
import orjson
import uvloop

MODEL = "stamped"
MOST_TOKENS = 1_000_000
"""Of an answer: a client that asks for more gets so many."""
MAX_REQUEST_BYTES = 16 * 2**20
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_CHUNK = {
    "id": "chatcmpl-0000000000000000",
    "object": "chat.completion.chunk",
    "created": int(time.time()),
    "model": MODEL,
}
_STAMP = "#" * 19
"""Where a stamp goes; it has 19 digits whatever the uptime, so that a chunk is made once and its length stays right."""


def _event(data: bytes) -> bytes:
    return b"%x\r\ndata: %b\n\n\r\n" % (len(data) + 8, data)


def _around(content: str, finish: str | None = None, **delta: str) -> list[bytes]:
    """A token's chunk, laid out as vLLM writes it, in the parts around its stamps."""
    rest = {"logprobs": None, "finish_reason": finish, "stop_reason": None}
    choice = {"index": 0, "delta": delta | {"content": content}, **rest, "token_ids": None}
    return _event(orjson.dumps(_CHUNK | {"choices": [choice]})).split(_STAMP.encode())


def _opening(finish: str | None) -> list[bytes]:
    """What comes with the first token: the head, and the first chunk of a chat, which holds no token yet."""
    role, first = _around("", role="assistant"), _around(f"{_STAMP}/{_STAMP} ", finish)
    return [b"".join((_STREAM_HEAD, *role, first[0])), *first[1:]]


_FIRST, _MIDDLE = _opening(None), _around(f"{_STAMP} ")
_ONLY, _LAST = _opening("length"), _around(f"{_STAMP} ", "length")
_MODEL_CARD = {
    "id": MODEL,
    "object": "model",
    "created": 0,
    "owned_by": "toolkit",
    "root": MODEL,
    "max_model_len": 131_072,
}
PAGES: dict[str, Callable[[], dict[str, Any]]] = {
    "GET /v1/models": lambda: {"object": "list", "data": [_MODEL_CARD]},
    "GET /health": dict,
}
"""What a tool wants to see before it starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPace:
    """How fast tokens come."""

    ttft_ms: float = 50.0
    interval_ms: float = 10.0
    """Between two tokens; 0: as fast as the client reads."""
    tokens: int = 100
    """Of an answer whose request names no `max_tokens`."""


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


class Ticker:
    """Sends what is due, from one timer for all streams: one timer each would cost more than their tokens."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due: list[tuple[int, int, _Connection]] = []
        self._numbers = count()
        self._armed_ns: int | None = None
        self._timer: asyncio.Handle | None = None

    def add(self, due_ns: int, connection: "_Connection") -> None:
        """Let a connection send a token at this moment, and again when it says so."""
        heapq.heappush(self._due, (due_ns, next(self._numbers), connection))
        if self._armed_ns is None or due_ns < self._armed_ns:
            self._arm()

    def _arm(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._armed_ns = self._due[0][0] if self._due else None
        if self._armed_ns is None:
            self._timer = None
            return
        # libuv counts whole milliseconds: rounding down would make the loop spin through the last one
        wait_ms = math.ceil((self._armed_ns - time.monotonic_ns()) / 1e6)
        if wait_ms > 0:
            self._timer = self._loop.call_later(wait_ms / 1000, self._tick)
        else:
            self._timer = self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        # what becomes due meanwhile waits for the next turn, or a slow turn would read no request; it is due after
        # `now`, so the connection that sends stays the first of the heap while it does
        due, now = self._due, time.monotonic_ns()
        while due and due[0][0] <= now:
            due_ns, number, connection = due[0]
            next_ns = connection.send_token(due_ns)
            if next_ns is None:
                heapq.heappop(due)
            else:
                heapq.heapreplace(due, (next_ns, number, connection))
        self._arm()


class _Connection(asyncio.Protocol):
    """One connection, one request at a time. The methods `on_...` are the parser's, which calls them while it is fed."""

    def __init__(self, pace: TokenPace, ticker: Ticker) -> None:
        self.received_ns = 0
        """When the last byte of the request came."""
        self.left = 0
        """Tokens of its answer that are still to be sent."""
        self._pace, self._ticker = pace, ticker
        self._interval_ns = round(pace.interval_ms * 1e6)
        self._tokens, self._end = 0, b""
        self._paused_ns: int | None = None
        """The client does not keep up: the token that was due then waits until it reads."""
        self._is_paused = False
        self._parser = httptools.HttpRequestParser(self)
        self._path, self._body, self._size = b"", bytearray(), 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)
        self._socket: int = transport.get_extra_info("socket").fileno()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's signature)
        self.left = 0

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._paused_ns is not None:
            self._ticker.add(self._paused_ns, self)
            self._paused_ns = None

    def data_received(self, data: bytes) -> None:
        self._read_ns = time.monotonic_ns()
        self._size += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._refuse("400 Bad Request", str(error))
            self._transport.close()
        if self._size > MAX_REQUEST_BYTES:
            self._refuse("413 Content Too Large", "a request has up to 16 MiB")
            self._transport.close()

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        path = self._path.decode("latin-1").partition("?")[0]
        what, body = f"{self._parser.get_method().decode()} {path}", bytes(self._body)
        self._path, self._body, self._size = b"", bytearray(), 0
        if self.left:
            self._transport.close()  # a client that does not wait for its answer is none of ours
        elif what == "POST /v1/chat/completions":
            try:
                self._begin(body)
            except ValueError as error:
                self._refuse("400 Bad Request", str(error))
        elif what in PAGES:
            self._send_page("200 OK", PAGES[what]())
        else:
            self._refuse("404 Not Found", f"no `{what}` here")

    def _begin(self, body: bytes) -> None:
        """Read a request and have its answer sent; ValueError when it is none for a stream."""
        asked = orjson.loads(body)
        if not isinstance(asked, dict) or not asked.get("stream"):
            raise ValueError("the body is no JSON object that asks for a stream")
        tokens = asked.get("max_completion_tokens") or asked.get("max_tokens") or self._pace.tokens
        if not isinstance(tokens, int) or tokens < 1:
            raise ValueError("`max_tokens` is no positive number")
        tokens = min(tokens, MOST_TOKENS)
        end = _event(b"[DONE]") + b"0\r\n\r\n"
        options = asked.get("stream_options")
        if isinstance(options, dict) and options.get("include_usage"):
            prompt = max(1, len(body) // 4)  # no tokenizer here: about 4 characters a token
            usage = {"prompt_tokens": prompt, "completion_tokens": tokens}
            usage["total_tokens"] = prompt + tokens
            end = _event(orjson.dumps(_CHUNK | {"choices": [], "usage": usage})) + end
        self.received_ns, self.left, self._tokens, self._end = self._read_ns, tokens, tokens, end
        self._ticker.add(self.received_ns + round(self._pace.ttft_ms * 1e6), self)

    def send_token(self, due_ns: int) -> int | None:
        """Send the token that is due; when the next one is, None when no timer shall call."""
        if not self.left:
            return None  # the client left
        if self._is_paused:
            self._paused_ns = due_ns
            return None
        sent_ns = time.monotonic_ns()
        if self.left == self._tokens:
            before, between, after = _ONLY if self.left == 1 else _FIRST
            data = b"%b%019d%b%019d%b" % (before, self.received_ns, between, sent_ns, after)
        else:
            before, after = _LAST if self.left == 1 else _MIDDLE
            data = b"%b%019d%b" % (before, sent_ns, after)
        self.left -= 1
        if not self.left:
            self._send(data + self._end)
            return None
        self._send(data)
        return due_ns + self._interval_ns if self._interval_ns else sent_ns + 1

    def _send(self, data: bytes) -> None:
        """Hand bytes to the socket now: uvloop would do so after this turn's other tokens, and the stamp would lie."""
        if not self._transport.get_write_buffer_size():
            try:
                sent = os.write(self._socket, data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # the client left: connection_lost comes next
            if sent == len(data):
                return
            data = data[sent:]
        self._transport.write(data)

    def _send_page(self, status: str, page: dict[str, Any]) -> None:
        data = orjson.dumps(page)
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        self._send(head.encode() + data)

    def _refuse(self, status: str, message: str) -> None:
        """Answer with an error as OpenAI's API and vLLM write it."""
        error = {"message": message, "type": "BadRequestError", "param": None}
        self._send_page(status, {"error": error | {"code": int(status[:3])}})


async def serve(pace: TokenPace, port: int) -> None:
    """Print the URL when listening; stay until the parent, who holds standard input, is gone."""
    loop = asyncio.get_running_loop()
    ticker = Ticker()
    server = await loop.create_server(
        lambda: _Connection(pace, ticker), "127.0.0.1", port, backlog=4096
    )
    gone = asyncio.Event()
    if stat.S_ISFIFO(os.fstat(0).st_mode):
        loop.add_reader(0, lambda: gone.set() if not os.read(0, 4096) else None)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    gc.collect()
    gc.freeze()
    await gone.wait()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m toolkit.bench.stamped", description=__doc__)
    usual = TokenPace()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft-ms", type=float, default=usual.ttft_ms)
    parser.add_argument("--interval-ms", type=float, default=usual.interval_ms)
    parser.add_argument("--tokens", type=int, default=usual.tokens)
    words = parser.parse_args()
    if words.ttft_ms < 0 or words.interval_ms < 0 or words.tokens < 1:
        parser.error("times are not negative, and an answer has a token")
    # a Ctrl-C meant for the parent prints no traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    pace = TokenPace(ttft_ms=words.ttft_ms, interval_ms=words.interval_ms, tokens=words.tokens)
    uvloop.run(serve(pace, words.port))


if __name__ == "__main__":
    main()
