"""One host's own client: timed requests in, Shots out, over aiohttp. It touches the network and the clock.

Every host has its own pool of connections and its own deadlines, so that one that hangs slows nobody.
Only the host's own address is contacted: no redirect but to another of its pages, no proxy from the environment, no cookie.
"""

import asyncio
import contextlib
import io
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urljoin, urlsplit

import aiohttp
import orjson

from toolkit.bench.asks import PlannedRequest
from toolkit.bench.connections import IDLE_S, CachedResolver, Connections, addresses, taken
from toolkit.bench.faults import FAULTS, Timeouts, failure, line, without_key
from toolkit.bench.shots import Failure, Heard, Moments, ShotContext, shot
from toolkit.hosts import same_origin
from toolkit.metrics.dialects import EngineNumbers, read_numbers
from toolkit.metrics.parser import read_page
from toolkit.protocol.completion import Answer, Completion
from toolkit.records import Host, ServedModel, Shot

CHAT = "/v1/chat/completions"
CONNECT_TIMEOUT_S = 10.0
PAGE_TIMEOUT_S = 5.0
MAX_PAGE_BYTES = 16 * 2**20
MAX_REDIRECTS = 3
LONG_PAGE_BYTES = 2**18
"""Longer ones are read in a thread, or they would hold up the clock: 56 KB take 0.7 ms."""
MAX_MODEL_CHARACTERS = 300
"""Of a served model's name, which every request carries."""
MAX_COUNT = 2**53
LONG_BODY_BYTES = 2**18
AFTER_DONE_S = 0.05
"""How long the end of the HTTP body may come after `[DONE]` before the connection is given up."""
HANDSHAKES = 3
CACHE_HEADERS = ("Cache-Status", "X-Cache")
LOST = (
    aiohttp.ServerDisconnectedError,
    aiohttp.ClientOSError,
    aiohttp.ClientConnectionResetError,
)
LEAST_IDLE_S, CROSSING_S = 0.5, 0.25
"""A host may close a connection that was idle for so long, and a request may cross that on its way: then the end comes
within a round trip. Outside of these the host had the request, and its silence counts."""


class PageError(Exception):
    """A page did not come; the text says why, in the words of a row's `error`."""

    def __init__(self, message: str, *, answered: bool = True) -> None:
        """`answered` False: there was no HTTP answer at all, the host is down or hangs."""
        super().__init__(message)
        self.answered = answered


@dataclass(slots=True)
class ReceivedAnswer:
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
        self._limits = Timeouts(connect_s=CONNECT_TIMEOUT_S, whole_s=timeout_s)
        self._headers = {"Content-Type": "application/json"} | self._authorization()
        self._metrics_need_key = False

    async def __aenter__(self) -> Self:
        # the plan limits how much is under way, so the pool does not
        connector = Connections(
            limit=0,
            ssl=self._tls,
            keepalive_timeout=IDLE_S,
            ttl_dns_cache=None,
            resolver=CachedResolver(),
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity", "User-Agent": "llm-serving-toolkit"},
            # `connect` is the one that a slow name lookup falls under
            timeout=aiohttp.ClientTimeout(
                total=None, connect=CONNECT_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S
            ),
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

    async def send(self, course: ShotContext, ask: PlannedRequest, planned_s: float) -> Shot:
        """Send one request now and read its answer to the end; every failure becomes a Shot, too."""
        body = orjson.dumps(ask.body)
        reply = ReceivedAnswer()
        broken: Failure | None = None
        sent_s = time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, planned_s + self._timeout_s - sent_s)):
                await self._ask_until_read(body, reply)
        except FAULTS as error:
            broken = failure(error, self._limits, self._key)
        answer = _answer(reply, time.monotonic(), broken)
        heard = Heard(
            answer=answer,
            failure=broken if _was_cut(answer) else None,
            status=reply.status,
            cache_status=reply.cache_status,
        )
        ended_s = answer.ended_at if answer else time.monotonic()
        moments = Moments(planned_s=planned_s, sent_s=sent_s, ended_s=ended_s)
        return without_key(shot(course, ask, moments, heard), self._key)

    async def _ask_until_read(self, body: bytes, reply: ReceivedAnswer) -> None:
        """Ask; ask again what the host cannot have read, because it was closing that connection meanwhile.

        It ends: each time uses up an idle connection, and a new one is given no second chance.
        """
        while True:
            sent_s = time.monotonic()
            try:
                return await self._ask(body, reply)
            except LOST:
                crossed = _was_idle() and time.monotonic() - sent_s <= CROSSING_S
                if reply.status is not None or not crossed:
                    raise

    async def _ask(self, body: bytes, reply: ReceivedAnswer) -> None:
        """Post and read; what came before an exception stays in `reply`."""
        # a long prompt is written piece by piece, so that it holds up no stream
        data = body if len(body) <= LONG_BODY_BYTES else io.BytesIO(body)
        async with self._session.post(
            self.host.url + CHAT, data=data, headers=self._headers, allow_redirects=False
        ) as response:
            reply.status = response.status
            reply.cache_status = _first(response.headers, CACHE_HEADERS)
            content_type = response.headers.get("Content-Type", "")
            reply.reader = Completion(status=response.status, content_type=content_type)
            await _read(response.content, reply.reader)

    # --- what the host says of itself ------------------------------------------------------------

    async def models(self) -> tuple[ServedModel, ...]:
        """What `/v1/models` lists. Raises PageError when it does not come or lists nothing readable."""
        status, _, body = await self._get("/v1/models", with_key=True)
        if status != 200:
            raise PageError(f"`/v1/models` answered {status}")
        return read_models(body)

    async def numbers(self, *, most_bytes: int = MAX_PAGE_BYTES) -> EngineNumbers:
        """What `/metrics` counts. Raises PageError when it does not come or is no known engine's.

        The key goes there only after the page refused without it.
        """
        with_key = self._metrics_need_key
        status, kind, body = await self._get("/metrics", with_key=with_key, most_bytes=most_bytes)
        if status in (401, 403) and self._key and not with_key:
            self._metrics_need_key = True
            status, kind, body = await self._get("/metrics", with_key=True, most_bytes=most_bytes)
        if status != 200:
            raise PageError(f"`/metrics` answered {status}")
        if len(body) > LONG_PAGE_BYTES:
            numbers = await asyncio.to_thread(_numbers, body, kind)
        else:
            numbers = _numbers(body, kind)
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
        url = urlsplit(self.host.url)
        port = url.port or (443 if url.scheme == "https" else 80)
        with contextlib.suppress(OSError):  # TimeoutError is one
            async with asyncio.timeout(PAGE_TIMEOUT_S):
                # a name is looked up once, so that a handshake's time is the network's alone
                for _, address in await addresses(url.hostname or "", port):
                    with contextlib.suppress(OSError):
                        return min([await _handshake_ms(address, port) for _ in range(HANDSHAKES)])
        return None

    async def _get(
        self, path: str, *, with_key: bool, most_bytes: int = MAX_PAGE_BYTES
    ) -> tuple[int, str, bytes]:
        """Status, content type and body. Raises PageError."""
        url = self.host.url + path
        try:
            async with asyncio.timeout(PAGE_TIMEOUT_S):
                for _ in range(MAX_REDIRECTS + 1):
                    async with self._session.get(
                        url,
                        headers=self._authorization() if with_key else None,
                        allow_redirects=False,
                    ) as response:
                        body = await _body(response, path, most_bytes)
                    # LiteLLM's metrics stand at /metrics/, and /metrics says so
                    target = urljoin(url, response.headers.get("Location", url))
                    elsewhere = target == url or not same_origin(self.host.url, target)
                    if not 300 <= response.status < 400 or elsewhere:
                        break
                    url = target
        except TimeoutError as error:
            late = f"`{path}` did not finish within {PAGE_TIMEOUT_S:g} s"
            raise PageError(late, answered=False) from error
        except FAULTS as error:
            why = failure(error, self._limits, self._key).error
            raise PageError(f"`{path}`: {why}", answered=False) from error
        if self._key:
            body = body.replace(self._key.encode(), b"***")
        return response.status, response.headers.get("Content-Type", ""), body

    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}


