"""Whole runs in real files: what is in each, copied from another file, removed."""

from pathlib import Path

import pytest
from support.blasted import blasted
from support.sightings import rows
from support.tallies import ALICE, BOB, RUN, S, second, shot, tally

from toolkit.records import Asked, Host, Run, Seen
from toolkit.store import Store

BENCH = Run(id="bbbbbbbbbbbb", verb="bench", started_at=S - 500.5)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return tmp_path / "it's #1?.db"


def sound(path: Path) -> bool:
    return rows(path, "PRAGMA integrity_check") == [("ok",)] and not rows(
        path, "PRAGMA foreign_key_check"
    )


# --- What is in a run ---------------------------------------------------------------------------


def test_a_blasts_requests_are_its_tallies_and_its_shots_are_some_of_them(path):
    with Store.open(path) as store:
        store.add_run(RUN)
        assert store.content(RUN.id) == (0, 0, 0, None)
        store.plan_hosts(RUN.id, [Host(name=name, url=url) for name, url in (ALICE, BOB)])
        store.add_second([tally(ok=5, errors=2), tally(ok=1, errors=1, kind="canary")])
        store.add_second([tally(S + 1, ok=8)], [second(S + 3)], [shot(S + 2.5)])
        # 5 + 2 + 1 + 1 + 8 requests; 2 + 1 errors
        assert store.content(RUN.id) == (2, 17, 3, S + 3)


# --- Removing -----------------------------------------------------------------------------------


def test_what_a_file_would_take_without_runs_is_told_before_they_are_removed(path):
    runs = [blasted(path, hosts=3, seconds=60, started_at=S + 1000.0 * n) for n in range(3)]
    with Store.open(path) as store:
        all_bytes = store.used_bytes()
        first, second_ = store.used_bytes_without([run.id for run in runs[:2]])
        assert all_bytes > first > second_ > 0
        assert [store.content(run.id).hosts for run in runs] == [3, 3, 3]
        assert store.used_bytes() == all_bytes
        store.remove_run(runs[0].id)
        assert store.used_bytes() == first
        store.remove_run(runs[1].id)
        assert store.used_bytes() == second_
        store.shrink()
        # nothing is left to give back, and no log stays beside the file
        assert rows(path, "PRAGMA freelist_count") == [(0,)]
        assert path.stat().st_size == store.used_bytes() <= second_
        assert path.with_name("toolkit.db-wal").stat().st_size == 0
    assert sound(path)


# --- Copying ------------------------------------------------------------------------------------


def test_prompts_of_one_key_with_other_blocks_stay_apart_in_a_copy(path, other):
    def of_model(model: str) -> Seen:
        asked = Asked(exact_key=model, prompt_key="aa", body_bytes=1, prompt_blocks=model.encode())
        return Seen(ts=S, asked=asked)

    for file, run, models in ((other, RUN, ("c1", "c2")), (path, BENCH, ("c2",))):
        with Store.open(file) as store:
            store.add_run(run)
            store.add_seen(run.id, [of_model(model) for model in models])
    with Store.open(path) as store:
        with store.beside(other):
            store.copy_run(RUN.id)
        assert list(store.seen(RUN.id)) == [of_model("c1"), of_model("c2")]
    assert rows(path, "SELECT count(*) FROM prompts") == [(2,)]
