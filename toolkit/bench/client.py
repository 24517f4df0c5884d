"""One host's own client: aiohttp, timed requests in, Shots out. It touches the network and the clock.

Every host has its own pool of connections and its own deadlines, so that one that hangs slows nobody.
Only the host's own address is contacted: no redirect, no proxy from the environment, no cookie.
"""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp
import orjson

from toolkit.bench.asks import Ask
from toolkit.bench.shots import Course, Failure, Heard, Moments, shot
from toolkit.completion import Answer, Completion
from toolkit.dialects import EngineNumbers, read_numbers
from toolkit.promtext import read_page
from toolkit.records import Host, ServedModel, Shot

CHAT = "/v1/chat/completions"
CONNECT_TIMEOUT_S = 10.0
PAGE_TIMEOUT_S = 5.0
MAX_PAGE_BYTES = 16 * 2**20
IDLE_CONNECTION_S = 3.0
"""uvicorn, and with it vLLM, closes a connection that was idle for 5 s; a request that leaves in that moment would
fail for no fault of the host's."""
AFTER_DONE_S = 0.05
"""How long the end of the HTTP body may come after `[DONE]` before the connection is given up."""
HANDSHAKES = 3
CACHE_HEADERS = ("Cache-Status", "X-Cache")


class PageError(Exception):
    """A page did not come; the text says why, in the words of a row's `error`."""

    def __init__(self, message: str, *, answered: bool = True) -> None:
        """`answered` False: there was no HTTP answer at all, the host is down or hangs."""
        super().__init__(message)
        self.answered = answered


@dataclass(slots=True)
class _Reply:
    """What was heard of one answer so far."""

    status: int | None = None
    cache_status: str | None = None
    reader: Completion | None = None


class HostClient:
    """Sends requests to one host and times them; use it as `async with`."""

    def __init__(
        self,
        host: Host,
        *,
        tls: ssl.SSLContext | bool = True,
        key: str | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        """`key` is sent as a bearer token; `timeout_s` covers one request from its planned send."""
        self.host = host
        self._tls = tls
        self._key = key
        self._timeout_s = timeout_s
        self._headers = {"Content-Type": "application/json"} | self._authorization()
        self._metrics_need_key = False

    async def __aenter__(self) -> Self:
        # the plan limits how much is under way, so the pool does not
        connector = aiohttp.TCPConnector(
            limit=0, ssl=self._tls, keepalive_timeout=IDLE_CONNECTION_S, ttl_dns_cache=None
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity", "User-Agent": "llm-serving-toolkit"},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            trust_env=False,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._session.close()

    # --- one timed request ---------------------------------------------------------------------

    async def send(self, course: Course, ask: Ask, planned_s: float) -> Shot:
        """Send one request now and read its answer to the end; every failure becomes a Shot, too."""
        body = orjson.dumps(ask.body)
        reply = _Reply()
        failure: Failure | None = None
        sent_s = time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, planned_s + self._timeout_s - sent_s)):
                await self._ask(body, reply)
        except (aiohttp.ClientError, OSError, ValueError) as error:  # TimeoutError is an OSError
            failure = Failure(kind=_kind(error), error=self._sentence(error))
        ended_s = time.monotonic()
        answer = _answer(reply, ended_s, failure)
        heard = Heard(
            answer=answer,
            # what breaks after `[DONE]` broke no answer
            failure=None if answer and answer.ok else failure,
            status=reply.status,
            cache_status=reply.cache_status,
        )
        moments = Moments(planned_s=planned_s, sent_s=sent_s, ended_s=ended_s)
        timed = shot(course, ask, moments, heard)
        return self._without_key(timed)

    async def _ask(self, body: bytes, reply: _Reply) -> None:
        """Post and read; what came before an exception stays in `reply`."""
        async with self._session.post(
            self.host.url + CHAT, data=body, headers=self._headers, allow_redirects=False
        ) as response:
            reply.status = response.status
            reply.cache_status = _first(response.headers, CACHE_HEADERS)
            content_type = response.headers.get("Content-Type", "")
            reader = reply.reader = Completion(status=response.status, content_type=content_type)
            read, feed, now = response.content.readany, reader.feed, time.monotonic
            while data := await read():
                feed(data, now())
                if reader.finished or reader.too_large:
                    break
            if reader.finished and not response.content.at_eof():
                # what may follow is the end of the body, which lets the connection be used again
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(AFTER_DONE_S):
                        await read()

    def _without_key(self, timed: Shot) -> Shot:
        """Take the key out of an error in which the host repeats it."""
        if self._key and timed.error and self._key in timed.error:
            return replace(timed, error=timed.error.replace(self._key, "***"))
        return timed

    def _sentence(self, error: BaseException) -> str:
        """Say what went wrong in one line."""
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return f"no connection within {CONNECT_TIMEOUT_S:g} s"
        if isinstance(error, TimeoutError):
            return f"no whole answer within {self._timeout_s:g} s"
        if isinstance(error, aiohttp.ServerDisconnectedError):
            return "the connection was closed before an answer came"
        if isinstance(error, aiohttp.ClientConnectorError):
            reason = error.os_error.strerror or str(error.os_error)
            return f"no connection: {reason.lower()}"
        return " ".join(str(error).split())[:300] or type(error).__name__

    # --- what the host says of itself ------------------------------------------------------------

    async def models(self) -> tuple[ServedModel, ...]:
        """What `/v1/models` lists. Raises PageError when it does not come or lists nothing readable."""
        status, _, body = await self._get("/v1/models", with_key=True)
        if status != 200:
            raise PageError(f"`/v1/models` answered {status}")
        return _models(body)

    async def numbers(self) -> EngineNumbers:
        """What `/metrics` counts. Raises PageError when it does not come or is no known engine's.

        The key goes there only after the page refused without it.
        """
        status, content_type, body = await self._get("/metrics", with_key=self._metrics_need_key)
        if status in (401, 403) and self._key and not self._metrics_need_key:
            self._metrics_need_key = True
            status, content_type, body = await self._get("/metrics", with_key=True)
        if status != 200:
            raise PageError(f"`/metrics` answered {status}")
        text = body.decode("utf-8", "replace")
        # 47 KB take 1 ms; a page that would hold up the clock is read in a thread
        read = asyncio.to_thread(_numbers, text, content_type) if len(body) > 2**18 else None
        numbers = await read if read else _numbers(text, content_type)
        if numbers is None:
            raise PageError("`/metrics` is no page of a known engine")
        return numbers

    async def open_connections(self, count: int) -> None:
        """Have connections ready, so that no first request pays for its handshake."""
        await asyncio.gather(
            *(self._get("/v1/models", with_key=True) for _ in range(count)), return_exceptions=True
        )

    async def rtt_ms(self) -> float | None:
        """The shortest of a few TCP handshakes; None when none succeeds."""
        found = [await self._handshake_ms() for _ in range(HANDSHAKES)]
        return min((each for each in found if each is not None), default=None)

    async def _handshake_ms(self) -> float | None:
        url = urlsplit(self.host.url)
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            async with asyncio.timeout(PAGE_TIMEOUT_S):
                address = await _address(url.hostname or "", port)
                started_s = time.monotonic()
                _, writer = await asyncio.open_connection(address, port)
                took_s = time.monotonic() - started_s
        except OSError:
            return None
        writer.close()
        return took_s * 1000

    async def _get(self, path: str, *, with_key: bool) -> tuple[int, str, bytes]:
        """Status, content type and body. Raises PageError."""
        try:
            async with (
                asyncio.timeout(PAGE_TIMEOUT_S),
                self._session.get(
                    self.host.url + path,
                    headers=self._authorization() if with_key else None,
                    allow_redirects=False,
                ) as response,
            ):
                body = await _body(response, path)
                return response.status, response.headers.get("Content-Type", ""), body
        except TimeoutError as error:
            late = f"`{path}` did not finish within {PAGE_TIMEOUT_S:g} s"
            raise PageError(late, answered=False) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise PageError(f"`{path}`: {self._sentence(error)}", answered=False) from error

    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}


