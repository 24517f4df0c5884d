"""A server of canned answers for benchmarks: as fast as it can, or token by token. Not a model, not a simulator.

    python tests/benchmarks/canned_server.py MODE

MODE: `whole` (a JSON body), `trickle` (a stream, an event every 10 ms), `brief` (the same with 8 tokens), `burst` (a
stream in one write), `long` (the same, twice as long: 25 KB), `quick` (8 tokens in one write) or `steady` (an event every 20 ms,
100 tokens). It listens on two free ports of 127.0.0.1, prints them in one line, and counts the answers
of each: `GET /counts` tells both.
"""

import asyncio
import sys
from pathlib import Path
from typing import cast

import orjson
import uvloop

RECORDED = Path(__file__).parent.parent / "data" / "vllm-0.32.0-cpu"
TOKENS = 64
"""Of an answer: a 50-word story, as the contest asked for."""
EVENT_EVERY_S, STEADY_EVERY_S = 0.010, 0.020
CLIENTS = 2

Reads = list[bytes]


def events(count: int = TOKENS) -> Reads:
    """A recorded stream with as many chunks with a token as wanted, then usage and `[DONE]`."""
    recorded = (RECORDED / "chat_stream.txt").read_bytes().removesuffix(b"\n\n").split(b"\n\n")
    role, *tokens, last, usage, done = recorded
    chosen = (tokens * count)[: count - 1]
    # the recorded counts would tell of another number of tokens
    counts = orjson.loads(usage.removeprefix(b"data: "))
    counts["usage"]["completion_tokens"] = count
    told = b"data: " + orjson.dumps(counts)
    return [each + b"\n\n" for each in (role, *chosen, last, told, done)]


def whole() -> bytes:
    """The recorded answer with a story's length."""
    body = orjson.loads((RECORDED / "chat.json").read_bytes())
    body["choices"][0]["message"]["content"] = "a story " * (TOKENS // 2)
    body["usage"]["completion_tokens"] = TOKENS
    return orjson.dumps(body)


def answers(mode: str) -> Reads:
    """What is written after a request, piece by piece."""
    if mode == "whole":
        body = whole()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        return [head % len(body) + body]
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
        b"transfer-encoding: chunked\r\n\r\n"
    )
    count = {"long": 2 * TOKENS, "brief": 8, "quick": 8, "steady": 100}.get(mode, TOKENS)
    pieces = [b"%x\r\n%b\r\n" % (len(each), each) for each in events(count)]
    if mode in {"burst", "long", "quick"}:
        return [head + b"".join(pieces) + b"0\r\n\r\n"]
    return [head + pieces[0], *pieces[1:-1], pieces[-1] + b"0\r\n\r\n"]


class Canned(asyncio.Protocol):
    """One connection."""

    def __init__(self, client: int, counts: list[int], reads: Reads, every_s: float) -> None:
        self._client = client
        self._counts = counts
        self._reads = reads
        self._every_s = every_s
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own kind

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        if head.startswith(b"GET"):
            self._data = b""
            self._page(head)
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(body) >= length:
            self._data = b""
            self._write(0)

    def _write(self, number: int) -> None:
        """Write a piece, and the next one when it is due."""
        if self._transport.is_closing():
            return
        self._transport.write(self._reads[number])
        if number + 1 < len(self._reads):
            asyncio.get_running_loop().call_later(self._every_s, self._write, number + 1)
        else:
            self._counts[self._client] += 1

    def _page(self, head: bytes) -> None:
        body, status = b"{}", b"404 Not Found"
        if b" /counts" in head:
            body, status = orjson.dumps(self._counts), b"200 OK"
        elif b"/v1/models" in head:
            body, status = b'{"object":"list","data":[{"id":"tiny","object":"model"}]}', b"200 OK"
        fields = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        self._transport.write(b"HTTP/1.1 %b\r\n" % status + fields % (len(body), body))


async def serve(mode: str) -> None:
    loop, counts, reads = asyncio.get_running_loop(), [0] * CLIENTS, answers(mode)
    every_s = STEADY_EVERY_S if mode == "steady" else EVENT_EVERY_S
    servers = [
        await loop.create_server(
            lambda client=client: Canned(client, counts, reads, every_s),
            "127.0.0.1",
            0,
            backlog=1024,
        )
        for client in range(CLIENTS)
    ]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
