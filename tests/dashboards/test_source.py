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


class Clock:
    """A monotonic clock that goes when told."""

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


def extend(path: Path, run: str, from_s: int, to_s: int) -> None:
    with Store.open(path) as store:
        feeder.extend(store, run, from_s, to_s, started_s=BEGAN)


def end_s(source: DatabaseSource, run: str | None = None) -> int | None:
    look = source.look(run)
    assert look.feed is not None
    return look.feed.end_s


def test_a_file_that_is_missing_is_a_sentence_and_it_is_found_when_it_comes(
    path: Path, source: DatabaseSource, clock: Clock
) -> None:
    look = source.look()
    assert look.feed is None
    assert str(path) in (look.trouble or "")
    begin(path)
    clock.tick()
    assert source.look().feed is not None
    assert source.look().trouble is None


def test_a_database_without_a_blast_is_no_trouble(path: Path, source: DatabaseSource) -> None:
    Store.open(path).close()
    look = source.look()
    assert (look.feed, look.trouble) == (None, None)


def test_a_bench_is_no_blast(path: Path, source: DatabaseSource) -> None:
    with Store.open(path) as store:
        store.add_run(Run(id="abc", verb="bench", started_at=1.0))
    assert source.look().feed is None


def test_new_seconds_are_seen_at_the_next_tick_and_raise_the_version(
    path: Path, source: DatabaseSource, clock: Clock
) -> None:
    begin(path)
    before = source.look()
    assert end_s(source) == BEGAN + 29
    extend(path, feeder.RUN, BEGAN + 30, BEGAN + 32)
    assert source.look() is before
    clock.tick()
    assert end_s(source) == BEGAN + 31
    assert source.look().version > before.version


def test_without_anything_new_the_version_stays(
    path: Path, source: DatabaseSource, clock: Clock
) -> None:
    begin(path)
    before = source.look().version
    clock.tick()
    assert source.look().version == before


def test_a_new_run_is_followed_by_itself_and_a_chosen_one_stays(
    path: Path, source: DatabaseSource, clock: Clock
) -> None:
    begin(path)
    assert source.look().feed is not None
    begin(path, "ffffffffffff", started_s=BEGAN + 100)
    clock.tick()
    newest, chosen = source.look(), source.look(feeder.RUN)
    assert newest.feed is not None
    assert chosen.feed is not None
    assert newest.feed.run.id == "ffffffffffff"
    assert chosen.feed.run.id == feeder.RUN
    assert [run.id for run in newest.runs] == ["ffffffffffff", feeder.RUN]


def test_a_run_that_is_not_there_is_replaced_by_the_newest_and_said_so(
    path: Path, source: DatabaseSource
) -> None:
    begin(path)
    look = source.look("nowhere")
    assert look.feed is not None
    assert look.feed.run.id == feeder.RUN
    assert "nowhere" in (look.trouble or "")


