import sqlite3
import threading
import time
from pathlib import Path

import pytest
from leaderboard_page.source import EVERY_S, PRESENT_S, DatabaseSource
from support import feeder

from toolkit.errors import ToolkitError
from toolkit.records import Run
from toolkit.store import Store

BEGAN = 1_750_000_000
NEWER = "ffffffffffff"


class Clock:
    """A monotonic clock that goes by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def tick(self) -> None:
        self.now += EVERY_S


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "toolkit.db"


@pytest.fixture
def source(path: Path, clock: Clock) -> DatabaseSource:
    return DatabaseSource(path, clock)


def begin(path: Path, run: str = feeder.RUN, *, started_s: int = BEGAN, seconds: int = 30) -> None:
    feeder.begin(path, run, started_s=started_s, seconds=seconds)


def extend(path: Path, from_s: int, to_s: int) -> None:
    with Store.open(path) as store:
        feeder.extend(store, feeder.RUN, BEGAN + from_s, BEGAN + to_s, started_s=BEGAN)


def shown(source: DatabaseSource, run: str | None = None) -> tuple[str, int]:
    """The run that is followed, and its seconds so far."""
    feed = source.read(run).feed
    assert feed is not None
    assert feed.end_s is not None
    return feed.run.id, feed.end_s + 1 - feed.start_s


def test_a_file_that_is_missing_is_a_sentence_and_its_blast_is_found_when_it_comes(
    path: Path, source: DatabaseSource, clock: Clock
) -> None:
    found = source.read()
    assert found.feed is None
    assert str(path) in (found.trouble or "")
    # a database without a blast is no trouble, and a bench is none
    with Store.open(path) as store:
        store.add_run(Run(id="abc", verb="bench", started_at=1.0))
    clock.tick()
    assert (source.read().feed, source.read().trouble) == (None, None)
    begin(path)
    clock.tick()
    assert shown(source) == (feeder.RUN, 30)
    assert source.read().trouble is None


def test_new_seconds_are_seen_at_the_next_tick_and_raise_the_version(
    path: Path, source: DatabaseSource, clock: Clock
) -> None:
    begin(path)
    before = source.read()
    extend(path, 30, 32)
    assert source.read() is before
    clock.tick()
    assert shown(source) == (feeder.RUN, 32)
    after = source.read()
    assert after.version > before.version
    clock.tick()
    assert source.read().version == after.version


def test_a_new_run_is_followed_a_chosen_one_stays_and_one_that_is_not_there_gives_way(
    path: Path, source: DatabaseSource, clock: Clock
) -> None:
    begin(path)
    assert shown(source) == (feeder.RUN, 30)
    begin(path, NEWER, started_s=BEGAN + 100, seconds=7)
    clock.tick()
    assert shown(source) == (NEWER, 7)
    assert shown(source, feeder.RUN) == (feeder.RUN, 30)
    assert [run.id for run in source.read().runs] == [NEWER, feeder.RUN]
    assert shown(source, "nowhere") == (NEWER, 7)
    assert "nowhere" in (source.read("nowhere").trouble or "")
    with Store.open(path) as store:
        store.remove_run(NEWER)
    clock.tick()
    assert shown(source) == (feeder.RUN, 30)


def test_a_locked_database_is_a_sentence_and_is_read_when_it_is_free(
    path: Path, source: DatabaseSource, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leaderboard_page.source.BUSY_TIMEOUT_S", 0.01)
    begin(path)
    locker = sqlite3.connect(path, isolation_level=None)
    locker.execute("PRAGMA locking_mode = EXCLUSIVE")
    locker.execute("BEGIN EXCLUSIVE")
    assert "locked" in (source.read().trouble or "")
    locker.execute("ROLLBACK")
    locker.close()
    clock.tick()
    assert source.read().trouble is None
    assert shown(source) == (feeder.RUN, 30)


def test_a_reading_that_fails_keeps_the_last_figures_and_the_next_one_goes_on(
    path: Path, source: DatabaseSource, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(path)
    before = source.read()

    def fail(*_: object, **__: object) -> None:
        raise ToolkitError("`x.db` is locked by another process", "Wait")

    with monkeypatch.context() as fault:
        fault.setattr(Store, "events", fail)
        clock.tick()
        found = source.read()
        assert (found.feed, found.version) == (before.feed, before.version)
        assert (found.trouble or "").startswith("`x.db` is locked by another process. Wait.")
        assert "last figures" in (found.trouble or "")
    extend(path, 30, 31)
    clock.tick()
    assert source.read().trouble is None
    assert shown(source) == (feeder.RUN, 31)


def test_a_file_of_another_program_or_of_an_older_toolkit_is_a_sentence_and_never_an_error(
    path: Path, source: DatabaseSource, clock: Clock
) -> None:
    path.write_bytes(b"this is no database, and it is longer than a header of one " * 20)
    assert source.read().feed is None
    assert "not a SQLite database" in (source.read().trouble or "")
    path.unlink()
    Store.open(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(
            "DELETE FROM _sqlite_migrations WHERE name = (SELECT max(name) FROM _sqlite_migrations)"
        )
    connection.close()
    clock.tick()
    trouble = source.read().trouble or ""
    assert "older toolkit" in trouble
    assert "toolkit scout" in trouble


def test_a_file_that_vanishes_leaves_the_last_figures_and_what_takes_its_place_is_read_anew(
    path: Path, source: DatabaseSource, clock: Clock, tmp_path: Path
) -> None:
    begin(path)
    before = source.read()
    for part in tmp_path.glob("toolkit.db*"):
        part.unlink()
    clock.tick()
    assert source.read().feed is before.feed
    assert "last figures" in (source.read().trouble or "")
    begin(path, NEWER, started_s=BEGAN + 1000, seconds=5)
    clock.tick()
    assert shown(source) == (NEWER, 5)
    assert source.read().trouble is None
    assert source.read().version > before.version
    # even with the same run
    other = tmp_path / "other.db"
    begin(other, NEWER, started_s=BEGAN + 1000, seconds=3)
    other.replace(path)
    clock.tick()
    assert shown(source) == (NEWER, 3)


# --- what all viewers share -----------------------------------------------------------------------


def test_a_part_is_built_once_for_all_who_want_the_same_of_one_version(
    source: DatabaseSource,
) -> None:
    made: list[int] = []
    barrier = threading.Barrier(8)

    def build() -> int:
        made.append(1)
        time.sleep(0.01)
        return len(made)

    def viewer() -> None:
        barrier.wait()
        assert source.once("key", 1, build) == 1

    viewers = [threading.Thread(target=viewer) for _ in range(8)]
    for each in viewers:
        each.start()
    for each in viewers:
        each.join()
    assert len(made) == 1


def test_a_new_version_or_another_key_is_built_anew_and_a_slow_part_may_be_a_little_old(
    source: DatabaseSource, clock: Clock
) -> None:
    numbers = iter(range(10))

    def built(key: str, version: int, keep_s: float = 0.0) -> int:
        return source.once(key, version, lambda: next(numbers), keep_s=keep_s)

    wanted = (("a", 1), ("b", 1), ("a", 2), ("a", 2))
    assert [built(*each) for each in wanted] == [0, 1, 2, 2]
    clock.now += 4.9
    assert built("a", 3, keep_s=5.0) == 2
    clock.now += 0.2
    assert built("a", 3, keep_s=5.0) == 3


def test_what_cannot_be_built_anew_stays_as_it_was(source: DatabaseSource) -> None:
    def fail() -> int:
        raise ToolkitError("the file is locked")

    with pytest.raises(ToolkitError):
        source.once("a", 1, fail)
    assert source.once("a", 1, lambda: 7) == 7
    assert source.once("a", 2, fail) == 7


def test_viewers_are_counted_until_they_have_not_refreshed_for_a_while(
    source: DatabaseSource, clock: Clock
) -> None:
    assert [source.present(who) for who in ("a", "b", "a")] == [1, 2, 2]
    clock.now += PRESENT_S - 1
    assert source.present("a") == 2
    clock.now += 2
    assert source.present("a") == 1
