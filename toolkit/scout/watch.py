"""When each of many hosts is scraped, once or again and again, and where its sighting goes: to `keep` (store) and `show` (screen).

Both are functions of the caller. Hosts are scraped side by side. The clock is read here, the network in `scrape.py`.
"""

import asyncio
import signal
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from toolkit.records import Sighting
from toolkit.scout.findings import findings, last_word
from toolkit.scout.lookups import LookupThreads
from toolkit.scout.pages import METRICS, Scrape
from toolkit.scout.scrape import Scout
from toolkit.scout.sighting import HostEvidence, describe, examine, numbers_only

KEEP_EVERY_S = 0.5
"""A kill loses at most this much and the scrapes under way: one second is promised."""
LARGE_PAGE_BYTES = 2**20
"""A larger page is parsed in a thread: 16 MB take 0.2 s, and meanwhile the loop would read no other host's answer."""


async def follow(
    scout: Scout,
    count: int | None,
    interval_s: float,
    on_scrape: Callable[[Scrape], Awaitable[None]],
) -> None:
    """Scrape one host `count` times (None: until cancelled), at whole multiples of `interval_s` from the start.

    A scrape that takes longer skips the ticks it missed.
    """
    start, done = time.monotonic(), 0
    while True:
        async with scout.pacing.place():
            await on_scrape(await scout.scrape())
        done += 1
        if count is not None and done >= count:
            return
        passed = time.monotonic() - start
        await asyncio.sleep((passed // interval_s + 1) * interval_s - passed)


class HostWatch:
    """Follows hosts side by side: a slow one delays nobody, a dead one becomes a row."""

    def __init__(
        self,
        scouts: Sequence[Scout],
        *,
        before: Mapping[str, Sighting],
        keep: Callable[[Sequence[Sighting]], None],
        show: Callable[[Sighting], None],
        show_first: bool = True,
    ) -> None:
        """`before`: each host's last sighting before this; `show_first`: show a host's first one, which has no rates yet."""
        self._scouts = scouts
        self._keep, self._show, self._show_first = keep, show, show_first
        self._before = dict(before)
        self._evidence: dict[str, HostEvidence] = {}
        self._waiting: deque[Sighting] = deque()  # filled by the loop, emptied by a thread
        self._keeping = threading.Lock()

    async def run(self, count: int | None, interval_s: float) -> None:
        """Scrape each host `count` times (None: until cancelled), then keep what is left.

        SIGTERM cancels like Ctrl-C. Raises what `keep` and `show` raise.
        """
        loop = asyncio.get_running_loop()
        loop.set_default_executor(LookupThreads())
        this = asyncio.current_task()
        if this:
            loop.add_signal_handler(signal.SIGTERM, this.cancel)
        keeping = asyncio.create_task(self._keep_often())
        following = asyncio.gather(
            *(follow(scout, count, interval_s, self._on_scrape) for scout in self._scouts)
        )
        try:
            done, _ = await asyncio.wait((following, keeping), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            # cancelled or not, nothing measured is lost
            following.cancel()
            keeping.cancel()
            await asyncio.gather(following, keeping, return_exceptions=True)
            self._keep_waiting()
            for scout in self._scouts:
                await scout.aclose()

    async def _on_scrape(self, scrape: Scrape) -> None:
        name = scrape.host.name
        is_large = len(scrape.answer(METRICS).body) > LARGE_PAGE_BYTES
        evidence = await asyncio.to_thread(examine, scrape) if is_large else examine(scrape)
        earlier, before = self._evidence.get(name), self._before.get(name)
        sighting = describe(evidence, earlier)
        sighting = replace(sighting, findings=findings(sighting, evidence, before))
        self._evidence[name] = numbers_only(evidence)
        remembered = last_word(before, sighting)
        if remembered:
            self._before[name] = remembered
        self._waiting.append(sighting)
        if earlier is not None or self._show_first:
            self._show(sighting)

    async def _keep_often(self) -> None:
        while True:
            await asyncio.sleep(KEEP_EVERY_S)
            await asyncio.to_thread(self._keep_waiting)

    def _keep_waiting(self) -> None:
        with self._keeping:  # the last call waits for a thread that still writes
            batch = [self._waiting.popleft() for _ in range(len(self._waiting))]
            if batch:
                self._keep(batch)