def _answer(reply: _Reply, ended_s: float, failure: Failure | None) -> Answer | None:
    if reply.reader is None:
        return None
    return reply.reader.end(ended_s, broken=failure.error if failure else None)


def _kind(error: BaseException) -> str:
    """The kind of a failure that is not the answer's own."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return "connect"
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, (aiohttp.ClientSSLError, ssl.SSLError)):
        return "tls"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "connect"
    if isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError, OSError)):
        return "cut"
    return "garbage"


def _first(headers: Mapping[str, str], names: Sequence[str]) -> str | None:
    return next((headers[name] for name in names if name in headers), None)


async def _body(response: aiohttp.ClientResponse, path: str) -> bytes:
    """Read a page. Raises PageError past MAX_PAGE_BYTES."""
    body = bytearray()
    while data := await response.content.readany():
        body += data
        if len(body) > MAX_PAGE_BYTES:
            raise PageError(f"`{path}` is longer than {MAX_PAGE_BYTES // 2**20} MiB")
    return bytes(body)


async def _address(hostname: str, port: int) -> str:
    """Look a name up once, so that a handshake's time is the network's alone."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(hostname, port, type=socket.SOCK_STREAM)
    return str(found[0][4][0])


def _numbers(text: str, content_type: str) -> EngineNumbers | None:
    return read_numbers(read_page(text), content_type)


def _models(body: bytes) -> tuple[ServedModel, ...]:
    """Read the list, base models first as vLLM sends them. Raises PageError."""
    try:
        entries = orjson.loads(body)["data"]
        models = [_model(entry) for entry in entries]
    except (ValueError, TypeError, KeyError) as error:
        raise PageError("`/v1/models` is not the list that OpenAI's API has") from error
    found = tuple(model for model in models if model)
    if not found:
        raise PageError("`/v1/models` lists no model")
    return found


def _model(entry: Any) -> ServedModel | None:
    if not isinstance(entry, dict):
        return None
    name, root, length = (entry.get(key) for key in ("id", "root", "max_model_len"))
    if not isinstance(name, str) or not name:
        return None
    return ServedModel(
        id=name,
        root=root if isinstance(root, str) else None,
        max_model_len=length if type(length) is int and length > 0 else None,
    )