# --- reading -------------------------------------------------------------------------------------------


def _was_idle() -> bool:
    """Whether the last request took a connection that its host may have been about to close."""
    wire = taken.get()
    return wire is not None and wire.idle_s is not None and wire.idle_s >= LEAST_IDLE_S


async def _read(content: aiohttp.StreamReader, reader: Completion) -> None:
    """Read an answer to its end; each piece counts from the moment in which it was read from the socket."""
    wire = taken.get()
    if wire is None:
        raise RuntimeError("an answer came over no connection")

    def feed(data: bytes, at: float) -> bool:
        reader.feed(data, at)
        return not (reader.finished or reader.too_large)

    await wire.pour(content, feed)
    if reader.finished and not content.at_eof():
        # what may follow is the end of the body, which lets the connection be used again
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AFTER_DONE_S):
                while await content.readany():
                    pass


def _answer(reply: ReceivedAnswer, ended_s: float, broken: Failure | None) -> Answer | None:
    if reply.reader is None:
        return None
    return reply.reader.end(ended_s, broken=broken.error if broken else None)


def _was_cut(answer: Answer | None) -> bool:
    """Whether a failure of the connection is what is wrong: not after `[DONE]`, and not with an answer of its own fault."""
    return answer is None or answer.error_kind == "cut"


def _first(headers: Mapping[str, str], names: Sequence[str]) -> str | None:
    """The first of some headers, fit for a screen and for the store: a byte that is no UTF-8 is in neither."""
    return next((line(headers[name]) for name in names if name in headers), None)


async def _body(response: aiohttp.ClientResponse, path: str, most_bytes: int) -> bytes:
    """Read a page. Raises PageError past `most_bytes`."""
    body = bytearray()
    while data := await response.content.readany():
        body += data
        if len(body) > most_bytes:
            raise PageError(f"`{path}` is longer than {most_bytes // 2**20} MiB")
    return bytes(body)


async def _handshake_ms(address: str, port: int) -> float:
    started_s = time.monotonic()
    _, writer = await asyncio.open_connection(address, port)
    took_s = time.monotonic() - started_s
    writer.close()
    return took_s * 1000


def _numbers(body: bytes, content_type: str) -> EngineNumbers | None:
    return read_numbers(read_page(body.decode("utf-8", "replace")), content_type)


def read_models(body: bytes) -> tuple[ServedModel, ...]:
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
    if not isinstance(name, str) or not 0 < len(name) <= MAX_MODEL_CHARACTERS:
        return None
    return ServedModel(
        id=name,
        root=line(root) if isinstance(root, str) else None,
        max_model_len=length if type(length) is int and 0 < length < MAX_COUNT else None,
    )
