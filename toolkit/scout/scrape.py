"""Ask hosts what they are: the only file of this package that touches the network (httpx).

It contacts the hosts it is given and nothing else: no proxy from the environment, no redirect to
another address. It judges nothing; `sighting` reads what came.
"""

import asyncio
import contextlib
import logging
import math
import ssl
import time
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx

from toolkit.hosts import same_origin
from toolkit.records import Host
from toolkit.safe_text import printable
from toolkit.scout import pages
from toolkit.scout.pages import PageAnswer, Scrape
from toolkit.scout.problems import NO_HTTP, problem_of
from toolkit.scout.tls_probe import WANTS_TLS, speaks_tls

log = logging.getLogger("toolkit.scout")

MAX_METRICS_BYTES = 16 * 2**20
"""Sixteen engines behind one address: 16 times the recorded 56 KB is 0.9 MB."""
MAX_PAGE_BYTES = 2**20
"""Of any other page. 2,000 LoRA adapters at the recorded 449 bytes a model are 0.9 MB."""
MAX_REDIRECTS = 3
PATIENCE = 16
"""A page may take this part of the timeout before the next is asked beside it: 0.3 of 5 s."""
GAP_S = 0.001
TURN_S = 0.003
"""A near host's answer is here by then; 100 far hosts in turn take 100 * (1 + 3) ms."""
LATE_S = 0.001
"""A sleep that ends later than this says that the loop was busy; an idle one is 0.1 ms late."""
CROWD = 100
"""So many scrapes under way take turns on one core for a second; 1,000 take 7 s, more than the timeout."""
BEHIND_S = 0.02
"""A round of the event loop that takes longer says that answers wait to be read."""
HEADERS = {"user-agent": "toolkit-scout", "accept": "*/*", "accept-encoding": "identity"}


def tls_context(*, insecure: bool = False, ca_file: str | None = None) -> ssl.SSLContext:
    """Make the one TLS context that all clients share (100 of them would cost 1.4 s of CPU).

    Raises OSError when the CA file cannot be read and ssl.SSLError when it is none.
    """
    context = httpx.create_ssl_context(verify=not insecure, trust_env=False)
    if ca_file:
        context.load_verify_locations(ca_file)
    return context


