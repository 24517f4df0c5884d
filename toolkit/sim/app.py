"""The simulated server on a real socket: HTTP as vLLM 0.32.0 speaks it. The one file that opens sockets."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import logging
import socket
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from email.utils import formatdate
from types import TracebackType
from typing import Any, Self

from aiohttp import HttpVersion11, web
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict

from toolkit.sim import answers, checks
from toolkit.sim.families import CONTENT_TYPES, VERSIONS, Dialect
from toolkit.sim.life import EngineFailedError, Life, Mishap, Setup, Talk, setup_for
from toolkit.sim.meter import Exchange
from toolkit.sim.personalities import Personality

BODY_LIMIT = 16 * 2**20
"""Bytes of a request; far above the longest prompt."""

KEEP_ALIVE_S = 5.0
"""uvicorn's under vLLM: an idle connection is closed after that."""

DEATH_LINGER_S = 0.5
"""A real server answered for about half a second after its engine was killed, then it was gone."""

DRIP_TICK_S = 0.05


def _is_ours(record: logging.LogRecord) -> bool:
    """Keep quiet about what is no HTTP: aiohttp has refused it, and a traceback tells the user nothing."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_LOG = logging.getLogger(__name__)
_LOG.addFilter(_is_ours)

ROUTES: dict[str, tuple[str, ...]] = {
    "/health": ("GET",),
    "/ping": ("GET", "POST"),
    "/version": ("GET",),
    "/load": ("GET",),
    "/metrics": ("GET",),
    "/openapi.json": ("GET",),
    "/v1/models": ("GET",),
    "/tokenize": ("POST",),
    "/v1/chat/completions": ("POST",),
    "/v1/completions": ("POST",),
    "/invocations": ("POST",),
}
WITHOUT: dict[Dialect, tuple[str, ...]] = {
    "v0": ("/load",),
    "v1": (),
    "rust": ("/ping", "/openapi.json"),
}
GUARDED: dict[Dialect, tuple[str, ...]] = {
    "v0": ("/v1",),
    "v1": ("/v1", "/v2", "/inference", "/cohere"),
    "rust": ("/v1", "/v2", "/inference"),
}
"""Path prefixes that an API key guards."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole answer."""

    body: bytes = b""
    status: int = 200
    content_type: str | None = answers.JSON_TYPE
    headers: tuple[tuple[str, str], ...] = ()
    vary: bool = True
    """False only for 401, which a layer outside of the one that adds `vary` answers."""


