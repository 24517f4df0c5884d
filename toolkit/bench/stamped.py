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
from collections import deque
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
_DIGITS = 19
"""Of a stamp, whatever the uptime: equal lengths let a chunk be made once and stamped by two joins."""
_STAMP = "#" * _DIGITS
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


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
        self._due: list[tuple[int, int, StampedAnswer]] = []
        self._numbers = count()
        self._armed_ns: int | None = None
        self._timer: asyncio.Handle | None = None

    def add(self, due_ns: int, answer: "StampedAnswer") -> None:
        """Let an answer send at this moment, and again when it says so."""
        heapq.heappush(self._due, (due_ns, next(self._numbers), answer))
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
        # `now`, so the answer that sends stays the first of the heap while it does
        due, now = self._due, time.monotonic_ns()
        while due and due[0][0] <= now:
            due_ns, number, answer = due[0]
            next_ns = answer.send(due_ns)
            if next_ns is None:
                heapq.heappop(due)
            else:
                heapq.heapreplace(due, (next_ns, number, answer))
        self._arm()


class StampedAnswer:
    """One stream under way: the bytes around its stamps, laid out as vLLM writes them, and what is still to be sent."""

    def __init__(
        self,
        connection: "_Connection",
        *,
        answer_id: str,
        received_ns: int,
        tokens: int,
        interval_ns: int,
        usage: Any,
    ) -> None:
        """`usage` closes the stream, if it is asked for."""
        self.received_ns = received_ns
        self.left = tokens
        """Tokens still to be sent."""
        self._connection, self._interval_ns = connection, interval_ns
        self._has_begun = False
        base = {
            "id": answer_id,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": MODEL,
        }

        def chunk(delta: dict[str, str], finish: str | None) -> bytes:
            rest = {"logprobs": None, "finish_reason": finish, "stop_reason": None}
            choice = {"index": 0, "delta": delta, **rest, "token_ids": None}
            return _event(orjson.dumps(base | {"choices": [choice]}))

        first = chunk({"content": f"{_STAMP}/{_STAMP} "}, "length" if tokens == 1 else None)
        # the first chunk of a chat holds no token yet
        opening = _STREAM_HEAD + chunk({"role": "assistant", "content": ""}, None) + first
        stamp = _STAMP.encode()
        self._opening = opening.split(stamp)
        self._middle = chunk({"content": f"{_STAMP} "}, None).split(stamp)
        self._last = chunk({"content": f"{_STAMP} "}, "length").split(stamp)
        self._closing = (
            _event(orjson.dumps(base | {"choices": [], "usage": usage})) if usage else b""
        )
        self._closing += _event(b"[DONE]") + b"0\r\n\r\n"

    def send(self, due_ns: int) -> int | None:
        """Send the token that is due; when the next one is, None when no timer shall call."""
        connection = self._connection
        if connection.answer is not self:
            return None  # the client left
        if connection.paused:
            connection.waiting_ns = due_ns
            return None
        sent_ns = time.monotonic_ns()
        if self._has_begun:
            head, tail = self._last if self.left == 1 else self._middle
            data = b"%b%019d%b" % (head, sent_ns, tail)
        else:
            self._has_begun = True
            before, between, after = self._opening
            data = b"%b%019d%b%019d%b" % (before, self.received_ns, between, sent_ns, after)
        self.left -= 1
        if self.left:
            connection.send(data)
            return due_ns + self._interval_ns if self._interval_ns else sent_ns + 1
        connection.send(data + self._closing)
        connection.finish()
        return None


def _event(data: bytes) -> bytes:
    return b"%x\r\ndata: %b\n\n\r\n" % (len(data) + 8, data)


def page(body: Any, status: str = "200 OK") -> bytes:
    """An HTTP answer of known length."""
    data = orjson.dumps(body)
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


def refusal(status: str, message: str) -> bytes:
    """An error as OpenAI's API and vLLM tell it."""
    error = {"message": message, "type": "BadRequestError", "param": None, "code": int(status[:3])}
    return page({"error": error}, status)


def _models() -> dict[str, Any]:
    model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "toolkit"}
    model |= {"root": MODEL, "max_model_len": 131_072}
    return {"object": "list", "data": [model]}


