"""The fixture that boards and pages are tested with holds what it says."""

import dataclasses
from pathlib import Path

import pytest
from support.blasted import LIMITED, blasted, downtime, feed
from support.sightings import rows

from toolkit.records import Run, Tally
from toolkit.sketches import Sketch
from toolkit.store import Store

SECONDS = 180


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    path = tmp_path_factory.mktemp("blasted") / "toolkit.db"
    return path, blasted(path, hosts=7, seconds=SECONDS)


def tallies_of(path: Path, run: Run) -> list[Tally]:
    with Store.open_readonly(path) as store:
        return store.tallies(run.id)


def test_a_seed_makes_the_same_blast_and_another_seed_another(
    file: tuple[Path, Run], tmp_path: Path
) -> None:
    path, run = file
    same = blasted(tmp_path / "same.db", hosts=7, seconds=SECONDS)
    assert same == run
    assert tallies_of(tmp_path / "same.db", same) == tallies_of(path, run)
    other = blasted(tmp_path / "same.db", hosts=7, seconds=SECONDS, seed=1)
    assert other.id != run.id
    theirs = [
        dataclasses.replace(each, run=run.id) for each in tallies_of(tmp_path / "same.db", other)
    ]
    assert theirs != tallies_of(path, run)


def test_its_sketches_are_whole_and_hold_every_ok_answer(file: tuple[Path, Run]) -> None:
    found = tallies_of(*file)
    assert {each.kind for each in found} == {"ranked", "canary"}
    for each in found:
        e2e, ttft = Sketch.from_bytes(each.e2e), Sketch.from_bytes(each.ttft)
        assert (e2e.to_bytes(), ttft.to_bytes()) == (each.e2e, each.ttft)
        assert (e2e.count, ttft.count) == (each.ok, each.streamed)
        assert sum(error.count for error in each.error_kinds) == each.errors


def test_each_of_the_cast_plays_its_part(file: tuple[Path, Run]) -> None:
    path, run = file
    with Store.open_readonly(path) as store:
        names = [host.name for host in store.hosts_of(run.id).values()]
        sums = {
            name: each
            for (name, _, kind), each in store.tally_sums(run.id).items()
            if kind == "ranked"
        }
        shots = store.shots(run.id)
    assert names == "memory one-token restarter told-cache dead plain-05 plain-06".split()
    assert (sums["dead"].ok, sums["dead"].errors > 0) == (0, True)
    assert sums["one-token"].output_tokens == sums["one-token"].ok > 0
    # 4 of 5 answers of some 21,000: a standard deviation is 0.3 %
    assert sums["memory"].cache_inferred / sums["memory"].cache_judged == pytest.approx(
        0.8, abs=0.02
    )
    assert sums["told-cache"].cache_hits / sums["told-cache"].cache_told == pytest.approx(
        0.5, abs=0.02
    )
    assert sums["memory"].ok > sums["one-token"].ok > sums["told-cache"].ok > sums["plain-05"].ok
    twins = {shot.name: shot for shot in shots if shot.kind == "twin"}
    assert (twins["memory"].e2e_ms, twins["plain-05"].e2e_ms > 1000) == (3.0, True)


def test_the_restarter_is_down_and_then_another_process(file: tuple[Path, Run]) -> None:
    path, run = file
    start, end = downtime(SECONDS)
    assert (start, end) == (72, 102)  # 2/5 and 1/6 of 180 s
    at = int(run.started_at)
    with Store.open_readonly(path) as store:
        down = store.tallies(run.id, name="restarter", from_s=at + start, to_s=at + end - 1)
        seen = [one for one in store.sightings_between(0, 9e12) if one.name == "restarter"]
        marks = [event for _, event in store.events(run.id) if event.kind == "mark"]
        limited = [one.at_s - at for _, one in store.loader_seconds(run.id) if one.limited]
    assert {each.ok for each in down} == {0}
    assert sum(each.errors for each in down) > 0
    # every 30 s: at 90 s it is down, from 120 s on it is another process
    assert [one.status for one in seen] == ["ok", "ok", "ok", "down", "ok", "ok"]
    assert len({(one.started_at, one.config_hash) for one in seen if one.status == "ok"}) == 2
    assert [(mark.name, mark.at) for mark in marks] == [("restarter", run.started_at + end)]
    assert tuple(limited) == LIMITED


def test_one_more_second_can_be_fed(tmp_path: Path) -> None:
    path = tmp_path / "live.db"
    run = blasted(path, hosts=6, seconds=30, ended=False)
    assert run.ended_at is None
    feed(path, run, 30)
    with Store.open(path) as store:
        feed(store, run, 31)
        assert store.last_second(run.id) == int(run.started_at) + 31
        told = store.tallies(run.id, from_s=int(run.started_at) + 30, kind="ranked")
        assert {each.name for each in told if each.ok} >= {"memory", "restarter", "plain-05"}
    assert rows(path, "PRAGMA foreign_key_check") == []
