"""One host's own client: timed requests in, records out, over aiohttp. It touches the network and the clock.

Every host has its own pool of connections and its own deadlines, so that one that hangs slows nobody.
Only the host's own address is contacted: no redirect but to another of its pages, no proxy from the environment, no cookie.
"""

import asyncio
import contextlib
import io
import ssl
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import urljoin, urlsplit

import aiohttp
import orjson

from toolkit.bench.connections import IDLE_S, CachedResolver, Connections, addresses, taken
from toolkit.bench.faults import FAULTS, failure, line, without_key
from toolkit.bench.plan import CHAT, EMBEDDINGS
from toolkit.bench.random_prompts import CALIBRATION_S, NotCountedError
from toolkit.bench.request_record import Failure, RequestContext, Response, request_record
from toolkit.bench.requests import PlannedRequest, request_body, text_of
from toolkit.hosts import path_hint, same_origin
from toolkit.metrics.dialects import EngineNumbers, read_numbers
from toolkit.metrics.parser import read_page
from toolkit.profiles import Message
from toolkit.protocol.completion import Completion, token_count
from toolkit.protocol.embeddings import Embeddings
from toolkit.records import Host, RequestRecord, ServedModel
from toolkit.scout.tls_probe import WANTS_TLS, refuses_plain_http, speaks_tls

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


class HostClient:
    """Sends requests to one host and times them; use it as `async with`."""

    def __init__(
        self,
        host: Host,
        *,
        tls: ssl.SSLContext | bool = True,
        key: str | None = None,
        timeout_s: float = 120.0,
        endpoint: str = CHAT,
    ) -> None:
        """`key` is sent as a bearer token; `timeout_s` covers one request from its planned send; `endpoint`: what is asked."""
        self.host = host
        self._tls = tls
        self._key = key
        self._timeout_s = timeout_s
        self._endpoint = endpoint
        self._can_tokenize = True
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

    async def send(
        self, context: RequestContext, request: PlannedRequest, planned_s: float
    ) -> RequestRecord:
        """Send one request now and read its answer to the end; every failure becomes a record, too."""
        response, sent_s, ended_s = await self.exchange(request.body, planned_s + self._timeout_s)
        record = request_record(
            context, request, response, planned_s=planned_s, sent_s=sent_s, ended_s=ended_s
        )
        return without_key(record, self._key)

    async def exchange(self, body: dict[str, Any], until_s: float) -> tuple[Response, float, float]:
        """Send a request and read its answer until a moment: what came back, when it was sent, and when it was over.

        It is sent again where the host cannot have read it, because it was closing that connection meanwhile. That has an
        end: each time uses up an idle connection, and a new one is given no second chance.
        """
        data = orjson.dumps(body)
        status: int | None = None
        cache_status: str | None = None
        reader: Completion | None = None
        broken: Failure | None = None
        sent_s = tried_s = time.monotonic()
        while True:
            try:
                async with (
                    asyncio.timeout(max(0.0, until_s - tried_s)),
                    self._session.post(
                        self.host.url + self._endpoint,
                        # a long prompt is written piece by piece, so that it holds up no stream
                        data=data if len(data) <= LONG_BODY_BYTES else io.BytesIO(data),
                        headers=self._headers,
                        allow_redirects=False,
                    ) as response,
                ):
                    status, headers = response.status, response.headers
                    present = (headers[name] for name in CACHE_HEADERS if name in headers)
                    # fit for a screen and for the store: a byte that is no UTF-8 is in neither
                    cache_status = next(map(line, present), None)
                    content_type = headers.get("Content-Type", "")
                    kind = Embeddings if self._endpoint == EMBEDDINGS else Completion
                    reader = kind(status=status, content_type=content_type)
                    await _read(response.content, reader)
            except FAULTS as error:
                connection = taken.get()
                idle_s = connection.idle_s if connection else None
                was_idle = idle_s is not None and idle_s >= LEAST_IDLE_S
                lost_s = time.monotonic()
                crossed = isinstance(error, LOST) and was_idle and lost_s - tried_s <= CROSSING_S
                if status is None and crossed:
                    tried_s = lost_s
                    continue
                broken = self._failure(error)
            break
        ended_s = time.monotonic()
        if reader is None:
            return Response(failure=broken, status=status), sent_s, ended_s
        answer = reader.end(ended_s, broken=broken.error if broken else None)
        found = Response(
            answer=answer,
            # after `[DONE]`, or with an answer of its own fault, the connection's failure is not what is wrong
            failure=broken if answer.error_kind == "cut" else None,
            status=status,
            cache_status=cache_status,
        )
        return found, sent_s, answer.ended_at

    # --- what the host says of itself ------------------------------------------------------------

    async def models(self) -> tuple[ServedModel, ...]:
        """What `/v1/models` lists. Raises PageError when it does not come or lists nothing readable."""
        url = self.host.url
        try:
            status, _, body = await self._get("/v1/models", with_key=True)
        except PageError as error:
            is_unreached = isinstance(error.__cause__, aiohttp.ClientConnectorError | TimeoutError)
            if not is_unreached and await asyncio.to_thread(speaks_tls, url):
                raise PageError(WANTS_TLS, answered=False) from error
            raise
        if refuses_plain_http(status, body):
            raise PageError(WANTS_TLS)
        if status != 200:
            hint = path_hint(url) if status == 404 else ""
            raise PageError(f"`/v1/models` answered {status}{hint}")
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

    async def prompt_tokens(self, model: str, text: str) -> int | None:
        """How many tokens a prompt that says this has here, with what the server puts around it.

        As vLLM's `/tokenize` counts; where there is none, as the `usage` of an answer of one token tells. None: it answers,
        and tells no number; raises NotCountedError where it does not answer.
        """
        said = ({"role": "user", "content": text},)
        if self._can_tokenize:
            body = tokenize_body(model, said, self._endpoint)
            with contextlib.suppress(PageError):
                status, _, page = await self._get("/tokenize", with_key=True, body=body)
                count = tokenized(status, page)
                if count is not None:
                    return count
        asked = request_body(model, said, False, 1, None, endpoint=self._endpoint)
        wait_s = min(self._timeout_s, CALIBRATION_S)
        response, _, _ = await self.exchange(asked, time.monotonic() + wait_s)
        answer = response.answer
        if response.failure or answer is None or not answer.ok:
            failed = response.failure or answer
            raise NotCountedError(failed.error if failed else "no answer")
        # it may have been down a moment; this says that it is up, and has no such page
        self._can_tokenize = False
        return answer.prompt_tokens

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
                        took_s = []
                        for _ in range(HANDSHAKES):
                            began_s = time.monotonic()
                            _, writer = await asyncio.open_connection(address, port)
                            took_s.append(time.monotonic() - began_s)
                            writer.close()
                        return min(took_s) * 1000
        return None

    async def _get(
        self,
        path: str,
        *,
        with_key: bool,
        most_bytes: int = MAX_PAGE_BYTES,
        body: bytes | None = None,
    ) -> tuple[int, str, bytes]:
        """Status, content type and body; with a body of its own the request is a POST. Raises PageError."""
        headers = (self._authorization() if with_key else {}) | (
            {} if body is None else {"Content-Type": "application/json"}
        )
        url = self.host.url + path
        try:
            async with asyncio.timeout(PAGE_TIMEOUT_S):
                for _ in range(MAX_REDIRECTS + 1):
                    async with self._session.request(
                        "GET" if body is None else "POST",
                        url,
                        data=body,
                        headers=headers,
                        allow_redirects=False,
                    ) as response:
                        found = bytearray()
                        while data := await response.content.readany():
                            found += data
                            if len(found) > most_bytes:
                                raise PageError(
                                    f"`{path}` is longer than {most_bytes // 2**20} MiB"
                                )
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
            why = self._failure(error).error
            raise PageError(f"`{path}`: {why}", answered=False) from error
        page = bytes(found)
        if self._key:
            page = page.replace(self._key.encode(), b"***")
        return response.status, response.headers.get("Content-Type", ""), page

    def _failure(self, error: BaseException) -> Failure:
        return failure(error, key=self._key, connect_s=CONNECT_TIMEOUT_S, whole_s=self._timeout_s)

    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}


