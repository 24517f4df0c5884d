"""A server made of raw bytes: it can do what no web framework lets a server do."""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Self

from support.listening import end_listening
from support.recordings import recorded

from toolkit.records import Host
from toolkit.scout.pages import Scrape
from toolkit.scout.scrape import Pacing, Scout, tls_context

Misbehave = Callable[[asyncio.StreamWriter], Awaitable[bool | None]]
"""Writes what it likes; unless it returns True, the connection is closed after it."""


def http(body: bytes | str = b"", status: str = "200 OK", **headers: str) -> bytes:
    """One whole HTTP answer; `content_type="..."` becomes a header."""
    body = body.encode() if isinstance(body, str) else body
    fields = {"content-length": str(len(body))} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


class RawServer:
    """Answers each path with the given bytes or lets a coroutine write; 404 for the rest."""

    def __init__(
        self,
        pages: Mapping[str, bytes | Misbehave],
        *,
        address: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.pages = dict(pages)
        self.bodies: list[bytes] = []
        """Of everything that was asked, in the order of `requests`."""
        self.connections = 0
        """That were opened, asked over or not."""
        self._address, self._tls = address, tls
        self._handlers: set[asyncio.Task[None]] = set()
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        """Method, path and headers (lower-case names) of everything that was asked."""

    def paths(self) -> list[str]:
        return [path for _, path, _ in self.requests]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self._address, 0, ssl=self._tls)
        host = f"[{self._address}]" if ":" in self._address else self._address
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self._tls else 'http'}://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await end_listening(self._server)

    def handlers(self) -> set[asyncio.Task[None]]:
        """The tasks that serve connections which are open."""
        return set(self._handlers)

    async def before_answer(self) -> None:
        """Wait here, in a server that takes its time."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)
        with contextlib.suppress(
            ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError
        ):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                method, path, _ = head.split(" ", 2)
                fields = [line.split(": ", 1) for line in head.split("\r\n")[1:] if line]
                headers = {name.lower(): value for name, value in fields}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.requests.append((method, path, headers))
                self.bodies.append(body)
                await self.before_answer()
                answer = self.pages.get(path, http('{"detail":"Not Found"}', "404 Not Found"))
                if callable(answer):
                    if await answer(writer):
                        continue
                    break
                writer.write(answer)
                await writer.drain()
        writer.close()


def vllm_pages(metrics: str = "metrics_after_load.txt") -> dict[str, bytes | Misbehave]:
    """The four pages of a real vLLM, as recorded."""
    return {
        "/health": http(),
        "/version": http(recorded("version.json"), content_type="application/json"),
        "/v1/models": http(recorded("v1_models.json"), content_type="application/json"),
        "/metrics": http(
            recorded(metrics), content_type="text/plain; version=1.0.0; charset=utf-8"
        ),
    }


async def one_look(url: str, timeout_s: float = 5.0, key: str | None = None) -> Scrape:
    """Look once at a host named `alice`."""
    scout = Scout(Host(name="alice", url=url), tls_context(insecure=True), key, timeout_s, Pacing())
    try:
        return await scout.scrape()
    finally:
        await scout.aclose()


@contextlib.contextmanager
def serving(pages: Mapping[str, bytes | Misbehave]) -> Iterator[RawServer]:
    """Run a RawServer in a thread, for tests of a command that owns the main thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = RawServer(pages)
    try:
        asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(timeout=60)
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(_end(server), loop).result(timeout=60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=60)
        loop.close()


async def _end(server: RawServer) -> None:
    await server.__aexit__()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
