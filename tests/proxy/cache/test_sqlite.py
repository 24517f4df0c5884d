"""The shared layer on a real file: what is put is found by everybody, also where the file is damaged, full or locked."""

import hashlib
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.chat import until

from toolkit.errors import ToolkitError
from toolkit.proxy.cache import sqlite as module
from toolkit.proxy.cache.entry import CachedResponse
from toolkit.proxy.cache.sqlite import KeyFilter, SqliteCache
from toolkit.proxy.cache.tiers import Tiers
from toolkit.proxy.config import CacheSetting

NOW = 1_700_000_000.0
MIB = 2**20


class QuietCache(SqliteCache):
    """Its thread does nothing: `flush` does what that does in each round."""

    def _run(self) -> None:
        self._end.wait()


def key(number: int) -> bytes:
    return hashlib.blake2b(str(number).encode(), digest_size=16).digest()


def put(cache: SqliteCache, number: int, value: bytes = b"answer", **changes: object) -> bool:
    row = {"ends_at": math.inf, "tenant": "red", "model": "qwen", "now": NOW} | changes
    return cache.put(key(number), value, **row)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.db"


@pytest.fixture
def cache(path: Path) -> Iterator[SqliteCache]:
    with closing(QuietCache(path, 64 * MIB)) as opened:
        yield opened


def test_what_is_put_anew_while_its_write_fails_is_what_waits_on(
    cache: QuietCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cache, 1, b"old" * 100)
    put(cache, 2, b"two")

    def fail(*_: object) -> None:
        assert cache.get(key(1), NOW) == (b"old" * 100, math.inf), "it is being written"
        put(cache, 1, b"new")
        assert cache.get(key(1), NOW) == (b"new", math.inf)
        raise sqlite3.OperationalError("oh")

    monkeypatch.setattr(cache, "_make_room", fail)
    assert not cache.flush()
    monkeypatch.undo()
    assert cache._pending_bytes == 2 * (3 + 256)
    assert cache.flush()
    assert cache.get(key(1), NOW) == (b"new", math.inf)
    assert cache.get(key(2), NOW) == (b"two", math.inf)
    assert cache._pending_bytes == 0


# --- bounds ----------------------------------------------------------------------------------------------


def test_no_more_waits_than_may_and_what_is_lost_is_counted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 10,256 bytes each: three are 30,768, a fourth would make 41,024
    monkeypatch.setattr(module, "WAITING_BYTES", 40_000)
    with closing(QuietCache(path, 64 * MIB)) as cache:
        kept = [put(cache, number, b"x" * 10_000) for number in range(5)]
        assert put(cache, 0, b"y" * 10_000), "the same once more takes no room of its own"
        assert kept == [True, True, True, False, False]
        assert cache.lost == 2
        assert cache.flush()
        assert put(cache, 4, b"x" * 10_000)


def test_a_purged_file_gives_its_space_back(path: Path) -> None:
    with closing(QuietCache(path, 64 * MIB)) as cache:
        for number in range(20):
            put(cache, number, os.urandom(MIB))
        cache.flush()
        assert cache.file_bytes() > 20 * MIB
        assert cache.purge() == 20
        for _ in range(10):  # 20 MiB are 2,560 pages of 8 KiB, and 512 go at a time
            cache.flush()
        # the last 512 pages stay for the next answers
        assert cache.file_bytes() <= 520 * 8192


# --- the filter ------------------------------------------------------------------------------------------


def test_a_filter_holds_what_was_added_and_hardly_anything_else() -> None:
    known = KeyFilter()
    added = [key(number) for number in range(20_000)]
    known.add(b"".join(each[:6] for each in added))
    assert known.count == 20_000
    assert known.may_hold(key(20_000)), "more may be there, as far as was read"
    known.is_complete = True
    assert all(known.may_hold(each) for each in added)
    # a bit of 2**24 is set with 0.24 %, both of a key with 1 in 176,000
    assert sum(known.may_hold(key(number)) for number in range(20_000, 70_000)) < 10


