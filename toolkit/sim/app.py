"""The simulated server on a real socket: HTTP as vLLM 0.32.0 speaks it. The one file that opens sockets."""

import asyncio
import concurrent.futures
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any, Self

from aiohttp import HttpVersion11, web
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict

from toolkit.sim import answers, validation
from toolkit.sim.metrics_page import CONTENT_TYPES
from toolkit.sim.presets import VERSIONS, Dialect, Setup, setup_for
from toolkit.sim.state import Answer, EngineFailedError, Fault, ServerState

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
KINDS: dict[str, answers.Kind | None] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text",
    "/invocations": None,
}


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
        self._state = ServerState(setup)
        self._future: asyncio.Task[None] | None = None
        """What time brings: the end of the start-up, a switcher's downtime, the end after the engine's."""

    @property
    def url(self) -> str:
        """The base URL, known before the server listens."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.setup.host, self.setup.host)  # noqa: S104 (compared, not bound)
        return f"http://{f'[{host}]' if ':' in host else host}:{self._port}"

    async def __aenter__(self) -> Self:
        self._reserve()
        if not self.setup.startup_s:
            await self._come_up()
        self._future = asyncio.create_task(self._live())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._future:
            self._future.cancel()
            await asyncio.gather(self._future, return_exceptions=True)
        await self._go_down()
        if self._reserved:
            self._reserved.close()

    def kill_engine(self) -> None:
        """Lose the engine, as a crash would; the server itself follows within a second."""
        self._state.kill_engine()
        if self._future:
            self._future.cancel()
        self._future = asyncio.create_task(self._follow_engine())

    def change_now(self) -> None:
        """Let one that has a later self fall at once, not when its time comes; nothing happens to another."""
        if self.setup.later and self.listening.is_set() and self._future:
            self._future.cancel()
            self._future = asyncio.create_task(self._change())

    async def _live(self) -> None:
        if self.setup.startup_s:
            await asyncio.sleep(self.setup.startup_s)
            await self._come_up()
        if self.setup.down_after_s is not None:
            await asyncio.sleep(self.setup.down_after_s * self.setup.time_scale)
            await self._change()

    async def _change(self) -> None:
        """Refuse connections for the downtime, and come back as what it is later."""
        await self._go_down()
        self._reserve()
        await asyncio.sleep(self.setup.down_for_s * self.setup.time_scale)
        self.setup = self.setup.later or self.setup
        await self._come_up()

    async def _follow_engine(self) -> None:
        await asyncio.sleep(DEATH_LINGER_S * self.setup.time_scale)
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
        """Start anew and listen."""
        self._state = ServerState(self.setup)
        self._state.start()
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
        """Stop listening, cut every connection, and end the engines."""
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
        await self._state.stop()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        state, begun = self._state, time.monotonic()
        if not self._may_enter(request):
            return await self._send(request, answers.UNAUTHORIZED, status=401, vary=False)
        methods = self._routes.get(request.path)
        try:
            if methods is None:
                response = await self._send(request, answers.NOT_FOUND, status=404)
            elif request.method not in methods:
                allow = [("allow", ", ".join(methods))]
                body = answers.METHOD_NOT_ALLOWED
                response = await self._send(request, body, status=405, headers=allow)
            elif request.method == "POST" and request.path != "/ping":
                response = await self._post(request)
            else:
                response = await self._get(request)
        except ConnectionResetError:  # the client left; what it asked for is dropped by now
            return web.Response()
        state.http.observe(
            request.path if methods and request.method in methods else "none",
            request.method,
            response.status,
            request_bytes=request.content_length or 0,
            response_bytes=response.content_length or 0,
            duration_s=time.monotonic() - begun,
            now_s=time.time(),
        )
        return response

    def _may_enter(self, request: web.BaseRequest) -> bool:
        """The API-key rule: only some path prefixes are guarded, everything else is open."""
        if (
            self.setup.api_key is None
            or request.method == "OPTIONS"
            or not request.path.startswith(GUARDED[self.setup.dialect])
        ):
            return True
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and key == self.setup.api_key

    async def _get(self, request: web.BaseRequest) -> web.StreamResponse:
        setup, state = self.setup, self._state
        match request.path:
            case "/health" | "/ping":
                status = 503 if state.dead else 200
                return await self._send(request, b"", status=status, content_type=None)
            case "/metrics":
                content_type = CONTENT_TYPES[setup.dialect]
                return await self._send(request, state.page(), content_type=content_type)
            case "/version":
                version = VERSIONS[setup.dialect]
                rust = {"rust_frontend_version": version} if setup.dialect == "rust" else {}
                body = answers.json_bytes({"version": version} | rust)
            case "/v1/models":
                now_s, permission = int(time.time()), state.new_id()
                body = answers.models(
                    setup.model, setup.root, setup.max_model_len, now_s, permission
                )
            case "/openapi.json":
                body = answers.openapi(self._routes)
            case _:  # /load, which counts only with --enable-server-load-tracking
                body = answers.json_bytes({"server_load": 0})
        return await self._send(request, body)

    async def _post(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await _body(request)
        if body is None:
            return await self._send(request, answers.TOO_LARGE, status=413)
        content_type = request.headers.get("content-type", "")
        try:
            if request.path == "/tokenize":
                ids = validation.read_tokenize(body, content_type, self.setup)
                return await self._send(request, answers.tokenized(ids, self.setup.max_model_len))
            kind = KINDS[request.path]
            asked = validation.read_request(body, content_type, kind, self.setup)
        except validation.Refused as refused:
            return await self._send(request, refused.body, status=refused.status)
        fault = self._state.fault()
        if self._state.dead or fault == "error":
            return await self._send(request, answers.internal_error(), status=500)
        answer = self._state.answer(asked)
        headers = []
        if self.setup.cache_header and self.setup.response_cache:
            headers.append(("x-cache", "HIT" if answer.from_cache else "MISS"))
        async with contextlib.aclosing(answer.tokens):
            if asked.fields.stream:
                return await self._stream(request, asked, answer, fault, headers)
            return await self._whole(request, answer, fault, headers)

    async def _whole(
        self,
        request: web.BaseRequest,
        answer: Answer,
        fault: Fault | None,
        headers: list[tuple[str, str]],
    ) -> web.StreamResponse:
        tokens: list[answers.Token] = []
        try:
            async for batch in answer.tokens:
                tokens += batch
        except EngineFailedError as error:
            return await self._send(request, answers.internal_error(str(error)), status=500)
        if fault == "stream_error":
            return await self._send(request, answers.internal_error(), status=500)
        text = "".join(token.piece for token in tokens)
        reason = tokens[-1].finish_reason or "length"
        body = answers.whole(answer.frame, text, reason, tokens[-1].output_tokens)
        return await self._send(request, body, headers=headers, cut=fault == "cut")

    async def _stream(
        self,
        request: web.BaseRequest,
        asked: validation.TextRequest,
        answer: Answer,
        fault: Fault | None,
        headers: list[tuple[str, str]],
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=_headers(answers.SSE_TYPE, headers))
        await response.prepare(request)  # a real server's headers come before any token, too
        options = asked.fields.stream_options
        with_usage = bool(options and options.include_usage)
        running = bool(options and with_usage and options.continuous_usage_stats)
        last = self._state.fault_token() if fault else None
        # the role comes together with the first token, as recorded
        data, said = answers.opening(answer.frame, with_usage=running), 0
        try:
            async for batch in answer.tokens:
                for token in batch:
                    if last is not None and (token.output_tokens >= last or token.finish_reason):
                        if fault == "cut":
                            await self._write(response, data)
                            _cut(request)
                        else:
                            await self._write(response, data + answers.stream_error())
                            await response.write_eof()
                        return response
                    said = token.output_tokens
                    data += answers.token_chunk(
                        answer.frame, token, with_usage=running, last_word=not with_usage
                    )
                await self._write(response, data)
                data = b""
            usage = answers.usage_chunk(answer.frame, said) if with_usage else b""
            await self._write(response, usage + answers.DONE)
        except EngineFailedError as error:
            await self._write(response, answers.stream_error(str(error)))
        await response.write_eof()
        return response

    async def _send(
        self,
        request: web.BaseRequest,
        body: bytes,
        *,
        status: int = 200,
        content_type: str | None = answers.JSON_TYPE,
        headers: Sequence[tuple[str, str]] = (),
        vary: bool = True,
        cut: bool = False,
    ) -> web.StreamResponse:
        """Send a whole answer; `cut` closes the connection in its middle.

        `vary` is False only for 401, which a layer outside of the one that adds `vary` answers.
        """
        more = (*headers, ("content-length", str(len(body))))
        laid_out = _headers(content_type, more, vary=vary)
        if not cut and self.setup.drip_bytes_per_s is None:
            return web.Response(status=status, body=body, headers=laid_out)
        response = web.StreamResponse(status=status, headers=laid_out)
        await response.prepare(request)
        await self._write(response, body[: len(body) // 2] if cut else body)
        if cut:
            _cut(request)
        else:
            await response.write_eof()
        return response

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        """Write at once, or let it drip."""
        rate, scale = self.setup.drip_bytes_per_s, self.setup.time_scale
        if rate is None or not scale:
            await response.write(data)
            return
        size = max(1, int(rate / scale * DRIP_TICK_S))
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            await response.write(piece)
            await asyncio.sleep(len(piece) * scale / rate)


def _headers(
    content_type: str | None, more: Sequence[tuple[str, str]], *, vary: bool = True
) -> CIMultiDict[str]:
    """Lay the headers out in uvicorn's order."""
    headers = [("date", formatdate(usegmt=True)), ("server", "uvicorn"), *more]
    if content_type:
        headers.append(("content-type", content_type))
    if vary:
        headers.append(("vary", "Origin"))
    return CIMultiDict(headers)


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


class Fleet:
    """`async with Fleet(setups) as fleet:` starts all servers; they listen when it is entered."""

    def __init__(self, setups: dict[str, Setup]) -> None:
        self.servers = {name: SimServer(setup) for name, setup in setups.items()}
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            for server in self.servers.values():
                await stack.enter_async_context(server)
            await asyncio.gather(*(server.listening.wait() for server in self.servers.values()))
            self._stack = stack.pop_all()  # all are up: only now keep them
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def change_now(self) -> None:
        """Let every switcher fall at once."""
        for server in self.servers.values():
            server.change_now()

    def hosts(self, option: str = "") -> str:
        """The text of a hosts.txt: a name, a URL, and an option like `api_key_env=KEY` on each line."""
        width = max(len(name) for name in self.servers)
        return "".join(
            f"{name:<{width}} {server.url} {option}".rstrip() + "\n"
            for name, server in self.servers.items()
        )


@dataclass(frozen=True, slots=True)
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
    """Run one beside the caller; changes as for `setup_for`.

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