PAGES: dict[str, Callable[[], dict[str, Any]]] = {"GET /v1/models": _models, "GET /health": dict}
"""What a tool wants to see before it starts."""


class _Connection(asyncio.Protocol):
    """One connection: requests one after the other. The methods `on_...` are the parser's, which calls them while it is fed."""

    def __init__(self, server: "TokenServer") -> None:
        self.paused = False
        """The client does not keep up: what is due waits until it reads."""
        self.waiting_ns: int | None = None
        self.answer: StampedAnswer | None = None
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._requests: deque[tuple[str, bytes, int]] = deque()
        """What was read whole and not yet answered: method and path, body, when."""
        self._path, self._body, self._size = b"", bytearray(), 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)
        self._socket: int = transport.get_extra_info("socket").fileno()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's signature)
        self.answer = None

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self.answer and self.waiting_ns is not None:
            self._server.ticker.add(self.waiting_ns, self.answer)
            self.waiting_ns = None

    def data_received(self, data: bytes) -> None:
        self._received_ns = time.monotonic_ns()
        self._size += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._give_up(refusal("400 Bad Request", str(error)))
        if self._size > MAX_REQUEST_BYTES:
            self._give_up(refusal("413 Content Too Large", "a request has up to 16 MiB"))
        self._answer_next()

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        path = self._path.decode("latin-1").partition("?")[0]
        what = f"{self._parser.get_method().decode()} {path}"
        self._requests.append((what, bytes(self._body), self._received_ns))
        self._path, self._body, self._size = b"", bytearray(), 0

    def send(self, data: bytes) -> None:
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

    def finish(self) -> None:
        """The answer is complete; the next request may be answered."""
        self.answer = None
        self._answer_next()

    def _answer_next(self) -> None:
        """Answer what was read whole, until an answer has to wait for its time."""
        while self.answer is None and self._requests:
            what, body, received_ns = self._requests.popleft()
            server = self._server
            if what == "POST /v1/chat/completions":
                try:
                    self.answer = server.begin(self, body, received_ns)
                except ValueError as error:
                    self.send(refusal("400 Bad Request", str(error)))
                else:
                    # never before now: a request that waited for another answer may be overdue
                    due_ns = received_ns + round(server.pace.ttft_ms * 1e6)
                    server.ticker.add(max(due_ns, time.monotonic_ns()), self.answer)
            elif what in PAGES:
                self.send(page(PAGES[what]()))
            else:
                self.send(refusal("404 Not Found", f"no `{what}` here"))

    def _give_up(self, refusal: bytes) -> None:
        self._requests.clear()
        self.send(refusal)
        self._transport.close()


class TokenServer:
    """What all connections share."""

    def __init__(self, pace: TokenPace) -> None:
        self.pace = pace
        self.ticker = Ticker()
        self._numbers = count(1)

    def begin(self, connection: _Connection, body: bytes, received_ns: int) -> StampedAnswer:
        """Read a request and lay out its answer; ValueError when it is none for a stream."""
        asked = orjson.loads(body)
        if not isinstance(asked, dict) or not asked.get("stream"):
            raise ValueError("the body is no JSON object that asks for a stream")
        tokens = asked.get("max_completion_tokens") or asked.get("max_tokens") or self.pace.tokens
        if not isinstance(tokens, int) or tokens < 1:
            raise ValueError("`max_tokens` is no positive number")
        tokens = min(tokens, MOST_TOKENS)
        options = asked.get("stream_options")
        usage = None
        if isinstance(options, dict) and options.get("include_usage"):
            prompt = max(1, len(body) // 4)  # no tokenizer here: about 4 characters a token
            usage = {"prompt_tokens": prompt, "completion_tokens": tokens}
            usage["total_tokens"] = prompt + tokens
        return StampedAnswer(
            connection,
            answer_id=f"chatcmpl-{next(self._numbers):016x}",
            received_ns=received_ns,
            tokens=tokens,
            interval_ns=round(self.pace.interval_ms * 1e6),
            usage=usage,
        )


async def serve(pace: TokenPace, port: int) -> None:
    """Print the URL when listening; stay until the parent, who holds standard input, is gone."""
    loop = asyncio.get_running_loop()
    shared = TokenServer(pace)
    server = await loop.create_server(lambda: _Connection(shared), "127.0.0.1", port, backlog=4096)
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
