"""The tiers together: what is stored is found at once, and everywhere soon; a purge while somebody asks brings nothing back."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from support.chat import until
from support.quiet_cache import QuietCache
from support.redis_server import needs_redis, redis_server

from toolkit.proxy.cache.entry import CachedResponse, unpack
from toolkit.proxy.cache.redis import RedisCache
from toolkit.proxy.cache.sqlite import SqliteCache
from toolkit.proxy.cache.tiers import Tiers
from toolkit.proxy.config import CacheSetting

KEY = b"k" * 16
KEPT = CachedResponse(
    endpoint="chat/completions", streamed=False, content_type="application/json", body=b"{}"
)


class AskedMeanwhile(QuietCache):
    """A file that is asked for an answer in the midst of its purge."""

    tiers: Tiers
    was_there = False

    def purge(
        self, *, tenant: str | None = None, model: str | None = None, key: bytes | None = None
    ) -> int:
        self.was_there = self.tiers.find(KEY) is not None
        return super().purge(tenant=tenant, model=model, key=key)


def tiers(file: SqliteCache | None, redis: RedisCache | None = None) -> Tiers:
    return Tiers(
        CacheSetting(memory_bytes=2**20),
        sqlite=file,
        redis=redis,
        clock=time.monotonic,
        wall=time.time,
    )


@pytest.fixture
def file(tmp_path: Path) -> Iterator[AskedMeanwhile]:
    with closing(AskedMeanwhile(tmp_path / "c.db", 2**26)) as opened:
        yield opened


def stored(those: Tiers, kept: CachedResponse = KEPT, *, ttl_s: float | None = None) -> None:
    """Store it, and have that done now."""
    those.store(KEY, kept, ttl_s=ttl_s, tenant="red", model="tiny")
    those.pack()


async def test_it_is_found_from_the_moment_it_is_stored_and_written_later(
    file: SqliteCache,
) -> None:
    mine = tiers(file)
    mine.store(KEY, KEPT, ttl_s=60.0, tenant="red", model="tiny")
    assert not file._pending, "what that takes is done later"
    await until(lambda: file._pending)
    mine.store(KEY, KEPT, ttl_s=60.0, tenant="red", model="tiny")
    found = mine.find(KEY)
    assert found is not None
    assert (found.response, found.layer) == (KEPT, "memory")
    assert unpack(found.stored[8:]) == KEPT
    # by another process's memory, which has none, in the file
    there = tiers(file).find(KEY)
    assert there is not None
    assert (there.response, there.layer) == (KEPT, "disk")
    assert there.ends_at == found.ends_at == pytest.approx(time.time() + 60, abs=30)
    # a newer one is what is found at once
    newer = replace(KEPT, body=b"[]")
    mine.store(KEY, newer, ttl_s=None, tenant="red", model="tiny")
    found = mine.find(KEY)
    assert found is not None
    assert (found.response, found.ends_at) == (newer, inf)


@pytest.mark.parametrize("key", [KEY, None])
async def test_a_look_up_during_a_purge_brings_nothing_back(
    file: AskedMeanwhile, key: bytes | None
) -> None:
    file.tiers = mine = tiers(file)
    stored(mine)
    mine.forget(key)
    assert await mine.purge(key=key) == 1
    assert file.was_there
    assert mine.find(KEY) is None


@needs_redis
def test_what_comes_from_redis_is_in_memory_and_in_the_file_then(
    file: AskedMeanwhile, tmp_path: Path
) -> None:
    async def test(url: str) -> None:
        caches = [RedisCache(url, 20.0, wait_s=wait_s) for wait_s in (20.0, 20.0, 0.0)]
        one, two, three = tiers(None, caches[0]), tiers(file, caches[1]), tiers(None, caches[2])
        file.tiers = two
        leading = await one.find_shared(KEY, tenant="red", model="tiny", may_lead=True)
        lease = leading[2]
        assert lease is not None
        lease.unwanted = lambda: None
        waiting = [
            asyncio.create_task(two.find_shared(KEY, tenant="red", model="tiny", may_lead=True))
            for _ in range(5)
        ]
        # one whose answer may not be stored, or that waits for nobody, waits for nobody
        for those, may_lead in ((two, False), (three, True)):
            shared = await those.find_shared(KEY, tenant="", model="tiny", may_lead=may_lead)
            assert shared == (None, False, None)
        stored(one)
        lease.end(is_stored=True)
        for found, *others in await asyncio.gather(*waiting):
            assert found is not None
            assert (found.response, found.layer) == (KEPT, "redis")
            assert others == [True, None]
        assert [row[3:5] for row in file._pending.values()] == [("red", "tiny")]
        found = two.find(KEY)
        assert found is not None
        assert found.layer == "memory"
        assert await two.purge(key=KEY) == 1
        assert (await three.find_shared(KEY, tenant="", model="", may_lead=False))[0] is None
        for cache in caches:
            await cache.close()

    with redis_server(tmp_path) as server:
        asyncio.run(test(server.url))
