"""The three tiers of stored answers (memory, SQLite file, Redis), and hot entries: whole answers found by a request's raw bytes.

It decides nothing about a request: it is given keys. It reads both clocks, and waits only for Redis and for a purge of the file.
"""

import asyncio
from collections.abc import Callable
from math import inf
from struct import Struct
from typing import Literal, NamedTuple

from toolkit.proxy.cache.entry import CachedResponse, HotEntry, pack, unpack
from toolkit.proxy.cache.memory import ENTRY_BYTES, MemoryCache
from toolkit.proxy.cache.redis import Lease, RedisCache
from toolkit.proxy.cache.sqlite import SqliteCache
from toolkit.proxy.config import CacheSetting

HOT_SHARE = 4
"""One part in four of the memory holds hot entries, the rest packed answers but for what notes take."""
NOTES_SHARE = 16
"""One part in sixteen holds requests that were no hits, for explanations, and as much again which requests were seen."""
BYTES_HEAD = 33
"""What CPython adds to a bytes object."""
PACK_S = 0.05
"""Answers are packed together: one by one, among all else, each took 65 to 100 us of the loop at 300 a second, and 6 to 35 so."""
ENDS = Struct("<d")
"""Before a packed answer in memory: when it ends, wall clock."""


Layer = Literal["memory", "disk", "redis"]


class Found(NamedTuple):
    """A stored answer and where it was."""

    response: CachedResponse
    stored: bytes
    """As the memory holds it."""
    ends_at: float
    """Wall clock; inf: never."""
    layer: Layer


