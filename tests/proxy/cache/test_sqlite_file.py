"""The shared layer's file: who may read it, and what happens when it is damaged, foreign, gone, full or locked."""

import math
import os
import resource
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.quiet_cache import QuietCache

from toolkit.errors import ToolkitError
from toolkit.proxy.cache import sqlite as module
from toolkit.proxy.cache.sqlite import SqliteCache

NOW = 1_700_000_000.0
MIB = 2**20
KEY = b"k" * 16


def put(cache: SqliteCache, key: bytes = KEY, value: bytes = b"answer") -> bool:
    return cache.put(key, value, ends_at=math.inf, tenant="", model="tiny", now=NOW)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.db"


@contextmanager
def opened(path: Path) -> Iterator[QuietCache]:
    with closing(QuietCache(path, 64 * MIB)) as cache:
        yield cache


def rows(path: Path) -> list[tuple[str, str]]:
    """The fingerprints that plain SQLite finds in the file."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT name, value FROM fingerprints").fetchall()


def there(path: Path) -> list[str]:
    return sorted(each.name for each in path.parent.iterdir())


# --- who may read it ---------------------------------------------------------------------------------------


def test_a_name_with_signs_is_a_name(tmp_path: Path) -> None:
    with opened(tmp_path / "c?mode=ro#%41 ü.db") as cache:
        put(cache)
        assert cache.flush()
    assert (tmp_path / "c?mode=ro#%41 ü.db").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user: run it as root")
def test_another_users_file_is_refused(path: Path) -> None:
    with opened(path):
        pass
    os.chown(path, 65534, 65534)
    with pytest.raises(ToolkitError, match="belongs to another user"):
        SqliteCache(path, MIB)


# --- damage ------------------------------------------------------------------------------------------------


def fill(path: Path, count: int = 2_000) -> None:
    with opened(path) as cache:
        for number in range(count):
            put(cache, number.to_bytes(16, "big"), os.urandom(500))
        assert cache.flush()


def noise_everywhere(path: Path) -> None:
    path.write_bytes(os.urandom(100_000))


def test_damage_that_comes_while_it_is_open_is_found_and_said_once(path: Path) -> None:
    fill(path)
    with opened(path) as cache:
        cache._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        noise_everywhere(path)
        for number in range(2_000):
            cache.get(number.to_bytes(16, "big"), NOW)
        assert put(cache)
        assert cache.flush()
        assert cache.get(KEY, NOW) is not None
        assert len(cache.warnings) == 1


def test_two_who_find_the_damage_set_the_file_aside_once(path: Path) -> None:
    fill(path)
    with opened(path) as one, opened(path) as two:
        one._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        noise_everywhere(path)
        for cache in (one, two):
            for number in range(2_000):
                cache.get(number.to_bytes(16, "big"), NOW)
        assert put(one)
        assert one.flush()
        assert two.flush()
        assert two.get(KEY, NOW) == (b"answer", math.inf)
        assert (len(one.warnings), len(two.warnings)) == (1, 0)
        assert "cache.db.broken-1" in there(path)
        assert "cache.db.broken-2" not in there(path)
    # whoever closed the old one took nothing of the new one with it
    with opened(path) as cache:
        assert cache.get(KEY, NOW) == (b"answer", math.inf)


def test_no_more_than_three_broken_files_are_kept(path: Path) -> None:
    for _ in range(5):
        fill(path, 10)
        noise_everywhere(path)
    with opened(path):
        broken = [name for name in there(path) if "broken" in name]
        assert broken == [f"cache.db.broken-{number}" for number in (1, 2, 3)]


def test_a_journal_of_an_older_broken_file_is_not_left_beside_a_newer_one(path: Path) -> None:
    for number in (1, 2, 3):
        (path.parent / f"cache.db.broken-{number}").write_bytes(b"")
    (path.parent / "cache.db.broken-3-wal").write_bytes(b"of another")
    noise_everywhere(path)
    with opened(path):
        assert "cache.db.broken-3-wal" not in there(path)
        assert (path.parent / "cache.db.broken-3").stat().st_size == 100_000


# --- a disk that fails ----------------------------------------------------------------------------------------


def test_a_full_disk_stops_no_hit_and_is_made_up_for(path: Path) -> None:
    with opened(path) as cache:
        put(cache, b"1" * 16)
        assert cache.flush()
        pages = module.number(cache._writer, "page_count")
        cache._writer.execute(f"PRAGMA max_page_count = {pages + 2}")
        big = os.urandom(MIB)
        assert put(cache, b"2" * 16, big)
        assert not cache.flush()
        assert "the disk is full" in cache.problem
        # what is there and what waits is found all the same
        assert cache.get(b"1" * 16, NOW) is not None
        assert cache.get(b"2" * 16, NOW) == (big, math.inf)
        cache.keep_fingerprints({"tiny": "a"})
        assert cache.fingerprints() == {"tiny": "a"}
        cache._writer.execute("PRAGMA max_page_count = 1000000")
        assert cache.flush()
        assert cache.problem is None
        assert cache._pending_bytes == 0
        assert cache.get(b"2" * 16, NOW) == (big, math.inf)


def test_writes_that_the_system_refuses_cost_no_hit(path: Path) -> None:
    """A limit to the size of files, the system's own: EFBIG, an I/O error to SQLite."""
    with opened(path) as cache:
        for number in range(100):
            put(cache, bytes([number]) * 16, os.urandom(10_000))
        assert cache.flush()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8 * 8192, limits[1]))
        try:
            put(cache, value=os.urandom(MIB))
            assert not cache.flush()
            assert cache.problem
            assert cache.get(KEY, NOW) is not None
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert cache.flush()
        assert cache.problem is None
        assert not cache.warnings, "a disk that refuses is no damage"
        found = [cache.get(bytes([number]) * 16, NOW) for number in range(100)]
        assert None not in found
        assert cache.get(KEY, NOW) is not None


def test_a_file_that_fails_at_the_start_is_done_without(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: SqliteCache) -> sqlite3.Connection:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SqliteCache, "_prepared", full)
    with opened(path) as cache:
        assert "No space left" in cache.problem
        put(cache)
        assert not cache.flush()
        assert cache.get(KEY, NOW) is not None
        cache.keep_fingerprints({"tiny": "a"})
        assert cache.fingerprints() == {"tiny": "a"}
        with pytest.raises(ToolkitError, match=r"could not be purged: .* No space left"):
            cache.purge()
        monkeypatch.undo()
        put(cache)
        assert cache.flush()
        assert (cache.problem, rows(path)) == (None, [("tiny", "a")])


def test_what_failed_is_tried_again_by_itself_whatever_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.01)
    with closing(SqliteCache(path, 64 * MIB)) as cache:
        for error in (sqlite3.OperationalError("oh"), RuntimeError("oh")):

            def fail(*_: object, error: Exception = error) -> None:
                raise error

            cache._make_room = fail
            put(cache)
            assert within_10_s(lambda: cache.problem)
            assert "oh" in cache.problem
            del cache._make_room
            assert within_10_s(lambda: cache.problem is None and not cache._pending)


def within_10_s(true: Callable[[], object]) -> bool:
    pause = threading.Event()
    return any(true() or pause.wait(0.01) for _ in range(1000))
