"""The shared layer's file: who may read it, and what happens when it is damaged, foreign, gone, full or locked."""

import math
import os
import resource
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.quiet_cache import QuietCache

from toolkit.errors import ToolkitError
from toolkit.proxy.stored import shared_file
from toolkit.proxy.stored.shared_cache import SharedCache

NOW = 1_700_000_000.0
MIB = 2**20
KEY = b"k" * 16


def put(cache: SharedCache, key: bytes = KEY, value: bytes = b"answer") -> bool:
    return cache.put(key, value, ends_at=None, tenant="", model="tiny", now=NOW)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.db"


@contextmanager
def opened(path: Path, **changes: int) -> Iterator[QuietCache]:
    with closing(QuietCache(path, 64 * MIB, **changes)) as cache:
        yield cache


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def there(path: Path) -> list[str]:
    return sorted(each.name for each in path.parent.iterdir())


# --- who may read it ---------------------------------------------------------------------------------------


def test_only_its_owner_may_read_it_whatever_the_mask_of_rights_is(path: Path) -> None:
    before = os.umask(0)
    try:
        with opened(path) as cache:
            put(cache)
            assert cache.flush()
            assert there(path) == ["cache.db", "cache.db-shm", "cache.db-wal"]
            assert {mode(path.parent / name) for name in there(path)} == {0o600}
    finally:
        os.umask(before)


def test_one_that_others_could_read_is_taken_from_them_and_that_is_said(path: Path) -> None:
    with opened(path) as cache:
        put(cache)
    path.chmod(0o644)
    with opened(path) as cache:
        assert mode(path) == 0o600
        (told,) = cache.take_warnings()
        assert "could be read by others (mode 644)" in told
        assert cache.take_warnings() == []
        assert cache.get(KEY, NOW) == (b"answer", math.inf)


def test_its_folder_is_made(tmp_path: Path) -> None:
    with opened(tmp_path / "a" / "b" / "cache.db") as cache:
        put(cache)
        assert cache.flush()


def test_a_name_with_signs_is_a_name(tmp_path: Path) -> None:
    with opened(tmp_path / "c?mode=ro#%41 ü.db") as cache:
        put(cache)
        assert cache.flush()
    assert (tmp_path / "c?mode=ro#%41 ü.db").exists()


def test_a_folder_of_its_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="is a folder"):
        SharedCache(tmp_path, MIB)


@pytest.mark.timeout(20)
def test_a_pipe_of_its_name_is_refused_and_stays_as_it_is(path: Path) -> None:
    # and so `/dev/null`, whose mode root would have taken away from everybody
    os.mkfifo(path, 0o644)
    before = path.stat()
    with pytest.raises(ToolkitError, match="is a device or a pipe"):
        SharedCache(path, MIB)
    assert path.stat() == before


def test_a_place_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ToolkitError, match="cannot be used"):
        SharedCache(tmp_path / "file" / "cache.db", MIB)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user: run it as root")
def test_another_users_file_is_refused(path: Path) -> None:
    with opened(path):
        pass
    os.chown(path, 65534, 65534)
    with pytest.raises(ToolkitError, match="belongs to another user"):
        SharedCache(path, MIB)


# --- another's file --------------------------------------------------------------------------------------------


