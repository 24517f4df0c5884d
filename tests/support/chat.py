"""What bench's tests ask, and the bytes of answers to it, written out so that no code under test makes them."""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from typing import Any

from support.raw_server import Misbehave, RawServer, http, vllm_pages

from toolkit.bench.client import HostClient
from toolkit.bench.request_record import RequestContext
from toolkit.bench.requests import PlannedRequest
from toolkit.records import Host, RequestRecord

Run = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs what a test awaits, on one of both event loops."""

CHAT = "/v1/chat/completions"
TEXT = "Hello there"
WHOLE = json.dumps(
    {
        "id": "chatcmpl-1",
        "model": "tiny",
        "choices": [{"message": {"content": TEXT}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2},
    }
)
"""The body of an answer that was not to be streamed."""

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
LAST = b"0\r\n\r\n"
"""The chunk that ends a chunked body."""


def chunk(data: bytes) -> bytes:
    """One piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(choice: dict[str, Any] | None = None, **more: Any) -> bytes:
    """One event in a chunk of its own."""
    said = {"id": "chatcmpl-1", "model": "tiny", "choices": [choice] if choice else []} | more
    return chunk(b"data: " + json.dumps(said).encode() + b"\n\n")


def token(text: str) -> bytes:
    return event({"index": 0, "delta": {"content": text}, "finish_reason": None})


ROLE = event({"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None})
FINISH = event({"index": 0, "delta": {}, "finish_reason": "stop"})
USAGE = event(None, usage={"prompt_tokens": 7, "completion_tokens": 2})
DONE = chunk(b"data: [DONE]\n\n")
STREAM = HEAD + ROLE + token("Hello") + token(" there") + FINISH + USAGE + DONE + LAST
"""A whole streamed answer of two tokens."""


def ask(
    slot: int = 0, *, stream: bool = True, text: str = "Hi", max_tokens: int = 4
) -> PlannedRequest:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "stream": stream,
    }
    return PlannedRequest(
        slot=slot, kind="unique", prompt="hi", body=body, stream=stream, max_tokens=max_tokens
    )


def context(concurrency: int | None = 1) -> RequestContext:
    """Its wall clock is the monotonic one, so that `sent_at` can be held against a test's own clock readings."""
    return RequestContext(
        run="r", name="alice", url="u", concurrency=concurrency, wall_offset_s=0.0
    )


def client_of(url: str, **settings: Any) -> HostClient:
    return HostClient(Host(name="alice", url=url), **settings)


async def one_shot(url: str, *, stream: bool = True, **settings: Any) -> RequestRecord:
    """Send one request through a client of its own."""
    async with client_of(url, **settings) as client:
        return await client.send(context(), ask(stream=stream), time.monotonic())


async def turns(count: int = 20) -> None:
    """Let everybody else on this loop have so many turns: on loopback, what was written is read by then."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that takes milliseconds."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 (the condition is another program's)
            await asyncio.sleep(0.001)


async def hang(_: asyncio.StreamWriter) -> None:
    """Never answer."""
    await asyncio.Event().wait()


def in_turn(*answers: bytes | Misbehave) -> Misbehave:
    """One answer after the other, and the last one from then on."""
    left = list(answers)

    async def answer(writer: asyncio.StreamWriter) -> bool | None:
        mine = left.pop(0) if len(left) > 1 else left[0]
        if not isinstance(mine, bytes):
            return await mine(writer)
        writer.write(mine)
        return True

    return answer


class ChatServer(RawServer):
    """A host with vLLM's pages whose chat answers as told."""

    def __init__(self, chat: Any = STREAM, **pages: Any) -> None:
        super().__init__(vllm_pages() | {CHAT: chat} | pages)

    def asked(self) -> list[dict[str, Any]]:
        """The bodies of all chat requests, in order of arrival."""
        return [
            json.loads(body)
            for (_, path, _), body in zip(self.requests, self.bodies, strict=True)
            if path == CHAT
        ]


class Gate(ChatServer):
    """Holds every chat answer until it is opened; knows how many are held, and the most ever."""

    def __init__(self, **pages: Any) -> None:
        super().__init__(self.answer, **pages)
        self.held = self.most = 0
        self.opened = asyncio.Event()

    async def answer(self, writer: asyncio.StreamWriter) -> bool:
        self.held += 1
        self.most = max(self.most, self.held)
        await self.opened.wait()
        self.held -= 1
        writer.write(STREAM)
        return True


def models_page(*entries: dict[str, Any]) -> bytes:
    return http(
        json.dumps({"object": "list", "data": list(entries)}), content_type="application/json"
    )
