"""The shared layer on a real file: what is put is found, by everybody, within its bounds, until it ends."""

import hashlib
import math
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.quiet_cache import QuietCache

from toolkit.errors import ToolkitError
from toolkit.proxy.stored import shared_rows
from toolkit.proxy.stored.shared_cache import SharedCache

NOW = 1_700_000_000.0
MIB = 2**20


def key(number: int) -> bytes:
    return hashlib.blake2b(str(number).encode(), digest_size=16).digest()


def put(cache: SharedCache, number: int, value: bytes = b"answer", **changes: object) -> bool:
    row = {"ends_at": None, "tenant": "red", "model": "qwen", "now": NOW} | changes
    return cache.put(key(number), value, **row)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.db"


@pytest.fixture
def cache(path: Path) -> Iterator[SharedCache]:
    with closing(QuietCache(path, 64 * MIB, clock=lambda: NOW)) as opened:
        yield opened


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    """What plain SQLite finds in the file."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def test_what_is_put_is_found_at_once_and_after_it_was_written(cache: SharedCache) -> None:
    put(cache, 1, b"one", ends_at=NOW + 10)
    assert cache.get(key(1), NOW) == (b"one", NOW + 10)
    assert cache.flush()
    assert cache.counts().waiting == 0
    assert cache.get(key(1), NOW) == (b"one", NOW + 10)
    assert cache.get(key(2), NOW) is None


def test_an_answer_without_end_ends_never(cache: SharedCache) -> None:
    put(cache, 1)
    cache.flush()
    assert cache.get(key(1), 9e9) == (b"answer", math.inf)


@pytest.mark.parametrize("ends_at", [NOW, NOW - 1, math.nan, -math.inf])
def test_what_has_ended_already_is_not_stored(cache: SharedCache, ends_at: float) -> None:
    assert not put(cache, 1, ends_at=ends_at)
    assert cache.counts().waiting == 0


@pytest.mark.parametrize("is_written", [True, False])
def test_what_has_ended_is_not_found(cache: SharedCache, is_written: bool) -> None:
    put(cache, 1, ends_at=NOW + 5)
    if is_written:
        cache.flush()
    assert cache.get(key(1), NOW + 4.9) is not None
    assert cache.get(key(1), NOW + 5) is None


def test_the_newer_of_two_answers_is_found_whichever_was_written(cache: SharedCache) -> None:
    put(cache, 1, b"old")
    cache.flush()
    put(cache, 1, b"new")
    assert cache.get(key(1), NOW) == (b"new", math.inf)
    cache.flush()
    assert cache.get(key(1), NOW) == (b"new", math.inf)
    assert cache.counts().waiting_bytes == 0


def test_another_process_s_answers_are_found_without_opening_anew(
    cache: SharedCache, path: Path
) -> None:
    with closing(SharedCache(path, 64 * MIB)) as other:
        assert other.get(key(1), NOW) is None
        put(cache, 1, b"shared")
        cache.flush()
        assert other.get(key(1), NOW) == (b"shared", math.inf)


def test_a_restart_finds_what_was_stored(path: Path) -> None:
    with closing(SharedCache(path, 64 * MIB)) as cache:
        put(cache, 1, b"kept")
        cache.bump("qwen")
        cache.set_identity("http://a:1", "0.32.0")
    with closing(SharedCache(path, 64 * MIB)) as cache:
        assert cache.get(key(1), NOW) == (b"kept", math.inf)
        assert (cache.epoch("qwen"), cache.identity("http://a:1")) == (1, "0.32.0")


def test_the_thread_writes_by_itself(path: Path) -> None:
    with closing(SharedCache(path, 64 * MIB, batch_s=0.01)) as cache:
        put(cache, 1)
        with closing(sqlite3.connect(path)) as connection:
            for _ in range(1000):
                if connection.execute("SELECT count(*) FROM answers").fetchone() == (1,):
                    break
                threading.Event().wait(0.01)
            else:
                pytest.fail("nothing was written in 10 s")


def test_values_of_any_bytes_come_back_as_they_were(cache: SharedCache) -> None:
    values = [b"", b"\0" * 10, bytes(range(256)) * 200, os.urandom(3 * MIB)]
    for number, value in enumerate(values):
        assert put(cache, number, value)
    cache.flush()
    assert [cache.get(key(number), NOW) for number in range(4)] == [(v, math.inf) for v in values]


def test_names_that_are_no_utf8_cost_nothing(cache: SharedCache) -> None:
    put(cache, 1, model="qwen\ud800", tenant="röd")
    assert cache.flush()
    assert cache.bump("qwen\ud800") == 1
    assert cache.epoch("qwen\ud800") == 1
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

    monkeypatch.setattr("toolkit.proxy.stored.shared_rows.put", fail)
    assert not cache.flush()
    monkeypatch.undo()
    assert cache.counts().waiting_bytes == 2 * (3 + 256)
    cache.mend()
    assert cache.flush()
    assert cache.get(key(1), NOW) == (b"new", math.inf)
    assert cache.get(key(2), NOW) == (b"two", math.inf)
    assert (cache.counts().waiting_bytes, cache.counts().written) == (0, 2)


# --- bounds ----------------------------------------------------------------------------------------------


def test_no_more_waits_than_may_and_what_is_lost_is_counted(path: Path) -> None:
    # 10,256 bytes each: three are 30,768, a fourth would make 41,024
    with closing(QuietCache(path, 64 * MIB, waiting_bytes=40_000)) as cache:
        kept = [put(cache, number, b"x" * 10_000) for number in range(5)]
        assert put(cache, 0, b"y" * 10_000), "the same once more takes no room of its own"
        assert kept == [True, True, True, False, False]
        assert (cache.counts().lost, cache.counts().waiting) == (2, 3)
        assert cache.flush()
        assert put(cache, 4, b"x" * 10_000)


def test_an_answer_too_large_for_the_file_is_not_stored(path: Path) -> None:
    with closing(SharedCache(path, 8 * MIB)) as cache:
        assert not put(cache, 1, b"x" * MIB)
        assert put(cache, 2, b"x" * (MIB - 1024))


def test_ten_times_its_size_leave_the_file_within_its_bound_and_the_newest_in_it(
    path: Path,
) -> None:
    most, size, count = 4 * MIB, 1_500, 28_000  # 28,000 * 1,500 = 42 MB, ten times 4.2
    largest = 0
    with closing(QuietCache(path, most)) as cache:
        for number in range(count):
            put(cache, number, os.urandom(size))
            if number % 200 == 199:
                cache.flush()
                largest = max(largest, path.stat().st_size)
        found = [number for number in range(count) if cache.get(key(number), NOW)]
        told = cache.counts()
    assert largest <= most * 1.1
    assert found == list(range(found[0], count)), "the oldest went first"
    assert len(found) * size > 0.75 * most
    assert told.written == count == told.evicted + len(found)


def test_what_has_ended_makes_room_before_the_oldest(path: Path) -> None:
    with closing(QuietCache(path, MIB, clock=lambda: NOW)) as cache:
        put(cache, 0, b"x" * 1000)  # the oldest of all, and good for ever
        for number in range(
            1, 1500
        ):  # 1.5 MB, two batches a second's worth each; all ended long ago
            put(cache, number, b"x" * 1000, ends_at=NOW - 1, now=NOW - 10)
            if number % 100 == 0:
                cache.flush()
        assert cache.get(key(0), NOW) is not None
        assert cache.counts().evicted == 0


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
        assert cache.counts().file_bytes <= 4 * MIB + 513 * 8192
        assert cache.get(key(20_000), NOW) is not None
        assert cache.get(key(19_999), NOW) is not None


def test_what_has_ended_leaves_the_file_while_nothing_is_put(path: Path) -> None:
    with closing(QuietCache(path, 64 * MIB, clock=lambda: NOW)) as cache:
        put(cache, 1, ends_at=NOW - 1, now=NOW - 10)
        put(cache, 2, ends_at=NOW + 1)
        cache.flush()
        cache.flush()
        assert rows(path, "SELECT key FROM answers") == [(key(2),)]


def test_a_purged_file_gives_its_space_back(path: Path) -> None:
    with closing(QuietCache(path, 64 * MIB)) as cache:
        for number in range(20):
            put(cache, number, os.urandom(MIB))
        cache.flush()
        assert cache.counts().file_bytes > 20 * MIB
        assert cache.purge() == 20
        for _ in range(10):  # 20 MiB are 2,560 pages of 8 KiB, and 512 go at a time
            cache.flush()
        # the last 512 pages stay for the next answers
        assert cache.counts().file_bytes <= 520 * 8192


# --- purging ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_written", [True, False])
@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        ({}, set()),
        ({"tenant": "red"}, {2, 3}),
        ({"model": "llama"}, {0, 2}),
        ({"tenant": "red", "model": "llama"}, {0, 2, 3}),
        ({"key": key(3)}, {0, 1, 2}),
        ({"tenant": "green"}, {0, 1, 2, 3}),
        ({"tenant": ""}, {0, 1, 2, 3}),
    ],
)
def test_purging_takes_what_fits_all_that_is_given(
    cache: SharedCache, wanted: dict[str, object], left: set[int], is_written: bool
) -> None:
    kinds = [("red", "qwen"), ("red", "llama"), ("blue", "qwen"), ("blue", "llama")]
    for number, (tenant, model) in enumerate(kinds):
        put(cache, number, tenant=tenant, model=model)
    if is_written:
        cache.flush()
    assert cache.purge(**wanted) == 4 - len(left)
    assert {number for number in range(4) if cache.get(key(number), NOW)} == left
    cache.flush()
    assert {number for number in range(4) if cache.get(key(number), NOW)} == left


def test_thousands_are_purged_in_one_go(cache: SharedCache) -> None:
    for number in range(3_000):
        put(cache, number)
    cache.flush()
    assert cache.purge(tenant="red") == 3_000


def test_a_purge_that_the_file_refuses_is_no_purge(cache: QuietCache, path: Path) -> None:
    put(cache, 1)
    cache.flush()
    assert cache._file is not None
    cache._file.writer.execute("PRAGMA busy_timeout = 10")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(ToolkitError, match="locked by another process"):
            cache.purge()
        other.execute("ROLLBACK")
    assert cache.purge() == 1


def test_a_purge_goes_on_behind_what_it_looked_at(cache: QuietCache) -> None:
    for number in range(2_000):
        put(cache, number, tenant="red" if number % 2 else "blue")
    cache.flush()
    assert cache._file is not None
    writer, wanted = cache._file.writer, {"tenant": "red"}
    # ids count up from 1: red are 2, 4, ... 2000, and 512 of them end with 1024
    assert shared_rows.delete(writer, wanted, 0) == (512, 1024)
    assert shared_rows.delete(writer, wanted, 1_500) == (250, 2000)
    assert shared_rows.delete(writer, wanted, 1_500) == (0, 0)
    # 1026 to 1500
    assert cache.purge(tenant="red") == 238


# --- epochs ----------------------------------------------------------------------------------------------


def test_epochs_begin_at_nought_and_count_up_for_every_process(
    cache: SharedCache, path: Path
) -> None:
    with closing(SharedCache(path, 64 * MIB)) as other:
        assert cache.epoch("qwen") == 0
        assert [cache.bump("qwen"), other.bump("qwen"), cache.bump("qwen")] == [1, 2, 3]
        assert other.epochs() == {"qwen": 3}
        assert cache.bump("llama") == 1


def test_no_epoch_is_lowered_by_a_process_that_knows_of_less_or_by_a_file_that_does(
    path: Path,
) -> None:
    with closing(QuietCache(path, MIB)) as one, closing(QuietCache(path, MIB)) as two:
        assert one.bump("qwen") == 1
        assert [two.bump("qwen") for _ in range(4)] == [2, 3, 4, 5]
        one._let_go()  # and open it anew, knowing of 1
        one.mend()
        assert rows(path, "SELECT model, number FROM epochs") == [("qwen", 5)]
    with closing(QuietCache(path, MIB)) as cache:
        cache._epochs["qwen"] = 9  # as counted while the file could not be written
        assert cache.bump("qwen") == 10
        assert cache.epoch("qwen") == 10


def test_bumps_from_many_threads_are_all_counted(path: Path) -> None:
    with (
        closing(SharedCache(path, 64 * MIB)) as one,
        closing(SharedCache(path, 64 * MIB)) as other,
    ):
        threads = [
            threading.Thread(target=lambda cache=cache: [cache.bump("qwen") for _ in range(25)])
            for cache in (one, other, one, other)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert one.epoch("qwen") == 100


# --- many at once ----------------------------------------------------------------------------------------


def test_no_look_up_finds_another_answer_than_was_put_while_it_is_written(path: Path) -> None:
    """Numbers are put in order, again and again; whoever looks sees each key's value grow and never vanish."""
    done = threading.Event()
    wrong: list[str] = []
    with closing(SharedCache(path, 64 * MIB, batch_s=0.0)) as cache:
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


def test_no_state_of_the_file_is_kept_by_a_look_up(cache: SharedCache, path: Path) -> None:
    put(cache, 1)
    cache.flush()
    cache.get(key(1), NOW)
    cache.get(key(2), NOW)
    cache.epochs()
    cache.counts()
    with closing(sqlite3.connect(path)) as connection:
        # (0, ...): nobody hindered it from folding the whole log back
        assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