def test_another_programs_database_is_refused_and_left_as_it_is(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE answers (key)")
        other.commit()
    path.chmod(0o600)
    before = path.read_bytes()
    with pytest.raises(ToolkitError, match="database of another program"):
        SharedCache(path, MIB)
    assert path.read_bytes() == before
    assert there(path) == ["cache.db"]


def test_one_of_another_version_is_set_aside(path: Path) -> None:
    with opened(path) as cache:
        put(cache)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA user_version = 99")
        raw.commit()
    with opened(path) as cache:
        (told,) = cache.take_warnings()
        assert "another version of the toolkit" in told
        assert cache.get(KEY, NOW) is None
        assert "cache.db.broken-1" in there(path)


# --- damage ------------------------------------------------------------------------------------------------


def fill(path: Path, count: int = 2_000) -> None:
    with opened(path) as cache:
        for number in range(count):
            put(cache, number.to_bytes(16, "big"), os.urandom(500))
        cache.bump("tiny")
        assert cache.flush()


def noise_everywhere(path: Path) -> None:
    path.write_bytes(os.urandom(100_000))


def noise_after_the_head(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[8192:] = os.urandom(len(data) - 8192)
    path.write_bytes(data)


def half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def hundred_bytes(path: Path) -> None:
    os.truncate(path, 100)


def no_bytes(path: Path) -> None:
    os.truncate(path, 0)


def text(path: Path) -> None:
    path.write_text("[cache]\nfile = 'x'\n" * 100)


DAMAGES = [noise_everywhere, noise_after_the_head, half, hundred_bytes, text]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_set_aside_sooner_or_later_and_never_answers_wrongly(
    path: Path, damage: Callable[[Path], None]
) -> None:
    fill(path)
    damage(path)
    with opened(path) as cache:
        for number in range(2_000):
            found = cache.get(number.to_bytes(16, "big"), NOW)
            assert found is None or len(found[0]) == 500
        cache.mend()
        assert put(cache)
        assert cache.flush()
        assert cache.problem is None
        assert cache.get(KEY, NOW) == (b"answer", math.inf)
        (told,) = cache.take_warnings()
        assert "it was set aside as `cache.db.broken-1`" in told
        assert mode(path) == 0o600
    assert "cache.db.broken-1" in there(path)


def test_an_emptied_file_is_a_new_one(path: Path) -> None:
    fill(path)
    no_bytes(path)
    with opened(path) as cache:
        assert put(cache)
        assert cache.flush()
        assert cache.take_warnings() == []


def test_damage_that_comes_while_it_is_open_costs_hits_and_no_epoch(path: Path) -> None:
    fill(path)
    with opened(path) as cache:
        assert cache.epoch("tiny") == 1
        cache.set_identity("http://a:1", "first")
        cache._file.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        noise_everywhere(path)
        for number in range(2_000):
            cache.get(number.to_bytes(16, "big"), NOW)
        assert cache.counts().failures > 0
        cache.mend()
        assert put(cache)
        assert cache.flush()
        assert (cache.epoch("tiny"), cache.identity("http://a:1")) == (1, "first")
        assert cache.bump("tiny") == 2
        assert len(cache.take_warnings()) == 1


def test_the_thread_mends_a_damaged_file_by_itself(path: Path) -> None:
    fill(path)
    with closing(SharedCache(path, 64 * MIB, batch_s=0.01)) as cache:
        cache._file.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        noise_everywhere(path)
        told: list[str] = []

        def looked() -> list[str]:
            cache.get(bytes(16), NOW)
            told.extend(cache.take_warnings())
            return told

        assert within_10_s(looked)


def test_two_who_find_the_damage_set_the_file_aside_once(path: Path) -> None:
    fill(path)
    with opened(path) as one, opened(path) as two:
        one._file.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        noise_everywhere(path)
        for cache in (one, two):
            for number in range(2_000):
                cache.get(number.to_bytes(16, "big"), NOW)
        one.mend()
        assert put(one)
        assert one.flush()
        two.mend()
        assert two.get(KEY, NOW) == (b"answer", math.inf)
        assert (len(one.take_warnings()), two.take_warnings()) == (1, [])
        assert "cache.db.broken-1" in there(path)
        assert "cache.db.broken-2" not in there(path)
    # whoever closed the old one took nothing of the new one with it
    with opened(path) as cache:
        assert cache.get(KEY, NOW) == (b"answer", math.inf)


def test_a_file_that_is_set_aside_by_one_is_left_by_the_other_with_nothing_lost(path: Path) -> None:
    with opened(path) as one, opened(path) as two:
        put(two)
        assert two.flush()
        shared_file.set_aside(path, path.stat().st_ino, "is damaged")
        one.mend()
        put(one, b"1" * 16)
        assert one.flush()
        put(two, b"2" * 16)  # into the file that was set aside, until it looks
        two.mend()
        assert two.flush()
        assert one.get(b"2" * 16, NOW) is not None
        assert two.get(b"1" * 16, NOW) is not None
    with opened(path) as cache:
        assert cache.get(b"1" * 16, NOW) is not None
        assert cache.get(b"2" * 16, NOW) is not None


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


def test_after_a_fault_nothing_is_read_until_the_file_was_opened_anew(path: Path) -> None:
    fill(path)
    with opened(path) as cache:
        cache._file.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        noise_everywhere(path)
        found = [cache.get(number.to_bytes(16, "big"), NOW) for number in range(2_000)]
        assert None in found
        assert cache.counts().failures == 1


def test_a_file_that_is_deleted_is_made_anew_with_its_epochs(path: Path) -> None:
    with opened(path) as cache:
        cache.bump("tiny")
        put(cache)
        cache.flush()
        for name in there(path):
            (path.parent / name).unlink()
        cache.mend()
        assert cache.get(KEY, NOW) is None
        assert put(cache)
        assert cache.flush()
        assert path.exists()
    with opened(path) as cache:
        assert cache.get(KEY, NOW) is not None
        assert cache.epoch("tiny") == 1


# --- a disk that fails ----------------------------------------------------------------------------------------


def test_a_full_disk_stops_no_hit_and_is_made_up_for(path: Path) -> None:
    with opened(path) as cache:
        put(cache, b"1" * 16)
        assert cache.flush()
        pages = shared_file.number(cache._file.writer, "page_count")
        cache._file.writer.execute(f"PRAGMA max_page_count = {pages + 2}")
        big = os.urandom(MIB)
        assert put(cache, b"2" * 16, big)
        assert not cache.flush()
        assert "the disk is full" in cache.problem
        # what is there and what waits is found all the same
        assert cache.get(b"1" * 16, NOW) is not None
        assert cache.get(b"2" * 16, NOW) == (big, math.inf)
        assert cache.bump("tiny") == 1
        cache._file.writer.execute("PRAGMA max_page_count = 1000000")
        assert cache.flush()
        assert cache.problem is None
        assert cache.counts().waiting_bytes == 0
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
            cache.mend()
            assert cache.get(KEY, NOW) is not None
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        cache.mend()
        assert cache.flush()
        assert cache.problem is None
        assert cache.take_warnings() == [], "a disk that refuses is no damage"
        found = [cache.get(bytes([number]) * 16, NOW) for number in range(100)]
        assert None not in found
        assert cache.get(KEY, NOW) is not None


def test_on_a_full_disk_no_more_waits_than_may(path: Path) -> None:
    with opened(path, waiting_bytes=MIB) as cache:
        cache._file.writer.execute("PRAGMA max_page_count = 1")
        kept = [put(cache, bytes([n]) * 16, bytes(100_000)) for n in range(20)]
        assert not cache.flush()
        assert kept.count(True) == 10  # of 100,256 bytes each, in 1,048,576
        assert cache.counts().lost == 10
        assert not put(cache, b"x" * 16, bytes(100_000))
        assert put(cache, bytes([0]) * 16, b"new"), "smaller, in the place of what waits"
        assert cache.get(bytes([0]) * 16, NOW) == (b"new", math.inf)


def test_a_file_locked_by_another_is_told_and_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_file, "BUSY_TIMEOUT_S", 0.05)
    with opened(path) as cache, closing(sqlite3.connect(path, isolation_level=None)) as other:
        put(cache, b"1" * 16)
        cache.flush()
        other.execute("BEGIN IMMEDIATE")
        put(cache)
        assert not cache.flush()
        assert "locked by another process" in cache.problem
        assert cache.get(b"1" * 16, NOW) is not None, "readers wait for no writer"
        assert cache.bump("tiny") == 1, "counted on without the file"
        other.execute("ROLLBACK")
        assert cache.flush()
        assert cache.problem is None


def test_a_file_that_fails_at_the_start_is_done_without(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shared_file.opened

    def full(_: Path) -> shared_file.Opened:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shared_file, "opened", full)
    with opened(path) as cache:
        assert "No space left" in cache.problem
        put(cache)
        assert not cache.flush()
        assert cache.get(KEY, NOW) is not None
        assert cache.bump("tiny") == 1
        with pytest.raises(ToolkitError, match=r"could not be purged: .* No space left"):
            cache.purge()
        monkeypatch.setattr(shared_file, "opened", real)
        put(cache)
        cache.mend()
        assert cache.flush()
        assert (cache.problem, cache.epoch("tiny")) == (None, 1)


def test_what_waits_is_written_once_the_disk_has_room_though_small_things_fitted_meanwhile(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.proxy.stored.shared_cache.AGAIN_S", 0.01)
    with closing(SharedCache(path, 64 * MIB, batch_s=0.01)) as cache:
        writer = cache._file.writer
        writer.execute(f"PRAGMA max_page_count = {shared_file.number(writer, 'page_count')}")
        put(cache, value=os.urandom(MIB))
        assert within_10_s(lambda: cache.problem)
        cache.bump("tiny")
        assert cache.problem is None
        with cache._write_lock:
            writer.execute("PRAGMA max_page_count = 1000000")
        assert within_10_s(lambda: cache.counts().written)


def test_its_thread_outlives_what_nobody_foresaw(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.proxy.stored.shared_cache.AGAIN_S", 0.01)
    with closing(SharedCache(path, 64 * MIB, batch_s=0.01)) as cache:

        def fail() -> None:
            raise RuntimeError("oh")

        cache._mend = fail
        put(cache)
        assert within_10_s(lambda: cache.problem)
        assert "RuntimeError: oh" in cache.problem
        del cache._mend
        assert within_10_s(lambda: cache.counts().written)


def within_10_s(true: Callable[[], object]) -> bool:
    pause = threading.Event()
    return any(true() or pause.wait(0.01) for _ in range(1000))
