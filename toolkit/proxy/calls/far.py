"""An answer that another proxy has, or is being given: one search at a time for all here that want the same. It waits for Redis.

Who of the proxies asks upstream is settled by leases (leases.py); what that costs a request is one round trip, as the look did before.
Whatever goes wrong in Redis, everybody asks for himself at once.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from toolkit.proxy.calls.call import Call
from toolkit.proxy.calls.calls import Calls
from toolkit.proxy.exchange import Rejection
from toolkit.proxy.stored.layers import Found, Layers
from toolkit.proxy.stored.leases import RENEW_S, Look, step, turned
from toolkit.proxy.stored.redis_cache import RedisCache

POLL_S: Final = 0.01
"""So often those who wait look whether they still have to, all in one round trip: as late comes an answer at most."""
POLL_SHARE: Final = 0.1
"""Most of the time that may be spent with it, however many wait."""


class Search:
    """One search, and who wants what it finds."""

    __slots__ = ("found", "is_leased", "seekers", "task", "waited")

    def __init__(self) -> None:
        self.task: asyncio.Task[None]
        self.seekers = 0
        self.found: Found | None = None
        self.waited = False
        """For a call of another proxy's."""
        self.is_leased = False
        """This process is to ask for all, and nobody has begun."""


class Far:
    """One process's searches, and its calls in the place of all proxies."""

    def __init__(
        self,
        redis: RedisCache,
        layers: Layers,
        calls: Calls,
        *,
        wait_s: float,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._redis, self._layers, self._calls = redis, layers, calls
        self._wait_s, self._clock, self._wall = wait_s, clock, wall
        self._is_hurried = False
        self._searches: dict[bytes, Search] = {}
        self._leads: dict[Call, _Lead] = {}
        self._waits: dict[bytes, tuple[bytes, asyncio.Future[bool]]] = {}
        """The lease that is waited for, and what tells that it turned; False: nobody can tell."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None

    # --- those who want an answer --------------------------------------------------------------------

    async def find(self, key: bytes, *, tenant: str, model: str | None) -> Search:
        """Search, or join the search that is on; cancelled, it leaves it. `tenant`, `model`: whose answer it is."""
        search = self._searches.get(key)
        if search is None:
            search = self._searches[key] = Search()
            search.task = asyncio.create_task(self._search(key, search, tenant, model))
        search.seekers += 1
        try:
            await asyncio.shield(search.task)
        except asyncio.CancelledError:
            if search.seekers == 1:
                self._abandon(key, search)
            raise
        finally:
            search.seekers -= 1
        return search

    def lead(self, key: bytes, search: Search, call: Call) -> None:
        """This call is made in the place of all proxies, if nobody else's here is."""
        if not search.is_leased:
            return
        search.is_leased = False
        lead = self._leads[call] = _Lead(self, key, call)
        if call.is_over:  # it was rejected
            self.end(lead)
            return
        self._calls.stay_for(call, lead)
        if self._renewing is None:
            self._renewing = self._begin(self._renew())

    def done(self, key: bytes, search: Search) -> None:
        """Somebody has taken what the search found: if it was the last one, nothing of it is left."""
        if search.is_leased and not search.seekers:
            search.is_leased = False
            self._redis.let_go(key)

    def left(self, call: Call) -> None:
        """A client left a call: if it was the last one here, whether others want it is to be known."""
        lead = self._leads.get(call)
        if lead is not None and lead.is_alone:
            self._begin(self._go_on_if_wanted(lead))

    # --- a search ------------------------------------------------------------------------------------

    async def _search(self, key: bytes, search: Search, tenant: str, model: str | None) -> None:
        try:
            look = await self._sought(key, search)
        finally:
            if self._searches.get(key) is search:
                del self._searches[key]
        if look.found is not None:
            search.found = self._layers.brought(key, *look.found, tenant=tenant, model=model)
        search.is_leased = look.lease == self._redis.token

    async def _sought(self, key: bytes, search: Search) -> Look:
        ends_s = self._clock() + self._wait_s
        while True:
            look = await self._redis.look(key, self._wall())
            may_wait = not self._is_hurried and self._clock() < ends_s
            if step(look, self._redis.token, may_wait=may_wait) != "wait":
                return look
            assert look.lease is not None
            search.waited = True
            if not await self._turned(key, look.lease, ends_s):
                return Look()

    async def _turned(self, key: bytes, lease: bytes, ends_s: float) -> bool:
        """Wait until a lease is another's or nobody's; False: it is still, or Redis does not tell."""
        told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waits[key] = lease, told
        if self._watching is None:
            self._watching = self._begin(self._watch())
        try:
            async with asyncio.timeout(max(0.0, ends_s - self._clock())):
                return await told
        except TimeoutError:
            return False
        finally:
            if self._waits[key][1] is told:
                del self._waits[key]

    def _abandon(self, key: bytes, search: Search) -> None:
        """Nobody wants it any more; who comes next begins another one."""
        if not search.task.done():
            search.task.cancel()
            del self._searches[key]
        elif search.is_leased:
            search.is_leased = False
            self._redis.let_go(key)

    async def _watch(self) -> None:
        """Look at all leases that are waited for, until none is."""
        said_s = self._clock()  # each look said so, too
        took_s = 0.0
        try:
            while self._waits:
                await asyncio.sleep(max(POLL_S, took_s / POLL_SHARE))
                keys = list(self._waits)
                if not keys:
                    return
                now = self._clock()
                if now - said_s >= RENEW_S:
                    said_s = now
                    self._redis.want(keys)
                self._tell(keys, await self._redis.holders(keys))
                took_s = self._clock() - now
        finally:
            self._watching = None
            self._wake()  # if it failed, nobody else would

    def _tell(self, keys: list[bytes], holders: list[bytes | None] | None) -> None:
        for place, key in enumerate(keys):
            lease, told = self._waits.get(key, (b"", None))
            if told is None or told.done():
                continue
            if holders is None:
                told.set_result(False)
            elif turned(holders[place], lease):
                told.set_result(True)

    def hurry(self) -> None:
        """Wait for nobody any more: the process is about to end."""
        self._is_hurried = True
        self._wake()

    def _wake(self) -> None:
        for _, told in self._waits.values():
            if not told.done():
                told.set_result(False)

    # --- calls in the place of all -------------------------------------------------------------------

    async def _renew(self) -> None:
        try:
            while self._leads:
                await asyncio.sleep(RENEW_S)
                leads = list(self._leads.values())
                found = await self._redis.renew([lead.key for lead in leads]) if leads else None
                for place, lead in enumerate(leads):
                    one = None if found is None else found[place]
                    if one is not None and not one.kept:
                        self._lose(lead)
                    elif lead.is_alone and (one is None or not one.wanted):
                        self.end(lead)
        finally:
            self._renewing = None

    async def _go_on_if_wanted(self, lead: "_Lead") -> None:
        found = await self._redis.renew([lead.key])
        if lead.is_alone and not (found and found[0].wanted):
            self.end(lead)

    def _lose(self, lead: "_Lead") -> None:
        """Its lease ended, as this process stood still or Redis forgot: it is an answer for the clients here, and stored."""
        self._redis.leased.discard(lead.key)
        self.end(lead)

    def end(self, lead: "_Lead") -> None:
        """There is nothing more to do for others: the answer was stored, there will be none, or nobody wants it."""
        if self._leads.pop(lead.call, None) is None:
            return
        if lead.is_alone:
            self._redis.let_go(lead.key)
        else:
            self._redis.give_up(lead.key)
        self._calls.leave(lead.call, lead)

    # --- the end -------------------------------------------------------------------------------------

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Let who waits elsewhere know what is known, and stop."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _Lead:
    """The listener of such a call: for those that wait at other proxies it is aboard as one client."""

    __slots__ = ("_far", "call", "key")
    taken: int | None = None

    def __init__(self, far: Far, key: bytes, call: Call) -> None:
        self._far, self.key, self.call = far, key, call

    @property
    def is_alone(self) -> bool:
        """No client of this process wants the answer any more."""
        return not (self.call.is_over or self.call.clients)

    def began(self, call: Call) -> None:
        """An error is nothing that others wait for."""
        if call.status != 200 or call.other_model:
            self._far.end(self)

    def grew(self, call: Call) -> None:
        """What can't be stored any more isn't, either."""
        recorder = call.recorder
        if recorder is not None and (recorder.has_failed or recorder.too_large):
            self._far.end(self)

    def ended(self, call: Call) -> None:
        """It is on its way to Redis, with the end of its lease, or it is not."""
        del call
        self._far.end(self)

    def rejected(self, rejection: Rejection) -> None:
        """Others may have room."""
        del rejection
        self._far.end(self)