def test_a_locked_database_is_a_sentence_and_is_read_when_it_is_free(
    path: Path, source: DatabaseSource, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leaderboard_page.source.BUSY_TIMEOUT_S", 0.01)
    begin(path)
    locker = sqlite3.connect(path, isolation_level=None)
    locker.execute("PRAGMA locking_mode = EXCLUSIVE")
    locker.execute("BEGIN EXCLUSIVE")
    assert "locked" in (source.look().trouble or "")
    locker.execute("ROLLBACK")
    locker.close()
    clock.tick()
    assert source.look().trouble is None
    assert end_s(source) == BEGAN + 29


def test_a_reading_that_fails_keeps_the_last_figures_and_the_next_one_goes_on(
    path: Path, source: DatabaseSource, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(path)
    before = source.look()

    def fail(*_: object, **__: object) -> None:
        raise ToolkitError("`x.db` is locked by another process", "Wait")

    with monkeypatch.context() as fault:
        fault.setattr(Store, "events", fail)
        clock.tick()
        look = source.look()
        assert (look.feed, look.version) == (before.feed, before.version)
        assert (look.trouble or "").startswith("`x.db` is locked by another process. Wait.")
        assert "last figures" in (look.trouble or "")
    extend(path, feeder.RUN, BEGAN + 30, BEGAN + 31)
    clock.tick()
    assert source.look().trouble is None
    assert end_s(source) == BEGAN + 30


def test_a_file_of_another_program_is_a_sentence_and_never_an_error(
    path: Path, source: DatabaseSource
) -> None:
    path.write_bytes(b"this is no database, and it is longer than a header of one " * 20)
    look = source.look()
    assert look.feed is None
    assert "not a SQLite database" in (look.trouble or "")


def test_a_database_of_an_older_toolkit_is_a_sentence_with_a_way_out(
    path: Path, source: DatabaseSource
) -> None:
    Store.open(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(
            "DELETE FROM _sqlite_migrations WHERE name = (SELECT max(name) FROM _sqlite_migrations)"
        )
    connection.close()
    told = source.look().trouble or ""
    assert "older toolkit" in told
    assert "toolkit scout" in told


def test_a_file_that_vanishes_leaves_the_last_figures_and_a_new_one_is_followed(
    path: Path, source: DatabaseSource, clock: Clock, tmp_path: Path
) -> None:
    begin(path)
    before = source.look()
    for part in tmp_path.glob("toolkit.db*"):
        part.unlink()
    clock.tick()
    look = source.look()
    assert look.feed is before.feed
    assert "last figures" in (look.trouble or "")
    begin(path, "ffffffffffff", started_s=BEGAN + 1000, seconds=5)
    clock.tick()
    after = source.look()
    assert after.trouble is None
    assert after.feed is not None
    assert after.feed.run.id == "ffffffffffff"
    assert after.version > before.version


def test_a_file_put_in_the_place_of_another_is_read_anew_even_with_the_same_run(
    path: Path, source: DatabaseSource, clock: Clock, tmp_path: Path
) -> None:
    begin(path, seconds=30)
    assert end_s(source) == BEGAN + 29
    other = tmp_path / "other.db"
    begin(other, seconds=10)
    other.replace(path)
    clock.tick()
    assert end_s(source) == BEGAN + 9


def test_a_pruned_run_gives_way_to_what_is_left(
    path: Path, source: DatabaseSource, clock: Clock
) -> None:
    begin(path)
    begin(path, "ffffffffffff", started_s=BEGAN + 100)
    assert source.look().feed is not None
    with Store.open(path) as store:
        store.remove_run("ffffffffffff")
    clock.tick()
    look = source.look()
    assert look.feed is not None
    assert look.feed.run.id == feeder.RUN


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


def test_a_new_version_or_another_key_is_built_anew(source: DatabaseSource) -> None:
    told = iter(range(10))
    assert source.once("a", 1, lambda: next(told)) == 0
    assert source.once("b", 1, lambda: next(told)) == 1
    assert source.once("a", 2, lambda: next(told)) == 2
    assert source.once("a", 2, lambda: next(told)) == 2


def test_a_slow_part_may_be_a_little_old_and_no_older(source: DatabaseSource, clock: Clock) -> None:
    told = iter(range(10))
    assert source.once("a", 1, lambda: next(told), keep_s=5.0) == 0
    clock.now += 4.9
    assert source.once("a", 2, lambda: next(told), keep_s=5.0) == 0
    clock.now += 0.2
    assert source.once("a", 3, lambda: next(told), keep_s=5.0) == 1


def test_what_cannot_be_built_anew_stays_as_it_was(source: DatabaseSource) -> None:
    def fail() -> int:
        raise ToolkitError("the file is locked")

    with pytest.raises(ToolkitError):
        source.once("a", 1, fail)
    assert source.once("a", 1, lambda: 7) == 7
    assert source.once("a", 2, fail) == 7


def test_viewers_are_counted_until_they_have_not_been_heard_of_for_a_while(
    source: DatabaseSource, clock: Clock
) -> None:
    assert [source.present(who) for who in ("a", "b", "a")] == [1, 2, 2]
    clock.now += PRESENT_S - 1
    assert source.present("a") == 2
    clock.now += 2
    assert source.present("a") == 1
