"""A front on 127.0.0.1 with a desk that does as told, and a client of raw bytes."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
import uvloop
from support.chat import until
from support.proxied import Client

from toolkit.proxy.client import ClientConnection, Front, Request
from toolkit.proxy.config import FrontSetting


def on_both_loops(test: Any) -> Any:
    """Run a coroutine of a test in asyncio's loop and in uvloop's (tests/conftest.py)."""
    loops = pytest.mark.parametrize("loop", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
    return pytest.mark.usefixtures("loop")(loops(test))


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class NotedDesk:
    """Notes what comes; answers `hello` at once, unless `answers` is given."""

    def __init__(self, answers: Callable[[Request], None] | None = None) -> None:
        self.answers = answers or greet
        self.known: dict[bytes, bytes | list[bytes]] = {}
        """What is recalled by its bytes."""
        self.recalled: list[bytes] = []
        self.requests: list[Request] = []
        self.refusals: list[tuple[int, str, str]] = []
        self.taken: asyncio.Queue[Request] = asyncio.Queue()

    def recall(self, data: bytes) -> bytes | list[bytes] | None:
        self.recalled.append(data)
        return self.known.get(data)

    def admits(self, _: Request) -> bool:
        return True

    def take(self, request: Request) -> None:
        self.requests.append(request)
        self.taken.put_nowait(request)
        self.answers(request)

    def refused(self, status: int, reason: str, peer: str) -> None:
        self.refusals.append((status, reason, peer))

    def reasons(self) -> list[str]:
        return [reason for _, reason, _ in self.refusals]

    def paths(self) -> list[str]:
        return [request.head.path for request in self.requests]


def greet(reply: Request) -> None:
    reply.respond(200, [(b"content-type", b"text/plain")], b"hello")


def later(_: Request) -> None:
    """Leave the answer to the test."""


class House:
    """A front with its desk, its clock and its address."""

    def __init__(self, desk: NotedDesk, limits: FrontSetting) -> None:
        self.desk = desk
        self.clock = Clock()
        self.front = Front(desk, limits, clock=self.clock)
        self.faults: list[dict[str, Any]] = []
        """What the event loop was told of."""
        self._clients: list[Client] = []

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.faults.append(context))
        self._server = await loop.create_server(self.front, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def client(self, *, receives: int | None = None) -> Client:
        """Connect; with a small receive buffer, where it is to read slowly."""
        sock = socket.socket()
        if receives is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        client = Client(*await asyncio.open_connection(sock=sock, limit=2**16))
        self._clients.append(client)
        return client

    async def connected(self) -> tuple[ClientConnection, ...]:
        """The front's own side of each client, once all are there."""
        await until(lambda: self.front.connections == len(self._clients))
        return tuple(cast("set[ClientConnection]", self.front._open))

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        self.front.sweep()

    async def close(self) -> None:
        self._server.close()
        for client in self._clients:
            client.reset()
        await until(lambda: self.front.connections == 0)


@contextlib.asynccontextmanager
async def house(
    answers: Callable[[Request], None] | None = None, **limits: Any
) -> AsyncIterator[House]:
    """A front until the block's end; then nothing of it may be left open, under way or held."""
    found = House(NotedDesk(answers), FrontSetting(**limits))
    await found.open()
    try:
        async with asyncio.timeout(60):
            yield found
    finally:
        # uvloop waits for ever to be closed where a failed test leaves a connection with unsent bytes open
        await found.close()
    assert found.front.busy == 0
    assert found.front.held_bytes == 0


def get(path: str = "/", *lines: str, version: str = "1.1", method: str = "GET") -> bytes:
    head = "".join(f"{line}\r\n" for line in (f"{method} {path} HTTP/{version}", "Host: a", *lines))
    return f"{head}\r\n".encode()


def post(body: bytes = b"{}", *lines: str, path: str = "/v1/chat/completions") -> bytes:
    return get(path, f"Content-Length: {len(body)}", *lines, method="POST") + body
