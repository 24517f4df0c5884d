"""Upstreams whose answer is a function of what is asked, in a process of their own, so that every answer can be judged.

    python truthful.py '[{"name": "a", "cut": 0.02}, {"name": "b"}]'

prints their addresses as JSON, then serves. `POST /control` changes one while it runs, `GET /told` says what it saw. Beside the
text that follows from the request an answer tells who gave it: `id` names server, life and number, and its first word the
`cache_salt` that it was asked with.
"""

import asyncio
import contextlib
import json
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self

import aiohttp

if __package__ in (None, "") and __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from support.chat import DONE, HEAD, LAST, chunk
from support.scripted_upstream import Line, ScriptedUpstream

MODEL = "tiny"
CHAT = "/v1/chat/completions"
STREAM_ONLY = ("stream", "stream_options", "cache_salt")
"""What does not change the answer."""
BUSY = (
    b'{"error": {"message": "too busy", "type": "ServiceUnavailable", "param": null, "code": 503}}'
)
BROKEN = (
    b'{"error": {"message": "it broke", "type": "InternalServerError", "param": null, "code": 500}}'
)

Fields = dict[str, Any]


# --- what is true -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Truth:
    """What a request must get, but for ids, times and the salt's word."""

    texts: tuple[str, ...]
    """Of each choice, without the first word; the arguments of its call where tools were given."""
    has_calls: bool
    prompt_tokens: int
    output_tokens: int


def truth(fields: Fields) -> Truth:
    asked = {name: value for name, value in fields.items() if name not in STREAM_ONLY}
    return _truth(json.dumps(asked, sort_keys=True))


@lru_cache(maxsize=4096)
def _truth(asked: str) -> Truth:
    fields = json.loads(asked)
    dice = random.Random(blake2b(asked.encode(), digest_size=8).digest())
    count, words = fields.get("n", 1), fields.get("max_tokens", 8)
    texts = tuple("".join(f" {dice.getrandbits(40):x}" for _ in range(words)) for _ in range(count))
    prompt = sum(len(each["content"].split()) for each in fields["messages"])
    return Truth(texts, "tools" in fields, prompt, count * (words + 1))


def salt_word(fields: Fields) -> str:
    salt = str(fields.get("cache_salt"))
    return "plain" if salt == "None" else blake2b(salt.encode(), digest_size=6).hexdigest()


# --- an upstream ------------------------------------------------------------------------------------------


@dataclass
class Ways:
    """How one behaves; all of it can be changed while it runs."""

    name: str = "a"
    seed: int = 0
    step_s: float = 0.004
    """Between two pieces of an answer."""
    piece: int = 4
    """Tokens of a piece."""
    cut: float = 0.0
    """Shares of the requests whose connection ends in the middle, that are busy, that fail, that fail in the stream."""
    busy: float = 0.0
    error: float = 0.0
    stream_error: float = 0.0
    frozen: bool = False
    """Takes requests and makes no token, while its pages go on."""
    model: str = MODEL


@dataclass
class Told:
    """What one saw."""

    asked: int = 0
    """Requests for answers; probes, which are asked for one token by the proxy itself, apart."""
    probes: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    """whole, cut, busy, error, stream_error, left."""
    lives: list[list[float | None]] = field(default_factory=list)
    """Monotonic: beginning and end of each."""
    running: int = 0


