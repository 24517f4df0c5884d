"""A whole proxy in the test's own loop, in front of scripted upstreams, and a client of raw bytes."""

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.scripted_upstream import Script, ScriptedUpstream

from toolkit.proxy.app import Proxy
from toolkit.proxy.auth import from_environment
from toolkit.proxy.config import checked, read
from toolkit.proxy.telemetry import Telemetry
from toolkit.proxy.telemetry.access_log import AccessLog

CHAT = "/v1/chat/completions"
ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
ANSWER = {
    "id": "chatcmpl-9",
    "object": "chat.completion",
    "created": 5,
    "model": "tiny",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello there"},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
}


def whole(text: str = "Hello there") -> Script:
    """A complete JSON answer."""
    body = json.loads(json.dumps(ANSWER))
    body["choices"][0]["message"]["content"] = text

    async def play(line: Any) -> None:
        data = json.dumps(body).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
        line.send(f"{head}\r\n\r\n".encode() + data)

    return play


@dataclass
class Answer:
    """What a client got."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_whole: bool = True
    """False: the connection ended before it did."""

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        """What the model says in it, whole or streamed."""
        if not self.body.startswith(b"data:"):
            return "".join(each["message"]["content"] for each in self.json["choices"])
        return "".join(
            choice["delta"].get("content") or "" for one in self.events for choice in one["choices"]
        )

    @property
    def events(self) -> list[dict[str, Any]]:
        found = re.findall(rb"data: (\{.*\})\n\n", self.body)
        return [json.loads(each) for each in found]

    @property
    def cache(self) -> str:
        return self.headers.get("cache-status", "")

    @property
    def is_hit(self) -> bool:
        return "; hit" in self.cache


def raw(
    body: object = ASKED,
    *,
    path: str = CHAT,
    method: str = "POST",
    key: str | None = None,
    headers: Sequence[str] = (),
) -> bytes:
    """A request's bytes; a body of bytes goes as it is."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"content-length: {len(data)}"]
    if not any(line.startswith("content-type") for line in headers):
        lines.append("content-type: application/json")
    if key is not None:
        lines.append(f"authorization: Bearer {key}")
    return "\r\n".join([*lines, *headers, "", ""]).encode() + data


@dataclass
class Client:
    """One connection; it knows HTTP only from its own few lines."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, body: object = ASKED, **more: Any) -> Answer:
        return await self.send(raw(body, **more), method=more.get("method", "POST"))

    async def send(self, data: bytes, *, method: str = "POST") -> Answer:
        self.writer.write(data)
        return await self.answer(method=method)

    async def answer(self, *, method: str = "POST") -> Answer:
        answer = await self.head()
        parts: list[bytes] = []
        try:
            if method == "HEAD" or answer.status in (100, 204, 304):
                return answer
            if "content-length" in answer.headers:
                parts.append(await self._read(int(answer.headers["content-length"])))
            elif "transfer-encoding" in answer.headers:
                async for part in self.chunks():  # (a cut one leaves its parts)
                    parts.append(part)  # noqa: PERF401
            else:
                parts.append(await self.reader.read())
        except asyncio.IncompleteReadError as error:
            parts.append(error.partial)
            answer.is_whole = False
        except ConnectionError:
            answer.is_whole = False
        answer.body = b"".join(parts)
        return answer

    async def head(self) -> Answer:
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        version, status, _ = first.split(" ", 2)
        assert version == "HTTP/1.1"
        headers = dict(line.split(": ", 1) for line in lines if line)
        return Answer(int(status), {name.lower(): value for name, value in headers.items()}, b"")

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            size = int((await self.reader.readuntil(b"\r\n")).strip(), 16)
            data = await self._read(size)
            assert await self.reader.readexactly(2) == b"\r\n"
            if not size:
                return
            yield data

    async def _read(self, size: int) -> bytes:
        return await self.reader.readexactly(size)

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        return await self.reader.read()

    async def is_reset(self) -> bool:
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionResetError:
            return True
        return False

    def leave(self) -> None:
        self.writer.close()

    def close(self) -> None:
        self.writer.transport.abort()

    def reset(self) -> None:
        """Break off, unless it is closed already."""
        sock = self.writer.transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.writer.transport.abort()


@dataclass
class Proxied:
    """A proxy that runs."""

    proxy: Proxy
    said: list[str] = field(default_factory=list)
    _clients: list[Client] = field(default_factory=list)

    @property
    def port(self) -> int:
        return self.proxy.ports[0]

    async def client(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self._clients.append(client)
        return client

    async def ask(self, body: object = ASKED, **more: Any) -> Answer:
        """Over a connection of its own."""
        client = await self.client()
        return await client.ask(body, **more)

    async def admin(self, path: str, told: object = None) -> Answer:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.proxy.ports[1]))
        self._clients.append(client)
        method = "GET" if told is None else "POST"
        return await client.ask(b"" if told is None else told, path=path, method=method)

    def total(self, name: str, **labels: str) -> float:
        """A counter of the proxy's."""
        return self.proxy.telemetry.counters.total(name, **labels)

    def close_clients(self) -> None:
        for client in self._clients:
            client.close()


@contextlib.asynccontextmanager
async def proxied(
    upstreams: Sequence[ScriptedUpstream] | ScriptedUpstream,
    settings: str = "",
    *,
    environ: dict[str, str] | None = None,
    folder: Path | None = None,
    probes: bool = False,
) -> AsyncIterator[Proxied]:
    """Run one; `settings`: TOML, its tables after those of the upstreams. With a folder it has a file and a log there."""
    those = [upstreams] if isinstance(upstreams, ScriptedUpstream) else upstreams
    named = "".join(
        f'[[upstream]]\nname = "u{number}"\nurl = "{each.url}"\nprobes = {str(probes).lower()}\n'
        for number, each in enumerate(those)
        if "[[upstream]]" not in settings
    )
    flags: dict[str, Any] = {"port": 0, "admin_port": 0}
    flags["cache.file"] = "none" if folder is None else str(folder / "cache.db")
    text = settings if "[[upstream]]" in settings else named + settings
    found = read(text, "test.toml", flags)
    environ = environ or {}
    log = None if folder is None else AccessLog(str(folder / "log.jsonl"), say=print)
    said: list[str] = []
    proxy = Proxy(
        found,
        variables=checked(found, environ),
        keys=from_environment(found.teams, environ),
        telemetry=Telemetry(log),
        say=said.append,
    )
    running = Proxied(proxy, said)
    try:
        await proxy.start()
        yield running
    finally:
        running.close_clients()
        await proxy.stop()
        if log is not None:
            log.close()