class Tiers:
    """The stored answers that one process can find. `sqlite` and `redis` may be missing."""

    def __init__(
        self,
        setting: CacheSetting,
        *,
        sqlite: SqliteCache | None,
        redis: RedisCache | None,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        hot_bytes = setting.memory_bytes // HOT_SHARE
        self.memory: MemoryCache[bytes, bytes] = MemoryCache(
            setting.memory_bytes - hot_bytes - 2 * setting.memory_bytes // NOTES_SHARE,
            heaviest=setting.max_answer_bytes,
        )
        self.hot: MemoryCache[bytes, HotEntry] = MemoryCache(hot_bytes, heaviest=hot_bytes // 64)
        self.sqlite, self.redis = sqlite, redis
        self._clock, self._wall = clock, wall
        self._memory_bytes = setting.memory_bytes
        self._unpacked: dict[bytes, tuple[CachedResponse, float, str, str | None]] = {}
        """Answers that were just stored, when they end, and whose they are."""

    def find(self, key: bytes) -> Found | None:
        """Look into memory, then the file, which takes about 10 us, and hardly any time where the key is not in it."""
        if key in self._unpacked:
            self.pack()
        stored = self.memory.get(key, self._clock())
        if stored is not None:
            return self._found(key, stored, "memory")
        there = None if self.sqlite is None else self.sqlite.get(key, self._wall())
        return None if there is None else self._found(key, ENDS.pack(there[1]) + there[0], "disk")

    async def find_shared(
        self, key: bytes, *, tenant: str, model: str | None, may_lead: bool
    ) -> tuple[Found | None, bool, Lease | None]:
        """From Redis, within its time limit; return the answer, whether it waited for another proxy, and a lease.

        `may_lead`: the answer may be stored. Then one proxy asks upstream for all, and the others wait for its answer; the one that is
        to ask gets the lease. `tenant` and `model` are what the file needs to know of it.
        """
        if self.redis is None:
            return None, False, None
        if may_lead and self.redis.wait_s:
            there, waited, lease = await self.redis.search(key)
        else:
            there, waited, lease = await self.redis.get(key), False, None
        if there is None:
            return None, waited, lease
        packed, ends_at = there
        found = self._found(key, ENDS.pack(ends_at) + packed, "redis")
        if found is not None and self.sqlite is not None:
            # the other workers find it in the file
            now = self._wall()
            self.sqlite.put(key, packed, ends_at=ends_at, tenant=tenant, model=model, now=now)
        return found, waited, lease

    def store(
        self,
        key: bytes,
        response: CachedResponse,
        *,
        ttl_s: float | None,
        tenant: str,
        model: str | None,
    ) -> None:
        """Store an answer in all tiers. It is found at once; packing and writing are done soon, when the client has it."""
        self.memory.remove(key)
        if not self._unpacked:
            # other proxies that wait for this answer look into Redis each 10 ms
            delay_s = PACK_S if self.redis is None else 0.0
            asyncio.get_running_loop().call_later(delay_s, self.pack)
        ends_at = inf if ttl_s is None else self._wall() + ttl_s
        self._unpacked[key] = response, ends_at, tenant, model

    def pack(self) -> None:
        """Pack what was just stored, and put it into all tiers."""
        unpacked, self._unpacked = self._unpacked, {}
        for key, (response, ends_at, tenant, model) in unpacked.items():
            try:
                packed = pack(response)
            except ValueError:
                self.memory.refused += 1  # too large ever to be unpacked
                continue
            if self.sqlite is not None:
                now = self._wall()
                self.sqlite.put(key, packed, ends_at=ends_at, tenant=tenant, model=model, now=now)
            if self.redis is not None:
                self.redis.put(key, packed, ends_at=ends_at)
            self._put(key, ENDS.pack(ends_at) + packed, ends_at)

    def remember(self, raw: bytes, hot: HotEntry) -> None:
        """Add a hot entry under the very bytes of its request."""
        weight = hot.weight + len(raw) + BYTES_HEAD + ENTRY_BYTES
        self.hot.put(raw, hot, self._clock(), weight=weight)

    async def purge(
        self, *, tenant: str | None = None, model: str | None = None, key: bytes | None = None
    ) -> int:
        """Delete answers; return how many the file, or without one the memory, held. Where one tier fails, the others are purged anyway.

        Memory and Redis do not know tenants or models: all of theirs goes, and what should stay comes back from the file.
        """
        self.pack()
        if key is None:
            held = len(self.memory)
        else:
            held = int(self.memory.get(key, self._clock()) is not None)
        # in this order, since a look-up meanwhile copies an answer from a tier into the next one
        try:
            if self.redis is not None:
                await self.redis.purge(key)
        finally:
            try:
                if self.sqlite is not None:
                    purge = self.sqlite.purge
                    held = await asyncio.to_thread(purge, tenant=tenant, model=model, key=key)
            finally:
                # what was stored meanwhile stays: it is in the other tiers then, and comes back from there
                self.pack()
                self.forget(key)
        return held

    def forget(self, key: bytes | None) -> None:
        """Remove one key, or all, from memory."""
        if key is None:
            self.memory.purge()
            self.hot.purge()
        else:
            # a hot entry looks here whether it still holds
            self.memory.remove(key)

    def memory_gauge(self) -> dict[str, int]:
        """What this process's memory holds, hot entries included, by the fields of CacheGauge."""
        return {
            "entries": len(self.memory),
            "size_bytes": self.memory.weight + self.hot.weight,
            "limit_bytes": self._memory_bytes,
            "evicted": self.memory.evicted,
            "expired": self.memory.expired,
            "refused": self.memory.refused,
        }

    def _found(self, key: bytes, stored: bytes, layer: Layer) -> Found | None:
        response = unpack(stored[ENDS.size :])
        if response is None:
            # damaged on the way, or of another version: as if it was never there
            self.memory.remove(key)
            return None
        (ends_at,) = ENDS.unpack_from(stored)
        if layer != "memory":
            self._put(key, stored, ends_at)
        return Found(response, stored, ends_at, layer)

    def _put(self, key: bytes, stored: bytes, ends_at: float) -> None:
        weight = len(stored) + BYTES_HEAD + ENTRY_BYTES
        ttl_s = None if ends_at == inf else ends_at - self._wall()
        self.memory.put(key, stored, self._clock(), weight=weight, ttl_s=ttl_s)