def looked_up(cache: SqliteCache, number: int) -> bool:
    """Whether the file is asked."""
    asked: list[str] = []
    cache._reader.set_trace_callback(asked.append)
    cache.get(key(number), NOW)
    cache._reader.set_trace_callback(None)
    return bool(asked)


def test_only_for_keys_that_are_in_the_file_it_is_asked_whoever_wrote_them(path: Path) -> None:
    with (
        closing(QuietCache(path, 64 * MIB)) as one,
        closing(QuietCache(path, 64 * MIB)) as two,
    ):
        for number in range(12_000):
            put(one, number)
        one.flush()
        assert looked_up(two, 99_999), "it does not know the keys yet"
        for _ in range(3):  # 20,000 keys at a time, then that there are no more
            two.flush()
        assert not looked_up(two, 99_999)
        assert all(two.get(key(number), NOW) for number in range(0, 12_000, 100))
        for number in range(12_000, 12_100):
            put(one, number)
        one.flush()
        two.flush()
        assert all(two.get(key(number), NOW) for number in range(12_000, 12_100))
        # its own, too, before and after they are written
        put(two, 12_200)
        assert two.get(key(12_200), NOW)
        two.flush()
        assert two.get(key(12_200), NOW)
        assert not looked_up(two, 99_999)


def test_what_is_written_after_a_purge_is_found_though_its_numbers_were_others(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [NOW]
    monkeypatch.setattr(
        module, "time", SimpleNamespace(time=lambda: now[0], monotonic=time.monotonic)
    )
    with (
        closing(QuietCache(path, 64 * MIB)) as one,
        closing(QuietCache(path, 64 * MIB)) as two,
    ):
        for round_number in range(3):
            for number in range(50):
                put(one, 100 * round_number + number)
            one.flush()
            two.flush()
            assert all(two.get(key(100 * round_number + number), NOW) for number in range(50))
            one.purge()
            now[0] -= 3600  # and the clock was set back
            two.flush()
            two.flush()


# --- purging ---------------------------------------------------------------------------------------------


def test_a_purge_that_the_file_refuses_is_no_purge(cache: QuietCache, path: Path) -> None:
    put(cache, 1)
    cache.flush()
    cache._writer.execute("PRAGMA busy_timeout = 10")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(ToolkitError, match="locked by another process"):
            cache.purge()
        other.execute("ROLLBACK")
    assert cache.purge() == 1


# --- many at once ----------------------------------------------------------------------------------------


def test_no_look_up_finds_another_answer_than_was_put_while_it_is_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers are put in order, again and again; whoever looks sees each key's value grow and never vanish."""
    done = threading.Event()
    wrong: list[str] = []
    monkeypatch.setattr(module, "TICK_S", 0.0)
    with closing(SqliteCache(path, 64 * MIB)) as cache:
        for each in range(8):
            put(cache, each, b"0")

        def look() -> None:
            last = [0] * 8
            while not done.is_set():
                for each in range(8):
                    found = cache.get(key(each), NOW)
                    if found is None or int(found[0]) < last[each]:
                        wrong.append(f"{each}: {found} after {last[each]}")
                    else:
                        last[each] = int(found[0])

        lookers = [threading.Thread(target=look) for _ in range(2)]
        for thread in lookers:
            thread.start()
        for turn in range(1, 2_000):
            put(cache, turn % 8, str(turn).encode())
        done.set()
        for thread in lookers:
            thread.join()
    assert wrong == []


# --- damage, and disks that fail ------------------------------------------------------------------------------


LATER = 5_000
"""A number of which no answer was there before."""


def damaged(path: Path, *caches: QuietCache) -> None:
    """Noise all over a file of 2,000 answers that these have open and have looked at since."""
    caches[0]._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    path.write_bytes(os.urandom(100_000))
    for cache in caches:
        for number in range(2_000):
            cache.get(key(number), NOW)


def test_damage_that_is_found_by_two_sets_the_file_aside_once_and_is_said_once(path: Path) -> None:
    with closing(QuietCache(path, 64 * MIB)) as cache:
        for number in range(2_000):
            put(cache, number, os.urandom(500))
        assert cache.flush()
    with (
        closing(QuietCache(path, 64 * MIB)) as one,
        closing(QuietCache(path, 64 * MIB)) as two,
    ):
        damaged(path, one, two)
        assert put(one, LATER)
        assert one.flush()
        assert two.flush()
        assert two.get(key(LATER), NOW) == (b"answer", math.inf)
        assert (len(one.warnings), len(two.warnings)) == (1, 0)
        there = {each.name for each in path.parent.iterdir()}
        assert "cache.db.broken-1" in there
        assert "cache.db.broken-2" not in there
    # whoever closed the old one took nothing of the new one with it
    with closing(QuietCache(path, 64 * MIB)) as cache:
        assert cache.get(key(LATER), NOW) == (b"answer", math.inf)


def test_a_full_disk_stops_no_hit_and_is_made_up_for(cache: QuietCache) -> None:
    put(cache, 1)
    assert cache.flush()
    pages = module.number(cache._writer, "page_count")
    cache._writer.execute(f"PRAGMA max_page_count = {pages + 2}")
    big = os.urandom(MIB)
    assert put(cache, 2, big)
    assert not cache.flush()
    assert "the disk is full" in cache.problem
    # what is there and what waits is found all the same
    assert cache.get(key(1), NOW) is not None
    assert cache.get(key(2), NOW) == (big, math.inf)
    cache.keep_fingerprints({"tiny": "a"})
    assert cache.fingerprints() == {"tiny": "a"}
    cache._writer.execute("PRAGMA max_page_count = 1000000")
    assert cache.flush()
    assert (cache.problem, cache._pending_bytes) == (None, 0)
    assert cache.get(key(2), NOW) == (big, math.inf)


def test_what_failed_is_tried_again_by_itself_whatever_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.01)
    pause = threading.Event()

    def within_10_s(true: Callable[[], object]) -> bool:
        return any(true() or pause.wait(0.01) for _ in range(1000))

    with closing(SqliteCache(path, 64 * MIB)) as cache:
        for error in (sqlite3.OperationalError("oh"), RuntimeError("oh")):

            def fail(*_: object, error: Exception = error) -> None:
                raise error

            cache._make_room = fail
            put(cache, 1)
            assert within_10_s(lambda: cache.problem)
            assert "oh" in cache.problem
            del cache._make_room
            assert within_10_s(lambda: cache.problem is None and not cache._pending)


