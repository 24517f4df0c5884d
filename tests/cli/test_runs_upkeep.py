"""`toolkit runs merge` and `toolkit runs prune` as a user meets them."""

import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.sightings import rows, seen
from support.tallies import second

import toolkit.store.database
from toolkit.cli import runs as runs_verb
from toolkit.cli.runs import command
from toolkit.errors import ToolkitError
from toolkit.records import Run
from toolkit.store import Store

DB = Path("data/toolkit.db")
DAY_S = 86_400.0


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLKIT_DB", raising=False)


def runs(*words: str, **more: str) -> Result:
    return CliRunner().invoke(command, list(words), **more)


def done(*words: str) -> str:
    result = runs(*words)
    assert result.exit_code == 0, (result.output, result.exception)
    assert result.stdout == ""
    return result.stderr


def refused(*words: str) -> ToolkitError:
    error = runs(*words).exception
    assert isinstance(error, ToolkitError), error
    return error


def ids(path: Path = DB) -> list[str]:
    with Store.open_readonly(path) as store:
        return [run.id for run in store.runs()]


def add_runs(*days_ago: float, path: Path = DB) -> None:
    """Benches that ended, named by how long ago they began."""
    with Store.open(path) as store:
        for days in days_ago:
            at = time.time() - days * DAY_S
            store.add_run(Run(id=f"{days}d", verb="bench", started_at=at))
            store.end_run(f"{days}d", ended_at=at + 1, client_ok=True)


# --- Merge --------------------------------------------------------------------------------------


def test_a_run_that_is_still_on_is_left_for_later() -> None:
    with Store.open("other.db") as store:
        store.add_run(Run(id="on", verb="blast", started_at=time.time()))
    add_runs(1, path=Path("other.db"))
    told = done("merge", "other.db")
    assert "it is still on, so merge again when it is over" in told
    assert ids() == ["1d"]


def test_several_files_may_be_merged_into_a_new_one_oldest_run_first() -> None:
    add_runs(3, 1, path=Path("a.db"))
    add_runs(2, path=Path("b.db"))
    done("merge", "a.db", "b.db", "--db", "new.db")
    assert ids(Path("new.db")) == ["1d", "2d", "3d"]
    assert [id_ for (id_,) in rows(Path("new.db"), "SELECT id FROM runs ORDER BY number")] == [
        "3d",
        "1d",
        "2d",
    ]


def test_an_older_file_is_brought_up_to_date_before_it_is_merged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = dict(list(toolkit.store.database.STEPS.items())[:2])
    with monkeypatch.context() as patch:
        patch.setattr(toolkit.store.database, "STEPS", steps)
        add_runs(1, path=Path("old.db"))
    assert "Copied run 1d" in done("merge", "old.db")
    assert ids() == ["1d"]


def test_a_file_that_is_missing_or_the_database_itself_is_refused() -> None:
    add_runs(1)
    gone = refused("merge", "gone.db")
    assert gone.message == "`gone.db` does not exist"
    # not the store's own hint, which is about the file of --db
    assert gone.hint.startswith("Name the database of another machine")
    assert refused("merge", "data/../data/toolkit.db").message.endswith("is the database itself")
    assert not Path("gone.db").exists()


# --- Prune --------------------------------------------------------------------------------------


def test_the_newest_runs_are_kept() -> None:
    add_runs(1, 2, 3)
    told = done("prune", "--keep", "2", "--yes")
    assert "Deleted run 3d (bench of " in told
    assert ids() == ["1d", "2d"]
    assert "Nothing to delete: `data/toolkit.db` has 2 runs in " in done("prune", "--keep", "2")


def test_what_is_older_goes_with_what_scout_saw_then() -> None:
    add_runs(1, 6, 8)
    now = time.time()
    with Store.open(DB) as store:
        store.add_sightings([seen(now - days * DAY_S) for days in (6.5, 7.5, 9)])
    told = done("prune", "--keep", "7d", "--yes")
    assert "Deleted 2 sightings" in told
    assert ids() == ["1d", "6d"]
    assert rows(DB, "SELECT count(*) FROM sightings") == [(1,)]


def test_old_sightings_go_also_where_no_run_does() -> None:
    with Store.open(DB) as store:
        store.add_sightings([seen(1.0)])
    assert "Deleted 1 sighting\n" in done("prune", "--keep", "7d", "--yes")


def test_a_run_that_is_still_on_is_never_deleted() -> None:
    add_runs(1)
    now = time.time()
    with Store.open(DB) as store:
        store.add_run(Run(id="live", verb="blast", started_at=now - 2 * DAY_S))
        store.add_second(seconds=[second(int(now), run="live")])
    error = refused("prune", "--keep", "1", "--yes")
    assert error.message == "run `live` is still on, and would be deleted"
    assert ids() == ["1d", "live"]


def test_room_that_cannot_be_given_back_costs_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(_: Store) -> None:
        raise ToolkitError("`data/toolkit.db` cannot grow, the disk is full")

    monkeypatch.setattr(Store, "shrink", full_disk)
    add_runs(1, 2)
    told = done("prune", "--keep", "1", "--yes")
    assert "The room is left for new rows: `data/toolkit.db` cannot grow, the disk is full" in told
    assert ids() == ["1d"]


def test_a_file_that_somebody_writes_keeps_its_size() -> None:
    add_runs(1, 2)
    with Store.open(DB) as store:
        store.add_run(Run(id="live", verb="blast", started_at=time.time()))
    assert "keeps its size while a run is on" in done("prune", "--keep", "2", "--yes")
    assert ids() == ["live", "1d"]


def test_nobody_there_to_ask_is_no_yes() -> None:
    add_runs(1, 2)
    error = refused("prune", "--keep", "1")
    assert error.message == "nobody is here to say yes to deleting 1 of 2 runs"
    assert "--yes" in error.hint
    assert ids() == ["1d", "2d"]


@pytest.mark.parametrize(
    ("answer", "left"), [("y\n", ["1d"]), ("n\n", ["1d", "2d"]), ("\n", ["1d", "2d"])]
)
def test_a_person_is_shown_what_would_go_and_asked(
    monkeypatch: pytest.MonkeyPatch, answer: str, left: list[str]
) -> None:
    add_runs(1, 2)
    # only whether somebody is there is pretended
    monkeypatch.setattr(runs_verb, "is_terminal", lambda: True)
    result = runs("prune", "--keep", "1", input=answer)
    assert result.exit_code == 0
    assert "  run 2d (bench of " in result.stderr
    assert "Delete 1 of 2 runs? [y/N]" in result.stderr
    assert ("Nothing was deleted" in result.stderr) == (len(left) == 2)
    assert ids() == left


@pytest.mark.parametrize("word", ["", "five", "-1", "1.5", "2 GB x", "7dd"])
def test_what_is_no_amount_is_refused_with_examples(word: str) -> None:
    add_runs(1)
    result = runs("prune", "--keep", word)
    assert result.exit_code == 2
    assert "write e.g. `5` runs, `7d` or `2GB`" in result.stderr
