"""The upstreams' /metrics as they are at the moment when somebody asks for ours. It touches sockets and the clock.

The watch's last look would do for a person, but not for who compares counters before and after a run: bench would find requests that
no engine counted, and accuse the host of hiding one. All who ask while upstreams are being asked share the next answer, and never get
one that began before they asked. Upstreams are asked ten times a second at most, whoever hammers our page.

Of an upstream that does not answer its last page stands in, until it is older than two looks of the watch: a dead engine's numbers are
no longer on the page then, and `age_s` says since when.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Iterable

from toolkit.proxy.exchange import Job
from toolkit.proxy.upstreams.engine_pages import one_page
from toolkit.proxy.upstreams.upstream import Upstream, UpstreamError
from toolkit.proxy.upstreams.watch import Seen

LIMIT_S = 1.0
"""One upstream's time to answer; then its last page stands in."""
STALE_LOOKS = 2
"""A page that is so many looks old, and the time of one that takes too long, stands in no more."""
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
        last: Callable[[str], Seen | None],
        *,
        look_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`last`: an upstream's page as the watch, which looks every `look_s`, saw it last, by its name."""
        self._upstreams = {
            number: each for number, each in enumerate(upstreams) if each.setting.is_watched
        }
        self._last, self._clock = last, clock
        self._stale_s = STALE_LOOKS * look_s + LIMIT_S
        self._seen: dict[str, Seen] = {}
        """What came here; the watch may have a newer one."""
        self._next: asyncio.Task[str] | None = None
        """Not begun yet: whoever comes may join."""
        self._running: asyncio.Task[str] | None = None
        self._began_s = -math.inf

    async def page(self) -> str:
        """All that the engines say now, as one page; of one that does not answer in time, what it said just before."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._ask(self._running))
        # one who leaves takes nobody's answer away
        return await asyncio.shield(self._next)

    def age_s(self, name: str) -> float | None:
        """How long ago an upstream's page came last; None: never."""
        seen = self._newest(name)
        return None if seen is None else max(0.0, self._clock() - seen.at_s)

    def _newest(self, name: str) -> Seen | None:
        those = [seen for seen in (self._last(name), self._seen.get(name)) if seen is not None]
        return max(those, key=lambda seen: seen.at_s, default=None)

    async def _ask(self, before: "asyncio.Task[str] | None") -> str:
        if before is not None:
            await asyncio.wait([before])
        await asyncio.sleep(self._began_s + PAUSE_S - self._clock())
        self._running, self._next = self._next, None
        self._began_s = self._clock()
        found = await asyncio.gather(*map(self._page, self._upstreams.values()))
        pages = {
            number: page.decode("utf-8", "replace")
            for number, page in zip(self._upstreams, found, strict=True)
            if page is not None
        }
        # one of several keeps its number while the others are away: its series go on
        return one_page(pages) if len(self._upstreams) > 1 else "".join(pages.values())

    async def _page(self, upstream: Upstream) -> bytes | None:
        with contextlib.suppress(TimeoutError, UpstreamError):
            async with asyncio.timeout(LIMIT_S):
                answer = await upstream.ask(JOB)
                body = await answer.whole(MOST_BYTES)
            kind = answer.content_type
            is_text = kind.startswith(("text/plain", "application/openmetrics-text"))
            if body is not None and answer.status == 200 and is_text:
                self._seen[upstream.name] = Seen(body=body, content_type=kind, at_s=self._clock())
        seen = self._newest(upstream.name)
        is_stale = seen is None or self._clock() - seen.at_s > self._stale_s
        return None if seen is None or is_stale else seen.body
