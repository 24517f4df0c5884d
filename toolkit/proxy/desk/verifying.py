"""A sample of the hits asked again in the background, and compared with what was stored. It sends no client anything."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from toolkit.proxy.answers.verify import Difference, same
from toolkit.proxy.calls.call import Call
from toolkit.proxy.calls.calls import Calls
from toolkit.proxy.exchange import Job, Kept, Rejection
from toolkit.proxy.told.counters import Counters

AT_A_TIME = 2
"""More would take slots from clients; a hit that is drawn meanwhile is not asked again."""
LAST = -1_000_000
"""Its priority: behind everybody's."""

Event = Callable[[str, dict[str, object]], None]


class Drawn:
    """Which hits: each by chance, `share` of them all."""

    __slots__ = ("_is_next", "_share")

    def __init__(self, share: float) -> None:
        self._share, self._is_next = share, False

    def is_chosen(self) -> bool:
        """Draw once; what comes next through `takes_next` is what was drawn."""
        self._is_next = bool(self._share) and random.random() < self._share  # noqa: S311 (chance, not a secret)
        return self._is_next

    def choose(self) -> None:
        """Somebody else has drawn what comes next."""
        self._is_next = True

    def takes_next(self) -> bool:
        """Whether the hit at hand is asked again: it was drawn before, or is now."""
        chosen = self._is_next or self.is_chosen()
        self._is_next = False
        return chosen


class Verifying:
    """Has those that are drawn asked again, few at a time."""

    def __init__(self, share: float, calls: Calls, counters: Counters, event: Event) -> None:
        self.drawn = Drawn(share)
        self._calls, self._counters, self._event = calls, counters, event
        self._under_way = 0

    def takes_next(self) -> bool:
        """Whether the hit at hand is asked again now."""
        return self.drawn.takes_next() and self._under_way < AT_A_TIME

    def ask_again(self, job: Job, kept: Kept) -> None:
        """Have it answered anew, of no team's slots."""
        self._under_way += 1
        job = replace(job, team="", priority=LAST, is_cacheable=False)
        self._calls.ask(None, job, _Second(self, job, kept))

    def take(self, job: Job, kept: Kept, again: Kept | None) -> None:
        """Compare; None: there was no whole answer, which says nothing."""
        if again is None:
            self._under_way -= 1
            return
        # 1,000 tokens of each take 6.6 ms, which hits that come meanwhile must not wait for
        comparing = asyncio.get_running_loop().run_in_executor(None, same, kept, again)
        comparing.add_done_callback(partial(self._compared, job))

    def _compared(self, job: Job, comparing: "asyncio.Future[Difference | None]") -> None:
        self._under_way -= 1
        difference = comparing.result()
        self._counters.verify(job.model, is_same=difference is None)
        if difference is not None:
            told = {"what": difference.what, "where": difference.where, "at": difference.at}
            self._event("divergence", {"model": job.model, **told})


class _Second:
    """The listener of one such call."""

    taken: int | None = None

    def __init__(self, verifying: Verifying, job: Job, kept: Kept) -> None:
        self._verifying, self._job, self._kept = verifying, job, kept

    def began(self, call: Call) -> None:
        """Nothing: the end tells all."""

    def grew(self, call: Call) -> None:
        """Nothing: the end tells all."""

    def ended(self, call: Call) -> None:
        again = call.recorded.kept if call.recorded is not None else None
        self._verifying.take(self._job, self._kept, again)

    def rejected(self, rejection: Rejection) -> None:
        del rejection
        self._verifying.take(self._job, self._kept, None)