class Pacing:
    """When this machine's scouts may act: one core serves all of them, and its delays would count as the hosts'."""

    def __init__(self) -> None:
        self._under_way = 0
        self._entering = asyncio.Lock()
        self._turn = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Let a scrape begin: a hundred at once, a further one while this machine keeps up.

        A host's deadline runs from its scrape's beginning: of a thousand begun together each would miss its own for the
        others' work. Who hangs keeps nobody out: hanging is no work.
        """
        async with self._entering:
            behind_s = math.inf
            while self._under_way >= CROWD and behind_s > BEHIND_S:
                began = time.monotonic()
                await asyncio.sleep(0)
                behind_s = time.monotonic() - began
            self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1

    async def quietly(self, ask: Callable[[], Coroutine[Any, Any, PageAnswer]]) -> PageAnswer:
        """Ask once it is this host's turn and the machine is idle: the work for all other hosts would count as its latency.

        The next host's turn comes with the answer, or soon: a far host must not hold up all others.
        """
        async with self._turn:
            late_s = LATE_S
            while late_s >= LATE_S:  # until a sleep ends on time
                slept_at = time.monotonic()
                await asyncio.sleep(GAP_S)
                late_s = time.monotonic() - slept_at - GAP_S
            asking = asyncio.create_task(ask())
            try:
                await asyncio.wait((asking,), timeout=TURN_S)
            except asyncio.CancelledError:
                asking.cancel()
                raise
        return await asking


class Scout:
    """One host's HTTP client and key; asks for all pages of one scrape under one deadline."""

    def __init__(
        self, host: Host, tls: ssl.SSLContext, key: str | None, timeout_s: float, pacing: Pacing
    ) -> None:
        self.host, self.pacing = host, pacing
        self._key, self._timeout_s = key, timeout_s
        self._health = pages.HEALTH
        self._client = httpx.AsyncClient(
            verify=tls,
            trust_env=False,  # a proxy from the environment would be contacted though nobody listed it
            follow_redirects=False,
            timeout=None,  # noqa: S113 (the deadline of the whole scrape is kept in `_in_time`)
            headers=HEADERS,
            # kept cookies would pile up, scrape after scrape, and tell this scout from another
            cookies=CookieJar(DefaultCookiePolicy(netscape=False, rfc2965=False)),
            limits=httpx.Limits(max_connections=8, max_keepalive_connections=1),
        )

    async def aclose(self) -> None:
        """Close the host's connections."""
        await self._client.aclose()

    async def scrape(self) -> Scrape:
        """Ask every page, then those that only the first answers show to be worth asking."""
        at, deadline = time.time(), time.monotonic() + self._timeout_s
        first = (self._health, *pages.FIRST_ROUND[1:])
        answers = {pages.HEALTH: pages.NOT_ASKED} | await self._in_time(first, deadline)
        problems = [answer.problem for answer in answers.values() if answer.problem]
        if all(answer.status is None for answer in answers.values()) and any(
            words in problem for problem in problems for words in NO_HTTP
        ):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(deadline - time.monotonic()):
                    if await asyncio.to_thread(speaks_tls, self.host.url):
                        answers = {path: PageAnswer(problem=WANTS_TLS) for path in first}
                        return Scrape(host=self.host, at=at, answers=answers)

        answers |= await self._in_time(
            pages.follow_ups(answers, has_key=self._key is not None), deadline
        )
        if pages.gateway(answers) == "litellm":
            self._health = pages.LITELLM_ALIVE  # its /health would call every model each time

        # a page that came is asked once more, alone, for its latency
        small = (self._health, pages.VERSION, pages.MODELS)
        came = [path for path in small if path in answers and answers[path].ok]
        quiet = None
        if came:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(deadline - time.monotonic()):
                    quiet = await self.pacing.quietly(lambda: self._fetch(came[0], None))
        return Scrape(host=self.host, at=at, answers=answers, quiet=quiet)

    async def _in_time(self, paths: Iterable[str], deadline: float) -> dict[str, PageAnswer]:
        """Ask one after the other; what is not there at the deadline becomes a problem.

        One connection serves a host that answers: for 100 hosts 0.66 s of CPU, all four pages at
        once 0.76 s. A page that dawdles is left to itself, and the next takes another connection.
        """
        tasks: dict[str, asyncio.Task[PageAnswer]] = {}
        try:
            for path in paths:
                tasks[path] = asyncio.create_task(self._ask(path))
                left_s = max(0.0, deadline - time.monotonic())
                await asyncio.wait((tasks[path],), timeout=min(left_s, self._timeout_s / PATIENCE))
            if tasks:
                left_s = max(0.0, deadline - time.monotonic())
                await asyncio.wait(tasks.values(), timeout=left_s)
        finally:  # too late, or somebody stopped the scrape: no page outlives it
            for task in tasks.values():
                task.cancel()
        answers = {}
        for path, task in tasks.items():
            too_late = f"`{path}` did not finish within {self._timeout_s:g} s"
            answer = task.result() if task.done() else PageAnswer(problem=too_late)
            outcome = answer.problem or f"{answer.status} in {answer.elapsed_ms:.1f} ms"
            log.debug("%s %s: %s", self.host.name, path, outcome)
            answers[path] = answer
        return answers

    async def _ask(self, path: str) -> PageAnswer:
        """Ask without the key; again with it where it is wanted and may go."""
        answer = await self._fetch(path, None)
        if answer.may_want_key and self._key and path in pages.KEY_GOES_TO:
            return await self._fetch(path, self._key)
        return answer

    async def _fetch(self, path: str, key: str | None) -> PageAnswer:
        """Ask, follow redirects to the same address, and send once more what a host never read.

        It may close an idle connection at any moment. vLLM does so after 5 s; with `--watch --interval 5s` that moment is the
        next scrape's.
        """
        url = self.host.url + path
        try:
            for _ in range(MAX_REDIRECTS + 1):
                clock = _Clock()
                try:
                    answer, target = await self._send(path, url, key, clock)
                except (httpx.NetworkError, httpx.RemoteProtocolError):
                    if clock.connected or clock.answered_at is not None:
                        raise
                    answer, target = await self._send(path, url, key, _Clock())
                if target is None:
                    return answer
                if not same_origin(self.host.url, target):
                    parts = urlsplit(target)
                    shown = printable(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}")
                    problem = f"`{path}` redirects to `{shown}`, not followed"
                    return PageAnswer(status=answer.status, problem=problem)
                url = target
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            return PageAnswer(problem=problem_of(error, path))
        return PageAnswer(problem=f"`{path}` redirects in a circle")

    async def _send(
        self, path: str, url: str, key: str | None, clock: "_Clock"
    ) -> tuple[PageAnswer, str | None]:
        """One request; a redirect's target comes beside the answer."""
        async with self._client.stream(
            "POST" if path in pages.POSTED else "GET",
            url,
            headers={"authorization": f"Bearer {key}"} if key else {},
            json=pages.POSTED.get(path),
            extensions={"trace": clock.trace},
        ) as response:
            location = response.headers.get("location")
            target = urljoin(url, location) if location and response.is_redirect else None
            body, problem = (b"", None) if target else await _body(path, response)
            elapsed_s = None if clock.answered_at is None else clock.answered_at - clock.sent_at
            answer = PageAnswer(
                status=response.status_code,
                content_type=response.headers.get("content-type", ""),
                allow=response.headers.get("allow", ""),
                body=body,
                elapsed_ms=None if elapsed_s is None else elapsed_s * 1000,
                answered_at=clock.answered_at,
                problem=problem,
                with_key=key is not None,
            )
            return answer, target


