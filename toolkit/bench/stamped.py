"""A local OpenAI-style server whose every token says when it was sent: what `selftest` checks the clock against.

    python -m toolkit.bench.stamped --port 0        prints its URL; loopback only

It touches clock and network. It runs no model, and it never waits for a client: tokens are due at absolute
times, `received + ttft + k * interval`. `time.monotonic_ns` is one clock for all processes of a Linux machine, so a
token's stamp can be held against the moment at which a client says it read it.

    POST /v1/chat/completions, /v1/completions     streamed or whole
    GET  /v1/models /health /metrics               what a tool wants to see before it starts
    GET  /truth                                    when each request came, when its tokens left
"""

import argparse
import asyncio
import gc
import heapq
import math
import os
import re
import signal
import stat
import time
from collections import deque
from dataclasses import asdict
from itertools import count
from typing import cast

import orjson
import uvloop

from toolkit.bench.stamps import (
    MODEL,
    TokenPace,
    Truth,
    Want,
    page,
    refusal,
    script,
    wanted,
    whole_answer,
)

KEPT_TRUTHS = 100_000
MAX_HEAD_BYTES = 64 * 2**10
MAX_BODY_BYTES = 16 * 2**20
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CODED = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)
_COMPLETIONS = {"/v1/chat/completions": True, "/v1/completions": False}
"""Path -> whether it is the chat API."""


