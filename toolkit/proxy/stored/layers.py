"""Where stored answers lie: this process's memory, the shared file, Redis, and the memo of answers that are ready to be sent.

It decides nothing about a request: it is given keys. It reads both clocks, and waits for nothing but Redis.
"""

import asyncio
from collections.abc import Callable
from math import inf
from struct import Struct
from typing import NamedTuple

from toolkit.proxy.answers.kept import pack, unpack
from toolkit.proxy.answers.ready import Ready
from toolkit.proxy.exchange import Kept, Layer
from toolkit.proxy.settings import CacheSetting
from toolkit.proxy.stored.cache import ENTRY_BYTES, Cache
from toolkit.proxy.stored.redis_cache import RedisCache
from toolkit.proxy.stored.shared_cache import SharedCache
from toolkit.proxy.told.metrics import LayerGauge

MEMO_SHARE = 4
"""One part in four of the memory holds ready answers, the rest packed ones but for what notes take."""
NOTES_SHARE = 16
"""One part in sixteen holds requests that were no hits, for explanations, and as much again which requests were seen."""
BYTES_HEAD = 33
"""What CPython adds to a bytes object."""
ENDS = Struct("<d")
"""Before a packed answer in memory: when it ends, wall clock."""


class Found(NamedTuple):
    """A stored answer and where it was."""

    kept: Kept
    stored: bytes
    """As the memory holds it."""
    ends_at: float
    """Wall clock; inf: never."""
    layer: Layer


class Layers:
    """All that one process can answer from. `shared` and `redis` may be missing; `writes` False: another process fills them."""

    def __init__(
        self,
        setting: CacheSetting,
        *,
        shared: SharedCache | None,
        redis: RedisCache | None,
        clock: Callable[[], float],
        wall: Callable[[], float],
        writes: bool = True,
    ) -> None:
        memo_bytes = setting.memory_bytes // MEMO_SHARE
        self.memory: Cache[bytes, bytes] = Cache(
            setting.memory_bytes - memo_bytes - 2 * setting.memory_bytes // NOTES_SHARE,
            heaviest=setting.max_answer_bytes,
        )
        self.memo: Cache[bytes, Ready] = Cache(memo_bytes, heaviest=memo_bytes // 64)
        self.shared, self.redis = shared, redis
        self._clock, self._wall, self._writes = clock, wall, writes
        self._memory_bytes = setting.memory_bytes

    def find(self, key: bytes) -> Found | None:
        """From memory, or from the file, which costs some 10 us."""
        stored = self.memory.get(key, self._clock())
        if stored is not None:
            return self._found(key, stored, "memory")
        if self.shared is None:
            return None
        there = self.shared.get(key, self._wall())
        return None if there is None else self._brought(key, *there, "disk")

    async def find_far(self, key: bytes, *, tenant: str, model: str | None) -> Found | None:
        """From Redis, within its time limit; whose answer it is, Redis does not know."""
        if self.redis is None:
            return None
        there = await self.redis.get(key, self._wall())
        return None if there is None else self.brought(key, *there, tenant=tenant, model=model)

    def brought(
        self, key: bytes, packed: bytes, ends_at: float, *, tenant: str, model: str | None
    ) -> Found | None:
        """What came from Redis, now in memory, too, and in the file, where the other workers find it."""
        found = self._brought(key, packed, ends_at, "redis")
        if found is not None:
            self._file(key, packed, ends_at, tenant=tenant, model=model)
        return found

    def keep(
        self, key: bytes, kept: Kept, *, ttl_s: float | None, tenant: str, model: str | None
    ) -> bool:
        """Store an answer everywhere; whether this process's memory took it."""
        now = self._wall()
        ends_at = inf if ttl_s is None else now + ttl_s
        packed = pack(kept)
        self._file(key, packed, ends_at, tenant=tenant, model=model)
        if self._writes and self.redis is not None:
            self.redis.put(key, packed, ends_at=ends_at, now=now)
        return self._put(key, ENDS.pack(ends_at) + packed, ends_at)

    def remember(self, raw: bytes, ready: Ready) -> None:
        """Have a ready answer found by the very bytes of its request."""
        weight = ready.weight + len(raw) + BYTES_HEAD + ENTRY_BYTES
        self.memo.put(raw, ready, self._clock(), weight=weight)

    async def purge(
        self, *, tenant: str | None = None, model: str | None = None, key: bytes | None = None
    ) -> int:
        """Forget answers; how many the file, or without one the memory, held. Where one of them refuses, the others forget all the same.

        Memory and Redis do not know tenants or models: all of theirs goes, and what was not meant comes back from the file.
        """
        held = self._held(key)
        # Redis, the file, memory: who asks meanwhile brings into the next one what the one before did not yet let go
        try:
            if self.redis is not None:
                await (self.redis.purge() if key is None else self.redis.forget(key))
        finally:
            try:
                if self.shared is not None:
                    purge = self.shared.purge
                    held = await asyncio.to_thread(purge, tenant=tenant, model=model, key=key)
            finally:
                self.forget(key)
        return held

    def forget(self, key: bytes | None) -> None:
        """Let go what memory holds under a key, or all that it holds."""
        if key is None:
            self.memory.purge()
            self.memo.purge()
        else:
            # what is known by its bytes is looked for here, too, and is no more
            self.memory.remove(key)

    def memory_gauge(self) -> LayerGauge:
        """What this process's memory holds, answers that are ready to be sent included."""
        counts = self.memory.counts()
        return LayerGauge(
            layer="memory",
            entries=counts.entries,
            size_bytes=counts.weight + self.memo.weight,
            limit_bytes=self._memory_bytes,
            evicted=counts.evicted,
            expired=counts.expired,
            refused=counts.refused,
        )

    def _file(
        self, key: bytes, packed: bytes, ends_at: float, *, tenant: str, model: str | None
    ) -> None:
        if self._writes and self.shared is not None:
            now = self._wall()
            self.shared.put(key, packed, ends_at=ends_at, tenant=tenant, model=model, now=now)

    def _held(self, key: bytes | None) -> int:
        if key is None:
            return len(self.memory)
        return int(self.memory.get(key, self._clock()) is not None)

    def _brought(self, key: bytes, packed: bytes, ends_at: float, layer: Layer) -> Found | None:
        stored = ENDS.pack(ends_at) + packed
        found = self._found(key, stored, layer)
        if found is not None:
            self._put(key, stored, ends_at)
        return found

    def _found(self, key: bytes, stored: bytes, layer: Layer) -> Found | None:
        kept = unpack(stored[ENDS.size :])
        if kept is None:
            # damaged on the way, or of another version: as if it was never there
            self.memory.remove(key)
            return None
        return Found(kept, stored, ENDS.unpack_from(stored)[0], layer)

    def _put(self, key: bytes, stored: bytes, ends_at: float) -> bool:
        weight = len(stored) + BYTES_HEAD + ENTRY_BYTES
        ttl_s = None if ends_at == inf else ends_at - self._wall()
        return self.memory.put(key, stored, self._clock(), weight=weight, ttl_s=ttl_s)
