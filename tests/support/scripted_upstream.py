"""An upstream that does what a test says, step by step, and sees when a request is given up: raw HTTP on 127.0.0.1.

A script gets the request's `Line` and writes on it; where it waits for an event of the test's, so does the answer.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Self, cast

from support.chat import DONE, FINISH, HEAD, LAST, ROLE, token
from support.listening import end_listening


class Line:
    """One request, and the way back to who sent it."""

    def __init__(self, head: bytes, body: bytes, transport: asyncio.Transport) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        self.method, self.target, _ = first.split(" ")
        fields = [line.split(": ", 1) for line in lines if line]
        self.headers = {name.lower(): value for name, value in fields}
        self.names = [name for name, _ in fields]
        """Of the headers, as they were written."""
        self.body = body
        self.gone = asyncio.Event()
        """The other side closed the connection before the script was through."""
        self.gone_s: float | None = None
        self.is_through = False
        self._transport = transport

    def send(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Send what was written, then close."""
        self._transport.close()

    def abort(self) -> None:
        """Die: close at once, with a reset if it can be."""
        self._transport.abort()


Script = Callable[[Line], Awaitable[None]]


class ScriptedUpstream:
    """Plays `scripts` in turn, one for each request, then `script` for ever."""

    def __init__(self, script: Script | None = None) -> None:
        self.script: Script = script or streaming()
        self.scripts: list[Script] = []
        self.lines: list[Line] = []
        """All requests, in the order in which they came."""
        self.connections = 0
        """That were opened so far."""
        self.open: set[_Connection] = set()
        self.most = 0
        """Requests under way at a time."""
        self.under_way = 0
        self._moved = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await end_listening(self._server)
        for connection in tuple(self.open):
            connection.transport.abort()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.until(lambda: not self.open)

    def stop_listening(self) -> None:
        """From now on connections are refused; those that are open stay."""
        self._server.close()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something is so; asked again whenever a request or a connection comes or goes."""
        async with self._moved:
            await self._moved.wait_for(holds)

    async def asked(self, count: int = 1) -> Line:
        """Wait for so many requests; the last of them."""
        await self.until(lambda: len(self.lines) >= count)
        return self.lines[count - 1]

    def moved(self) -> None:
        async def tell() -> None:
            async with self._moved:
                self._moved.notify_all()

        self._keep(tell())

    def play(self, line: Line) -> None:
        self.lines.append(line)
        self._keep(self._play(line, self.scripts.pop(0) if self.scripts else self.script))

    async def _play(self, line: Line, script: Script) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        self.moved()
        try:
            await script(line)
            line.is_through = True
        finally:
            self.under_way -= 1
            self.moved()

    def _keep(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, server: ScriptedUpstream) -> None:
        self._server = server
        self._data = bytearray()
        self._line: Line | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # (uvloop's is no subclass of asyncio's)
        self.transport = cast("asyncio.Transport", transport)
        self._server.connections += 1
        self._server.open.add(self)
        self._server.moved()

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, rest = bytes(self._data).partition(b"\r\n\r\n")
        if not found:
            return
        line = Line(head, b"", self.transport)
        length = int(line.headers.get("content-length", 0))
        if len(rest) >= length:
            line.body = rest[:length]
            del self._data[: len(head) + 4 + length]
            self._line = line
            self._server.play(line)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's)
        self._server.open.discard(self)
        if self._line is not None and not self._line.is_through:
            self._line.gone_s = time.monotonic()
            self._line.gone.set()
        self._server.moved()


# --- scripts ------------------------------------------------------------------------------------------


def streaming(*texts: str) -> Script:
    """A whole stream at once."""

    async def play(line: Line) -> None:
        middle = b"".join(map(token, texts or ("Hello", " there")))
        line.send(HEAD + ROLE + middle + FINISH + DONE + LAST)

    return play


def slow(texts: list[str], gates: list[asyncio.Event]) -> Script:
    """A stream whose every token waits for an event of the test's; its head and role come at once."""

    async def play(line: Line) -> None:
        line.send(HEAD + ROLE)
        for text, gate in zip(texts, gates, strict=True):
            await gate.wait()
            line.send(token(text))
        line.send(FINISH + DONE + LAST)

    return play


def dying(*texts: str) -> Script:
    """A stream that ends with its connection, after some tokens."""

    async def play(line: Line) -> None:
        line.send(HEAD + ROLE + b"".join(map(token, texts)))
        line.close()

    return play


def plain(status: str, body: bytes = b"{}", *headers: str) -> Script:
    """A whole body."""

    async def play(line: Line) -> None:
        lines = ["content-type: application/json", f"content-length: {len(body)}", *headers]
        head = "".join(f"{each}\r\n" for each in lines)
        line.send(f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body)

    return play


def refusing() -> Script:
    """The connection ends before an answer."""

    async def play(line: Line) -> None:
        line.abort()

    return play


def hanging() -> Script:
    """Nothing comes, until the other side gives up."""

    async def play(line: Line) -> None:
        await line.gone.wait()

    return play


def hanging_in_stream(*texts: str) -> Script:
    """A stream that stands still after some tokens."""

    async def play(line: Line) -> None:
        line.send(HEAD + ROLE + b"".join(map(token, texts)))
        await line.gone.wait()

    return play