class _Ticker:
    """Sends what is due, from one timer for all streams: one timer each would cost more than their tokens."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due: list[tuple[int, int, _StampedAnswer]] = []
        self._numbers = count()
        self._armed_ns: int | None = None
        self._timer: asyncio.Handle | None = None

    def add(self, due_ns: int, reply: "_StampedAnswer") -> None:
        """Let a reply send at this moment, and again when it says so."""
        heapq.heappush(self._due, (due_ns, next(self._numbers), reply))
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
        # `now`, so the reply that sends stays the first of the heap while it does
        due, now = self._due, time.monotonic_ns()
        while due and due[0][0] <= now:
            due_ns, number, reply = due[0]
            next_ns = reply.send(due_ns)
            if next_ns is None:
                heapq.heappop(due)
            else:
                heapq.heapreplace(due, (next_ns, number, reply))
        self._arm()


class _StampedAnswer:
    """One answer under way."""

    __slots__ = ("_created", "_interval_ns", "_left", "_line", "_script", "_truth", "_want")

    def __init__(
        self, line: "_StampedConnection", want: Want, truth: Truth, interval_ns: int
    ) -> None:
        self._line = line
        self._want = want
        self._truth = truth
        self._interval_ns = interval_ns
        self._left = want.tokens
        self._created = int(time.time())
        self._script = script(want, truth.id, self._created)

    def send(self, due_ns: int) -> int | None:
        """Send the token that is due; when the next one is, None when no timer shall call."""
        line = self._line
        if line.reply is not self:
            return None  # the client left
        if line.paused:
            line.waiting_ns = due_ns
            return None
        sent_ns = time.monotonic_ns()
        if not self._want.stream:
            self._send_whole(sent_ns)
            return None
        self._send_token(sent_ns)
        if not self._left:
            line.finish()
            return None
        return due_ns + self._interval_ns if self._interval_ns else sent_ns + 1

    def _send_token(self, sent_ns: int) -> None:
        truth = self._truth
        if truth.first_sent_ns is None:
            truth.first_sent_ns = sent_ns
            data = self._script.first(truth.received_ns, sent_ns)
        else:
            data = self._script.token(sent_ns, is_last=self._left == 1)
        truth.last_sent_ns = sent_ns
        truth.tokens += 1
        self._left -= 1
        self._line.send(data if self._left else data + self._script.closing)

    def _send_whole(self, sent_ns: int) -> None:
        truth = self._truth
        truth.first_sent_ns = truth.last_sent_ns = sent_ns
        truth.tokens = self._want.tokens
        answer = whole_answer(self._want, truth.id, self._created, (truth.received_ns, sent_ns))
        self._line.send(answer)
        self._line.finish()


# --- who it is sent to -----------------------------------------------------------------------------


class _StampedConnection(asyncio.Protocol):
    """One connection: requests one after the other."""

    def __init__(self, house: "_House") -> None:
        self.paused = False
        """The client does not keep up: what is due waits until it reads."""
        self.waiting_ns: int | None = None
        self.reply: _StampedAnswer | None = None
        self._truth: Truth | None = None
        self._house = house
        self._read = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)
        self._socket: int = transport.get_extra_info("socket").fileno()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's signature)
        self.reply = None

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self.reply and self.waiting_ns is not None:
            self._house.ticker.add(self.waiting_ns, self.reply)
            self.waiting_ns = None

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        self._read += data
        if self.reply is None:
            self._take_requests(now_ns)

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
        """The answer is complete; the next request may be read."""
        self.reply = None
        if self._truth:
            self._truth.complete = True
        if self._read:
            self._take_requests(time.monotonic_ns())

    def _take_requests(self, now_ns: int) -> None:
        """Answer what was read whole, until an answer has to wait for its time."""
        while self.reply is None and (request := self._next_request()):
            method, path, body = request
            if method == "POST" and path in _COMPLETIONS:
                self._complete(body, now_ns, chat=_COMPLETIONS[path])
            elif method == "GET" and path in self._house.pages:
                self.send(self._house.pages[path]())
            else:
                self.send(refusal("404 Not Found", f"no `{method} {path}` here"))

    def _next_request(self) -> tuple[str, str, bytes] | None:
        """Method, path and body of the next request; None while it is not whole."""
        end = self._read.find(b"\r\n\r\n")
        if end < 0:
            if len(self._read) > MAX_HEAD_BYTES:
                self._give_up(refusal("431 Request Header Fields Too Large", "headers too long"))
            return None
        head = bytes(self._read[:end])
        length = _LENGTH.search(head)
        size = int(length[1]) if length else 0
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if _CODED.search(head) or size > MAX_BODY_BYTES or len(words) != 3:
            self._give_up(refusal("400 Bad Request", "needs a Content-Length of up to 16 MiB"))
            return None
        start = end + 4
        if len(self._read) < start + size:
            return None
        body = bytes(self._read[start : start + size])
        del self._read[: start + size]
        return words[0], words[1].partition("?")[0], body

    def _give_up(self, refusal: bytes) -> None:
        self._read.clear()
        self.send(refusal)
        self._transport.close()

    def _complete(self, body: bytes, received_ns: int, *, chat: bool) -> None:
        house = self._house
        try:
            want = wanted(body, chat=chat, pace=house.pace)
        except ValueError as error:
            self.send(refusal("400 Bad Request", str(error)))
            return
        self._truth = house.new_truth(want, received_ns)
        interval_ns = round(house.pace.interval_ms * 1e6)
        self.reply = _StampedAnswer(self, want, self._truth, interval_ns)
        due_ns = received_ns + round(house.pace.ttft_ms * 1e6)
        if not want.stream:
            due_ns += (want.tokens - 1) * interval_ns
        house.ticker.add(due_ns, self.reply)


class _House:
    """What all connections share."""

    def __init__(self, pace: TokenPace) -> None:
        self.pace = pace
        self.ticker = _Ticker()
        self.pages = {
            "/health": lambda: page(b""),
            "/v1/models": _models_page,
            "/metrics": self._metrics_page,
            "/truth": self._truth_page,
        }
        self._truths: deque[Truth] = deque(maxlen=KEPT_TRUTHS)
        self._numbers = count(1)

    def new_truth(self, want: Want, received_ns: int) -> Truth:
        """Open the account of a request."""
        prefix = "chatcmpl" if want.chat else "cmpl"
        number = next(self._numbers)
        truth = Truth(id=f"{prefix}-{number:016x}", stream=want.stream, received_ns=received_ns)
        self._truths.append(truth)
        return truth

    def _truth_page(self) -> bytes:
        told = {"cpu_s": time.process_time(), "requests": [asdict(each) for each in self._truths]}
        return page(orjson.dumps(told))

    def _metrics_page(self) -> bytes:
        """Three of vLLM's names, enough for tools that ask whether the page is there."""
        done = sum(each.complete for each in self._truths)
        numbers = {
            "vllm:num_requests_running": len(self._truths) - done,
            "vllm:request_success_total": done,
            "vllm:generation_tokens_total": sum(each.tokens for each in self._truths),
        }
        rows = (f'{name}{{model_name="{MODEL}"}} {value}\n' for name, value in numbers.items())
        return page("".join(rows).encode(), kind="text/plain; version=0.0.4")


def _models_page() -> bytes:
    model = {
        "id": MODEL,
        "object": "model",
        "created": 0,
        "owned_by": "toolkit",
        "root": MODEL,
        "max_model_len": 131_072,
    }
    return page(orjson.dumps({"object": "list", "data": [model]}))


# --- a process of its own --------------------------------------------------------------------------


async def serve(pace: TokenPace, port: int) -> None:
    """Print the URL when listening; stay until the parent, who holds standard input, is gone."""
    loop = asyncio.get_running_loop()
    house = _House(pace)
    server = await loop.create_server(
        lambda: _StampedConnection(house), "127.0.0.1", port, backlog=4096
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