async def _read(content: aiohttp.StreamReader, reader: Completion) -> None:
    """Read an answer to its end; each piece counts from the moment in which it was read from the socket."""
    connection = taken.get()
    if connection is None:
        raise RuntimeError("an answer came over no connection")

    def feed(data: bytes, at: float) -> bool:
        reader.feed(data, at)
        return not (reader.finished or reader.too_large)

    await connection.pour(content, feed)
    if reader.finished and not content.at_eof():
        # what may follow is the end of the body, which lets the connection be used again
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AFTER_DONE_S):
                while await content.readany():
                    pass


def _numbers(body: bytes, content_type: str) -> EngineNumbers | None:
    return read_numbers(read_page(body.decode("utf-8", "replace")), content_type)


def tokenize_body(model: str, messages: Sequence[Message], endpoint: str) -> bytes:
    """What vLLM's `/tokenize` is asked: the tokens of a chat, or of a text."""
    said: dict[str, Any] = (
        {"messages": messages} if endpoint == CHAT else {"prompt": text_of(messages)}
    )
    return orjson.dumps({"model": model} | said)


def tokenized(status: int, page: bytes) -> int | None:
    """How many tokens `/tokenize` counted; None where the page is none of vLLM's."""
    if status != 200:
        return None
    try:
        return token_count(orjson.loads(page)["count"])
    except (ValueError, TypeError, KeyError):
        return None


def read_models(body: bytes) -> tuple[ServedModel, ...]:
    """Read the list, base models first as vLLM sends them. Raises PageError."""
    found = []
    try:
        for entry in orjson.loads(body)["data"]:
            if not isinstance(entry, dict):
                continue
            name, root, length = (entry.get(key) for key in ("id", "root", "max_model_len"))
            if isinstance(name, str) and 0 < len(name) <= MAX_MODEL_CHARACTERS:
                model = ServedModel(
                    id=name,
                    root=line(root) if isinstance(root, str) else None,
                    max_model_len=length
                    if type(length) is int and 0 < length < MAX_COUNT
                    else None,
                )
                found.append(model)
    except (ValueError, TypeError, KeyError) as error:
        raise PageError("`/v1/models` is not the list that OpenAI's API has") from error
    if not found:
        raise PageError("`/v1/models` lists no model")
    return tuple(found)
