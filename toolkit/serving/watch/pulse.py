"""Looks at one engine's own pages and asks it for one token. It touches the network; what follows from it progress.py decides.

Every question has a deadline and reads a bounded page, over a connection of its own: an engine that hangs costs that look.
"""

import asyncio
import ssl
from types import TracebackType
from typing import Final, Self

import aiohttp

from toolkit.bench.client import PageError, read_models
from toolkit.bench.faults import FAULTS
from toolkit.proxy.upstreams import upstream_pages as pages
from toolkit.records import Host
from toolkit.serving.watch.progress import Answer, Look

LOOK_LIMIT_S: Final = 10.0
"""A vLLM on a machine that is loaded answers late; a page that comes within this tells more than one given up after 2 s."""
PAGE_BYTES: Final = 16 * 2**20
LITELLM_ALIVE: Final = "/health/liveliness"
"""Where LiteLLM says that its process lives, and no engine has a page."""
LONG_PAGE_BYTES: Final = 2**16
"""Longer ones are read in a thread: 56 KB take 0.7 to 1 ms."""
HEADERS = {
    "User-Agent": "llm-serving-toolkit-watchdog",
    # a cache before the engine must not answer for it
    "Cache-Control": "no-cache, no-store",
    "Accept-Encoding": "identity",
}


class EnginePulse:
    """One engine's; use it as `async with`."""

    def __init__(
        self,
        host: Host,
        *,
        answer_s: float,
        key: str | None = None,
        tls: ssl.SSLContext | bool = True,
        look_s: float = LOOK_LIMIT_S,
    ) -> None:
        """`answer_s`: for the token. `look_s`: for both pages of a look."""
        self._url, self._model = host.url, host.model
        self._answer_s, self._look_s, self._tls = answer_s, look_s, tls
        self._headers = HEADERS | ({"Authorization": f"Bearer {key}"} if key else {})
        self._path = pages.COMPLETIONS
        self._health: str | None = None

    async def __aenter__(self) -> Self:
        # a new connection each time: vLLM closes one that was idle for 5 s, perhaps while a question is on its way
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None),
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

    async def look(self) -> Look:
        """Read /health and /metrics once."""
        try:
            async with asyncio.timeout(self._look_s):
                if self._health is None:
                    # LiteLLM's /health calls every model, and is 500 while it has no database
                    status, _, body = await self._asked("GET", LITELLM_ALIVE)
                    is_litellm = status == 200 and b"I'm alive!" in body
                    self._health = LITELLM_ALIVE if is_litellm else "/health"
                status, _, _ = await self._asked("GET", self._health)
                if status >= 500:
                    return Look(answer="ill")
                return await self._metrics()
        except FAULTS as error:
            return Look(answer=_answer(error))

    async def _metrics(self) -> Look:
        status, kind, body = await self._asked("GET", "/metrics")
        if status != 200:
            return Look(answer="came")
        told = await _read(body, kind)
        if told is None:
            return Look(answer="came")
        numbers = told.numbers
        self._model = self._model or next(iter(numbers.models), None)
        loads = [load for load in (numbers.running, numbers.waiting) if load is not None]
        return Look(
            answer="came",
            signs=(
                numbers.prompt_tokens_total,
                numbers.generation_tokens_total,
                told.steps_total,
                numbers.kv_cache_usage,
            ),
            under_way=sum(loads) if loads else None,
        )

    async def token(self) -> bool | None:
        """Ask for one token. True: it came. False: not in time, or no token. None: it could not be asked for."""
        try:
            async with asyncio.timeout(self._answer_s):
                model = self._model or await self._served()
                made, status = await self._one_token(model)
                if status in (404, 405) and self._path != pages.CHAT:
                    self._path = pages.CHAT
                    made, _ = await self._one_token(model)
                return made
        except TimeoutError:
            return False
        except (*FAULTS, PageError) as error:
            return None if _answer(error) == "refused" or isinstance(error, PageError) else False

    async def _one_token(self, model: str) -> tuple[bool | None, int]:
        status, _, body = await self._asked("POST", self._path, pages.probe(self._path, model))
        return pages.made_token(status, body), status

    async def _served(self) -> str:
        status, _, body = await self._asked("GET", "/v1/models")
        if status != 200:
            raise PageError(f"`/v1/models` answered {status}")
        self._model = read_models(body)[0].id
        return self._model

    async def _asked(
        self, method: str, path: str, body: bytes | None = None
    ) -> tuple[int, str, bytes]:
        """Status, content type and body. Raises FAULTS; a page without end is one."""
        headers = {"Content-Type": "application/json"} if body is not None else None
        async with self._session.request(
            method, self._url + path, data=body, headers=headers, allow_redirects=False
        ) as response:
            read = bytearray()
            while data := await response.content.readany():
                read += data
                if len(read) > PAGE_BYTES:
                    raise ValueError(f"`{path}` is longer than {PAGE_BYTES} bytes")
            return response.status, response.headers.get("Content-Type", ""), bytes(read)


async def _read(body: bytes, kind: str) -> pages.Metrics | None:
    """A page that nobody foresaw must not end the watch: it tells nothing."""
    try:
        if len(body) > LONG_PAGE_BYTES:
            return await asyncio.to_thread(pages.metrics, body, kind)
        return pages.metrics(body, kind)
    except Exception:  # noqa: BLE001 (the one boundary to a stranger's page)
        return None


def _answer(error: BaseException) -> Answer:
    """Nobody listens, or somebody is late: a connection that is cut, garbled or not taken in time proves no more."""
    cause = getattr(error, "os_error", error)
    return "refused" if isinstance(cause, ConnectionRefusedError) else "late"