class SimServer:
    """One simulated server: `async with SimServer(setup_for("fp8")) as server: ... server.url`."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.listening = asyncio.Event()
        """Set while connections are accepted."""
        self._routes = {
            path: methods for path, methods in ROUTES.items() if path not in WITHOUT[setup.dialect]
        }
        self._port = setup.port
        self._reserved: socket.socket | None = None
        self._runner: web.ServerRunner | None = None
        self._life = Life(setup)
        self._story: asyncio.Task[None] | None = None

    @property
    def _person(self) -> Personality:
        return self.setup.personality

    @property
    def url(self) -> str:
        """The base URL, known before the server listens."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.setup.host, self.setup.host)  # noqa: S104 (compared, not bound)
        return f"http://{f'[{host}]' if ':' in host else host}:{self._port}"

    async def __aenter__(self) -> Self:
        self._reserve()
        if not self.setup.startup_s:
            await self._come_up()
        self._story = asyncio.create_task(self._live())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._story:
            self._story.cancel()
            await asyncio.gather(self._story, return_exceptions=True)
        await self._go_down()
        if self._reserved:
            self._reserved.close()

    def kill_engine(self) -> None:
        """Lose the engine, as a crash would; the server itself follows within a second."""
        self._life.kill_engine()
        if self._story:
            self._story.cancel()
        self._story = asyncio.create_task(self._follow_engine())

    async def _live(self) -> None:
        """What time brings: the end of the start-up, and a switcher's downtime."""
        if self.setup.startup_s:
            await asyncio.sleep(self.setup.startup_s)
            await self._come_up()
        front, wall_s = self._person.front, self._person.engine.time_scale
        if front.down_after_s is not None:
            await asyncio.sleep(front.down_after_s * wall_s)
            await self._change()

    async def _change(self) -> None:
        """Refuse connections for the downtime, and come back as what it is later."""
        front, wall_s = self._person.front, self._person.engine.time_scale
        await self._go_down()
        self._reserve()
        await asyncio.sleep(front.down_for_s * wall_s)
        later = self._person.later or self._person
        self.setup = dataclasses.replace(self.setup, personality=later)
        await self._come_up()

    def change_now(self) -> None:
        """Let one that has a later self fall at once, not when its time comes; nothing happens to another."""
        if self._person.later and self.listening.is_set() and self._story:
            self._story.cancel()
            self._story = asyncio.create_task(self._change())

    async def _follow_engine(self) -> None:
        await asyncio.sleep(DEATH_LINGER_S * self._person.engine.time_scale)
        await self._go_down()
        self._reserve()

    def _reserve(self) -> None:
        """Bind without listening: connections are refused, yet nobody is given the port who asks for any free one."""
        family = socket.AF_INET6 if ":" in self.setup.host else socket.AF_INET
        self._reserved = socket.socket(family, socket.SOCK_STREAM)
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._reserved.bind((self.setup.host, self._port))
        except OSError as error:
            self._reserved.close()
            where = f"`{self.setup.host}:{self._port}` cannot be bound"
            raise type(error)(error.errno, f"{where}: {(error.strerror or '').lower()}") from None
        self._port = self._reserved.getsockname()[1]

    async def _come_up(self) -> None:
        """Begin a new life and listen."""
        self._life = Life(self.setup)
        self._life.start()
        server = web.Server(
            self._handle,
            handler_cancellation=True,  # a client that leaves aborts its request
            access_log=None,
            logger=_LOG,
            keepalive_timeout=KEEP_ALIVE_S,
            auto_decompress=False,  # vLLM does not
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=0.0)
        await self._runner.setup()
        assert self._reserved is not None
        self._listener, self._reserved = self._reserved, None
        await web.SockSite(self._runner, self._listener, backlog=2048).start()
        self.listening.set()

    async def _go_down(self) -> None:
        """Stop listening, cut every connection, and end this life."""
        self.listening.clear()
        runner, self._runner = self._runner, None
        if runner is None:
            return
        # asyncio forgets a connection that it accepted but had not set up when its server closed: nobody would ever
        # answer or close it. So accept no more, and let what was accepted be set up
        asyncio.get_running_loop().remove_reader(self._listener.fileno())
        for _ in range(3):
            await asyncio.sleep(0)
        for site in list(runner.sites):
            await site.stop()
        for connection in runner.server.connections if runner.server else ():
            if connection.transport:
                connection.transport.abort()
        await runner.cleanup()
        await self._life.stop()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        life, begun = self._life, time.monotonic()
        given = request.headers.get("authorization")
        guarded = GUARDED[self.setup.dialect] if request.method != "OPTIONS" else ()
        if not checks.may_enter(request.path, given, self.setup.api_key, guarded):
            body = answers.UNAUTHORIZED
            return await self._send(request, Answer(status=401, body=body, vary=False))
        methods = self._routes.get(request.path)
        try:
            response = await self._answer(request, methods)
        except ConnectionResetError:  # the client left; what it asked for is dropped by now
            return web.Response()
        exchange = Exchange(
            handler=request.path if methods and request.method in methods else "none",
            method=request.method,
            status=response.status,
            request_bytes=request.content_length or 0,
            response_bytes=response.content_length or 0,
            duration_s=time.monotonic() - begun,
        )
        life.http.observe(exchange, time.time())
        return response

    async def _answer(
        self, request: web.BaseRequest, methods: tuple[str, ...] | None
    ) -> web.StreamResponse:
        if methods is None:
            return await self._send(request, Answer(status=404, body=answers.NOT_FOUND))
        if request.method not in methods:
            return await self._send(request, _not_allowed(methods))
        if request.method == "POST" and request.path != "/ping":
            return await self._post(request)
        return await self._send(request, self._get(request.path))

    def _get(self, path: str) -> Answer:
        life = self._life
        if path in ("/health", "/ping"):
            return Answer(status=503 if life.dead else 200, content_type=None)
        if path == "/metrics":
            return Answer(body=life.page(), content_type=CONTENT_TYPES[self.setup.dialect])
        if path == "/version":
            version = VERSIONS[self.setup.dialect]
            rust = {"rust_frontend_version": version} if self.setup.dialect == "rust" else {}
            return Answer(body=answers.json_bytes({"version": version} | rust))
        if path == "/v1/models":
            return Answer(
                body=answers.models(
                    self._person.model,
                    self._person.root,
                    self._person.max_model_len,
                    int(time.time()),
                    life.new_id(),
                )
            )
        if path == "/openapi.json":
            return Answer(body=answers.openapi(self._routes))
        # it counts only with --enable-server-load-tracking
        return Answer(body=answers.json_bytes({"server_load": 0}))

    async def _post(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await _body(request)
        if body is None:
            return await self._send(request, Answer(status=413, body=answers.TOO_LARGE))
        kind, limits = request.headers.get("content-type", ""), self._life.limits
        if request.path == "/tokenize":
            ids = checks.read_tokenize(body, kind, limits)
            if isinstance(ids, checks.Refusal):
                return await self._send(request, Answer(status=ids.status, body=ids.body))
            tokens = answers.tokenized(ids, limits.max_model_len)
            return await self._send(request, Answer(body=tokens))
        ask = checks.read_ask(body, kind, _KINDS[request.path], limits)
        if isinstance(ask, checks.Refusal):
            return await self._send(request, Answer(status=ask.status, body=ask.body))
        return await self._speak(request, ask)

    async def _speak(self, request: web.BaseRequest, ask: checks.Ask) -> web.StreamResponse:
        life = self._life
        mishap = life.mishap()
        if life.dead or mishap == "error":
            return await self._send(request, Answer(status=500, body=answers.internal_error()))
        talk = life.talk(ask)
        async with contextlib.aclosing(talk.tokens):
            if ask.stream:
                return await self._stream(request, ask, talk, mishap)
            return await self._whole(request, talk, mishap)

    def _cache_headers(self, talk: Talk) -> tuple[tuple[str, str], ...]:
        if not (self.setup.cache_header and self._person.front.response_cache):
            return ()
        return (("x-cache", "HIT" if talk.from_cache else "MISS"),)

    async def _whole(
        self, request: web.BaseRequest, talk: Talk, mishap: Mishap | None
    ) -> web.StreamResponse:
        tokens: list[answers.Token] = []
        try:
            async for batch in talk.tokens:
                tokens += batch
        except EngineFailedError as error:
            return await self._send(
                request, Answer(status=500, body=answers.internal_error(str(error)))
            )
        if mishap == "stream_error":
            return await self._send(request, Answer(status=500, body=answers.internal_error()))
        text = "".join(token.piece for token in tokens)
        reason = tokens[-1].finish_reason or "length"
        body = answers.whole(talk.reply, text, reason, tokens[-1].count)
        answer = Answer(body=body, headers=self._cache_headers(talk))
        return await self._send(request, answer, cut=mishap == "cut")

    async def _stream(
        self,
        request: web.BaseRequest,
        ask: checks.Ask,
        talk: Talk,
        mishap: Mishap | None,
    ) -> web.StreamResponse:
        headers = _headers(answers.SSE_TYPE, self._cache_headers(talk))
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)  # a real server's headers come before any token, too
        last = self._life.mishap_token() if mishap else None
        try:
            async with contextlib.aclosing(_chunks(ask, talk, last)) as chunks:
                async for data in chunks:
                    await self._write(response, data)
        except _MishapError:
            if mishap == "cut":
                _cut(request)
                return response
            await self._write(response, answers.stream_error() + answers.DONE)
        except EngineFailedError as error:
            await self._write(response, answers.stream_error(str(error)) + answers.DONE)
        await response.write_eof()
        return response

    async def _send(
        self, request: web.BaseRequest, answer: Answer, *, cut: bool = False
    ) -> web.StreamResponse:
        """Send a whole answer; `cut` closes the connection in its middle."""
        extra = (*answer.headers, ("content-length", str(len(answer.body))))
        headers = _headers(answer.content_type, extra, vary=answer.vary)
        if not cut and self._person.front.drip_bytes_per_s is None:
            return web.Response(status=answer.status, body=answer.body, headers=headers)
        response = web.StreamResponse(status=answer.status, headers=headers)
        await response.prepare(request)
        await self._write(response, answer.body[: len(answer.body) // 2] if cut else answer.body)
        if cut:
            _cut(request)
        else:
            await response.write_eof()
        return response

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        """Write at once, or let it drip."""
        rate, wall_s = self._person.front.drip_bytes_per_s, self._person.engine.time_scale
        if rate is None or not wall_s:
            await response.write(data)
            return
        size = max(1, int(rate / wall_s * DRIP_TICK_S))
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            await response.write(piece)
            await asyncio.sleep(len(piece) * wall_s / rate)


_KINDS: dict[str, answers.Kind | None] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text",
    "/invocations": None,
}


class _MishapError(Exception):
    """The moment of a mishap has come."""


async def _chunks(ask: checks.Ask, talk: Talk, last: int | None) -> AsyncGenerator[bytes, None]:
    """Write out a stream; at token `last`, if any, a mishap comes instead of the token."""
    running = ask.include_usage and ask.continuous_usage
    # the role comes together with the first token, as recorded
    data = answers.opening(talk.reply, with_usage=running)
    said = 0
    async for batch in talk.tokens:
        for token in batch:
            if last is not None and (token.count >= last or token.finish_reason):
                if data:
                    yield data
                raise _MishapError
            said = token.count
            data += answers.token_chunk(
                talk.reply, token, with_usage=running, last_word=not ask.include_usage
            )
        yield data
        data = b""
    if ask.include_usage:
        data = answers.usage_chunk(talk.reply, said)
    yield data + answers.DONE


def _headers(
    content_type: str | None, extra: tuple[tuple[str, str], ...], *, vary: bool = True
) -> CIMultiDict[str]:
    """Lay the headers out in uvicorn's order."""
    headers = [("date", formatdate(usegmt=True)), ("server", "uvicorn"), *extra]
    if content_type:
        headers.append(("content-type", content_type))
    if vary:
        headers.append(("vary", "Origin"))
    return CIMultiDict(headers)


def _not_allowed(methods: tuple[str, ...]) -> Answer:
    allow = (("allow", ", ".join(methods)),)
    return Answer(status=405, body=answers.METHOD_NOT_ALLOWED, headers=allow)


async def _body(request: web.BaseRequest) -> bytes | None:
    """Read the request's body; None when it is too long."""
    if (
        request.version >= HttpVersion11
        and request.headers.get("expect", "").lower() == "100-continue"
    ):
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # or aiohttp takes it for the answer's beginning
    body = bytearray()
    async for piece in request.content.iter_any():
        body += piece
        if len(body) > BODY_LIMIT:
            return None
    return bytes(body)


def _cut(request: web.BaseRequest) -> None:
    if request.transport:
        request.transport.close()


@dataclasses.dataclass(frozen=True, slots=True)
class SimThread:
    """A simulated server that runs in a thread of its own."""

    url: str
    server: SimServer
    _loop: asyncio.AbstractEventLoop

    def call(self, function: Callable[[], object]) -> None:
        """Have the server's thread call it, e.g., `sim.call(sim.server.kill_engine)`."""
        self._loop.call_soon_threadsafe(function)


@contextlib.contextmanager
def serve_in_thread(name: str = "gptq-int4", /, **changes: object) -> Iterator[SimThread]:
    """Run one of the cast beside the caller; changes as for `setup_for`.

    What breaks in the server is raised at the end.
    """
    chosen = setup_for(name, **changes)
    started: concurrent.futures.Future[tuple[SimThread, asyncio.Event]] = (
        concurrent.futures.Future()
    )

    async def live() -> None:
        stop = asyncio.Event()
        async with SimServer(chosen) as server:
            sim = SimThread(server.url, server, asyncio.get_running_loop())
            started.set_result((sim, stop))
            await stop.wait()

    with concurrent.futures.ThreadPoolExecutor(1, "sim") as pool:
        lived = pool.submit(asyncio.run, live())
        either: list[concurrent.futures.Future[Any]] = [started, lived]
        concurrent.futures.wait(either, return_when=concurrent.futures.FIRST_COMPLETED)
        if not started.done():
            lived.result()
        sim, stop = started.result()
        try:
            yield sim
        finally:
            sim.call(stop.set)
            lived.result()
