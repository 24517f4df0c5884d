"""The upstreams' /metrics as they are at the moment when somebody asks for ours. It touches sockets and the clock.

The watch's last look would do for a person, but not for who compares counters before and after a run: bench would find requests that
no engine counted, and accuse the host of hiding one. All who ask while upstreams are being asked share the next answer, and never get
one that began before they asked. Upstreams are asked ten times a second at most, whoever hammers our page.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Iterable, Sequence

from toolkit.proxy.exchange import Job
from toolkit.proxy.upstreams.engine_pages import one_page
from toolkit.proxy.upstreams.upstream import Upstream, UpstreamError

LIMIT_S = 1.0
"""One upstream's time to answer; then its last page stands in."""
PAUSE_S = 0.1
MOST_BYTES = 16 * 2**20
JOB = Job(
    path="/metrics",
    method="GET",
    body=b"",
    headers=((b"user-agent", b"llm-serving-toolkit-scrape"),),
)


class Scrape:
    """Asks all upstreams at once, for all who wait."""

    def __init__(
        self,
        upstreams: Iterable[Upstream],
        last: Callable[[str], bytes | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`last`: an upstream's page as the watch saw it last, by its name."""
        self._upstreams = [each for each in upstreams if each.setting.is_watched]
        self._last, self._clock = last, clock
        self._next: asyncio.Task[str] | None = None
        """Not begun yet: whoever comes may join."""
        self._running: asyncio.Task[str] | None = None
        self._began_s = -math.inf

    async def page(self) -> str:
        """All that the engines say now, as one page; of one that does not answer in time, what it said last."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._ask(self._running))
        # one who leaves takes nobody's answer away
        return await asyncio.shield(self._next)

    async def _ask(self, before: "asyncio.Task[str] | None") -> str:
        if before is not None:
            await asyncio.wait([before])
        await asyncio.sleep(self._began_s + PAUSE_S - self._clock())
        self._running, self._next = self._next, None
        self._began_s = self._clock()
        pages = await asyncio.gather(*map(self._page, self._upstreams))
        return _together(pages)

    async def _page(self, upstream: Upstream) -> bytes | None:
        with contextlib.suppress(TimeoutError, UpstreamError):
            async with asyncio.timeout(LIMIT_S):
                found = await _read(upstream)
            if found is not None:
                return found
        return self._last(upstream.name)


async def _read(upstream: Upstream) -> bytes | None:
    """Its page; None: it has none that may be shown."""
    answer = await upstream.ask(JOB)
    body = await answer.whole(MOST_BYTES)
    is_text = answer.content_type.startswith(("text/plain", "application/openmetrics-text"))
    return body if answer.status == 200 and is_text else None


def _together(pages: Sequence[bytes | None]) -> str:
    return one_page([page.decode("utf-8", "replace") for page in pages if page is not None])