# --- the tiers above it --------------------------------------------------------------------------------------

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


def tiers(file: SqliteCache | None) -> Tiers:
    setting = CacheSetting(memory_bytes=2**20)
    return Tiers(setting, sqlite=file, redis=None, clock=time.monotonic, wall=time.time)


async def test_it_is_found_from_the_moment_it_is_stored_and_written_later(
    cache: QuietCache,
) -> None:
    mine = tiers(cache)
    mine.store(KEY, KEPT, ttl_s=60.0, tenant="red", model="tiny")
    assert not cache._pending, "what that takes is done later"
    await until(lambda: cache._pending)
    found = mine.find(KEY)
    assert found is not None
    assert (found.response, found.layer) == (KEPT, "memory")
    # by another process's memory, which has none, in the file
    there = tiers(cache).find(KEY)
    assert there is not None
    assert (there.response, there.layer, there.ends_at) == (KEPT, "disk", found.ends_at)
    # a newer one is what is found at once
    newer = replace(KEPT, body=b"[]")
    mine.store(KEY, newer, ttl_s=None, tenant="red", model="tiny")
    found = mine.find(KEY)
    assert found is not None
    assert (found.response, found.ends_at) == (newer, math.inf)


@pytest.mark.parametrize("key", [KEY, None])
async def test_a_look_up_during_a_purge_brings_nothing_back(path: Path, key: bytes | None) -> None:
    with closing(AskedMeanwhile(path, 64 * MIB)) as file:
        file.tiers = mine = tiers(file)
        mine.store(KEY, KEPT, ttl_s=None, tenant="red", model="tiny")
        mine.pack()
        mine.forget(key)
        assert await mine.purge(key=key) == 1
        assert file.was_there
        assert mine.find(KEY) is None