class Truthful(ScriptedUpstream):
    def __init__(self, ways: Ways) -> None:
        super().__init__(self._script)
        self.ways, self.told = ways, Told()
        self._dice = random.Random(ways.seed)
        self._tokens = [0, 0]
        self._thaw = asyncio.Event()
        self._port = 0
        self._started_at = 0.0
        self._chores: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._listen(self._bound())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()

    def _bound(self) -> socket.socket:
        """Nobody else gets the port while it is down."""
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", self._port))
        self._port = bound.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        return bound

    async def _listen(self, bound: socket.socket) -> None:
        from support.scripted_upstream import _Connection

        self._started_at = time.time()
        self._tokens = [0, 0]
        self.told.lives.append([time.monotonic(), None])
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), sock=bound)

    async def _die(self, down_s: float) -> None:
        """Its process is gone for so long; then there is another."""
        self.told.lives[-1][1] = time.monotonic()
        self._server.close()
        for connection in tuple(self.open):
            connection.transport.abort()
        bound = self._bound()
        await asyncio.sleep(down_s)
        await self._listen(bound)

    # --- answers

    async def _script(self, line: Line) -> None:
        self.lines.clear()
        if line.target != CHAT:
            self._page(line)
            return
        fields = json.loads(line.body)
        if fields.get("max_tokens") == 1:
            self.told.probes += 1
        else:
            self.told.asked += 1
        self.told.running += 1
        try:
            self.told.ended[await self._until_gone(line, self._answer(line, fields))] += 1
        finally:
            self.told.running -= 1

    async def _until_gone(self, line: Line, answering: Any) -> str:
        """Work for nobody is not done."""
        answer = asyncio.ensure_future(answering)
        gone = asyncio.ensure_future(line.gone.wait())
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if answer.done():
            return await answer
        answer.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await answer
        return "left"

    def _mishap(self) -> str | None:
        rolled, ways = self._dice.random(), self.ways
        for name in ("cut", "busy", "error", "stream_error"):
            rolled -= getattr(ways, name)
            if rolled < 0:
                return name
        return None

    async def _answer(self, line: Line, fields: Fields) -> str:
        mishap = self._mishap()
        if mishap == "busy":
            _send(line, "503 Service Unavailable", BUSY)
            return mishap
        if mishap == "error":
            _send(line, "500 Internal Server Error", BROKEN)
            return mishap
        stream = fields.get("stream", False)
        if stream:
            line.send(HEAD)
        await self._warm()
        number = self.told.asked + self.told.probes
        head = {
            "id": f"chatcmpl-{self.ways.name}.{len(self.told.lives)}.{number}",
            "object": "chat.completion.chunk" if stream else "chat.completion",
            "created": int(time.time()),
            "model": fields["model"],
        }
        found, word = truth(fields), salt_word(fields)
        self._tokens[0] += found.prompt_tokens
        if stream:
            return await self._stream(line, fields, head, mishap)
        pieces = max(len(text.split(" ")) for text in found.texts) / self.ways.piece
        await self._speak(pieces * self.ways.step_s, found.output_tokens)
        data = json.dumps(head | _whole(found, word)).encode()
        if mishap is not None:
            line.send(_head("200 OK", len(data)) + data[: len(data) // 2])
            line.abort()
            return "cut"
        _send(line, "200 OK", data)
        return "whole"

    async def _stream(self, line: Line, fields: Fields, head: Fields, mishap: str | None) -> str:
        found, word = truth(fields), salt_word(fields)
        events = list(_events(found, word))
        usage = (fields.get("stream_options") or {}).get("include_usage")
        last = self._dice.randrange(1, len(events)) if mishap else len(events)
        size = self.ways.piece * len(found.texts)
        for at in range(0, last, size):
            await self._speak(self.ways.step_s, min(size, last - at))
            line.send(b"".join(_event(head | each) for each in events[at : min(at + size, last)]))
        if mishap == "cut":
            line.abort()
            return mishap
        if mishap is not None:
            line.send(chunk(b"data: " + BROKEN + b"\n\n") + DONE + LAST)
            return mishap
        if usage:
            line.send(_event(head | {"choices": [], "usage": _usage(found)}))
        line.send(DONE + LAST)
        return "whole"

    async def _warm(self) -> None:
        while self.ways.frozen:
            await self._thaw.wait()

    async def _speak(self, seconds: float, tokens: int) -> None:
        await asyncio.sleep(seconds)
        await self._warm()
        self._tokens[1] += tokens

    # --- pages

    def _page(self, line: Line) -> None:
        match line.target:
            case "/health":
                _send(line, "200 OK", b"")
            case "/version":
                _send(line, "200 OK", b'{"version":"0.32.0"}')
            case "/v1/models":
                card = {"id": self.ways.model, "object": "model", "root": "org/tiny"}
                told = {"object": "list", "data": [card | {"max_model_len": 8192}]}
                _send(line, "200 OK", json.dumps(told).encode())
            case "/metrics":
                _send(line, "200 OK", self._metrics(), "text/plain; version=0.0.4")
            case "/told":
                _send(line, "200 OK", json.dumps(vars(self.told)).encode())
            case "/control":
                self._control(json.loads(line.body))
                _send(line, "200 OK", b"{}")
            case _:
                _send(line, "404 Not Found", b"{}")

    def _control(self, wanted: Fields) -> None:
        down_s = wanted.pop("down_s", None)
        for name, value in wanted.items():
            setattr(self.ways, name, value)
        if not self.ways.frozen:
            self._thaw.set()
            self._thaw = asyncio.Event()
        if down_s is not None:
            chore = asyncio.ensure_future(self._die(down_s))
            self._chores.add(chore)
            chore.add_done_callback(self._chores.discard)

    def _metrics(self) -> bytes:
        label = f'{{engine="0",model_name="{self.ways.model}"}}'
        return (
            f"# TYPE vllm:num_requests_running gauge\n"
            f"vllm:num_requests_running{label} {self.told.running}\n"
            f"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{label} 0\n"
            f"# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{label} 0.5\n"
            f"# TYPE vllm:prompt_tokens counter\nvllm:prompt_tokens_total{label} {self._tokens[0]}\n"
            f"# TYPE vllm:generation_tokens counter\n"
            f"vllm:generation_tokens_total{label} {self._tokens[1]}\n"
            f"# TYPE process_start_time_seconds gauge\n"
            f"process_start_time_seconds {self._started_at}\n"
        ).encode()


def _head(status: str, length: int, kind: str = "application/json") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n".encode()


def _send(line: Line, status: str, body: bytes, kind: str = "application/json") -> None:
    line.send(_head(status, len(body), kind) + body)


def _event(said: Fields) -> bytes:
    return chunk(b"data: " + json.dumps(said).encode() + b"\n\n")


def _usage(found: Truth) -> Fields:
    total = found.prompt_tokens + found.output_tokens
    return {
        "prompt_tokens": found.prompt_tokens,
        "total_tokens": total,
        "completion_tokens": found.output_tokens,
    }


def _call(index: int, arguments: str) -> Fields:
    function = {"name": "look", "arguments": arguments}
    return {"id": f"call-{index}", "type": "function", "function": function}


def _whole(found: Truth, word: str) -> Fields:
    choices = []
    for index, text in enumerate(found.texts):
        message: Fields = {"role": "assistant", "content": word + text}
        if found.has_calls:
            message = {"role": "assistant", "content": None, "tool_calls": [_call(0, word + text)]}
        reason = "tool_calls" if found.has_calls else "stop"
        choices.append(
            {"index": index, "message": message, "logprobs": None, "finish_reason": reason}
        )
    return {"choices": choices, "usage": _usage(found)}


def _events(found: Truth, word: str) -> Iterator[Fields]:
    """Word by word, the choices in turn."""
    count = range(len(found.texts))
    for index in count:
        yield _delta(index, {"role": "assistant", "content": ""})
    told = [[word, *(f" {each}" for each in text.split(" ")[1:])] for text in found.texts]
    for at in range(len(told[0])):
        for index in count:
            if not found.has_calls:
                yield _delta(index, {"content": told[index][at]})
            elif at == 0:
                yield _delta(index, {"tool_calls": [{"index": 0, **_call(0, told[index][0])}]})
            else:
                part = {"index": 0, "function": {"arguments": told[index][at]}}
                yield _delta(index, {"tool_calls": [part]})
    for index in count:
        yield _delta(index, {}, "tool_calls" if found.has_calls else "stop")


def _delta(index: int, delta: Fields, reason: str | None = None) -> Fields:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
    return {"choices": [choice]}


# --- the process ------------------------------------------------------------------------------------------


@contextmanager
def telling_the_truth(*ways: Ways) -> Iterator[list[str]]:
    """Run upstreams that behave so; their addresses."""
    words = json.dumps([asdict(each) for each in ways])
    with subprocess.Popen(
        [sys.executable, str(Path(__file__)), words], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.kill()


async def told(url: str) -> Fields:
    """What an upstream saw so far."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/told") as answer:
        return await answer.json()


async def change(url: str, **wanted: Any) -> None:
    """Have it behave otherwise from now on; `down_s`: die, and be back after so long."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/control", json=wanted) as answer,
    ):
        await answer.read()


async def _serve(every: list[Fields]) -> None:
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(Truthful(Ways(**each))) for each in every]
        print(json.dumps([server.url for server in servers]), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(json.loads(sys.argv[1])))
