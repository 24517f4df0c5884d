"""The shared layer on a real file: what is put is found, by everybody, within its bounds, until it ends."""

import hashlib
import math
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.quiet_cache import QuietCache

from toolkit.errors import ToolkitError
from toolkit.proxy.cache import sqlite as module
from toolkit.proxy.cache.sqlite import KeyFilter, SqliteCache

NOW = 1_700_000_000.0
MIB = 2**20


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


def test_names_that_are_no_utf8_cost_nothing(cache: SqliteCache) -> None:
    put(cache, 1, model="qwen\ud800", tenant="röd")
    assert cache.flush()
    assert cache.purge(model="qwen\ud800", tenant="röd") == 1


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


def test_what_has_ended_makes_room_before_the_oldest(path: Path) -> None:
    with closing(QuietCache(path, MIB)) as cache:
        put(cache, 0, b"x" * 1000)  # the oldest of all, and good for ever
        for number in range(
            1, 1500
        ):  # 1.5 MB, two batches a second's worth each; all ended long ago
            put(cache, number, b"x" * 1000, ends_at=NOW - 1, now=NOW - 10)
            if number % 100 == 0:
                cache.flush()
        assert cache.get(key(0), NOW) is not None


def test_a_file_that_may_be_no_longer_as_large_shrinks(path: Path) -> None:
    with closing(QuietCache(path, 32 * MIB)) as cache:
        for number in range(20_000):
            put(cache, number, os.urandom(1_000))
        cache.flush()
        assert path.stat().st_size > 20 * MIB
    with closing(QuietCache(path, 4 * MIB)) as cache:
        put(cache, 20_000)
        for _ in range(20):
            cache.flush()
        assert cache.file_bytes() <= 4 * MIB + 513 * 8192
        assert cache.get(key(20_000), NOW) is not None
        assert cache.get(key(19_999), NOW) is not None


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


def test_a_filter_that_knows_too_much_is_made_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILTER_KEYS", 100)
    with closing(QuietCache(path, 64 * MIB)) as cache:
        for _ in range(3):
            for number in range(150):
                put(cache, number)
            assert cache.flush()
            assert cache.purge() == 150
        put(cache, 1_000)
        for _ in range(3):
            cache.flush()
        # once it knew 300, twice as many as the file had, it began anew
        assert cache._keys.count < 300
        assert cache.get(key(1_000), NOW)
        assert not looked_up(cache, 99_999)


# --- fingerprints ----------------------------------------------------------------------------------------


def test_fingerprints_are_known_at_once_and_to_every_process_with_the_next_batch(
    path: Path,
) -> None:
    with (
        closing(QuietCache(path, 64 * MIB)) as one,
        closing(QuietCache(path, 64 * MIB)) as two,
    ):
        one.keep_fingerprints({"tiny": "a", "big\ud800": "b"})
        assert one.fingerprints() == {"tiny": "a", "big\\ud800": "b"}
        assert two.fingerprints() == {}
        one.flush()
        assert two.fingerprints() == one.fingerprints()
        two.keep_fingerprints({"tiny": "c"})
        two.flush()
        assert one.fingerprints()["tiny"] == "c"
        assert one.purge() == 0
        assert one.fingerprints()["tiny"] == "c"
    with closing(QuietCache(path, 64 * MIB)) as one:
        assert one.fingerprints()["tiny"] == "c"


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


def test_no_state_of_the_file_is_kept_by_a_look_up(cache: SqliteCache, path: Path) -> None:
    put(cache, 1)
    cache.flush()
    cache.get(key(1), NOW)
    cache.get(key(2), NOW)
    cache.file_bytes()
    cache.fingerprints()
    with closing(sqlite3.connect(path)) as connection:
        # (0, ...): nobody hindered it from folding the whole log back
        assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