class _Clock:
    """When one request's first byte went out and its response headers came: the connection's set-up is not the host's latency."""

    def __init__(self) -> None:
        self.connected = False
        """For this request: it did not go out on a connection of an earlier one."""
        self.sent_at = 0.0
        self.answered_at: float | None = None

    async def trace(self, event: str, info: dict[str, Any]) -> None:  # noqa: ARG002 (httpcore's signature)
        """Listen to httpcore's events."""
        if event == "connection.connect_tcp.started":
            self.connected = True
        elif event.endswith("send_request_headers.started"):
            self.sent_at = time.monotonic()
        elif event.endswith("receive_response_headers.complete"):
            self.answered_at = time.monotonic()


async def _body(path: str, response: httpx.Response) -> tuple[bytes, str | None]:
    """Read a body up to its limit, counted after decompression; a problem otherwise."""
    limit = MAX_METRICS_BYTES if path.endswith(pages.METRICS) else MAX_PAGE_BYTES
    too_large = f"`{path}` is larger than {limit // 2**20} MiB"
    packed = bytearray()
    async for chunk in response.aiter_raw():
        packed += chunk
        if len(packed) > limit:
            return b"", too_large
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding == "identity":
        return bytes(packed), None
    if encoding not in ("gzip", "x-gzip", "deflate"):
        shown = printable(encoding[:20])
        return b"", f"`{path}` is compressed as `{shown}`, which was not asked for"
    # gzip or zlib, never past the limit: 16 MB of zeros pack into 16 KB
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        body = inflater.decompress(packed, limit + 1)
    except zlib.error:
        return b"", f"`{path}` says it is compressed but is not"
    if len(body) > limit:
        return b"", too_large
    if not inflater.eof or inflater.unused_data:
        return b"", f"`{path}` is compressed and did not unpack whole"
    return body, None
